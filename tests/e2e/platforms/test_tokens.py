"""A token that is replaced while the gateway runs, on each platform, against its strict server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms.conftest import DRIVERS
from tests.e2e.platforms.driver import Driver
from tests.support.process import ParleyProcess
from tests.support.thorough import sampled

ROTATING = [name for name in DRIVERS if name != "web"]
first, second, third = (
    pytest.mark.parametrize("driver", sampled(ROTATING, len(ROTATING), place), indirect=True)
    for place in range(len(ROTATING))
)
"""Each way on each platform; at the desk they take turns."""


@pytest.fixture
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """A platform whose bots have tokens."""
    async with DRIVERS[request.param]() as started:
        yield started


def settings_of(driver: Driver, folder: Path | None = None) -> dict[str, Any]:
    """Return the settings of a bot on a platform; with a folder its tokens are referred to."""
    block = driver.block()
    if folder is not None:
        for name, token in tokens_of(block).items():
            (folder / name).write_text(token)
            (folder / name).chmod(0o600)
            block[name] = f"file:{folder / name}"
    return {"access": {"mode": "open"}, "platforms": {driver.name: block}}


def tokens_of(block: dict[str, Any]) -> dict[str, str]:
    """Return the tokens of an account by their keys."""
    return {key: value for key, value in block.items() if key.endswith("token")}


def restarted(driver: Driver) -> list[str]:
    """Return what may be told of a restart; on a busy machine it is not connected soon enough."""
    return [
        f"{driver.name}:default: {how}"
        for how in ("connected", "not connected yet; it is tried again")
    ]


async def until(driver: Driver, holds: Callable[[], object]) -> None:
    """Wait until it holds; it is looked at whenever something has happened at the platform."""
    async with asyncio.timeout(60), driver.changed:
        await driver.changed.wait_for(lambda: bool(holds()))


def answers(texts: list[str], word: str) -> int:
    """Return how many answers speak of a word."""
    return sum(word in text for text in texts)


@pytest.mark.thorough
@first
async def test_a_token_in_the_file(driver: Driver, tmp_path: Path) -> None:
    """The old one is refused; what was said meanwhile is answered with the new one, once."""
    async with ParleyProcess(tmp_path, settings_of(driver)) as parley:
        await driver.connected(parley.port)
        room = driver.direct()
        await room.say("apple")
        await until(driver, lambda: answers(room.texts(), "apple") == 1)
        driver.rotate()
        await room.say("pear")
        parley.configure(settings_of(driver))
        line = await parley.event("settings_reloaded")
        assert line["adapters"] in [[each] for each in restarted(driver)]
        assert set(line["live"]) <= {
            f"platforms.{driver.name}.{key}" for key in ("token", "bot_token", "app_token")
        }
        await room.say("plum")
        await until(driver, lambda: answers(room.texts(), "plum") == 1)
        await until(driver, lambda: answers(room.texts(), "pear") == 1)
        assert [answers(room.texts(), word) for word in ("apple", "pear", "plum")] == [1, 1, 1]
        assert not [
            each for each in tokens_of(driver.block()).values() if each in str(parley.records)
        ]
    assert driver.violations == []


@pytest.mark.thorough
@second
async def test_a_token_that_is_referred_to(driver: Driver, tmp_path: Path) -> None:
    """`parley adapter restart` takes it: nothing has changed in the settings file."""
    async with ParleyProcess(tmp_path, settings_of(driver, tmp_path)) as parley:
        await driver.connected(parley.port)
        room = driver.direct()
        await room.say("apple")
        await until(driver, lambda: answers(room.texts(), "apple") == 1)
        wrong = await parley.run("adapter", "restart", f"{driver.name}:nobody")
        assert (wrong.code, "web:default" in wrong.stderr) == (1, True)
        driver.rotate()
        await room.say("pear")
        settings_of(driver, tmp_path)
        done = await parley.run("adapter", "restart", f"{driver.name}:default")
        assert done.stdout in [f"{each}\n" for each in restarted(driver)]
        assert (await parley.event("secrets_reloaded"))["restart_needed"] == []
        await parley.event("adapter_restarted")
        assert len(parley.named("adapter_restarted")) == 1
        await room.say("plum")
        await until(driver, lambda: answers(room.texts(), "plum") == 1)
        await until(driver, lambda: answers(room.texts(), "pear") == 1)
        assert [answers(room.texts(), word) for word in ("apple", "pear", "plum")] == [1, 1, 1]
    assert driver.violations == []


@pytest.mark.thorough
@third
async def test_a_token_that_the_platform_refuses(driver: Driver, tmp_path: Path) -> None:
    """The answer says so; the account goes on with the next change, and nothing is lost."""
    async with ParleyProcess(tmp_path, settings_of(driver, tmp_path)) as parley:
        await driver.connected(parley.port)
        room = driver.direct()
        right = {key: (tmp_path / key).read_text() for key in tokens_of(driver.block())}
        for key, token in right.items():
            (tmp_path / key).write_text(f"{token}9")
        done = await parley.run("adapter", "restart", driver.name)
        assert driver.name in done.stdout
        assert "connected" not in done.stdout.replace("not connected", "")
        await parley.event("adapter_stopped")
        for key, token in right.items():
            (tmp_path / key).write_text(token)
        done = await parley.run("config", "reload")
        assert "in use: platforms." in done.stdout
        await room.say("plum")
        await until(driver, lambda: answers(room.texts(), "plum") == 1)
    assert driver.violations == []
