"""Markdown → payloads: Slack's dialect of markdown; pure.

A payload is what `markdown_text` takes. Slack reads its own `<…>` signs in it, too, and decodes
`&lt;`, `&gt;` and `&amp;` outside of code.
"""

import re
from dataclasses import replace

from adapters.rendering.chunks import PREVIEW_END
from adapters.rendering.dialects import Dialect, messages, preview
from adapters.rendering.styled import Conventions

# Source: https://docs.slack.dev/reference/block-kit/blocks/markdown-block (12,000 in all markdown
# of a message), less what Slack adds when it makes blocks of it:
# https://github.com/slackapi/bolt-js/issues/2509
MAX_TEXT_UNITS = 11_500
# Source: https://docs.slack.dev/reference/methods/chat.update (4,000 bytes)
MAX_PREVIEW_BYTES = 3900

_SPECIAL = re.compile(r"[\\*`~\[\]]|(?<![^\W_])_|_(?![^\W_])")
_AT_LINE_START = re.compile(
    r"\s*(?:(?=#{1,6}(?:\s|$)|[-+](?:\s|$)|=+\s*$)|[|:\s]*(?=-[-:|\s]*$)|\d{1,9}(?=[.)](?:\s|$)))"
)
_MARGIN = re.compile(r"^\s+")
_TOKEN = re.compile(
    r"<(?=(?i:!(?:here|channel|everyone|group)\b|!(?:subteam|date)\^)|[@#][A-Z0-9]+[>|])"
)
_AFTER_LINK = re.compile(r"[.,:;\"')]*(?:\s|$)")
_UNSAFE_LINK = re.compile(r"[*~`\\\[\]]|(?<![^\W_])_|_(?![^\W_])|&#?\w+;")


def render(markdown: str) -> list[str]:
    """Return the payloads of an answer, at least one; never raises."""
    return messages(markdown, _DIALECT)


def preview_text(markdown: str) -> str | None:
    """Return what of an unfinished answer fits into one message, marked as such; None if blank."""
    return preview(markdown, _PREVIEW)


def _escape(text: str) -> str:
    if _SPECIAL.search(text):
        text = _SPECIAL.sub(r"\\\g<0>", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_line(line: str) -> str:
    meant = _AT_LINE_START.match(line)
    if meant:
        line = f"{line[: meant.end()]}\\{line[meant.end() :]}"
    # White space would make code of the line.
    return _MARGIN.sub(lambda found: "\u00a0" * len(found.group()), line)


def _defuse(message: str) -> str:
    return _TOKEN.sub("\\g<0>\u200b", message)


def _bare_link(url: str, following: str) -> str:
    if "|" in url:
        return _escape(url)
    is_plain = _AFTER_LINK.match(following) and not _UNSAFE_LINK.search(url)
    return url if is_plain else f"<{url}>"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _bytes(text: str) -> int:
    return len(text.encode())


_DIALECT = Dialect(
    Conventions("- ", re.compile(r"(https?://|mailto:)\S+", re.IGNORECASE)),
    limit=MAX_TEXT_UNITS,
    size=_units,
    escape=_escape,
    escape_line=_escape_line,
    defuse=_defuse,
    bare_link=_bare_link,
    heading_levels=6,
    fence_backticks=10,
)
_PREVIEW = replace(
    _DIALECT, limit=MAX_PREVIEW_BYTES - len(f"\n{PREVIEW_END}".encode()), size=_bytes
)
