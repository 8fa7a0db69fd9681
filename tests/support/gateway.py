"""A running gateway for tests: the real parts on a real database, a scripted model, a platform.

Leaving `running` is a crash as far as the rows can tell: everything is cancelled where it stands.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from sqlalchemy import Connection, Row, Table, select
from typing_extensions import override

from adapters.messages import Address, Admission, InboundMessage
from agent.messages import ChatMessage, decode, text_of
from agent.models.base import ChatModel, Completion, ModelRequest, TextSink
from agent.models.recovery import Recovery, RetryPolicy
from agent.plugins.registry import Plugins
from agent.settings import AgentSettings
from agent.tools import policy
from agent.tools.gate import ApprovalRules
from agent.tools.policy import ApprovalMode
from agent.tools.registry import Tool, ToolRegistry
from agent.turn.request import Agent
from gateway import app
from gateway.app import Gateway, assembled, parts_of
from gateway.errors import StorageUnavailable
from gateway.logging.recent import TAPS
from gateway.reload.reloading import AgentOrigin
from gateway.settings.tree import Settings
from gateway.storage import schema
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.storage.queue.blame import Death
from gateway.wiring import NO_PLUGINS, accounts_of
from tests.support.crash_platform import REFERENCE
from tests.support.door import TOKEN
from tests.support.engines import storage_of
from tests.support.recording_adapter import RecordingAdapter, Watch
from tests.support.scripted_model import Script, ScriptedModel
from tests.support.thorough import WAIT_S

NO_WAIT = RetryPolicy(retry_for_s=5, backoff_s=(0,))
"""Tries again at once, for longer than any test lasts."""

_keys = itertools.count(1)


def newest_question(request: ModelRequest) -> str:
    """Return the newest user message of a request."""
    return next(text_of(m) for m in reversed(request.messages) if m["role"] == "user")


def echo(request: ModelRequest) -> str:
    """Answer with what was asked; a script for `ScriptedModel`."""
    return f"re: {newest_question(request)}"


class RecordingModel(ScriptedModel):
    """Keeps its requests as they were when they came: their lists go on growing with the turn.

    Attributes:
        watch: The platform's, once a gateway runs with it.
    """

    def __init__(self, script: Script = echo, **options: Any) -> None:
        super().__init__(script, **options)
        self.watch = Watch()

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        return await super().complete(replace(request, messages=list(request.messages)), sink)


class HeldModel(RecordingModel):
    """Waits where a test holds it, after it has shown `begun`.

    Attributes:
        held: Newest message of a request → the event that lets its answer go on.
        waiting: The newest messages of the requests that were held, in order of arrival.
    """

    def __init__(self, script: Script = echo, *, begun: str = "") -> None:
        super().__init__(script)
        self.held: dict[str, asyncio.Event] = {}
        self.waiting: list[str] = []
        self._begun = begun

    def hold(self, newest: str) -> asyncio.Event:
        """Hold the answer to a question, or to a tool's result, until the event is set."""
        return self.held.setdefault(newest, asyncio.Event())

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        newest = text_of(request.messages[-1])
        if newest in self.held:
            self.waiting.append(newest)
            self.watch.note()
            if self._begun:
                sink.push(self._begun)
            await self.held[newest].wait()
            sink.restart()
        return await super().complete(request, sink)


def settings_of(home: Path, **sections: dict[str, Any]) -> Settings:
    """Return settings without waiting times, open to all and owned by u1, changed by `sections`.

    Its database is of the engine that the test runs on.
    """
    defaults: dict[str, dict[str, Any]] = {
        "queue": {"debounce_ms": 0, "grace_s": 10},
        "access": {"mode": "open", "rate_per_min": 0, "owners": ["telegram:u1"]},
        "web": {"port": 0, "token": TOKEN},
        "logging": {"file": False},
        "storage": storage_of(home),
    }
    merged = {name: defaults.get(name, {}) | sections.get(name, {}) for name in defaults | sections}
    return Settings.model_validate({"home": home, **merged})


def agent_of(
    *models_: ChatModel,
    tools: Sequence[Tool] = (),
    retry: RetryPolicy = NO_WAIT,
    approval: ApprovalMode = "never",
) -> Agent:
    """Return an agent with these models and tools, which asks nobody unless told to."""
    return Agent(
        models=models_,
        tools=ToolRegistry(tools),
        settings=AgentSettings(),
        approval=ApprovalRules(policy.build_table(approval)),
        recovery=Recovery(retry),
        max_output_tokens=1024,
    )


def message(text: str, chat: str = "c1", **fields: Any) -> InboundMessage:
    """Return a direct message of user u1 with a new dedupe key, changed by `fields`."""
    platform, thread = fields.pop("platform", "telegram"), fields.pop("thread", None)
    defaults: dict[str, Any] = {
        "chat_kind": "dm",
        "sender": "u1",
        "sender_name": "Una",
        "dedupe_key": f"k{next(_keys)}",
        "raw": "{}",
    }
    address = Address(platform, "default", chat, thread)
    return InboundMessage(address=address, text=text, **defaults | fields)


@dataclass(slots=True)
class Running:
    """A gateway at work, and what a test asks of it."""

    gateway: Gateway
    agent: Agent
    adapter: RecordingAdapter
    log: list[dict[str, Any]]

    async def say(self, text: str, chat: str = "c1", **fields: Any) -> Admission:
        """Hand one message to the intake."""
        [admission] = await self.gateway.intake.accept([message(text, chat, **fields)])
        return admission

    async def ask(self, text: str, chat: str = "c1", **fields: Any) -> str:
        """Hand one message to the intake and return the next text that its chat gets."""
        before = len(self.texts(chat))
        await self.say(text, chat, **fields)
        return (await self.answers(before + 1, chat))[before]

    async def answers(self, count: int, chat: str = "c1") -> list[str]:
        """Wait until a chat was shown this many messages, and return their texts."""
        await self.until(lambda: len(self.texts(chat)) >= count)
        return self.texts(chat)

    def texts(self, chat: str = "c1") -> list[str]:
        """Return what a chat was shown so far, without the references of failures."""
        shown = (sent.payload for sent in self.adapter.shown if sent.address.chat == chat)
        return [REFERENCE.sub("", text) for text in shown]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition on the platform, the held model or the log."""
        await self.adapter.watch.until(condition)

    async def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until an event was logged this often, and return its newest line."""
        await self.until(lambda: len(self.events(event)) >= count)
        return self.events(event)[-1]

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event so far."""
        return [line for line in self.log if line["event"] == event]

    async def rows(self, table: Table) -> list[Row[Any]]:
        """Return all rows of a table in the order of its primary key."""
        query = select(table).order_by(*table.primary_key.columns)
        return await self.gateway.database.read(lambda conn: list(conn.execute(query)))

    async def until_rows(
        self, table: Table, condition: Callable[[list[Row[Any]]], bool]
    ) -> list[Row[Any]]:
        """Look at a table until its rows are as wanted; for what shows itself nowhere else."""
        async with asyncio.timeout(WAIT_S):
            found = await self.rows(table)
            while not condition(found):
                found = await self.rows(table)
        return found

    async def transcript(self) -> list[ChatMessage]:
        """Return all messages of all transcripts."""
        return [decode(row.body) for row in await self.rows(schema.message)]

    async def execute(self, statement: Any) -> None:
        """Change rows behind the gateway's back."""
        await self.gateway.database.write(lambda conn: conn.execute(statement))


async def change(home: Path, fn: Callable[[Connection], Any]) -> None:
    """Run a transaction function on the database of a home that nobody has open."""
    async with open_database(location_of(settings_of(home))) as database:
        await database.write(fn)


def fail_once(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have the disk fail at the first call of a transaction function, to be tried again at once."""
    patch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    function, failures = getattr(owner, name), [StorageUnavailable("disk full")]

    def failing(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return function(*args, **options)

    patch.setattr(owner, name, failing)


AT_WORK = {"replica", "delivery", "prepare summaries", "files", "inquiries"}


@asynccontextmanager
async def running(
    home: Path,
    answers: Script | ChatModel | Agent = echo,
    *,
    adapter: RecordingAdapter | None = None,
    at_work: bool = True,
    death: Death | None = None,
    plugins: Plugins = NO_PLUGINS,
    **sections: dict[str, Any],
) -> AsyncIterator[Running]:
    """Run a gateway in `home`; the same home again is a restart on the same database.

    Args:
        home: PARLEY_HOME.
        answers: A script, a model, or a whole agent.
        adapter: The platform; a new one if not given.
        at_work: Whether worker and delivery run; else there is only the intake.
        death: How the gateway before ended; None: killed just now.
        plugins: Those that are active.
        **sections: Settings by section.
    """
    async with (
        _put_together(home, answers, adapter, sections, death, plugins) as chat,
        asyncio.TaskGroup() as tasks,
    ):
        gateway = chat.gateway
        to_the_stop, to_the_end = parts_of(gateway)
        always = [run for name, run in {**to_the_stop, **to_the_end}.items() if name in AT_WORK]
        runs = [gateway.worker.run, *always] if at_work else []
        work = [tasks.create_task(run()) for run in runs]
        try:
            yield chat
        finally:
            for task in work:
                task.cancel()


@dataclass(slots=True)
class Serving:
    """A whole gateway with its HTTP server; `stop` and `force` are its two signals."""

    chat: Running
    port: int
    stop: asyncio.Event
    force: asyncio.Event
    task: asyncio.Task[None]

    async def get(self, path: str, *, local: bool = True, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of a page, by way of the Unix socket or of the port."""
        home = self.chat.gateway.settings.home
        connector = aiohttp.UnixConnector(str(home / "parley.sock")) if local else None
        url = f"http://parley{path}" if local else f"http://127.0.0.1:{self.port}{path}"
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as http,
            http.get(url) as response,
        ):
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.text()

    async def ended(self) -> None:
        """Wait for the end of a stop."""
        await asyncio.wait({self.task}, timeout=WAIT_S)
        assert self.task.done()


@asynccontextmanager
async def serving(
    home: Path,
    answers: Script | ChatModel | Agent = echo,
    *,
    adapter: RecordingAdapter | None = None,
    **sections: dict[str, Any],
) -> AsyncIterator[Serving]:
    """Run a gateway with everything it has, as `parley run` does; leaving stops it."""
    async with _put_together(home, answers, adapter, sections) as chat, served(chat) as gateway:
        yield gateway


async def serve(
    gateway: Gateway, stop: asyncio.Event, force: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    """Run all parts of a gateway until `stop`; `on_ready` is called with its port."""
    async with app.serving(gateway, stop, force) as (port, _):
        on_ready(port)


@asynccontextmanager
async def served(chat: Running) -> AsyncIterator[Serving]:
    """Run all parts of a gateway that was put together; leaving stops them."""
    stop, force = asyncio.Event(), asyncio.Event()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(serve(chat.gateway, stop, force, ready.set_result), name="serve")
        try:
            yield Serving(chat, await ready, stop, force, task)
        finally:
            stop.set()
            force.set()


@asynccontextmanager
async def _put_together(
    home: Path,
    answers: Script | ChatModel | Agent,
    adapter: RecordingAdapter | None,
    sections: dict[str, dict[str, Any]],
    death: Death | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> AsyncIterator[Running]:
    platform = adapter or RecordingAdapter()
    agent = _agent(answers, platform.watch)
    settings = settings_of(_made(home), **sections)
    async with (
        log_lines(platform.watch) as lines,
        open_database(location_of(settings)) as database,
        assembled(
            settings, database, agent, accounts_of(platform), AgentOrigin(plugins), death=death
        ) as gateway,
    ):
        yield Running(gateway, agent, platform, lines)


def _made(home: Path) -> Path:
    """Make the folder, as whoever holds it has done by then; SQLite would, too."""
    home.mkdir(parents=True, exist_ok=True)
    return home


def _agent(answers: Script | ChatModel | Agent, watch: Watch) -> Agent:
    agent = answers if isinstance(answers, Agent) else agent_of(_model(answers))
    for model in agent.models:
        if isinstance(model, RecordingModel):
            model.watch = watch
    return agent


def _model(answers: Script | ChatModel) -> ChatModel:
    if callable(answers) or isinstance(answers, Iterable):
        return RecordingModel(answers)
    return answers


@asynccontextmanager
async def log_lines(watch: Watch) -> AsyncIterator[list[dict[str, Any]]]:
    """Collect log lines in a list instead of writing them."""
    lines: list[dict[str, Any]] = []

    def keep(_logger: Any, method: str, line: Any) -> Any:
        lines.append({**line, "level": method})
        TAPS.tell(lines[-1])
        watch.note()
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, keep],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    try:
        yield lines
    finally:
        structlog.configure(**before)
