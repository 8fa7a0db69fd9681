"""Filters of the templates: how people, numbers, money, moments and stretches are written."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from markupsafe import Markup

from agent.money.costs import format_usd
from agent.safety.redaction import printable
from agent.spans import reference_of
from gateway.access.web_door import called
from gateway.commands.status_figures import outcome_text
from gateway.storage.conversation.attachments import size_text
from gateway.storage.reports.spending import Spent

NOTHING = "\N{EN DASH}"
_FENCED = re.compile(r"^(`{3,})\w*\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
_ADDRESS = re.compile(r"""https://[^\s<>"'`]*[^\s<>"'`.,:;!?)\]]""")
"""Without the sign behind it that belongs to the sentence."""
_STEPS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def filters(timezone: str) -> Mapping[str, Callable[..., Any]]:
    """Return the filters by name; moments are told in a time zone."""
    zone = ZoneInfo(timezone)
    return {
        "moment": partial(moment, zone=zone),
        "trace": reference_of,
        "clock": partial(clock, zone=zone),
        "instant": partial(instant, zone=zone),
        "stretch": stretch,
        "ago": ago,
        "number": number,
        "short": short,
        "share": share,
        "money": money,
        "size": size_text,
        "plain": printable,
        "called": called,
        "outcome": outcome_text,
        "fenced": fenced,
        "linked": linked,
    }


def moment(at: float | str | None, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` with date and minute; at: seconds since the epoch, or ISO 8601."""
    return _time(at, zone, "%Y-%m-%d %H:%M")


def clock(at: float | str | None, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` that shows the time of day, with seconds."""
    return _time(at, zone, "%H:%M:%S")


def instant(at: str, zone: ZoneInfo) -> Markup | str:
    """Return a `<time>` of a line of the log, with milliseconds; a text that is no time as it is.

    The day is shown where it is not today.
    """
    try:
        here = datetime.fromisoformat(at).astimezone(zone)
    except ValueError:
        return at
    day = "" if here.date() == datetime.now(zone).date() else f"{here:%m-%d} "
    shown = f"{day}{here:%H:%M:%S}.{here.microsecond // 1000:03}"
    whole = Markup('<time datetime="{}" title="{}">{}</time>')
    return whole.format(at, f"{here:%Y-%m-%d %H:%M:%S %Z}", shown)


def _time(at: float | str | None, zone: ZoneInfo, form: str) -> Markup | str:
    if at is None:
        return NOTHING
    exact = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    here = exact.astimezone(zone)
    whole = Markup('<time datetime="{}" title="{}">{}</time>')
    return whole.format(exact.isoformat(), f"{here:%Y-%m-%d %H:%M:%S %Z}", f"{here:{form}}")


def fenced(text: str) -> list[tuple[bool, str]]:
    """Return the parts of a markdown text in order: (whether it is a block of code, the part)."""
    parts, at = list[tuple[bool, str]](), 0
    for found in _FENCED.finditer(text):
        parts += [(False, text[at : found.start()]), (True, found[2])]
        at = found.end()
    parts.append((False, text[at:]))
    return [(is_code, part.strip("\n")) for is_code, part in parts if part.strip()]


def linked(text: str) -> Markup:
    """Return a text in which addresses that begin with https:// are links."""
    parts, at = list[Markup | str](), 0
    whole = Markup('<a href="{0}" rel="noreferrer">{0}</a>')
    for found in _ADDRESS.finditer(text):
        parts += [text[at : found.start()], whole.format(found[0])]
        at = found.end()
    return Markup("").join([*parts, text[at:]])


def stretch(seconds: float | None) -> str:
    """Return how long something took or takes, in its two largest units: "3 min 20 s"."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for unit, length in _STEPS:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def ago(seconds: float | None) -> str:
    """Return how long something is past."""
    return NOTHING if seconds is None else f"{stretch(seconds)} ago"


def number(value: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in three digits: 940, 12.3k, 4.56M."""
    if value is None:
        return NOTHING
    for unit, step in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # What would be rounded to a thousand of the smaller unit is one of the larger.
        if abs(value) >= 0.9995 * step:
            return f"{value / step:.3g}{unit}"
    return f"{value:.3g}"


def share(ratio: float | None) -> str:
    """Return a part of a whole in percent; a small one is not nothing."""
    if ratio is not None and 0 < ratio <= 0.005:
        return "< 1%"
    return NOTHING if ratio is None else f"{ratio:.0%}"


def money(value: Spent | float | None) -> str:
    """Return an amount of money as everywhere else in Parley."""
    return value.cost if isinstance(value, Spent) else format_usd(value)
