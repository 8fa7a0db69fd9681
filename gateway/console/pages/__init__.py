"""The console's pages, by what they are about; gateway/console/site.py names them all."""
