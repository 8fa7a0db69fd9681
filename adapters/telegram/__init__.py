"""Telegram: a durable poller or webhook in, messages with entities out."""
