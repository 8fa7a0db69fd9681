"""A chat command is a file: one that the product does not know is one with no other edit."""

import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import gateway.commands
from gateway.commands import registry
from tests.e2e.web_chat import WebChat
from tests.support.door import bearer
from tests.support.process import ParleyProcess

ONE_SIDE = "It shows 1."


class WithToy(ParleyProcess):
    """`parley` with `tests/support/toy_command/commands/roll.py` in `gateway/commands/`."""

    program = ("-m", "tests.support.toy_command")


async def test_it_is_a_command_like_others(tmp_path: Path) -> None:
    """It is answered past the model, and `/help`, the menu and slips know it."""
    async with WithToy(tmp_path / "home") as parley:
        await answered_past_the_model(parley)
        await known_to_lists(parley)


async def answered_past_the_model(parley: WithToy) -> None:
    """By its name, its other word and with what stands behind it; the row has its name."""
    chat = WebChat(parley)
    assert await chat.ask("/roll 1") == ONE_SIDE
    assert await chat.ask("/die 1") == ONE_SIDE
    assert parley.transcript() == []
    rows = parley.rows("SELECT text, kind, command FROM inbox ORDER BY seq")
    assert rows == [("/roll 1", "command", "roll"), ("/die 1", "command", "roll")]


async def known_to_lists(parley: WithToy) -> None:
    """`/help`, the menu, and what is said to a word that is no command."""
    chat = WebChat(parley)
    assert "- `/roll`: roll a die; name its sides, or it has six\n" in await chat.ask("/help")
    assert "Did you mean `/roll`?" in await chat.ask("/rolll")
    async with (
        aiohttp.ClientSession(headers=bearer(parley.home)) as http,
        http.get(f"{parley.url}/api/chats") as response,
    ):
        offered: list[Any] = (await response.json())["commands"]
    names = [name for name, _ in offered]
    assert names.index("help") < names.index("roll")


def test_it_is_not_here() -> None:
    """Other tests know the product's commands alone."""
    assert "roll" not in registry.by_word()


TOY = Path("tests/support/toy_command/commands/roll.py").read_text()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (TOY.replace('("roll"', '("stop"'), "two commands are called /stop"),
        (
            """from gateway.commands.registry import QUEUED, Command
ROLL = Command("roll", "rolls", QUEUED)
""",
            "/roll has no function",
        ),
    ],
)
def test_a_command_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    """At the first look at the register, which is at the start."""
    (tmp_path / "mistaken.py").write_text(source)
    folders = [*gateway.commands.__path__, str(tmp_path)]
    monkeypatch.setattr(gateway.commands, "__path__", folders)
    monkeypatch.delitem(sys.modules, "gateway.commands.mistaken", raising=False)
    registry.by_word.cache_clear()
    try:
        with pytest.raises(ValueError, match=reason):
            registry.by_word()
    finally:
        registry.by_word.cache_clear()
        sys.modules.pop("gateway.commands.mistaken", None)
