"""Reads the fields of a stream with distrust: proxies omit them, null them or change their type.

What cannot be used is left out (step 5 of the path); what cannot be read at all ends the call as a
cut stream does.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from agent.errors import ModelUnreachable
from agent.messages import encode
from agent.models.base import Completion
from agent.tokens.estimate import estimate_tokens
from agent.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator


MOST_TOKENS = 1_000_000_000
"""A report of more is none: no window comes near, and the database could not keep it."""


@contextmanager
def readable(provider: str) -> "Iterator[None]":
    """Take a stream that cannot be read for one that was cut.

    Raises:
        ModelUnreachable: Something in it is not what it should be.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ModelUnreachable(f"{provider}: malformed stream ({type(exc).__name__})") from exc


def storable(completion: Completion) -> Completion:
    """Return an answer that can be stored as it is.

    Raises:
        TypeError: There is something in it that Parley's JSON does not hold: an integer of more
            than 64 bits, half a surrogate pair, or more levels than it writes.
    """
    encode(completion.message)
    return completion


def text_in(value: object) -> str:
    """Return a text: itself, or that of the text parts in a list; "" where there is none."""
    if isinstance(value, list):
        parts = (part for part in value if isinstance(part, dict) and part.get("type") == "text")
        return "".join(text_in(part.get("text")) for part in parts)
    return value if isinstance(value, str) else ""


def arguments_in(value: object) -> str:
    """Return the arguments of a call, or a piece of them, as JSON text: some send the object."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text_in(value)


def tokens_in(report: object, name: str, default: int = 0) -> int:
    """Return a number of tokens out of a report; `default` where it holds none."""
    value = getattr(report, name, None)
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return value if 0 <= value <= MOST_TOKENS else default


def usd_in(value: object) -> float | None:
    """Return an amount of money; None for what is none: below 0, infinite, not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= sys.float_info.max else None


def usage_so_far(reported: Usage, streamed: str, model: str) -> Usage | None:
    """Return what a broken stream is billed, its output estimated; None if nothing was reported.

    Thoughts that the provider keeps to itself are not in the estimate.
    """
    if not reported.prompt_tokens:
        return None
    written = max(reported.output_tokens, estimate_tokens(streamed, model))
    return replace(reported, output_tokens=written)
