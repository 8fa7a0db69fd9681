"""Telegram: durable poller and webhook in, entities out."""
