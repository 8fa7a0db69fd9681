"""What people see of the tools while a turn runs: short, plain, nothing secret."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.discord.render import preview_text as on_discord
from adapters.telegram.render import preview_text as on_telegram
from agent.messages import ToolCall
from agent.models.scripted import tool_call
from agent.redaction import Redactor
from gateway.progress import MAX_LINES, ToolLines, label

SECRET = "hunter2-hunter2"
redact = Redactor([SECRET]).text


def call(name: str, call_id: str = "c1", **arguments: object) -> ToolCall:
    """Return a call."""
    text = orjson.dumps(arguments).decode()
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": text})


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (call("terminal", command="pytest -q\n tests"), "terminal: `pytest -q tests`"),
        (call("read_file", path="a/b.py", limit=3), r"read\_file: `a/b.py`"),
        (call("todo", items=[]), "todo"),
        (call("write_file", content="All of it.", path=""), r"write\_file"),
        (call("terminal", command=["ls"]), "terminal"),
        (call("terminal", command="x" * 70), f"terminal: `{'x' * 59}…`"),
        (call("", command="ls"), "?: `ls`"),
    ],
)
def test_a_call_is_named_by_what_it_is_about(made: ToolCall, shown: str) -> None:
    """Its command, path or question; not what it writes."""
    assert label(made, redact) == shown


@pytest.mark.parametrize(
    "command", [f"login {SECRET}", "export TOKEN=abcd1234efgh", f"{'x ' * 20}sk-ant-{'a1' * 20}"]
)
def test_no_secret_is_shown(command: str) -> None:
    """Configured or by its shape; masked before the text is cut."""
    shown = label(call("terminal", command=command), redact)
    assert "********" in shown
    assert not any(each in shown for each in (SECRET, "abcd1234", "sk-ant-a"))


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"command": "' + "x" * 200_000 + '"}'])
def test_odd_arguments_show_the_name_alone(arguments: str) -> None:
    """They may be anything, and of any size."""
    odd = ToolCall(id="c", type="function", function={"name": "terminal", "arguments": arguments})
    assert label(odd, redact) == "terminal"


@given(st.text(max_size=80), st.text(max_size=30))
def test_formatting_is_shown_as_text(command: str, name: str) -> None:
    """One line, and nothing in it is a link, a mention or bold."""
    lines = ToolLines(redact)
    lines.set(call(name, command=f"[x](https://x.org) **b** @everyone ` {command}"), "running")
    [shown] = (on_telegram(lines.text) or "").splitlines()
    assert "[x](https://x.org) **b** @everyone" in shown
    assert (on_discord(lines.text) or "").count("`") == 2


def test_each_call_has_a_line_that_tells_how_it_stands() -> None:
    """In the order in which they began."""
    lines = ToolLines(redact)
    for name, state in (
        ("terminal", "ok"),
        ("fetch", "error"),
        ("recall", "partial"),
        ("delegate", "running"),
        ("clarify", "waiting"),
    ):
        lines.set(call(name, name), "running")
        lines.set(call(name, name), state)
    assert lines.text.splitlines() == [
        "✓ terminal  ",
        "⚠️ fetch  ",
        "✓ recall  ",
        "🔧 delegate  ",
        "⏸ clarify (waiting for an answer)",
    ]


def test_the_newest_are_shown() -> None:
    """How many there were before is told."""
    lines = ToolLines(redact)
    assert lines.text == ""
    for n in range(8):
        lines.set(call("echo", f"c{n}", query=str(n)), "ok")
    shown = [line.rstrip() for line in lines.text.splitlines()]
    assert shown == ["+3 earlier", *(f"✓ echo: `{n}`" for n in range(3, 3 + MAX_LINES))]


def test_an_id_that_is_used_again_is_another_call() -> None:
    """Some servers begin to count anew in each step."""
    lines = ToolLines(redact)
    lines.set(call("echo", "call_0", query="first"), "ok")
    lines.set(call("echo", "call_0", query="second"), "running")
    assert lines.text.splitlines() == ["✓ echo: `first`  ", "🔧 echo: `second`"]


def test_a_refused_call_waits_for_nothing() -> None:
    """What did not run is marked as such."""
    lines = ToolLines(redact)
    lines.set(tool_call("terminal", {"command": "ls"}), "denied")
    assert lines.text == "⚠️ terminal: `ls`"
