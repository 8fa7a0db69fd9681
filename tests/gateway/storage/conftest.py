"""Fixtures of the tests of the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import files
from gateway.storage.models import REVISION
from gateway.storage.turns import Turn
from tests.support.storage import Store, turn_of


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that answers "hello"."""
    return store.run(turn_of, "hello")


@pytest.fixture
def migrated(old_file: Path) -> Iterator[Store]:
    """The `old_file` of the test after its migration."""
    assert files.upgrade(old_file) == REVISION
    store = Store(old_file)
    yield store
    store.close()
