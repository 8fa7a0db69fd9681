"""The agent: models, tools and the loop of one turn. No database, no platform, no gateway."""
