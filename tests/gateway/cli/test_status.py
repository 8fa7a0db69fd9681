"""`parley status`, `parley alerts test` and `parley usage`: the screen, exit codes, and tables."""

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from agent.errors import CreditUsedUp
from gateway.cli import status
from gateway.cli.status import lines
from gateway.commands.status import troubles_text
from gateway.findings.report import Row
from gateway.http import control
from gateway.storage.queue import alerts
from tests.gateway.cli.test_main import fill
from tests.support.command_line import Run
from tests.support.command_line import Run as Parley
from tests.support.gateway import change, serving
from tests.support.storage import Store

PROCESS = {
    "ready": True,
    "version": "9.9",
    "started_at": 0.0,
    "database": "writable",
    "adapters": {"web:default": "connected", "telegram:default": "stopped: no token"},
}


def shown(**changes: Any) -> list[str]:
    """Return the screen of a home without a database, changed by what is given."""
    found = {
        "home": "/h",
        "running": True,
        "ready": True,
        "process": PROCESS,
        "trouble": "",
        "models": ["anthropic/claude", "offline"],
        "backup": None,
        "database": {"trouble": "it is gone"},
        "findings": [],
    }
    return [line for line, _ in lines(found | changes)]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a gateway that runs says of itself."""
    told = dict(PROCESS, started_at=time.time() - 7_260)

    async def ready(_: Path) -> dict[str, Any]:
        return told

    monkeypatch.setattr(control, "ready_in", ready)
    return told


def test_a_gateway_that_hangs_is_told(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket takes the question, and nobody answers."""
    monkeypatch.setattr(control, "READY_WITHIN_S", 0.01)
    fill(tmp_path, "one")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / control.SOCKET))
        silent.listen()
        result = parley("status")
    assert result.code == status.NOT_READY
    assert "has not answered within 0.01 s" in result.out
    assert "nothing waits for an answer" in result.out


def test_without_a_gateway_the_database_is_asked(parley: Parley, tmp_path: Path) -> None:
    """And that is said."""
    fill(tmp_path, "one")
    result = parley("status")
    assert result.code == status.NOT_RUNNING
    assert "no gateway runs in" in result.out
    assert "this is from the database" in result.out
    assert "nothing waits for an answer" in result.out


def test_a_database_that_says_nothing_is_no_source() -> None:
    """Only that it cannot be reached is told, and once."""
    first, *others = shown(running=False, ready=False, process=None)
    assert first == "no gateway runs in /h"
    assert ["it is gone" in each for each in others] == [False, True, False, False]


def test_without_anything_it_says_so(parley: Parley) -> None:
    """A new home has no database."""
    result = parley("status")
    assert result.code == status.NOT_RUNNING
    assert "database" in result.out


def test_a_gateway_that_is_ready(parley: Parley, tmp_path: Path, process: dict[str, Any]) -> None:
    """Since when, its adapters, what was spent."""
    fill(tmp_path, "one")
    (tmp_path / "parley.yaml").write_text("budget: {daily_usd: 5}\n")
    result = parley("status")
    assert result.code == 0
    assert "parley 9.9 runs in" in result.out
    assert "since 2 h 1 min, and is ready" in result.out
    assert "telegram:default stopped: no token" in result.out
    assert "of $5.00" in result.out
    told = json.loads(parley("status", "--json").out)
    assert told["running"]
    assert told["process"] == process
    assert told["queue"] == {"messages": 0, "oldest_s": 0.0}


def test_one_that_is_not_ready(parley: Parley, tmp_path: Path, process: dict[str, Any]) -> None:
    """With the reason, and another exit code."""
    down = Row("database-down", "error", "nothing can be stored: disk full", "", "", "the database")
    away = Row("adapter-stopped", "error", "slack:a does not work", "", "", "slack:a")
    process |= {"ready": False, "findings": [down.as_data(), away.as_data()]}
    fill(tmp_path, "one")
    result = parley("status")
    assert result.code == status.NOT_READY
    told = "is not ready: nothing can be stored: disk full; slack:a does not work"
    assert told in result.out
    assert "  adapter-stopped: slack:a does not work" in result.out
    del process["findings"]
    assert "is not ready: see parley doctor" in parley("status").out


async def test_a_real_gateway_tells_its_version_and_its_start(tmp_path: Path) -> None:
    """Over the control socket."""
    async with serving(tmp_path) as gateway:
        _, told = await gateway.get("/control/ready")
    assert 0 < told["started_at"] <= time.time()
    assert told["version"]
    assert told["pid"] > 0


def test_what_waits_and_what_was_given_up(parley: Parley, tmp_path: Path) -> None:
    """A dead letter and an open alert are named."""
    fill(tmp_path, "one", dead=True)

    def raise_alert(conn: Any) -> None:
        alerts.note(conn, "disk-full", "/data", "the disk is nearly full", time.time() - 60)

    asyncio.run(change(tmp_path, raise_alert))
    result = parley("status")
    assert "answer-dead: 1 answer on telegram:default could not be shown" in result.out
    assert "disk-full: the disk is nearly full, since " in result.out


def test_the_screen_names_what_is_wrong() -> None:
    """In its own words."""
    assert any("database   it is gone" in line for line in shown())
    assert any("anthropic/claude, then offline" in line for line in shown())
    late = {"to": "/b", "every_h": 24, "path": "/b/x", "age_s": 200_000}
    assert any("2 d 7 h old: /b/x" in line for line in shown(backup=late))
    assert any("none yet in /b" in line for line in shown(backup=late | {"path": None}))


def test_owners_read_of_troubles_in_their_status(store: Store) -> None:
    """As code: what a platform says is no markup."""
    store.run(alerts.note, "money-gone", "claude", "no [b]credit[/b] left", 1_700_000_000.0)
    text = troubles_text(store.run(alerts.found))
    assert text.endswith("- `no [b]credit[/b] left`, since 2023-11-14T22:13:20Z")
    assert troubles_text([]) == ""


def test_a_test_needs_a_gateway(parley: Run) -> None:
    """Nothing else could send it."""
    ended = parley("alerts", "test")
    assert ended.code == 1
    assert "No gateway runs" in ended.err


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
