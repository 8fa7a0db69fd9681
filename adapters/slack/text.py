"""Slack's message markup → text as a person reads it (step 1). Pure.

Markup is `<…>`; `&`, `<` and `>` of the text itself come as entities.
Source: https://docs.slack.dev/messaging/formatting-message-text
"""

import re
from collections.abc import Callable

MAX_QUOTE_CHARS = 500
_MARKUP = re.compile(r"<([^<>\s][^<>]*)>")
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


def readable(text: str, name_of: Callable[[str], str | None] = lambda _: None) -> str:
    """Return the text with mentions, channels, links and entities as they are shown."""
    return unescaped(_MARKUP.sub(lambda match: _shown(match[1], name_of), text))


def mentioned(text: str) -> list[str]:
    """Return the ids of all users that the text names."""
    return re.findall(r"<@(\w+)", text)


def mentions(text: str, user: str) -> bool:
    """Whether the text names this user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def without_address(text: str, user: str) -> str:
    """Return the text without mentions of this user in front, if there is more than that."""
    rest = re.sub(rf"^(\s*<@{re.escape(user)}(\|[^<>]*)?>[\s,:]*)+", "", text)
    return rest or text


def unescaped(text: str) -> str:
    """Return the text with Slack's three entities decoded."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escaped(text: str) -> str:
    """Return the text so that Slack finds no markup in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def storable(text: str) -> str:
    """Replace what no database takes."""
    return _NOT_STORABLE.sub("\ufffd", text)


def quote(author: str, text: str) -> str:
    """Return what somebody said as a quote, shortened."""
    said = text.strip()
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    lines = said.splitlines()
    if author:
        lines = [f"{author}:", *lines]
    return "\n".join(f"> {line}" for line in lines)


def _shown(markup: str, name_of: Callable[[str], str | None]) -> str:
    target, _, label = markup.partition("|")
    if target.startswith("@"):
        return "@" + (name_of(target[1:]) or label.removeprefix("@") or target[1:])
    if target.startswith("#"):
        return "#" + (label.removeprefix("#") or target[1:])
    if target.startswith("!"):
        return _shown_special(target, label)
    if not label or label == target or target == f"mailto:{label}":
        return label or target
    return f"{label} ({target})"


def _shown_special(target: str, label: str) -> str:
    """`<!here>`, `<!subteam^S1|@team>`, `<!date^…|fallback>`."""
    if label:
        return label
    return f"@{target[1:].partition('^')[0]}"
