"""What people are told of their notebook: each new note with its undo, and what waits for a yes.

A note of a turn is told under its answer, in the transaction that ends the turn; one that the model
of `auxiliary.memory` has made, in the transaction that keeps it. Of notes that rules of versions
before 0.6 have made people and owners are told once, when a gateway starts.
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
"""By (platform, account): of the accounts that are on."""


@dataclass(frozen=True, slots=True)
class NoteChats:
    """Where people and owners are told of notes."""

    owners: Owners
    wakeups: Wakeups


UNCONFIRMED = (
    "Earlier versions of me took notes from your messages by rules, which could not tell your own"
    " words from what you had pasted. I use none of these notes any more ({count}) until you have"
    " looked at them: `/memory` lists them, `/memory keep 1` keeps one, `/memory forget waiting`"
    " erases all that you have not kept."
)
OWNERS_TOLD = (
    "Notes that earlier versions took by rules are in no prompt any more until their people have"
    " confirmed them: {notes} in all, of {scopes} people and groups. Each has been told in their"
    " chat, as far as that can be reached. `parley memory list` shows the notes."
)


def lines_of(render: Renderer, notes: Iterable[Note]) -> list[OutboxPart]:
    """Return the rows that tell of new notes, one line and row for each, with its buttons."""
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
    """Return the row that tells that the agent has taken a note out."""
    told = f"Not remembered any more: {quoted(note.text)}."
    return parts_of(render, f"note:{note.id}:removed", told)


def tell_unconfirmed(conn: Connection, owners: Owners) -> set[int]:
    """Tell people and owners once of notes that rules have made; returns the chats that are told.

    Whose account is off is told at a later start.
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
