"""Dead letters: listed, put back, or taken off the list."""

from collections.abc import Callable

import pytest
from sqlalchemy import update

from agent.messages import assistant_message, user_message
from gateway.errors import NotFound
from gateway.storage import audit_log, maintenance
from gateway.storage.audit_log import AuditKind
from gateway.storage.conversation import sessions, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import dead_letters, inbox, leases, outbox, sending
from gateway.storage.queue.dead_letters import DeadLetter
from gateway.storage.schema import conversation, turn
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox as outbox_table
from tests.support.storage import (
    BASE,
    Store,
    admit,
    begin,
    begin_turn,
    claim_one,
    inbound,
    load_view,
    parts,
    turn_of,
)
from tests.support.turns import ANSWERED

GAVE_UP = TurnEnd("gave_up", error="the process crashed at every attempt")


@pytest.fixture
def buried(store: Store) -> Turn:
    """A turn of two messages that was given up, its conversation released."""
    current = store.run(turn_of, "one", "two")
    store.run(turn_journal.bury, current, parts(current, "I gave up.", "buried"), GAVE_UP)
    return current


def bury_send(store: Store, chat: int, key: str, *, doubtful: bool = False) -> str:
    store.run(
        outbox.append, chat, [outbox.OutboxPart(key, f"payload {key}", f"text {key}")], inbox_seq=1
    )
    due = store.run(sending.next_due, chat)
    if due is not None and doubtful:
        store.run(sending.postpone, due, 0.0, "cut", is_unknown=True)
        due = store.run(sending.next_due, chat)
    assert due is not None
    store.run(sending.mark_dead, due, "blocked by the user")
    return f"s{chat}.{due.message.seq}"


def test_a_given_up_turn_is_listed(store: Store, buried: Turn) -> None:
    """With what was asked, where, and why it was given up."""
    (letter,) = store.run(dead_letters.find_all)
    assert (letter.id, letter.kind, letter.conversation) == (
        f"t{buried.id}",
        "turn",
        buried.lease.conversation,
    )
    assert (letter.platform, letter.chat, letter.text) == ("telegram", "42", "one\ntwo")
    assert letter.reason == "the process crashed at every attempt"
    assert letter.at.endswith("Z")


def test_an_undeliverable_message_is_listed(store: Store) -> None:
    """With its text and the platform's reason."""
    chat, _ = store.run(admit, inbound())
    letter = store.run(dead_letters.find, bury_send(store, chat, "k"))
    assert (letter.id, letter.kind, letter.text) == (f"s{chat}.1", "send", "text k")
    assert letter.reason == "blocked by the user"


def test_letters_come_newest_first(store: Store, buried: Turn) -> None:
    """Turns and sends in one list."""
    chat, _ = store.run(admit, inbound(chat="other"))
    bury_send(store, chat, "k")
    ats = [letter.at for letter in store.run(dead_letters.find_all)]
    assert len(ats) == 2
    assert ats == sorted(ats, reverse=True)


def test_every_listed_letter_can_be_found(store: Store) -> None:
    """Also one that lies behind the first page of a long list."""
    chat, _ = store.run(admit, inbound())
    ids = [bury_send(store, chat, f"k{n}") for n in range(3)]
    assert len(store.run(dead_letters.find_all, 2)) == 2
    assert store.run(dead_letters.find, ids[-1]).id == ids[-1]


@pytest.mark.parametrize("letter_id", ["t1", "t999", "s1.1", "x", "", "t", "s1", "s1.x"])
def test_an_unknown_letter_is_named(store: Store, letter_id: str) -> None:
    """A turn that is not dead is no dead letter."""
    store.run(turn_of, "hello")
    for action in (dead_letters.find, dead_letters.retry, dead_letters.drop):
        with pytest.raises(NotFound, match=f"no dead letter {letter_id}"):
            store.run(action, letter_id)


def test_a_retried_turn_is_asked_again(store: Store, buried: Turn) -> None:
    """Its messages wait again in their place, and the first try is out of view."""
    chat = buried.lease.conversation
    store.run(leases.release, buried.lease)
    letter = store.run(dead_letters.retry, f"t{buried.id}")
    assert letter.text == "one\ntwo"
    waiting = store.run(inbox.queued, chat)
    assert [(entry.seq, entry.text) for entry in waiting] == [(1, "one"), (2, "two")]
    assert store.run(load_view, chat, store.run(sessions.active, chat).plan) == []
    assert store.run(dead_letters.find_all) == []
    assert store.run(begin_turn, store.run(claim_one, chat)).messages == (user_message("one\ntwo"),)


def test_a_retried_turn_is_not_stopped_by_an_old_stop(store: Store, buried: Turn) -> None:
    """A `/stop` that was sent after the turn was given up does not reach the retry."""
    chat = buried.lease.conversation
    store.run(lambda conn: conn.execute(update(conversation).values(cancel_upto_seq=9)))
    store.run(dead_letters.retry, f"t{buried.id}")
    current = store.run(begin_turn, buried.lease)
    store.run(turn_journal.commit, current, [assistant_message("hi")], [], TurnEnd("final_text"))
    assert {row.state for row in store.rows(inbox_table, conversation=chat)} == {"done"}


def test_a_retry_while_the_conversation_is_owned_is_not_lost(store: Store, buried: Turn) -> None:
    """The owner finds the messages, or its release makes the conversation ready."""
    store.run(dead_letters.retry, f"t{buried.id}")
    store.run(leases.release, buried.lease)
    assert store.run(claim_one, buried.lease.conversation)


def test_a_given_up_retry_asks_its_question_again(store: Store) -> None:
    """Where `/retry` itself was given up, the question is what is put back, not the command."""
    chat, _ = store.run(admit, inbound("/retry"), kind="command")
    lease = store.run(claim_one, chat)
    (command,) = store.run(inbox.queued, chat)
    others = ["telegram:guest"]
    current = store.run(begin, lease, [command], "the question", BASE, others)
    store.run(turn_journal.bury, current, [], GAVE_UP)
    store.run(dead_letters.retry, f"t{current.id}")
    (waiting,) = store.run(inbox.queued, chat)
    assert (waiting.kind, waiting.text) == ("message", "the question")
    assert store.run(begin_turn, lease).senders == ("telegram:42", "telegram:guest")


def test_a_retry_keeps_what_was_said_since(store: Store, buried: Turn) -> None:
    """Only the turn that failed is taken out of the view."""
    chat = buried.lease.conversation
    store.run(admit, inbound("three"))
    later = store.run(begin_turn, buried.lease)
    store.run(turn_journal.commit, later, [assistant_message("3")], [], TurnEnd("final_text"))
    store.run(dead_letters.retry, f"t{buried.id}")
    view = store.run(load_view, chat, store.run(sessions.active, chat).plan)
    assert view == [user_message("three"), assistant_message("3")]


def test_a_dropped_turn_leaves_the_list(store: Store, buried: Turn) -> None:
    """Its rows stay as a record."""
    assert store.run(dead_letters.drop, f"t{buried.id}").id == f"t{buried.id}"
    assert store.run(dead_letters.find_all) == []
    assert store.one(turn).state == "dropped"
    assert {row.state for row in store.rows(inbox_table)} == {"dead"}


def test_a_retried_send_is_due_again(store: Store) -> None:
    """With all its attempts, at once."""
    chat, _ = store.run(admit, inbound())
    store.run(dead_letters.retry, bury_send(store, chat, "k"))
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert (due.message.payload, due.failures) == ("payload k", 0)
    assert due.in_s <= 0
    assert store.run(dead_letters.find_all) == []


def test_a_retried_send_has_its_full_time_again(store: Store) -> None:
    """A message that was given up for its age is not given up again at the first delay."""
    chat, _ = store.run(admit, inbound())
    letter_id = bury_send(store, chat, "k")
    store.run(lambda conn: conn.execute(update(outbox_table).values(at=0)))
    store.run(dead_letters.retry, letter_id)
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert due.message.age_s < 60


def test_a_retried_send_keeps_its_doubt(store: Store) -> None:
    """What may have been shown before is resolved or marked, also when an operator repeats it."""
    chat, _ = store.run(admit, inbound())
    store.run(dead_letters.retry, bury_send(store, chat, "k", doubtful=True))
    due = store.run(sending.next_due, chat)
    assert due is not None
    assert due.message.outcome_unknown


def test_a_dropped_send_is_never_sent(store: Store) -> None:
    """It leaves the list and blocks nothing."""
    chat, _ = store.run(admit, inbound())
    letter_id = bury_send(store, chat, "k")
    store.run(dead_letters.drop, letter_id)
    assert store.run(sending.next_due, chat) is None
    assert store.run(dead_letters.find_all) == []
    assert store.one(outbox_table).state == "dropped"


@pytest.mark.usefixtures("sqlite_alone")
def test_the_command_line_reads_letters_from_the_file(store: Store, buried: Turn) -> None:
    """`parley dead-letters` needs no running gateway."""
    with maintenance.reading(store.path) as conn:
        (letter,) = dead_letters.find_all(conn)
        assert dead_letters.find(conn, letter.id) == letter
        with pytest.raises(NotFound):
            dead_letters.find(conn, "t4711")


def ask_again(store: Store, buried: Turn) -> Turn:
    """Have the chat send `/retry`, and begin the turn that this asks for."""
    store.run(admit, inbound("/retry"), kind="command")
    store.run(leases.release, buried.lease)
    lease = store.run(claim_one, buried.lease.conversation)
    _, given_up = store.run(turns.asked_newest, lease)
    assert given_up is not None
    asked = store.run(turns.hide_newest, lease.conversation)
    entries = store.run(inbox.queued, lease.conversation)
    question = turns.AskedQuestion(asked, retries=given_up)
    return store.run(
        lambda conn: turns.begin(conn, leases.look(conn, lease), entries, question, BASE)
    )


def test_a_retry_that_worked_takes_the_letter_off_the_list(store: Store, buried: Turn) -> None:
    """Not before: the process may die, and the model may fail."""
    again = ask_again(store, buried)
    assert len(store.run(dead_letters.find_all)) == 1
    store.run(turn_journal.commit, again, [assistant_message("Well.")], parts(again), ANSWERED)
    assert store.run(dead_letters.find_all) == []


def test_a_retry_without_an_answer_leaves_the_letter(store: Store, buried: Turn) -> None:
    """The next one is about the same question, and takes it off the list."""
    failed = ask_again(store, buried)
    end = TurnEnd("provider_failed", error="nobody answers")
    store.run(turn_journal.commit, failed, [], parts(failed), end)
    [letter] = store.run(dead_letters.find_all)
    assert letter.id == f"t{buried.id}"
    again = ask_again(store, failed)
    assert again.retries == buried.id
    store.run(turn_journal.commit, again, [assistant_message("Well.")], parts(again), ANSWERED)
    assert store.run(dead_letters.find_all) == []


def test_a_retry_that_was_given_up_is_another_letter(store: Store, buried: Turn) -> None:
    """One that works then takes off both."""
    second = ask_again(store, buried)
    store.run(turn_journal.bury, second, parts(second, "I gave up.", "buried"), GAVE_UP)
    assert len(store.run(dead_letters.find_all)) == 2
    third = ask_again(store, second)
    store.run(turn_journal.commit, third, [assistant_message("Well.")], parts(third), ANSWERED)
    assert store.run(dead_letters.find_all) == []


@pytest.mark.parametrize(
    ("act", "kind"),
    [(dead_letters.retry, "dead_letter_retried"), (dead_letters.drop, "dead_letter_dropped")],
)
def test_who_settles_a_letter_is_on_record(
    store: Store, buried: Turn, act: Callable[..., DeadLetter], kind: AuditKind
) -> None:
    """Once: what is done twice is refused, and leaves no second row."""
    letter = store.run(act, f"t{buried.id}", "web:web")
    with pytest.raises(NotFound):
        store.run(act, f"t{buried.id}", "web:web")
    [record] = store.run(audit_log.listed, 10, kind=kind)
    assert record.by == "web:web"
    assert record.subject == letter.id
