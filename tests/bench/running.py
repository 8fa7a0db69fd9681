"""A gateway as `parley run` assembles it, in this process, for measuring.

Intake, writer, worker, turn, loop, outbox, delivery and JSON logs are the product's own, on a
SQLite file with synchronous=FULL. Replaced are the model (`EchoModel`) and, without the web chat,
the platform (`adapters.null`); `queue.debounce_ms` is 0.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from adapters.messages import Address, Admission, InboundMessage, Outgoing
from agent.models.base import ChatModel
from agent.models.recovery import Recovery, RetryPolicy
from agent.safety.redaction import Redactor
from agent.tools.catalog import builtin_tools
from agent.turn.request import Agent
from gateway.app import Gateway, assembled, parts_of
from gateway.logging.setup import configure_logging
from gateway.replay.player import NullAdapter
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings
from gateway.storage.database import Database, location_of
from gateway.storage.migrations import open_database
from gateway.supervision.home import prepare_home
from gateway.wiring import accounts_of
from tests.bench.echo import EchoModel
from tests.support.door import TOKEN


def bench_settings(home: Path, **overrides: object) -> Settings:
    """Return the default settings but for the debounce, in a home of their own."""
    values = {"home": home, "queue.debounce_ms": 0, "web.port": 0, "web.token": TOKEN, **overrides}
    return load_settings(environ={}, overrides=values).settings


def agent_of(settings: Settings, model: ChatModel) -> Agent:
    """Return an agent with the usual tools and limits around a model."""
    return Agent(
        models=[model],
        tools=builtin_tools(settings.tools),
        settings=settings.agent,
        recovery=Recovery(RetryPolicy()),
        max_output_tokens=settings.model.max_output_tokens,
    )


AT_WORK = {"delivery", "search index", "inquiries", "plugins", "replica", "other replicas"}


@asynccontextmanager
async def running(
    home: Path,
    on_send: Callable[[Outgoing], None],
    model: ChatModel | None = None,
    **overrides: object,
) -> AsyncIterator[Gateway]:
    """Run what a message meets between the null platform and a model, `EchoModel` unless given."""
    settings = bench_settings(home, **overrides)
    adapter = NullAdapter(on_send)
    async with (
        logged_database(settings) as database,
        assembled(
            settings, database, agent_of(settings, model or EchoModel()), accounts_of(adapter)
        ) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        parts = [tasks.create_task(gateway.worker.run(), name="worker")]
        to_the_stop, to_the_end = parts_of(gateway)
        parts += [
            tasks.create_task(run(), name=name)
            for name, run in {**to_the_stop, **to_the_end}.items()
            if name in AT_WORK
        ]
        yield gateway
        for part in parts:
            part.cancel()


@asynccontextmanager
async def logged_database(settings: Settings) -> AsyncIterator[Database]:
    """Open the database, with the logs going where those of a service go."""
    prepare_home(settings.home)
    with _nowhere() as stdout:
        close_logs = configure_logging(settings.logging, settings.home, Redactor(), stdout)
        try:
            async with open_database(location_of(settings)) as database:
                yield database
        finally:
            close_logs()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def inbound(chat: str, key: str, text: str) -> InboundMessage:
    """Return a person's message in a direct chat; its raw update is about as long as Telegram's."""
    return InboundMessage(
        address=Address("null", "default", chat),
        chat_kind="dm",
        sender=chat,
        sender_name="Bench",
        text=text,
        dedupe_key=key,
        raw='{"update_id": 1, "message": {"chat": {"id": 1}, "from": {"id": 1}}}',
        authenticated=True,
    )


@dataclass(slots=True)
class Chats:
    """People who write and wait for the answer to what they wrote."""

    gateway: Gateway | None = None
    answered: dict[str, asyncio.Queue[str]] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def on_send(self, message: Outgoing) -> None:
        """Take what the null platform is given."""
        self.answers(message.address.chat).put_nowait(message.payload)

    def answers(self, chat: str) -> asyncio.Queue[str]:
        """Return what was sent to a chat and not looked at yet."""
        return self.answered.setdefault(chat, asyncio.Queue())

    async def write(self, chat: str, text: str) -> Admission:
        """Have one message admitted."""
        assert self.gateway is not None
        message = inbound(chat, f"{next(self.numbers)}", text)
        (admission,) = await self.gateway.intake.accept([message])
        return admission

    async def ask(self, chat: str, text: str) -> str:
        """Write, and wait for the next answer."""
        await self.write(chat, text)
        async with asyncio.timeout(60):
            return await self.answers(chat).get()
