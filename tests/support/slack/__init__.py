"""A strict Slack on a loopback port; `server.SlackServer` is the way in."""
