"""Alembic migrations of the schema in gateway/storage/schema/."""

from sqlalchemy import BigInteger, Integer

WHOLE = BigInteger().with_variant(Integer(), "sqlite")
"""A whole number of 64 bits; SQLite's INTEGER has as many."""
