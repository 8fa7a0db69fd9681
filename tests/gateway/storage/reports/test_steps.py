"""What was done in a stretch of a conversation."""

from agent.messages import ChatMessage, assistant_message, decode
from agent.usage import Usage
from agent.view.view import Summary, ViewPlan
from gateway.storage.conversation import questions, transcript, turn_journal, turns
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import inbox, leases
from gateway.storage.reports import history, spending, steps
from tests.agent.tools.doubles import call
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
    [sent] = store.run(steps.sent, [current.id])
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
    found = store.run(steps.within, 1, [(1, 2), (4, 9)], 10)
    assert [row.seq for row in found] == [1, 2, 4]
    assert [row.seq for row in store.run(steps.within, 1, [(1, 2), (4, 9)], 2)] == [1, 2]


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
        return [each.id for each in store.run(steps.commands, 1, rows, before)]

    found = [on_page(before) for before in (None, 11, 9, 7, 5, 3)]
    assert found == [[fourth], [], [second, third], [], [], []]
