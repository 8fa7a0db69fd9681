"""Many turns over the real clients of three platforms: nothing is lost, doubled or left behind.

In the short soak, the only one of `make test`, Telegram has one connection and each await of an
HTTP request takes a while, so that what is lost by a cancellation at one of them is missed soon.
"""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.soak import Figures, Soaking, soaking
from tests.support.thorough import DEEP

LONGEST_S = 3 * 3600


class Plan(NamedTuple):
    """A soak; `options` are those of `soaking`."""

    name: str
    warm_up: int
    turns: int
    options: dict[str, Any]


SHORT = Plan(
    "one connection, long awaits",
    20,
    80,
    {
        "chats": 12,
        "at_once": 3,
        "answer_within_s": 60,
        "connections": 1,
        "pause_s": 0.01,
    },
)
LONG = Plan(
    "as in service",
    5_000,
    50_000,
    {"chats": 1000, "at_once": 24, "answer_within_s": 120},
)


@pytest.mark.thorough
@pytest.mark.timeout(LONGEST_S + 600 if DEEP else 600)
@pytest.mark.parametrize("plan", [SHORT, LONG] if DEEP else [SHORT], ids=lambda plan: plan.name)
async def test_a_soak_leaves_nothing_behind(tmp_path: Path, plan: Plan) -> None:
    """Every message is answered once; connections, descriptors, tasks and memory stay as many."""
    ends_at = asyncio.get_running_loop().time() + LONGEST_S
    async with soaking(tmp_path, **plan.options) as soak:
        await soak.until(plan.warm_up, ends_at)
        before = await soak.figures()
        await soak.until(plan.turns, ends_at)
        after = await soak.figures()
    assert after.turns >= plan.turns
    _check(soak, before, after)


def _check(soak: Soaking, before: Figures, after: Figures) -> None:
    assert soak.wrong == []
    assert soak.violations == []
    assert after.in_use == 0
    assert after.sockets <= 1.1 * before.sockets
    assert after.descriptors <= 1.1 * before.descriptors
    assert after.tasks <= 1.1 * before.tasks
    assert after.rss_mb <= 1.1 * before.rss_mb
