"""Troubles that owners are told of, once when they begin and once when they are over."""

from sqlalchemy import Column, Double, Index, Table, Text

from gateway.storage.tables.columns import Whole, id_column, metadata, partial_index

alert = Table(
    "alert",
    metadata,
    id_column(),
    Column("kind", Text, nullable=False),  # its id in gateway/alerts/troubles.py
    Column("subject", Text, nullable=False),  # what has it: an account, a model, a disk
    Column("text", Text, nullable=False),  # what happened, in a sentence
    Column("since", Double, nullable=False),
    Column("at", Double, nullable=False),  # when it was noticed
    Column("seen_at", Double, nullable=False),  # when a replica last saw that it is still there
    Column("told_at", Double),  # NULL where it was one too many for an hour
    Column("over_at", Double),
    Column("over_told_at", Double),
    Column("posted", Whole, nullable=False, server_default="0"),  # 1: its begin, 2: its end
    Column("post_at", Double, nullable=False, server_default="0"),  # before that nobody posts it
    Index("ix_alert_at", "at"),
    sqlite_autoincrement=True,
)
is_open = alert.c.over_at.is_(None)
"""The trouble is still there."""
partial_index("ux_alert_open", alert.c.kind, alert.c.subject, where="over_at IS NULL", unique=True)
