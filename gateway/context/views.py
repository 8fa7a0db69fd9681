"""Views are read here, and those of turns are kept so that the next one reads only what is new.

The transcript is append-only, and a segment keeps its plan: what was read of a segment holds for as
long as it is in force, whoever has written since. A turn asks for the messages behind the newest
one that is known, in the statement that would else read all of them. What a turn has not committed
is never kept.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agent.messages import ChatMessage
from agent.view.view import Entry, View, ViewPlan, shown_messages, with_newer
from gateway.storage.conversation import transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.database import Database

FEW_MESSAGES = 200
"""Read and rendered on the event loop: a thread would cost more than it saves."""
KEPT_BYTES = 32_000_000
"""About the most that all of them take; some 50,000 short messages."""
MESSAGE_BYTES = 350
PART_BYTES = 550
"""What a message takes beside its text, and what each part and call in it takes. Source: measured,
200 to 300 and 350 to 550."""

Rows = Sequence[tuple[int, str]]


async def open_view(database: Database, session: Session, plan: ViewPlan) -> View:
    """Load what any plan shows of a segment's conversation, behind the segment's system prompt.

    Decoding and rendering thousands of messages takes longer than the event loop may be held.
    """
    system = session.system_prompt or ""
    rows = await database.read(transcript.load_rows, session.conversation, plan)
    if len(rows) <= FEW_MESSAGES and not plan.edits:
        return _view(system, plan, rows)
    return await asyncio.to_thread(_view, system, plan, rows)


def _view(system: str, plan: ViewPlan, rows: list[tuple[int, str]]) -> View:
    return View(system, plan, transcript.decoded(rows))


@dataclass(frozen=True, slots=True)
class KeptView:
    """What was read of a segment, and how it is shown; never changed.

    Attributes:
        messages: What is shown of the entries, the system message first.
    """

    session_id: int
    system: str
    plan: ViewPlan
    entries: list[Entry]
    messages: list[ChatMessage]
    size: int

    @property
    def newest_seq(self) -> int:
        """The newest message that was read; 0 for none."""
        return self.entries[-1].seq if self.entries else 0

    def is_of(self, session: Session) -> bool:
        """Whether it shows this segment."""
        return (self.session_id, self.system, self.plan) == (
            session.id,
            session.system_prompt or "",
            session.plan,
        )

    def opened(self) -> View:
        """Return it as a view of its own."""
        return View(self.system, self.plan, [*self.entries], [*self.messages])


class KeptViews:
    """The views of all conversations that were opened lately; beyond `most_bytes` the oldest go."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        """Keep none yet."""
        self._most_bytes = most_bytes
        self._kept: dict[int, KeptView] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        """About how many bytes they take."""
        return self._bytes

    async def open(self, database: Database, session: Session) -> View:
        """Return the view of a segment in force; reads what is not known of it."""
        known = self._known(session)
        after = known.newest_seq if known else 0
        rows = await database.read(transcript.load_rows, session.conversation, session.plan, after)
        build = partial(_with_rows, session, known, rows)
        # Decoding and rendering thousands of messages holds the event loop for too long.
        few = len(rows) <= FEW_MESSAGES and (known is not None or not session.plan.edits)
        kept = build() if few else await asyncio.to_thread(build)
        self._keep(session.conversation, kept)
        return kept.opened()

    def _known(self, session: Session) -> KeptView | None:
        known = self._kept.get(session.conversation)
        return known if known is not None and known.is_of(session) else None

    def clear(self) -> None:
        """Let go of all: what was erased must not stay in memory, its delegated children neither.

        The next turn of each other conversation reads its view anew.
        """
        self._kept.clear()
        self._bytes = 0

    def _keep(self, conversation: int, kept: KeptView) -> None:
        self._let_go(conversation)
        if kept.size <= self._most_bytes:
            self._kept[conversation] = kept
            self._bytes += kept.size
        while self._bytes > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, conversation: int) -> None:
        gone = self._kept.pop(conversation, None)
        self._bytes -= gone.size if gone else 0


def _with_rows(session: Session, known: KeptView | None, rows: Rows) -> KeptView:
    """Return what is known of a segment with the rows behind it."""
    system, plan, newer = session.system_prompt or "", session.plan, transcript.decoded(rows)
    entries = [*known.entries, *newer] if known else newer
    messages = with_newer(plan, known.messages, newer) if known else None
    messages = messages or shown_messages(system, plan, entries)
    return KeptView(
        session_id=session.id,
        system=system,
        plan=plan,
        entries=entries,
        messages=messages,
        size=(known.size if known else 0) + sum(_bytes_of(body) for _, body in rows),
    )


def _bytes_of(body: str) -> int:
    """Return about how much memory a message takes; inside of a text quotes are escaped."""
    return sys.getsizeof(body) + MESSAGE_BYTES + PART_BYTES * body.count('"type":')
