"""`parley memory`: lists from the database's file, and erases where no gateway runs."""

from functools import partial
from pathlib import Path

import orjson
import pytest

from gateway.storage.people import notebook
from gateway.storage.people.notebook import Change
from gateway.storage.schema import memory
from tests.support.command_line import Run, one_line
from tests.support.storage import Store, raw_bytes, turn_of


@pytest.fixture
def notes(parley: Run) -> Run:
    """Run `parley memory …`."""
    return partial(parley, "memory")


@pytest.fixture
def noted(store: Store) -> Store:
    """The database of PARLEY_HOME, with a note."""
    turn = store.run(turn_of, "hello")
    change = Change("telegram:42", "user", None, "[red]likes tea[/red]", 100)
    store.run(notebook.change_notes, turn, change)
    return store


def test_notes_are_listed(notes: Run, noted: Store) -> None:
    """All or those of a scope, as they are."""
    head, line = notes("list").out.splitlines()
    assert head.split() == ["id", "scope", "about", "since", "note"]
    assert line.split()[:3] == ["1", "telegram:42", "user"]
    assert line.endswith("[red]likes tea[/red]")
    assert notes("list", "telegram:4").out.strip() == "there are no notes"


def test_the_list_as_json(notes: Run, noted: Store) -> None:
    """Everything that is known."""
    [note] = map(orjson.loads, notes("list", "--json").out.splitlines())
    assert (note["scope"], note["text"]) == ("telegram:42", "[red]likes tea[/red]")


def test_notes_are_erased_for_good(notes: Run, noted: Store, tmp_path: Path) -> None:
    """Nothing of them is left in the files."""
    noted.close()
    assert notes("remove", "telegram:42").out.strip() == "1 note erased"
    assert b"likes tea" not in raw_bytes(tmp_path / "parley.db")
    for unknown in ("1", "9" * 30, "telegram:4"):
        assert f"there is no note '{unknown}'" in one_line(notes("remove", unknown))


def test_several_are_counted(notes: Run, noted: Store) -> None:
    """Of one scope."""
    values = {"scope": "telegram:42", "target": "memory", "text": "x", "at": 0.0}
    noted.run(lambda conn: conn.execute(memory.insert().values(values)))
    noted.close()
    assert notes("remove", "telegram:42").out.strip() == "2 notes erased"
