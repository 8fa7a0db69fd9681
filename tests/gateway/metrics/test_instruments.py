"""What a gateway measures itself with begins and ends with it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog

from agent import spans
from gateway.logging.taps import TAPS
from gateway.metrics.counts import Vocabulary
from gateway.metrics.instruments import known_labels, seed_of
from gateway.settings.loading import load_settings
from tests.support.gateway import agent_of, running
from tests.support.scripted_model import ScriptedModel

log = structlog.get_logger()


async def test_nobody_listens_once_it_has_ended(tmp_path: Path) -> None:
    """Taps and recorder are taken back: another gateway of the process counts its own."""
    async with running(tmp_path) as chat:
        assert spans.RECORDER.get() is not None
        await chat.ask("hello")
    assert spans.RECORDER.get() is None
    assert all(not listeners for listeners in TAPS._listeners.values())


@pytest.mark.usefixtures("sqlite_alone")
async def test_two_installations_have_two_seeds(tmp_path: Path) -> None:
    """They may send to one collector; a restart has the same."""
    seeds = []
    for home in ("one", "one", "other"):
        async with running(tmp_path / home) as chat:
            seeds.append(seed_of(chat.gateway.settings))
    first, again, other = seeds
    assert first == again != other


def test_a_password_does_not_change_the_seed(tmp_path: Path) -> None:
    """It is replaced now and then; all replicas have the same, whatever their home."""

    def seed(home: str, url: str) -> bytes:
        overrides = {"home": tmp_path / home, "storage.url": url}
        return seed_of(load_settings(environ={}, overrides=overrides).settings)

    first = seed("a", "postgresql://me:old-password-1@db/parley")
    assert first == seed("b", "postgresql://you:new-password-2@db/parley?sslmode=require")
    assert first != seed("a", "postgresql://me:old-password-1@db/other")


@pytest.mark.usefixtures("sqlite_alone")
async def test_labels_follow_a_reload(tmp_path: Path) -> None:
    """A model that was configured meanwhile has its own name, and no `other`."""
    async with running(tmp_path, agent_of(ScriptedModel(["one"], name="old"))) as chat:
        gateway = chat.gateway
        vocabulary = Vocabulary(partial(known_labels, gateway.reloading))
        assert vocabulary.folded("model", "old") == "old"
        assert vocabulary.folded("model", "new") == "other"
        mind = gateway.reloading.mind
        new = ScriptedModel(["two"], name="new")
        gateway.reloading.mind = replace(mind, models=(new,))
        assert vocabulary.folded("model", "new") == "new"
        assert vocabulary.folded("account", "default") == "default"
        gateway.reloading.mind = mind
