"""Killed around the first preview, on every platform that shows one as a message: what then stands.

One full answer, and no half answer that nobody explains.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from gateway.pipeline import notices
from tests.crash.points import SHOWN
from tests.crash.test_platforms import answered, sent, up
from tests.e2e.platforms.conftest import DRIVERS
from tests.e2e.platforms.driver import Driver, Room
from tests.support.crash import KILLED, Crashes
from tests.support.process import free_port
from tests.support.thorough import products

BEFORE = "before commit of announce_preview"
ANNOUNCED = "after commit of announce_preview"
KNOWN = "after commit of set_preview"
STEPS = (BEFORE, ANNOUNCED, SHOWN, KNOWN)
WITHOUT_LOOK_UP = {"telegram"}
ANSWER = re.compile(r"\S+ [0-9a-f]{40}")
PLATFORMS = [name for name in DRIVERS if name != "web"]
NAMED = f"{notices.REPLACES}\n\n"


@pytest.fixture
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """The platform that outlives the gateways."""
    async with DRIVERS[request.param]() as started:
        yield started
        assert started.violations == []


async def killed_at(driver: Driver, crashes: Crashes, step: str, where: str, text: str) -> Room:
    """Have somebody write, and the gateway die at a step of the first preview."""
    # A new process does not know what an old one was told about the pace of reactions.
    block = driver.block() | {"reactions": False}
    crashes.configure(real=(driver.name, block), web_port=free_port(), style="edit")
    pid = crashes.start(kill=[step, 1], preview_looks=10_000)
    await up(crashes, driver, lives=1)
    if where == "direct":
        room = driver.direct()
        await room.say(text)
    else:
        room = await driver.mention(text)
    if "gate" in text:
        await crashes.platform.open_gate(pid)
    assert await crashes.ended(pid) == KILLED, crashes.log()
    return room


async def live_on(driver: Driver, crashes: Crashes) -> int:
    """Let another gateway begin with what the first one left; return its pid."""
    pid = crashes.start(preview_looks=500)
    await up(crashes, driver, lives=2)
    return pid


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("driver", "step", "where"),
    products(PLATFORMS, STEPS, ["direct", "group"]),
    indirect=["driver"],
)
async def test_a_kill_leaves_no_half_answer_unexplained(
    driver: Driver, crashes: Crashes, step: str, where: str
) -> None:
    """The preview becomes the answer, or the answer names it; it names none that never was."""
    room = await killed_at(driver, crashes, step, where, "m1")
    pid = await live_on(driver, crashes)
    await answered(crashes)
    assert await crashes.stop(pid) == 0, crashes.log()
    asks = driver.name not in WITHOUT_LOOK_UP
    texts = room.texts()
    named = step in {ANNOUNCED, SHOWN} and not asks
    assert sent(crashes) == ["sent"]
    assert len(texts) == (2 if step == SHOWN and not asks else 1), texts
    assert texts[-1].startswith(NAMED) == named
    assert ANSWER.fullmatch(texts[-1].removeprefix(NAMED))
    assert driver.elsewhere() == []


@pytest.mark.parametrize("driver", PLATFORMS, indirect=True)
async def test_a_stop_deals_with_a_half_answer(driver: Driver, crashes: Crashes) -> None:
    """What is said last takes its place, or names it."""
    room = await killed_at(driver, crashes, SHOWN, "direct", "m1 gate")
    pid = await live_on(driver, crashes)
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached >= 2)
    await room.say("/stop")
    async with asyncio.timeout(120), driver.changed:
        await driver.changed.wait_for(lambda: any("[stopped]" in text for text in room.texts()))
    assert await crashes.stop(pid) == 0, crashes.log()
    named = [text for text in room.texts() if text.startswith(NAMED)]
    assert len(room.growing()) == len(named) == (driver.name in WITHOUT_LOOK_UP)
