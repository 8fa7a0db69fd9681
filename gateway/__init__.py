"""The gateway: admission, queue, turns and delivery, on one database."""
