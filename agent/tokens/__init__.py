"""How many tokens a text has, before a provider reports it."""
