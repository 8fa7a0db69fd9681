"""`parley replay`: recorded conversations through the real path."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gateway.errors import SettingsError
from gateway.replay import replay
from tests.support.gateway import log_lines, settings_of
from tests.support.recording_adapter import Watch
from tests.support.shared import SHARED

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "What is there?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "a cat"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You are welcome."},
]


async def play(tmp_path: Path, *files: Path) -> tuple[bool, str]:
    """Return the verdict and what was printed."""
    console = Console(file=io.StringIO(), width=160)
    async with log_lines(Watch()):
        good = await replay(settings_of(tmp_path), files, console)
    assert isinstance(console.file, io.StringIO)
    return good, console.file.getvalue()


def recording(tmp_path: Path, messages: list[dict[str, Any]], name: str = "talk") -> Path:
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(messages))
    return file


async def test_a_recording_gets_its_recorded_answers(tmp_path: Path) -> None:
    """Two turns, one tool call, six messages, and a line that says so."""
    good, printed = await play(tmp_path, recording(tmp_path, TALK))
    assert good
    [line] = [line for line in printed.splitlines() if "talk" in line]
    assert line.split()[1:4] == ["6", "2", "1"]
    assert line.split()[-1] == "all"
    assert "1 of 1 conversations fully answered" in printed


async def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the message and what came instead, whatever it looks like."""
    monkeypatch.setattr("gateway.turn.notices.answer_text", lambda _: "[/b] something else")
    good, printed = await play(tmp_path, recording(tmp_path, TALK))
    assert not good
    assert "message 1 was answered with '[/b] something else'" in printed
    assert "0 of 1 conversations fully answered" in printed


async def test_several_files_are_played_side_by_side(tmp_path: Path) -> None:
    """Each with its own line."""
    files = [recording(tmp_path, TALK, f"talk{n}") for n in range(12)]
    good, printed = await play(tmp_path, *files)
    assert good
    assert "12 of 12" in printed


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
async def test_a_file_of_no_known_format(tmp_path: Path, content: str) -> None:
    """The error names it."""
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"cannot replay .*bad\.json"):
        await play(tmp_path, file)


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """As clear as the others."""
    with pytest.raises(SettingsError, match="cannot replay"):
        await play(tmp_path, tmp_path / "nothing.json")


if SHARED is not None:
    AIRLINE = SHARED / "tau-bench" / "gpt-4o-airline.json"

    @pytest.mark.timeout(120)
    async def test_real_conversations_are_fully_answered(tmp_path: Path) -> None:
        """All 200 dialogues of tau-bench, with their tools."""
        good, printed = await play(tmp_path, AIRLINE)
        assert good, printed
        assert "200 of 200" in printed
