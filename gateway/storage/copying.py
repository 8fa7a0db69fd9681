"""Copies a file of SQLite into an empty database of PostgreSQL: `parley db copy`.

Table by table, each in the order of its keys, in batches of so many bytes. A batch and the note of
how far the copy is are one transaction of the target: a copy that was killed at any moment goes on
behind its last batch. Until it is whole the target has no revision that any version of Parley
knows, so that none starts on it.

In the end all tables of both are read once more, and their digests compared; then the search index
is made from the messages that the source's index holds, and ids go on where the source's were.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table
from sqlalchemy.exc import DBAPIError

from agent.messages import decode
from gateway.errors import StorageUnavailable
from gateway.storage import bulk, migrations
from gateway.storage.bulk import Row, SourceFile, TargetServer
from gateway.storage.migrations import COPIED_BY, UNFINISHED, schema_revision
from gateway.storage.schema import (
    REVISION,
    message,
    replica,
    search_row,
    slots_sql,
    spent_slot,
)
from gateway.storage.search import index
from gateway.storage.search.terms import terms_of

BATCH_BYTES = 4 << 20
"""Of one transaction, about; one row may have more."""
BATCH_ROWS = 5_000
INDEXED_ROWS = 200
"""Messages whose terms are entered in one transaction."""
TOLD_EVERY_S = 0.5
_INDEX = "search index"
_COMPARED = "comparison"
_SEEDED = (replica,)
"""Tables in which a database has rows though nothing was stored in it."""

_progress = Table(
    "copy_progress",
    MetaData(),
    Column("part", Text, primary_key=True),
    Column("position", Text, nullable=False),  # JSON of the last key; "" for what is done
    Column("row_count", BigInteger, nullable=False),
)
_SOURCE = "source"
_revisions = sql_table("alembic_version", sql_column("version_num"))


class CopyStep(NamedTuple):
    """How far a copy is.

    Attributes:
        part: Which table, or what else is done.
        rows: Of it, so far.
        total: Of it, in all.
    """

    part: str
    rows: int
    total: int


class TableDigest(NamedTuple):
    """What a table holds: its rows, and the SHA-256 of all of them in the order of their keys."""

    table: str
    rows: int
    sha256: str


class Tell(Protocol):
    """Is told how far a copy is."""

    def __call__(self, step: CopyStep, /) -> object:
        """Take a step."""
        ...


@dataclass
class Copy:
    """A copy that is begun, or gone on with.

    Attributes:
        batch_bytes: What one transaction enters, about.
    """

    source: SourceFile
    target: TargetServer
    tell: Tell
    batch_bytes: int = BATCH_BYTES
    _done: dict[str, tuple[str, int]] = field(default_factory=dict)

    def run(self) -> list[TableDigest]:
        """Copy everything; returns the digests, which are those of both sides.

        Raises:
            StorageUnavailable: The schemas differ, the target holds something else, or the copy
                does not equal the source.
            DatabaseTooNew: The target was written by a newer version.
        """
        try:
            self._require_source()
            self._begin()
            for table in bulk.tables():
                self._copy_table(table)
            digests = self._compare()
            self._index()
            self._finish()
        except DBAPIError as exc:
            # Its first line: those below may quote what people wrote.
            raise StorageUnavailable(f"cannot copy: {str(exc.orig).splitlines()[0]}") from None
        return digests

    def _require_source(self) -> None:
        found = schema_revision(self.source.conn)
        migrations.refuse_newer(self.source.conn)
        if found != REVISION:
            raise StorageUnavailable(
                f"{self.source.name} has schema revision {found}, this version of Parley has"
                f" {REVISION}: migrate it first (`parley db migrate`)"
            )

    def _begin(self) -> None:
        """Mark an empty target as an unfinished copy, or find out how far that one is."""
        source, target = self.source.fingerprint(), self.target
        begun = orjson.dumps(list(source)).decode()
        with target.transaction():
            found = schema_revision(target.conn)
            if found != UNFINISHED:
                self._require_empty(found)
                _mark_unfinished(
                    target.conn,
                    begun,
                    f"parley db copy sqlite:///{Path(self.source.name).absolute()} TARGET",
                )
            rows = target.conn.execute(select(_progress)).all()
        self._done = {row.part: (row.position, row.row_count) for row in rows}
        before = self._done.pop(_SOURCE)[0]
        if before != begun:
            name = orjson.loads(before)[0]
            raise StorageUnavailable(
                f"{target.name} holds a part of a copy of {name}"
                + (", which was written to since" if name == source.name else "")
                + ": empty it, and copy again"
            )

    def _require_empty(self, found: str | None) -> None:
        """Migrate a target in which there is nothing yet."""
        target = self.target
        if found is None:
            if inspect(target.conn).get_table_names():
                raise StorageUnavailable(f"{target.name} belongs to another program")
            migrations.upgrade(target.conn)
            return
        migrations.refuse_newer(target.conn)
        if found != REVISION:
            raise StorageUnavailable(
                f"{target.name} has schema revision {found}, this version of Parley has"
                f" {REVISION}: migrate it first (`parley db migrate`), or name an empty database"
            )
        for table in bulk.tables():
            one = target.conn.execute(select(*table.primary_key.columns).limit(1)).first()
            if one is not None and table not in _SEEDED:
                raise StorageUnavailable(
                    f"{target.name} is not empty (table {table.name}): a copy goes into an empty"
                    " database"
                )

    def _copy_table(self, table: Table) -> None:
        position, count = self._done.get(table.name, ("[]", 0))
        if not position:
            return
        total = _count(self.source, table)
        after = tuple(orjson.loads(position))
        keys = bulk.key_of(table)
        for rows in _batches(self.source.rows(table, after or None), self.batch_bytes):
            count += len(rows)
            last = orjson.dumps([rows[-1][n] for n in keys]).decode()
            with self.target.transaction():
                self.target.enter(table, rows)
                self._note(table.name, last, count)
            self.tell(CopyStep(table.name, count, total))
        self._note_alone(table.name, "", count)
        self._done[table.name] = ("", count)

    def _note(self, part: str, position: str, count: int) -> None:
        conn, here = self.target.conn, _progress.c.part == part
        values = {"position": position, "row_count": count}
        if not conn.execute(update(_progress).where(here).values(values)).rowcount:
            conn.execute(insert(_progress).values(part=part, **values))

    def _note_alone(self, part: str, position: str, count: int) -> None:
        with self.target.transaction():
            self._note(part, position, count)

    def _compare(self) -> list[TableDigest]:
        """Read both sides once more.

        Raises:
            StorageUnavailable: They differ.
        """
        digests, differing = [], []
        for table in bulk.tables():
            here = self._digest(self.source.rows(table), table)
            if self._done.get(_COMPARED) is None and here != self._digest(
                self.target.rows(table), table
            ):
                differing.append(table.name)
            digests.append(here)
        if differing:
            raise StorageUnavailable(
                f"the copy differs from its source in {', '.join(differing)}: was it written to"
                f" meanwhile? Empty {self.target.name}, and copy again"
            )
        self._note_alone(_COMPARED, "", len(digests))
        return digests

    def _digest(self, rows: Iterable[Row], table: Table) -> TableDigest:
        told = time.monotonic()
        digest, count = hashlib.sha256(), 0
        total = self._done.get(table.name, ("", 0))[1]
        for row in rows:
            digest.update(orjson.dumps(row, default=bytes.hex, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
            if count % BATCH_ROWS == 0 and time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                self.tell(CopyStep(f"comparing {table.name}", count, total))
        return TableDigest(table.name, count, digest.hexdigest())

    def _index(self) -> None:
        """Make the search index from what the source's holds; one of other terms is fed anew."""
        position, count = self._done.get(_INDEX, ("[0, 0]", 0))
        if not position:
            return
        source, target = self.source, self.target
        if not index.is_current(source.conn):
            with target.transaction():
                index.clear(target.conn)
                self._note(_INDEX, "", 0)
            return
        total = _count(source, search_row)
        after = orjson.loads(position)
        with target.transaction():
            if not count:
                index.empty(target.conn)
        while rows := _indexed_messages(target, after):
            after, count = list(rows[-1][:2]), count + len(rows)
            with target.transaction():
                for conversation, of_one in groupby(rows, key=lambda row: row.conversation):
                    terms = {row.seq: terms_of(decode(row.body)) for row in of_one}
                    index.enter_terms(target.conn, conversation, terms)
                self._note(_INDEX, orjson.dumps(after).decode(), count)
            self.tell(CopyStep(_INDEX, count, total))
        self._note_alone(_INDEX, "", count)

    def _finish(self) -> None:
        """Have the target be a database like any other."""
        target = self.target
        target.settle()
        with target.transaction():
            target.conn.execute(delete(spent_slot))
            target.conn.execute(text(slots_sql(target.conn.dialect.name)))
            for table in filter(bulk.gives_ids, bulk.tables()):
                given = target.conn.scalar(select(func.max(table.c.id))) or 0
                target.count_from(table, max(given, self.source.newest_id(table)))
            _progress.drop(target.conn)
            target.conn.execute(update(_revisions).values(version_num=REVISION))


def _mark_unfinished(conn: Connection, source: str, command: str) -> None:
    for table in _SEEDED:
        conn.execute(delete(table))
    _progress.create(conn)
    for part, position in ((_SOURCE, source), (COPIED_BY, command)):
        conn.execute(insert(_progress).values(part=part, position=position, row_count=0))
    conn.execute(update(_revisions).values(version_num=UNFINISHED))


def _count(source: SourceFile, table: Table) -> int:
    return int(source.conn.scalar(select(func.count()).select_from(table)) or 0)


def _batches(rows: Iterator[Row], most_bytes: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += bulk.weight(row)
        if size >= most_bytes or len(batch) == BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _indexed_messages(target: TargetServer, after: Sequence[int]) -> Sequence[Any]:
    """Return the next messages that the index is to hold, in order."""
    same = (search_row.c.conversation == message.c.conversation) & (
        search_row.c.seq == message.c.seq
    )
    behind = tuple_(message.c.conversation, message.c.seq) > tuple(after)
    with target.transaction():
        found = target.conn.execute(
            select(message.c.conversation, message.c.seq, message.c.body)
            .join(search_row, same)
            .where(behind)
            .order_by(message.c.conversation, message.c.seq)
            .limit(INDEXED_ROWS)
        )
        return found.all()
