"""Access control: roles, pairing, sign-in to the web chat, rate limits."""
