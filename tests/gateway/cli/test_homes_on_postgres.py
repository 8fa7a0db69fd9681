"""All commands of `parley` where the database is on PostgreSQL: they say what they say of a file.

A home that was lived in is copied to a server; each command runs in both.
"""

import asyncio
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert
from typer.main import get_command, get_group

from adapters.errors import SendRejected
from gateway.cli import main
from gateway.storage import copying, postgres
from gateway.storage.audit_log import AuditEntry, append
from gateway.storage.people import members
from gateway.storage.schema import REVISION, memory
from tests.support.command_line import Result, Run, one_line, own_environment, runner
from tests.support.every_table import feed_all
from tests.support.gateway import running
from tests.support.postgres import PostgresServer, postgres_server, server_at
from tests.support.recording_adapter import RecordingAdapter
from tests.support.searching import feed
from tests.support.storage import Store, admit, inbound
from tests.support.thorough import sampled

CODE, OTHER_CODE = "ABCD2345", "EFGH6789"
READS = (
    "sessions list",
    "sessions list --json",
    "sessions list --limit 1 --after 2",
    "sessions lineage 1",
    "sessions export 1",
    "usage",
    "usage --by outcome",
    "usage --by model --json",
    "usage --by sender --since 7d",
    "pair list",
    "pair list --json",
    "dead-letters list",
    "dead-letters list --json",
    "audit export",
    "policy show",
    "policy explain --tool terminal",
    "prompt show 1",
    "db prune --dry-run",
)
"""What is printed is the same, to the letter."""
WRITES = (
    f"pair approve {CODE}",
    f"pair deny {OTHER_CODE}",
    "pair list --json",
    "pair revoke telegram:7",
    "web invite ann",
    "web revoke ann",
    "web revoke ann --remove",
    "dead-letters drop s1.1",
    "dead-letters list",
    "search reindex",
    "db prune",
    "forget 2 --yes",
    "sessions list",
    "usage",
    "db migrate",
)
"""Likewise, one behind the other."""
OF_FILES = {
    "backup copy": "pg_dump",
    "db compact": "VACUUM FULL",
}
"""What only a file needs, and what is said of a server instead."""
ELSEWHERE = {
    "run": "tests/e2e",
    "setup": "tests/gateway/cli/test_setup.py",
    "ask": "tests/gateway/cli/test_ask.py",
    "status": "tests/gateway/cli/test_status.py",
    "restore": "tests/gateway/backup/test_copying.py",
    "config check": "reads the settings alone",
    "config set": "writes the settings alone",
    "config reload": "asks a gateway that runs",
    "adapter restart": "asks a gateway that runs",
    "doctor": "tests/gateway/findings",
    "import hermes": "tests/gateway/setup",
    "alerts test": "asks a gateway that runs",
    "open": "asks a gateway that runs",
    "chat": "talks to a gateway that runs",
    "web open": "asks a gateway that runs",
    "db copy": "tests/gateway/storage/test_copying.py",
    "db check": "below",
    "dead-letters retry": "below",
    **dict.fromkeys(
        (
            "logs",
            "replay",
            "config show",
            "engines list",
            "engines use",
        ),
        "looks into no database",
    ),
}
Homes = tuple[Path, Path]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running_server:
        yield running_server


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, server: PostgresServer) -> tuple[Path, str]:
    """A file of a home that was lived in, and the name of a database with the same."""
    home = tmp_path_factory.mktemp("lived")
    asyncio.run(_talk(home))
    store = Store(home / "parley.db")
    for number, code in (("7", CODE), ("8", OTHER_CODE)):
        message = inbound(sender=number, chat=number)
        place, _ = store.run(admit, message)
        store.run(members.enter_request, message, "[red]Ann[/red]", code, place)
    note = {"scope": "telegram:7", "target": "memory", "text": "likes tea", "at": 1_700_000_000.5}
    store.run(lambda conn: conn.execute(insert(memory).values(note)) and None)
    store.run(append, AuditEntry("expired", by="telegram:7", subject="a question"))
    feed(store)
    store.close()
    name = server.create()
    copying.copy(home / "parley.db", server_at(server.url(name)), lambda *_: None)
    with closing(postgres.connect(server_at(server.url(name)))) as connection, connection.begin():
        feed_all(connection)
    return home / "parley.db", name


async def _talk(home: Path) -> None:
    """Have three chats, of which the first could not be answered."""
    adapter = RecordingAdapter()
    adapter.failures["c0"] = deque([SendRejected("bot was [/b]locked")])
    async with running(home, adapter=adapter) as chat:
        for n, text in enumerate(("my secret words", "[red]alarm[/red]", "plain words")):
            await chat.say(text, f"c{n}")
            # Of the dead letter its chat is told.
            await chat.answers(1, f"c{n}")
        await chat.gateway.delivery.wait_idle()


@pytest.fixture
def homes(tmp_path: Path, lived: tuple[Path, str], server: PostgresServer) -> Iterator[Homes]:
    """A home with the file, and one whose settings name the server."""
    file, template = lived
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    shutil.copy(file, one / "parley.db")
    name = server.create(template)
    (other / "parley.yaml").write_text(f"storage: {{url: '{server.url(name)}'}}\n")
    yield one, other
    server.drop(name)


@pytest.fixture
def both(
    homes: Homes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[Result, Result]]]:
    """Run a command in both homes."""
    with own_environment(homes[0], monkeypatch):
        parley: Run = runner(monkeypatch, capsys)

        def run(*arguments: str) -> tuple[Result, Result]:
            found = []
            for home in homes:
                monkeypatch.setenv("PARLEY_HOME", str(home))
                found.append(parley(*arguments))
            return found[0], found[1]

        yield run


Both = Callable[..., tuple[Result, Result]]


@pytest.mark.parametrize("command", sampled(READS, every=3))
def test_what_is_read_is_the_same(both: Both, command: str) -> None:
    """Word for word: order, figures, ids."""
    of_file, of_server = both(*command.split())
    assert of_file.code == 0, of_file.err
    assert (of_server.code, _steady(of_server.out)) == (0, _steady(of_file.out)), of_server.err
    assert of_file.out.strip()


@pytest.mark.thorough
def test_what_is_changed_is_the_same(both: Both) -> None:
    """One command behind the other, each with what those before it have left."""
    for command in WRITES:
        of_file, of_server = both(*command.split())
        assert of_file.code == 0, (command, of_file.err)
        assert _steady(of_server.out) == _steady(of_file.out), command
        assert of_server.code == 0, (command, of_server.err)


def _steady(text: str) -> str:
    """Return a text without secrets of links, times, hashes and traces, which differ each time."""
    text = re.sub(r"[A-Za-z0-9_-]{32,}", "…", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "…", text)
    text = re.sub(r'"left_s":[0-9.]+', "…", text)
    # The minute may be over between the two.
    text = re.sub(rf"^((?:{CODE}|{OTHER_CODE}) .*?) +\d+ *$", r"\1", text, flags=re.MULTILINE)
    return re.sub(r"\d{4}-\d{2}-\d{2}T[0-9:]+Z", "…", text)


@pytest.mark.parametrize(("command", "instead"), OF_FILES.items())
def test_what_only_a_file_needs_says_what_to_do_instead(
    both: Both, command: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 1."""
    monkeypatch.chdir(tmp_path)
    _, of_server = both(*command.split())
    assert instead in one_line(of_server)


@pytest.mark.thorough
def test_a_sound_schema_is_told(both: Both, homes: Homes) -> None:
    """The text does not claim to have looked at the server's files; a fault is named."""
    _, of_server = both("db", "check")
    assert of_server.code == 0
    assert "pg_amcheck" in of_server.out
    url = (homes[1] / "parley.yaml").read_text().split("'")[1]
    with closing(postgres.connect(server_at(url))) as conn, conn.begin():
        conn.exec_driver_sql("DROP INDEX ix_turn_dead")
    _, of_server = both("db", "check")
    assert (of_server.code, "ix_turn_dead" in of_server.err) == (1, True)


def test_the_audit_log_is_exported(both: Both, homes: Homes) -> None:
    """The same rows, in a file of the same bytes."""
    both("audit", "export", str(homes[0].parent / "log.jsonl"), "--force")
    exported = []
    for home in homes:
        file = home.parent / "log.jsonl"
        exported.append(file.read_bytes())
    assert exported[0] == exported[1] != b""


def test_a_dead_letter_is_put_back(both: Both) -> None:
    """No gateway runs: it is done in the database itself."""
    for result in both("dead-letters", "retry", "s1.1"):
        assert "s1.1 is back in its queue" in result.out


def test_a_server_that_is_not_there_is_one_line(
    both: Both, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was asked for; without a password."""
    (homes[1] / "parley.yaml").write_text(
        "storage: {url: 'postgresql://me:swordfish99@127.0.0.1:1/parley'}\n"
    )
    for command in ("sessions list", "forget 1 --yes", "db migrate", "db check", "usage"):
        _, of_server = both(*command.split())
        line = one_line(of_server)
        assert "cannot reach the database" in line
        assert "swordfish" not in line


@pytest.mark.thorough
def test_a_server_without_a_schema_is_one_line(
    both: Both, homes: Homes, server: PostgresServer
) -> None:
    """It says which command makes one."""
    (homes[1] / "parley.yaml").write_text(f"storage: {{url: '{server.url(server.create())}'}}\n")
    for command in ("sessions list", "usage", "pair list"):
        _, of_server = both(*command.split())
        assert "parley db migrate" in one_line(of_server)
    _, of_server = both("db", "check")
    assert "schema revision None" in of_server.err
    _, of_server = both("db", "migrate")
    assert of_server.out == f"schema revision {REVISION}\n"


def test_the_command_copies(
    both: Both, homes: Homes, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it copied, and that both are equal; a second time the target is not empty."""
    monkeypatch.setenv("TARGET", server.url(server.create()))
    source = f"sqlite:///{homes[0] / 'parley.db'}"
    copied, again = both("db", "copy", source, "env:TARGET")
    assert copied.code == 0, copied.err
    assert re.search(r"^conversation +5 +[0-9a-f]{16}$", copied.out, re.MULTILINE)
    assert f" equals {homes[0] / 'parley.db'}: " in copied.out.splitlines()[-1]
    assert "is not empty (table " in one_line(again)
    _, of_server = both("db", "copy", source, "env:NOTHING")
    assert "env:NOTHING is not set" in one_line(of_server)
    _, of_server = both("db", "copy", source, source)
    assert "an empty database on PostgreSQL" in one_line(of_server)


def test_no_command_is_left_out() -> None:
    """Each stands in one of the lists above."""
    known = {*READS, *WRITES, *OF_FILES, *ELSEWHERE}
    for name in commands():
        assert any(f"{each} ".startswith(f"{name} ") for each in known), name


def commands() -> Iterator[str]:
    for name in main.COMMANDS:
        found = main.app_of(name)
        if isinstance(found.info.help, str):
            yield from (f"{name} {each}" for each in get_group(found).commands)
        else:
            assert get_command(found)
            yield name
