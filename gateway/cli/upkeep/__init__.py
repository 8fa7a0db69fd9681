"""Commands that look after a home: its state, its database, backups."""
