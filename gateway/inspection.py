"""Settings and the database for commands that only look: whether a gateway runs or not.

What opens the database is imported when it is opened, so that `parley run` stays small.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from gateway.errors import StorageUnavailable
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from sqlalchemy import Connection


def settings_of(context: typer.Context) -> Settings:
    """Return the settings that the options of `parley` itself choose."""
    chosen = context.find_root().params
    overrides = {"home": chosen.get("home")}
    return load_settings(config=chosen.get("config"), overrides=overrides).settings


@contextmanager
def opened(settings: Settings) -> Iterator["Connection"]:
    """Open the database for reading.

    Raises:
        StorageUnavailable: It is not there, or its schema is not this version's.
    """
    opening = import_module("gateway.storage.opening")
    path = opening.database_path(settings)
    with import_module("gateway.storage.files").reading(path) as conn:
        import_module("gateway.storage.migrate").refuse_newer(conn)
        if opening.schema_revision(conn) != opening.REVISION:
            remedy = "`parley db upgrade` or `parley run` brings it up to date"
            raise StorageUnavailable(f"{path} has the schema of an older version; {remedy}")
        yield conn
