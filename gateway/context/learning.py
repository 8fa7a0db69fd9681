"""What the end of a turn enters into the memory: what its people asked for once and for all.

Only a person's own words count: no quote, no forwarded message, no file, nothing that a tool has
returned, and no copy of what the agent has said. In a direct chat that is its person; elsewhere it
holds for the conversation, and only people who may act are heard (as for the tool `memory`). What
a threat scan finds anything in is not pinned, nor is what holds a secret.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from agent.context.facts import facts_in
from agent.context.instructions import instructions_in
from agent.safety.redaction import Redactor, masked_assignments
from agent.safety.threats import scan
from gateway.access.policy import Access
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.people import notebook, remembered
from gateway.storage.people.remembered import FoundWords, Learned
from gateway.storage.queue.inbox import InboxEntry

log = structlog.get_logger()

BEGINS_ANEW = "new"
"""The command behind whose word a question may stand."""


async def learned_in(database: Database, access: Access, turn: Turn) -> Learned | None:
    """Return what the end of a turn is to enter; None for nothing, and then nothing is read."""
    if turn.lease.parent is not None or not turn.entries:
        return None
    if not (found := list(words_in(turn.asked, turn.lease.address.platform))):
        return None
    place = SaidAt(turn.lease.conversation, turn.begins_at, turn.question_seq)
    return await database.read(allowed, access, place, found)


def words_in(asked: Sequence[InboxEntry], platform: str) -> Iterator[FoundWords]:
    """Yield what was found in the own words of those who asked."""
    for entry in asked:
        # Whose words are whose is not told within one text: all of it counts as quoted then.
        if entry.authors is not None:
            continue
        own = own_words(entry)
        by = f"{platform}:{entry.sender}"
        for each in instructions_in(own):
            yield FoundWords("instruction", each.text, each.subject, said_by=by)
        for fact in facts_in(own):
            yield FoundWords("fact", fact.text, fact.subject, fact.value, by)


def _holds_secret(text: str) -> bool:
    """Whether a text holds what looks like a secret: it must not stand in prompts and lists."""
    return _REDACTOR.text(text) != text or masked_assignments(text) != text


_REDACTOR = Redactor()


def own_words(entry: InboxEntry) -> str:
    """Return what somebody wrote as a message, or behind the word that begins anew; else ""."""
    if entry.kind == "message":
        return entry.text
    return entry.argument if entry.command == BEGINS_ANEW else ""


@dataclass(frozen=True, slots=True)
class SaidAt:
    """Where words were said.

    Attributes:
        began: Seq of the turn's first message.
    """

    conversation: int
    began: int
    seq: int


def allowed(
    conn: Connection, access: Access, place: SaidAt, found: Sequence[FoundWords]
) -> Learned | None:
    """Return those of the words that may be remembered; None where none may."""
    conversation = place.conversation
    scope = notebook.scope_of(conn, conversation)
    may_all = not notebook.is_shared(scope)
    kept = tuple(
        words
        for words in found
        if (may_all or access.may_act(conn, [words.said_by]))
        and not scan(words.text).findings
        and not _holds_secret(words.text)
        and not remembered.was_said_by_agent(conn, conversation, place.began, words.text)
    )
    if len(kept) < len(found):
        log.info("words_not_remembered", words=len(found) - len(kept))
    return Learned(scope, kept, place.seq) if kept else None
