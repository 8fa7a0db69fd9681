"""The terminal client against a web chat on a Unix socket."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typing_extensions import override

from adapters.messages import Address, Choice, MessageRef, OutgoingFile
from adapters.web.adapter import WebAdapter
from adapters.web.platform import WebSettings
from gateway.cli.chat import LineRefused, asker, growing, talk_over
from gateway.errors import GatewayNotRunning, StorageUnavailable
from gateway.http.server import HttpServer, Port
from tests.adapters.web.conftest import send
from tests.support.door import web_host
from tests.support.history import MemoryHistory

HERE = Address("web", "default", "t")


class Gateway:
    """A web chat on a socket file; it answers each message with `reply(text)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = MemoryHistory(on_admitted=self._admitted)
        self.reply: Callable[[str], str | None] = lambda text: f"**{text}**!"
        self.tasks: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        self.adapter = WebAdapter(WebSettings(), web_host(self.history))
        routes = self.adapter.routes()
        self.server = HttpServer(Port("127.0.0.1", 0, routes), self.path, private=())
        await self.server.start()

    async def stop(self) -> None:
        await self.adapter.close()
        await self.server.stop()

    def _admitted(self, chat_id: str, seq: int, text: str) -> None:
        markdown = self.reply(text)
        if markdown is not None:
            self.tasks.add(asyncio.ensure_future(self.answer(markdown, seq)))

    async def answer(self, markdown: str, inbox_seq: int, **fields: Any) -> None:
        seq = self.history.answer("t", markdown, inbox_seq, **fields)
        await send(self.adapter, "t", seq, markdown)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that runs on tmp_path/parley.sock."""
    found = Gateway(tmp_path / "parley.sock")
    await found.start()
    yield found
    await found.stop()


def lines(*texts: str) -> Callable[[], Awaitable[str | None]]:
    left = list(texts)

    async def ask() -> str | None:
        return left.pop(0) if left else None

    return ask


def piped() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def terminal(screen: io.StringIO | None = None) -> Console:
    return Console(file=screen or io.StringIO(), force_terminal=True, width=80, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_each_line_gets_its_answer(gateway: Gateway) -> None:
    """Piped lines are sent one after another, and the answers printed as they were written."""
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("one\n", "\n", "  two \n"), console=out)
    assert shown(out) == "**one**!\n**two**!\n"
    assert [message.text for message in gateway.history.messages] == ["one", "two"]


@pytest.mark.parametrize("console", ["piped", "terminal"])
async def test_files_are_named(gateway: Gateway, console: str) -> None:
    """A file of an answer is a line with its name; the bytes are in the web chat."""
    file = gateway.history.keep("t", OutgoingFile("a [b].md", "text/markdown", b"# hi"))

    def reply(text: str) -> str:
        gateway.history.answer("t", "", files=(file,))
        return "here it is"

    gateway.reply = reply
    out = piped() if console == "piped" else terminal()
    await talk_over(gateway.path, "t", ask=lines("a file, please"), console=out)
    assert "[file: a [b].md]\n" in shown(out)
    assert "here it is" in shown(out)


async def test_earlier_messages_are_not_shown_again(gateway: Gateway) -> None:
    """A chat that goes on shows only what is new."""
    gateway.history.write("t", "old")
    gateway.history.answer("t", "old answer")
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("new"), console=out)
    assert shown(out) == "**new**!\n"


async def test_buttons_are_chosen_by_number_or_label(gateway: Gateway) -> None:
    """They are numbered; that an answer was taken is not the turn's answer."""
    choices = (Choice("Approve once", "/approve 1 once"), Choice("Deny", "/deny 1"))

    def reply(text: str) -> str | None:
        if text.startswith("/"):
            gateway.history.answer("t", "Taken.", notice=True)
            return "It is done."
        gateway.history.answer("t", "May I?", choices=choices)
        return None

    gateway.reply = reply
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("go", "1", "again", "deny", "2"), console=out)
    texts = [message.text for message in gateway.history.messages]
    assert texts == ["go", "/approve 1 once", "again", "/deny 1", "2"]
    asked = "May I?\n  1. Approve once\n  2. Deny\n"
    taken = "Taken.\nIt is done.\n"
    assert shown(out) == asked + taken + asked + taken + asked


async def test_buttons_of_a_question_that_is_over_cannot_be_chosen(gateway: Gateway) -> None:
    """Their number is what was typed; others stay, and how it ended is no message."""

    def reply(text: str) -> str | None:
        if text == "go":
            gateway.history.answer("t", "May I?", choices=(Choice("Deny", "/deny 1"),))
            gateway.history.answer("t", "Again?", choices=(Choice("Yes", "try again"),))
        elif text == "/stop":
            gateway.history.answer("t", "stopped", notice=True, over=1)
        return "Well."

    gateway.reply = reply
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("go", "/stop", "2", "1"), console=out)
    assert [message.text for message in gateway.history.messages] == [
        "go",
        "/stop",
        "try again",
        "1",
    ]
    assert "stopped" not in shown(out)


def asking(gateway: Gateway, **questions: Choice) -> None:
    """Have some lines asked about before they are answered, and the others told that they wait."""

    def reply(text: str) -> str | None:
        if text in questions:
            gateway.history.answer("t", f"May I {text}?", choices=(questions[text],))
        return None if text in questions else f"re: {text}"

    gateway.reply = reply


async def test_a_question_stays_open_behind_other_messages(gateway: Gateway) -> None:
    """Its button can be chosen until it is over; one that belongs to no question goes."""
    asking(gateway, go=Choice("Yes", "/approve 1 once"), fail=Choice("Try again", "/retry"))
    said = ("go", "second", "1", "fail", "third", "1")
    await talk_over(gateway.path, "t", ask=lines(*said), console=piped())
    texts = [message.text for message in gateway.history.messages]
    assert texts == ["go", "second", "/approve 1 once", "fail", "third", "1"]


@pytest.mark.parametrize("console", [piped(), terminal()])
async def test_a_line_that_nothing_is_said_to_is_not_waited_for(
    gateway: Gateway, console: Console
) -> None:
    """It waits for the answer to a question: the next line may be that; then both are answered."""

    def reply(text: str) -> str | None:
        gateway.history.verdict = {"silent": text == "third"}
        if text == "/approve":
            gateway.history.answer("t", "answer to the third", 1)
        return None if text == "third" else f"re: {text}"

    gateway.reply = reply
    await talk_over(gateway.path, "t", ask=lines("go", "third", "/approve"), console=console)
    assert [message.text for message in gateway.history.messages] == ["go", "third", "/approve"]
    assert "answer to the third" in shown(console)
    assert "re: /approve" in shown(console)


@pytest.mark.parametrize("console", [piped(), terminal()])
async def test_a_question_about_an_older_message_can_be_answered(
    gateway: Gateway, console: Console
) -> None:
    """The line behind it is answered only then, so the next one is read."""
    old = gateway.history.write("t", "older")
    yes = Choice("Yes", "/approve 1 once")

    def reply(text: str) -> str | None:
        if text == "mine":
            gateway.history.answer("t", "May I?", old, choices=(yes,))
            return None
        return "It is done."

    gateway.reply = reply
    await talk_over(gateway.path, "t", ask=lines("mine", "yes"), console=console)
    assert gateway.history.messages[-1].text == yes.text
    assert "It is done." in shown(console)


async def test_an_answer_to_an_older_message_is_not_taken_for_this_one(gateway: Gateway) -> None:
    """The client waits for the answer that belongs to its own line."""
    old = gateway.history.write("t", "slow one")

    def reply(text: str) -> str | None:
        gateway.history.answer("t", "answer to the slow one", old)
        return f"answer to {text}"

    gateway.reply = reply
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("mine"), console=out)
    assert shown(out) == "answer to mine\n"


@pytest.mark.parametrize("console", [piped(), terminal()])
async def test_a_notice_is_not_taken_for_the_answer(gateway: Gateway, console: Console) -> None:
    """It is shown when it comes; the dialogue goes on after the answer."""
    gateway.reply = lambda text: None
    told = asyncio.Event()
    screen = Screen("Please wait.", told.set)
    console.file = screen
    talking = asyncio.ensure_future(talk_over(gateway.path, "t", ask=lines("hi"), console=console))
    await gateway.history.admitted.wait()
    await gateway.answer("Please wait.", 1, notice=True)
    await told.wait()
    assert not talking.done()
    await gateway.answer("The end.", 1)
    await talking
    assert screen.getvalue().count("Please wait.") == screen.getvalue().count("The end.") == 1


async def test_quit_leaves(gateway: Gateway) -> None:
    """`/quit` ends the dialogue and is not sent."""
    await talk_over(gateway.path, "t", ask=lines("/quit", "never"), console=piped())
    assert gateway.history.messages == []


async def test_a_refused_line_is_reported_and_the_next_one_sent(gateway: Gateway) -> None:
    """What the gateway will never take does not end the dialogue."""
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("x" * 200_001, "ok"), console=out)
    assert "Not sent: The message has 200,001 characters" in shown(out).replace("\n", " ")
    assert shown(out).endswith("**ok**!\n")


async def test_what_could_not_be_stored_is_reported_at_once(gateway: Gateway) -> None:
    """A gateway that is there but cannot work says so itself; the dialogue goes on."""

    def reply(text: str) -> str:
        if text == "lost":
            raise StorageUnavailable("database or disk is full")
        return "kept"

    gateway.reply = reply
    out = piped()
    await talk_over(gateway.path, "t", ask=lines("lost", "ok"), console=out)
    told = "Not sent: Parley cannot store messages right now. Please try again. kept "
    assert shown(out).replace("\n", " ") == told


async def test_a_stop_that_could_not_be_stored_is_reported(gateway: Gateway) -> None:
    """The answer is waited for as before."""

    def reply(text: str) -> None:
        if text == "/stop":
            raise StorageUnavailable("database or disk is full")

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        screen.awaited = "Not sent"
        screen.act = lambda: gateway.tasks.add(asyncio.ensure_future(gateway.answer("The end.", 1)))

    gateway.reply = reply
    screen = Screen("working", interrupted)
    await talk_over(gateway.path, "t", ask=lines("a long story"), console=terminal(screen))
    assert "The end." in screen.getvalue()


async def test_a_gateway_that_cannot_read_says_so(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, so nobody is told to start it."""

    async def failing(*_account: str) -> None:
        raise StorageUnavailable("disk I/O error")

    monkeypatch.setattr(gateway.history, "chats", failing)
    with pytest.raises(LineRefused, match="right now"):
        await talk_over(gateway.path, "t", ask=lines("x"), console=piped())


async def test_piped_answers_are_printed_as_they_were_written(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """What looks like markup or like the name of an emoji stays as it is."""
    gateway.reply = lambda text: text
    await talk_over(gateway.path, "t", ask=lines("root:x:0:0 a:100:b [red]"))
    assert capsys.readouterr().out == "root:x:0:0 a:100:b [red]\n"


async def test_bytes_that_are_no_text_are_replaced(gateway: Gateway) -> None:
    """Input that is not UTF-8 still reaches the gateway."""
    await talk_over(gateway.path, "t", ask=lines("a\udcffb"), console=piped())
    assert gateway.history.messages[0].text == "a?b"


async def test_no_socket_means_no_gateway(tmp_path: Path) -> None:
    """Without a socket file the error names what to do."""
    with pytest.raises(GatewayNotRunning, match="parley run"):
        await talk_over(tmp_path / "parley.sock", "t", ask=lines("x"), console=piped())


async def test_a_stale_socket_means_no_gateway(gateway: Gateway) -> None:
    """A socket file that a dead process left behind refuses."""
    await gateway.stop()
    gateway.path.touch()
    with pytest.raises(GatewayNotRunning):
        await talk_over(gateway.path, "t", ask=lines("x"), console=piped())


async def test_the_answer_comes_after_a_restart(gateway: Gateway) -> None:
    """A gateway that restarts in the middle of an answer loses nothing of the dialogue."""
    gateway.reply = lambda text: None
    out = piped()
    talking = asyncio.ensure_future(talk_over(gateway.path, "t", ask=lines("hi"), console=out))
    await gateway.history.admitted.wait()
    await gateway.stop()
    await gateway.start()
    await gateway.answer("after the restart", 1)
    await talking
    assert shown(out) == "after the restart\n"
    assert len(gateway.history.messages) == 1


@pytest.mark.thorough
async def test_a_gateway_that_stays_away_ends_the_dialogue(gateway: Gateway) -> None:
    """After its patience the client gives up and says why."""
    gateway.reply = lambda text: None
    talking = asyncio.ensure_future(
        talk_over(gateway.path, "t", ask=lines("hi"), console=piped(), patience_s=1)
    )
    await gateway.history.admitted.wait()
    await gateway.stop()
    with pytest.raises(GatewayNotRunning):
        await talking
    await gateway.start()


async def test_a_terminal_shows_rendered_answers(gateway: Gateway) -> None:
    """On a terminal markdown is rendered, and a hint says how to leave."""
    out = terminal()
    await talk_over(gateway.path, "t", ask=lines("hi"), console=out)
    assert "/quit leaves" in shown(out)
    assert "hi!" in shown(out)
    assert "**hi**" not in shown(out)


class Screen(io.StringIO):
    """Calls `act` once, when a text is painted."""

    def __init__(self, awaited: str, act: Callable[[], None]) -> None:
        super().__init__()
        self.awaited = awaited
        self.act = act

    @override
    def write(self, text: str) -> int:
        if self.awaited and self.awaited in text:
            self.awaited = ""
            self.act()
        return super().write(text)


async def test_a_terminal_shows_the_growing_answer(gateway: Gateway) -> None:
    """The text so far is on the screen before the answer is there."""
    gateway.reply = lambda text: None
    painted = asyncio.Event()
    out = terminal(Screen("Once upon", painted.set))
    talking = asyncio.ensure_future(talk_over(gateway.path, "t", ask=lines("a story"), console=out))
    await gateway.history.admitted.wait()
    await gateway.adapter.preview(MessageRef(HERE), "Once upon", None)
    await painted.wait()
    await gateway.answer("The end.", 1)
    await talking
    assert "The end." in shown(out)


async def test_ctrl_c_stops_the_answer(gateway: Gateway) -> None:
    """An interrupt while an answer is made asks the gateway to stop it; the dialogue goes on."""
    gateway.reply = lambda text: "Stopped." if text == "/stop" else None
    out = terminal(Screen("working", lambda: os.kill(os.getpid(), signal.SIGINT)))
    await talk_over(gateway.path, "t", ask=lines("a long story"), console=out)
    assert [message.text for message in gateway.history.messages] == ["a long story", "/stop"]
    assert "Stopped." in shown(out)


def test_only_the_end_of_a_long_preview_is_shown() -> None:
    """A growing answer never outgrows the screen."""
    assert growing("\n".join(str(n) for n in range(50))).plain.splitlines()[0] == "38"
    assert "working" in growing("").plain


async def test_piped_input_is_read_to_its_end() -> None:
    """A stream that is no terminal is read line by line, without a prompt."""
    ask = asker(io.StringIO("one\ntwo"), piped())
    assert [await ask(), await ask(), await ask()] == ["one\n", "two", None]


async def test_a_terminal_is_asked_with_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the prompt is shown, and Ctrl-D ends the input."""
    answers = ["hello"]

    def typed(prompt: str) -> str:
        assert prompt == "> "
        if not answers:
            raise EOFError
        return answers.pop()

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    ask = asker(sys.stdin, terminal())
    assert [await ask(), await ask()] == ["hello", None]
