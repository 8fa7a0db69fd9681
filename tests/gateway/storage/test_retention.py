"""Retention: what is too old goes, and every conversation goes on as if nothing had happened."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, delete, select, update

from adapters.messages import Attachment
from agent.messages import ChatMessage, Usage, assistant_message, image_part, tool_message
from agent.ports import Inquiry
from agent.view.view import Summary, ViewPlan
from gateway.backup.pruning import Pruner, count_all
from gateway.settings.tree import RetentionSettings
from gateway.storage import copying, maintenance, postgres, retention, schema
from gateway.storage.conversation import attachments, questions, sessions, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Location
from gateway.storage.migrations import open_database
from gateway.storage.people import notebook
from gateway.storage.people.notebook import OwnWords
from gateway.storage.queue import dead_letters, inbox
from gateway.storage.retention import Pruned
from tests.support.postgres import PostgresServer, server_at
from tests.support.scripted_model import tool_call
from tests.support.searching import feed, found
from tests.support.storage import (
    BASE,
    PostgresStore,
    Store,
    admit,
    begin,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    copy_database,
    forget,
    inbound,
    load_view,
    model_call,
    parts,
    turn_of,
)

AGED = (
    schema.message,
    schema.inbox,
    schema.outbox,
    schema.step,
    schema.ledger,
    schema.inquiry,
    schema.attachment,
    schema.search_row,
    schema.blob,
)
EVERYTHING = RetentionSettings(
    transcript_days=30,
    files_days=30,
    ledger_days=30,
    audit_days=30,
)
COMPACTED, TOOLS, RUNNING, QUEUED, UNSENT, ASKING = range(1, 7)
RESTING = (COMPACTED, TOOLS)
"""Conversations in which nothing is under way."""


def answer(store: Store, current: Turn, text: str = "Très bien.") -> None:
    """End a turn; its answer is sent."""
    end = TurnEnd("final_text", model_call(Usage(10, 5)))
    store.run(turn_journal.commit, current, [assistant_message(text)], parts(current), end)
    here = schema.outbox.c.conversation == current.lease.conversation
    store.run(lambda conn: conn.execute(update(schema.outbox).where(here).values(state="sent")))


def use_a_tool(store: Store, current: Turn) -> None:
    """Have a turn call a tool whose output is stored, and make a file."""
    call = tool_call("send", {"to": "somebody"}, f"c{current.id}")
    calling: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
    store.run(turn_journal.record_message, current, calling, model_call(Usage(10, 5)))
    store.run(turn_journal.start_tool, current, call, "side_effect")
    store.run(turn_journal.store_output, current, "a long output")
    store.run(turn_journal.record_result, current, tool_message(call["id"], "send", "sent"), "ok")
    store.run(attachments.offer, current, "report.txt", "text/plain", b"figures", 3)


def with_picture(store: Store) -> Turn:
    """Have a conversation answer a message that came with a picture."""
    conversation_id, seq = store.run(admit, inbound("Who is this?", chat="g"))
    picture = Attachment(name="p.png", kind="image", content=b"pixels")
    store.run(attachments.append, conversation_id, seq, [picture], 100)
    file = store.rows(schema.attachment)[-1]
    lease = store.run(claim_one, conversation_id)
    entries = store.run(inbox.queued, conversation_id)
    asked = [{"type": "text", "text": "Who is this?"}, image_part(file.id)]
    current = store.run(begin, lease, entries, asked, BASE)
    answer(store, current)
    return current


def lived_in(store: Store) -> None:
    """Fill a database with one conversation of each kind."""
    current = store.run(turn_of, "alpha one", chat="a")
    answer(store, current)
    store.run(admit, inbound("alpha two", chat="a"))
    current = store.run(begin_turn, current.lease)
    plan = ViewPlan(summaries=(Summary("They met.", 1, 2, source="model"),), tail_from=3)
    answer(store, store.run(compact, current, plan))
    current = store.run(turn_of, "beta", chat="b")
    use_a_tool(store, current)
    answer(store, current)
    use_a_tool(store, store.run(turn_of, "gamma", chat="c"))
    store.run(admit, inbound("delta", chat="d"))
    current = store.run(turn_of, "epsilon", chat="e")
    store.run(
        turn_journal.commit, current, [assistant_message("So.")], parts(current), TurnEnd("x")
    )
    current = store.run(turn_of, "zeta", chat="f")
    asked = Inquiry("approval", "c1", "act", "May I?")
    store.run(questions.enter, current.lease.conversation, current.id, "c1", asked, 1e9)
    feed(store)
    free = update(schema.conversation).where(schema.conversation.c.id.in_((*RESTING, UNSENT)))
    store.run(lambda conn: conn.execute(free.values(owner=None)))


@pytest.fixture(scope="module")
def lived_file(database_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of each kind; to be copied, not opened."""
    path = copy_database(database_template, tmp_path_factory.mktemp("lived") / "parley.db")
    store = Store(path)
    store.without_sync()
    lived_in(store)
    store.close()
    return path


@pytest.fixture(scope="module")
def lived_database(lived_file: Path, postgres_worker: PostgresServer) -> str:
    """The same on PostgreSQL, as `parley db copy` brings it there; to be copied, too."""
    name = postgres_worker.create()
    server = server_at(postgres_worker.url(name))
    copying.copy(lived_file, server, lambda *_: None)
    with closing(postgres.connect(server)) as connection:
        feed(PostgresStore(connection, is_emptied=False))
    return name


@pytest.fixture(params=["sqlite", "postgres"])
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The same, to be changed."""
    if request.param == "sqlite":
        store = Store(copy_database(request.getfixturevalue("lived_file"), tmp_path / "lived.db"))
        yield store
        store.close()
        return
    worker: PostgresServer = request.getfixturevalue("postgres_worker")
    name = worker.create(request.getfixturevalue("lived_database"))
    with closing(postgres.connect(server_at(worker.url(name)))) as connection:
        yield PostgresStore(connection, is_emptied=False)
    worker.drop(name)


def age(conn: Connection, days: float, conversation_id: int | None = None) -> None:
    """Let days go by, for one conversation or for all."""
    past = days * 86_400.0
    for table in AGED:
        query = update(table).values(at=table.c.at - past)
        if table is schema.step:
            turns = select(schema.turn.c.id).where(schema.turn.c.conversation == conversation_id)
            here = table.c.turn_id.in_(turns)
        else:
            here = table.c.conversation == conversation_id
        conn.execute(query if conversation_id is None else query.where(here))
    conn.execute(update(schema.session).values(ended_at=schema.session.c.ended_at - past))


def prune(location: Location, limits: RetentionSettings = EVERYTHING) -> dict[str, Pruned]:
    """Erase what is too old."""

    async def run() -> dict[str, Pruned]:
        async with open_database(location) as database:
            return await Pruner(database, limits, 30).prune()

    return asyncio.run(run())


def views(store: Store) -> dict[int, list[ChatMessage]]:
    """Return what each conversation shows."""
    ids = [row.id for row in store.rows(schema.conversation)]
    plans = {each: store.run(sessions.active, each).plan for each in ids}
    return {each: store.run(load_view, each, plan) for each, plan in plans.items()}


def count_of(store: Store, table: Table, conversation_id: int) -> int:
    """Return how many rows of a conversation there are."""
    return len(store.rows(table, conversation=conversation_id))


def assert_sound(location: Location) -> None:
    """Hold foreign keys, pages and the search index against their rules."""
    if not isinstance(location, Path):
        assert maintenance.check(location) == []
        return
    path = location
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        raw.execute("INSERT INTO search_index (search_index) VALUES ('integrity-check')")


@pytest.mark.thorough
def test_by_default_nothing_but_raw_updates_goes(lived: Store) -> None:
    """However old everything is."""
    lived.run(age, 9_999)
    before = {table: lived.rows(table) for table in AGED if table is not schema.inbox}
    gone = prune(lived.location, RetentionSettings())
    assert {name: each.rows for name, each in gone.items()} == {"raw": 7}
    assert {table: lived.rows(table) for table in before} == before


def test_what_is_young_stays(lived: Store) -> None:
    """Every class is limited, and nothing is old enough."""
    before = {table: lived.rows(table) for table in AGED}
    assert not any(each.rows for each in prune(lived.location).values())
    assert {table: lived.rows(table) for table in AGED} == before


@pytest.mark.thorough
def test_a_conversation_at_rest_is_emptied_and_begins_anew(lived: Store) -> None:
    """Nobody has written for so long: messages, files, words and copies are gone."""
    lived.run(age, 31)
    prune(lived.location)
    for conversation_id in RESTING:
        for table in (schema.message, schema.inbox, schema.outbox, schema.ledger, schema.blob):
            assert count_of(lived, table, conversation_id) == 0
        assert lived.run(sessions.active, conversation_id).start_reason == "retention"
        assert found(lived, [conversation_id], "alpha beta") == []
    assert "They met." not in "".join(row.body for row in lived.rows(schema.view_plan))
    assert lived.one(schema.attachment, conversation=TOOLS).state == "failed"
    assert [row.attachment for row in lived.rows(schema.attachment_part)] == [2]


def test_what_was_found_in_peoples_words_goes_with_them(lived: Store) -> None:
    """The agent's notes stay, and so does what is young."""
    words = [OwnWords(1, 1, "telegram:42", text) for text in ("Call me Jo.", "It is 5.")]
    note = {"scope": "telegram:42", "target": "memory", "text": "likes tea", "at": 1.0}
    lived.run(lambda conn: conn.execute(schema.memory.insert(), note))
    lived.run(notebook.keep_found, COMPACTED, words, 1_000)
    prune(lived.location)
    assert len(lived.rows(schema.memory)) == 3
    memory = schema.memory
    lived.run(lambda conn: conn.execute(update(memory).values(at=memory.c.at - 31 * 86_400.0)))
    prune(lived.location)
    assert [row.text for row in lived.rows(memory)] == ["likes tea"]


@pytest.mark.thorough
@pytest.mark.parametrize("conversation_id", [RUNNING, QUEUED, UNSENT, ASKING])
def test_what_is_under_way_stays_however_old_it_is(lived: Store, conversation_id: int) -> None:
    """Its question, its journal, its answer and its calls."""
    lived.run(age, 9_999)
    kept = (schema.message, schema.inbox, schema.inquiry, schema.attachment)
    before = [
        [row[:6] for row in lived.rows(table, conversation=conversation_id)] for table in kept
    ]
    unsent = lived.rows(schema.outbox, conversation=conversation_id)
    journal = lived.rows(schema.step, turn_id=3 + 1)
    shown = views(lived)[conversation_id]
    prune(lived.location)
    after = [[row[:6] for row in lived.rows(table, conversation=conversation_id)] for table in kept]
    assert (after, views(lived)[conversation_id]) == (before, shown)
    assert lived.rows(schema.outbox, conversation=conversation_id) == unsent
    assert lived.rows(schema.step, turn_id=3 + 1) == journal != []


def test_a_conversation_in_use_loses_what_a_model_has_summarised(lived: Store) -> None:
    """The view stays byte for byte; what it does not show goes."""
    lived.run(age, 31, COMPACTED)
    lived.run(admit, inbound("alpha three", chat="a"))
    before = views(lived)[COMPACTED]
    # Two messages, and the steps of the model in the two turns.
    assert prune(lived.location)["transcript"].rows == 4
    assert [row.seq for row in lived.rows(schema.message, conversation=COMPACTED)] == [3, 4]
    assert views(lived)[COMPACTED] == before


@pytest.mark.parametrize("summary", [{"source": "extract"}, {"source": "model", "node": 1}])
def test_what_may_be_read_again_stays(lived: Store, summary: dict[str, Any]) -> None:
    """An extract is written anew from the originals; a node can be recalled."""
    plan = ViewPlan(summaries=(Summary("They met.", 1, 2, **summary),), tail_from=3)
    active = lived.conversation(COMPACTED).active_session_id
    changed = update(schema.view_plan).where(schema.view_plan.c.session_id == active)
    stored = sessions.dump_plan(plan)
    lived.run(lambda conn: conn.execute(changed.values(body=stored)))
    lived.run(age, 31, COMPACTED)
    lived.run(admit, inbound("alpha three", chat="a"))
    before = lived.rows(schema.message)
    # The steps of the model in the two turns are copies.
    assert prune(lived.location)["transcript"].rows == 2
    assert lived.rows(schema.message) == before


def test_a_conversation_that_is_forgotten_meanwhile_is_passed_over(
    lived: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found by a reader before; the others are looked at all the same."""
    begin_anew_ = retention.begin_anew

    def forgetting(conn: Connection, conversation_id: int, age_s: float) -> None:
        begin_anew_(conn, conversation_id, age_s)
        if conversation_id == COMPACTED:
            forget(conn, conversation_id)

    monkeypatch.setattr(retention, "begin_anew", forgetting)
    lived.run(age, 31)
    assert prune(lived.location)["transcript"].rows > 0
    assert lived.run(retention.count_transcript, COMPACTED, 1.0) == Pruned()
    assert count_of(lived, schema.message, TOOLS) == 0


def test_what_two_erase_counts_once(lived: Store) -> None:
    """The command line and the gateway's own hour may meet."""
    lived.run(age, 31)
    lived.run(retention.begin_anew, TOOLS, 1.0)
    there = count_of(lived, schema.message, TOOLS)
    assert lived.run(retention.take_out, TOOLS, 1.0).rows == there > 0
    assert lived.run(retention.take_out, TOOLS, 1.0) == Pruned()


def test_a_message_that_the_index_cannot_take_stays(lived: Store) -> None:
    """Its words could not be told to the index when it goes."""
    behind = update(schema.conversation).where(schema.conversation.c.id == COMPACTED)
    lived.run(lambda conn: conn.execute(behind.values(searched_seq=1)))
    there = count_of(lived, schema.message, COMPACTED)
    lived.run(age, 31)
    prune(lived.location)
    assert count_of(lived, schema.message, COMPACTED) == there > 0
    assert count_of(lived, schema.message, TOOLS) == 0


@pytest.mark.thorough
def test_what_stands_approved_stays(lived: Store) -> None:
    """It is an answered question, and an order that holds."""
    answered = update(schema.inquiry).values(state="answered", answer="conversation")
    lived.run(lambda conn: conn.execute(answered))
    lived.run(age, 9_999)
    prune(lived.location)
    assert len(lived.rows(schema.inquiry)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_given_up_question_stays_until_it_is_dropped(lived: Store, is_recorded: bool) -> None:
    """A dead letter can be put back: where `/retry` was given up, only the transcript has it.

    One may have been given up before anything was recorded of it.
    """
    for table in (schema.turn, schema.inbox):
        dead = update(table).where(table.c.conversation == TOOLS).values(state="dead")
        lived.run(lambda conn, dead=dead: conn.execute(dead))
    if not is_recorded:
        lived.run(lambda conn: conn.execute(delete(schema.message)))
    lived.run(age, 31)
    before = lived.rows(schema.message, conversation=TOOLS)
    prune(lived.location)
    assert lived.rows(schema.message, conversation=TOOLS) == before
    assert lived.run(dead_letters.find, "t3").text == "beta"
    lived.run(dead_letters.drop, "t3")
    prune(lived.location)
    assert count_of(lived, schema.message, TOOLS) == count_of(lived, schema.inbox, TOOLS) == 0


def test_the_file_of_a_given_up_question_stays_until_it_is_dropped(store: Store) -> None:
    """Its message is out of view."""
    current = with_picture(store)
    for table in (schema.turn, schema.inbox):
        store.run(lambda conn, table=table: conn.execute(update(table).values(state="dead")))
    store.run(begin_anew, current.lease.conversation)
    assert prune(store.location, RetentionSettings(files_max_bytes=0))["files"] == Pruned()
    store.run(dead_letters.drop, f"t{current.id}")
    assert prune(store.location, RetentionSettings(files_max_bytes=0))["files"].rows == 1


def test_no_summary_outlives_the_last_message(lived: Store) -> None:
    """A segment that ended later than the last message is younger than what it tells of."""
    lived.run(begin_anew, COMPACTED)
    lived.run(age, 31)
    lived.run(lambda conn: conn.execute(update(schema.session).values(ended_at=schema.now_s())))
    prune(lived.location, RetentionSettings(transcript_days=30))
    assert count_of(lived, schema.message, COMPACTED) == 0
    assert "They met." not in "".join(row.body for row in lived.rows(schema.view_plan))


def test_the_audit_has_a_limit_of_its_own(lived: Store) -> None:
    """The journal of the model's steps goes, that of the tools stays."""
    lived.run(age, 31)
    prune(lived.location, RetentionSettings(transcript_days=30))
    kinds = {row.kind for row in lived.rows(schema.step, turn_id=3)}
    assert kinds == {"tool"}


def test_the_oldest_files_go_beyond_the_limit(lived: Store) -> None:
    """But for one that a view shows, or a turn that runs has made."""
    lived.run(age, 31, TOOLS)
    prune(lived.location, RetentionSettings(files_max_bytes=0))
    assert {row.state for row in lived.rows(schema.attachment)} == {"stored"}
    gone = prune(lived.location, RetentionSettings(files_max_bytes=0, transcript_days=30))
    assert gone["files"] == Pruned(1, len(b"figures"))


def test_a_picture_that_is_asked_about_again_stays(store: Store) -> None:
    """After `/retry` another turn shows it than the one that its message belongs to."""
    current = with_picture(store)
    here = current.lease.conversation
    store.run(admit, inbound("/retry", chat="g"), kind="command")
    asked = store.run(turns.hide_newest, here)
    entries = store.run(inbox.queued, here)
    answer(store, store.run(begin, current.lease, entries, asked, BASE))
    assert prune(store.location, RetentionSettings(files_max_bytes=0))["files"] == Pruned()
    store.run(begin_anew, here)
    assert prune(store.location, RetentionSettings(files_max_bytes=0))["files"].rows == 1


def test_the_file_of_a_dead_letter_stays(lived: Store) -> None:
    """An operator may have it sent again."""
    lived.run(age, 31)
    letter = {"state": "dead", "attachment": 1}
    here = schema.outbox.c.conversation == TOOLS
    lived.run(lambda conn: conn.execute(update(schema.outbox).where(here).values(letter)))
    assert prune(lived.location)["files"] == Pruned()


def test_parts_that_a_kill_left_are_erased_at_the_next_time(lived: Store) -> None:
    """A file is noted as gone first."""
    file = lived.rows(schema.attachment)[0]
    lived.run(lambda conn: conn.execute(update(schema.attachment).values(turn_id=None)))
    assert lived.run(retention.remove_file, file.id)
    prune(lived.location, RetentionSettings(files_days=1))
    assert [row.attachment for row in lived.rows(schema.attachment_part)] == [2]


def test_a_dry_run_counts_what_goes(lived: Store) -> None:
    """Class by class, and changes nothing."""
    lived.run(age, 31)
    before = {table: lived.rows(table) for table in AGED}
    counted = lived.run(count_all, EVERYTHING, 30)
    assert {table: lived.rows(table) for table in AGED} == before
    gone = prune(lived.location, EVERYTHING)
    for name in ("ledger", "audit"):
        assert counted[name] == gone[name] != Pruned()
    assert counted["transcript"] == gone["transcript"]


days = st.none() | st.integers(2, 60)
ages = st.lists(st.integers(0, 90), min_size=6, max_size=6)


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), ages)
def test_after_any_prune_every_conversation_goes_on(
    lived_file: Path, data: st.DataObject, past: list[int]
) -> None:
    """It shows what it showed or begins anew, answers the next message, and all is sound."""
    names = [name for name in RetentionSettings.model_fields if name.endswith("_days")]
    limits = RetentionSettings(
        **{name: data.draw(days, name) for name in names},
        files_max_bytes=data.draw(st.none() | st.just(0)),
    )
    with tempfile.TemporaryDirectory() as folder:
        store = Store(copy_database(lived_file, Path(folder) / "parley.db"))
        store.without_sync()
        for number, each in enumerate(past, start=1):
            store.run(age, each, number)
        before = views(store)
        prune(store.location, limits)
        for conversation_id, shown in views(store).items():
            is_new = store.run(sessions.active, conversation_id).start_reason == "retention"
            assert shown == ([] if is_new else before[conversation_id])
            assert not is_new or conversation_id in RESTING
        assert_answers(store)
        assert_sound(store.location)
        store.close()


def assert_answers(store: Store) -> None:
    """Have each conversation at rest answer one more message."""
    for chat, conversation_id in (("a", COMPACTED), ("b", TOOLS)):
        current = store.run(turn_of, "and now?", chat=chat)
        assert current.lease.conversation == conversation_id
        answer(store, current, "As before.")
        plan = store.run(sessions.active, conversation_id).plan
        assert store.run(load_view, conversation_id, plan)[-1]["content"] == "As before."


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("name", retention.SWEEPS)
def test_a_step_reads_no_other_rows(store: Store, name: str) -> None:
    """However many a table has: SQLite finds those of a step by their keys."""
    for sweep in retention.SWEEPS[name]:
        keys = [tuple(range(n, n + len(sweep.table.primary_key))) for n in (1, 2)]
        plans = store.plans(retention.erase, sweep, 1.0, keys)
        assert [plan for plan in plans if plan.startswith(f"SCAN {sweep.table.name}")] == []
        assert any(plan.startswith(f"SEARCH {sweep.table.name}") for plan in plans)
