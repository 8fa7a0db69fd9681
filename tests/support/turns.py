"""What happens to turns in tests: calls, crashes, stops."""

from typing import Any

import pytest
from sqlalchemy import Connection, update

from agent.messages import ChatMessage, ToolCall, Usage, decode
from agent.ports import Effect
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import Totals, TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import leases
from gateway.storage.queue.leases import Lease
from gateway.storage.schema import conversation, ledger, message, session, step, turn
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox as outbox_table
from tests.support.scripted_model import tool_call
from tests.support.storage import BASE, Store, claim_one, find_running, model_call

USAGE = Usage(100, 20, 30, 4, 5)
ANSWERED = TurnEnd("final_text", model_call(USAGE, reported_name="model-1-2026"))


def asked(*calls: ToolCall, text: str | None = None) -> ChatMessage:
    """Return what a model says that makes these calls."""
    return ChatMessage(role="assistant", content=text, tool_calls=list(calls))


def ask(store: Store, current: Turn, *ids: str, effect: Effect = "read") -> list[ToolCall]:
    """Record an assistant message with these calls, and start them."""
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    store.run(turn_journal.record_message, current, asked(*calls), model_call(USAGE))
    for call in calls:
        store.run(turn_journal.start_tool, current, call, effect)
    return calls


def crash(store: Store, lease: Lease) -> Lease:
    """Claim the conversation as a process does that starts after a crash."""
    heir = store.run(leases.register, "heir")
    store.run(leases.reap_others, heir)
    return store.run(claim_one, lease.conversation, heir)


def resume(store: Store, current: Turn) -> Turn:
    """Return a turn as the process after a crash finds it."""
    found = store.run(find_running, crash(store, current.lease), BASE)
    assert found is not None
    return found


def stop(conn: Connection, current: Turn) -> None:
    """Do what `/stop` does to the turn."""
    conn.execute(
        update(conversation)
        .where(conversation.c.id == current.lease.conversation)
        .values(cancel_upto_seq=current.upto_seq)
    )


def view(store: Store, current: Turn) -> list[ChatMessage]:
    """Return the transcript of a turn's conversation."""
    return [decode(body) for body in store.bodies(current.lease.conversation)]


def everything(store: Store) -> list[object]:
    """Return the rows of all that a turn writes."""
    tables = (turn, step, message, session, outbox_table, inbox_table, ledger)
    return [store.rows(table) for table in tables]


def lose_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first commit of a command's turn fail by a bug; the turn is tried again at once."""
    commit, failures = turn_journal.commit, [KeyError("bug")]

    def breaking(conn: Connection, current: Turn, *args: Any, **how: Any) -> Totals:
        if current.command is not None and failures:
            raise failures.pop()
        return commit(conn, current, *args, **how)

    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(turn_journal, "commit", breaking)
