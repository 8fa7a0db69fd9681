"""`parley run` on PostgreSQL: one replica, as a person meets it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gateway.storage.schema import REVISION
from tests.e2e.web_chat import WebChat
from tests.support.postgres import PostgresServer
from tests.support.process import DATABASE_URL, ParleyProcess

# It makes its own database, which is empty.
pytestmark = pytest.mark.usefixtures("sqlite_alone")

PASSWORD = "hunter22-of-the-database"
SETTINGS = {"storage": {"url": f"env:{DATABASE_URL}"}}


@pytest.fixture
def url(postgres_worker: PostgresServer) -> str:
    """An empty database: the first start makes what is in it."""
    address = postgres_worker.url(postgres_worker.create())
    return address.replace("parley@", f"parley:{PASSWORD}@")


@pytest.fixture
async def parley(tmp_path: Path, url: str) -> AsyncIterator[ParleyProcess]:
    """A gateway on the offline model, whose database is referred to."""
    async with ParleyProcess(tmp_path / "home", SETTINGS, {DATABASE_URL: url}) as process:
        yield process


async def test_killed_in_mid_answer_it_goes_on(parley: ParleyProcess) -> None:
    """The answer arrives, once, in the chat and in the transcript; nothing lies in a file."""
    chat = WebChat(parley)
    assert "> My name is Ann." in await chat.ask("My name is Ann.")
    await chat.say("count to 60")
    await chat.until(lambda: chat.preview)
    await parley.kill9()
    await parley.restart()
    await chat.until(lambda: len(chat.answers) == 2)
    assert chat.answers[1].endswith("59, 60")
    assert (
        await chat.ask("what was my first message?")
        == "Your first message was:\n\n> My name is Ann."
    )
    assert [role for role, _ in parley.transcript()] == ["user", "assistant"] * 3
    assert not list(parley.home.glob("parley.db*"))


@pytest.mark.thorough
async def test_a_chat_in_the_terminal_is_answered(parley: ParleyProcess) -> None:
    """`parley chat` prints plain answers, and the next call goes on with the conversation."""
    first = await parley.run("chat", stdin="My name is Ann.\nwhat is 12*7?\n")
    second = await parley.run("chat", stdin="what was my first message?\n")
    assert first.stdout.rstrip().endswith("The tool `calculate` answered:\n\n> 84")
    assert second.stdout.strip() == "Your first message was:\n\n> My name is Ann."


@pytest.mark.thorough
async def test_commands_look_at_the_same_database(parley: ParleyProcess) -> None:
    """Beside the gateway, and what is about a file says what one does instead."""
    await WebChat(parley).ask("hello")
    check = await parley.run("db", "check")
    assert (check.code, f"(revision {REVISION})" in check.stdout) == (0, True), check.stderr
    assert "c1" in (await parley.run("sessions", "list")).stdout
    backup = await parley.run("backup", str(parley.home / "copy.db"))
    assert (backup.code, "pg_dump" in backup.stderr) == (1, True)


@pytest.mark.thorough
async def test_nobody_is_told_the_password(parley: ParleyProcess, url: str) -> None:
    """Neither in the log nor by a command, also where the server is gone."""
    shown = await parley.run("config", "show")
    assert f"env:{DATABASE_URL}" in shown.stdout
    await parley.terminate()
    gone = {"url": url.replace("/test_", "/gone_")}
    (parley.home / "parley.yaml").write_text(yaml.safe_dump({"storage": gone}))
    ended = await parley.run("db", "check")
    assert ended.code == 1
    assert "cannot reach the database" in ended.stderr
    found = (await parley.run("config", "show")).stdout
    assert "/gone_" in found
    log = (parley.home / "logs" / "parley.jsonl").read_text()
    told = [shown.stdout, shown.stderr, ended.stderr, found, log, *parley.stderr]
    assert PASSWORD not in "\n".join([*told, *map(str, parley.records)])


@pytest.mark.thorough
async def test_a_home_is_held_by_one_process(parley: ParleyProcess) -> None:
    """Its log, its socket and its journal are those of one replica."""
    second = await parley.run("run", "--port", "0")
    assert second.code == 1
    assert "is in use by another Parley process" in second.stderr
