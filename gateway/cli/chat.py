"""`parley chat`: talks to the running gateway from a terminal, over the socket in PARLEY_HOME.

It uses the web chat's API. In a terminal answers grow and Ctrl-C stops one; piped lines are
answered one by one as plain text. Buttons are numbered lines: a number or a label presses one.
"""

import asyncio
import contextlib
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from adapters.messages import Choice
from agent.processes.threads import in_daemon
from agent.safety.redaction import printable
from gateway.cli.common import out, settings_of
from gateway.errors import GatewayError, GatewayNotRunning, SettingsError
from gateway.http.control import SOCKET

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives input() line editing, in a Python that was built with it

Ask = Callable[[], Awaitable[str | None]]
T = TypeVar("T")

CHAT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The gateway pings every 15 s; three missed pings mean a dead connection.
SILENCE_S = 45.0
PATIENCE_S = 60.0
"""Longest absence of the gateway, such as a restart, in seconds."""
RECONNECT_PAUSE_S = 0.1
PREVIEW_LINES = 12
"""Number of last lines shown of a growing answer."""

chat_app = typer.Typer(add_completion=False)


@chat_app.command()
def chat(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Name of the chat: letters, digits, - and _.")
    ] = "terminal",
) -> None:
    """Talk to the running gateway from the terminal."""
    asyncio.run(talk_over(settings_of(context).home / SOCKET, name))


async def talk_over(
    socket: Path,
    name: str,
    *,
    ask: Ask | None = None,
    console: Console | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Talk until `/quit` or the end of the input.

    Args:
        ask: Returns the next line, None at the end; by default from the process's input.
        console: By default the process's output.
    """
    if not CHAT_NAME.fullmatch(name):
        allowed = "1 to 64 letters, digits, hyphens, underscores"
        raise SettingsError(f"{name!r} is not a chat name: {allowed}")
    console = console or out
    async with connected(socket, name, patience_s) as (client, feed):
        await client.check()
        await Talk(client, feed, ask or asker(sys.stdin, console), console).run()


@contextlib.asynccontextmanager
async def connected(
    socket: Path, name: str, patience_s: float
) -> AsyncIterator[tuple["ChatClient", "Feed"]]:
    """Connect to a chat of the running gateway and follow its events."""
    async with aiohttp.ClientSession(
        "http://localhost",
        connector=aiohttp.UnixConnector(path=str(socket)),
        # No total: the event stream has no end, and its pings show that the gateway is alive.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_S),
        # Without \u escapes, which could make a long text too large.
        json_serialize=lambda data: orjson.dumps(data).decode(),
    ) as http:
        client = ChatClient(http, socket, name, patience_s)
        feed = Feed(client)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(feed.follow(), name="chat-feed")
                yield client, feed
                following.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None


class LineRefused(GatewayError):
    """The gateway refuses a line; the text is its reason."""


class ChatClient:
    """Requests about one chat; connection failures raise GatewayNotRunning."""

    def __init__(
        self, http: aiohttp.ClientSession, socket: Path, name: str, patience_s: float
    ) -> None:
        self._http = http
        self._socket = socket
        self._path = f"/api/chats/{name}"
        self._patience_s = patience_s

    async def check(self) -> None:
        """Make one request without retries."""
        with self._reaching():
            async with self._http.get("/api/chats") as response:
                await _require_done(response)

    async def post(self, text: str) -> int | None:
        """Send a message, retrying under the same id until the gateway is reachable.

        Returns:
            Its position; None if it waits silently until a question is answered.

        Raises:
            LineRefused: It was not accepted.
        """
        # Invalid UTF-8 input becomes lone surrogates, which JSON cannot contain.
        readable = text.encode(errors="replace").decode()
        # The same id for all retries, so the gateway accepts the message once.
        message = {"id": secrets.token_hex(12), "text": readable}

        async def once() -> int | None:
            with self._reaching():
                async with self._http.post(f"{self._path}/messages", json=message) as response:
                    await _require_done(response)
                    admission = await response.json()
                    return None if admission.get("silent") else int(admission["seq"] or 0)

        return await self.patiently(once)

    async def events(self, position: str) -> aiohttp.ClientResponse:
        """Open the event stream after a position ("inbox-outbox"), with retries."""

        async def once() -> aiohttp.ClientResponse:
            with self._reaching():
                path = f"{self._path}/events?format=markdown"
                response = await self._http.get(path, headers={"Last-Event-ID": position})
                await _require_done(response)
                return response

        return await self.patiently(once)

    async def patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        """Retry `once` while the gateway is unreachable, and return its result."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(GatewayNotRunning),
            wait=wait_exponential(multiplier=0.1, max=2),
            stop=stop_after_delay(self._patience_s),
            reraise=True,
        )
        return await retrying(once)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, TimeoutError) as exc:
            text = f"No gateway answers on {self._socket}. Start it with `parley run`."
            raise GatewayNotRunning(text) from exc


async def _require_done(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        is_json = response.content_type == "application/json"
        found = await response.json() if is_json else {}
        raise LineRefused(found.get("message", f"{response.status} {response.reason}"))


@dataclass(slots=True)
class Menu:
    """The open choices; a number identifies a button until its question is answered."""

    _open: dict[int, tuple[Choice, ...]] = field(default_factory=dict)

    def offer(self, buttons: Sequence[Choice]) -> list[str]:
        """Add the buttons of an answer; return the lines that show them."""
        first = max((n + len(group) for n, group in self._open.items()), default=1)
        if buttons:
            self._open[first] = tuple(buttons)
        return [f"  {number}. {button.label}" for number, button in enumerate(buttons, first)]

    def close(self, number: int) -> None:
        """Remove the buttons of a closed question."""
        for first, group in list(self._open.items()):
            if question_of(group) == str(number):
                del self._open[first]

    def said(self, line: str) -> str:
        """Return the text of the button chosen by a line, else the line.

        A choice removes the buttons of its answer; another message removes all but those of
        questions; a command removes none.
        """
        chosen = [
            (first, button)
            for first, group in self._open.items()
            for number, button in enumerate(group, first)
            if line.casefold() in {str(number), button.label.casefold()}
        ]
        if len(chosen) == 1:
            [(first, button)] = chosen
            del self._open[first]
            return button.text
        if not line.startswith("/"):
            self._open = {n: group for n, group in self._open.items() if question_of(group)}
        return line


def question_of(buttons: Sequence[Choice]) -> str:
    """Return the number of the question that the buttons answer; "" without one."""
    words = [word for button in buttons[:1] for word in button.text.split()[1:2]]
    return words[0] if words and words[0].isdecimal() else ""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer, or a notice before it, with the position of its message.

    Attributes:
        over: The number of a closed question; all other fields are then empty.
    """

    inbox_seq: int
    markdown: str
    notice: bool
    files: tuple[str, ...] = ()
    buttons: tuple[Choice, ...] = ()
    over: int = 0

    @property
    def asks(self) -> bool:
        """Whether it is a question to answer first."""
        return bool(question_of(self.buttons))


class Feed:
    """The events of the chat since the connection.

    Attributes:
        answers: Answers in order, without those before the first `synced`.
        preview: The unfinished answer; may be empty.
        failure: Why no more events will come: the gateway is gone or refuses.
    """

    def __init__(self, client: ChatClient) -> None:
        self.answers: list[ChatAnswer] = []
        self.preview = ""
        self.synced = False
        self.interrupted = False
        self.failure: GatewayError | None = None
        self._client = client
        self._position = "0-0"
        self._seen: set[tuple[int, int]] = set()
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Read the stream, reconnecting as needed, until cancelled or `failure` is set."""
        while self.failure is None:
            try:
                async with await self._client.events(self._position) as response:
                    await self._read(response)
            except GatewayError as exc:
                self.failure = exc
            except (aiohttp.ClientError, TimeoutError):
                self.preview = ""
            self._changed.set()
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def until(self, done: Callable[[], bool], on_change: Callable[[], None]) -> None:
        """Wait until `done()` is true, checked after every event."""
        while not done():
            if self.failure:
                raise self.failure
            on_change()
            self._changed.clear()
            await self._changed.wait()

    def interrupt(self) -> None:
        """Record a Ctrl-C and wake the waiter."""
        self.interrupted = True
        self._changed.set()

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        async for name, data, event_id in events(response.content):
            self._position = event_id or self._position
            self._take(name, data)
            self._changed.set()

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name == "item":
            self._take_item(data)
        elif name == "preview":
            self.preview = data["markdown"]
        elif name == "preview_end":
            self.preview = ""
        elif name == "synced":
            self.synced = True

    def _take_item(self, data: dict[str, Any]) -> None:
        place = (data["inbox_seq"], data["outbox_seq"])
        if self.synced and data["outbox_seq"] and place not in self._seen:
            notice = data.get("notice", False)
            files = tuple(str(file["name"]) for file in data.get("files", ()))
            buttons = tuple(Choice(**choice) for choice in data.get("choices", ()))
            over = data.get("over", 0)
            text = "" if over else data["markdown"]
            self.answers.append(ChatAnswer(data["inbox_seq"], text, notice, files, buttons, over))
        self._seen.add(place)


async def events(
    content: aiohttp.StreamReader,
) -> AsyncIterator[tuple[str, dict[str, Any], str | None]]:
    """Yield name, data and id of each server-sent event, without pings."""
    rest = b""
    async for chunk in content.iter_any():
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            lines = (line.partition(b": ") for line in frame.split(b"\n"))
            fields = {key.decode(): value for key, _, value in lines if key}
            if "event" in fields:
                event_id = fields["id"].decode() if "id" in fields else None
                yield fields["event"].decode(), orjson.loads(fields["data"]), event_id


class Talk:
    """The dialogue: read a line, show its answer, repeat."""

    def __init__(self, client: ChatClient, feed: Feed, ask: Ask, console: Console) -> None:
        self._client = client
        self._feed = feed
        self._ask = ask
        self._console = console
        self._shown = 0
        self._since = 0
        self._menu = Menu()

    async def run(self) -> None:
        """Talk until the input ends."""
        await self._feed.until(lambda: self._feed.synced, lambda: None)
        if self._console.is_terminal:
            self._console.print(Text("/help lists commands, /quit leaves.", style="dim"))
        while (line := await self._ask()) is not None and line.strip() != "/quit":
            if line.strip():
                start = len(self._feed.answers)
                seq = await self._send(self._menu.said(line.strip()))
                if seq is not None:
                    self._since = self._since or seq
                    await self._wait(start, seq)
                self._show_answers()

    async def _send(self, text: str) -> int | None:
        """Send a line; return its position if an answer is expected."""
        try:
            return await self._client.post(text)
        except LineRefused as exc:
            self._console.print(Text(f"Not sent: {exc}", style="red"))
            return None

    async def _wait(self, start: int, seq: int) -> None:
        """Show answers until the line is answered or a question comes."""

        def answered() -> bool:
            news = self._feed.answers[start:]
            return any(it.asks or (it.inbox_seq >= seq and not it.notice) for it in news)

        if self._console.is_terminal:
            await self._watch(answered)
        else:
            await self._feed.until(answered, self._show_answers)

    async def _watch(self, answered: Callable[[], bool]) -> None:
        """Show notices and the growing answer; an interrupt stops it."""
        feed = self._feed
        # Transient, since the answer replaces its preview.
        with on_interrupt(feed.interrupt), Live(console=self._console, transient=True) as live:

            def show() -> None:
                self._show_answers()
                live.update(growing(feed.preview), refresh=True)

            while not answered():
                await feed.until(lambda: feed.interrupted or answered(), show)
                if feed.interrupted:
                    feed.interrupted = False
                    await self._send("/stop")

    def _show_answers(self) -> None:
        """Print new answers: all in a terminal, otherwise those of this dialogue."""
        news, self._shown = self._feed.answers[self._shown :], len(self._feed.answers)
        for answer in news:
            self._menu.close(answer.over)
            if self._console.is_terminal or answer.asks or answer.inbox_seq >= self._since:
                self._show(answer)

    def _show(self, answer: ChatAnswer) -> None:
        if self._console.is_terminal and answer.markdown:
            self._console.print(Markdown(printable(answer.markdown)), "")
        elif answer.markdown:
            self._console.print(
                printable(answer.markdown), markup=False, highlight=False, soft_wrap=True
            )
        files = [f"[file: {name}]" for name in answer.files]
        for line in (*files, *self._menu.offer(answer.buttons)):
            self._console.print(Text(printable(line)), soft_wrap=True)


def growing(preview: str) -> Text:
    """Return the last lines of a growing answer."""
    lines = preview.splitlines()[-PREVIEW_LINES:] or ["working… (Ctrl-C stops)"]
    return Text(printable("\n".join(lines)), style="dim")


@contextlib.contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call `act` instead of ending the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def asker(stdin: Any, console: Console) -> Ask:
    """Return a reader of the process's input, with a prompt in a terminal.

    A daemon thread reads each line, so that an open prompt never keeps the program alive.
    """
    is_dialogue = stdin.isatty() and console.is_terminal
    read = partial(input, "> ") if is_dialogue else lambda: stdin.readline() or None

    async def ask() -> str | None:
        with contextlib.suppress(EOFError):
            return await asyncio.wrap_future(in_daemon(read))
        return None

    return ask
