"""Alembic environment: the gateway hands in its open connection, in a transaction of its own."""

from alembic import context

from gateway.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=False,
    compare_type=True,
)
context.run_migrations()
