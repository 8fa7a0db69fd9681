"""What a turn starts with to keep its view within the window.

Views that are kept: as if each were read from nothing, and never more bytes than allowed.
"""

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from agent.context.meter import ReportedUsage
from agent.context.summary_model import Summariser
from agent.context_compressor import ContextCompressor
from agent.context_engine import Limits
from agent.engines.rounds import RoundsEngine
from agent.errors import ContextOverflow, ModelError
from agent.messages import ChatMessage, assistant_message, encode, tool_message, user_message
from agent.models.base import Completion, ModelRequest, Prefix
from agent.ports import PlannerState
from agent.settings import CachingSettings
from agent.tools.builtin.history import read_conversation
from agent.view.view import Edit, Entry, Summary, View, ViewPlan
from gateway.context.window import (
    ContextParts,
    KeptViews,
    last_report,
    meter_of,
    summaries_text,
)
from gateway.storage import schema
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.sessions import Session
from gateway.storage.conversation.transcript import MessagePlace
from gateway.wiring import build_context
from tests.agent.tools.doubles import MemoryCompactions, NoLimits
from tests.bench.seeding import open_place
from tests.support.gateway import agent_of, running, settings_of
from tests.support.long_chats import LongChatModel, chatted, reply
from tests.support.scripted_model import ScriptedModel, tool_call
from tests.support.storage import Store, begin_anew, inbound, statements_of

MODEL = ScriptedModel([], context_length=50_000)
REPORTED = Session(
    7,
    1,
    ViewPlan(),
    "prompt",
    prompt_tokens=900,
    prompt_upto_seq=12,
    prompt_output_tokens=30,
    report_model="scripted",
    token_ratio=1.4,
    planner_state=PlannerState(poor_savings=1, paused_at_tokens=5, summary_not_before=9.0),
)


def parts(home: Path, **sections: dict[str, Any]) -> ContextParts:
    """Return what the settings make of the scripted model."""
    return build_context(settings_of(home, **sections), agent_of(MODEL))


def test_a_report_belongs_to_a_place_in_the_transcript() -> None:
    """Without one the view is estimated; a report without its place is none."""
    assert last_report(REPORTED) == ReportedUsage(900, 30, 12, REPORTED.report_model)
    assert last_report(Session(7, 1, ViewPlan(), None, None)) is None
    assert last_report(Session(7, 1, ViewPlan(), None, 900)) is None


def test_what_was_learned_holds_for_the_model_that_reported() -> None:
    """Another model's ratio starts afresh; its report is still the best that is known."""
    assert meter_of(agent_of(MODEL), REPORTED).ratio == 1.4
    other = ScriptedModel([])
    other.name = "another"
    meter = meter_of(agent_of(other), REPORTED)
    assert (meter.ratio, meter.report) == (1.0, last_report(REPORTED))


def test_the_meter_counts_the_tools() -> None:
    """Their schemas are part of every request."""
    system = {"role": "system", "content": "prompt"}
    with_tools = agent_of(MODEL, tools=[read_conversation])
    bare, full = (meter_of(agent, REPORTED) for agent in (agent_of(MODEL), with_tools))
    assert full.fixed_tokens(system) > bare.fixed_tokens(system) + 200  # type: ignore[arg-type]


def test_limits_come_from_the_settings_and_the_model(tmp_path: Path) -> None:
    """The window is the model's, the shares are those of `compression`."""
    compression = {"threshold": 0.7, "target_ratio": 0.3, "protect_last_n": 5}
    assert parts(tmp_path, compression=compression).limits == Limits(50_000, 0.7, 0.3, 5)
    assert parts(tmp_path).enabled
    assert not parts(tmp_path, compression={"enabled": False}).enabled


@pytest.mark.parametrize(
    ("window", "limit"), [(20_000, 20_000), (50_000, 50_000), (90_000, 90_000)]
)
def test_a_turn_has_the_window_that_its_model_has_by_then(
    tmp_path: Path, window: int, limit: int
) -> None:
    """It shrinks where the provider says so, and a chosen model has its own; the shares stay."""
    model = ScriptedModel([], context_length=50_000)
    agent = agent_of(model)
    made = build_context(settings_of(tmp_path, compression={"threshold": 0.7}), agent)
    model.context_length = window
    planner = made.planner(agent, REPORTED, MemoryCompactions())
    assert planner.engine.limits == Limits(limit, 0.7)
    assert made.limits == Limits(50_000, 0.7)


def test_a_turn_knows_what_its_segment_has_left_behind(tmp_path: Path) -> None:
    """The fingerprint of the last request, why the next may differ, the state; and the budgets."""
    prefix, budgets = Prefix("scripted", 3, "d", 1.0, 900), NoLimits()
    segment = replace(REPORTED, prefix=prefix, moved="retry")
    made = parts(tmp_path, prompt_caching={"cache_ttl": "1h"})
    agent = replace(agent_of(MODEL), caching=CachingSettings(cache_ttl="1h"))
    planner = made.planner(agent, segment, MemoryCompactions(), budgets)
    assert (planner.watch.last, planner.watch.moving, planner.watch.ttl) == (prefix, "retry", "1h")
    assert (planner.state, planner.rules.spending) == (REPORTED.planner_state, budgets)


async def test_the_next_turn_has_the_smaller_window(tmp_path: Path) -> None:
    """Once a provider has refused the long one, later turns go by half of the standard one."""
    model = LongChatModel(context_length=1_000_000)

    def answer(request: ModelRequest) -> Completion | ModelError:
        if model.context_length == 200_000:
            return reply(request)
        model.context_length = 200_000
        return ContextOverflow("Extra usage is required for long context requests.")

    model._answer = answer
    async with running(tmp_path, model) as chat:
        await chatted(chat, 1, 1)
        assert model.context_length == 200_000
        large = update(schema.session).values(prompt_tokens=120_000)
        await chat.execute(large)
        await chatted(chat, 2, 2)
        [line] = chat.events("context_pressure")
        assert line["threshold_tokens"] == 100_000


def test_the_engine_is_the_one_that_is_named(tmp_path: Path) -> None:
    """With the options of its own block."""
    built_in, named = (
        parts(tmp_path),
        parts(tmp_path, context={"engine": "rounds", "rounds": {"threshold": 0.6}}),
    )
    assert isinstance(built_in.make_engine(built_in.limits), ContextCompressor)
    engine = named.make_engine(named.limits)
    assert isinstance(engine, RoundsEngine)
    assert engine.should_compress(30_001)
    assert not engine.should_compress(30_000)


def test_the_main_model_writes_summaries_unless_another_is_set(tmp_path: Path) -> None:
    """`auxiliary.compression` puts its model first; the main one stands in."""
    own = parts(tmp_path).summariser
    assert isinstance(own, Summariser)
    assert (own.models, own.timeout_s, own.window_tokens) == ([MODEL], 60, 50_000)
    block = {"provider": "anthropic", "api_key": "k", "model": "tiny"}
    both = parts(tmp_path, auxiliary={"compression": block}).summariser
    assert isinstance(both, Summariser)
    assert [model.name for model in both.models] == ["tiny", "scripted"]


def test_a_model_that_plays_a_part_writes_none(tmp_path: Path) -> None:
    """The offline model would not know how: the extractor is used alone."""
    offline = ScriptedModel([])
    offline.provider = "offline"
    assert build_context(settings_of(tmp_path), agent_of(offline)).summariser is None


async def test_what_the_planner_remembers_outlives_a_restart(tmp_path: Path) -> None:
    """Its state and what the meter learned are stored with the segment, and inherited."""
    async with running(tmp_path, LongChatModel()) as chat:
        await chatted(chat, 1, 2)
        stored = update(schema.session).values(token_ratio=1.25, report_model="scripted")
        await chat.execute(stored)
        await chatted(chat, 3, 10)
        rows = await chat.rows(schema.session)
    assert len(rows) >= 2
    assert all(row.token_ratio != 1.0 for row in rows)
    assert all(row.report_model == "scripted" for row in rows)


# Those that write summaries


def model(tokens: int, name: str = "local") -> ScriptedModel:
    return ScriptedModel([], name=name, context_length=tokens)


def test_the_writers_of_summaries_are_described_in_the_order_of_being_asked() -> None:
    """With the window, its source, and why one is not asked: at the start and by `/status`."""
    small, tiny = model(8_192), model(2_048, "tiny")
    claude = model(200_000, "claude-haiku-4-5")
    unknown = model(128_000, "unknown")
    summariser = Summariser([small, tiny, claude, unknown], 10.0)
    summariser.learn(small, 8_192)
    summariser.rests.rest(small, 60)
    assert summaries_text(summariser) == (
        "tiny (2,048 tokens, set or told by the provider; its window is too small),"
        " then claude-haiku-4-5 (200,000 tokens, by the table),"
        " then unknown (128,000 tokens, a guess),"
        " then local (8,192 tokens, shown by a refused prompt; rests for 60 s),"
        " then the extractor"
    )
    assert summaries_text(None) == "the extractor alone"


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
