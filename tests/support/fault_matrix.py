"""The network-fault matrix: real clients and delivery, a broken network, virtual time.

A cell is one fault, for one duration, with one kind of message in its way. In each an answer goes
out before the fault, the message when it begins, another answer in its middle, one after its end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple, NoReturn, Protocol, cast, get_args

import orjson
import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route
from sqlalchemy import Connection, func, select

from adapters.base import Adapter
from adapters.discord.adapter import DiscordAdapter
from adapters.discord.platform import DiscordSettings
from adapters.messages import Address, Attachment, Choice, InboundMessage, MessageRef
from adapters.slack.adapter import SlackAdapter
from adapters.slack.platform import SlackSettings
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.platform import TelegramSettings
from agent.network import certificates
from gateway.access.policy import Access, Owners
from gateway.findings.finding import Evidence
from gateway.findings.report import FINDINGS
from gateway.findings.telling import AlertsTold, Telling
from gateway.findings.watch import LOOK_EVERY_S, judged
from gateway.pipeline.delivery import Burials, Delivery
from gateway.replicas.replica import Replica
from gateway.settings.tree import AccessSettings, AlertSettings
from gateway.storage import schema
from gateway.storage.conversation import attachments
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.people.web_users import ChatLinks
from gateway.storage.queue import leases, outbox
from gateway.storage.queue.outbox import OutboxPart, file_part, parts_of
from gateway.supervision.silence import AccountHealth, Traffic, Watch
from gateway.supervision.vitals import LiveFacts
from tests.support.bot_api import TOKEN as TELEGRAM_TOKEN
from tests.support.bot_api import BotApi
from tests.support.discord.server import TOKEN as DISCORD_TOKEN
from tests.support.discord.server import DiscordServer
from tests.support.fault_proxy import FaultKind, FaultProxy, certificate
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.people import ANNS_DM
from tests.support.slack.server import SlackServer
from tests.support.storage import admit
from tests.support.virtual_time import follow, run_virtually, virtual_loop

Kind = Literal["short", "preview", "long", "file", "buttons", "notice"]
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
DURATIONS_S = (1.0, 3.0, 10.0, 60.0, 600.0)
KINDS: tuple[Kind, ...] = get_args(Kind)
MARK = "(re-sent)"
DAY_S = 86_400.0
_QUIET_S = 90.0
_CALM_S = 300.0
"""Longer than it takes until an alert is over."""
_LONGEST_S = 6 * 3600.0
_FILE = ("figures.csv", b"1;2;3\n" * 500)


class Cell(NamedTuple):
    """One field of the matrix."""

    platform: str
    fault: FaultKind
    for_s: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell's messages.

    Attributes:
        lost: Messages that never stood in the chat.
        doubled: Messages that stood there twice, both without the mark.
        resent: Messages that stood there with the mark.
        disordered: Whether they first appeared in another order than they were said in.
        tries: Connections and requests that met the fault, and sends that failed.
        late_s: Virtual seconds from the end of the fault until everything was delivered.
        begun: The alerts that were raised.
        ended: Those that were over at the end.
        violations: What the double holds against the client.
    """

    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    resent: int = 0
    disordered: bool = False
    tries: int = 0
    late_s: float = 0.0
    begun: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether everything is there once, or marked, and in order."""
        return not (self.lost or self.doubled or self.disordered or self.violations)


def cells(platform: str) -> list[Cell]:
    """Return a platform's whole matrix."""
    return [Cell(platform, *each) for each in product(FAULTS, DURATIONS_S, KINDS)]


def some_cells(platform: str) -> list[Cell]:
    """Return a sixth of it: each fault with each duration and with each kind, but for one."""
    every = enumerate(cells(platform))
    sizes = len(KINDS), len(DURATIONS_S)

    def place(n: int) -> int:
        return n % sizes[0] + n // sizes[0] % sizes[1] + n // (sizes[0] * sizes[1])

    return [cell for n, cell in every if place(n) % len(KINDS) == 0]


def few_cells(platform: str) -> list[Cell]:
    """Return one of these for each fault; durations and kinds take turns, also by platforms."""
    first = list(PLATFORMS).index(platform)
    chosen = []
    for n, fault in enumerate(FAULTS):
        of_fault = [cell for cell in some_cells(platform) if cell.fault == fault]
        chosen.append(of_fault[(first + n) % len(of_fault)])
    return chosen


class Double(Protocol):
    """One platform's double behind the proxy."""

    address: Address
    limit_chars: int

    async def start(self) -> int:
        """Start the double; return its port."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...

    def adapter(self, root: str) -> Adapter:
        """Return an adapter that finds the platform at an address."""
        ...

    def shown(self) -> list[str]:
        """Return what stands in the chat, in order of appearance; of a file, caption and name."""
        ...

    def text(self, payload: str) -> str:
        """Return a payload as `shown` gives it."""
        ...

    @property
    def violations(self) -> Sequence[str]:
        """What a correct client never does."""
        ...


class _Telegram:
    def __init__(self) -> None:
        self._api = BotApi()
        self.address = Address("telegram", "default", "7")
        self.limit_chars = 4000

    async def start(self) -> int:
        await self._api.__aenter__()
        self._api.add_chat(7)
        return _port(self._api.root)

    async def stop(self) -> None:
        await self._api.__aexit__()

    def adapter(self, root: str) -> Adapter:
        settings = TelegramSettings.model_validate({"token": TELEGRAM_TOKEN, "base_url": root})
        return TelegramAdapter(settings, RecordingIntake(), clock=virtual_loop().time)

    def shown(self) -> list[str]:
        return [f"{each.text}{each.file[0] if each.file else ''}" for each in self._api.messages]

    def text(self, payload: str) -> str:
        return str(orjson.loads(payload)["text"])

    @property
    def violations(self) -> Sequence[str]:
        return [*self._api.violations, *self._api.excesses()]


class _Discord:
    def __init__(self, *, readable: bool = True) -> None:
        self._server = DiscordServer()
        self._channel = self._server.direct()
        if not readable:
            self._channel.forbidden.add("history")
        self.address = Address("discord", "default", self._channel.ref)
        self.limit_chars = 2000

    async def start(self) -> int:
        await self._server.__aenter__()
        return _port(self._server.api_url)

    async def stop(self) -> None:
        await self._server.__aexit__()

    def adapter(self, root: str) -> Adapter:
        settings = DiscordSettings.model_validate({
            "token": DISCORD_TOKEN,
            "api_url": root,
            "gateway_url": self._server.gateway_url,
        })
        return DiscordAdapter(settings, RecordingIntake(), clock=virtual_loop().time)

    def shown(self) -> list[str]:
        mine = [each for each in self._channel.messages if each.author is self._server.bot]
        return [each.content + "".join(file.name for file in each.files) for each in mine]

    def text(self, payload: str) -> str:
        return payload.strip()

    @property
    def violations(self) -> Sequence[str]:
        return self._server.violations


class _Slack:
    def __init__(self, *, readable: bool = True) -> None:
        self._server = SlackServer()
        if not readable:
            self._server.api.scopes.discard("im:history")
        self.address = Address("slack", "default", ANNS_DM)
        self.limit_chars = 11_500

    async def start(self) -> int:
        await self._server.__aenter__()
        return _port(self._server.base_url)

    async def stop(self) -> None:
        await self._server.__aexit__()

    def adapter(self, root: str) -> Adapter:
        # Uploads go to where the Web API says.
        self._server.api.root = root
        identity = self._server.identity
        tokens = {"bot_token": identity.bot_token, "app_token": identity.app_token}
        settings = SlackSettings.model_validate({"base_url": f"{root}/api/", **tokens})
        return SlackAdapter(settings, RecordingIntake(), clock=virtual_loop().time)

    def shown(self) -> list[str]:
        mine = self._server.messages(ANNS_DM)
        return [each.shown + "".join(file.name for file in each.files) for each in mine if each.bot]

    def text(self, payload: str) -> str:
        return payload

    @property
    def violations(self) -> Sequence[str]:
        return self._server.violations


PLATFORMS: dict[str, Callable[[], Double]] = {
    "telegram": _Telegram,
    "discord": _Discord,
    "slack": _Slack,
    "discord, no history": partial(_Discord, readable=False),
    "slack, no history": partial(_Slack, readable=False),
}
"""The last two are where the platform cannot be asked what it shows."""


def try_cell(cell: Cell, database: Path) -> Outcome:
    """Run one cell on a loop of its own; `database` is an empty one, migrated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Route, "BASE", Route.BASE)
        patch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", DiscordWebSocket.DEFAULT_GATEWAY)
        if cell.fault == "TLS cut":
            _trust_the_proxy()
        return run_virtually(_try_cell(cell, database, patch))


def _trust_the_proxy() -> None:
    """All clients share one context for the whole process."""
    certificates().load_verify_locations(cadata=certificate()[0].decode())


async def _try_cell(cell: Cell, path: Path, patch: pytest.MonkeyPatch) -> Outcome:
    double = PLATFORMS[cell.platform]()
    async with _at_work(double, cell, path, patch) as work:
        await work.say("before", OutboxPart("before:1", *_payload(work, "said before")))
        await asyncio.sleep(_QUIET_S)
        parts = await work.message(cell.kind)
        await asyncio.sleep(_QUIET_S)
        async with work.proxy.broken(cell.fault, cell.for_s):
            await work.say("message", *parts)
            await asyncio.sleep(cell.for_s / 2)
            await work.say(
                "meanwhile", OutboxPart("meanwhile:1", *_payload(work, "said meanwhile"))
            )
        over_at = virtual_loop().time()
        await work.say("after", OutboxPart("after:1", *_payload(work, "said after")))
        async with asyncio.timeout(_LONGEST_S):
            await work.delivery.wait_idle()
        late_s = virtual_loop().time() - over_at
        await asyncio.sleep(_CALM_S)
        return await work.outcome(late_s)


def _payload(work: "_Work", text: str) -> tuple[str, str]:
    [payload] = work.adapter.render(text)
    return payload, text


class _Work:
    """One conversation on one platform, and its delivery."""

    def __init__(
        self, double: Double, adapter: Adapter, proxy: FaultProxy, database: Database
    ) -> None:
        self.adapter, self.proxy = adapter, proxy
        self._double, self._database = double, database
        self._conversation = 0
        self._said: list[str] = []
        account = (adapter.platform, adapter.account)
        owners = Owners(Access(AccessSettings()), {account: adapter.render})
        self._owners = owners
        burials, links = Burials(owners), ChatLinks(None)
        adapters, replica = {account: adapter}, Replica(database, 1)
        traffic = Traffic(virtual_loop().time)
        self.delivery = Delivery(database, replica, adapters, traffic, burials, links)
        # Ages are those of the virtual clock on the writing connection alone.
        writer = cast("Database", SimpleNamespace(read=database.write))
        self._watch = Watch(writer, adapters, traffic, replica)
        self._begun: list[str] = []
        self._ended: list[str] = []

    async def begin(self) -> None:
        """Open the conversation."""
        message = InboundMessage(
            address=self._double.address,
            chat_kind="dm",
            sender="7",
            sender_name="Ann",
            text="hello",
            dedupe_key="k",
            raw="{}",
        )
        await self._database.write(leases.register, "test")
        self._conversation, _ = await self._database.write(admit, message)

    async def say(self, key: str, *parts: OutboxPart) -> None:
        """Enter rows of the outbox."""
        if not parts:
            await self._database.write(self._notice, key)
        else:
            await self._database.write(outbox.append, self._conversation, parts, inbox_seq=1)
            self._said += [self._text(part) for part in parts]
        self.delivery.notify(self._conversation)

    async def look(self) -> NoReturn:
        """Look for troubles as a gateway does, until cancelled."""
        telling = Telling(AlertSettings(), self._owners)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            accounts = await self._watch.look()
            told = await self._database.write(_told, telling, accounts)
            self._begun += [each.kind for each in told.begun]
            self._ended += [each.kind for each in told.ended]

    async def message(self, kind: Kind) -> list[OutboxPart]:
        """Return what is in the way of the fault; nothing stands for a notice."""
        render = self.adapter.render
        if kind == "notice":
            return []
        if kind == "file":
            await self._database.write(self._store_file)
            return [file_part("message:1", 1, _FILE[0])]
        if kind == "long":
            line = "A line of a long answer, number {}.\n\n"
            lines = (line.format(n) for n in range(self._double.limit_chars // 14))
            return parts_of(render, "message", "".join(lines))
        ref = await self._preview() if kind == "preview" else None
        asked = (Choice("Yes", "/approve 1"), Choice("No", "/deny 1"))
        buttons = asked if kind == "buttons" else ()
        text = "An answer that falls into the fault."
        return parts_of(render, "message", text, preview_ref=ref, choices=buttons)

    async def outcome(self, late_s: float) -> Outcome:
        """Compare what stands in the chat with what was said."""
        shown = self._double.shown()
        failures = await self._database.read(_failures)
        bare = [text.replace(f"{MARK}\n", "").replace(MARK, "") for text in shown]
        marked = [MARK in text for text in shown]
        plain = [text for text, is_marked in zip(bare, marked, strict=True) if not is_marked]
        order = [text for text in dict.fromkeys(bare) if text in self._said]
        return Outcome(
            lost=tuple(text[:40] for text in self._said if text not in bare),
            doubled=tuple(text[:40] for text in self._said if plain.count(text) > 1),
            resent=sum(marked),
            disordered=order != [text for text in self._said if text in bare],
            tries=self.proxy.faced + failures,
            late_s=late_s,
            begun=tuple(self._begun),
            ended=tuple(self._ended),
            violations=tuple(self._double.violations),
        )

    def _text(self, part: OutboxPart) -> str:
        return _FILE[0] if part.attachment else self._double.text(part.payload)

    def _notice(self, conn: Connection, key: str) -> None:
        place = conn.execute(schema.conversation.select()).one()
        text = "I gave messages up."
        self._owners.say(conn, place, f"{outbox.DEAD_NOTICE}{key}", text)
        [payload] = self.adapter.render(text)
        self._said.append(self._double.text(payload))

    def _store_file(self, conn: Connection) -> None:
        given = Attachment(name=_FILE[0], kind="file", mime="text/csv", content=_FILE[1])
        attachments.append(conn, self._conversation, 1, [given], len(_FILE[1]))

    async def _preview(self) -> str:
        """Show the beginning of the answer before the fault begins."""
        question = MessageRef(self._double.address, "7")
        ref = await self.adapter.preview(question, "An answer that grows and grows", None)
        assert ref is not None
        return ref


def _told(
    conn: Connection, telling: Telling, accounts: Mapping[tuple[str, str], AccountHealth]
) -> AlertsTold:
    facts = Evidence(Path(), opened=conn, live=LiveFacts(accounts=accounts))
    kinds = (FINDINGS[name] for name in ("adapter-silent", "outbox-old"))
    return telling.apply(conn, judged(facts, kinds))


@asynccontextmanager
async def _at_work(
    double: Double, cell: Cell, path: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[_Work]:
    proxy = FaultProxy(await double.start(), tls=cell.fault == "TLS cut")
    await proxy.start()
    adapter = double.adapter(proxy.root)
    try:
        async with open_database(path) as database:
            follow(database, patch)
            work = _Work(double, adapter, proxy, database)
            await work.begin()
            parts = work.delivery.run(), work.look()
            running = [asyncio.create_task(part) for part in parts]
            try:
                yield work
            finally:
                await _end(running)
    finally:
        await adapter.close()
        await proxy.stop()
        await double.stop()


async def _end(running: Sequence[asyncio.Task[NoReturn]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.wait(running)


def _failures(conn: Connection) -> int:
    return conn.scalar(select(func.sum(schema.outbox.c.failures))) or 0


def _port(url: str) -> int:
    return int(url.split("//")[1].split("/")[0].rpartition(":")[2])
