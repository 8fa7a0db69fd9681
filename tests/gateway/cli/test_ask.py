"""`parley ask`: through the gateway that runs, or one of its own; no question is lost."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from adapters.messages import Choice
from gateway.cli import ask
from gateway.cli.ask import OneAnswer, alone, exchange, question_with
from gateway.errors import GatewayError
from tests.adapters.web.test_terminal import Gateway
from tests.support.crash import until
from tests.support.gateway import settings_of
from tests.support.process import ParleyProcess

WAIT_S = 60


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A web chat that answers each message, on a socket."""
    found = Gateway(tmp_path / "parley.sock")
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A home with the offline model."""
    (tmp_path / "parley.yaml").write_text("web: {port: 0}\nmodel: {provider: offline}\n")
    return tmp_path


@pytest.mark.thorough
async def test_a_question_without_a_gateway(configured: Path) -> None:
    """One is started for it, and what is piped in is its context; tokens and cost are told."""
    parley = ParleyProcess(configured)
    done = await parley.run("ask", "--json", "What is this?", stdin="some context\n")
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert "some context" in told["answer"]
    assert told["state"] == "done"
    assert told["tokens"]["output"] > 0
    assert len(told["trace"]) == 32
    again = await parley.run("ask", "--conversation", told["chat"], "What was my first message?")
    assert again.code == 0
    assert "What is this?" in again.stdout
    assert not (configured / "parley.sock").exists()
    # What it does without is no change of the settings.
    logged = await parley.run("audit", "export")
    rows = map(json.loads, logged.stdout.splitlines())
    [noted] = [row for row in rows if row["kind"] == "settings_changed"]
    assert noted["detail"]["settings"]["web.enabled"] == "true"


async def test_a_question_to_the_gateway_that_runs(gateway: Gateway) -> None:
    """Over its socket; a notice before the answer is no answer."""
    told = await exchange(gateway.path, "hello", "t", WAIT_S)
    assert told == OneAnswer("**hello**!", (), told.seq, needs_person=False)


async def test_what_is_said_beside_the_answer_is_shown_at_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and on stderr: why it takes so long. What is said to another question is not."""
    warned, told = list[str](), asyncio.Event()
    monkeypatch.setattr(ask, "warn", lambda text: (warned.append(text), told.set()))
    gateway.reply = lambda _: None
    asking = asyncio.ensure_future(exchange(gateway.path, "hello", "t", WAIT_S))
    await gateway.history.admitted.wait()
    await gateway.answer("Budget used up.", 9, notice=True)
    await gateway.answer("I keep trying.", 1, notice=True)
    await told.wait()
    await gateway.answer("Here.", 1)
    assert ((await asking).text, warned) == ("Here.", ["I keep trying."])


async def test_a_question_that_a_person_has_to_answer_first(gateway: Gateway) -> None:
    """It is told as what it is."""
    choices = (Choice("Approve once", "/approve 1 once"), Choice("Deny", "/deny 1"))

    def reply(_: str) -> str:
        gateway.history.answer("t", "May I?", choices=choices)
        return "later"

    gateway.reply = reply
    told = await exchange(gateway.path, "delete it", "t", WAIT_S)
    assert told.needs_person
    assert "May I?" in told.text


@pytest.mark.thorough
async def test_an_answer_that_does_not_come(gateway: Gateway) -> None:
    """The wait has an end; the question stays."""
    gateway.reply = lambda _: None
    with pytest.raises(TimeoutError):
        await exchange(gateway.path, "hello", "t", 5.0)
    assert [each.text for each in gateway.history.messages] == ["hello"]


async def test_a_question_that_is_not_taken(gateway: Gateway) -> None:
    """The reason is the gateway's own."""
    with pytest.raises(GatewayError):
        await exchange(gateway.path, " ", "t", WAIT_S)


def _was_asked(parley: ParleyProcess) -> bool:
    with suppress(sqlite3.OperationalError):
        return bool(parley.rows("SELECT 1 FROM inbox"))
    return False


@pytest.mark.thorough
async def test_an_interrupted_question_is_not_lost(configured: Path) -> None:
    """Ctrl-C stops the gateway as it stops any; the next question finds the one before."""
    parley = ParleyProcess(configured)
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli.main", "ask", "--conversation", "c", "Count to 500"),
        env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(configured)},
        cwd=Path(__file__).parents[3],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        # No command: on a busy machine the answer comes before one has started.
        await until(lambda: _was_asked(parley))
        asking.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_S):
            _, err = await asking.communicate()
        assert asking.returncode in {0, ask.INTERRUPTED}, err
    finally:
        if asking.returncode is None:
            asking.kill()
    again = await parley.run("ask", "--conversation", "c", "What was my first message?")
    assert again.code == 0, again.stderr
    assert "Count to 500" in again.stdout


def test_what_is_asked() -> None:
    """The question first; what was piped in alone is one as well."""
    assert question_with("Why?", "a\nb") == "Why?\n\na\nb"
    assert question_with(None, "a") == "a"
    with pytest.raises(typer.BadParameter, match="ask something"):
        question_with("  ", "")


@pytest.mark.thorough
async def test_a_wrong_name_is_a_wrong_call(configured: Path) -> None:
    """Before anything is started."""
    done = await ParleyProcess(configured).run("ask", "--conversation", "no name", "hello")
    assert done.code == 2
    assert "not a chat name" in done.stderr


def test_a_gateway_for_one_question_is_alone(tmp_path: Path) -> None:
    """No platform, no page, no timer; it tells nobody of troubles, nor that they are over."""
    settings = settings_of(
        tmp_path,
        platforms={"telegram": ({"token": "123456789:AAExampleExampleExampleExampleExample"},)},
        backup={"to": "kept"},
        telemetry={"otlp_endpoint": "http://127.0.0.1:4318"},
    )
    assert settings.alerts.enabled
    own = alone(settings)
    assert not own.platforms.on()
    assert not own.web.enabled
    assert own.backup.to is None
    assert not own.alerts.enabled
    assert own.telemetry.otlp_endpoint is None
    assert own.storage == settings.storage
