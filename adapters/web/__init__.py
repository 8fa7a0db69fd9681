"""The built-in web chat: pages, JSON API and event streams on the gateway's HTTP server."""
