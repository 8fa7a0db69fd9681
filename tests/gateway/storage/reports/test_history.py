"""What people and operators look at.

Titles of lineages: what each began with.
"""

from typing import Any

import pytest
from sqlalchemy import Connection, delete, update

from adapters.base import ChatFile, ChatItem, ChatSummary
from adapters.messages import Attachment, Choice
from agent.messages import Usage, assistant_message
from agent.view.view import Summary, ViewPlan
from gateway.errors import NotFound
from gateway.pipeline.notices import CONTEXT
from gateway.storage.conversation import attachments, conversations, turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import inbox
from gateway.storage.queue.outbox import file_part, parts_of
from gateway.storage.reports import history
from gateway.storage.reports.history import CHATS, NOTICES
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import iso_time, message, turn
from gateway.storage.schema import outbox as outbox_table
from tests.support.storage import (
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    inbound,
    model_call,
    parts,
    turn_of,
)

KEY = "telegram:default:42"
USAGE = Usage(100, 20, 30, 4, 5)


def answer(store: Store, *texts: str, say: str = "an answer") -> int:
    """Have the texts answered; returns the conversation."""
    current = store.run(turn_of, *texts)
    end = TurnEnd("final_text", model_call(USAGE))
    store.run(turn_journal.commit, current, [assistant_message(say)], parts(current, say), end)
    return current.lease.conversation


def shown(store: Store, after_inbox: int = 0, after_outbox: int = 0) -> list[tuple[int, int, str]]:
    found = store.run(history.items, KEY, after_inbox, after_outbox)
    return [(item.inbox_seq, item.outbox_seq, item.markdown) for item in found]


def test_chats_are_listed_by_newest_activity(store: Store) -> None:
    """A chat that was written in moves to the top; titles are first messages."""
    for n, chat in enumerate(["a", "b", "a", "c", "b"]):
        store.run(admit, inbound(f"words in {chat}", chat=chat, sender="7"))
        newest = update(inbox_table).where(inbox_table.c.at > 1e9).values(at=n)
        store.run(Connection.execute, newest)
    assert store.run(history.chats, "telegram", "default", "7") == [
        ChatSummary("b", "words in b", iso_time(4)),
        ChatSummary("c", "words in c", iso_time(3)),
        ChatSummary("a", "words in a", iso_time(2)),
    ]


def test_chats_of_other_accounts_are_not_listed(store: Store) -> None:
    """Each account has its own list, and each person."""
    store.run(admit, inbound(sender="7"))
    assert len(store.run(history.chats, "telegram", "default", "7")) == 1
    assert store.run(history.chats, "telegram", "second", "7") == []
    assert store.run(history.chats, "web", "default", "7") == []
    assert store.run(history.chats, "telegram", "default", "8") == []


def test_the_list_of_chats_is_bounded(store: Store) -> None:
    """At most 200 chats."""
    store.without_sync()
    for n in range(CHATS + 5):
        store.run(admit, inbound(chat=str(n), sender="7"))
    assert len(store.run(history.chats, "telegram", "default", "7")) == CHATS


def test_answers_stand_behind_what_they_answer(store: Store) -> None:
    """Items are ordered by question, then by answer, also when a new question came meanwhile."""
    current = store.run(turn_of, "one", "two")
    store.run(admit, inbound("three"))
    store.run(turn_journal.commit, current, [], parts(current, "answer"), TurnEnd("final_text"))
    assert shown(store) == [(1, 0, "one"), (2, 0, "two"), (2, 1, "answer"), (3, 0, "three")]


def test_items_after_a_position_are_what_is_new(store: Store) -> None:
    """A page that reconnects gets exactly what it has not seen."""
    answer(store, "one")
    assert shown(store, after_inbox=1, after_outbox=1) == []
    store.run(admit, inbound("two"))
    assert shown(store, after_inbox=1, after_outbox=1) == [(2, 0, "two")]


def test_a_late_answer_is_new_although_its_question_is_not(store: Store) -> None:
    """The two positions are independent."""
    current = store.run(turn_of, "one")
    store.run(admit, inbound("two"))
    store.run(turn_journal.commit, current, [], parts(current, "late"), TurnEnd("final_text"))
    assert shown(store, after_inbox=2, after_outbox=0) == [(1, 1, "late")]


def test_an_edit_names_the_message_that_it_changes(store: Store) -> None:
    """Both have the platform's id of it; the page shows the newer text in the older place."""
    conversation, _ = store.run(admit, inbound("one", message_ref="m"))
    edit = inbound("changed", message_ref="m", kind="edit")
    store.run(inbox.append, conversation, edit, kind="edit", state="done")
    found = store.run(history.items, KEY, 0, 0)
    assert [(item.markdown, item.ref) for item in found] == [("one", "m"), ("changed", "m")]


def test_files_stand_with_what_they_came_with(store: Store) -> None:
    """Those that are stored; an answer's file is shown in place of the words for it."""
    current = store.run(turn_of, "one")
    conversation = current.lease.conversation
    given = [
        Attachment(name="a.png", kind="image", mime="image/png", content=b"1234"),
        Attachment(name="later.png", kind="image", ref="f"),
    ]
    store.run(attachments.append, conversation, 1, given, 100)
    made = store.run(attachments.offer, current, "b.md", "text/markdown", b"12", 9)
    assert made is not None
    rows = [*parts(current, "answer"), file_part("turn:1:file:1", made.id, made.name)]
    store.run(turn_journal.commit, current, [], rows, TurnEnd("final_text"))
    asked, answered, shown_file = store.run(history.items, KEY, 0, 0)
    assert asked.files == (ChatFile(1, "a.png", "image/png", 4),)
    assert (answered.markdown, answered.files) == ("answer", ())
    assert (shown_file.markdown, shown_file.files) == (
        "",
        (ChatFile(made.id, "b.md", "text/markdown", 2),),
    )


def test_buttons_stand_below_their_answer(store: Store) -> None:
    """With what pressing them says."""
    current = store.run(turn_of, "one")
    choices = (Choice("Yes", "/yes"), Choice("No", "/no"))
    rows = parts_of(lambda text: [text], "turn:1:answer", "Shall I?", choices=choices)
    store.run(turn_journal.commit, current, [], rows, TurnEnd("final_text"))
    assert [item.choices for item in store.run(history.items, KEY, 0, 0)] == [(), choices]


def test_dropped_rows_are_not_shown(store: Store) -> None:
    """A cancelled notice never was."""
    current = store.run(turn_of, "one")
    store.run(turn_journal.notify, current, parts(current, "please wait", "trouble"))
    store.run(turn_journal.cancel, current, "", parts(current, "stopped"), TurnEnd("interrupted"))
    assert shown(store) == [(1, 0, "one"), (1, 2, "stopped")]


@pytest.mark.parametrize("state", ["pending", "sending", "sent", "unknown", "dead"])
def test_an_answer_is_shown_whatever_became_of_its_delivery(store: Store, state: str) -> None:
    """The web page reads answers from the books."""
    answer(store, "one")
    store.run(lambda conn: conn.execute(update(outbox_table).values(state=state)))
    assert shown(store)[-1] == (1, 1, "an answer")


def test_an_unknown_chat_is_empty(store: Store) -> None:
    """A page that was never written in has no items."""
    assert store.run(history.items, "telegram:default:nobody", 0, 0) == []


def test_an_item_holds_the_time(store: Store) -> None:
    """In ISO 8601, UTC."""
    store.run(admit, inbound("one"))
    store.run(lambda conn: conn.execute(update(inbox_table).values(at=0)))
    assert store.run(history.items, KEY, 0, 0) == [ChatItem(1, 0, "one", "1970-01-01T00:00:00Z")]


@pytest.mark.parametrize("kind", sorted(NOTICES))
def test_what_is_said_before_an_answer_is_a_notice(store: Store, kind: str) -> None:
    """The answer is none, nor is what a person wrote."""
    current = store.run(turn_of, "one")
    store.run(turn_journal.notify, current, parts(current, "please wait", kind))
    store.run(turn_journal.commit, current, [], parts(current, "late"), TurnEnd("final_text"))
    found = store.run(history.items, KEY, 0, 0)
    assert [item.notice for item in found] == [False, True, False]


@pytest.mark.parametrize("key", ["alert:3:begin:1:1", "dead:2026-11-27:1:1", "pairing:7:owner:1:1"])
def test_what_owners_are_told_is_no_answer(key: str) -> None:
    """It comes into a chat in which they may wait for one."""
    assert history.is_notice(key)


@pytest.mark.parametrize("kind", ["answer", "failed", "stopped", "buried"])
def test_no_end_of_a_turn_is_a_notice(kind: str) -> None:
    """Whoever waits need not wait any longer; the same goes for what is replied at once."""
    assert not history.is_notice(f"turn:7:{kind}:1")
    assert not history.is_notice("reply:7:3:1")
    assert not history.is_notice("")


def test_every_notice_about_the_context_is_known() -> None:
    """It comes before the answer."""
    assert set(CONTEXT) < NOTICES


def compacted(store: Store, **changes: Any) -> Turn:
    """Return a running turn that was compacted, its second message in view."""
    current = store.run(turn_of, "one")
    store.run(turn_journal.record_message, current, assistant_message("two"), model_call(USAGE))
    plan = ViewPlan(summaries=(Summary("asked", 1, 1),), tail_from=2)
    return store.run(compact, current, plan, **changes)


def test_an_overview_of_a_new_conversation(store: Store) -> None:
    """One segment, no message, and nothing known about its size."""
    chat, _ = store.run(admit, inbound("one"))
    (found,) = store.run(history.overviews)
    assert (found.id, found.platform, found.chat, found.title) == (chat, "telegram", "42", "one")
    assert (found.number, found.segments, found.messages) == (1, 1, 0)
    assert (found.reported_tokens, found.estimated_tokens) == (None, None)
    assert found.last_at == store.conversation(chat).created_at


def test_an_overview_counts_all_segments(store: Store) -> None:
    """Of every lineage; the number is that of the active one."""
    current = compacted(store, tokens_after=777)
    chat = current.lease.conversation
    found = store.run(history.overview, chat)
    assert (found.number, found.segments, found.messages) == (2, 2, 2)
    assert (found.reported_tokens, found.estimated_tokens) == (None, 777)
    assert found.active_session_id == current.session.id
    assert found.last_at == store.one(message, seq=2).at
    store.run(begin_anew, chat)
    fresh = store.run(history.overview, chat)
    assert (fresh.number, fresh.segments, fresh.estimated_tokens) == (1, 3, None)


def test_an_overview_outlives_the_messages(store: Store) -> None:
    """Retention has erased them all: when something was said last is known from the turn."""
    current = store.run(turn_of, "one")
    store.run(turn_journal.commit, current, [assistant_message("Well.")], [], TurnEnd("final_text"))
    store.run(lambda conn: conn.execute(delete(message)))
    store.run(lambda conn: conn.execute(update(turn).values(finished_at=7e9)))
    found = store.run(history.overview, current.lease.conversation)
    assert (found.messages, found.last_at) == (2, 7e9)


def test_an_overview_tells_what_was_reported(store: Store) -> None:
    """As soon as the model has seen the new view."""
    current = compacted(store)
    store.run(turn_journal.record_message, current, assistant_message("three"), model_call(USAGE))
    found = store.run(history.overview, current.lease.conversation)
    assert found.reported_tokens == USAGE.prompt_tokens


def test_an_overview_of_an_unknown_conversation_is_an_error(store: Store) -> None:
    """It says where the ids are shown."""
    with pytest.raises(NotFound, match=r"no conversation 4711; .*list"):
        store.run(history.overview, 4711)


def test_segments_are_listed_with_their_compactions(store: Store) -> None:
    """Oldest first; what `/new` or `/retry` began has none."""
    current = compacted(store, level="extract")
    other = store.run(turn_of, "other", chat="7")
    store.run(begin_anew, current.lease.conversation)
    first, second, third = store.run(history.segments_of, current.lease.conversation)
    assert (first.end_reason, first.compaction, first.plan) == ("compression", None, ViewPlan())
    assert second.compaction is not None
    assert (second.compaction.level, second.parent_session_id) == ("extract", first.id)
    assert second.plan == current.session.plan
    assert (third.parent_session_id, third.number, third.ended_at) == (None, 1, None)
    assert len(store.run(history.segments_of, other.lease.conversation)) == 1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"from_seq": None, "limit": 2}, [2, 3]),
        ({"from_seq": 2, "limit": 1}, [2]),
        ({"from_seq": 1, "limit": 9}, [1, 2, 3]),
        ({"from_seq": 4, "limit": 9}, []),
    ],
)
def test_the_transcript_is_read_in_order(
    store: Store, wanted: dict[str, Any], expected: list[int]
) -> None:
    """The newest ones or those from a position on."""
    current = compacted(store)
    store.run(turn_journal.record_message, current, assistant_message("three"), model_call(USAGE))
    found = store.run(history.recorded, current.lease.conversation, **wanted)
    assert [row.seq for row in found] == expected
    assert [row.body for row in found] == [store.one(message, seq=n).body for n in expected]


FILES = [Attachment(name=name, kind="image", ref=name) for name in ("z.jpg", "a.jpg")]


def test_a_lineage_that_began_with_a_file_has_its_name(store: Store) -> None:
    """The first one, as the conversation had it then."""
    conversation, seq = store.run(admit, inbound(""))
    store.run(attachments.append, conversation, seq, FILES, 100)
    store.run(lambda conn: begin_turn(conn, claim_one(conn, conversation)))
    store.run(begin_anew, conversation)
    assert store.run(history.of_segments, conversation) == {1: "z.jpg", 2: ""}


def test_a_lineage_in_which_nothing_was_asked_has_no_title(store: Store) -> None:
    """Begun anew twice in a row; the newest one is called as the conversation is."""
    conversation = store.run(turn_of, "where is it?").lease.conversation
    for _ in range(2):
        store.run(begin_anew, conversation)
    store.run(conversations.change, conversation, title="and now?")
    named = store.run(history.of_segments, conversation)
    assert named == {1: "where is it?", 2: "", 3: "and now?"}


def test_a_long_question_is_cut_as_titles_are(store: Store) -> None:
    """To the same characters as when it named the conversation."""
    conversation = store.run(turn_of, "word " * 40).lease.conversation
    title = store.run(history.of_segments, conversation)[1]
    store.run(begin_anew, conversation)
    assert store.run(history.of_segments, conversation)[1] == title
