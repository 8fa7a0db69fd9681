"""Whole tables, read and entered on either engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.errors import SettingsError, StorageUnavailable
from gateway.storage import bulk
from gateway.storage.bulk import Side
from gateway.storage.schema import alias, attachment_part, cursor, member, message
from tests.support.every_table import fill
from tests.support.storage import Store

NAMES = ("a", "B", "b", "Ä", "z", "_", "漢", "é", "Z")
"""In another order in each language, and by their bytes in one only."""


@pytest.fixture(params=["sqlite", "postgres"])
def side(request: pytest.FixtureRequest, database_file: Path) -> Iterator[Side]:
    """A migrated and empty database of either engine."""
    on_sqlite = request.param == "sqlite"
    url = f"sqlite:///{database_file}" if on_sqlite else request.getfixturevalue("postgres_url")
    with bulk.side(url, Path(), write=True) as opened:
        yield opened


def test_texts_are_ordered_by_their_bytes(side: Side) -> None:
    """Also behind a key, whatever the language of the database is."""
    with side.transaction():
        side.enter(cursor, [(name, n) for n, name in enumerate(NAMES)])
    in_order = sorted(NAMES, key=str.encode)
    assert [row[0] for row in side.rows(cursor)] == in_order
    assert [row[0] for row in side.rows(cursor, ("b",))] == in_order[in_order.index("b") + 1 :]


def test_keys_of_several_columns_are_in_order(side: Side) -> None:
    """The first column decides, then the second."""
    rows = [("a", "y"), ("b", "x"), ("a", "z")]
    with side.transaction():
        side.enter(member, [(*key, "Ada", "member", "code", 1.5) for key in rows])
    assert [row[:2] for row in side.rows(member)] == sorted(rows)
    assert [row[:2] for row in side.rows(member, ("a", "y"))] == [("a", "z"), ("b", "x")]


def test_a_large_row_is_read_alone(side: Side) -> None:
    """What is read at once is bounded: each comes whole, and in its turn."""
    with side.transaction():
        fill(side.conn, 3)
    large = [(1, n, bytes([n]) * 2_000_000) for n in range(10, 16)]
    with side.transaction():
        side.enter(attachment_part, large)
    assert list(side.rows(attachment_part, (1, 9)))[: len(large)] == large


def test_a_row_that_is_refused_names_its_table(side: Side) -> None:
    """And not what people wrote."""
    row = ("my secret", "x")
    with pytest.raises(StorageUnavailable, match=r"^cursor: ") as caught, side.transaction():
        side.enter(cursor, [row, row])
    assert "my secret" not in str(caught.value)


def test_nuls_come_as_postgresql_has_them(database_file: Path) -> None:
    """The canonical form of a text is the same on both engines."""
    store = Store(database_file)
    store.run(lambda conn: conn.execute(insert(cursor).values(source="a\0b", position=1)) and None)
    store.close()
    with bulk.side(f"sqlite:///{database_file}", Path(), write=False) as side:
        assert list(side.rows(cursor)) == [("a\ufffdb", 1)]


@pytest.mark.parametrize(
    "url", ["mysql://me@there/db", "parley.db", "sqlite://", "sqlite:///", "postgresql:/x", ""]
)
def test_other_urls_are_refused(url: str) -> None:
    """The text says what a URL is, and does not repeat one, which may have a password."""
    with pytest.raises(SettingsError, match="sqlite:///FILE") as caught:
        bulk.side(url, Path(), write=False)
    assert "me@there" not in str(caught.value)


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A source has to exist."""
    there_is_none = pytest.raises(StorageUnavailable, match="there is no database")
    with there_is_none, bulk.side("sqlite:///none.db", tmp_path, write=False):
        pass
    assert not (tmp_path / "none.db").exists()


def test_passwords_are_not_shown() -> None:
    """A database is named by host, port and name."""
    url = "postgresql://me:secret@there:5433/parley?sslmode=require"
    assert bulk.shown(url) == "postgresql://there:5433/parley"


def test_a_source_is_not_written(postgres_url: str) -> None:
    """The server itself refuses it."""
    refused = pytest.raises(StorageUnavailable, match="read-only")
    with bulk.side(postgres_url, Path(), write=False) as side, refused, side.transaction():
        side.enter(cursor, [("a", 1)])


def test_what_refers_comes_behind_what_is_referred_to() -> None:
    """In this order references hold at any moment."""
    names = [table.name for table in bulk.tables()]
    assert names.index("conversation") < names.index(alias.name)
    assert names.index("session") < names.index("turn")
    assert message.name in names
    assert "identity" not in names


def test_a_server_that_is_not_there_is_named(postgres_url: str) -> None:
    """A wrong name of a database is an error of one line."""
    wrong = postgres_url.replace("/test_", "/nowhere_")
    no_such = pytest.raises(StorageUnavailable, match="nowhere")
    with no_such, bulk.side(wrong, Path(), write=False):
        pass
