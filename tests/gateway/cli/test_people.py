"""`parley pair`: lists from the database's file, and decisions where no gateway runs.

`parley memory`: lists from the database's file, and erases where no gateway runs.
"""

from functools import partial
from pathlib import Path

import orjson
import pytest

from gateway.storage.people import members, notebook
from gateway.storage.people.notebook import Change
from gateway.storage.schema import member, memory, pairing
from tests.support.command_line import Run, one_line
from tests.support.storage import Store, admit, inbound, raw_bytes, turn_of

CODE = "ABCD2345"


@pytest.fixture
def pair(parley: Run) -> Run:
    """Run `parley pair …`."""
    return partial(parley, "pair")


@pytest.fixture
def asked(store: Store) -> Store:
    """The database of PARLEY_HOME with a stranger who asks."""
    message = inbound(sender="7")
    place, _ = store.run(admit, message)
    store.run(members.enter_request, message, "[red]Ann[/red]", CODE, place)
    return store


def test_requests_and_members_are_listed(pair: Run, asked: Store) -> None:
    """In two tables; names are shown as they are."""
    asked.run(members.let_in, ("slack", "U1"), "Bo", "owner", "code")
    requests, people = pair("list").out.split("\n\n")
    head, line = requests.splitlines()
    assert head.split() == ["code", "platform", "account", "id", "name", "since", "min", "left"]
    assert line.split()[:5] == [CODE, "telegram", "default", "7", "[red]Ann[/red]"]
    assert line.split()[-1] == "60"
    head, line = people.splitlines()
    assert head.split() == ["platform", "id", "name", "role", "let", "in", "by", "since"]
    assert line.split()[:5] == ["slack", "U1", "Bo", "owner", "code"]


def test_a_list_of_nobody(pair: Run, store: Store) -> None:
    """It says so."""
    assert pair("list").out.split() == ["nobody", "asks", "to", "be", "let", "in"]


def test_the_list_as_json(pair: Run, asked: Store) -> None:
    """Everything that is known."""
    asked.run(members.let_in, ("slack", "U1"), "Bo", "owner", "code")
    request, let_in = map(orjson.loads, pair("list", "--json").out.splitlines())
    assert (request["kind"], let_in["kind"]) == ("request", "member")
    assert (request["code"], request["sender"], request["state"]) == (CODE, "7", "pending")
    assert (let_in["sender"], let_in["role"]) == ("U1", "owner")


def test_a_code_is_approved(pair: Run, asked: Store) -> None:
    """However it is typed; a second time nothing changes."""
    assert (
        pair("approve", "abcd-2345").out == "`[red]Ann[/red]` (telegram 7) may write to me now.\n"
    )
    assert "already" in pair("approve", CODE).out
    row = asked.one(member)
    assert (row.platform, row.sender, row.role, row.granted_by) == (
        "telegram",
        "7",
        "member",
        "command line",
    )


def test_a_code_is_denied(pair: Run, asked: Store) -> None:
    """Nobody is let in."""
    assert "cannot ask again for a day" in pair("deny", CODE).out
    assert asked.one(pairing).state == "denied"
    assert asked.rows(member) == []


def test_a_member_is_revoked(pair: Run, store: Store) -> None:
    """By platform and id."""
    store.run(members.let_in, ("slack", "U1"), "Bo", "member", "code")
    assert pair("revoke", "slack:U1").out == "slack U1 may not write to me any more.\n"
    assert store.rows(member) == []


def test_what_cannot_be_done_is_one_line(pair: Run, store: Store) -> None:
    """On stderr, with exit code 1."""
    assert one_line(pair("approve", CODE)) == "There is no such code, or it has expired."
    assert "`slack:U9` was not let in" in one_line(pair("revoke", "slack:U9"))


def test_a_wrong_home_is_said(pair: Run, tmp_path: Path) -> None:
    """No database is made."""
    assert "no database" in one_line(pair("list"))
    assert "no database" in one_line(pair("approve", CODE))
    assert list(tmp_path.iterdir()) == []


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


def test_the_list_of_notes_as_json(notes: Run, noted: Store) -> None:
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
