"""The gateway's HTTP server and its Unix socket."""
