"""Hints for who comes from Hermes: the setting that means the same, not the nearest word."""

from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.settings.foreign import HERMES, counterpart, hint, leaves
from gateway.settings.loading import load_settings
from gateway.settings.tree import Keys, Settings

KEYS = Keys(Settings)


def complaint(tmp_path: Path, text: str) -> list[str]:
    """Return what is said about a parley.yaml."""
    (tmp_path / "parley.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={}, overrides={"home": tmp_path})
    return str(caught.value).splitlines()


def test_every_counterpart_is_a_key_of_parley() -> None:
    """And no key of Hermes with another name is one of Parley's already."""
    named = {mine for mine, _ in HERMES.values() if mine is not None}
    known = set(KEYS.names())
    assert {mine for mine in named if mine not in known} == set()
    own = {key for key, (mine, _) in HERMES.items() if mine is not None and key in known}
    assert own <= {"model"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "agent: {max_turns: 60}",
            "in parley.yaml; agent.max_turns of Hermes is agent.max_iterations",
        ),
        (
            "agent: {clarify_timeout: 600}",
            "agent.clarify_timeout of Hermes has no counterpart (a day, a constant)",
        ),
        ("terminal: {timeout: 60}", "terminal.timeout of Hermes is tools.terminal.timeout_s"),
        ("mcp_servers: {time: {command: uvx}}", "mcp_servers of Hermes is tools.mcp"),
        ("browser: {headed: true}", "has no counterpart (Parley has no browser"),
        ("auxiliary: {vision: {model: x}}", "auxiliary.vision of Hermes has no counterpart"),
    ],
)
def test_a_key_of_another_agent_is_answered_with_ours(tmp_path: Path, text: str, told: str) -> None:
    """By its meaning, whatever is spelled like it."""
    (line,) = complaint(tmp_path, text)
    assert told in line


def test_a_secret_of_another_agent_is_not_shown(tmp_path: Path) -> None:
    """The hint names keys alone."""
    (line,) = complaint(tmp_path, "mcp_servers: {x: {env: {KEY: '123:very-secret-token'}}}")
    assert "very-secret" not in line


def test_a_slip_of_the_pen_is_still_answered_by_spelling(tmp_path: Path) -> None:
    """What is nobody's key."""
    (line,) = complaint(tmp_path, "queue: {debounce: 5}")
    assert line.endswith("did you mean queue.debounce_ms?")


def test_a_variable_gets_the_same_hint() -> None:
    """With the name of the variable that means it."""
    with pytest.raises(SettingsError, match="did you mean PARLEY_AGENT__MAX_ITERATIONS"):
        load_settings(environ={"PARLEY_AGENT__MAX_TURNS": "9"})


def test_a_whole_file_of_another_agent_is_not_answered_line_by_line() -> None:
    """A few keys of a section, and a mark that there are more."""
    many = {"backend": 1, "timeout": 2, "cwd": 3, "docker_volumes": 4, "docker_network": 5, "x": 6}
    told = str(hint("terminal", many))
    assert told.count(" of Hermes is ") == 4
    assert told.endswith("; …")


def test_what_nobody_has_is_no_counterpart() -> None:
    """Neither with a section nor without."""
    assert counterpart("queue.debounce") is None
    assert counterpart("nonsense") is None
    assert hint("nonsense", {"a": 1}) is None


def test_leaves_are_what_has_a_value() -> None:
    """Maps that are one value, and empty ones, stay whole."""
    tree = {"a": {"b": 1, "c": {}}, "mcp_servers": {"time": {"command": "uvx"}}}
    assert dict(leaves(tree)) == {"a.b": 1, "a.c": {}, "mcp_servers": {"time": {"command": "uvx"}}}
