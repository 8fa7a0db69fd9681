"""`parley pair`: lists from the database's file, and decisions where no gateway runs.

`parley memory`: lists from the database's file, and erases where no gateway runs.
`parley web` and `parley open` where no gateway runs; tests/security has the rest.
"""

import webbrowser
from functools import partial
from pathlib import Path

import orjson
import pytest

from gateway.cli.people import OPENER, shown
from gateway.storage import audit_log
from gateway.storage.people import members, notebook, web_users
from gateway.storage.people.notebook import Change
from gateway.storage.people.web_users import NewSession
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
    assert pair("revoke", "slack:U1").out == "slack U1 may no longer write to me.\n"
    assert store.rows(member) == []


def test_a_role_is_changed(pair: Run, store: Store) -> None:
    """Member, owner, nobody; each on record, and what changes nothing is not."""
    store.run(members.let_in, ("slack", "U1"), "Bo", "member", "code")
    assert pair("role", "slack:U1", "owner").out == "slack U1 is an owner now.\n"
    assert pair("role", "slack:U1", "owner").out == "slack U1 is an owner already.\n"
    assert store.one(member).role == "owner"
    assert pair("role", "slack:U1", "none").out == "slack U1 may no longer write to me.\n"
    assert store.rows(member) == []
    assert "`slack:U1` was not let in" in one_line(pair("role", "slack:U1", "member"))
    newest, before = [each.text() for each in store.run(audit_log.listed, 9)]
    assert before["detail"] == {"role": "owner"}
    assert [each["by"] for each in (before, newest)] == ["command line"] * 2
    assert [each["subject"] for each in (before, newest)] == ["slack:U1"] * 2


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


@pytest.fixture
def web(parley: Run) -> Run:
    """Run `parley web …`."""
    return partial(parley, "web")


def test_an_invitation_is_a_link(web: Run, store: Store) -> None:
    """For one name and one role; the list has both."""
    told, link = web("invite", "ann", "--role", "guest").out.splitlines()
    assert told == "Send this link to ann; it works once, within 24 hours:"
    assert link.startswith("http://parley.localhost:8765/#sign-in=")
    web("invite", "bo", "--as", "telegram:7")
    head, owner, *others = web("users").out.splitlines()
    assert head.split() == ["name", "role", "same", "as", "invited", "by", "since"]
    assert owner.split() == ["owner", "owner"]
    assert [line.split()[:2] for line in others] == [["ann", "guest"], ["bo", "telegram:7"]]
    listed = [orjson.loads(line) for line in web("users", "--json").out.splitlines()]
    assert [(each["name"], each["role"], each["same_as"]) for each in listed] == [
        ("ann", "guest", None),
        ("bo", "member", "telegram:7"),
    ]


def test_links_begin_with_the_public_address(web: Run, store: Store, home: Path) -> None:
    """Where the settings name one."""
    (home / "parley.yaml").write_text("web: {public_url: https://chat.example}\n")
    assert web("invite", "ann").out.splitlines()[1].startswith("https://chat.example/#sign-in=")


def test_what_the_web_chat_cannot_do_is_one_line(web: Run, parley: Run, store: Store) -> None:
    """Names that are none, users that are not there, sessions that have ended."""
    assert "is no name for a web user" in one_line(web("invite", "Ann!"))
    assert "there is no web user 'ann'" in one_line(web("remove", "ann"))
    assert "there is no session 7" in one_line(web("revoke", "7"))
    assert "No gateway answers" in one_line(parley("open"))


def test_sessions_are_listed_and_ended(web: Run, store: Store) -> None:
    """With where they come from; the secret is not among it."""
    assert web("sessions").out == "nobody is signed in\n"
    new = NewSession("0" * 64, "link", "192.0.2.1", "Firefox [red]")
    store.run(web_users.begin, "web", new)
    _, line = web("sessions").out.splitlines()
    assert line.split()[:4] == ["1", "owner", "link", "192.0.2.1"]
    assert line.endswith("Firefox [red]")
    [row] = [orjson.loads(each) for each in web("sessions", "--json").out.splitlines()]
    assert (row["name"], row["address"]) == ("owner", "192.0.2.1")
    assert "0" * 64 not in str(row)
    assert web("revoke", "owner").out == "owner: 1 session ended\n"
    assert web("sessions").out == "nobody is signed in\n"


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("(X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36", "Chrome on Linux"),
        ("(Windows NT 10.0) Chrome/130.0 Safari/537.36 Edg/130.0", "Edge on Windows"),
        ("(Linux; Android 14; Pixel) Chrome/130.0 Safari/537.36", "Chrome on Android"),
        ("(iPhone; CPU OS 17 like Mac OS X) Version/17 Safari/604.1", "Safari on iPhone"),
        ("(Macintosh; Intel Mac OS X 14) Gecko/20100101 Firefox/131.0", "Firefox on Macintosh"),
    ],
)
def test_a_session_names_its_browser(web: Run, store: Store, agent: str, name: str) -> None:
    """As people call it: all begin with the same 60 characters."""
    store.run(web_users.begin, "web", NewSession("0" * 64, "link", "::1", f"Mozilla/5.0 {agent}"))
    _, line = web("sessions").out.splitlines()
    assert line.endswith(name)


def test_a_user_is_removed_and_comes_back(web: Run, store: Store) -> None:
    """To the chats of before, which is said."""
    web("invite", "ann")
    removed = "ann is no user of the web chat any more; 0 sessions ended\n"
    assert web("remove", "ann").out == removed
    assert "ann was here before" in web("invite", "ann").out


class Browser:
    """Stands for a browser with a window; notes what it is told to open."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def open(self, address: str) -> bool:
        self.told.append(address)
        return True


def test_a_browser_gets_the_link_in_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of the machine see its command line; the file is for its owner alone."""
    browser = Browser()
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    home.mkdir(exist_ok=True)
    file, link = home / OPENER, "http://127.0.0.1:8765/#sign-in=s3cret&x"
    assert shown(file, link)
    assert browser.told == [file.as_uri()]
    assert file.stat().st_mode & 0o777 == 0o600
    assert 'url=http://127.0.0.1:8765/#sign-in=s3cret&amp;x"' in file.read_text()


def test_a_browser_in_the_terminal_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there one where the system has none; the link is printed then."""
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("lynx"))
    assert not shown(home / OPENER, "http://127.0.0.1:8765/")

    def none() -> None:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert not shown(home / OPENER, "http://127.0.0.1:8765/")
    assert not (home / OPENER).exists()
