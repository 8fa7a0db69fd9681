"""`parley alerts`: what is open and what is over, and a test of the ways to tell."""

import asyncio
from pathlib import Path

import orjson
import pytest

from agent.errors import CreditUsedUp
from gateway.commands.status import troubles_text
from gateway.storage.queue import alerts
from tests.support.command_line import Run
from tests.support.gateway import serving
from tests.support.storage import Store


@pytest.fixture
def troubled(store: Store) -> Store:
    """One that is open, and one that is over."""
    over = store.run(alerts.note, "disk-full", "/data", "only 1 MB is free", 1_700_000_000.0)
    assert over is not None
    store.run(alerts.end, over, 0.0)
    store.run(alerts.note, "money-gone", "claude", "no [b]credit[/b] left", 1_700_000_000.0)
    return store


@pytest.mark.usefixtures("troubled")
def test_what_is_open_is_listed(parley: Run) -> None:
    """With `--all` what is over as well."""
    ended = parley("alerts")
    assert "no [b]credit[/b] left" in ended.out
    assert "disk-full" not in ended.out
    found = [orjson.loads(line) for line in parley("alerts", "--all", "--json").out.splitlines()]
    assert [(each["kind"], each["over_at"] is None) for each in found] == [
        ("money-gone", True),
        ("disk-full", False),
    ]
    assert found[0]["since"] == "2023-11-14T22:13:20Z"


@pytest.mark.usefixtures("store")
def test_of_nothing_it_says_so(parley: Run) -> None:
    """An empty table would look like a failure."""
    assert "nothing is wrong" in parley("alerts").out


def test_owners_read_of_troubles_in_their_status(troubled: Store) -> None:
    """As code: what a platform says is no markup."""
    text = troubles_text(troubled.run(alerts.found))
    assert text.endswith("- `no [b]credit[/b] left`, since 2023-11-14T22:13:20Z")
    assert troubles_text([]) == ""


def test_a_test_needs_a_gateway(parley: Run) -> None:
    """Nothing else could send it."""
    ended = parley("alerts", "test")
    assert ended.code == 1
    assert "no gateway runs" in ended.err


async def test_a_test_goes_to_the_owners_chat(parley: Run, home: Path) -> None:
    """Once one has written to the bot; before that there is no way, which is told."""
    async with serving(home) as gateway:
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert ended.code == 1
        assert "no chat" in ended.err
        chat = gateway.chat
        await chat.ask("hello")
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert (ended.code, ended.out) == (0, "entered for 1 chat; look whether it arrives\n")
        assert "A test of the alerts" in (await chat.answers(2))[1]
        chat.agent.recovery.rests.note_failure(chat.agent.models[0].label, CreditUsedUp("402"))
        watch = chat.gateway.platforms.alerts
        assert watch is not None
        await watch.look()
        await chat.answers(3)
        assert "**Troubles**" in await chat.ask("/status")
        assert "**Troubles**" not in await chat.ask("/status", "c2", sender="u2")


async def test_a_test_of_what_is_off_says_so(parley: Run, home: Path) -> None:
    """Rather than to say nothing."""
    async with serving(home, alerts={"enabled": False}):
        ended = await asyncio.to_thread(parley, "alerts", "test")
        assert (ended.code, "alerts.enabled is false" in ended.err) == (1, True)
