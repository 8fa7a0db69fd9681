"""Telegram: durable poller and webhook in (step 1 of the path), entities out (steps 8 and 9)."""
