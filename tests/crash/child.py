"""The gateway that is killed: `gateway.app.run` with a scripted model, tools and a test platform.

Nothing in the gateway knows of the points at which it dies: this module wraps
`SqliteDatabase.write`, the model, the tools and the adapter of its own process.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

import aiohttp
import structlog
from pydantic import SecretStr
from sqlalchemy import Connection
from structlog.typing import EventDict

from adapters.base import UNANNOUNCED, Adapter, Intake, PreviewIntent
from adapters.discord.platform import DiscordSettings
from adapters.door import Door
from adapters.errors import (
    AdapterDisconnected,
    AdapterRefused,
    FetchRejected,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from adapters.messages import (
    Address,
    Attachment,
    Cursor,
    InboundMessage,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from adapters.outbound import Outbound, Shut
from adapters.pacing import PaceLimits, Pacer, Slot
from adapters.registry import Host, PlatformSection, account_of, renderer
from adapters.slack.platform import SlackSettings
from adapters.telegram.platform import TelegramSettings
from adapters.web.platform import WebSettings
from agent.errors import ModelUnreachable
from agent.messages import ChatMessage, Usage, assistant_message
from agent.models.base import Completion, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import FREE, ModelFacts
from agent.models.recovery import Recovery, RetryPolicy
from agent.ports import Inquiry, TodoItem
from agent.processes.confinement import why_not
from agent.processes.walls import Sandbox
from agent.settings import (
    TAINTED_ROWS,
    AgentSettings,
    CompressionSettings,
    ContextSettings,
    OutputSettings,
    TerminalSettings,
    ToolSettings,
)
from agent.tools import policy
from agent.tools.builtin.people import delegate_task
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Arguments, Tool, ToolRegistry
from agent.tools.sandbox.terminal import Terminal, TerminalArguments
from agent.turn.request import Agent
from gateway import app, wiring
from gateway.access.policy import Access
from gateway.errors import GatewayError, StorageUnavailable
from gateway.findings import models, telling, watch
from gateway.findings.report import FINDINGS
from gateway.findings.telling import AlertsTold
from gateway.findings.watch import AlertWatch
from gateway.http.server import ChatHistory
from gateway.pipeline import delegation, next_turn, worker
from gateway.pipeline.next_turn import burst
from gateway.settings.tree import (
    AccessSettings,
    AlertSettings,
    QueueSettings,
    Settings,
    StorageSettings,
)
from gateway.storage import migrations, postgres, presence
from gateway.storage.engine import SqliteDatabase
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.presence import Presence
from gateway.storage.queue import blame, leases
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.sqlite_file import connected
from gateway.supervision import crash_journal, home, silence
from gateway.supervision.crash_journal import CrashJournal
from gateway.wiring import Accounts
from tests.crash.mutants import MUTANTS, replace_in
from tests.support.crash import Spec
from tests.support.crash_platform import ask, tell
from tests.support.crash_script import (
    PAYLOADS,
    RESENT,
    SUMMARY,
    TOOLS,
    UNFINISHED,
    Verb,
    answer,
    asks,
    calls_for,
    split_view,
)
from tests.support.door import TOKEN

LENGTHS = {"long": 100, "huge": 10_000}
OUTPUT = OutputSettings(max_bytes=256)
"""Repetitions in a tool's output; `huge` needs new pages of the database."""
TOLD = {"turn_failed", "turn_buried", "lease_lost", "message_sent"}
SOURCE = "loopback:default"
ANSWERED_IN_S = 60.0
MENU = [("status", "show the state of this conversation")]
BLOCKS = {"telegram": TelegramSettings, "discord": DiscordSettings, "slack": SlackSettings}
FAST = PaceLimits(
    per_s=100_000,
    chat_interval_s=0,
    group_per_min=100_000,
    group_preview_interval_s=0.0,
    typing_interval_s=0,
)


def live(raw: dict[str, Any]) -> NoReturn:
    """Be a gateway until the end of this process. Exit code 3: it refused to start."""
    spec = Spec(**raw)
    sys.stderr = sys.stdout = open(Path(spec.home) / "child.log", "a", buffering=1)  # noqa: SIM115, PTH123
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(),
            partial(_forward, spec.port),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    code = 0
    try:
        life = Life(spec)
        settings = life.prepare()
        with home.own_home(settings) as journal:
            asyncio.run(life.run(settings, journal))
    except GatewayError as exc:
        print(repr(exc), file=sys.stderr)
        code = 3
    except BaseException:  # noqa: BLE001 - the process ends here and says why
        traceback.print_exc()
        code = 1
    os._exit(code)


def _forward(port: int, _: Any, __: str, event: EventDict) -> EventDict:
    """Tell the platform of what a test may wait for."""
    if event["event"] in TOLD:
        tell(port, event["event"])
    return event


def shorten_leases(lease_s: float) -> None:
    """Have leases last only so long, wherever that is known, and transactions as much shorter."""
    share = lease_s / leases.LEASE_S
    for limit, ms in postgres.TIMEOUTS_MS.items():
        # Not so short that a busy machine takes as long between two statements.
        postgres.TIMEOUTS_MS[limit] = max(round(ms * share), 500)
    replace_in(presence, LOCKS_IN_MS=round(presence.LOCKS_IN_MS * share))
    for name, module in [*sys.modules.items()]:
        if name.startswith("gateway.") and hasattr(module, "LEASE_S"):
            replace_in(module, LEASE_S=lease_s)


LOOK_EVERY_S, LOOK_TOGETHER_EVERY_S = 0.2, 1.0
OF_MINUTES = {models: ("FAILING_S",), telling: ("QUIET_S", "LONGEST_QUIET_S")}
"""An answer waits as long as in earnest: a platform that was silent is not asked again at once."""
OF_SILENCE = {silence: ("SILENT_AFTER_S",)}
LEAST_SILENCE = 0.1
"""Of these, whatever a minute is: a busy machine is silent for some seconds."""


def look_for_alerts(spec: Spec) -> None:
    """Look all the time, tell the platform so, and have minutes last as long as the spec says."""
    share, look = spec.minute_s / 60.0, AlertWatch.look
    for of, part in ((OF_MINUTES, share), (OF_SILENCE, max(share, LEAST_SILENCE))):
        for module, names in of.items():
            replace_in(module, **{name: getattr(module, name) * part for name in names})
    for kind in [*FINDINGS.values()]:
        after_s = kind.after_s * max(share, LEAST_SILENCE)
        FINDINGS[kind.id] = replace(kind, after_s=after_s)

    async def telling_look(self: AlertWatch) -> AlertsTold:
        told = await look(self)
        await ask(spec.port, do="note", what="looked", text="")
        return told

    alone = spec.url is None
    replace_in(watch, LOOK_EVERY_S=LOOK_EVERY_S if alone else LOOK_TOGETHER_EVERY_S)
    replace_in(AlertWatch, look=telling_look)


def _storage(spec: Spec) -> StorageSettings:
    ways = {"url": spec.url, "direct_url": spec.direct_url}
    known = {key: SecretStr(url) for key, url in ways.items() if url is not None}
    return StorageSettings(**known)


def burst_or_fail(entries: Sequence[InboxEntry], queue: QueueSettings) -> list[InboxEntry]:
    """Return the next turn's entries; fail, as a bug would, at one that asks for it."""
    if asks(entries[0].text, "stuck"):
        raise RuntimeError("a turn that cannot begin")
    return burst(entries, queue)


class Points:
    """The named points of one life, and what happens at one of them."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._reached: Counter[str] = Counter()
        # On PostgreSQL transactions run on several threads.
        self._counting = threading.Lock()
        self.writes_asked = self.writes_run = 0

    def reach(self, name: str) -> None:
        """Die here, or stop until SIGCONT, if the spec says so."""
        with self._counting:
            self._reached[name] += 1
            here = [name, self._reached[name]]
        if here == self._spec.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if here == self._spec.pause:
            self._pause()
        for *point, loss in self._spec.losses:
            if here == point:
                tell(self._spec.port, f"lose {loss}")

    def _pause(self) -> None:
        """Stop; with SQLite never within a transaction: its lock would keep the successor out.

        Called there in the event loop, which brings no further work to the writer meanwhile.
        """
        tell(self._spec.port, "paused")
        if self._spec.url is not None:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        while self.writes_run < self.writes_asked:
            time.sleep(0.001)
        # The last one may be at its COMMIT, where `in_transaction` is False already: SQLite notes
        # the end before it writes and syncs. Who gets the lock knows that it is over.
        with closing(sqlite3.connect(Path(self._spec.home) / "parley.db")) as other:
            other.isolation_level = None
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        os.kill(os.getpid(), signal.SIGSTOP)


class Life:
    """One process from its start to its end."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.points = Points(spec)
        self.previewed = asyncio.Event()
        self._events = os.open(spec.events, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def prepare(self) -> Settings:
        """Patch this process as its spec says; return the settings."""
        spec = self.spec
        replace_in(wiring, build_agent=self._agent, build_accounts=self._accounts)
        for engine in (SqliteDatabase, PostgresDatabase):
            replace_in(engine, write=observed(engine.write, self.points))
        replace_in(Presence, run=observed(Presence.run, self.points))
        replace_in(Pacer, wait=observed_pace(Pacer.wait, self.points))
        if spec.url is None:
            replace_in(migrations, connected=self._connected)
        replace_in(worker, RETRY_AFTER_S=spec.retry_after_s)
        replace_in(delegation, MAX_S=spec.child_s)
        replace_in(next_turn, burst=burst_or_fail)
        replace_in(blame, QUIET_S=spec.quiet_s, TRIAL_SHARE=spec.trial_share)
        if spec.lease_s is not None:
            shorten_leases(spec.lease_s)
        look_for_alerts(spec)
        replace_in(crash_journal, BEAT_S=spec.beat_s)
        replace_in(Access, standings=lambda *_: {"member"})
        if not spec.locked:
            replace_in(home, lock_database=lambda _: nullcontext())
        if spec.mutant is not None:
            MUTANTS[spec.mutant](self)
        return Settings(
            home=Path(spec.home),
            queue=QueueSettings(
                mode=spec.mode,
                debounce_ms=spec.debounce_ms,
                grace_s=spec.grace_s,
                max_concurrent_turns=spec.slots,
                max_attempts=spec.attempts,
            ),
            access=AccessSettings(mode="open", rate_per_min=0),
            alerts=AlertSettings(to=(spec.alerts_to,), disk_free_bytes=spec.disk_free_bytes),
            storage=_storage(spec),
            web=WebSettings(port=spec.web_port, token=SecretStr(TOKEN)),
            compression=CompressionSettings(protect_last_n=2),
            context=ContextSettings(engine=spec.engine),
            tools=ToolSettings(
                mcp=spec.mcp,
            ),
        )

    async def run(self, settings: Settings, journal: CrashJournal) -> None:
        """Run the gateway as `parley run` does."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._fill_disk)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._free_disk)
        await app.run(settings, self._start, journal)

    async def _start(self, _: app.Gateway) -> app.OnReady:
        return self._ready

    def _ready(self, port: int, _checks: object) -> None:
        self.note("ready", port=port)
        tell(self.spec.port, "ready")

    def note(self, what: str, **facts: Any) -> None:
        """Write down what happened; it outlives the process."""
        event = {"what": what, "pid": os.getpid(), **facts}
        os.write(self._events, json.dumps(event).encode() + b"\n")

    @contextmanager
    def _connected(self, path: Path) -> Iterator[Connection]:
        with connected(path) as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            self._raw = raw
            if self.spec.pages is not None:
                self._limit(self.spec.pages)
            yield connection

    def _limit(self, pages: int) -> None:
        """Let the database grow by this many pages; after that the disk is full."""
        (used,) = self._raw.execute("PRAGMA page_count").fetchone()
        self._raw.execute(f"PRAGMA max_page_count={used + pages}")

    def _fill_disk(self) -> None:
        self._limit(0)
        tell(self.spec.port, "disk full")

    def _free_disk(self) -> None:
        self._limit(1_000_000)

    async def wait_for_preview(self) -> None:
        """Give the gateway time to show what was streamed; it may choose not to."""
        for _ in range(self.spec.preview_looks):
            if not self.previewed.is_set():
                await asyncio.sleep(0.001)

    @property
    def rules(self) -> ApprovalRules:
        """Rules of the spec; with "never" no call asks, not even after a long message."""
        if self.spec.approval != "never":
            return ApprovalRules(policy.build_table(self.spec.approval))
        return ApprovalRules(policy.build_table("never", without=TAINTED_ROWS))

    def _agent(self, *given: Any) -> Agent:
        *_, foreign = given
        return Agent(
            models=[ChainModel(self)],
            tools=ToolRegistry([*map(self._tool, TOOLS), delegate_task, *foreign], OUTPUT),
            settings=AgentSettings(),
            approval=self.rules,
            recovery=Recovery(RetryPolicy(backoff_s=(0.001,))),
            max_output_tokens=100,
        )

    def _tool(self, name: str) -> Tool:
        async def run(context: ToolContext, arguments: "Line") -> str:
            call = f"{arguments.line}-{name}"
            self.points.reach(f"{name}: before its effect")
            if name == "boom":
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "hand":
                assert context.files is not None
                await context.files.offer("hand.txt", "text/plain", arguments.line.encode())
            if name == "ask":
                assert context.services.people is not None
                await context.services.people.ask(
                    Inquiry("clarify", context.call_id, name, "Which?", ("this", "that"))
                )
            if name in {"plan", "keep"}:
                await note_down(name, context, call)
            self.note("effect begins", call=call)
            if name == "shell":
                await endless_command(context, Path(self.spec.home) / "workspace")
            self.points.reach(f"{name}: within its effect")
            self.note("effect ends", call=call)
            self.points.reach(f"{name}: after its effect")
            return f"done {call}" + " and more" * LENGTHS.get(name, 0)

        return Tool(name, f"Do {name}.", TOOLS[name], Line, run)

    def _accounts(self, settings: Settings) -> Accounts:
        if self.spec.real is None:
            render = LoopbackAdapter.split
            here = ("loopback", "default")
            return Accounts({here: render}, lambda intake, *_: [LoopbackAdapter(self, intake)])
        platform, given = self.spec.real
        block = settings.web if platform == "web" else BLOCKS[platform].model_validate(given)

        def connect(intake: Intake, chats: ChatHistory, door: Door) -> list[Adapter]:
            if platform == "web":
                web = import_module("adapters.web.adapter").WebAdapter
                host = Host(intake, chats, MENU, 20_000_000, door)
                return [self._observed(web(block, host))]
            return [self._observed(self._real(platform, block, intake))]

        here = (platform, account_of(block))
        return Accounts({here: renderer(platform, block)}, connect)

    def _real(self, platform: str, block: PlatformSection, intake: Intake) -> Any:
        make = getattr(import_module(f"adapters.{platform}.adapter"), f"{platform.title()}Adapter")
        options = {"poll_timeout_s": 1} if platform == "telegram" else {}
        adapter = make(block, intake, MENU, limits=FAST, **options)
        adapter.preview_interval_s = 0.0 if self.spec.style == "edit" else 60.0
        return adapter

    def _observed(self, adapter: Any) -> Adapter:
        """Return an adapter with a point on each side of what it shows and takes off."""
        send, preview = adapter.send, adapter.preview

        async def observed_send(message: Outgoing) -> Receipt:
            self.points.reach("send: before the request")
            IS_SENDING.set(True)
            receipt: Receipt = await send(message)
            IS_SENDING.set(False)
            self.points.reach("send: accepted, no receipt yet")
            return receipt

        withdraw = adapter.withdraw

        async def observed_withdraw(withdrawal: Withdrawal) -> None:
            self.points.reach("withdraw: before the request")
            await withdraw(withdrawal)
            self.points.reach("withdraw: done, not stored yet")

        async def observed_preview(
            question: MessageRef, text: str, ref: str | None, **options: Any
        ) -> str | None:
            shown: str | None = await preview(question, text, ref, **options)
            if shown != ref:
                self.points.reach("preview: accepted, its id not stored yet")
            self.previewed.set()
            return shown

        adapter.send = observed_send
        adapter.preview = observed_preview
        adapter.withdraw = observed_withdraw
        return cast("Adapter", adapter)


async def endless_command(context: ToolContext, workspace: Path) -> None:
    """Run a command that tells its processes by the pipe `started`, and never ends."""
    command = "exec 7> started; setsid sleep 300 & echo $$ >> runs; echo $$ >&7; wait"
    options = TerminalSettings(confine=why_not() is None)
    arguments = TerminalArguments.model_validate({"command": command})
    sandbox = Sandbox("landlock" if options.confine else "none", "", {})
    await Terminal(options, sandbox, 10**9).run(replace(context, workspace=workspace), arguments)


async def note_down(name: str, context: ToolContext, call: str) -> None:
    """Write the list, or a note."""
    assert context.services.notebook is not None
    if name == "plan":
        await context.services.notebook.set_todo([TodoItem(call)])
    else:
        await context.services.notebook.change("memory", remove=None, add=call)


class Line(Arguments):
    """What every tool takes."""

    line: str


Write = Callable[..., Awaitable[Any]]


def observed(write: Write, points: Points) -> Write:
    """Return `SqliteDatabase.write` with a point before and after the commit of each function."""

    async def observed_write(
        self: SqliteDatabase, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = getattr(fn, "func", fn).__name__.lstrip("_")

        def body(conn: Any) -> Any:
            points.writes_run += 1
            value = fn(conn, *args, **kwargs)
            points.reach(f"before commit of {name}")
            return value

        points.writes_asked += 1
        value = await write(self, body)
        points.reach(f"after commit of {name}")
        return value

    return observed_write


IS_SENDING = ContextVar("IS_SENDING", default=False)
"""Whether a row is on its way through the adapter of a real platform."""


def observed_pace(wait: Callable[..., Awaitable[Slot]], points: Points) -> Any:
    """Return `Pacer.wait` with a point behind it, for rows alone."""

    async def observed_wait(self: Pacer, chat: str, *, group: bool) -> Slot:
        slot = await wait(self, chat, group=group)
        if IS_SENDING.get():
            points.reach("send: its turn has come")
        return slot

    return observed_wait


DEATHS: dict[Verb, Callable[[], None]] = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": sys.exit,
}


class ChainModel:
    """Answers as tests/support/crash_script.py says."""

    provider = "scripted"
    name = label = "chain"
    cache_layout = None
    facts = ModelFacts("chain", prices=FREE)

    def __init__(self, life: Life) -> None:
        self.context_length = life.spec.window
        self._life = life
        self._troubles: Counter[str] = Counter()

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Call the tools that the turn asks for, then answer; or write a summary."""
        points = self._life.points
        if request.messages[0]["role"] != "system":
            points.reach("summary: asked")
            await asyncio.sleep(self._life.spec.think_s)
            return Completion(assistant_message(SUMMARY), "stop", Usage(1, 1), self.name)
        previous, text, own = split_view(request.messages)
        self._life.note("model", text=text)
        points.reach("model: asked")
        await asyncio.sleep(self._life.spec.think_s)
        await self._trouble(text)
        calls = calls_for(text)
        if calls and not own:
            message = ChatMessage(role="assistant", content=None, tool_calls=calls)
            return Completion(message, "tool_calls", estimate_usage(request, message), self.name)
        said = answer(previous, text, [each for each in own if each["role"] == "tool"])
        self._life.previewed.clear()
        sink.push(said[: len(said) // 2])
        if self._life.spec.style == "edit":
            await self._life.wait_for_preview()
        points.reach("model: in its stream")
        sink.push(said[len(said) // 2 :])
        points.reach("model: answered")
        message = assistant_message(said)
        return Completion(message, "stop", estimate_usage(request, message), self.name)

    async def look_up(self) -> None:
        """There is nobody to ask."""

    async def _trouble(self, text: str) -> None:
        for verb, deed in DEATHS.items():
            if asks(text, verb):
                await ask(self._life.spec.port, do="fuse")
                deed()
        if asks(text, "gate"):
            await ask(self._life.spec.port, do="gate")
        if asks(text, "trouble") and self._troubles[text] < 3:
            self._troubles[text] += 1
            raise ModelUnreachable("scripted")

    async def close(self) -> None:
        """Nothing to give back."""


class LoopbackAdapter:
    """The adapter of `LoopbackPlatform`; acknowledges with its next poll, as Telegram does."""

    platform = "loopback"
    account = "default"
    connected = True
    pool = None
    is_exclusive = True

    def __init__(self, life: Life, intake: Intake) -> None:
        self.receivers = (self,)
        self.idempotent_sends = life.spec.style == "once"
        self.preview_interval_s = 0.0 if life.spec.style == "edit" else 60.0
        self._life = life
        self._intake = intake
        self._port = life.spec.port
        self._outbound = Outbound("loopback", "default", _swapped, lambda _: "reached")

    async def run(self) -> None:
        """Poll, admit, and only then poll behind it."""
        offset = 0
        while True:
            batch = await self._ask(do="poll", offset=offset, limit=self._life.spec.batch)
            if batch.get("error") == "refused":
                raise AdapterRefused("401: nobody knows this token")
            if batch.get("error") == "conflict":
                raise AdapterDisconnected("another process asks for updates")
            updates = batch["updates"]
            messages = [_inbound(number, chat, text) for number, chat, text in updates]
            offset = updates[-1][0] + 1
            try:
                await self._intake.accept(messages, cursors=[Cursor(SOURCE, offset - 1)])
            except StorageUnavailable as exc:
                await self._ask(do="note", what="refused", text=str(exc))
                raise AdapterDisconnected("not stored") from exc

    async def close(self) -> None:
        """Nothing to give back."""

    @staticmethod
    def split(markdown: str) -> list[str]:
        """Split where the script says so."""
        return markdown.split(PAYLOADS)

    render = split

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload."""
        mark = message.outcome_unknown and not (message.preview_ref or self.idempotent_sends)
        self._life.points.reach("send: before the request")
        try:
            request = self._ask(
                do="send",
                chat=message.address.chat,
                text=RESENT * mark + message.payload,
                nonce=message.nonce,
                ref=message.preview_ref,
                buttons=bool(message.choices),
            )
            shown = await self._outbound.run(request, ANSWERED_IN_S)
        except aiohttp.ConnectionTimeoutError as exc:
            raise SendDelayed("not sent") from exc
        except ConnectionError as exc:
            raise SendUnknown("no answer") from exc
        self._life.points.reach("send: accepted, no receipt yet")
        if shown.get("error") == "delay":
            raise SendDelayed("busy", retry_after_s=0.01)
        if shown.get("error") == "reject":
            raise SendRejected("never")
        return Receipt(shown["ref"], resent=mark)

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Take the buttons off a message."""
        self._life.points.reach("withdraw: before the request")
        done = await self._ask(
            do="withdraw",
            chat=withdrawal.address.chat,
            ref=withdrawal.message_ref,
            text=f"{withdrawal.payload}\n→ {withdrawal.note}",
        )
        self._life.points.reach("withdraw: done, not stored yet")
        if done.get("error"):
            raise SendRejected("never")

    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        """Show a growing answer, if the style of this platform is to edit."""
        if self._life.spec.style != "edit":
            return None
        text = text.partition(PAYLOADS)[0] + UNFINISHED
        nonce = "" if ref else await intent.begin()
        chat = question.address.chat
        shown = await self._ask(do="preview", chat=chat, text=text, ref=ref, nonce=nonce)
        self._life.points.reach("preview: accepted, its id not stored yet")
        self._life.previewed.set()
        return str(shown["ref"])

    async def find_preview(
        self, question: MessageRef, nonce: str, _others: frozenset[str]
    ) -> str | None:
        """Look for the preview by its nonce."""
        shown = await self._ask(do="find", chat=question.address.chat, nonce=nonce)
        return None if shown["ref"] is None else str(shown["ref"])

    async def show_working(self, _question: MessageRef) -> None:
        """Show nothing."""

    async def acknowledge(self, _question: MessageRef, _mark: Reaction) -> None:
        """Show nothing."""

    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        """There is nothing to fetch."""
        raise FetchRejected(f"{attachment.name} is nowhere")

    async def _ask(self, **request: Any) -> Any:
        return await ask(self._port, **request)


def _swapped() -> list[Shut]:
    raise AssertionError("its platform always answers")


def _inbound(number: int, chat: str, text: str) -> InboundMessage:
    return InboundMessage(
        address=Address("loopback", "default", chat),
        chat_kind="dm",
        sender=chat,
        sender_name=f"Person {chat}",
        text=text,
        dedupe_key=str(number),
        raw=json.dumps([number, chat, text]),
        message_ref=str(number),
    )
