"""Fixtures of the tests of the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import maintenance
from gateway.storage.conversation.turns import Turn
from gateway.storage.schema import REVISION
from tests.support.storage import Store, turn_of


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that answers "hello"."""
    return store.run(turn_of, "hello")


@pytest.fixture
def migrated(old_file: Path) -> Iterator[Store]:
    """The `old_file` of the test after its migration."""
    assert maintenance.upgrade(old_file) == REVISION
    store = Store(old_file)
    yield store
    store.close()
