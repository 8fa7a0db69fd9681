"""Messages about the notebook: each new note with *Undo*, and notes that wait for a yes.

A note of a turn appears under its answer, in the transaction that ends the turn; a note of the
`auxiliary.memory` model in the transaction that stores it. When a gateway starts, people and owners
are informed once about notes that versions before 0.6 made by rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from adapters.base import Renderer
from adapters.messages import Choice
from agent.messages import quoted
from gateway.access.policy import Owners
from gateway.signals import Wakeups
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.people import members, notebook
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


UNCONFIRMED = (
    "Earlier versions of me took notes from your messages by fixed rules, which could not tell"
    " your own words from pasted text. I use none of these notes ({count}) until you confirm it:"
    " `/memory` lists them, `/memory keep 1` keeps one, `/memory forget waiting` erases all that"
    " you have not kept."
)
OWNERS_TOLD = (
    "Earlier versions took notes by fixed rules. I use none of them until their people confirm"
    " them: {notes} in all, of {scopes} people and groups. I have written to each of their chats"
    " that I can reach. `parley memory list` shows the notes."
)


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


def tell_unconfirmed(conn: Connection, owners: Owners) -> set[int]:
    """Inform people and owners once about notes made by rules; returns the chats informed.

    People whose account is off are informed at a later start.
    """
    told: set[int] = set()
    count = 0
    for each in (untold := notebook.unconfirmed(conn)):
        place = _place_of(conn, each.scope, owners.renderers)
        if place is None:
            continue
        key = f"note:unconfirmed:{each.scope}:{each.newest}:kept"
        text = UNCONFIRMED.format(count=each.notes)
        owners.say(conn, place, key, text, (Choice("Show them", "/memory"),))
        notebook.note_told(conn, each.scope)
        told.add(place.id)
        count += each.notes
    if told:
        text = OWNERS_TOLD.format(
            notes=sum(each.notes for each in untold), scopes=len({each.scope for each in untold})
        )
        for chat in owners.chats(conn, owners.everybody(conn)):
            if owners.say(conn, chat, f"note:unconfirmed:owner:{chat.id}:kept", text):
                told.add(chat.id)
        log.info("unconfirmed_notes_told", scopes=len(untold), notes=count)
    return told


def _place_of(conn: Connection, scope: str, renderers: Renderers) -> Conversation | None:
    if notebook.is_shared(scope):
        [here] = notebook.conversations_of(conn, scope)
        place = conversations.get(conn, here) if conversations.exists(conn, here) else None
        return place if place is not None and place.account_key in renderers else None
    platform, _, user = scope.partition(":")
    return members.newest_direct_chat(conn, platform, user, renderers.keys())
