"""Whole tables, read from a file and entered into a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.errors import SettingsError, StorageUnavailable
from gateway.storage import bulk
from gateway.storage.bulk import SourceFile, TargetServer
from gateway.storage.schema import alias, cursor, member, message
from tests.support.storage import Store


@pytest.fixture
def target(postgres_url: str) -> Iterator[TargetServer]:
    """A migrated and empty database."""
    with bulk.target_of(postgres_url) as opened:
        yield opened


@pytest.fixture
def source(database_file: Path) -> Iterator[SourceFile]:
    """A file with rows whose keys are texts."""
    store = Store(database_file)
    rows = [{"source": name, "position": n} for n, name in enumerate(NAMES)]
    store.run(lambda conn: conn.execute(insert(cursor), rows) and None)
    store.close()
    with bulk.source_of(f"sqlite:///{database_file}", Path()) as opened:
        yield opened


NAMES = ("a", "B", "b", "Ä", "z", "_", "漢", "é", "Z")
"""In another order in each language, and by their bytes in one only."""


def test_texts_are_ordered_by_their_bytes(source: SourceFile, target: TargetServer) -> None:
    """On both engines, also behind a key, whatever the language of the database is."""
    in_order = sorted(NAMES, key=str.encode)
    assert [row[0] for row in source.rows(cursor)] == in_order
    assert [row[0] for row in source.rows(cursor, ("b",))] == in_order[in_order.index("b") + 1 :]
    with target.transaction():
        target.enter(cursor, list(source.rows(cursor)))
    assert [row[0] for row in target.rows(cursor)] == in_order


def test_keys_of_several_columns_are_in_order(target: TargetServer) -> None:
    """The first column decides, then the second."""
    rows = [("a", "y"), ("b", "x"), ("a", "z")]
    with target.transaction():
        target.enter(member, [(*key, "Ada", "member", "code", 1.5) for key in rows])
    assert [row[:2] for row in target.rows(member)] == sorted(rows)


def test_a_row_that_is_refused_names_its_table(target: TargetServer) -> None:
    """And not what people wrote."""
    row = ("my secret", "x")
    with pytest.raises(StorageUnavailable, match=r"^cursor: ") as caught, target.transaction():
        target.enter(cursor, [row, row])
    assert "my secret" not in str(caught.value)


def test_nuls_come_as_postgresql_has_them(database_file: Path) -> None:
    """The canonical form of a text is the same on both engines."""
    store = Store(database_file)
    store.run(lambda conn: conn.execute(insert(cursor).values(source="a\0b", position=1)) and None)
    store.close()
    with bulk.source_of(f"sqlite:///{database_file}", Path()) as source:
        assert list(source.rows(cursor)) == [("a\ufffdb", 1)]


@pytest.mark.parametrize("url", ["mysql://me@there/db", "parley.db", "sqlite://", "sqlite:///", ""])
def test_other_urls_are_refused(url: str) -> None:
    """The text says what a URL is, and does not repeat one, which may have a password."""
    with pytest.raises(SettingsError, match="sqlite:///FILE") as caught:
        bulk.source_of(url, Path()).__enter__()
    assert "me@there" not in str(caught.value)
    with pytest.raises(SettingsError, match="postgresql://USER@HOST/NAME") as caught:
        bulk.target_of(url).__enter__()
    assert "me@there" not in str(caught.value)


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A source has to exist."""
    there_is_none = pytest.raises(StorageUnavailable, match="there is no database")
    with there_is_none, bulk.source_of("sqlite:///none.db", tmp_path):
        pass
    assert not (tmp_path / "none.db").exists()


def test_passwords_are_not_shown() -> None:
    """A database is named by host, port and name."""
    url = "postgresql://me:secret@there:5433/parley?sslmode=require"
    assert bulk.shown(url) == "postgresql://there:5433/parley"


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
    with no_such, bulk.target_of(wrong):
        pass
