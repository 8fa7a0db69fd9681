"""Killed around the commits of the agent's list and notes: each is there once afterwards."""

import sqlite3
from contextlib import closing

import pytest

from tests.crash.points import around
from tests.support.crash import KILLED, Crashes, describe


@pytest.mark.parametrize("point", around("set_todo", "change"))
async def test_what_is_noted_is_there_once(crashes: Crashes, point: str) -> None:
    """The call runs again, and changes nothing where it was done."""
    await crashes.write("a", "plan keep")
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)
    with closing(sqlite3.connect(crashes.database)) as books:
        assert books.execute("SELECT text FROM memory").fetchall() == [("m1-keep",)]
        assert books.execute("SELECT items FROM todo").fetchall() == [
            ('[{"content":"m1-plan","state":"pending"}]',)
        ]
