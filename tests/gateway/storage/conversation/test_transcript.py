"""The transcript: append-only, numbered, byte for byte."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select, update

from adapters.messages import Address
from agent.messages import assistant_message, decode, encode, tool_message, user_message
from agent.ports import Origin
from agent.view.view import ViewPlan
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.transcript import (
    ImportedMessage,
    ImportedSession,
    ImportPlace,
    MessagePlace,
)
from gateway.storage.queue import inbox
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import message
from tests.support.storage import (
    Store,
    admit,
    inbound,
    load_view,
    seqs,
)


@pytest.fixture
def place(store: Store) -> MessagePlace:
    """Where the messages of a first turn go."""
    return MessagePlace(store.run(admit, inbound())[0], 1, None)


def fill(store: Store, place: MessagePlace, *texts: str) -> int:
    return store.run(transcript.append, place, [user_message(text) for text in texts])


def read(store: Store, place: MessagePlace, **changes: Any) -> list[tuple[int, str]]:
    wanted: dict[str, Any] = {"from_seq": None, "limit": 20, "contains": None, **changes}
    past = store.run(transcript.read_past, place.conversation, **wanted)
    return [(entry.seq, entry.text) for entry in past]


def test_appended_messages_get_the_next_seqs(store: Store, place: MessagePlace) -> None:
    """The newest seq is returned, and the stored bytes are the canonical ones."""
    assert fill(store, place, "one", "two") == 2
    assert store.run(transcript.append, place, [assistant_message("thr\u00e9e")]) == 3
    rows = store.rows(message)
    assert seqs(rows) == [1, 2, 3]
    assert rows[2].body == encode(assistant_message("thr\u00e9e"))
    assert all(row.tokens > 0 for row in rows)


def test_appending_nothing_changes_nothing(store: Store, place: MessagePlace) -> None:
    """An empty list leaves the head where it is."""
    fill(store, place, "one")
    assert store.run(transcript.append, place, []) == 1
    assert len(store.rows(message)) == 1


def test_a_view_is_what_the_plan_shows(store: Store, place: MessagePlace) -> None:
    """Hidden ranges and what lies before the first seq are left out."""
    fill(store, place, *"abcdef")
    view = store.run(load_view, place.conversation, ViewPlan(2, ((3, 4),)))
    assert view == [user_message(text) for text in "bef"]


RANGES = st.tuples(st.integers(1, 24), st.integers(0, 9)).map(lambda at: (at[0], at[0] + at[1]))
PLANS = st.builds(
    ViewPlan,
    first_seq=st.integers(1, 12),
    hidden=st.lists(RANGES, max_size=3).map(tuple),
    head_upto=st.integers(0, 24),
    pinned=st.sets(st.integers(1, 24), max_size=5).map(lambda seqs: tuple(sorted(seqs))),
    tail_from=st.integers(0, 30),
)


@given(PLANS)
def test_the_ranges_of_a_plan_are_what_it_shows(plan: ViewPlan) -> None:
    """Each message that is shown lies in exactly one range, the others in none."""
    ranges = transcript.shown_ranges(plan)
    for seq in range(1, 40):
        assert sum(low <= seq <= high for low, high in ranges) == plan.shows(seq)
    assert ranges == sorted(ranges)


def test_many_hidden_ranges_are_no_trouble() -> None:
    """Somebody who asks again a thousand times has a thousand ranges, and one more."""
    hidden = tuple((seq, seq) for seq in range(2, 2_002, 2))
    ranges = transcript.shown_ranges(ViewPlan(hidden=hidden))
    assert (len(ranges), ranges[0], ranges[-1]) == (1_001, (1, 1), (2_001, transcript.END))


COMPACTED = ViewPlan(head_upto=3, pinned=(500,), tail_from=998, hidden=((2, 2),))


def test_only_what_is_shown_is_read(
    store: Store, place: MessagePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long conversation the database returns head, pinned messages and tail."""
    fill(store, place, *map(str, range(1, 1_001)))
    decoded: list[str] = []
    monkeypatch.setattr(transcript, "decode", lambda body: decoded.append(body) or decode(body))
    rows = store.run(transcript.load_rows, place.conversation, COMPACTED)
    entries = transcript.decoded(rows)
    assert [entry.seq for entry in entries] == [1, 3, 500, 998, 999, 1_000]
    assert [entry.message["content"] for entry in entries] == [str(e.seq) for e in entries]
    assert len(decoded) == len(entries)


@pytest.mark.usefixtures("sqlite_alone")
def test_what_is_not_shown_is_not_searched(store: Store, place: MessagePlace) -> None:
    """The index leads to both ends of every range."""
    plans = store.plans(transcript.load_rows, place.conversation, COMPACTED)
    assert len(plans) == len(transcript.shown_ranges(COMPACTED))
    assert all("(conversation=? AND seq>? AND seq<?)" in plan for plan in plans), plans


def test_the_tokens_of_a_plan_are_summed_up(store: Store, place: MessagePlace) -> None:
    """From its first message on; 0 where it shows nothing yet."""
    fill(store, place, "one", "two words", "three words now")
    tokens = [row.tokens for row in store.rows(message)]
    for first in (1, 2, 4):
        shown = store.run(transcript.tokens_shown, place.conversation, ViewPlan(first))
        assert shown == sum(tokens[first - 1 :])


def test_the_time_of_the_newest_message_is_known(store: Store, place: MessagePlace) -> None:
    """None before there is one."""
    assert store.run(transcript.newest_at, place.conversation, 1) is None
    fill(store, place, "one")
    fill(store, place, "two")
    assert store.run(transcript.newest_at, place.conversation, 1) == store.rows(message)[1].at


def test_days_begin_where_people_say_something_on_another_one(
    store: Store, place: MessagePlace
) -> None:
    """An answer after midnight belongs to its question; a clock that goes back begins no day."""
    at = {1: 86_399.0, 3: 86_401.0, 4: 86_402.0, 5: 86_000.0, 6: 3 * 86_400.0}
    for seq in range(1, 7):
        role = assistant_message if seq == 2 else user_message
        store.run(transcript.append, place, [role(f"message {seq}")])
        dated = update(message).where(message.c.seq == seq).values(at=at.get(seq, 86_400.5))
        store.run(lambda conn, statement=dated: conn.execute(statement))
    assert store.run(transcript.days, place.conversation, 1, 6) == [
        (1, "1970-01-01"),
        (3, "1970-01-02"),
        (6, "1970-01-04"),
    ]
    assert store.run(transcript.days, place.conversation, 4, 5) == [(4, "1970-01-02")]


def test_messages_of_a_turn_are_found(store: Store, place: MessagePlace) -> None:
    """In order, with the range of their seqs."""
    fill(store, place, "before")
    own = MessagePlace(place.conversation, 1, 9)
    store.run(transcript.append, own, [user_message("asked"), assistant_message("answered")])
    assert store.run(transcript.of_turn, place.conversation, 9) == [
        user_message("asked"),
        assistant_message("answered"),
    ]
    entries = store.run(transcript.entries_of_turn, place.conversation, 9)
    assert [entry.seq for entry in entries] == [2, 3]
    assert store.run(transcript.range_of_turn, place.conversation, 9) == (2, 3)
    assert store.run(transcript.range_of_turn, place.conversation, 10) is None


def test_the_newest_messages_are_read_in_order(store: Store, place: MessagePlace) -> None:
    """Without a start, the last `limit` messages."""
    fill(store, place, *"abcde")
    assert read(store, place, limit=2) == [(4, "d"), (5, "e")]


def test_reading_can_begin_anywhere(store: Store, place: MessagePlace) -> None:
    """With a start, the first `limit` messages from there."""
    fill(store, place, *"abcde")
    assert read(store, place, from_seq=2, limit=2) == [(2, "b"), (3, "c")]


def test_reading_finds_a_text_in_any_letter_case(store: Store, place: MessagePlace) -> None:
    """Of many matches the newest ones, or the first ones from the start that was given."""
    fill(store, place, "Stra\u00dfe 1", "other", "STRASSE 2", "strasse 3")
    assert [seq for seq, _ in read(store, place, contains="stra\u00dfe", limit=2)] == [3, 4]
    assert [seq for seq, _ in read(store, place, contains="strasse", from_seq=1, limit=2)] == [1, 3]
    assert read(store, place, contains="absent") == []


def test_reading_shows_role_and_time(store: Store, place: MessagePlace) -> None:
    """Times are ISO 8601 in UTC."""
    store.run(transcript.append, place, [tool_message("a", "look", "seen")])
    store.run(lambda conn: conn.execute(update(message).values(at=1_700_000_000)))
    (past,) = store.run(
        transcript.read_past, place.conversation, from_seq=None, limit=1, contains=None
    )
    assert (past.role, past.text, past.at) == ("tool", "seen", "2023-11-14T22:13:20Z")


def test_no_other_conversation_is_read(store: Store, place: MessagePlace) -> None:
    """Neither messages nor outputs of another chat can be reached."""
    other, _ = store.run(admit, inbound(chat="other"))
    store.run(transcript.append, MessagePlace(other, 1, None), [user_message("secret")])
    output_id = store.run(transcript.store_blob, other, 1, "secret output")
    assert read(store, place) == []
    assert store.run(transcript.read_blob, place.conversation, output_id) is None
    assert store.run(transcript.read_blob, other, output_id) == "secret output"


@pytest.mark.parametrize("output_id", ["o99", "", "o", "x1", "o-1", "\u0663", "o" + "9" * 30])
def test_an_unknown_output_is_none(store: Store, place: MessagePlace, output_id: str) -> None:
    """What the model writes as an id is not trusted to be one."""
    assert store.run(transcript.read_blob, place.conversation, output_id) is None


PLACE = ImportPlace("telegram:default:9", Address("telegram", "default", "9"), "9")
ORIGINS = (Origin("tool", "other"),)


def said(name: str, count: int, **more: object) -> ImportedSession:
    """Return a session of so many messages, a second apart, which goes on."""
    made = (user_message, assistant_message)
    told = [ImportedMessage(made[n % 2](f"{name} {n}"), 100.0 + n) for n in range(count)]
    first = ImportedSession(f"import:{name}", count, name, told, shown=count, origins=ORIGINS)
    return replace(first, **more)  # type: ignore[arg-type]


def view(store: Store) -> list[int]:
    """Return the seqs that the conversation's next turn sees."""
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    plan = store.run(sessions.active, here).plan
    return [row.seq for row in store.run(transcript.load_rows, here, plan)]


def test_the_newest_session_goes_on(store: Store) -> None:
    """The others are out of view, with their times."""
    assert store.run(transcript.enter_imported, PLACE, [said("one", 4), said("two", 3, shown=2)])
    here = store.run(conversations.find, PLACE.session_key)
    assert here is not None
    assert view(store) == [6, 7]
    active = store.run(sessions.active, here)
    assert (active.start_reason, active.origins) == ("import", ORIGINS)
    assert store.run(conversations.title, here) == "two"
    times = store.run(lambda conn: list(conn.scalars(select(message.c.at))))
    assert sorted(times) == [100.0, 100.0, 101.0, 101.0, 102.0, 102.0, 103.0]
    assert store.run(inbox.positions, "import:") == {"import:one": 4, "import:two": 3}


def test_an_ended_session_is_out_of_view(store: Store) -> None:
    """What comes by a later import is seen, and what goes on there comes behind it."""
    store.run(transcript.enter_imported, PLACE, [said("one", 2, shown=0)])
    assert view(store) == []
    store.run(transcript.enter_imported, PLACE, [said("two", 2)])
    assert view(store) == [3, 4]
    store.run(transcript.enter_imported, PLACE, [said("two", 1, is_rest=True)])
    assert view(store) == [3, 4, 5]


def test_the_rest_of_a_record_is_out_of_view(store: Store) -> None:
    """What was said on a machine does not go on here, whenever it comes."""
    store.run(transcript.enter_imported, PLACE, [said("one", 2, shown=0)])
    store.run(transcript.enter_imported, PLACE, [said("one", 2, shown=0, is_rest=True)])
    assert view(store) == []


def test_where_somebody_talks_nothing_comes_into_view(store: Store) -> None:
    """The messages are there, out of view; while a turn goes on nothing is done."""
    here, _ = store.run(admit, inbound("hello", address=PLACE.address, sender="9"))
    assert not store.run(transcript.enter_imported, PLACE, [said("one", 2)])
    assert store.run(conversations.message_head, here) == 0
    store.run(_answered, here)
    assert store.run(transcript.enter_imported, PLACE, [said("one", 2)])
    active = store.run(sessions.active, here)
    assert (active.plan.hidden, active.start_reason) == (((1, 2),), "import")
    assert active.origins == ORIGINS
    assert view(store) == []
    assert store.run(conversations.message_head, here) == 2


def _answered(conn: Connection, conversation_id: int) -> None:
    here = inbox_table.c.conversation == conversation_id
    conn.execute(update(inbox_table).where(here).values(state="done"))
