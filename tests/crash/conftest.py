"""Fixtures of the crash tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.crash import Crashes, Nursery
from tests.support.crash_platform import LoopbackPlatform


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks gateways; it has imported everything once."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an empty, migrated database lies."""
    return tmp_path_factory.mktemp("template") / "parley.db"


@pytest.fixture
async def platform() -> AsyncIterator[LoopbackPlatform]:
    """The platform that outlives the gateways."""
    async with LoopbackPlatform() as platform:
        yield platform


@pytest.fixture
def crashes(
    nursery: Nursery, platform: LoopbackPlatform, template: Path, tmp_path: Path
) -> Iterator[Crashes]:
    """A fresh home with its platform."""
    crashes = Crashes(nursery, platform, tmp_path)
    crashes.migrate(template)
    yield crashes
    crashes.close()
