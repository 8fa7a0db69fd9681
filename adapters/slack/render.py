"""Markdown → payloads: Slack's dialect of markdown; pure.

A payload is a value for `markdown_text`. Slack also interprets its own `<…>` markup in it and
decodes `&lt;`, `&gt;` and `&amp;` outside code.
"""

import re

from typing_extensions import override

from adapters.rendering.chunks import PREVIEW_END
from adapters.rendering.dialects import Dialect, messages, preview
from adapters.rendering.styled import Conventions

# Source: https://docs.slack.dev/reference/block-kit/blocks/markdown-block (12,000 per message),
# minus what Slack adds when it converts it to blocks:
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
    """Render an answer into payloads, at least one; never raises."""
    return messages(markdown, _DIALECT)


def preview_text(markdown: str) -> str | None:
    """Return the start of an unfinished answer that fits into one message; None if blank."""
    return preview(markdown, _PREVIEW)


class _Slack(Dialect):
    conventions = Conventions("- ", re.compile(r"(https?://|mailto:)\S+", re.IGNORECASE))
    heading_levels = 6
    fence_backticks = 10

    @override
    def size(self, text: str) -> int:
        return len(text.encode("utf-16-le")) // 2

    @override
    def escape(self, text: str) -> str:
        if _SPECIAL.search(text):
            text = _SPECIAL.sub(r"\\\g<0>", text)
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    @override
    def escape_line(self, line: str) -> str:
        meant = _AT_LINE_START.match(line)
        if meant:
            line = f"{line[: meant.end()]}\\{line[meant.end() :]}"
        # Leading spaces would turn the line into code.
        return _MARGIN.sub(lambda found: "\u00a0" * len(found.group()), line)

    @override
    def defuse(self, message: str) -> str:
        return _TOKEN.sub("\\g<0>\u200b", message)

    @override
    def bare_link(self, url: str, following: str) -> str:
        # Slack reads the text after "|" as a link's label.
        if "|" in url:
            return self.escape(url)
        is_plain = _AFTER_LINK.match(following) and not _UNSAFE_LINK.search(url)
        return url if is_plain else f"<{url}>"


class _SlackPreview(_Slack):
    # An edit counts bytes, a post characters.
    @override
    def size(self, text: str) -> int:
        return len(text.encode())


_DIALECT = _Slack(MAX_TEXT_UNITS)
_PREVIEW = _SlackPreview(MAX_PREVIEW_BYTES - len(f"\n{PREVIEW_END}".encode()))
