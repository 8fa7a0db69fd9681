"""Kill the gateway again and again at random moments, then ask the oracle.

`PARLEY_TEST_SEED=7 pytest tests/crash/test_random_kills.py` repeats one episode.
"""

from random import Random

import pytest

from tests.crash.points import COMMON, OUTSIDE, around
from tests.support.crash import Crashes, describe, seeds

pytestmark = pytest.mark.timeout(120)

KILLS = 20
"""In one episode; ten episodes make 200 kills, and 250 make 5,000 in `make test-deep`."""
POINTS = [*around(*COMMON, "set_preview"), *OUTSIDE]
VERBS = ("", "", "", "note", "note look", "put long", "parts", "note put look parts")


@pytest.mark.parametrize("seed", seeds(10, 250))
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
