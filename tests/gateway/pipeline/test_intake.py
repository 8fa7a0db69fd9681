"""Admission: every outcome of a message, sessions, edits, cursors, and texts that hurt."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Connection

from adapters.messages import Address, Admission, Attachment, Cursor, Move, Poison
from agent.errors import CredentialsRefused
from gateway.errors import LeaseLost, StorageUnavailable
from gateway.pipeline.notices import CONTEXT, SET_ASIDE
from gateway.replicas.replica import AccountLeases
from gateway.storage import schema
from gateway.storage.queue import inbox, replicas
from gateway.storage.queue.leases import Receiving
from gateway.storage.reports import health
from gateway.storage.reports.health import DAY_S, GivenUp
from tests.support.door import AUTHORIZED
from tests.support.gateway import (
    HeldModel,
    RecordingModel,
    Running,
    agent_of,
    echo,
    message,
    running,
)
from tests.support.recording_adapter import RecordingAdapter
from tests.support.replicas import Page, replica
from tests.support.scripted_model import ScriptedModel
from tests.support.thorough import products


async def notices(chat: Running) -> list[str]:
    """Return the texts in the outbox."""
    return [row.payload for row in await chat.rows(schema.outbox)]


async def test_a_message_is_queued(tmp_path: Path) -> None:
    """Its conversation and its place in it are known, and its raw update is kept."""
    async with running(tmp_path, at_work=False) as chat:
        assert await chat.say("one", raw='{"id":1}') == Admission("queued", 1, 1)
        assert await chat.say("two") == Admission("queued", 1, 2)
        first = (await chat.rows(schema.inbox))[0]
        assert (first.state, first.text, first.raw) == ("queued", "one", '{"id":1}')


async def test_the_same_key_is_a_duplicate(tmp_path: Path) -> None:
    """Also within one call, and after a restart; other accounts have keys of their own."""
    async with running(tmp_path, at_work=False) as chat:
        twice = [message("one", dedupe_key="7"), message("one", dedupe_key="7")]
        admissions = await chat.gateway.intake.accept(twice)
        assert [it.outcome for it in admissions] == ["queued", "duplicate"]
    async with running(tmp_path, at_work=False) as chat:
        assert await chat.say("one", dedupe_key="7") == Admission("duplicate")
        assert len(await chat.rows(schema.inbox)) == 1


async def test_a_bypassing_command_is_answered_at_once(tmp_path: Path) -> None:
    """The answer needs no worker and replies to its command."""
    async with running(tmp_path, at_work=False) as chat:
        assert await chat.say("/help", message_ref="m9") == Admission("command", 1, 1)
        [row] = await chat.rows(schema.outbox)
        assert "/stop" in row.payload
        assert (row.reply_to, row.inbox_seq) == ("m9", 1)


async def test_status_and_usage_are_answered_from_the_books(tmp_path: Path) -> None:
    """Before the first answer as estimates, after it as the model reported."""
    async with running(tmp_path) as chat:
        before = await chat.ask("/status")
        assert "tokens (0%), estimated" in before
        await chat.ask("What is it?")
        assert "- **Title**: `What is it?`" in await chat.ask("/status")
        told = await chat.ask("/usage")
        assert "tokens (0%), reported" in told
        assert "- **This segment (#1)**: 1 turn, 1 model call, 0 tool calls;" in told
        assert "- **Whole conversation**: 1 turn, 1 model call, 0 tool calls;" in told


async def test_status_and_usage_follow_a_window_that_has_shrunk(tmp_path: Path) -> None:
    """As the next turn does, and so does the threshold of compression."""
    model = HeldModel()
    model.context_length = 1_000_000
    async with running(tmp_path, model, at_work=False) as chat:
        for name in ("/status", "/usage"):
            await chat.say(name)
        model.context_length = 200_000
        for name in ("/status", "/usage"):
            await chat.say(name)
        *before, status, told = await notices(chat)
    for text in before:
        assert "of 1,000,000 tokens" in text
        assert "from 500,000 tokens on" in text
    for text in (status, told):
        assert "of 200,000 tokens" in text
        assert "from 100,000 tokens on" in text


async def test_status_names_a_fallback_that_answered_last(tmp_path: Path) -> None:
    """Beside the main model, which needs no second mention where it answered itself."""
    main, spare = ScriptedModel(["hi", CredentialsRefused("no")]), ScriptedModel(["meanwhile"])
    main.name, spare.name = "main-1", "spare-1"
    async with running(tmp_path, agent_of(main, spare)) as chat:
        await chat.ask("one")
        assert "- **Model**: main-1\n" in await chat.ask("/status")
        await chat.ask("two")
        assert "- **Model**: main-1 (last answer by spare-1)\n" in await chat.ask("/status")


async def test_compress_keeps_its_place_in_the_order(tmp_path: Path) -> None:
    """It waits behind what was asked before it, also under its other name."""
    async with running(tmp_path, at_work=False) as chat:
        for text in ("one", "/compress the schema", "/compact", "two"):
            assert (await chat.say(text)).outcome == "queued"
        kinds = [row.kind for row in await chat.rows(schema.inbox)]
        assert kinds == ["message", "command", "command", "message"]
        assert await notices(chat) == []


async def test_a_full_queue_refuses_and_says_so(tmp_path: Path) -> None:
    """The message is on record as refused and never answered; commands still work."""
    async with running(tmp_path, at_work=False, queue={"max_pending": 2}) as chat:
        outcomes = [(await chat.say(text)).outcome for text in ("one", "two", "three", "/status")]
        assert outcomes == ["queued", "queued", "refused", "command"]
        assert "2 are already waiting" in (await notices(chat))[0]
    async with running(tmp_path) as chat:
        assert (await chat.answers(3))[-1] == "re: one\ntwo"


async def test_running_work_counts_towards_the_limit(tmp_path: Path) -> None:
    """What is being answered is pending as well."""
    model = HeldModel()
    async with running(tmp_path, model, queue={"max_pending": 1}) as chat:
        gate = model.hold("one")
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        assert (await chat.say("two")).outcome == "refused"
        gate.set()
        await chat.answers(2)
        assert (await chat.say("three")).outcome == "queued"


@pytest.mark.parametrize(
    ("text", "unreadable", "told"),
    [("", "a photo", "a photo"), (" \n", None, "a message without text")],
)
async def test_what_cannot_be_read_is_refused(
    tmp_path: Path, text: str, unreadable: str | None, told: str
) -> None:
    """The sender is told what it was."""
    async with running(tmp_path, at_work=False) as chat:
        assert (await chat.say(text, unreadable=unreadable)).outcome == "refused"
        assert told in (await notices(chat))[0]


async def test_a_caption_is_read_without_its_picture(tmp_path: Path) -> None:
    """The model is told that there was more."""
    async with running(tmp_path) as chat:
        answer = await chat.ask("What is this?", unreadable="a photo")
        assert answer.startswith("re: What is this?\n\n[It came with a photo")


async def test_a_stranger_is_told_once(tmp_path: Path) -> None:
    """The notice has a code and the stranger's id; the messages go to quarantine."""
    async with running(tmp_path, access={"mode": "pairing"}) as chat:
        assert (await chat.say("hi", sender="666")).outcome == "denied"
        assert (await chat.say("hello?", sender="666")).outcome == "denied"
        [told] = await chat.answers(1)
        assert "tell them the code" in told
        assert "`666`" in told
        await chat.gateway.delivery.wait_idle()
        assert len(await notices(chat)) == 1
        assert [row.reason for row in await chat.rows(schema.quarantine)] == ["stranger"] * 2
        assert await chat.rows(schema.inbox) == []


async def test_each_stranger_has_a_notice_of_their_own(tmp_path: Path) -> None:
    """One for each sender."""
    async with running(tmp_path, access={"mode": "pairing"}) as chat:
        for sender in ("666", "667"):
            await chat.say("hi", f"dm{sender}", sender=sender)
            assert sender in (await chat.answers(1, f"dm{sender}"))[0]


async def test_a_refused_update_is_a_duplicate_when_it_comes_again(tmp_path: Path) -> None:
    """Also where the sender was allowed in between: the platform repeats what is old."""
    async with running(tmp_path, at_work=False, access={"mode": "pairing"}) as chat:
        await chat.say("hi", sender="666", dedupe_key="7")
    async with running(tmp_path, at_work=False) as chat:
        assert (await chat.say("hi", sender="666", dedupe_key="7")).outcome == "duplicate"


@pytest.mark.parametrize(("mode", "kind"), [("allowlist", "dm"), ("pairing", "group")])
async def test_strangers_get_no_word_elsewhere(tmp_path: Path, mode: str, kind: str) -> None:
    """Neither with an allowlist nor in a group."""
    async with running(tmp_path, at_work=False, access={"mode": mode}) as chat:
        assert await chat.say("hi", sender="666", chat_kind=kind) == Admission("denied")
        assert await notices(chat) == []
        assert await chat.rows(schema.conversation) == []


@pytest.mark.parametrize(
    "access",
    [
        {"mode": "open"},
        {"mode": "allowlist", "telegram": ["u1"]},
        {"mode": "pairing", "telegram": ["u1"]},
        {"mode": "allowlist", "owners": ["telegram:u1"]},
    ],
)
async def test_those_who_are_allowed_are_heard(tmp_path: Path, access: dict[str, object]) -> None:
    """By mode, by the platform's list, or as an owner."""
    async with running(tmp_path, at_work=False, access=access) as chat:
        assert (await chat.say("hi")).outcome == "queued"


async def test_ids_count_on_their_platform_only(tmp_path: Path) -> None:
    """An id on Slack's list says nothing about Telegram."""
    access = {"mode": "allowlist", "slack": ["u1"], "owners": ["slack:u1"]}
    async with running(tmp_path, at_work=False, access=access) as chat:
        assert (await chat.say("hi")).outcome == "denied"
        assert (await chat.say("hi", authenticated=True)).outcome == "queued"


async def test_an_edit_of_a_waiting_message_changes_it(tmp_path: Path) -> None:
    """The turn reads the newest wording, and there is one answer."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("teh question", message_ref="m1")
        await chat.say("another", message_ref="m2")
        edited = await chat.say("the question", message_ref="m1", kind="edit")
        assert (edited.outcome, edited.seq) == ("updated", 3)
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == ["re: the question\nanother"]


async def test_cursor_and_poison_are_stored_with_the_messages(tmp_path: Path) -> None:
    """What could not be understood is set aside, and the source is read on behind it."""
    async with running(tmp_path, at_work=False) as chat:
        intake = chat.gateway.intake
        assert await intake.position("bot") is None
        poison = [Poison("telegram:default", "13", "{oops", "no JSON")] * 2
        await intake.accept([message("hi"), *poison], cursors=[Cursor("bot", 13)])
        assert await intake.position("bot") == 13
        assert [row.raw for row in await chat.rows(schema.quarantine)] == ["{oops"]
        told = chat.events("update_quarantined")[0]
        assert (told["update"], told["reason"]) == ("13", "no JSON")
        assert (await chat.say("again", dedupe_key="13")).outcome == "duplicate"


async def test_a_cursor_never_goes_back(tmp_path: Path) -> None:
    """A late commit of an older batch changes nothing."""
    async with running(tmp_path, at_work=False) as chat:
        for position in (5, 9, 7):
            await chat.gateway.intake.accept([], cursors=[Cursor("bot", position)])
        assert await chat.gateway.intake.position("bot") == 9


async def test_positions_of_many_sources(tmp_path: Path) -> None:
    """By the beginning of their names."""
    async with running(tmp_path, at_work=False) as chat:
        cursors = [Cursor(name, n) for n, name in enumerate(["d:a:1", "d:a:2", "d:b:1"])]
        await chat.gateway.intake.accept([], cursors=cursors)
        assert await chat.gateway.intake.positions("d:a:") == {"d:a:1": 0, "d:a:2": 1}


async def test_a_thread_is_known_once_it_has_a_conversation(tmp_path: Path) -> None:
    """Its channel is none for that."""
    async with running(tmp_path, at_work=False) as chat:
        thread = Address("telegram", "default", "c1", "t1")
        assert not await chat.gateway.intake.is_conversation(thread)
        await chat.say("hi", "c1", thread="t1", chat_kind="thread")
        assert await chat.gateway.intake.is_conversation(thread)
        assert not await chat.gateway.intake.is_conversation(replace(thread, thread=None))


async def test_a_chat_that_moved_goes_on(tmp_path: Path) -> None:
    """Before the messages of the same call are looked at."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("hi", "old")
        move = Move("telegram", "default", "old", "new")
        [admission] = await chat.gateway.intake.accept([message("again", "new"), move])
        assert admission == Admission("queued", 1, 2)


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_failed_admission_stores_nothing_at_all(tmp_path: Path) -> None:
    """On a full disk neither message nor cursor is there, and the next try succeeds."""

    def limit_pages(conn: Connection, pages: int) -> None:
        conn.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    async with running(tmp_path, at_work=False) as chat:
        intake = chat.gateway.intake
        long = message("hi" * 100_000, dedupe_key="7")
        await chat.gateway.database.write(limit_pages, 1)
        with pytest.raises(StorageUnavailable, match="full"):
            await intake.accept([message("hi"), long], cursors=[Cursor("bot", 7)])
        await chat.gateway.database.write(limit_pages, 1_000_000)
        assert await intake.position("bot") is None
        assert await chat.rows(schema.inbox) == []
        assert (await intake.accept([long]))[0].outcome == "queued"


async def test_direct_chats_and_threads_are_conversations(tmp_path: Path) -> None:
    """A direct chat is one, each thread is one, whoever writes in it."""
    async with running(tmp_path, at_work=False) as chat:
        admissions = [
            await chat.say("hi", "c1"),
            await chat.say("hi", "c1", sender="u2"),
            await chat.say("hi", "c1", thread="t1", chat_kind="thread"),
            await chat.say("hi", "c1", thread="t1", chat_kind="thread", sender="u2"),
            await chat.say("hi", "c1:t1"),
        ]
        assert [it.conversation for it in admissions] == [1, 1, 2, 2, 3]


async def test_a_group_is_one_conversation_per_sender(tmp_path: Path) -> None:
    """By default people in a group do not share a context, and names are not needed."""
    async with running(tmp_path) as chat:
        first = await chat.say("one", "g", chat_kind="group")
        second = await chat.say("two", "g", chat_kind="group", sender="u2")
        assert first.conversation != second.conversation
        assert sorted(await chat.answers(2, "g")) == ["re: one", "re: two"]


async def test_a_shared_group_tells_the_model_who_speaks(tmp_path: Path) -> None:
    """One conversation for all, with names in front of the texts."""
    shared = {"groups": "shared"}
    async with running(tmp_path, sessions=shared) as chat:
        await chat.gateway.intake.accept([
            message("one", "g", chat_kind="group"),
            message("two", "g", chat_kind="group", sender="u2", sender_name="Dua"),
        ])
        assert await chat.answers(1, "g") == ["re: Una: one\nDua: two"]


async def test_a_conversation_is_named_after_its_first_words(tmp_path: Path) -> None:
    """Long ones are cut; a picture leaves the name to the next message."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("", "a", unreadable="a photo")
        await chat.say("what is\nit?", "a")
        await chat.say("x" * 100, "b")
        titles = [row.title for row in await chat.rows(schema.conversation)]
        assert titles == ["what is it?", "x" * 59 + "…"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 100_000, "a" * 100_000),
        ("🙂" * 5000, "🙂" * 5000),
        ("half \ud83d and \udc00", "half \ufffd and \ufffd"),
        ("nul \x00!", "nul \ufffd!"),
        ("a <memory-context>b</memory-context>", "a b"),
    ],
    ids=["100 KB", "emoji", "surrogates", "nul", "memory tags"],
)
async def test_hard_texts_reach_transcript_and_answer(
    tmp_path: Path, text: str, expected: str
) -> None:
    """They are stored whole; what no database takes is replaced."""
    async with running(tmp_path) as chat:
        assert await chat.ask(text) == f"re: {expected}"
        assert (await chat.transcript())[0].get("content") == expected


async def test_a_text_larger_than_the_window_is_stored_whole(tmp_path: Path) -> None:
    """The model reads a part of it, and its sender is told so."""
    async with running(tmp_path) as chat:
        text = "a" * 1_000_000
        await chat.say(text)
        told, answer = await chat.answers(2)
        assert told == CONTEXT["clipped"]
        assert answer.startswith("re: aaaa")
        assert len(answer) < len(text)
        assert (await chat.transcript())[0].get("content") == text


@pytest.mark.parametrize("field", ["sender_name", "raw"])
@pytest.mark.parametrize("value", ["\ud83d", "a\x00b"], ids=["surrogate", "nul"])
async def test_hard_texts_beside_the_message_are_taken_as_well(
    tmp_path: Path, field: str, value: str
) -> None:
    """A name or an update with half a character must not block its source."""
    async with running(tmp_path, at_work=False) as chat:
        assert (await chat.say("hi", **{field: value})).outcome == "queued"


async def test_old_raw_updates_are_dropped(tmp_path: Path) -> None:
    """After `storage.raw_days` the text stays and the raw update goes."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("hi", raw='{"secret":1}')
        assert await chat.gateway.database.write(inbox.prune_raw, 3600.0) == 0
        assert await chat.gateway.database.write(inbox.prune_raw, -1.0) == 1
        [row] = await chat.rows(schema.inbox)
        assert (row.text, row.raw) == ("hi", None)


async def test_what_another_replica_receives_is_not_stored(tmp_path: Path) -> None:
    """Of two that poll at once the older one stores nothing, and its cursor stays."""
    receiving = AccountLeases()
    lease = receiving.want(Receiving("telegram", "default"))
    async with running(tmp_path, at_work=False) as chat:
        intake, write = chat.gateway.intake, chat.gateway.database.write
        intake._accounts = receiving
        receiving.replica = chat.gateway.replica.id
        cursor = Cursor("telegram:default", 7)
        with pytest.raises(LeaseLost):
            await intake.accept([message("hi")], cursors=[cursor])
        assert await chat.rows(schema.inbox) == []
        # What comes in by a webhook moves no cursor, and any replica takes it.
        await intake.accept([message("pushed")])
        await write(replicas.offer, [lease.of])
        epoch = await write(replicas.take, receiving.replica, lease.of)
        assert epoch is not None
        receiving.take(lease.of, epoch)
        await intake.accept([message("hi")], cursors=[cursor])
        assert await intake.position("telegram:default") == 7
        await write(replicas.give_back, receiving.replica, lease.of)
        with pytest.raises(LeaseLost):
            await intake.accept([message("late")], cursors=[Cursor("telegram:default", 9)])
        assert await intake.position("telegram:default") == 7


BEYOND = 2**63
"""A number that no database column takes."""
STATEMENT = re.compile(r"SQL:|sqlalche|psycopg|sqlite3|INSERT|UPDATE|\$1")
"""What is no reason for an owner."""
TOO_FAR = [
    Cursor("telegram:default", BEYOND),
    Cursor("telegram:default", 2**64),
    Cursor("telegram:second", 2**100),
    Cursor("telegram:default", -BEYOND - 1),
    Cursor("discord:default:42", BEYOND),
    Cursor("discord:default:42", 2**64 - 1),
    Cursor("discord:default:43", -(2**64)),
    Cursor("slack:default:C1", BEYOND),
    Cursor("slack:default:C1:1700000000.000001", 2**70),
    Cursor("slack:second:C1", 2**63 + 1),
]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try a batch that failed again without a pause."""
    monkeypatch.setattr("gateway.pipeline.intake.PAUSES_S", (0.0, 0.0, 0.0))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("cursor", TOO_FAR, ids=lambda each: f"{each.source} {each.position}")
async def test_a_cursor_that_cannot_be_stored_holds_up_no_message(
    tmp_path: Path, cursor: Cursor
) -> None:
    """The messages that came with it are answered, and what comes next is taken."""
    async with running(tmp_path) as chat:
        said = [message("one", "c1"), message("two", "c2")]
        done = await chat.gateway.intake.accept(said, cursors=[cursor])
        assert [each.outcome for each in done] == ["queued", "queued"]
        assert [await chat.answers(1, place) for place in ("c1", "c2")] == [
            ["re: one"],
            ["re: two"],
        ]
        assert await chat.ask("three") == "re: three"
        [kept] = await chat.rows(schema.quarantine)
    assert (kept.source, kept.dedupe_key) == (cursor.source, f"cursor:{cursor.position}")
    assert re.search("Python int too large|is out of range for type bigint", kept.reason)
    assert not STATEMENT.search(kept.reason)


DAMAGES = {
    "the head of the inbox lies behind": ("UPDATE conversation SET inbox_head = 0", "again"),
    "it is the last number": ("UPDATE conversation SET inbox_head = 9223372036854775807", "again"),
    "it is one behind": ("UPDATE conversation SET inbox_head = inbox_head - 1", "again"),
    "the head of the outbox lies behind": ("UPDATE conversation SET outbox_head = 0", "/status"),
    "that is the last number": (
        "UPDATE conversation SET outbox_head = 9223372036854775807",
        "/status",
    ),
    "its segment is gone": ("UPDATE conversation SET active_session_id = NULL", "/status"),
    "the plan of the view is half": ("UPDATE view_plan SET body = '{'", "/status"),
    "the plan is a list": ("UPDATE view_plan SET body = '[]'", "/status"),
    "the plan is a number": ("UPDATE view_plan SET body = '7'", "/status"),
    "the plan is nothing": ("UPDATE view_plan SET body = ''", "/status"),
}
PLATFORMS = ("telegram", "discord", "slack")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("damage", "platform"), products([*DAMAGES], PLATFORMS))
async def test_a_message_whose_admission_raises_is_set_aside(
    tmp_path: Path, damage: str, platform: str
) -> None:
    """Its neighbours are admitted, it is known when it comes again, and owners learn of it."""
    statement, text = DAMAGES[damage]
    adapter = RecordingAdapter(platform)
    async with running(tmp_path, adapter=adapter, at_work=False) as chat:
        for before in ("before", "/help"):
            await chat.say(before, "c1", platform=platform)
        await chat.gateway.database.write(lambda conn: conn.exec_driver_sql(statement))
        bad = message(text, "c1", dedupe_key="bad", raw='{"id": 7}', platform=platform)
        taken = chat.gateway.intake.accept
        said = [
            message("one", "c2", platform=platform),
            bad,
            message("two", "c3", platform=platform),
        ]
        assert [each.outcome for each in await taken(said)] == ["queued", "ignored", "queued"]
        assert (await taken([bad]))[0].outcome == "duplicate"
        [kept] = await chat.rows(schema.quarantine)
        lately = await chat.gateway.database.read(health.given_up, DAY_S)
    assert (kept.source, kept.dedupe_key, kept.raw) == (f"{platform}:default", "bad", '{"id": 7}')
    assert kept.reason
    assert not STATEMENT.search(kept.reason)
    assert lately == [GivenUp("update", f"{platform}:default", 1)]


LONE = "a\ud800"
"""Half a character: no database stores it."""
UNSTORABLE: dict[str, dict[str, Any]] = {
    "its key": {"dedupe_key": LONE},
    "its key has a NUL": {"dedupe_key": "a\x00", "sender": LONE},
    "its sender": {"sender": LONE},
    "its reference": {"message_ref": LONE},
    "its chat": {"chat": LONE},
    "its thread": {"thread": LONE, "chat_kind": "thread"},
    "an author": {"authors": (LONE,)},
    "a file's name": {"attachments": (Attachment(name=LONE, kind="file"),)},
    "a file's kind": {"attachments": (Attachment(name="a", kind="file", mime=LONE),)},
    "a file's place": {"attachments": (Attachment(name="a", kind="file", ref=LONE),)},
    "a file's size": {"attachments": (Attachment(name="a", kind="file", size_bytes=BEYOND),)},
    "what an edit changes": {"message_ref": LONE, "kind": "edit"},
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("what", "platform"), products([*UNSTORABLE], PLATFORMS))
async def test_what_no_database_stores_stops_no_intake(
    tmp_path: Path, what: str, platform: str
) -> None:
    """Its neighbours are admitted, and so is what comes later, however often it comes again."""
    adapter = RecordingAdapter(platform)
    async with running(tmp_path, adapter=adapter, at_work=False) as chat:
        await chat.say("before", "c1", platform=platform)
        bad = message(**{"text": "bad", "chat": "c1", "platform": platform} | UNSTORABLE[what])
        around = [message(text, "c2", platform=platform) for text in ("one", "two", "three")]
        for neighbour in around:
            [first, _] = await chat.gateway.intake.accept([neighbour, bad])
            assert first.outcome == "queued"
        rows = await chat.rows(schema.inbox)
        kept = await chat.rows(schema.quarantine)
    assert [row.text for row in rows if row.text in {"one", "two", "three"}] == [
        "one",
        "two",
        "three",
    ]
    assert len(kept) <= 1


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_web_chat_says_that_a_message_was_set_aside(tmp_path: Path, damage: str) -> None:
    """Whoever wrote it reads why nothing comes; other chats go on, and owners learn of it."""
    statement, text = DAMAGES[damage]
    page, other = Page("c1"), Page("c2")
    async with (
        replica(tmp_path / "home", {}, RecordingModel(echo)) as web,
        aiohttp.ClientSession(web.url, headers=AUTHORIZED) as http,
        page.open_at(web),
        other.open_at(web),
    ):

        async def post(chat: str, number: str, said: str) -> tuple[int, dict[str, Any]]:
            body = {"id": number, "text": said}
            async with http.post(f"/api/chats/{chat}/messages", json=body) as response:
                return response.status, await response.json()

        for number, said in (("m1", "before"), ("m2", "/help")):
            assert (await post("c1", number, said))[0] == 202
        await page.until(lambda: len(page.answers) == 2)
        await web.gateway.database.write(lambda conn: conn.exec_driver_sql(statement))
        refused = await post("c1", "m3", text)
        assert refused == (422, {"error": "set_aside", "message": SET_ASIDE})
        assert (await post("c2", "m4", "hello"))[0] == 202
        await other.until(lambda: other.answers == ["re: hello"])
        lately = await web.gateway.database.read(health.given_up, DAY_S)
    assert lately == [GivenUp("update", "web:default", 1)]
