"""What was done in a stretch of a conversation."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import update

from agent.messages import ChatMessage, Usage, assistant_message, decode, tool_message
from agent.ports import Inquiry, JournaledEffect, ToolStatus
from agent.view.view import Summary, ViewPlan
from gateway.storage.conversation import questions, transcript, turn_journal, turns
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import inbox, leases
from gateway.storage.reports import history, spending, steps
from gateway.storage.reports.steps import AuditRow
from gateway.storage.schema import conversation
from tests.agent.tools.doubles import call
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    Store,
    admit,
    begin,
    claim_one,
    inbound,
    model_call,
    parts,
    turn_of,
)

STEP = ChatMessage(role="assistant", content=None, tool_calls=[call("look", call_id="a")])
RESULT = ChatMessage(role="tool", tool_call_id="a", name="look", content="a cat")


def worked(store: Store) -> Turn:
    """Have a turn call a tool, and answer."""
    current = store.run(turn_of, "What is there?", chat="42")
    store.run(turn_journal.record_message, current, STEP, model_call(Usage(100, 20, 50), id="c1"))
    store.run(turn_journal.start_tool, current, call("look", call_id="a"), "read")
    store.run(turn_journal.record_result, current, RESULT, "ok")
    end = TurnEnd("final_text", model_call(Usage(150, 5), id="c2", cost_usd=None))
    store.run(turn_journal.commit, current, [assistant_message("A cat.")], parts(current), end)
    store.run(leases.release, current.lease)
    return current


def test_all_that_belongs_to_a_turn_is_found(store: Store) -> None:
    """Its messages, calls, steps, and what came and went."""
    current = worked(store)
    rows = store.run(history.recorded, 1, limit=10)
    assert [(row.seq, decode(row.body)["role"]) for row in rows] == [
        (1, "user"),
        (2, "assistant"),
        (3, "tool"),
        (4, "assistant"),
    ]
    assert {row.turn for row in rows} == {current.id}
    [head] = store.run(steps.turns, [current.id])
    assert (head.state, head.outcome, head.attempt) == ("done", "final_text", 1)
    first, second = store.run(spending.calls_of_turns, 1, [current.id])
    assert (first.call_id, first.usage.prompt_tokens, first.usd) == ("c1", 150, 0.5)
    assert (second.call_id, second.usd) == ("c2", None)
    assert [(s.kind, s.name, s.status) for s in store.run(turns.steps_of, [current.id])] == [
        ("model", "model-1", ""),
        ("tool", "look", "ok"),
        ("model", "model-1", ""),
    ]
    received, files = store.run(steps.received, 1, [current.id])
    assert [(row.text, row.sender_name, row.turn_id) for row in received] == [
        ("What is there?", "Ada", current.id)
    ]
    assert files == []
    [sent] = store.run(steps.sends_of, [current.id])
    assert (sent.source_key, sent.state) == (f"turn:{current.id}:answer:1", "pending")
    assert store.run(questions.of_turns, [current.id]) == []


def test_pages_of_the_transcript_go_back(store: Store) -> None:
    """Each begins before the first message of the one after it."""
    worked(store)
    assert [row.seq for row in store.run(history.recorded, 1, limit=3)] == [2, 3, 4]
    assert [row.seq for row in store.run(history.recorded, 1, before=2, limit=3)] == [1]
    assert store.run(history.recorded, 1, before=1, limit=3) == []


def test_a_turn_takes_what_came_meanwhile_along(store: Store) -> None:
    """What stands in the inbox between is told, of no other turn."""
    current = worked(store)
    store.run(admit, inbound("later", chat="42"))
    received, _ = store.run(steps.received, 1, [current.id])
    assert [row.text for row in received] == ["What is there?"]
    assert store.run(steps.received, 1, []) == ([], [])


def test_sums_and_prompts(store: Store) -> None:
    """What calls took; a cost that is not known is left out."""
    current = worked(store)
    answers = store.run(spending.recent_answers, 1)
    assert [each.usage.prompt_tokens for each in answers] == [150, 150]
    calls = store.run(spending.calls_of_turns, 1, [current.id])
    assert sum(each.spent.unknown_calls for each in calls) == 1


def test_messages_that_left_the_view_are_known() -> None:
    """Between two plans."""
    plan = ViewPlan(head_upto=2, summaries=(Summary("short", 3, 8),), tail_from=9)
    assert steps.left_view(ViewPlan(), plan) == [(3, 8)]
    assert steps.left_view(plan, plan) == []
    pinned = ViewPlan(head_upto=2, pinned=(5,), tail_from=12)
    assert steps.left_view(plan, pinned) == [(9, 11)]


def test_messages_of_ranges_end_at_a_limit(store: Store) -> None:
    """In order."""
    worked(store)
    found = store.run(steps.messages_within, 1, [(1, 2), (4, 9)], 10)
    assert [row.seq for row in found] == [1, 2, 4]
    assert [row.seq for row in store.run(steps.messages_within, 1, [(1, 2), (4, 9)], 2)] == [1, 2]


def commanded(store: Store) -> int:
    """Have a command be a turn; returns its id."""
    here, _ = store.run(admit, inbound("/compress", chat="42"), kind="command")
    lease = store.run(claim_one, here)
    current = store.run(begin, lease, store.run(inbox.queued, here), None)
    store.run(turn_journal.commit, current, [], parts(current, kind="command"), TurnEnd("command"))
    store.run(leases.release, current.lease)
    return current.id


def test_a_command_stands_on_one_page_also_among_what_no_turn_has_said(store: Store) -> None:
    """Imported messages, and examples, have no turn."""
    first = worked(store)
    second = commanded(store)
    told = MessagePlace(1, first.session.id, None)
    store.run(transcript.append, told, [assistant_message("Imported.")] * 4)
    third = commanded(store)
    worked(store)
    fourth = commanded(store)

    def on_page(before: int | None) -> list[int]:
        rows = store.run(history.recorded, 1, before=before or transcript.END, limit=2)
        return [each.id for each in store.run(steps.turns_of_commands, 1, rows, before)]

    found = [on_page(before) for before in (None, 11, 9, 7, 5, 3)]
    assert found == [[fourth], [], [second, third], [], [], []]


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


def listed(store: Store, limit: int = 50, **wanted: Any) -> Sequence[AuditRow]:
    """Return the trail."""
    return store.run(steps.calls, limit, **wanted)


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
    """By conversation with its children, and tool; only the newest calls."""
    calls, others = Calls(store), Calls(store, chat="43")
    for of, tool in ((calls, "a"), (calls, "b"), (others, "b")):
        call_id = of.call(tool)
        of.start(tool, call_id)
        of.end(tool, call_id)
    here = calls.turn.lease.conversation
    assert [row.tool for row in listed(store, conversation=here)] == ["b", "a"]
    assert [row.conversation for row in listed(store, tool="b", limit=1)] == [here + 1]
    child = {"parent_turn_id": calls.turn.id, "parent_call_id": "c1"}
    of_others = conversation.c.id == others.turn.lease.conversation
    store.run(lambda conn: conn.execute(update(conversation).where(of_others).values(child)))
    assert [row.tool for row in listed(store, conversation=here)] == ["b", "b", "a"]
