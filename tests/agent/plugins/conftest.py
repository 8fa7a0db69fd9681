"""What tests of plugins share."""

from collections.abc import Iterator

import pytest

from agent.plugins.registry import registered


@pytest.fixture(autouse=True)
def _no_engines() -> Iterator[None]:
    """Have no engine registered in this process, and give back what was."""
    before = dict(registered)
    registered.clear()
    yield
    registered.clear()
    registered.update(before)
