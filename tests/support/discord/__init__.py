"""A strict Discord on a loopback port: gateway, REST, CDN and a fault switchboard.

`server.DiscordServer` is what tests use.
"""
