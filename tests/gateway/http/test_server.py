"""The HTTP server: its port and its Unix socket.

/healthz and /readyz over HTTP.

What the web chat reads: list of chats, what was said, how full the context is.
"""

import asyncio
import re
import socket
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from adapters.base import Adapter, ContextGauge
from adapters.door import FIRST_OWNER
from adapters.errors import AdapterRefused, SendRejected
from adapters.messages import Address, Attachment, Outgoing, OutgoingFile
from adapters.web.adapter import WebAdapter
from adapters.web.platform import WebSettings
from agent.errors import CredentialsRefused, ModelUnreachable
from agent.settings import AgentSettings
from gateway.access import web_door
from gateway.app import assembled
from gateway.commands.registry import StatusFacts
from gateway.errors import DatabaseReplaced, GatewayError, StorageUnavailable
from gateway.http.server import LONGEST_SOCKET_PATH, ChatHistory, HttpServer, Port
from gateway.pipeline import notices
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.storage.people import web_users
from gateway.storage.people.web_users import ChatLinks
from gateway.wiring import accounts_of
from tests.support.door import AUTHORIZED, TOKEN, web_host
from tests.support.gateway import (
    HeldModel,
    RecordingModel,
    Running,
    agent_of,
    log_lines,
    running,
    serving,
    settings_of,
)
from tests.support.history import MemoryHistory
from tests.support.process import free_port
from tests.support.recording_adapter import RecordingAdapter, Watch
from tests.support.scripted_model import ScriptedModel


async def hello(_: web.Request) -> web.Response:
    """Answer anything."""
    return web.Response(text="hello")


def server_at(path: Path, port: int = 0) -> HttpServer:
    public, private = [web.get("/public", hello)], [web.get("/private", hello)]
    return HttpServer(Port("127.0.0.1", port, public), path, private=private)


async def status_of(path: str, *, port: int = 0, at: Path | None = None) -> int:
    """Return the status of a page, over the port or over the socket."""
    connector = aiohttp.UnixConnector(str(at)) if at else None
    url = f"http://127.0.0.1:{port}{path}" if port else f"http://parley{path}"
    async with aiohttp.ClientSession(connector=connector) as http, http.get(url) as response:
        return response.status


async def test_private_routes_are_on_the_socket_only(tmp_path: Path) -> None:
    """Who can open the file is the owner; the port is for everyone."""
    server, path = server_at(tmp_path / "s"), tmp_path / "s"
    port = await server.start()
    assert await status_of("/public", port=port) == 200
    assert await status_of("/private", port=port) == 404
    assert await status_of("/public", at=path) == 200
    assert await status_of("/private", at=path) == 200
    await server.stop()


async def full(_: web.Request) -> web.Response:
    """Have nothing stored."""
    raise StorageUnavailable("the disk is full")


async def test_what_cannot_be_stored_is_to_be_sent_again(tmp_path: Path) -> None:
    """503, not a broken answer: platforms and browsers try again."""
    port = Port("127.0.0.1", 0, [web.get("/full", full)])
    server = HttpServer(port, tmp_path / "s", private=[])
    async with log_lines(Watch()) as lines:
        port = await server.start()
        assert await status_of("/full", port=port) == 503
        await server.stop()
    [line] = [line for line in lines if line["event"] == "request_not_stored"]
    assert (line["path"], line["error"]) == ("/full", "the disk is full")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_wants_to_come_in_reads_what_to_do(tmp_path: Path, method: str) -> None:
    """As a page, or where the token was typed: nobody can be signed in, and who runs it looks."""
    path = "/admin" if method == "GET" else "/api/sign-in"
    port = Port("127.0.0.1", 0, [web.route(method, path, full)])
    server = HttpServer(port, tmp_path / "s", private=[])
    url = f"http://127.0.0.1:{await server.start()}{path}"
    headers = {"Accept": "text/html,*/*;q=0.8" if method == "GET" else "*/*"}
    async with aiohttp.ClientSession(headers=headers) as http, http.request(method, url) as answer:
        told = await answer.text()
    await server.stop()
    assert answer.status == 503
    assert answer.content_type == ("text/html" if method == "GET" else "application/json")
    assert "nobody can be signed in now" in told
    assert "parley doctor" in told
    assert "disk" not in told


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_breaks_under_a_stream_ends_it(tmp_path: Path) -> None:
    """Its answer has begun: no second one stands in the middle of it, and the page asks again."""
    async with running(tmp_path, at_work=False) as chat:
        told = replace(web_host(MemoryHistory()), history=history_of(chat))
        page = WebAdapter(WebSettings(), told)
        server = HttpServer(Port("127.0.0.1", 0, page.routes()), tmp_path / "s", private=[])
        port = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /api/chats/c1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        begun = await reader.readuntil(b"event: synced")
        with closing(sqlite3.connect(tmp_path / "parley.db")) as other:
            other.execute("ALTER TABLE outbox RENAME TO gone")
        place = Address("web", "default", "c1")
        await page.send(Outgoing(conversation=1, address=place, seq=1, payload="", nonce=""))
        rest = await reader.read()
        writer.close()
        await page.close()
        await server.stop()
        [line] = chat.events("request_not_stored")
    assert begun.startswith(b"HTTP/1.1 200")
    assert (begun + rest).count(b"HTTP/1.1") == 1
    assert b"storage_unavailable" not in rest
    assert line["path"] == "/api/chats/c1/events"
    assert [line for line in chat.log if line["level"] == "error" and "exc_info" in line] == []


async def test_the_socket_is_its_owners(tmp_path: Path) -> None:
    """Mode 0600, and it is gone after a stop."""
    server = server_at(tmp_path / "s")
    await server.start()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    await server.stop()
    assert not (tmp_path / "s").exists()


async def test_a_socket_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    """Only one gateway runs on a database: the old file belongs to nobody."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    server = server_at(tmp_path / "s")
    await server.start()
    assert await status_of("/private", at=tmp_path / "s") == 200
    await server.stop()


async def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    """It names address and settings, and what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = server_at(tmp_path / "s", port)
        with pytest.raises(GatewayError, match="already in use; stop the") as caught:
            await server.start()
        assert f"cannot listen on 127.0.0.1:{port} (web.host, web.port): " in str(caught.value)
        await server.stop()


async def test_a_path_too_long_for_a_socket_is_skipped(tmp_path: Path) -> None:
    """Pages are served all the same, and the log says what is missing."""
    async with log_lines(Watch()) as lines:
        server = server_at(tmp_path / ("x" * LONGEST_SOCKET_PATH))
        port = await server.start()
        assert await status_of("/public", port=port) == 200
        await server.stop()
    assert [line["event"] for line in lines] == ["control_socket_skipped"]


async def test_a_running_gateway_is_healthy_and_ready(tmp_path: Path) -> None:
    """Both pages are green."""
    async with serving(tmp_path) as gateway:
        assert await gateway.get("/healthz") == (200, {"status": "ok"})
        status, body = await gateway.get("/readyz")
        assert (status, body["ready"], body["database"]) == (200, True, "writable")
        assert body["adapters"] == {"telegram:default": "connected"}


async def test_ready_tells_how_accounts_stand(tmp_path: Path) -> None:
    """Also while nothing is wrong."""
    async with serving(tmp_path) as gateway:
        _, before = await gateway.get("/readyz")
        await gateway.chat.ask("hello")
        await gateway.chat.logged("message_sent")
        _, after = await gateway.get("/readyz")
        unsent = {"waiting": 0, "oldest_unsent_s": None, "silent_s": None, "pool": None}
        never = {"last_sent_s": None, "last_received_s": None, "last_error": None}
        assert before["accounts"] == {"telegram:default": unsent | never}
        account = after["accounts"]["telegram:default"]
        assert account["last_received_s"] >= account["last_sent_s"] >= 0


@pytest.mark.thorough
async def test_a_connecting_adapter_is_not_ready(tmp_path: Path) -> None:
    """The process is healthy nevertheless: a restart would not help."""
    adapter = RecordingAdapter()
    adapter.connected = False
    async with serving(tmp_path, adapter=adapter) as gateway:
        status, body = await gateway.get("/readyz")
        assert (status, body["adapters"]) == (503, {"telegram:default": "connecting"})
        assert (await gateway.get("/healthz"))[0] == 200


async def test_a_refused_adapter_says_why_and_until_when_it_is_asked(tmp_path: Path) -> None:
    """The reason is the setting to fix; it has not stopped yet."""
    adapter = RecordingAdapter()
    adapter.outages.append(AdapterRefused("the token is wrong"))
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.logged("adapter_stopped")
        status, body = await gateway.get("/readyz")
        assert status == 503
        state = body["adapters"]["telegram:default"]
        said = r"refused: the token is wrong; it is asked again until \d\d:\d\d UTC"
        assert re.fullmatch(said, state)


@pytest.mark.thorough
async def test_owners_are_told_which_part_is_not_ready(tmp_path: Path) -> None:
    """Over the port by token or session; everybody else gets the least."""
    adapter = RecordingAdapter()
    adapter.connected = False
    async with serving(tmp_path, adapter=adapter, web={"token": TOKEN}) as gateway:
        database, cookie = gateway.chat.gateway.database, f"parley_{gateway.port}"
        await database.write(web_door.invite, "ann", "member")
        for sender in (FIRST_OWNER, "ann"):
            hash_ = web_door.hash_of(f"of-{sender}")
            await database.write(web_users.begin, hash_, sender, "link", "", "")
        for headers, is_owner in (
            (AUTHORIZED, True),
            ({"Cookie": f"{cookie}=of-web"}, True),
            ({"Cookie": f"{cookie}=of-ann"}, False),
            ({"Authorization": "Bearer wrong"}, False),
            ({"Cookie": f"{cookie}=of-web", "Origin": "https://evil.example"}, False),
            ({"Cookie": f"{cookie}=of-web", "Host": "evil.example"}, False),
            ({"X-Forwarded-For": "127.0.0.1"} | AUTHORIZED, False),
        ):
            status, body = await gateway.get("/readyz", local=False, **headers)
            assert (status, body["ready"], "adapters" in body) == (503, False, is_owner)
            assert is_owner or body == {"ready": False}
            assert await gateway.get("/healthz", local=False, **headers) == (200, {"status": "ok"})


@pytest.mark.usefixtures("sqlite_alone")
async def test_owners_are_told_that_the_database_is_the_trouble(tmp_path: Path) -> None:
    """By the token: whose a session is cannot be read then."""
    async with serving(tmp_path, web={"token": TOKEN}) as gateway:
        (tmp_path / "parley.db").unlink()
        with pytest.raises(DatabaseReplaced):
            await gateway.chat.say("into nowhere")
        status, body = await gateway.get("/readyz", local=False, **AUTHORIZED)
        assert status == 503
        assert "parley.db was removed while Parley runs" in body["database"]
        known = {"Cookie": f"parley_{gateway.port}=of-web"}
        assert await gateway.get("/readyz", local=False, **known) == (503, {"ready": False})


async def test_a_port_of_webhooks_tells_nobody_more(tmp_path: Path) -> None:
    """Nobody signs in there."""
    web = {"token": TOKEN, "webhook_port": free_port()}
    async with serving(tmp_path, web=web) as gateway:
        gateway.port = web["webhook_port"]
        told = await gateway.get("/readyz", local=False, **AUTHORIZED)
        assert told == (200, {"ready": True})


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_blocked_database_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the write lock: no commit in time."""
    monkeypatch.setattr("gateway.supervision.vitals.WRITE_TIMEOUT_S", 1.0)
    async with serving(tmp_path) as gateway:
        with closing(sqlite3.connect(tmp_path / "parley.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            status, body = await gateway.get("/readyz")
            other.execute("ROLLBACK")
        assert (status, body["database"]) == (503, "no commit within 1 s")
        assert (await gateway.get("/healthz"))[0] == 200


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_became_read_only_is_not_ready(tmp_path: Path) -> None:
    """What SQLite says stands in the answer."""
    async with serving(tmp_path) as gateway:
        database = gateway.chat.gateway.database
        await database.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON"))
        status, body = await gateway.get("/readyz")
        assert status == 503
        assert body["database"].startswith("not writable: attempt to write a readonly")


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_was_removed_is_not_ready(tmp_path: Path) -> None:
    """No message is acknowledged any more, and one line of the log says why."""
    async with serving(tmp_path) as gateway:
        assert await gateway.chat.ask("before") == "re: before"
        (tmp_path / "parley.db").unlink()
        with pytest.raises(DatabaseReplaced):
            await gateway.chat.say("into nowhere")
        status, body = await gateway.get("/readyz")
        assert (status, body["ready"]) == (503, False)
        assert "parley.db was removed while Parley runs" in body["database"]
        assert len(gateway.chat.events("database_lost")) == 1
    with pytest.raises(DatabaseReplaced, match="there is no database"):
        async with serving(tmp_path):
            pytest.fail("it has begun anew without a word")


HERE = Address("telegram", "default", "c1")
FACTS = StatusFacts("claude-test", 1000, 500, "compressor", 10)


def history_of(chat: Running) -> ChatHistory:
    return ChatHistory(chat.gateway.database, lambda _: FACTS, ChatLinks(None))


async def said(chat: Running, **after: int) -> list[tuple[int, int, str]]:
    items = await history_of(chat).items(HERE, **after)
    return [(item.inbox_seq, item.outbox_seq, item.markdown) for item in items]


async def test_chats_come_newest_first(tmp_path: Path) -> None:
    """With their titles; other accounts' and other people's are not among them."""
    async with running(tmp_path) as chat:
        for text, name in (("one", "a"), ("two", "b"), ("three", "a")):
            await chat.ask(text, name)
        found = await history_of(chat).chats("telegram", "default", "u1")
        assert [(it.chat, it.title) for it in found] == [("a", "one"), ("b", "two")]
        assert found[0].updated_at.endswith("Z")
        assert await history_of(chat).chats("telegram", "other", "u1") == []
        assert await history_of(chat).chats("telegram", "default", "u2") == []


async def test_a_file_is_handed_out_to_its_own_chat_only(tmp_path: Path) -> None:
    """By its number, to whoever looks at that chat."""
    photo = Attachment(name="a.txt", kind="file", mime="text/plain", content=b"hi")
    async with running(tmp_path) as chat:
        await chat.ask("see", attachments=(photo,))
        await chat.ask("hello", "c2")
        history = history_of(chat)
        [[file], *_] = [item.files for item in await history.items(HERE)]
        assert await history.file(HERE, file.id) == OutgoingFile("a.txt", "text/plain", b"hi")
        assert await history.file(Address("telegram", "default", "c2"), file.id) is None
        assert await history.file(Address("telegram", "default", "nobody"), file.id) is None


async def test_an_answer_stands_behind_its_question(tmp_path: Path) -> None:
    """Also where another question came before the answer."""
    model = HeldModel()
    gate = model.hold("one")
    async with running(tmp_path, model) as chat:
        await chat.say("one")
        await chat.until(lambda: model.waiting)
        await chat.say("two")
        gate.set()
        await chat.answers(2)
        assert await said(chat) == [
            (1, 0, "one"),
            (1, 1, "re: one"),
            (2, 0, "two"),
            (2, 2, "re: two"),
        ]


async def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """Both positions count on their own."""
    async with running(tmp_path) as chat:
        await chat.ask("one")
        await chat.ask("two")
        assert await said(chat, after_inbox=1, after_outbox=1) == [
            (2, 0, "two"),
            (2, 2, "re: two"),
        ]
        assert await said(chat, after_inbox=2, after_outbox=1) == [(2, 2, "re: two")]
        assert await said(chat, after_inbox=2, after_outbox=2) == []


async def test_an_unknown_chat_is_empty(tmp_path: Path) -> None:
    """No items, and nothing known about the context."""
    async with running(tmp_path, at_work=False) as chat:
        assert await said(chat) == []
        assert await history_of(chat).gauge(HERE) == ContextGauge(None, 1000)


async def test_the_gauge_shows_how_full_the_window_is(tmp_path: Path) -> None:
    """What is fixed before anything was said, more after an answer, the same again after /new."""
    async with running(tmp_path) as chat:
        await chat.ask("/status")
        assert (await history_of(chat).gauge(HERE)).used_tokens == 10
        await chat.ask("one")
        used = (await history_of(chat).gauge(HERE)).used_tokens
        assert used is not None
        assert used > 10
        await chat.ask("/new")
        assert (await history_of(chat).gauge(HERE)).used_tokens == 10


async def test_the_gauge_goes_by_the_window_as_it_is_now(tmp_path: Path) -> None:
    """A provider may give the account less of it than its model has."""
    given: list[ChatHistory] = []

    adapter = RecordingAdapter()

    def connect(_intake: object, chats: ChatHistory, _door: object) -> list[Adapter]:
        given.append(chats)
        return [adapter]

    accounts = replace(accounts_of(adapter), connect=connect)

    model, settings = RecordingModel(context_length=1_000_000), settings_of(tmp_path)
    async with (
        open_database(location_of(settings)) as database,
        assembled(settings, database, agent_of(model), accounts),
    ):
        assert (await given[0].gauge(HERE)).window_tokens == 1_000_000
        model.context_length = 200_000
        assert (await given[0].gauge(HERE)).window_tokens == 200_000


async def test_notices_are_told_from_answers(tmp_path: Path) -> None:
    """What was said while the turn went on, whatever it was about."""
    failures = [ModelUnreachable("away") for _ in range(3)]
    model = ScriptedModel([*failures, "at last"], context_length=3_000)
    agent = replace(agent_of(model), settings=AgentSettings(instructions="obey " * 700))
    async with running(tmp_path, agent) as chat:
        await chat.say("hello " * 200)
        await chat.answers(4)
        await chat.ask("/help")
        items = [item for item in await history_of(chat).items(HERE) if item.outbox_seq]
        assert {item.markdown for item in items if item.notice} == {
            notices.TROUBLE,
            *notices.CONTEXT.values(),
        }
        assert next(item.markdown for item in items if not item.notice) == "at last"


async def test_a_failure_is_no_notice(tmp_path: Path) -> None:
    """Nothing comes after it."""
    async with running(tmp_path, [CredentialsRefused("no")]) as chat:
        await chat.ask("one")
        assert [item.notice for item in await history_of(chat).items(HERE)] == [False, False]


async def test_an_edit_comes_behind_what_it_changes(tmp_path: Path) -> None:
    """A page that has the message shows the new wording in its place."""
    async with running(tmp_path, at_work=False) as chat:
        await chat.say("teh", message_ref="m1")
        await chat.say("the", message_ref="m1", kind="edit")
        items = await history_of(chat).items(HERE)
        assert [(item.markdown, item.ref) for item in items] == [("the", "m1"), ("the", "m1")]


async def test_a_buried_answer_is_still_readable(tmp_path: Path) -> None:
    """The page shows what the platform did not take."""
    adapter = RecordingAdapter()
    adapter.failures["c1"].append(SendRejected("blocked"))
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one")
        await chat.logged("message_buried")
        assert (1, 1, "re: one") in await said(chat)


async def test_ids_with_colons_are_kept_apart(tmp_path: Path) -> None:
    """Chat "c1:t" is no thread of chat "c1"."""
    async with running(tmp_path) as chat:
        await chat.ask("one", "c1:t")
        thread = Address("telegram", "default", "c1", "t")
        assert await history_of(chat).items(thread) == []
