"""Kill the gateway again and again at random moments, then ask the oracle.

`PARLEY_TEST_SEED=7 pytest tests/crash/test_random_kills.py` repeats one episode.
"""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from tests.crash.points import COMMON, OUTSIDE, around
from tests.support.crash import Crashes, describe, seeds
from tests.support.crash_script import LONG, SMALL_WINDOW
from tests.support.thorough import DEEP, thorough

pytestmark = pytest.mark.timeout(300)

KILLS = 20
"""In one episode; 2 episodes at the desk, 10 in `make test-all`, 250 in `make test-deep`."""
POINTS = [*around(*COMMON, "set_preview"), *OUTSIDE]
VERBS = ("", "", "", "note", "note look", "put long", "parts", "note put look parts")


@pytest.mark.parametrize("seed", seeds(2, 10, 250))
async def test_random_kills_lose_and_repeat_nothing(crashes: Crashes, seed: int) -> None:
    """Twenty processes die one after another while people write; the last one may live."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    style = dice.choice(["plain", "once", "edit"])
    crashes.platform.show_once = style == "once"
    crashes.configure(
        style=style,
        mode=dice.choice(["collect", "followup"]),
        debounce_ms=dice.choice([0, 5, 30]),
        batch=dice.choice([1, 10]),
        attempts=100,
    )
    for _ in range(KILLS):
        await one_life(crashes, dice)
    await crashes.live_until_answered()
    print(f"seed {seed}: {crashes.kills} kills, {crashes.spec}")
    assert crashes.kills == KILLS
    assert not (found := crashes.violations()), describe(found, crashes)


async def one_life(crashes: Crashes, dice: Random) -> None:
    """Start a process, let people write before and during its life, and end it hard."""
    for _ in range(dice.randrange(3)):
        await crashes.write(dice.choice("abcde"), dice.choice(VERBS))
    at_point = [dice.choice(POINTS), dice.randint(1, 4)]
    pid = crashes.start(kill=at_point if dice.random() < 0.6 else None)
    await crashes.write(dice.choice("abcde"), dice.choice(VERBS))
    await crashes.disturb(
        pid, after_s=dice.uniform(0.02, 0.2), pause_s=dice.choice([0, 0, 0, 0.03])
    )


SHORT_LIVES = 40 if DEEP else 8
LONGEST_LIFE_S = 3.0
THINKS_S = 2.0
"""For each answer and each summary: most lives are too short for a turn."""
MESSAGES_A_LIFE = 0.3
CHATS = "abcde"


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["compressor", thorough("lcm")])
@pytest.mark.parametrize("seed", seeds(1, 1, 10))
async def test_short_lives_give_up_no_innocent_turn(
    crashes: Crashes, engine: str, seed: int
) -> None:
    """Kills from outside, 0 to 3 s apart: at most 1 % of the turns are given up; none is lost."""
    await outlive_short_lives(crashes, engine, seed)
    turns, dead = given_up(crashes)
    print(f"{engine}, seed {seed}: {crashes.kills} kills, {turns} turns, {dead} given up")
    assert crashes.kills == SHORT_LIVES
    assert not (found := crashes.violations()), describe(found, crashes)
    assert 100 * dead <= turns


async def outlive_short_lives(crashes: Crashes, engine: str, seed: int) -> None:
    """Kill short-lived processes, with the real times."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    crashes.configure(
        engine=engine,
        mode="followup",
        window=SMALL_WINDOW,
        think_s=THINKS_S,
        quiet_s=10.0,
        beat_s=1.0,
    )
    for chat in CHATS:
        await crashes.write(chat)
    for _ in range(SHORT_LIVES):
        if dice.random() < MESSAGES_A_LIFE:
            await crashes.write(dice.choice(CHATS), dice.choice(["", LONG, "note", "look put"]))
        await crashes.disturb(crashes.start(), after_s=dice.uniform(0, LONGEST_LIFE_S))
    await crashes.live_until_answered(within_s=120.0)


def given_up(crashes: Crashes) -> tuple[int, int]:
    """Return the number of turns, and of those that were given up."""
    with closing(sqlite3.connect(crashes.database)) as books:
        [(turns, dead)] = books.execute("SELECT count(*), sum(state = 'dead') FROM turn")
    return turns, dead
