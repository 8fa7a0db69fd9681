"""Views that are kept: as if each were read from nothing, and never more bytes than allowed."""

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.messages import ChatMessage, assistant_message, encode, tool_message, user_message
from agent.view.view import Edit, Entry, Summary, View, ViewPlan
from gateway.context.views import KeptViews
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.transcript import MessagePlace
from tests.bench.seeding import open_place
from tests.support.scripted_model import tool_call
from tests.support.storage import Store, begin_anew, inbound, statements_of

CALLS = ChatMessage(
    role="assistant",
    content=None,
    tool_calls=[tool_call("look", {"at": n}, n) for n in ("a", "b")],
)
RESULTS = [tool_message(each, "look", f"seen {each} {'x' * 900}") for each in ("b", "a")]
BATCHES: list[list[ChatMessage]] = [
    [user_message("hi"), assistant_message("ho")],
    [user_message("look"), CALLS],
    RESULTS,
    RESULTS[:1],
    [user_message("long " * 300)],
    [],
]


numbers = itertools.count()


@dataclass(slots=True)
class Reading:
    """Stands for the database of the gateway; counts what is read."""

    store: Store
    rows: list[int] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)

    async def read(self, fn: Callable[..., Any], *args: Any) -> Any:
        with statements_of(self.store.connection) as made:
            found = self.store.run(fn, *args)
        self.rows.append(len(found))
        self.statements.append(len(made))
        return found


def opened_place(store: Store, chat: str = "42") -> MessagePlace:
    """Return a new conversation."""
    return store.run(open_place, inbound(chat=chat))


def active(store: Store, place: MessagePlace) -> Session:
    """Return the segment in force."""
    return store.run(sessions.active, place.conversation)


def from_nothing(store: Store, session: Session) -> View:
    """Return the view as a process that has just started reads it."""
    rows = store.run(transcript.load_rows, session.conversation, session.plan)
    return View(session.system_prompt or "", session.plan, transcript.decoded(rows))


def written(view: View) -> list[str]:
    """Return the bytes of what a view shows."""
    return [encode(message) for message in view.messages]


def plan_of(kind: str, newest: int, session: Session) -> ViewPlan:
    """Return the plan of a segment that begins now."""
    half = newest // 2
    match kind:
        case "compaction" if half > 2:
            summary = Summary("So far.", 2, half)
            edits = (Edit(newest, "clip", 300), Edit(half + 1, "prune"))
            return ViewPlan(head_upto=1, summaries=(summary,), tail_from=half + 1, edits=edits)
        case "retry" if newest:
            return replace(session.plan.hiding(newest - 1, newest), thinking_from=newest + 1)
    return session.plan


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.integers(0, len(BATCHES) - 1),
            st.sampled_from(["open", "open", "retry", "compaction", "new", "restart"]),
        ),
        max_size=25,
    )
)
def test_a_kept_view_is_the_one_that_is_read_from_nothing(
    store: Store, life: list[int | str]
) -> None:
    """Whatever was added, asked again, compacted or begun anew, and wherever that was done."""
    store.without_sync()
    place = opened_place(store, chat=f"chat {next(numbers)}")
    views, reading = KeptViews(), Reading(store)
    for step in [*life, "open"]:
        session = active(store, place)
        if isinstance(step, int):
            store.run(transcript.append, place, BATCHES[step])
        elif step == "restart":
            views = KeptViews()
        elif step == "new":
            store.run(begin_anew, place.conversation)
        elif step == "open":
            kept = asyncio.run(views.open(reading, session))  # type: ignore[arg-type]
            assert_same(kept, from_nothing(store, session))
            # What the turn does to its view is its own.
            kept.extend([Entry(10_000, user_message("of this turn"))])
        else:
            newest = store.run(conversations.message_head, place.conversation)
            plan = plan_of(step, newest, session)
            store.run(sessions.split, session, step, plan)
    assert max(reading.statements) <= 3


def assert_same(kept: View, read: View) -> None:
    """Compare all that a turn sees of a view, its bytes too."""
    assert written(kept) == written(read)
    assert (kept.entries, kept.settled, kept.plan) == (read.entries, read.settled, read.plan)


async def test_a_turn_reads_only_what_is_new(store: Store) -> None:
    """In as many statements as reading all of it takes; after a restart it reads all."""
    place = opened_place(store)
    store.run(transcript.append, place, BATCHES[0] * 100)
    reading, views = Reading(store), KeptViews()
    for _ in range(2):
        await views.open(reading, active(store, place))  # type: ignore[arg-type]
        store.run(transcript.append, place, BATCHES[0])
    await KeptViews().open(reading, active(store, place))  # type: ignore[arg-type]
    assert (reading.rows, reading.statements) == ([200, 2, 204], [1, 1, 1])


@pytest.mark.parametrize("kind", ["message", "compaction"])
async def test_what_another_replica_has_written_is_read(store: Store, kind: str) -> None:
    """A turn behind one that another replica has run shows the same as there."""
    place = opened_place(store)
    reading, here, there = Reading(store), KeptViews(), KeptViews()
    store.run(transcript.append, place, BATCHES[0])
    await here.open(reading, active(store, place))  # type: ignore[arg-type]
    await there.open(reading, active(store, place))  # type: ignore[arg-type]
    store.run(transcript.append, place, [*BATCHES[1], *RESULTS])
    if kind == "compaction":
        session = active(store, place)
        store.run(sessions.split, session, kind, plan_of(kind, newest=6, session=session))
    for views in (there, here):
        store.run(transcript.append, place, BATCHES[0])
        kept = await views.open(reading, active(store, place))  # type: ignore[arg-type]
        assert_same(kept, from_nothing(store, active(store, place)))


async def test_another_segment_is_read_anew(store: Store) -> None:
    """Its view may show what the one before did not, and leave out what it did."""
    place = opened_place(store)
    store.run(transcript.append, place, BATCHES[0] * 2)
    views = KeptViews()
    before = await views.open(Reading(store), active(store, place))  # type: ignore[arg-type]
    store.run(sessions.split, active(store, place), "retry", before.plan.hiding(1, 2))
    after = await views.open(Reading(store), active(store, place))  # type: ignore[arg-type]
    assert [entry.seq for entry in before.entries] == [1, 2, 3, 4]
    assert [entry.seq for entry in after.entries] == [3, 4]


async def test_cleared_views_hold_nothing(store: Store) -> None:
    """Nothing of them stays in memory, and the next turn reads all of its view again."""
    place = opened_place(store)
    store.run(transcript.append, place, BATCHES[0])
    reading, views = Reading(store), KeptViews()
    await views.open(reading, active(store, place))  # type: ignore[arg-type]
    views.clear()
    assert (views.size, len(views._kept)) == (0, 0)
    await views.open(reading, active(store, place))  # type: ignore[arg-type]
    assert reading.rows == [2, 2]


@pytest.mark.thorough
async def test_kept_views_take_no_more_memory_than_they_may(store: Store) -> None:
    """Counted: the oldest are let go, and what is counted is what they take."""
    reading, views = Reading(store), KeptViews(most_bytes=2_000_000)
    places = [opened_place(store, chat=str(n)) for n in range(12)]
    for place in places:
        store.run(transcript.append, place, [each for batch in BATCHES[:3] for each in batch] * 60)
    gc.collect()
    tracemalloc.start()
    for place in places:
        await views.open(reading, active(store, place))  # type: ignore[arg-type]
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1_000_000 < views.size <= 2_000_000
    assert taken < 1.2 * views.size
    reading.rows.clear()
    for place in (places[-1], places[0]):
        await views.open(reading, active(store, place))  # type: ignore[arg-type]
    assert reading.rows == [0, 360]


async def test_a_view_that_is_larger_than_all_may_be_is_not_kept(store: Store) -> None:
    """It is read again by each turn."""
    place = opened_place(store)
    store.run(transcript.append, place, BATCHES[4])
    reading, views = Reading(store), KeptViews(most_bytes=1000)
    for _ in range(2):
        await views.open(reading, active(store, place))  # type: ignore[arg-type]
    assert (reading.rows, views.size) == ([1, 1], 0)
