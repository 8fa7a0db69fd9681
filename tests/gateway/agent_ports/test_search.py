"""A turn's search: what it may see, what it says about it, and what it never reaches.

The feeder: goes on after trouble, builds anew what is of another version. Vectors in the
background: made behind the index, paid for, given up if the provider fails.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, text, update
from structlog.testing import capture_logs

from agent.errors import CredentialsRefused, ModelUnreachable, RateLimited, ToolError
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.models.catalog import base_url_of
from agent.ports import Findings, SearchQuery
from agent.tools.builtin.history import session_search
from gateway.agent_ports import search as searching
from gateway.agent_ports.search import (
    TEXT_BYTES,
    ConversationSearcher,
    Embedder,
    Indexer,
    shortened,
)
from gateway.app import _repeated
from gateway.errors import SettingsError, StorageUnavailable
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings
from gateway.storage.conversation import conversations
from gateway.storage.conversation.transcript import END
from gateway.storage.database import Database, Location
from gateway.storage.migrations import open_database
from gateway.storage.queue import leases
from gateway.storage.schema import conversation, ledger, message, vector
from gateway.storage.search import index, query
from gateway.wiring import build_embedder, embedding_model
from tests.support.embeddings_server import EmbeddingsServer, embeddings_server
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

    agent = agent_of(RecordingModel(script), tools=[session_search])
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
    assert store.run(query.searched_by, parent).conversations == (parent,)
    assert store.run(query.searched_by, child).conversations == (child,)


def test_a_forgotten_conversation_sees_nothing(store: Store) -> None:
    """A turn that is running meanwhile finds nothing more."""
    here = talk(store, "a zebra")
    store.run(forget, here)
    assert store.run(query.searched_by, here) == query.Scope({here: ""}, is_direct=False)
    assert store.run(query.with_neighbours, [], 1) == {}


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
        for there in scratch.run(query.searched_by, here).conversations:
            assert there == here or (kind, sender) == kinds[there] == ("dm", sender)
        direct = {each for each, owner in kinds.items() if owner == ("dm", sender)}
        expected = direct if kind == "dm" else {here}
        assert set(scratch.run(query.searched_by, here).conversations) == expected


@asynccontextmanager
async def feeding(indexer: Indexer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_repeated("search index", indexer.feed_all, 0.01)())
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


SMALL = "text-embedding-3-small"
NOISE = tuple(f"this is message {word}" for word in ["alpha", "beta", "gamma", "delta", "eta"])
POISON = "unspeakable"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddingsServer]:
    """A provider for whom a hound is a dog."""
    async with embeddings_server(alike={"hound": "labrador"}) as serving:
        yield serving


@pytest.fixture
def embedder(
    server: EmbeddingsServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Embedder:
    """Its model at work on the test's database, with more weight than usual."""
    monkeypatch.setattr(query, "WEIGHT", 0.2)
    return embedder_of(database, server)


def embedder_of(database: Database, server: EmbeddingsServer, **chosen: Any) -> Embedder:
    """Return who makes vectors by this server."""
    known = {"base_url": server.url, "api_key": server.key, "model": SMALL}
    auxiliary = {"embeddings": known | chosen}
    token = {"token": "hunter2hunter2"}
    told = {"home": Path("/nowhere"), "auxiliary": auxiliary, "web": token}
    embedder = build_embedder(Settings.model_validate(told), database)
    assert embedder is not None
    return embedder


async def near(database: Database, here: int, text: str, embedder: Embedder) -> list[int]:
    """Return the seqs of what a search finds."""
    searcher = ConversationSearcher(database, Indexer(database, embedder), here, END)
    return [hit.seq for hit in (await searcher.search(SearchQuery(text))).hits]


@pytest.mark.thorough
async def test_what_means_the_same_is_found(
    store: Store, database: Database, embedder: Embedder
) -> None:
    """Though it holds none of the words; where words are found they still count."""
    here = talk(store, *NOISE, "labrador", *NOISE, "a quagga", *NOISE)
    assert await near(database, here, "hound", embedder) == []
    assert await embedder.make_all() == 17
    assert (await near(database, here, "hound", embedder))[0] == 6
    assert (await near(database, here, "quagga", embedder))[0] == 12
    assert await embedder.make_all() == 0


async def test_each_request_is_booked(
    store: Store, database: Database, embedder: Embedder, server: EmbeddingsServer
) -> None:
    """Those for messages, and those for questions, with their cost."""
    here = talk(store, "a zebra")
    await embedder.make_all()
    await near(database, here, "which zebra", embedder)
    rows = store.rows(ledger)
    assert [(row.purpose, row.provider, row.input_tokens) for row in rows] == [
        ("embedding", "embeddings", 2)
    ] * 2
    assert rows[0].usd == pytest.approx(2 * 0.02 / 1_000_000)
    assert len(server.requests) == 2


async def test_a_secret_does_not_leave(
    store: Store, embedder: Embedder, server: EmbeddingsServer
) -> None:
    """What is masked in logs is masked for the provider of vectors."""
    talk(store, "it is hunter2hunter2")
    await embedder.make_all()
    assert "hunter2" not in str(server.requests)


async def test_a_provider_that_fails_is_asked_again(
    store: Store, embedder: Embedder, server: EmbeddingsServer
) -> None:
    """Nothing is lost, nothing is made twice."""
    talk(store, "a zebra")
    server.refusals.append((429, {"retry-after": "5"}, {"message": "slow"}))
    server.refusals.append((401, {}, {"message": "no"}))
    with pytest.raises(RateLimited):
        await embedder.make_all()
    with pytest.raises(CredentialsRefused):
        await embedder.make_all()
    assert store.rows(vector) == []
    assert await embedder.make_all() == 1
    assert len(store.rows(vector)) == 1


async def test_one_text_holds_up_no_other(
    store: Store, embedder: Embedder, server: EmbeddingsServer
) -> None:
    """What the model does not take has no vector; those beside it have."""
    server.poison = POISON
    talk(store, "a zebra", f"an {POISON} thing", "a horse")
    with capture_logs() as logs:
        assert await embedder.make_all() == 3
    assert [row.seq for row in store.rows(vector) if row.body] == [1, 3]
    assert await embedder.make_all() == 0
    assert [each["event"] for each in logs] == ["text_not_embedded"]
    assert POISON not in str(logs)


async def test_without_a_vector_of_the_question_words_decide(
    store: Store,
    database: Database,
    embedder: Embedder,
    server: EmbeddingsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A provider that refuses, or takes too long, ends no search."""
    here = talk(store, "a zebra", *NOISE)
    await embedder.make_all()
    server.refusals.append((500, {}, {"message": "broken"}))
    assert (await near(database, here, "zebra", embedder))[0] == 1
    monkeypatch.setattr(searching, "QUESTION_S", 0.0)
    assert (await near(database, here, "zebra", embedder))[0] == 1


async def test_it_goes_on_with_what_is_indexed(
    store: Store, embedder: Embedder, server: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a failure, when it has rested."""
    monkeypatch.setattr(searching, "EMBED_EVERY_S", 0.01)
    server.refusals.append((500, {}, {"message": "broken"}))
    talk(store, "a zebra")
    with capture_logs() as logs:
        replica = store.run(leases.register, "test")
        task = asyncio.create_task(
            _repeated(
                "embeddings",
                partial(embedder.make_all_if_oldest, lambda: replica),
                searching.EMBED_EVERY_S,
                at_once=True,
            )()
        )
        async with asyncio.timeout(WAIT_S):
            await server.asked.wait()
        server.asked.clear()
        talk(store, "a horse", user="8")
        async with asyncio.timeout(WAIT_S):
            await server.asked.wait()
        task.cancel()
        await asyncio.wait([task])
    assert [each["input"] for each in server.requests] == [["a zebra"], ["a horse"]]
    assert [each["event"] for each in logs] == ["embeddings_not_made"]


async def test_the_agents_search_compares_meanings(
    tmp_path: Path, server: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a gateway that is told to."""
    monkeypatch.setattr(query, "WEIGHT", 0.5)

    def script(request: ModelRequest) -> Step:
        newest = request.messages[-1]
        if newest["role"] == "tool":
            return text_of(newest)
        if "which" not in text_of(newest):
            return "noted"
        return [tool_call("session_search", {"query": "hound"})]

    agent = agent_of(RecordingModel(script), tools=[session_search])
    chosen = {"model": SMALL, "base_url": server.url, "api_key": server.key}
    async with running(tmp_path, agent, auxiliary={"embeddings": chosen}) as chat:
        for text in (*NOISE, "labrador", *NOISE):
            await chat.ask(text)
        indexer = chat.gateway.beside.indexer
        await indexer.feed_all()
        assert isinstance(indexer.meanings, Embedder)
        assert await indexer.meanings.make_all() == 2 * (2 * len(NOISE) + 1)
        said = await chat.ask("which one?")
    assert "labrador" in said
    assert "~ #" in said


CHILD = """
import asyncio, sys
from pathlib import Path
from agent.safety.redaction import Redactor
from agent.settings import ModelSettings
from gateway.agent_ports.search import Embedder
from gateway.storage.migrations import open_database
from gateway.storage.database import DatabaseServer
from pydantic import SecretStr

async def main(place, url, key):
    location = Path(place) if place.startswith("/") else DatabaseServer(SecretStr(place))
    async with open_database(location) as database:
        model = ModelSettings(name="text-embedding-3-small", base_url=url, api_key=SecretStr(key))
        await Embedder(database, model, Redactor()).make_all()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.thorough
async def test_who_is_killed_is_followed_by_another(
    store: Store, location: Location, server: EmbeddingsServer
) -> None:
    """What it had entered stays."""
    talk(store, *[f"a zebra {n}" for n in range(200)])
    told = str(location) if isinstance(location, Path) else location.url.get_secret_value()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, told, server.url, server.key
    )
    async with asyncio.timeout(WAIT_S):
        await server.asked.wait()
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    before = len(store.rows(vector))
    async with open_database(location) as database:
        after = embedder_of(database, server)
        await after.make_all()
    assert before < 200
    assert [row.seq for row in store.rows(vector)] == list(range(1, 201))


# What goes to a provider, what comes back, and what is none


async def test_each_text_has_its_own_vector(
    store: Store, database: Database, server: EmbeddingsServer
) -> None:
    """By its number, in whichever order they come; a byte for each number, the largest 127."""
    talk(store, "a zebra", "a horse", "a zebra")
    embedder = embedder_of(database, server)
    await embedder.make_all()
    first, second, third = (row.body for row in store.rows(vector))
    assert first == third != second
    assert len(first) == 256
    assert max(map(abs, memoryview(first).cast("b"))) == 127
    assert server.requests[0]["dimensions"] == 256


@pytest.mark.parametrize(("input_usd", "cost"), [(None, None), (1.0, 2e-6)])
async def test_the_price_is_the_operators_or_unknown(
    store: Store,
    database: Database,
    server: EmbeddingsServer,
    input_usd: float | None,
    cost: float | None,
) -> None:
    """What no table knows has none."""
    talk(store, "a zebra")
    embedder = embedder_of(database, server, model="other", facts={"input_usd": input_usd})
    await embedder.make_all()
    [booked] = store.rows(ledger)
    assert booked.usd == (None if cost is None else pytest.approx(cost))


def test_a_request_has_no_more_tokens_than_the_provider_takes() -> None:
    """300,000 in all: a token has a byte at least."""
    assert query.TEXTS * TEXT_BYTES <= 300_000


def test_long_and_empty_texts_are_taken() -> None:
    """A long one by its head, never beyond what a model reads; an empty one as a dot."""
    assert len(shortened("ü" * 20_000).encode()) <= TEXT_BYTES
    assert shortened(" ") == "."


@pytest.mark.parametrize(
    ("status", "error", "raised"),
    [
        (401, {"message": "no", "code": "invalid_api_key"}, CredentialsRefused),
        (429, {"message": "slow", "code": "rate_limit_exceeded"}, RateLimited),
        (500, {"message": "broken"}, ModelUnreachable),
    ],
)
async def test_a_refusal_is_a_model_error(
    store: Store,
    embedder: Embedder,
    server: EmbeddingsServer,
    status: int,
    error: dict[str, Any],
    raised: type[Exception],
) -> None:
    """As for answers."""
    talk(store, "a zebra")
    server.refusals.append((status, {}, error))
    with pytest.raises(raised):
        await embedder.make_all()


@pytest.mark.parametrize("usage", [None, 7, {}, {"prompt_tokens": "many"}])
async def test_an_unreadable_usage_is_unknown(
    store: Store, embedder: Embedder, server: EmbeddingsServer, usage: object
) -> None:
    """The request is booked, its vector is kept: it was paid for."""
    talk(store, "a zebra")
    server.answer = {"data": [{"index": 0, "embedding": [0.5] * 256}], "usage": usage}
    assert await embedder.make_all() == 1
    [booked] = store.rows(ledger)
    assert (booked.input_tokens, booked.usd) == (0, None)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": "no"},
        [1],
        {"data": [{"index": 1, "embedding": [0.5] * 256}]},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": [0.0] * 256}]},
        {"data": [{"index": 0, "embedding": ["x"] * 256}]},
        {"data": [{"index": 0, "embedding": [0.5, float("nan")] * 128}]},
        {"data": [{"index": 0, "embedding": [0.5, 10**400] * 128}]},
        {"data": [{"index": 0, "embedding": [0.5] * 255}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
    ],
)
async def test_what_is_no_vector_is_refused(
    store: Store, embedder: Embedder, server: EmbeddingsServer, answer: object
) -> None:
    """An answer that does not fit the request is none."""
    talk(store, "a zebra")
    server.answer = answer
    with pytest.raises(ModelUnreachable):
        await embedder.make_all()
    assert store.rows(vector) == []
    assert [row.purpose for row in store.rows(ledger)] == ["embedding"]


async def test_a_server_that_is_gone(
    store: Store, database: Database, server: EmbeddingsServer
) -> None:
    """Its key stands in no error."""
    talk(store, "a zebra")
    gone = embedder_of(database, server, base_url="http://127.0.0.1:1/v1", api_key="sk-secret")
    with pytest.raises(ModelUnreachable) as caught:
        await gone.make_all()
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ("model: {provider: offline}\nauxiliary: {embeddings: {model: m}}", "embeddings.base_url"),
        (
            'auxiliary: {embeddings: {model: m, base_url: "http://a/v1", api_key: "key\\nkey"}}',
            "auxiliary.embeddings.api_key",
        ),
    ],
)
def test_settings_that_cannot_work_are_told(tmp_path: Path, sections: str, told: str) -> None:
    """Before anything is asked."""
    (tmp_path / "parley.yaml").write_text(sections)
    settings = load_settings(environ={"PARLEY_HOME": str(tmp_path)}).settings
    with pytest.raises(SettingsError, match=told):
        embedding_model(settings)


@pytest.mark.parametrize(
    ("model", "block", "server"),
    [
        ({"api_key": "sk-main"}, {}, ("https://api.openai.com/v1", "sk-main")),
        (
            {"provider": "openrouter", "api_key": "sk-main"},
            {},
            ("https://openrouter.ai/api/v1", "sk-main"),
        ),
        ({"base_url": "http://main/v1", "api_key": "sk-main"}, {}, ("http://main/v1", "sk-main")),
        (
            {"base_url": "http://main/v1", "api_key": "sk-main"},
            {"api_key": "sk-search"},
            ("http://main/v1", "sk-search"),
        ),
        ({"api_key": "sk-main"}, {"base_url": "http://a/v1"}, ("http://a/v1", "")),
    ],
)
def test_a_key_goes_to_its_own_server_only(
    model: dict[str, str], block: dict[str, str], server: tuple[str, str]
) -> None:
    """The main model's key never goes to the address that `base_url` of the block names."""
    told = {"model": model, "auxiliary": {"embeddings": {"model": "m"} | block}}
    found = embedding_model(Settings.model_validate({"home": Path("/nowhere"), **told}))
    assert found is not None
    key = found.api_key.get_secret_value() if found.api_key else ""
    assert (base_url_of(found), key) == server
