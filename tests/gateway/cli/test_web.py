"""`parley web` and `parley open` where no gateway runs; tests/security has the rest."""

import webbrowser
from functools import partial
from pathlib import Path

import orjson
import pytest

from gateway.cli.web import OPENER, shown
from gateway.storage.people import web_users
from gateway.storage.people.web_users import NewSession
from tests.support.command_line import Run, one_line
from tests.support.storage import Store


@pytest.fixture
def web(parley: Run) -> Run:
    """Run `parley web …`."""
    return partial(parley, "web")


def test_an_invitation_is_a_link(web: Run, store: Store) -> None:
    """For one name and one role; the list has both."""
    told, link = web("invite", "ann", "--role", "guest").out.splitlines()
    assert told == "Send this link to ann; it works once, within 24 hours:"
    assert link.startswith("http://127.0.0.1:8765/#sign-in=")
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


def test_what_cannot_be_done_is_one_line(web: Run, parley: Run, store: Store) -> None:
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
