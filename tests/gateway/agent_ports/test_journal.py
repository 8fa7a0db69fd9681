"""The agent's ports on the database: what a turn records, in which segment, and what it reads."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import structlog
from sqlalchemy import Row, update

from agent.errors import SpendLimitReached
from agent.messages import ChatMessage, Usage, assistant_message, tool_message
from agent.ports import PlannerState
from agent.view.view import Summary, ViewPlan
from gateway.agent_ports.budgets import Budgets
from gateway.agent_ports.journal import Journal, Reader
from gateway.errors import LeaseLost, TurnCancelled
from gateway.settings.tree import BudgetSettings
from gateway.storage import schema
from gateway.storage.conversation import compactions, sessions, turn_journal
from gateway.storage.conversation.sessions import Session
from gateway.storage.database import Database
from gateway.storage.queue import leases
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    compaction,
    load_view,
    model_call,
    turn_of,
)

PLAN = ViewPlan(first_seq=2)
STATE = PlannerState(poor_savings=1)
CALL = tool_call("look", {"where": "here"})


@dataclass
class Asked:
    """What a journal asked of the gateway around it."""

    database: Database
    ahead: list[Session] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def tell(self, what: str) -> None:
        self.told.append(what)

    def ask(self, session: Session, sender: str) -> None:
        self.ahead.append(session)

    async def ready(self, session_id: int) -> Summary | None:
        return await self.database.read(compactions.candidate, session_id)


@pytest.fixture
def asked(database: Database) -> Asked:
    """Nothing yet."""
    return Asked(database)


@pytest.fixture
async def journal(database: Database, asked: Asked) -> Journal:
    """The journal of a turn that has just begun."""
    turn = await database.write(turn_of, "hello")
    spending = Budgets(database, BudgetSettings(), "UTC").for_sender(turn.sender)
    return Journal(database, turn, asked, spending, asked.tell)


async def rows(journal: Journal, table: str) -> list[tuple[object, ...]]:
    """Return the rows of a table."""
    query = schema.metadata.tables[table].select()
    return await journal.database.read(lambda conn: [tuple(row) for row in conn.execute(query)])


async def ledger_of(journal: Journal) -> list[Row[Any]]:
    """Return what is booked."""
    query = schema.ledger.select()
    return await journal.database.read(lambda conn: list(conn.execute(query)))


async def active(journal: Journal) -> Session:
    """Return the segment that the conversation is in."""
    return await journal.database.read(sessions.active, journal.turn.lease.conversation)


async def test_messages_and_results_get_the_next_places(journal: Journal) -> None:
    """In the order in which they are recorded; what the call tells is kept under its model."""
    step = ChatMessage(role="assistant", content=None, tool_calls=[CALL])
    call = model_call(Usage(500, 7), model="small", ratio=1.2)
    assert await journal.record_message(step, call) == 2
    await journal.start_tool(CALL, "side_effect")
    result = tool_message(CALL["id"], "look", "seen")
    assert await journal.record_result(result, "ok") == 3
    here = await active(journal)
    assert (here.prompt_tokens, here.prompt_upto_seq, here.token_ratio) == (500, 2, 1.2)
    assert here.report_model == "small"


async def test_after_a_compaction_records_belong_to_the_new_segment(journal: Journal) -> None:
    """The turn goes on in it, and the log's lines name it."""
    begun = journal.turn.session
    with structlog.contextvars.bound_contextvars(session=begun.id):
        child = await journal.commit(compaction(PLAN), STATE)
        assert structlog.contextvars.get_contextvars()["session"] == int(child.id)
    await journal.record_message(assistant_message("go on"), model_call(Usage(70, 1)))
    here = await active(journal)
    assert (str(here.id), here.plan, here.planner_state) == (child.id, PLAN, STATE)
    assert journal.turn.session.id == here.id != begun.id
    assert here.prompt_tokens == 70
    [_, said] = await rows(journal, "message")
    assert said[2] == here.id


async def test_a_second_compaction_continues_the_first(journal: Journal) -> None:
    """Each splits the segment that the turn is in by then."""
    for n in (2, 3):
        await journal.commit(compaction(ViewPlan(first_seq=n)), STATE)
    here = await active(journal)
    assert (here.number, here.plan.first_seq) == (3, 3)
    assert [row[2:4] for row in await rows(journal, "compaction")] == [(1, 2), (2, 3)]


async def test_a_compaction_of_a_lost_lease_writes_nothing(journal: Journal) -> None:
    """Another process has the conversation: the turn is dropped."""
    other = await journal.database.write(leases.register, "other")
    await journal.database.write(leases.reap_others, other)
    with pytest.raises(LeaseLost):
        await journal.commit(compaction(PLAN), STATE)
    assert await rows(journal, "compaction") == []
    assert (await active(journal)).id == journal.turn.session.id


async def test_a_compaction_of_a_stopped_turn_writes_nothing(journal: Journal) -> None:
    """The user's word is in the row before the compaction is."""
    stop = update(schema.conversation).values(cancel_upto_seq=1)
    await journal.database.write(lambda conn: conn.execute(stop))
    with pytest.raises(TurnCancelled):
        await journal.commit(compaction(PLAN), STATE)
    assert await rows(journal, "compaction") == []


async def test_calls_without_a_message_are_booked(journal: Journal) -> None:
    """For the turn and its sender, in order; where there are none, nothing is written."""
    lost, summary = model_call(None, purpose="lost"), model_call(Usage(9), purpose="summary")
    await journal.book([])
    assert await rows(journal, "ledger") == []
    await journal.book([lost, summary])
    booked = await ledger_of(journal)
    assert {(row.turn_id, row.sender) for row in booked} == {(journal.turn.id, "telegram:42")}
    assert [row.purpose for row in booked] == ["lost", "summary"]


async def test_a_call_is_booked_once(journal: Journal) -> None:
    """A turn that is cut off does not know whether its answer was recorded."""
    call = model_call(Usage(9))
    await journal.record_message(assistant_message("step"), call)
    await journal.book([replace(call, purpose="lost"), model_call(Usage(1))])
    assert [row.purpose for row in await ledger_of(journal)] == ["answer", "answer"]


async def test_calls_of_a_lost_lease_are_booked(journal: Journal) -> None:
    """The turn is dropped, the money is gone."""
    other = await journal.database.write(leases.register, "other")
    await journal.database.write(leases.reap_others, other)
    await journal.book([model_call(Usage(9))])
    assert len(await rows(journal, "ledger")) == 1


async def test_a_step_that_is_not_recorded_is_billed(journal: Journal) -> None:
    """The user's stop comes before its message: its words are dropped, its price is not."""
    stop = update(schema.conversation).values(cancel_upto_seq=1)
    await journal.database.write(lambda conn: conn.execute(stop))
    for call in (model_call(Usage(9)), None):
        with pytest.raises(TurnCancelled):
            await journal.record_message(assistant_message("go on"), call)
    [booked] = await ledger_of(journal)
    assert (booked.purpose, booked.usd) == ("lost", 0.5)
    assert await rows(journal, "step") == []


async def test_a_call_under_way_is_known(journal: Journal) -> None:
    """Until it is over: whoever cancels the turn books it."""
    under_way = model_call(Usage(9), purpose="lost")
    assert journal.in_flight is None
    journal.begin_call(under_way)
    assert journal.in_flight == under_way
    journal.begin_call(None)
    assert journal.in_flight is None


@pytest.mark.parametrize("recorded", [True, False])
async def test_what_a_call_held_is_let_go_with_its_step(
    database: Database, asked: Asked, recorded: bool
) -> None:
    """Once it is booked it counts as spent: what it costs less than was held is there for others.

    A turn that runs a tool for an hour must not hold it until then.
    """
    turn = await database.write(turn_of, "hello")
    budgets = Budgets(database, BudgetSettings(daily_usd=10), "UTC")
    journal = Journal(database, turn, asked, budgets.for_sender(turn.sender), asked.tell)
    async with journal.spending.call(8):
        pass
    if recorded:
        call = model_call(Usage(9), cost_usd=1)
        await journal.record_message(assistant_message("go on"), call)
    is_allowed = False
    with suppress(SpendLimitReached):
        async with budgets.for_sender("telegram:43").call(9):
            is_allowed = True
    assert is_allowed == recorded


async def test_what_was_prepared_is_found_for_its_segment_only(
    journal: Journal, asked: Asked
) -> None:
    """After a compaction that summarises it is gone, and another one is asked for."""
    begun = journal.turn.session
    prepared = Summary("settled", 1, 1, source="model", model="small")
    await journal.database.write(compactions.put_candidate, begun.id, begun.conversation, prepared)
    assert await journal.prepared() == prepared
    journal.prepare()
    summarised = replace(PLAN, summaries=(prepared,))
    await journal.commit(compaction(summarised), STATE)
    assert await journal.prepared() is None
    journal.prepare()
    assert [session.id for session in asked.ahead] == [begun.id, journal.turn.session.id]


async def test_the_user_is_told_through_the_gateway(journal: Journal, asked: Asked) -> None:
    """What a compaction could not spare them."""
    await journal.tell("clipped")
    assert asked.told == ["clipped"]


async def test_a_reader_sees_its_conversation_whatever_is_in_view(journal: Journal) -> None:
    """All messages, also those that left the view; stored outputs of this conversation alone."""
    output_id = await journal.store_output("the whole output")
    await journal.commit(compaction(PLAN), STATE)
    reader = Reader(journal.database, journal.turn.lease.conversation)
    stranger = Reader(journal.database, journal.turn.lease.conversation + 1)
    [past] = await reader.read(from_seq=None, limit=5, contains=None)
    assert (past.seq, past.text) == (1, "hello")
    assert await reader.read_output(output_id) == "the whole output"
    assert await stranger.read_output(output_id) is None
    assert await stranger.read(from_seq=1, limit=5, contains=None) == []


async def test_a_compaction_and_the_answer_agree_on_the_segment(journal: Journal) -> None:
    """The final message and its report are entered where the turn stands by then."""
    await journal.commit(compaction(PLAN), STATE)
    end = turn_journal.TurnEnd("final_text", model_call(Usage(90, 2)))
    await journal.database.write(
        turn_journal.commit, journal.turn, [assistant_message("done")], [], end
    )
    shown = await journal.database.read(load_view, 1, PLAN)
    assert [message["content"] for message in shown] == ["done"]
    [row] = await rows(journal, "compaction")
    assert row[11] == 90
