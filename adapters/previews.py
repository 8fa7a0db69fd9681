"""What of an unfinished answer is shown while the model still writes (step 8); pure."""

import re

from adapters.chunks import is_blank

PREVIEW_END = " …"
# How much markdown is read for each character that a message takes: formatting and link targets
# need space, and parsing all of a long answer over and over would be slow.
_MARKDOWN_RATIO = 2
_FENCE_LINE = re.compile(r"[ \t>]*(?:`{1,2}|(?:`{3,}|~{3,})[^`]*)")


def beginning(markdown: str, message_chars: int) -> str | None:
    """Return the part of an unfinished answer that one message may show; None if blank.

    A last line that opens or closes a code block is left out: with nothing behind it, its
    backticks would be shown as text. The parser closes an open block by itself.
    """
    part = markdown[: _MARKDOWN_RATIO * message_chars]
    if len(part) == len(markdown):
        last = part.rfind("\n") + 1
        if _FENCE_LINE.fullmatch(part, last):
            part = part[:last]
    return None if is_blank(part) else part
