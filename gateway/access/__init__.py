"""Who may talk: roles, pairing, sign-ins to the web chat, rate limits."""
