"""The engine for PostgreSQL: what a transaction promises there, on a real server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy import Connection, QueuePool, false, insert, null, select, text, true
from sqlalchemy.exc import DBAPIError, IntegrityError
from structlog.testing import capture_logs

from gateway.errors import CommitUnknown, StorageUnavailable
from gateway.storage import migrations, postgres
from gateway.storage.database import DatabaseServer
from gateway.storage.migrations import open_locked
from gateway.storage.postgres import PostgresDatabase, driver_of
from gateway.storage.schema import cursor, member, prompt_text
from tests.support.crash import until
from tests.support.database_proxy import DatabaseProxy, Loss
from tests.support.pgbouncer import BOTH_WAYS, behind
from tests.support.postgres import PostgresServer, server_at

WHO = member.c.sender_name
NAMES = select(WHO).order_by(member.c.sender)
ENTER = insert(member)
ENTER_AND_TELL = insert(member).returning(WHO)


def row(sender: str = "1", name: str = "Ada", at: float = 1.5) -> dict[str, Any]:
    return {
        "platform": "telegram",
        "sender": sender,
        "sender_name": name,
        "role": "member",
        "granted_by": "code",
        "at": at,
    }


def enter(conn: Connection, sender: str = "1", name: str = "Ada") -> None:
    conn.execute(ENTER, row(sender, name))


def names(conn: Connection) -> list[str]:
    return list(conn.execute(NAMES).scalars())


@pytest.fixture(params=BOTH_WAYS)
async def database(
    request: pytest.FixtureRequest, postgres_url: str
) -> AsyncIterator[PostgresDatabase]:
    if request.param == "pooled":
        server = behind(request.getfixturevalue("pooler"), postgres_url)
    else:
        server = server_at(postgres_url)
    opened = PostgresDatabase(server)
    yield opened
    await opened.close()


async def test_what_is_written_is_read(database: PostgresDatabase) -> None:
    """Once `write` has returned, every later `read` sees it."""
    await database.write(enter)
    assert await database.read(names) == ["Ada"]


async def test_a_function_that_fails_writes_nothing(database: PostgresDatabase) -> None:
    """Its exception reaches the caller as it is."""

    def fail(conn: Connection) -> None:
        enter(conn)
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await database.write(fail)
    assert await database.read(names) == []


async def test_a_read_sees_one_moment(database: PostgresDatabase) -> None:
    """What is committed between two statements of a read does not show."""
    loop = asyncio.get_running_loop()

    def read_twice(conn: Connection) -> tuple[list[str], list[str]]:
        before = names(conn)
        asyncio.run_coroutine_threadsafe(database.write(enter), loop).result()
        return before, names(conn)

    assert await database.read(read_twice) == ([], [])
    assert await database.read(names) == ["Ada"]


async def test_a_read_writes_nothing(database: PostgresDatabase) -> None:
    """The database itself refuses it."""
    with pytest.raises(StorageUnavailable, match="read-only"):
        await database.read(enter)


async def test_a_read_keeps_what_was_prepared(postgres_url: str) -> None:
    """The driver forgets all prepared statements at a ROLLBACK: a read ends without one."""
    database = PostgresDatabase(server_at(postgres_url, connections=1))

    def kept(conn: Connection) -> list[str]:
        return list(conn.execute(text("SELECT statement FROM pg_prepared_statements")).scalars())

    for n in range(20):
        await database.write(enter, f"{n}")
        await database.read(names)
    statements = await database.read(kept)
    await database.close()
    assert any(each.startswith("SELECT member") for each in statements)
    assert any(each.startswith("INSERT INTO member") for each in statements)


async def test_values_come_back_as_they_were(database: PostgresDatabase) -> None:
    """On the direct path and by way of SQLAlchemy: bytes, 64 bits, fractions, booleans, nothing."""

    def both(conn: Connection) -> None:
        big = {"source": "a", "position": 2**62}
        conn.execute(insert(cursor), big)
        conn.execute(insert(cursor), {**big, "source": "b"})
        assert conn.execute(select(cursor.c.position)).scalars().all() == [2**62] * 2
        digest, body = bytes(range(256)), "naïve 漢 % ' \\ \n"
        conn.execute(insert(prompt_text), {"digest": digest, "body": body})
        for query in (select(prompt_text), select(prompt_text)):
            found = conn.execute(query).one()
            assert (bytes(found.digest), found.body) == (digest, body)
        nothing = conn.execute(select(null(), false(), true())).one()
        assert tuple(nothing) == (None, False, True)

    await database.write(both)
    await database.write(enter)
    assert await database.read(lambda conn: conn.scalar(select(member.c.at))) == 1.5
    assert await database.read(lambda conn: conn.scalar(select(member.c.at > 1))) is True


async def test_sums_are_plain_numbers(database: PostgresDatabase) -> None:
    """PostgreSQL sums 64 bits as `numeric`, for which the driver would make a Decimal."""

    def sums(conn: Connection) -> list[Any]:
        query = "SELECT sum(n::bigint), avg(n::bigint) FROM generate_series(1, 4) AS n"
        return list(conn.exec_driver_sql(query).one())

    assert list(map(repr, await database.read(sums))) == ["10", "2.5"]


async def test_a_nul_is_replaced(database: PostgresDatabase) -> None:
    """PostgreSQL has no text with one; the message is not lost for it."""
    await database.write(lambda conn: conn.execute(ENTER, row(name="A\0da")) and None)
    assert await database.read(names) == ["A\ufffdda"]


async def test_many_rows_are_entered_at_once(database: PostgresDatabase) -> None:
    """A list of values is as many rows."""
    rows = [row(str(n)) for n in range(3)]
    await database.write(lambda conn: conn.execute(ENTER, rows) and None)
    assert await database.read(names) == ["Ada"] * 3


async def test_the_plan_of_a_search_knows_what_is_looked_for(database: PostgresDatabase) -> None:
    """It is planned each time: a kept plan would read all messages."""

    def asked_often(conn: Connection) -> list[str]:
        for n in range(12):
            conn.execute(text("SELECT CAST(:word AS tsquery)"), {"word": f"word{n}"})
        kept = "SELECT statement FROM pg_prepared_statements WHERE strpos(statement, 'tsquery') > 0"
        return list(conn.exec_driver_sql(kept).scalars())

    assert await database.search(asked_often) == []


async def test_two_that_enter_the_same_agree(database: PostgresDatabase) -> None:
    """The second one runs again, and finds what the first one has entered."""
    both = threading.Barrier(2)

    def find_or_enter(conn: Connection) -> str:
        if names(conn):
            return "found"
        with suppress(threading.BrokenBarrierError):
            both.wait(30)
        enter(conn)
        return "entered"

    done = await asyncio.gather(*(database.write(find_or_enter) for _ in range(2)))
    assert sorted(done) == ["entered", "found"]


@pytest.mark.thorough
async def test_a_deadlock_is_tried_again(database: PostgresDatabase) -> None:
    """Each of two holds what the other one wants: one of them begins anew."""
    await database.write(lambda conn: [enter(conn, each) for each in "12"] and None)
    both = threading.Barrier(2)

    def rename(conn: Connection, first: str, second: str) -> None:
        for sender in (first, second):
            conn.execute(member.update().where(member.c.sender == sender).values(sender_name=first))
            if sender == first and not both.broken:
                with suppress(threading.BrokenBarrierError):
                    both.wait(30)
                both.abort()

    await asyncio.gather(database.write(rename, "1", "2"), database.write(rename, "2", "1"))
    assert len(set(await database.read(names))) == 1


async def test_a_mistake_of_the_function_is_its_own(database: PostgresDatabase) -> None:
    """It is not tried for ever, and what people wrote is not quoted."""
    await database.write(enter, "1", "my secret")
    with pytest.raises(IntegrityError) as caught:
        await database.write(enter, "1", "my secret")
    assert "pk_member" in str(caught.value)
    assert "telegram" not in str(caught.value)


async def test_a_lost_connection_is_replaced(database: PostgresDatabase, postgres_url: str) -> None:
    """What was under way was rolled back, and runs again on another one."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        seen: list[int] = []

        def enter_once_cut(conn: Connection) -> None:
            enter(conn)
            seen.append(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            if len(seen) == 1:
                admin.execute("SELECT pg_terminate_backend(%s, 30000)", (seen[0],))
                names(conn)

        await database.write(enter_once_cut)
    assert len(set(seen)) == 2
    assert await database.read(names) == ["Ada"]


async def test_a_connection_that_was_lost_unseen_is_replaced(
    database: PostgresDatabase, postgres_url: str
) -> None:
    """A function may pass over the error: it reads again on another connection."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        seen: list[int] = []

        def look_once_cut(conn: Connection) -> int:
            seen.append(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            if len(seen) == 1:
                admin.execute("SELECT pg_terminate_backend(%s, 30000)", (seen[0],))
                with suppress(DBAPIError):
                    names(conn)
            return seen[-1]

        assert await database.search(look_once_cut) == seen[1]
    assert len(set(seen)) == 2


async def test_a_lost_answer_to_a_commit_is_told(
    database: PostgresDatabase, postgres_url: str
) -> None:
    """Nobody knows whether it is stored: the caller learns that, and nothing runs again."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON member DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION cut()"
        )
        runs: list[int] = []

        def noted(conn: Connection) -> None:
            runs.append(1)
            enter(conn)

        with pytest.raises(CommitUnknown):
            await database.write(noted)
        assert len(runs) == 1
        admin.execute("DROP TRIGGER cut ON member")
    await database.write(enter)
    assert await database.read(names) == ["Ada"]


async def test_a_cancelled_search_ends(database: PostgresDatabase) -> None:
    """The server gives up the statement that runs; the connection serves the next search."""
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def last_long(conn: Connection) -> None:
        loop.call_soon_threadsafe(began.set)
        conn.exec_driver_sql("SELECT pg_sleep(600)")

    searching = asyncio.ensure_future(database.search(last_long))
    await began.wait()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert await database.search(names) == []


async def test_a_caller_that_is_cancelled_undoes_nothing(database: PostgresDatabase) -> None:
    """The transaction goes on, as it does on SQLite."""
    began, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(conn: Connection) -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(30)
        enter(conn)

    writing = asyncio.ensure_future(database.write(slow))
    await began.wait()
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    go_on.set()
    await database.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await database.read(names)
    again = PostgresDatabase(database.server)
    assert await again.read(names) == ["Ada"]
    await again.close()


async def test_who_is_cancelled_takes_no_place_for_good(database: PostgresDatabase) -> None:
    """As many connections are opened as are needed at once, whoever did not wait for the end."""
    loop, opened = asyncio.get_running_loop(), cast("QueuePool", database._engine.pool)
    for _ in range(4):
        began = asyncio.Event()
        reading = asyncio.ensure_future(
            database.read(lambda _: loop.call_soon_threadsafe(began.set) and None)  # noqa: B023
        )
        await began.wait()
        reading.cancel()
        await until(lambda: not opened.checkedout())
    assert opened.checkedin() == 1


@pytest.mark.parametrize("pooled", [False, True])
async def test_every_transaction_has_its_time_limits(postgres_url: str, pooled: bool) -> None:
    """From the start of a connection, or where a pooler lends another session, in each of them."""
    database = PostgresDatabase(server_at(postgres_url, pooled=pooled))

    def limits(conn: Connection) -> dict[str, int]:
        shown = "SELECT setting::int FROM pg_settings WHERE name = %s"
        return {
            name: conn.exec_driver_sql(shown, (name,)).scalar_one() for name in postgres.TIMEOUTS_MS
        }

    assert await database.read(limits) == postgres.TIMEOUTS_MS
    await database.close()


async def test_behind_a_pooler_nothing_is_left_in_a_session(postgres_url: str) -> None:
    """Each transaction may come to another one: nothing is taken for prepared or for set."""
    database = PostgresDatabase(server_at(postgres_url, pooled=True))
    for n in range(8):
        await database.write(enter, str(n))
        with database._engine.connect() as conn:
            driver = driver_of(conn)
            driver.autocommit = True
            found = driver.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
            assert found == (0,)
            driver.execute("DISCARD ALL")
            driver.autocommit = False
    assert await database.read(names) == ["Ada"] * 8
    await database.close()


async def test_scrubbing_takes_erased_rows_out(database: PostgresDatabase) -> None:
    """Nothing that was deleted is left in the tables."""
    await database.write(enter)
    await database.write(lambda conn: conn.execute(member.delete()) and None)
    pages = "SELECT pg_relation_size('member')"
    assert await database.read(lambda conn: conn.exec_driver_sql(pages).scalar_one()) > 0
    await database.scrub()
    assert await database.read(lambda conn: conn.exec_driver_sql(pages).scalar_one()) == 0


async def test_scrubbing_goes_past_the_pooler(postgres_url: str) -> None:
    """What it sets for itself would stay in a session that somebody else gets."""
    nowhere, direct = "postgresql://127.0.0.1:1/nowhere", SecretStr(postgres_url)
    database = PostgresDatabase(server_at(nowhere, direct_url=direct, pooled=True))
    await database.scrub()
    with pytest.raises(StorageUnavailable, match="cannot reach the database"):
        await database.write(names)
    await database.close()


async def test_nobody_is_let_in_without_a_server() -> None:
    """The line says what is wrong, and holds no password."""
    database = PostgresDatabase(server_at("postgresql://parley:hunter22@127.0.0.1:1/parley"))
    with pytest.raises(StorageUnavailable, match="cannot reach the database") as caught:
        await database.write(names)
    assert "hunter22" not in repr(caught.value)
    assert caught.value.__cause__ is None
    await database.close()


async def test_an_address_that_libpq_cannot_read_is_not_quoted() -> None:
    """What libpq says of it may hold a part of the password."""
    database = PostgresDatabase(server_at("postgresql://parley:p%zzhunter22@127.0.0.1:1/parley"))
    with pytest.raises(StorageUnavailable, match="cannot be read; write special") as caught:
        await database.write(names)
    assert "hunter22" not in repr(caught.value)
    assert caught.value.__cause__ is None
    await database.close()


def test_what_the_address_says_holds_before_our_own(postgres_url: str) -> None:
    """Its time to connect, its name for us, its options; ours are added to those."""
    told = "&connect_timeout=7&application_name=other&options=-c%20work_mem%3D7MB"
    connection = postgres.connect(server_at(postgres_url + told))
    driver = driver_of(connection)
    parameters = driver.info.get_parameters()
    assert parameters["connect_timeout"] == "7"
    assert parameters["application_name"] == "other"
    assert parameters["tcp_user_timeout"] == "10000"
    shown = [
        connection.exec_driver_sql(f"SHOW {it}").scalar() for it in ("work_mem", "lock_timeout")
    ]
    assert shown == ["7MB", "10s"]
    connection.close()
    assert driver.closed


def test_a_database_of_another_encoding_is_refused(postgres_worker: PostgresServer) -> None:
    """What people write would not fit into it."""
    how = "TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
    postgres_worker.run(f"CREATE DATABASE ascii {how}")
    with pytest.raises(
        StorageUnavailable, match="stores SQL_ASCII; create it with ENCODING 'UTF8'"
    ):
        postgres.connect(server_at(postgres_worker.url("ascii")))
    postgres_worker.drop("ascii")


async def test_a_server_that_cannot_be_written_is_unavailable(postgres_url: str) -> None:
    """Such is one that follows another one: the work waits until it is the first."""
    follows = server_at(postgres_url + "&options=-c%20default_transaction_read_only%3Don")
    database = PostgresDatabase(follows)
    with pytest.raises(StorageUnavailable, match="read-only transaction"):
        await database.write(enter)
    assert await database.read(names) == []
    await database.close()


async def test_no_more_connections_are_opened_than_the_settings_say(postgres_url: str) -> None:
    """Ten at once share two; searches have their own."""
    database = PostgresDatabase(server_at(postgres_url, connections=2))
    await asyncio.gather(*(database.write(enter, str(n)) for n in range(10)))
    assert cast("QueuePool", database._engine.pool).checkedin() <= 2
    await database.search(names)
    assert cast("QueuePool", database._searching.pool).checkedin() == 1
    await database.close()


def test_a_direct_session_goes_past_the_pooler(postgres_url: str) -> None:
    """It is a session of its own: what it locks stays locked, however long that takes."""
    pooled = server_at(
        "postgresql://127.0.0.1:1/nowhere", direct_url=SecretStr(postgres_url), pooled=True
    )
    with postgres.open_direct(pooled) as session:
        session.execute("SELECT pg_advisory_lock(1)")
        assert session.execute("SHOW statement_timeout").fetchone() == ("0",)
        direct = postgres.connect(pooled, direct=True)
        (held,) = direct.exec_driver_sql("SELECT pg_try_advisory_lock(1)").one()
        assert held is False
        direct.close()
    with pytest.raises(StorageUnavailable, match="cannot reach the database"):
        postgres.connect(pooled)


@pytest.fixture
async def proxy(postgres_worker: PostgresServer) -> AsyncIterator[DatabaseProxy]:
    """A way to the server that the test can break."""
    async with DatabaseProxy(postgres_worker.port) as proxy:
        yield proxy


@pytest.fixture
async def behind_proxy(proxy: DatabaseProxy, postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """The database, reached by way of the proxy."""
    name = conninfo_to_dict(postgres_url)["dbname"]
    opened = PostgresDatabase(server_at(proxy.url(str(name))))
    yield opened
    await opened.close()


async def test_connections_that_were_reset_are_made_anew(
    proxy: DatabaseProxy, behind_proxy: PostgresDatabase
) -> None:
    """Whatever libpq says of their state: nobody notices but by the time that it takes."""
    for _ in range(10):
        await asyncio.gather(*(behind_proxy.read(names) for _ in range(12)))
        proxy.cut()
    assert await behind_proxy.read(names) == []


@pytest.mark.parametrize(("loss", "stored"), [("request", []), ("answer", ["Ada"])])
async def test_a_commit_whose_answer_is_lost_is_in_doubt(
    proxy: DatabaseProxy, behind_proxy: PostgresDatabase, loss: Loss, stored: list[str]
) -> None:
    """Nobody knows whether it is stored: the caller is told so, and nothing runs again."""
    lost = proxy.lose_commit(loss)
    with pytest.raises(CommitUnknown):
        await behind_proxy.write(enter)
    await lost
    assert await behind_proxy.read(names) == stored


@pytest.mark.thorough
async def test_a_connection_that_has_fallen_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, proxy: DatabaseProxy, postgres_url: str
) -> None:
    """Its other end is there for the kernel, and never answers: the thread goes on with another."""
    monkeypatch.setattr(postgres, "TIMEOUTS_MS", {"statement_timeout": 100})
    monkeypatch.setattr(postgres, "SILENCE_S", 1.0)
    name = conninfo_to_dict(postgres_url)["dbname"]
    database = PostgresDatabase(server_at(proxy.url(str(name)), connections=2))
    await asyncio.gather(*(database.read(names) for _ in range(6)))
    proxy.silence()
    assert await asyncio.gather(*(database.read(names) for _ in range(6))) == [[]] * 6
    await database.close()


async def test_the_limits_hold_in_each_session(database: PostgresDatabase) -> None:
    """Those of transactions, and what tells the server of a host that is gone."""
    settings = {
        "statement_timeout": "30s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "2s",
    }

    def shown(conn: Connection) -> dict[str, str]:
        return {name: str(conn.exec_driver_sql(f"SHOW {name}").scalar_one()) for name in settings}

    assert await database.read(shown) == settings


SAID = {
    "the database system is starting up": True,
    "the database system is not yet accepting connections": True,
    "the database system is in recovery mode": True,
    "the database system is shutting down": True,
    'password authentication failed for user "parley"': False,
    'database "parley" does not exist': False,
    'role "parley" does not exist': False,
    'no pg_hba.conf entry for host "10.0.0.1"': False,
    "sorry, too many clients already": False,
}


@asynccontextmanager
async def refusing(said: str) -> AsyncIterator[DatabaseServer]:
    """A server that ends each connection with these words, as PostgreSQL does while it starts."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = b"SFATAL\0VFATAL\0C57P03\0M" + said.encode() + b"\0\0"
        head = await reader.readexactly(8)
        if head[4:] in {b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"}:
            writer.write(b"N")
            head = await reader.readexactly(8)
        await reader.readexactly(int.from_bytes(head[:4]) - 8)
        writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield server_at(f"postgresql://parley@127.0.0.1:{port}/parley?gssencmode=disable")


@pytest.mark.parametrize("said", SAID)
async def test_a_server_that_is_starting_is_told_from_one_that_refuses(said: str) -> None:
    """The one takes connections soon, the other never will."""
    async with refusing(said) as server:
        reason = await asyncio.to_thread(postgres.why_not_started, server)
    assert (reason is not None and said in reason) == SAID[said]


@pytest.mark.parametrize("place", ["127.0.0.1:1", "%2Fnowhere:1"])
def test_a_server_that_does_not_listen_is_about_to_start(place: str) -> None:
    """On a machine that boots Parley may be the first."""
    assert postgres.why_not_started(server_at(f"postgresql://parley@{place}/parley"))


async def test_a_start_waits_for_a_server_that_is_starting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once; what never starts is the one line of before."""
    monkeypatch.setattr(migrations, "AWAITED_EVERY_S", 0.0)
    answers = iter(["starting up", "starting up", None])
    monkeypatch.setattr(postgres, "why_not_started", lambda _: next(answers))
    with capture_logs() as lines:
        async with open_locked(server_at(postgres_url)):
            assert next(answers, "none left") == "none left"
    assert [each["event"] for each in lines].count("database_awaited") == 1
    monkeypatch.setattr(migrations, "STARTS_WITHIN_S", 0.0)
    with pytest.raises(StorageUnavailable, match="cannot reach the database"):
        async with open_locked(server_at("postgresql://parley@127.0.0.1:1/parley")):
            raise AssertionError("it is open")


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (psycopg.InternalError("received 2 results from command 'ROLLBACK'"), True),
        (psycopg.OperationalError("the connection is lost"), True),
        (psycopg.errors.UniqueViolation("duplicate key"), False),
    ],
)
def test_a_session_that_is_out_of_step_is_lost(error: psycopg.Error, is_lost: bool) -> None:
    """Psycopg says so without a code; what the server says has one."""
    context = Mock(original_exception=error, is_disconnect=False)
    postgres._note_loss(context)
    assert context.is_disconnect is is_lost
