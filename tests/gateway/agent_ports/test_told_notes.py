"""Messages about the notebook: lines with buttons."""

import pytest

from gateway.agent_ports.told_notes import lines_of, removal_of
from gateway.storage.people.notebook import Note

NOTE = Note(17, "telegram:42", "user", "likes `tea`", "2026-03-01T08:00:00Z")
ON = {("telegram", "default"): lambda text: [text]}


@pytest.mark.parametrize(
    ("target", "before", "text", "buttons"),
    [
        ("user", "", "Remembered: `likes 'tea'`. `/memory undo 17`", ["/memory undo 17"]),
        (
            *("user", "likes milk"),
            "Remembered: `likes 'tea'` instead of `likes milk`. `/memory undo 17`",
            ["/memory undo 17"],
        ),
        (
            *("offer", ""),
            "Shall I remember: `likes 'tea'`? `/memory keep #17` or `/memory forget #17`",
            ["/memory keep #17", "/memory forget #17"],
        ),
    ],
)
def test_a_note_is_one_line(target: str, before: str, text: str, buttons: list[str]) -> None:
    """Its text is data; each possible action is a button and a command."""
    note = Note(NOTE.id, NOTE.scope, target, NOTE.text, NOTE.at, before)
    [part] = lines_of(ON["telegram", "default"], [note])
    assert part.markdown == text
    assert [each.text for each in part.choices] == buttons
    [gone] = removal_of(ON["telegram", "default"], note)
    assert "likes 'tea'" in gone.markdown
