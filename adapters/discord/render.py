"""Markdown → payloads: Discord's dialect of markdown; pure.

A payload is the text of one message. Mentions (`@everyone`, `<@id>`) get an invisible character
inside; other literal text is escaped.
"""

import re

from typing_extensions import override

from adapters.rendering.chunks import PREVIEW_END
from adapters.rendering.dialects import Dialect, messages, preview
from adapters.rendering.styled import Conventions

# Source: https://discord.com/developers/docs/resources/message#create-message ("up to 2000").
# Leaves room for the mark of a resent message.
RESENT_MARK = "(re-sent)\n"
MAX_TEXT_CHARS = 2000 - len(RESENT_MARK)

_SPECIAL = re.compile(r"[\\*`~|<\[]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|:(?=//)|(?:^|(?<=\]))\(")
_AT_LINE_START = re.compile(r"\s*(?:(?=#{1,3}(?:\s|$)|-#|[-+>](?:\s|$)|>>)|\d+(?=[.)](?:\s|$)))")
_MENTION = re.compile(r"@(?=everyone|here)|<(?=(?:@[!&]?|#)\d)")
# Discord extends a link up to the next space, except for some punctuation.
_AFTER_LINK = re.compile(r"[.,:;\"')]*(?:\s|$)")


def render(markdown: str) -> list[str]:
    """Render an answer into payloads, at least one; never raises."""
    return messages(markdown, _DIALECT)


def preview_text(markdown: str) -> str | None:
    """Return the start of an unfinished answer that fits into one message; None if blank."""
    return preview(markdown, _PREVIEW)


class _Discord(Dialect):
    # Discord shows a link literally if its text looks like an address or has brackets.
    conventions = Conventions(
        "- ", re.compile(r"https?://\S+", re.IGNORECASE), re.compile(r"[\[\]]|://"), number_sign="."
    )
    heading_levels = 3
    fence_backticks = 3

    @override
    def escape(self, text: str) -> str:
        return _SPECIAL.sub(r"\\\g<0>", text) if _SPECIAL.search(text) else text

    @override
    def escape_line(self, line: str) -> str:
        meant = _AT_LINE_START.match(line)
        return f"{line[: meant.end()]}\\{line[meant.end() :]}" if meant else line

    @override
    def defuse(self, message: str) -> str:
        return _MENTION.sub("\\g<0>\u200b", message)

    @override
    def bare_link(self, url: str, following: str) -> str:
        return url if _AFTER_LINK.match(following) else f"<{url}>"


_DIALECT = _Discord(MAX_TEXT_CHARS)
_PREVIEW = _Discord(MAX_TEXT_CHARS - len(f"\n{PREVIEW_END}"))
