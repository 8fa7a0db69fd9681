"""The tool `current_time`."""

import asyncio
import difflib
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field

from agent.errors import ToolError
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool


class TimeArguments(Arguments):
    """Where the time is asked for."""

    timezone: str = Field("UTC", description="IANA name, such as Europe/Berlin")


async def current_time(context: ToolContext, arguments: TimeArguments) -> str:
    """Return weekday, date, time and offset of now in a zone, and the same as ISO 8601."""
    zone = await _zone(arguments.timezone.strip())
    now = context.clock().astimezone(zone)
    offset = now.strftime("%z")
    readable = f"{now:%A}, {now.day} {now:%B %Y, %H:%M:%S}"
    return (
        f"{readable} {arguments.timezone.strip()} (UTC{offset[:3]}:{offset[3:5]}); "
        f"{now.isoformat(timespec='seconds')}"
    )


async def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "GMT", "Z"}:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        near = await asyncio.to_thread(_near, name)
        hint = f"Did you mean {', '.join(near)}?" if near else "Use a name like Europe/Berlin."
        raise ToolError(f"there is no time zone {name!r}. {hint}") from exc


_ALIKE = 0.75  # below that difflib offers names that only share letters


def _near(name: str) -> list[str]:
    """Return at most 5 zones: those of that city first, then those spelled alike."""
    wanted = name.strip().replace(" ", "_").casefold()
    zones = sorted(available_timezones())
    places = {zone.rsplit("/", 1)[-1].casefold(): zone for zone in zones}
    same = [zone for zone in zones if zone.rsplit("/", 1)[-1].casefold() == wanted]
    alike = [places[place] for place in difflib.get_close_matches(wanted, places, cutoff=_ALIKE)]
    spelled = difflib.get_close_matches(name, zones, cutoff=_ALIKE)
    return list(dict.fromkeys([*same, *spelled, *alike]))[:5]


CURRENT_TIME = Tool(
    name="current_time",
    description="Tells the current date and time.",
    effect="read",
    arguments=TimeArguments,
    run=current_time,
)
