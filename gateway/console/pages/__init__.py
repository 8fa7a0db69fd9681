"""The console's pages, grouped by topic; gateway/console/site.py lists all of them."""
