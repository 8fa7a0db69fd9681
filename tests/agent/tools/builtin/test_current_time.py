"""The tool `current_time`."""

import pytest

from agent.errors import ToolError
from agent.tools.builtin.current_time import TimeArguments, current_time
from tests.agent.tools.doubles import context


@pytest.mark.parametrize(
    ("zone", "readable", "iso"),
    [
        ("UTC", "12:30:00 UTC (UTC+00:00)", "2026-03-01T12:30:00+00:00"),
        ("Asia/Kolkata", "18:00:00 Asia/Kolkata (UTC+05:30)", "2026-03-01T18:00:00+05:30"),
        (" Etc/GMT+5 ", "07:30:00 Etc/GMT+5 (UTC-05:00)", "2026-03-01T07:30:00-05:00"),
    ],
)
async def test_the_time_of_a_zone(zone: str, readable: str, iso: str) -> None:
    """Weekday, date, time and offset are told, readable and as ISO 8601."""
    told = await current_time(context(), TimeArguments(timezone=zone))
    assert told == f"Sunday, 1 March 2026, {readable}; {iso}"


async def test_the_default_zone_is_utc() -> None:
    """A call without arguments works."""
    assert "UTC+00:00" in await current_time(context(), TimeArguments())


@pytest.mark.parametrize(
    ("zone", "near"), [("berlin", "Europe/Berlin"), ("Europe/Pariss", "Europe/Paris")]
)
async def test_a_misspelled_zone_is_answered_with_near_ones(zone: str, near: str) -> None:
    """A city alone and a slip of the pen are both understood."""
    with pytest.raises(ToolError, match=f"Did you mean .*{near}"):
        await current_time(context(), TimeArguments(timezone=zone))


@pytest.mark.parametrize("zone", ["", "Narnia", "../../etc/passwd", "a\x00b", "America", "x" * 999])
async def test_what_is_no_zone_is_refused(zone: str) -> None:
    """Paths, directories and nonsense end as an error for the model."""
    with pytest.raises(ToolError, match="there is no time zone"):
        await current_time(context(), TimeArguments(timezone=zone))
