"""A connection to PostgreSQL: how statements go there, how it is opened, how it is found dead.

What statements keep compiled (statements.py) is prepared by each connection and goes to libpq
directly, a third of what psycopg takes and a sixth of asyncpg (decision 250). All else goes by way
of SQLAlchemy and psycopg, on the same connection.

What nobody waits for is not sent by itself: BEGIN goes with the first statement of a transaction, a
write with the next statement that is read, or with the COMMIT (decision 325); the COMMIT with the
last statement, where a function says which one that is (`last`, decision 440). So does a read whose
answer decides nothing yet (`later`, decision 478).
"""

import os
import select
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, socket
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrDumperUnknown
from pydantic import SecretStr
from sqlalchemy import Engine, NullPool, TextClause, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from gateway.errors import CommitUnknown, StorageUnavailable
from gateway.storage.database import DatabaseServer
from gateway.storage.statements import KEPT, Forms, PreparedConnection, Rows, compiled_once

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUTS_MS = {
    "statement_timeout": 30_000,
    "lock_timeout": 10_000,
    # What a frozen replica has locked is free before its lease of 12 s is over, also where its six
    # transactions have waited for each other: each is idle only once it has got its lock.
    "idle_in_transaction_session_timeout": 2_000,
}
_SESSION = {
    **TIMEOUTS_MS,
    # All statements are short: to start a worker, or to compile, takes longer than they do.
    "max_parallel_workers_per_gather": 0,
    "jit": "off",
}
CONNECTING = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    # While an answer is awaited nothing is unacknowledged: without these a host that is gone then
    # would go unnoticed for two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "parley",
}
"""Of libpq, unless the URL says otherwise; in seconds, `tcp_user_timeout` in milliseconds."""
KEPT_ALIVE = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
"""Of the server's end: the sessions of a replica whose host is gone end after a minute."""
SILENCE_S = 5.0
"""How much longer than its own limit a server may take to say that a statement has reached it."""
ENCODING = "UTF8"
WRITE = "BEGIN"
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""One snapshot for all statements."""
COMMIT = "COMMIT"
MOST_UNSENT = 200
"""Statements; a bound for what an import of many rows keeps in memory."""
_REPLACEMENT = "\ufffd"
_NUL = "\0"


def text_of(value: str) -> str:
    """Return a text as PostgreSQL can store it: it has no NUL, which becomes U+FFFD.

    The one place where that is done; what comes from platforms has none (`storable`).
    """
    return value.replace(_NUL, _REPLACEMENT) if _NUL in value else value


class _TextDumper(StrDumperUnknown):
    """Texts of statements that go by way of psycopg."""

    @override
    def dump(self, obj: str) -> Any:
        return super().dump(text_of(obj))


class _Number(NumericLoader):
    """Sums of whole numbers come as `numeric`; no column of ours is one."""

    @override
    def load(self, data: Any) -> Any:
        return _plain(super().load(data))


class _BinaryNumber(NumericBinaryLoader):
    @override
    def load(self, data: Any) -> Any:
        return _plain(super().load(data))


def _plain(number: Any) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


_DUMPED: dict[type, Any] = {
    type(None): {None: None}.get,
    bool: {True: b"t", False: b"f"}.get,
    int: b"%d".__mod__,
    float: b"%r".__mod__,
    str: lambda value: (text_of(value) if _NUL in value else value).encode(),
    bytes: lambda value: b"\\x" + value.hex().encode(),
}
"""How values are written, by their type; the statement says what PostgreSQL is to take them for.

A turn has 150 of them: what is written in C costs a third of a function of Python's."""


class _Prepared:
    """A statement as libpq takes it: its text, the order of its values, its rows with names.

    Attributes:
        is_read: It answers with rows.
    """

    def __init__(self, compiled: Any, *, is_read: bool) -> None:
        self.text: str = compiled.string
        self.is_read = is_read
        self._fixed = {
            key: each.effective_value for key, each in compiled.binds.items() if not each.required
        }
        self._places: list[str] = compiled.positiontup
        self.make_row: Any = None

    def bound(self, row: Mapping[str, Any]) -> list[bytes | None]:
        """Return the values of a row, as the statement has places."""
        values = {**self._fixed, **row} if self._fixed else row
        return [_DUMPED[type(value)](value) for value in map(values.__getitem__, self._places)]


class Awaited:
    """What becomes of statements, the same one for each of several rows: waited for where asked."""

    def __init__(self, conn: "PostgresConnection", form: _Prepared, statements: int) -> None:
        self._conn, self._form = conn, form
        self._left = statements
        self._changed = 0
        self._newest: Any = None

    def take(self, result: Any) -> None:
        """Take what libpq has got for the next one of them."""
        self._newest = result
        self._changed += result.command_tuples or 0
        self._left -= 1

    @property
    def rowcount(self) -> int:
        """How many rows all of them have changed."""
        if self._left:
            self._conn.send()
        return self._changed

    def all(self) -> Rows:
        """Return the rows of the newest one."""
        changed, result, form = self.rowcount, self._newest, self._form
        if form.make_row is None:
            names = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
            # Where two tables have a column of the same name the first one keeps it.
            kind: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            form.make_row = kind._make
        return Rows(self._conn.loaded(result, form.make_row), changed)

    def one(self) -> Any:
        """Return the only row."""
        return self.all().one()


class _Unsent(NamedTuple):
    """A statement that is still to be sent; without a form it is not prepared.

    Attributes:
        types: Of the values, by their oids; None where the statement tells.
        formats: Of the values; None for texts.
    """

    text: str
    form: _Prepared | None = None
    values: Sequence[Any] | None = None
    awaited: Awaited | None = None
    types: Sequence[int] | None = None
    formats: Sequence[Format] | None = None


_COMMIT = _Unsent(COMMIT)


class PostgresConnection(PreparedConnection):
    """A connection to PostgreSQL, outside of transactions but for those of `transaction`.

    Args:
        engine: From `connect`.
        pooled: Whether it goes by way of a pooler (PgBouncer in transaction mode), which gives
            each transaction another session: nothing is prepared, all is set anew.
    """

    kept_forms: Forms = KEPT["postgresql"]

    def __init__(self, engine: Engine, *, pooled: bool = False) -> None:
        super().__init__(engine)
        self.driver = cast("psycopg.Connection[Any]", self.connection.driver_connection)
        self._libpq = self.driver.pgconn
        self._rows = Transformer(self.driver)
        self._prepared: dict[_Prepared, bytes] = {}
        self._unsent: list[_Unsent] = []
        self._only_begun: list[_Unsent] = []
        self._may_wait = self._is_last = self._is_later = False
        self._is_broken = False
        self._asked_at: float | None = None
        self._pooled = pooled
        limits = [f"SET LOCAL {name} = {value}" for name, value in _SESSION.items()]
        self._begun_with = [_Unsent(each) for each in limits if pooled]

    @property
    def is_lost(self) -> bool:
        """Whether the server, or the way to it, is gone."""
        return self._is_broken or bool(self._libpq.status != ConnStatus.OK)

    def end_if_silent(self) -> None:
        """End the connection where the server should have answered by itself long ago.

        Called on another thread than the one that waits, and that learns of it by this. Nothing
        else would tell it: the other end may be there for the kernel, as that of a balancer is.
        """
        limit_s = TIMEOUTS_MS["statement_timeout"] / 1000 + SILENCE_S
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() - asked_at <= limit_s:
            return
        _shut(self.driver)

    @contextmanager
    def transaction(self, begin: str = WRITE) -> Iterator[None]:
        """Commit what is done meanwhile, or roll it back where an exception ends it.

        Raises:
            CommitUnknown: The answer to the COMMIT was lost.
        """
        self._may_wait = True
        self._only_begun = [_Unsent(begin), *self._begun_with]
        self._unsent = [*self._only_begun]
        try:
            yield
            # Where nothing was asked there is nothing to commit.
            if self._unsent != self._only_begun:
                self._commit()
        except BaseException:
            with suppress(DBAPIError):
                self._roll_back()
            raise
        finally:
            self._unsent = []
            self._may_wait = False
            self._asked_at = None

    def _commit(self) -> None:
        """Commit, together with what is still to be sent.

        What is executed after that is a transaction of its own.
        """
        self._unsent.append(_COMMIT)
        try:
            answers = self.send()
        except DBAPIError as exc:
            if self.is_lost:
                raise CommitUnknown("the answer to a COMMIT was lost") from exc
            raise
        if answers.pop().command_status != COMMIT.encode():
            raise StorageUnavailable("the database has rolled back what was to be committed")
        self._unsent = [*self._only_begun]

    def _roll_back(self) -> None:
        if self._unsent[: len(self._only_begun)] != self._only_begun:
            self._unsent = [_Unsent("ROLLBACK")]
            self.send()

    @override
    def form_of(self, statement: Any, names: tuple[str, ...]) -> _Prepared | None:
        compiled = compiled_once(statement, names, _DIRECT)
        is_text = isinstance(statement, TextClause)
        is_read = not is_text and bool(len(statement.exported_columns))
        return None if compiled is None else _Prepared(compiled, is_read=is_read)

    @override
    def run(self, form: Any, rows: list[Any]) -> Any:
        awaited = Awaited(self, form, len(rows))
        for row in rows:
            if len(self._unsent) >= MOST_UNSENT:
                self.send()
            self._unsent.append(_Unsent(form.text, form, form.bound(row), awaited))
        if self._is_last:
            self._commit()
        elif not self._may_wait:
            self.send()
        return awaited.all() if form.is_read and not self._is_later else awaited

    def ask(self, statement: str, values: Sequence[Any]) -> Rows:
        """Run what `statements.asked` says: planned for these values, with what waits before it."""
        first, *rest = statement.split("?")
        text = first + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))
        dumped = self._rows.dump_sequence(values, [PyFormat.AUTO] * len(values))
        types, formats = self._rows.types, self._rows.formats
        self._unsent.append(_Unsent(text, values=dumped, types=types, formats=formats))
        return Rows(self.loaded(self.send()[-1], tuple))

    def loaded(self, result: Any, make_row: Any) -> list[Any]:
        """Return the rows that libpq has got."""
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, make_row)

    @override
    def execute_last(self, statement: Any, parameters: Any) -> Any:
        self._is_last = self._may_wait
        try:
            return self.execute(statement, parameters)
        finally:
            self._is_last = False

    @override
    def execute_later(self, statement: Any, parameters: Any) -> Any:
        self._is_later = True
        try:
            return self.execute(statement, parameters)
        finally:
            self._is_later = False

    @override
    def execute_otherwise(self, statement: Any, parameters: Any, **options: Any) -> Any:
        self.send()
        self._asked_at = time.monotonic()
        return super().execute_otherwise(statement, parameters, **options)

    @override
    def exec_driver_sql(self, statement: Any, *args: Any, **options: Any) -> Any:
        self.send()
        self._asked_at = time.monotonic()
        return super().exec_driver_sql(statement, *args, **options)

    def in_turn(self) -> "psycopg.Connection[Any]":
        """Return the driver's connection for what comes behind all that was executed here."""
        self.send()
        return self.driver

    def send(self) -> list[Any]:
        """Send what is still to be sent, in one go, and return what libpq has got for it.

        Raises:
            DBAPIError: As SQLAlchemy raises it, of the first statement that failed; those behind
                it were passed over.
        """
        if not self._unsent:
            return []
        self._asked_at = time.monotonic()
        unsent, self._unsent = self._unsent, []
        results = self._exchanged(unsent)
        for each, result in zip(unsent, results, strict=True):
            if result is None or result.status not in _DONE:
                self._check(each.text, result)
            if each.awaited is not None:
                each.awaited.take(result)
        return results

    def _exchanged(self, unsent: list[_Unsent]) -> list[Any]:
        known, name_of = self._prepared, self._name_of
        forms = [each.form for each in unsent]
        names = [None if each is None else known.get(each) or name_of(each) for each in forms]
        libpq = self._libpq
        try:
            libpq.enter_pipeline_mode()
            for each, name in zip(unsent, names, strict=True):
                if name is None:
                    text = each.text.encode()
                    how = (each.types, each.formats, Format.BINARY)
                    libpq.send_query_params(text, each.values, *how)
                else:
                    libpq.send_query_prepared(name, each.values, None, Format.BINARY)
            libpq.pipeline_sync()
            while libpq.flush():
                self._wait(select.POLLIN | select.POLLOUT)
            # After each answer comes a None, and after all of them that they have ended. None is
            # fetched before it is there: libpq would wait for it with the interpreter held.
            results = [(self._answer(), self._answer())[0] for _ in unsent]
            self._answer()
            libpq.exit_pipeline_mode()
        except psycopg.Error as exc:
            # What libpq says by itself, and not with a result, is about the connection.
            self._is_broken = True
            self._fail(unsent[-1].text, exc)
        return results

    def _name_of(self, form: _Prepared) -> bytes | None:
        """Prepare a statement, and return the name that it has then; None behind a pooler."""
        if self._pooled:
            return None
        name = b"parley_%d" % len(self._prepared)
        try:
            self._check(form.text, self._libpq.prepare(name, form.text.encode()))
        except psycopg.Error as exc:
            self._fail(form.text, exc)
        self._prepared[form] = name
        return name

    def _answer(self) -> Any:
        while self._libpq.is_busy():
            self._wait(select.POLLIN)
        return self._libpq.get_result()

    def _wait(self, what: int) -> None:
        # Its socket as it is now: libpq may have closed it, and the number be another one's.
        waiting = select.poll()
        waiting.register(self._libpq.socket, what)
        waiting.poll()
        self._libpq.consume_input()

    def _check(self, statement: str, result: Any) -> None:
        if result is None:
            self._fail(statement, psycopg.OperationalError("no answer"))
        if result.status not in _DONE:
            # An error without a code is libpq's own. It could not write: it says so, at this
            # statement and at all that follow, and calls the connection a good one all the same.
            # So it does where whoever answers says that this was the last word: a server that
            # ends, or PgBouncer whose server has ended.
            code, severity = map(result.error_field, _ERROR)
            self._is_broken |= code is None or severity in _LAST_WORDS
            self._fail(statement, psycopg.errors.error_from_result(result))

    def _fail(self, statement: str, cause: psycopg.Error) -> NoReturn:
        """Raise DBAPIError as SQLAlchemy does."""
        if self.is_lost:
            cause = psycopg.OperationalError("the connection to the database was lost")
        # Of what the driver raises it makes its own class; else it would leave it as it is.
        raise cast(
            "DBAPIError",
            DBAPIError.instance(statement, None, cause, psycopg.Error, hide_parameters=True),
        )


_DONE = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_ERROR = (DiagnosticField.SQLSTATE, DiagnosticField.SEVERITY)
_STARTING = (
    "the database system is",  # starting up, not yet accepting connections, shutting down, …
    "Connection refused",
    "No such file or directory",
)
"""What a server says that will take connections soon, and libpq where nobody listens yet."""
_LAST_WORDS = frozenset({b"FATAL", b"PANIC"})
"""Source: postgresql.org/docs/18/runtime-config-logging.html, Message Severity Levels."""
_DIRECT = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
"""Writes statements as libpq takes them."""


def connect(server: DatabaseServer, *, direct: bool = False) -> PostgresConnection:
    """Open a connection; a `direct` one goes past the pooler.

    Raises:
        StorageUnavailable: The server does not let us in, does not answer, or stores no UTF-8.
    """
    pooled = server.pooled and not direct
    opened: list[psycopg.Connection[Any]] = []

    def opening() -> "psycopg.Connection[Any]":
        opened.append(_open(server.direct if direct else server.url, pooled=pooled))
        limit.start()
        return opened[0]

    # SQLAlchemy asks a server for its version first: nobody watches this connection yet.
    limit = threading.Timer(SILENCE_S, lambda: _shut(opened[0]))
    limit.daemon = True
    engine = create_engine(
        "postgresql+psycopg://",
        creator=opening,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        hide_parameters=True,
        # What it would ask the server for is of types that we have not.
        use_native_hstore=False,
    )
    try:
        return PostgresConnection(engine, pooled=pooled)
    except DBAPIError as exc:
        raise StorageUnavailable(f"cannot reach the database: {reason(exc)}") from None
    finally:
        limit.cancel()


def why_not_started(server: DatabaseServer) -> str | None:
    """Return why a server takes no connections yet; None if it does, or refuses this one."""
    try:
        open_direct(server).close()
    except StorageUnavailable as exc:
        return str(exc) if any(words in str(exc) for words in _STARTING) else None
    return None


@contextmanager
def ended_if_late(
    driver: "psycopg.Connection[Any]", limit_s: float | None = None
) -> Iterator[None]:
    """End a connection that nobody watches where what is done meanwhile takes longer than it may.

    For a transaction or two, and not for each: it takes a thread. Without a limit they have as long
    as a statement may take.
    """
    limit_s = limit_s or TIMEOUTS_MS["statement_timeout"] / 1000 + SILENCE_S
    limit = threading.Timer(limit_s, lambda: _shut(driver))
    limit.daemon = True
    limit.start()
    try:
        yield
    finally:
        limit.cancel()


def _shut(driver: "psycopg.Connection[Any]") -> None:
    """Have whoever waits for an answer on a connection learn that there will be none."""
    with suppress(OSError, psycopg.Error), socket(fileno=os.dup(driver.pgconn.socket)) as its:
        its.shutdown(SHUT_RDWR)


def open_direct(server: DatabaseServer) -> "psycopg.Connection[Any]":
    """Open a session of one's own, for what listens, or holds a lock as long as it lives.

    Each of its statements is a transaction, and may take as long as it takes.

    Raises:
        StorageUnavailable: As `connect` does.
    """
    try:
        return psycopg.connect(_conninfo(server.direct), autocommit=True)
    except psycopg.Error as exc:
        raise StorageUnavailable(f"cannot reach the database: {_first_line(exc)}") from None


def _open(url: SecretStr, *, pooled: bool) -> "psycopg.Connection[Any]":
    limits = [KEPT_ALIVE, *(f"-c {name}={value}" for name, value in _SESSION.items())]
    driver = psycopg.connect(
        _conninfo(url, "" if pooled else " ".join(limits)),
        autocommit=True,
        # A plan that is kept knows no values: a search's would read all messages for each word.
        prepare_threshold=None,
    )
    if (found := driver.info.parameter_status("server_encoding")) != ENCODING:
        driver.close()
        raise StorageUnavailable(
            f"the database stores {found}; create it with ENCODING '{ENCODING}'"
        )
    driver.adapters.register_dumper(str, _TextDumper)
    for loader in (_Number, _BinaryNumber):
        driver.adapters.register_loader("numeric", loader)
    return driver


def _conninfo(url: SecretStr, limits: str = "") -> str:
    """Return how libpq is told of a server: what the URL says, then what we say.

    Raises:
        StorageUnavailable: libpq cannot read the URL.
    """
    try:
        told = conninfo_to_dict(url.get_secret_value())
    except psycopg.Error:
        # Not `from`: what libpq says may quote a part of the password.
        raise StorageUnavailable(
            "the URL of the database cannot be read; write special characters of the password as"
            " %XX (`@` is %40)"
        ) from None
    options = " ".join(filter(None, (limits, str(told.pop("options", "") or ""))))
    said: Any = {**CONNECTING, **told, "options": options, "client_encoding": ENCODING}
    return make_conninfo(**said)


@contextmanager
def told_as_unavailable(what: str) -> Iterator[None]:
    """Raise StorageUnavailable where the server refuses what is done meanwhile.

    Args:
        what: That, as in "cannot read the database".
    """
    try:
        yield
    except DBAPIError as exc:
        raise StorageUnavailable(f"cannot {what} the database: {reason(exc)}") from exc


def reason(exc: DBAPIError) -> str:
    """Return what the server says, in its first line: those below may quote what people wrote."""
    return _first_line(exc.orig)


def _first_line(error: BaseException | None) -> str:
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return said or (str(error).splitlines() or [""])[0]
