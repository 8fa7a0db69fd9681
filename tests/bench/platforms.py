"""The platforms against their strict loopback servers: admission, bursts, and how fast they send.

Servers, gateway and client libraries share one process here, so a figure holds what all of them
take together.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from adapters.messages import Admission, InboundMessage
from tests.bench.figures import Figure, percentile
from tests.e2e.platforms.discord import DiscordDriver
from tests.e2e.platforms.scenario import Scene, scene
from tests.e2e.platforms.slack import SlackDriver
from tests.e2e.platforms.telegram import TelegramDriver
from tests.support.gateway import HeldModel, echo
from tests.support.slack.people import ANN, ANNS_DM

AS_DELIVERED: dict[str, Any] = {"mode": "collect", "debounce_ms": 400}
CHATS = 200
BURST = 1000
SINGLES = 150
SINGLES_PER_S = 10
IN_ONE_CHAT = 15


class Writers(Protocol):
    """Lets a person write in the n-th chat."""

    def __call__(self, chat: int, text: str) -> None: ...


@dataclass(slots=True)
class Clock:
    """When each text was written and when it was committed; monotonic seconds."""

    written: dict[str, float] = field(default_factory=dict)
    committed: dict[str, float] = field(default_factory=dict)
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: int = 0

    def waits_ms(self) -> list[float]:
        return [(at - self.written[text]) * 1000 for text, at in self.committed.items()]


def measure() -> Iterator[Figure]:
    """Yield the figures of each platform."""
    for make, writers in (
        (TelegramDriver, _telegram),
        (DiscordDriver, _discord),
        (SlackDriver, _slack),
    ):
        yield from asyncio.run(_admission(make(), writers))
    yield from asyncio.run(_sending_to_many())
    yield from asyncio.run(_sending_to_one(DiscordDriver(), _discord_stamps, 5))
    yield from asyncio.run(_sending_to_one(SlackDriver(), _slack_stamps, 1))


async def _admission(driver: Any, writers: Callable[[Any], Writers]) -> list[Figure]:
    clock = Clock()
    async with _at_work(driver, clock, **AS_DELIVERED) as on:
        write = writers(on.driver)
        waits = await _singles(clock, write)
        burst_s, stored = await _burst(on, clock, write)
    name = driver.name
    return [
        Figure(
            f"{name}: written → committed, {SINGLES_PER_S}/s, p50", percentile(waits, 0.5), "ms"
        ),
        Figure(f"{name}: the same, p99", percentile(waits, 0.99), "ms", at_most=10),
        Figure(f"{name}: {BURST} at once in {CHATS} chats, all committed", burst_s, "s", at_most=2),
        Figure(f"{name}: of these in the inbox", stored, "", at_least=BURST),
    ]


@asynccontextmanager
async def _at_work(
    driver: Any, clock: Clock, mode: str = "followup", debounce_ms: int = 0
) -> AsyncIterator[Scene]:
    """Run a gateway on a platform; its intake notes what it has committed."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            driver,
            scene(
                driver,
                Path(folder),
                HeldModel(echo),
                queue={"mode": mode, "debounce_ms": debounce_ms},
            ) as on,
        ):
            intake: Any = on.gateway.intake
            accept = intake.accept

            async def noting(messages: Sequence[InboundMessage], **beside: Any) -> list[Admission]:
                admissions: list[Admission] = await accept(messages, **beside)
                now = time.perf_counter()
                clock.committed |= {message.text: now for message in messages}
                if len(clock.committed) >= clock.wanted:
                    clock.enough.set()
                return admissions

            intake.accept = noting
            yield on


async def _singles(clock: Clock, write: Writers) -> list[float]:
    """Write one after another; return how long each took."""
    await _committed(clock, 1, lambda: _written(clock, write, 0, "warm up"))
    clock.committed.clear()
    clock.wanted = SINGLES
    clock.enough.clear()
    # At even gaps every turn would begin together with a later message.
    dice = random.Random(1)  # noqa: S311 - repeatable on purpose
    for n in range(SINGLES):
        _written(clock, write, n % CHATS, f"single {n}")
        await asyncio.sleep(dice.uniform(0.5, 1.5) / SINGLES_PER_S)
    await clock.enough.wait()
    return clock.waits_ms()


async def _burst(on: Scene, clock: Clock, write: Writers) -> tuple[float, int]:
    """Write everything at once; return how long it took, and how much is stored."""
    started = time.perf_counter()

    def all_at_once() -> None:
        for n in range(BURST):
            _written(clock, write, n % CHATS, f"burst {n}")

    await _committed(clock, BURST, all_at_once)
    took_s = time.perf_counter() - started
    rows = await on.gateway.database.read(_inbox_texts)
    return took_s, len({text for text in rows if text.startswith("burst")})


def _inbox_texts(conn: Any) -> list[str]:
    return [text for (text,) in conn.exec_driver_sql("SELECT text FROM inbox")]


async def _committed(clock: Clock, count: int, begin: Callable[[], None]) -> None:
    clock.committed.clear()
    clock.wanted = count
    clock.enough.clear()
    begin()
    async with asyncio.timeout(60):
        await clock.enough.wait()


def _written(clock: Clock, write: Writers, chat: int, text: str) -> None:
    clock.written[text] = time.perf_counter()
    write(chat, text)


def _telegram(driver: Any) -> Writers:
    return lambda chat, text: driver._api.push_text(1000 + chat, text)


def _discord(driver: Any) -> Writers:
    server = driver._server
    people = [server.add_person(f"Person{n}") for n in range(CHATS)]
    rooms = [server.direct(person) for person in people]
    return lambda chat, text: server.write(rooms[chat], text, author=people[chat])


def _slack(driver: Any) -> Writers:
    server = driver._server
    for n in range(CHATS):
        server.add_channel(f"D{n:04}", "im", user=ANN)
    return lambda chat, text: server.write(f"D{chat:04}", text)


async def _sending_to_many() -> list[Figure]:
    """Answer all chats at once on Telegram, which allows 30 messages in a second."""
    driver = TelegramDriver()
    async with _at_work(driver, Clock()) as on:
        write = _telegram(driver)
        for n in range(CHATS):
            write(n, f"hello {n}")
        stamps = await _stamps(
            on, lambda: [call.at for call in driver._api.made("sendMessage")], CHATS
        )
        excesses = driver._api.excesses()
    rate = (CHATS - 1) / (stamps[-1] - stamps[0])
    return [
        Figure(f"telegram: answers to {CHATS} chats, of 30/s", rate / 30 * 100, "%", at_least=90),
        Figure("telegram: limits exceeded, by the server's recorder", len(excesses), "", at_most=0),
    ]


async def _sending_to_one(
    driver: Any, stamps_in: Callable[[Any], list[float]], burst: int
) -> list[Figure]:
    """Answer one message after another in one chat, where one in a second is allowed."""
    async with _at_work(driver, Clock()) as on:
        for n in range(IN_ONE_CHAT):
            await on.ann.say(f"hello {n}")
        stamps = await _stamps(on, lambda: stamps_in(driver), IN_ONE_CHAT)
        violations = driver.violations
    rate = (IN_ONE_CHAT - burst) / (stamps[-1] - stamps[burst - 1])
    name = f"{driver.name}: {IN_ONE_CHAT} answers in one chat, behind a burst of {burst}, of 1/s"
    return [
        Figure(name, rate * 100, "%", at_least=90),
        Figure(
            f"{driver.name}: limits exceeded, by the server's recorder",
            len(violations),
            "",
            at_most=0,
        ),
    ]


async def _stamps(on: Scene, read: Callable[[], list[float]], count: int) -> list[float]:
    """Wait until so many messages were sent; return when."""
    async with asyncio.timeout(90), on.driver.changed:
        await on.driver.changed.wait_for(lambda: len(read()) >= count)
    return read()


def _discord_stamps(driver: Any) -> list[float]:
    stamps: list[float] = driver._server.rate_stamps(driver._server.direct())
    return stamps


def _slack_stamps(driver: Any) -> list[float]:
    stamps: list[float] = driver._server.rate_stamps(ANNS_DM)
    return stamps
