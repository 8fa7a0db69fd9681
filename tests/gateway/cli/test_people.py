"""`parley pair`: lists from the database's file, and decisions where no gateway runs.

`parley web` and `parley open` where no gateway runs; tests/security has the rest. `parley policy`:
what tools may do.
"""

import webbrowser
from functools import partial
from pathlib import Path

import orjson
import pytest

from agent.settings import TerminalSettings, ToolSettings
from agent.tools.catalog import builtin_tools
from agent.tools.policy import SIDE_EFFECT, WORLD
from gateway.cli.people import OPENER, _classes, shown
from gateway.storage.people import members, web_users
from gateway.storage.schema import member, pairing, web_session
from tests.support.command_line import Run, one_line
from tests.support.storage import Store, admit, inbound

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
def web(parley: Run) -> Run:
    """Run `parley web …`."""
    return partial(parley, "web")


def test_an_invitation_is_a_link(web: Run, store: Store) -> None:
    """For one name and one role."""
    told, link = web("invite", "ann", "--role", "guest").out.splitlines()
    assert told == "Send this link to ann; it works once, within 24 hours:"
    assert link.startswith("http://parley.localhost:8765/#sign-in=")
    web("invite", "bo", "--as", "telegram:7")
    users = store.run(web_users.everybody)
    assert [(each.name, each.role, each.same_as) for each in users] == [
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
    assert "there is no web user 'ann'" in one_line(web("revoke", "ann", "--remove"))
    assert "there is no session 7" in one_line(web("revoke", "7"))
    assert "No gateway runs in" in one_line(parley("open"))


def test_sessions_are_ended(web: Run, store: Store) -> None:
    """All of a user; then there is none."""
    store.run(web_users.begin, "0" * 64, "web", "link", "192.0.2.1", "Firefox")
    assert web("revoke", "owner").out == "owner: 1 session ended\n"
    assert store.rows(web_session) == []


def test_a_user_is_removed_and_comes_back(web: Run, store: Store) -> None:
    """To the chats of before, which is said."""
    web("invite", "ann")
    removed = "ann is no longer a user of the web chat; 0 sessions ended\n"
    assert web("revoke", "ann", "--remove").out == removed
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


# parley policy

POLICY = """
tools:
  approval_by: owners
  policy:
    rules:
      - {tool: terminal, role: member, then: deny}
      - {tool: "!calculate", role: guest, then: deny}
      - {tool: "!todo", group: "telegram:-1", then: deny}
    without: [tainted-files]
"""


@pytest.fixture
def ruled(home: Path, parley: Run) -> Run:
    """The command line, with settings of its own."""
    (home / "parley.yaml").write_text(POLICY)
    return parley


def test_each_row_says_where_it_comes_from(ruled: Run) -> None:
    """Defaults, `tools.approval` and rules of one's own."""
    rows = {row["name"]: row for row in orjson.loads(ruled("policy", "show", "--json").out)}
    for name in ("tools.policy.rules[0]", "tools.policy.rules[1]"):
        assert rows[name]["origin"] == "parley.yaml"
    assert rows["tools.policy.rules[2]"]["group"] == "telegram:-1"
    approval = rows["tools.approval"]
    assert (approval["then"], approval["origin"]) == ("ask_owner", "default")
    assert rows["default.talk"]["origin"] == "default"
    assert "tainted-files" not in rows
    table = ruled("policy", "show").out
    assert all(name in table for name in rows)


@pytest.mark.parametrize(
    ("options", "verdict", "rule"),
    [
        (["--tool", "terminal"], "deny", "tools.policy.rules[0]"),
        (["--tool", "terminal", "--role", "owner"], "ask_owner", "tools.approval"),
        (["--tool", "memory"], "allow", "default.talk"),
        (["--tool", "memory", "--tainted"], "ask_owner", "tainted-notes"),
        (["--tool", "todo", "--role", "guest"], "deny", "tools.policy.rules[1]"),
        (["--tool", "memory", "--group", "telegram:-1"], "deny", "tools.policy.rules[2]"),
        (["--tool", "mcp_a_b"], "ask_owner", "tools.approval"),
    ],
)
def test_a_ruling_is_explained(ruled: Run, options: list[str], verdict: str, rule: str) -> None:
    """By the row that decides, as data and in words."""
    found = orjson.loads(ruled("policy", "explain", *options, "--json").out)
    assert found == {"verdict": verdict, "rule": rule}
    ended = ruled("policy", "explain", *options)
    told = ended.out
    assert ended.err == ""
    assert told.startswith(f"{verdict}: ")
    assert rule in told


def test_the_command_tool_is_what_it_says() -> None:
    """Its classes are told without making it, which not every machine can."""
    terminal = TerminalSettings(confine=False, allow_root=True)
    settings = ToolSettings(enabled=("terminal",), terminal=terminal)
    made = builtin_tools(settings)
    assert made.effect("terminal") == "side_effect"
    assert made.restricted("terminal")
    assert _classes("terminal", ToolSettings()) == {SIDE_EFFECT, WORLD}


def test_a_role_that_there_is_not(ruled: Run) -> None:
    """One line, with those that there are."""
    told = one_line(ruled("policy", "explain", "--tool", "todo", "--role", "king"))
    assert "guest, member, owner" in told
