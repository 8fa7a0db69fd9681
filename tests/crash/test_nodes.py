"""Kill the gateway around a compaction of the engine `lcm`: its plan and its nodes, or neither."""

import sqlite3
from contextlib import closing

import orjson
import pytest

from tests.crash.points import around
from tests.support.crash import KILLED, Crashes, describe
from tests.support.crash_script import LONG, SMALL_WINDOW


@pytest.mark.parametrize("point", around("compact"))
async def test_a_kill_at_a_compaction_keeps_plan_and_nodes_together(
    crashes: Crashes, point: str
) -> None:
    """Before and after the restart every node of a plan is stored, and none that no plan has."""
    crashes.configure(mode="followup", window=SMALL_WINDOW, engine="lcm")
    for _ in range(8):
        await crashes.write("a", LONG)
    assert await crashes.ended(crashes.start(kill=[point, 2])) == KILLED, crashes.log()
    before = stored(crashes)
    assert before == in_plans(crashes)
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    assert stored(crashes) == in_plans(crashes) > before


def stored(crashes: Crashes) -> set[int]:
    """Return the numbers of all nodes on record."""
    with closing(sqlite3.connect(crashes.database)) as books:
        return {number for (number,) in books.execute("SELECT number FROM node")}


def in_plans(crashes: Crashes) -> set[int]:
    """Return the numbers of the nodes that plans show, and of those that these condense."""
    with closing(sqlite3.connect(crashes.database)) as books:
        plans = [orjson.loads(plan) for (plan,) in books.execute("SELECT body FROM view_plan")]
        below = [orjson.loads(each) for (each,) in books.execute("SELECT children FROM node")]
    shown = {each["node"] for plan in plans for each in plan.get("summaries", ())}
    return shown.union(*below)
