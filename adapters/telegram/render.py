"""Markdown → payloads (step 8): Telegram's way of writing a styled text; pure.

Entities are used instead of MarkdownV2 because "can't parse entities" cannot happen with them.
Code and `pre` hold no other entity but a quote around them (Bot API, "MessageEntity").
"""

import re

import orjson

from adapters.marks import Conventions
from adapters.previews import PREVIEW_END, beginning
from adapters.styled import styled
from adapters.telegram.split import MAX_TEXT_UNITS, split

CONVENTIONS = Conventions("• ", re.compile(r"(https?|ftp)://\S+", re.IGNORECASE))


def render(markdown: str) -> list[str]:
    """Return the payloads of an answer, at least one; never raises."""
    return split(styled(markdown, CONVENTIONS))


def preview_text(markdown: str) -> str | None:
    """Return what of an unfinished answer fits into one message, marked as such; None if blank."""
    part = beginning(markdown, MAX_TEXT_UNITS)
    if part is None:
        return None
    text: str = orjson.loads(render(part)[0])["text"]
    return text + PREVIEW_END
