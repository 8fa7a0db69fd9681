"""Alembic migrations of the schema in gateway/storage/models.py."""
