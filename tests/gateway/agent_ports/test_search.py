"""A turn's search: what it may see, what it says about it, and what it never reaches.

The feeder: goes on after trouble, builds anew what is of another version.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, text, update
from structlog.testing import capture_logs

from agent.errors import ToolError
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.ports import Findings, SearchQuery
from agent.tools.builtin.history import SESSION_SEARCH
from gateway.agent_ports.search import ConversationSearcher, Indexer
from gateway.app import Part
from gateway.errors import StorageUnavailable
from gateway.storage.conversation import conversations
from gateway.storage.conversation.transcript import END
from gateway.storage.database import Database
from gateway.storage.schema import conversation, message
from gateway.storage.search import index, query
from tests.support.gateway import RecordingModel, agent_of, running
from tests.support.scripted_model import Step, tool_call
from tests.support.searching import chat, found, said, talk, tell
from tests.support.storage import Store, begin_anew, copy_database, forget
from tests.support.thorough import WAIT_S


async def search(
    database: Database, here: int, text: str = "zebra", before_seq: int = END, **more: Any
) -> Findings:
    searcher = ConversationSearcher(database, Indexer(database), here, before_seq)
    return await searcher.search(SearchQuery(text, **more))


async def test_what_was_said_before_new_is_found(store: Store, database: Database) -> None:
    """The lineage does not end there; what was said last is fed first."""
    here = chat(store)
    store.run(tell, here, [said("a zebra"), said("indeed", "assistant")])
    store.run(begin_anew, here)
    store.run(tell, here, [said("hello")])
    findings = await search(database, here)
    first = findings.hits[0]
    assert (first.conversation, first.seq, first.here) == (here, 1, True)
    assert [(past.seq, past.text) for past in first.messages] == [(1, "a zebra"), (2, "indeed")]
    assert "not indexed" not in findings.scope


async def test_other_direct_chats_of_the_sender_are_found(store: Store, database: Database) -> None:
    """From a direct chat; they are named."""
    there = talk(store, "a zebra", user="7", account="other")
    here = talk(store, "hello", user="7")
    findings = await search(database, here)
    assert [(hit.conversation, hit.here, hit.title) for hit in findings.hits] == [
        (there, False, "title of 7")
    ]
    assert "1 other direct chat of the same sender" in findings.scope
    assert "Not searched: groups" in findings.scope


async def test_a_group_sees_itself_alone(store: Store, database: Database) -> None:
    """Also where each sender has a conversation of their own in it."""
    talk(store, "a zebra", user="7")
    here = talk(store, "hello", user="7", chat="g", chat_kind="group")
    findings = await search(database, here)
    assert findings.hits == ()
    assert "any other chat" in findings.scope


async def test_neighbours_are_only_what_people_and_agent_said(
    store: Store, database: Database
) -> None:
    """Not what Parley wrote."""
    here = chat(store)
    hidden = said("go on", synthetic=True)
    store.run(tell, here, [said("so"), said("a zebra"), hidden, said("well", "assistant")])
    findings = await search(database, here, neighbours=2)
    assert [past.seq for past in findings.hits[0].messages] == [1, 2, 4]


async def test_the_running_turn_is_left_out(store: Store, database: Database) -> None:
    """As a hit, as a neighbour, and as what speaks for what stands before it."""
    other = talk(store, "hello", "hi", "a zebra", user="7", account="other")
    here = talk(store, "a zebra", "indeed", "tapir", "zebra?", "where?", user="7")
    findings = await search(database, here, before_seq=4)
    assert sorted((hit.conversation, hit.seq, hit.holds) for hit in findings.hits) == [
        *((other, seq, seq == 3) for seq in (1, 2, 3)),
        *((here, seq, seq == 1) for seq in (1, 2, 3)),
    ]
    assert {past.seq for hit in findings.hits for past in hit.messages if hit.here} == {1, 2, 3}
    assert (await search(database, here, text="where", before_seq=4)).hits == ()


async def test_a_question_does_not_find_itself(tmp_path: Path) -> None:
    """In a running gateway: what was said before it is found, neither it nor its own call."""

    def script(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        if newest["role"] == "tool":
            return text_of(newest)
        if "zebra?" not in text_of(newest):
            return "noted"
        return [tool_call("session_search", {"query": "zebra"}, f"c{len(request.messages)}")]

    agent = agent_of(RecordingModel(script), tools=[SESSION_SEARCH])
    async with running(tmp_path, agent) as chat:
        await chat.ask("I saw a zebra")
        for question in ("where was the zebra?", "which zebra?"):
            found = await chat.ask(question)
            assert "> #1 user" in found
            assert question not in found


async def test_times_limit_the_search(store: Store, database: Database) -> None:
    """ISO 8601, in UTC unless they say otherwise."""
    here = talk(store, "a zebra")
    assert (await search(database, here, until="2020-01-01")).hits == ()
    assert (await search(database, here, since="2020-01-01T00:00:00+02:00")).hits
    with pytest.raises(ToolError, match="'yesterday' is no ISO 8601 time"):
        await search(database, here, since="yesterday")


async def test_what_is_not_indexed_is_said(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is too much to be fed before the search."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    monkeypatch.setattr("gateway.agent_ports.search.CATCH_UP_S", 0)
    findings = await search(database, here)
    assert findings.hits == ()
    assert "the newest 1 message, not indexed yet" in findings.scope


async def test_more_chats_than_can_be_searched_are_counted(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ones are searched."""
    monkeypatch.setattr(query, "MAX_CONVERSATIONS", 2)
    chats = [talk(store, "a zebra", account=name) for name in ("a", "b", "c")]
    findings = await search(database, chats[0])
    assert {hit.conversation for hit in findings.hits} == {chats[0], chats[2]}
    assert "1 older direct chat," in findings.scope


def test_a_delegated_child_sees_itself_alone(store: Store) -> None:
    """And nobody sees it."""
    parent, child = chat(store, account="a"), chat(store, account="b")
    delegated = update(conversation).where(conversation.c.id == child).values(parent_turn_id=1)
    store.run(lambda conn: conn.execute(delegated))
    assert store.run(query.of, parent).conversations == (parent,)
    assert store.run(query.of, child).conversations == (child,)


def test_a_forgotten_conversation_sees_nothing(store: Store) -> None:
    """A turn that is running meanwhile finds nothing more."""
    here = talk(store, "a zebra")
    store.run(forget, here)
    assert store.run(query.of, here) == query.Scope({here: ""}, is_direct=False)
    assert store.run(query.around, [], 1) == {}


KINDS = st.sampled_from(["dm", "group", "thread"])
CHATS = st.tuples(st.sampled_from(["1", "2", "1:2"]), KINDS, st.sampled_from(["a", "a:b", "b"]))
WORDS = st.lists(st.sampled_from(["zebra", "horse", "tea"]), max_size=3)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory, database_template: Path) -> Iterator[Store]:
    """A database that is filled by all examples: what one entered the next must not reach."""
    path = copy_database(database_template, tmp_path_factory.mktemp("scopes") / "parley.db")
    opened = Store(path)
    opened.without_sync()
    yield opened
    opened.close()


@settings(max_examples=25)
@given(st.lists(st.tuples(CHATS, WORDS), min_size=2, max_size=6))
def test_no_search_reaches_anybody_else(
    scratch: Store, chats: list[tuple[tuple[str, str, str], list[str]]]
) -> None:
    """Everything found is one's own, or from direct chats of one sender to another such chat."""
    kinds: dict[int, tuple[str, str]] = getattr(scratch, "kinds", {})
    scratch.kinds = kinds  # type: ignore[attr-defined]
    for (sender, kind, place), words in chats:
        where = sender if kind == "dm" else f"{kind}-{place}"
        account, thread = ("default" if kind != "dm" else place), "t" if kind == "thread" else None
        here = talk(
            scratch, *words, user=sender, account=account, chat=where, thread=thread, chat_kind=kind
        )
        kinds[here] = (kind, sender)
    for here, (kind, sender) in kinds.items():
        for there in scratch.run(query.of, here).conversations:
            assert there == here or (kind, sender) == kinds[there] == ("dm", sender)
        direct = {each for each, owner in kinds.items() if owner == ("dm", sender)}
        expected = direct if kind == "dm" else {here}
        assert set(scratch.run(query.of, here).conversations) == expected


@asynccontextmanager
async def feeding(indexer: Indexer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Part("search index", indexer.feed_all, 0.01).run())
        yield
        task.cancel()


async def until_fed(database: Database) -> None:
    while await database.read(conversations.count_unsearched, None):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine is, a search finds what was said before it.
    monkeypatch.setattr("gateway.agent_ports.search.CATCH_UP_S", WAIT_S)


async def test_what_waits_is_fed_at_the_start_and_later(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells the feeder of it."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    async with feeding(Indexer(database)):
        await until_fed(database)
        store.run(tell, here, [said("a horse")])
        await until_fed(database)
    assert [found(store, None, word)[0] for word in ("zebra", "horse")] == [1, 2]


@pytest.mark.usefixtures("sqlite_alone")
async def test_an_index_without_a_mark_is_built_anew(store: Store, database: Database) -> None:
    """Once; the next start finds it in order."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    with capture_logs() as logs:
        assert await Indexer(database).feed_all() == 1
        assert await Indexer(database).feed_all() == 0
        assert logs == []
        empty = text("INSERT INTO search_index (search_index) VALUES ('delete-all')")
        store.run(lambda conn: conn.execute(empty))
        assert await Indexer(database).feed_all() == 1
    assert [line["event"] for line in logs] == ["search_index_cleared"]


async def test_a_conversation_whose_messages_are_gone_is_passed_over(
    store: Store, database: Database
) -> None:
    """Retention has erased them; an index that is built anew has nothing to wait for there."""
    emptied, cut, whole = chat(store, "1"), chat(store, "2"), chat(store, "3")
    for here in (emptied, cut, whole):
        store.run(tell, here, [said("a zebra"), said("a horse")])
    await Indexer(database).feed_all()
    gone = (message.c.conversation == emptied) | (message.c.conversation == cut) & (
        message.c.seq == 2
    )
    store.run(lambda conn: conn.execute(delete(message).where(gone)))
    store.run(index.clear)
    assert await Indexer(database).feed_all() == 3
    assert store.run(conversations.unsearched, 9) == []
    store.run(tell, emptied, [said("a giraffe")])
    assert await Indexer(database).feed_all() == 1
    assert found(store, [emptied], "giraffe") == [3]


async def test_a_message_that_breaks_the_feeder_holds_up_nobody_else(
    store: Store, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conversation is left out for this time."""
    broken, sound = chat(store, "1"), chat(store, "2")
    store.run(tell, broken, [said("a zebra")])
    store.run(tell, sound, [said("a horse")])
    prepared = index.prepared

    def failing(found: index.Unindexed) -> index.IndexBatch:
        if found.conversation == broken:
            raise ValueError("odd")
        return prepared(found)

    monkeypatch.setattr(index, "prepared", failing)
    with capture_logs() as logs:
        assert await Indexer(database).feed_all() == 1
    assert [(line["event"], line["conversation"]) for line in logs] == [
        ("conversation_not_indexed", broken)
    ]
    assert store.run(conversations.unsearched, 9) == [broken]


@pytest.mark.parametrize(
    ("trouble", "level"), [(StorageUnavailable("full"), "warning"), (ValueError("odd"), "error")]
)
async def test_trouble_is_logged_and_passes(
    store: Store,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
    level: str,
) -> None:
    """The feeder lives on and tries again later."""
    store.run(tell, chat(store), [said("a zebra")])
    feed_all, failures = Indexer.feed_all, [trouble]

    async def failing(indexer: Indexer) -> int:
        if failures:
            raise failures.pop()
        return await feed_all(indexer)

    monkeypatch.setattr(Indexer, "feed_all", failing)
    with capture_logs() as logs:
        async with feeding(Indexer(database)):
            await until_fed(database)
    failed = [(line["work"], line["log_level"]) for line in logs if line["event"] == "work_failed"]
    assert failed == [("search index", level)]


async def test_what_another_feeder_fed_counts_once(store: Store, database: Database) -> None:
    """Both read it, one enters it."""
    here = chat(store)
    store.run(tell, here, [said("a zebra")])
    await database.write(index.clear)
    feeders = [Indexer(database).catch_up([here]) for _ in range(2)]
    assert sum(await asyncio.gather(*feeders)) == 1
