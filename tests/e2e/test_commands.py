"""The other commands beside a running gateway, and how the gateway itself starts and stops."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.storage.schema import REVISION
from tests.e2e.web_chat import WebChat
from tests.support.process import Finished, ParleyProcess
from tests.support.thorough import WAIT_S

KEY = "sk-ant-api03-0123456789abcdefghijklmnop"


@pytest.fixture
async def parley(tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway on the offline model with default settings."""
    async with ParleyProcess(tmp_path / "home") as process:
        yield process


@pytest.mark.thorough
async def test_chat_answers_each_piped_line_in_order(parley: ParleyProcess) -> None:
    """`parley chat` prints plain answers, and the next call goes on with the conversation."""
    first = await parley.run("chat", stdin="My name is Ann.\n\nwhat is 12*7?\n/quit\nnever\n")
    second = await parley.run("chat", stdin="what was my first message?\n")
    assert first.code == second.code == 0
    assert "> My name is Ann." in first.stdout
    assert first.stdout.rstrip().endswith("The tool `calculate` answered:\n\n> 84")
    assert second.stdout.strip() == "Your first message was:\n\n> My name is Ann."
    assert ("user", "never") not in parley.transcript()


@pytest.mark.thorough
async def test_chat_without_a_gateway_says_so(tmp_path: Path) -> None:
    """One line and exit code 1."""
    finished = await ParleyProcess(tmp_path, fresh=True).run("chat", stdin="hi\n")
    assert_one_line(finished, "Start it with `parley run`")


@pytest.mark.thorough
async def test_logs_are_filtered(parley: ParleyProcess) -> None:
    """`parley logs` shows one event of one conversation, without what was said."""
    await WebChat(parley).ask("the secret word is plugh")
    await WebChat(parley, "c2").ask("hello")
    await parley.event("turn_finished", count=2)
    everything = await parley.run("logs")
    finished = await parley.run("logs", "--event", "turn_*", "--session", "1", "--level", "info")
    assert len(finished.stdout.splitlines()) == 1
    assert "outcome=final_text" in finished.stdout
    assert "gateway_ready" in everything.stdout
    assert "plugh" not in everything.stdout


@pytest.mark.thorough
async def test_logs_follow(parley: ParleyProcess) -> None:
    """`parley logs -f` prints what happens until it is interrupted."""
    viewer = await parley.execute("logs", "-f", "--event", "turn_finished")
    assert viewer.stdout is not None
    async with asyncio.timeout(WAIT_S):
        await WebChat(parley).ask("hello")
        line = await viewer.stdout.readline()
        viewer.send_signal(signal.SIGINT)
        _, complaints = await viewer.communicate()
    assert b"outcome=final_text" in line
    assert b"Traceback" not in complaints


@pytest.mark.thorough
@pytest.mark.usefixtures("sqlite_alone")
async def test_a_backup_made_while_running_can_be_restored(parley: ParleyProcess) -> None:
    """The steps of docs/operations.md bring back what the copy holds, and only that."""
    chat, copy = WebChat(parley), parley.home / "copy.db"
    await chat.ask("My name is Ann.")
    await chat.say("count to 60")
    await chat.until(lambda: chat.preview)
    assert (await parley.run("backup", str(copy))).code == 0
    await parley.kill9()
    shutil.move(copy, parley.home / "parley.db")
    for name in ("parley.db-wal", "parley.db-shm"):
        (parley.home / name).unlink(missing_ok=True)
    assert (await parley.run("db", "check")).code == 0
    # The turn that runs may have stored something behind the copy.
    (parley.home / "parley.db.mark").unlink()
    await parley.restart()
    await chat.until(lambda: len(chat.answers) == 2)
    assert chat.answers[1].endswith("59, 60")
    assert (
        await chat.ask("what was my first message?")
        == "Your first message was:\n\n> My name is Ann."
    )


@pytest.mark.thorough
async def test_forget_erases_one_conversation(parley: ParleyProcess) -> None:
    """Its words are in no file any more; the other conversation is untouched."""
    await WebChat(parley).ask("the word is plugh-xyzzy")
    await WebChat(parley, "c2").ask("hello")
    await parley.event("message_sent", count=2)
    refused = await parley.run("forget", "2", stdin="n\n")
    finished = await parley.run("forget", "1", "--yes")
    listed = await parley.run("sessions", "list")
    unknown = await parley.run("forget", "1", "--yes")
    await parley.terminate()
    assert refused.code == 1
    assert "erased conversation 1 with 2 messages" in finished.stdout
    assert "c2" in listed.stdout
    assert "plugh" not in listed.stdout
    assert_one_line(unknown, "there is no conversation 1")
    assert all(b"plugh-xyzzy" not in path.read_bytes() for path in parley.home.glob("parley.db*"))


@pytest.mark.thorough
async def test_db_check(parley: ParleyProcess) -> None:
    """It works beside the running gateway."""
    check = await parley.run("db", "check")
    assert f"(revision {REVISION})" in check.stdout
    assert check.code == 0


@pytest.mark.thorough
async def test_config_show_names_origins_and_masks_secrets(tmp_path: Path) -> None:
    """Every value with the place it comes from; the key is nowhere."""
    parley = ParleyProcess(
        tmp_path,
        environ={"ANTHROPIC_API_KEY": KEY, "PARLEY_QUEUE__DEBOUNCE_MS": "250"},
        fresh=True,
    )
    (tmp_path / "parley.yaml").write_text("access: {mode: open}\n")
    finished = await parley.run("config", "show")
    shown = {line.split()[0]: line for line in finished.stdout.splitlines() if line.strip()}
    assert "parley.yaml" in shown["access.mode"]
    assert "PARLEY_QUEUE__DEBOUNCE_MS" in shown["queue.debounce_ms"]
    assert "ANTHROPIC_API_KEY" in shown["model.api_key"]
    assert KEY not in finished.stdout + finished.stderr


@pytest.mark.thorough
async def test_a_second_process_on_the_same_home_ends(parley: ParleyProcess) -> None:
    """It says in one line that it is in use; the first one goes on, `chat` too."""
    second = await parley.run("run", "--port", "0")
    assert_one_line(second, " is in use by another Parley process")
    said = await parley.run("chat", stdin="what is 12*7?\n")
    assert "> 84" in said.stdout
    assert (await parley.health())[0] == 200


async def test_a_fork_does_what_a_new_process_does(tmp_path: Path) -> None:
    """The same words and the same exit code; the desk's tests have forks for most processes."""
    new = await ParleyProcess(tmp_path, fresh=True).run("run", "--prot", "0")
    assert new == await ParleyProcess(tmp_path).run("run", "--prot", "0")
    assert new.code == 2
    assert "--port" in new.stderr


async def test_a_taken_port_is_named(parley: ParleyProcess, tmp_path: Path) -> None:
    """Another home on the same port: one line that names the setting."""
    other = ParleyProcess(tmp_path / "other")
    finished = await other.run("run", "--port", str(parley.port))
    assert_one_line(finished, f"cannot listen on 127.0.0.1:{parley.port} (web.host, web.port)")


@pytest.mark.thorough
async def test_bad_settings_stop_the_start(tmp_path: Path) -> None:
    """Each problem is one line with file, key, value and what is allowed."""
    (tmp_path / "parley.yaml").write_text("queue: {mode: fifo}\nacess: {}\n")
    finished = await ParleyProcess(tmp_path, fresh=True).run("run", "--port", "0")
    assert finished.code == 1
    lines = finished.stderr.splitlines()
    assert len(lines) == 2
    assert any(
        "queue.mode: 'fifo' in parley.yaml" in line and "'collect'" in line for line in lines
    )
    assert any("acess: unknown key in parley.yaml; did you mean access?" in line for line in lines)
    assert not (tmp_path / "parley.db").exists()


async def test_sigterm_lets_the_answer_finish(parley: ParleyProcess) -> None:
    """A stop in mid-answer: who looks on gets the whole answer, and then the process ends."""
    chat, onlooker = WebChat(parley), WebChat(parley)
    await chat.say("count to 200")
    await chat.until(lambda: chat.preview)
    code, _ = await asyncio.gather(parley.terminate(), onlooker.until(lambda: onlooker.answers))
    assert code == 0
    assert "199, 200" in onlooker.answers[0]
    assert parley.transcript()[1] == ("assistant", onlooker.answers[0])
    # On PostgreSQL it has told the others in between.
    told = [record["event"] for record in parley.records if record["event"] != "replica_left"]
    assert told[-2:] == ["message_sent", "gateway_stopped"]


@pytest.mark.thorough
async def test_a_second_sigterm_does_not_wait(parley: ParleyProcess) -> None:
    """The answer is cut short, resumed at the next start, and given once."""
    chat = WebChat(parley)
    await chat.say("count to 500")
    await chat.until(lambda: chat.preview)
    parley.signal(signal.SIGTERM)
    await parley.event("gateway_stopping")
    assert await parley.terminate() == 0
    assert len(parley.transcript()) == 1
    await parley.restart()
    finished = await parley.event("turn_finished")
    await chat.until(lambda: chat.answers)
    assert finished["attempt"] == 1
    assert len(chat.answers) == 1


async def test_the_welcome_names_what_comes_next(parley: ParleyProcess) -> None:
    """Stderr tells a person where to go and what to set; stdout is the log alone."""
    await parley.wait_until(lambda: "PARLEY_PLATFORMS__TELEGRAM__TOKEN" in str(parley.stderr))
    caching, summaries, ready = parley.stderr[1:4]
    assert "Prompt caching: off" in caching
    assert "Summaries: the extractor alone" in summaries
    assert f"{parley.url.replace('127.0.0.1', 'parley.localhost')}/" in ready
    assert "ANTHROPIC_API_KEY" in str(parley.stderr)


def assert_one_line(finished: Finished, text: str) -> None:
    """A command ended with exit code 1 and one line on stderr that says why."""
    assert finished.code == 1, finished
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    assert text in finished.stderr
