"""Messages about the notebook: each new note with *Undo*, and notes that wait for a yes.

A note of a turn appears under its answer, in the transaction that ends the turn; a note of the
`auxiliary.memory` model in the transaction that stores it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from adapters.base import Renderer
from adapters.messages import Choice
from agent.messages import quoted
from gateway.access.policy import Owners
from gateway.signals import Wakeups
from gateway.storage.people.notebook import Note
from gateway.storage.queue.outbox import OutboxPart, parts_of

log = structlog.get_logger()

Renderers = Mapping[tuple[str, str], Renderer]
"""By (platform, account); only accounts that are on."""


@dataclass(frozen=True, slots=True)
class NoteChats:
    """Where people and owners get messages about notes."""

    owners: Owners
    wakeups: Wakeups


def lines_of(render: Renderer, notes: Iterable[Note]) -> list[OutboxPart]:
    """Return one outbox row for each new note: a line with its buttons."""
    return [part for note in notes for part in _line(render, note)]


def _line(render: Renderer, note: Note) -> Sequence[OutboxPart]:
    key, text = f"note:{note.id}:kept", quoted(note.text)
    if note.waits:
        asked = (
            f"Shall I remember: {text}? `/memory keep #{note.id}` or `/memory forget #{note.id}`"
        )
        choices = (
            Choice("Keep", f"/memory keep #{note.id}"),
            Choice("No", f"/memory forget #{note.id}"),
        )
        return parts_of(render, key, asked, choices=choices)
    instead = f" instead of {quoted(note.before)}" if note.before else ""
    told = f"Remembered: {text}{instead}. `/memory undo {note.id}`"
    return parts_of(render, key, told, choices=(Choice("Undo", f"/memory undo {note.id}"),))


def removal_of(render: Renderer, note: Note) -> list[OutboxPart]:
    """Return the outbox row that reports a note removed by the agent."""
    told = f"No longer remembered: {quoted(note.text)}."
    return parts_of(render, f"note:{note.id}:removed", told)
