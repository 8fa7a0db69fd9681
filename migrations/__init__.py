"""Alembic migrations of the schema in gateway/storage/schema.py."""
