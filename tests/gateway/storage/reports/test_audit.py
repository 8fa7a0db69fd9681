"""What tools did, and who decided: the trail of journal, questions and transcript."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import update

from agent.messages import assistant_message, tool_message
from agent.ports import Inquiry, JournaledEffect, ToolStatus
from gateway.storage.conversation import questions, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.reports import audit
from gateway.storage.reports.audit import AuditFilter, AuditRow
from gateway.storage.schema import conversation, step
from tests.support.scripted_model import tool_call
from tests.support.storage import Store, turn_of


class Calls:
    """One turn, and what becomes of its calls."""

    def __init__(self, store: Store, chat: str = "42") -> None:
        self.store = store
        self.turn = store.run(turn_of, "act", chat=chat)
        self.number = 0

    def call(self, tool: str, arguments: dict[str, Any] | None = None, *, call_id: str = "") -> str:
        """Have the model call a tool; returns the call's id."""
        self.number += 1
        call_id = call_id or f"c{self.number}"
        message = assistant_message("")
        message["tool_calls"] = [tool_call(tool, arguments or {}, call_id)]
        self.store.run(turn_journal.record_message, self.turn, message)
        return call_id

    def start(self, tool: str, call_id: str, effect: JournaledEffect = "side_effect") -> None:
        """Journal the intent."""
        self.store.run(turn_journal.start_tool, self.turn, tool_call(tool, {}, call_id), effect)

    def end(self, tool: str, call_id: str, status: ToolStatus = "ok") -> None:
        """Journal the result."""
        message = tool_message(call_id, tool, "…")
        self.store.run(turn_journal.record_result, self.turn, message, status)

    def ask(self, tool: str, call_id: str, answer: str = "", kind: Any = "approval") -> int:
        """Ask about a call, and give the answer."""
        asked = Inquiry(kind, call_id, tool, "?")
        at = (self.turn.lease.conversation, self.turn.id, call_id)
        found = self.store.run(questions.enter, *at, asked, 60)
        if answer:
            self.store.run(questions.answer, found.id, answer, "telegram:7")
        return found.id


def listed(store: Store, **wanted: Any) -> Sequence[AuditRow]:
    """Return the trail."""
    return store.run(audit.calls, AuditFilter(**wanted))


def told(rows: Sequence[AuditRow]) -> list[tuple[str, ...]]:
    """Return what a person looks at first."""
    return [(row.tool, row.effect, row.decision, row.by, row.outcome) for row in rows]


def test_calls_that_ran(store: Store) -> None:
    """Asked about or not, with their effect, their arguments and whose words they go back to."""
    calls = Calls(store)
    plain, allowed = calls.call("look", {"at": 1}), calls.call("act", {"how": "much"})
    calls.start("look", plain, "read")
    calls.end("look", plain)
    calls.ask("act", allowed, "once")
    calls.start("act", allowed)
    calls.end("act", allowed, "error")
    rows = listed(store)[::-1]
    assert told(rows) == [
        ("look", "read", "not asked", "", "ok"),
        ("act", "side_effect", "once", "telegram:7", "error"),
    ]
    assert [row.arguments for row in rows] == ['{"at":1}', '{"how":"much"}']
    assert [row.said for row in rows] == ["", "…"]
    assert rows[1].senders == ("telegram:42",)
    assert rows[0].decided_at is None
    assert rows[1].decided_at is not None


@pytest.mark.parametrize("status", ["refused", "vetoed", "denied"])
def test_calls_that_never_ran(store: Store, status: ToolStatus) -> None:
    """They had no effect, whatever that of their tool is; nobody was asked."""
    calls = Calls(store)
    call_id = calls.call("act")
    calls.start("act", call_id, "none")
    calls.end("act", call_id, status)
    assert told(listed(store)) == [("act", "none", status, "", status)]


@pytest.mark.parametrize(
    ("answer", "status", "decision"),
    [
        ("deny", "denied", "denied"),
        ("conversation", "ok", "conversation"),
        ("once", "vetoed", "vetoed"),
    ],
)
def test_what_was_decided(store: Store, answer: str, status: ToolStatus, decision: str) -> None:
    """A plugin that objects after all has the last word."""
    calls = Calls(store)
    call_id = calls.call("act")
    calls.ask("act", call_id, answer)
    calls.start("act", call_id)
    calls.end("act", call_id, status)
    assert listed(store)[0].decision == decision


def test_calls_that_wait_or_were_given_up(store: Store) -> None:
    """They are in the trail before there is anything in the journal."""
    calls = Calls(store)
    calls.ask("act", calls.call("act", {"n": 1}))
    assert told(listed(store)) == [("act", "none", "waiting", "", "")]
    assert listed(store)[0].arguments == '{"n":1}'
    store.run(turn_journal.cancel, calls.turn, "", [], TurnEnd("interrupted"))
    assert listed(store)[0].decision == "cancelled"


def test_what_became_of_calls_whose_turn_was_stopped(store: Store) -> None:
    """What had not begun was not run, whatever was decided; what had begun was cut off."""
    calls = Calls(store)
    for answer in ("", "once", "deny"):
        calls.ask("act", calls.call("act"), answer)
    begun, refused = calls.call("act"), calls.call("act")
    calls.start("act", begun)
    calls.start("act", refused, "none")
    found = {row.call: row.outcome for row in listed(store)}
    assert found == {"c1": "", "c2": "", "c3": "", begun: "running", refused: ""}
    store.run(turn_journal.cancel, calls.turn, "", [], TurnEnd("interrupted"))
    assert {row.call: (row.decision, row.outcome) for row in listed(store)} == {
        "c1": ("cancelled", "not run"),
        "c2": ("once", "not run"),
        "c3": ("denied", "not run"),
        begun: ("not asked", "cut off"),
        refused: ("not asked", "not run"),
    }


def test_a_question_is_in_it(store: Store) -> None:
    """With who answered."""
    calls = Calls(store)
    call_id = calls.call("clarify")
    calls.ask("clarify", call_id, "blue", kind="clarify")
    calls.start("clarify", call_id, "read")
    assert told(listed(store)) == [("clarify", "read", "answered", "telegram:7", "running")]
    store.run(turn_journal.cancel, calls.turn, "", [], TurnEnd("interrupted"))
    assert listed(store)[0].outcome == "cut off"


def test_an_id_that_comes_again_is_another_call(store: Store) -> None:
    """Each has its own decision and arguments."""
    calls = Calls(store)
    for n, (key, answer) in enumerate([("c", "once"), ("c#2", "deny")]):
        calls.call("act", {"n": n}, call_id="c")
        calls.ask("act", key, answer)
        calls.start("act", "c")
        calls.end("act", "c")
    rows = listed(store)[::-1]
    assert [(row.decision, row.arguments) for row in rows] == [
        ("once", '{"n":0}'),
        ("denied", '{"n":1}'),
    ]


def test_the_trail_is_filtered(store: Store) -> None:
    """By conversation with its children, tool, time; only the newest calls."""
    calls, others = Calls(store), Calls(store, chat="43")
    for of, tool in ((calls, "a"), (calls, "b"), (others, "b")):
        call_id = of.call(tool)
        of.start(tool, call_id)
        of.end(tool, call_id)
    here = calls.turn.lease.conversation
    assert [row.tool for row in listed(store, conversation=here)] == ["b", "a"]
    assert [row.conversation for row in listed(store, tool="b", limit=1)] == [here + 1]
    store.run(lambda conn: conn.execute(update(step).where(step.c.name == "a").values(at=5.0)))
    assert [row.tool for row in listed(store, since=6.0)] == ["b", "b"]
    child = {"parent_turn_id": calls.turn.id, "parent_call_id": "c1"}
    of_others = conversation.c.id == others.turn.lease.conversation
    store.run(lambda conn: conn.execute(update(conversation).where(of_others).values(child)))
    assert [row.tool for row in listed(store, conversation=here)] == ["b", "b", "a"]
