"""What changes in a running gateway when its settings do."""
