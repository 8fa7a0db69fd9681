"""The slash commands: how they are recognised and what they answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import commands
from gateway.commands import BYPASSING, DESCRIPTIONS, ModelFacts
from gateway.storage.history import Status

MODEL = ModelFacts("claude-test", 200_000)
IDLE = Status(3, 9, 50_000, 1234, 0, turn_running=False, last_outcome="max_iterations")


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_each_command_is_recognised(name: str) -> None:
    """Alone, addressed to the bot, with words behind it, with blanks around it."""
    for text in (f"/{name}", f"/{name}@parley_bot", f"  /{name}\n", f"/{name} now, please\nthanks"):
        assert commands.parse(text) == name
    assert commands.parse(f"/{name.capitalize()}") == name


@pytest.mark.parametrize(
    ("text", "behind"),
    [("/new", ""), ("/new ", ""), ("/new@bot  Hi\nyou ", "Hi\nyou"), ("no command", "")],
)
def test_what_stands_behind_a_command(text: str, behind: str) -> None:
    """The rest of the text, without the blanks around it."""
    assert commands.argument(text) == behind


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "stop",
        "/",
        "//stop",
        "/stopp",
        "/stop-now",
        "/usr/bin",
        "/stop!",
        "say /stop",
        "/ stop",
    ],
)
def test_anything_else_is_a_message(text: str) -> None:
    """A word that is no command goes to the agent."""
    assert commands.parse(text) is None


def test_start_is_help() -> None:
    """Telegram sends it by itself when a chat is opened, also with a payload."""
    assert commands.parse("/start") == "help"
    assert commands.parse("/start ref_123") == "help"


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Every text is a known command or a message."""
    name = commands.parse(text)
    assert name is None or (name in DESCRIPTIONS and text.strip().startswith("/"))


def test_what_bypasses_the_queue() -> None:
    """`/new` and `/retry` keep their place in the order."""
    assert {"stop", "status", "help"} == BYPASSING
    assert set(DESCRIPTIONS) - BYPASSING == {"new", "retry"}


def test_help_lists_every_command() -> None:
    """With what it does, one line each."""
    lines = commands.help_text().splitlines()
    for name, what in DESCRIPTIONS.items():
        assert f"- `/{name}`: {what}" in lines


def test_the_status_of_an_idle_conversation() -> None:
    """Readable figures, and how the last turn ended."""
    assert commands.status_text(IDLE, MODEL).splitlines() == [
        "- **Conversation**: 3, session 9",
        "- **Model**: claude-test",
        "- **Context**: 50,000 of 200,000 tokens (25%)",
        "- **Messages**: 1,234 on record",
        "- **State**: idle, 0 waiting",
        "- **Last turn**: max iterations",
    ]


def test_the_status_while_a_turn_runs() -> None:
    """The outcome of the turn before is of no interest now."""
    busy = Status(3, 9, 1, 1, 2, turn_running=True, last_outcome="final_text")
    text = commands.status_text(busy, MODEL)
    assert "working on an answer, 2 waiting" in text
    assert "Last turn" not in text


def test_the_status_before_the_first_answer() -> None:
    """How full the window is, is known only from the model."""
    fresh = Status(3, 9, None, 0, 1, turn_running=False, last_outcome=None)
    text = commands.status_text(fresh, MODEL)
    assert "unknown until the next answer, of 200,000 tokens" in text
    assert "Last turn" not in text


@pytest.mark.parametrize(
    ("was_running", "dropped", "text"),
    [
        (False, 0, "There is nothing to stop."),
        (True, 0, "Stopped."),
        (True, 1, "Stopped. One waiting message was dropped."),
        (True, 2, "Stopped. 2 waiting messages were dropped."),
        (False, 1, "Nothing was running. One waiting message was dropped."),
    ],
)
def test_stop_says_what_it_did(was_running: bool, dropped: int, text: str) -> None:
    """The running turn and what waited are told apart."""
    assert commands.stop_text(was_running=was_running, dropped=dropped) == text
