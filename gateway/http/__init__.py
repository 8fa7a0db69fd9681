"""What the gateway serves over HTTP and over its Unix socket."""
