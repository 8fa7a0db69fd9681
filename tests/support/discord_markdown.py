"""Discord's markdown as its client reads it: rules and their order, on simple-markdown.

Source: https://github.com/brussell98/discord-markdown and the client's own rules for headings,
lists, subtext, masked links and time stamps.
"""

import re
from dataclasses import dataclass, field

_BLOCK_QUOTE = re.compile(r" *>>> +([\s\S]*)|( *>(?!>>) +[^\n]*(?:\n *>(?!>>) +[^\n]*)*\n?)")
_CODE_BLOCK = re.compile(r"```(?:([a-z0-9_+\-.#]+?)\n)?\n*([^\n][\s\S]*?)\n*```", re.IGNORECASE)
_HEADING = re.compile(r" *(#{1,3})\s+([^\n]+?)#*\s*(?:\n|$)")
_SUBTEXT = re.compile(r" *-#\s+([^\n]+?)\s*(?:\n|$)")
_LIST_ITEM = re.compile(r" *(?:[-*+]|(\d+\.))(?:[ \t]+|$)", re.MULTILINE)
_ESCAPE = re.compile(r"\\([^0-9A-Za-z\s])")
_AUTOLINK = re.compile(r"<([^: >]+:/[^ >]+)>")
_URL = re.compile(r"https?://[^\s<]+[^<.,:;\"'\]\s]")
_MENTION = re.compile(r"@everyone|@here|<(?:@[!&]?|#)\d+>|<id:\w+>|</[^>]+:\d+>")
_EMOJI = re.compile(r"<a?:\w+:\d+>|<t:-?\d+(?::[a-zA-Z])?>")
_EM = re.compile(
    r"\b_((?:__|\\[\s\S]|[^\\_])+?)_\b"
    r"|\*(?=\S)((?:\*\*|\\[\s\S]|\s+(?:\\[\s\S]|[^\s*\\]|\*\*)|[^\s*\\])+?)\*(?!\*)",
    re.ASCII,
)
_STRONG = re.compile(r"\*\*((?:\\[\s\S]|[^\\])+?)\*\*(?!\*)")
_UNDERLINE = re.compile(r"__((?:\\[\s\S]|[^\\])+?)__(?!_)")
_STRIKE = re.compile(r"~~([\s\S]+?)~~(?!_)")
_SPOILER = re.compile(r"\|\|([\s\S]+?)\|\|")
_INLINE_CODE = re.compile(r"(`+)([\s\S]*?[^`])\1(?!`)")
_LINK = re.compile(
    r"\[((?:\[[^\]]*\]|[^\[\]]|\](?=[^\[\n]*\]))*)\]\(\s*<?((?:\([^)]*\)|[^\s\\()]|\\.)*?)>?\s*\)"
)
_TEXT = re.compile(r"[0-9A-Za-z \u00c0-\uffff]+")


@dataclass(slots=True)
class Shown:
    """What a reader sees: the text, each format with its text, and who is called."""

    text: str = ""
    formats: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)


def discord_text(message: str) -> str:
    """Return the plain text of a message."""
    return read(message).text


def read(message: str) -> Shown:
    """Return what a message shows."""
    shown = Shown()
    shown.text = _read(message, shown, is_block=True)
    return shown


def _read(source: str, shown: Shown, *, is_block: bool) -> str:
    out: list[str] = []
    position = 0
    while position < len(source):
        at_start = is_block and (position == 0 or source[position - 1] == "\n")
        text, position = _next(source, position, shown, at_start=at_start)
        out.append(text)
    return "".join(out)


def _next(source: str, position: int, shown: Shown, *, at_start: bool) -> tuple[str, int]:
    if at_start and (block := _block(source, position, shown)):
        return block
    if plain := _TEXT.match(source, position):
        # A link inside of a word is one, too.
        begin = source.find("http", position, plain.end())
        if begin < 0:
            return plain.group(), plain.end()
        if begin > position:
            return source[position:begin], begin
    return _inline(source, position, shown) or (source[position], position + 1)


def _block(source: str, position: int, shown: Shown) -> tuple[str, int] | None:
    if found := _BLOCK_QUOTE.match(source, position):
        inner = found.group(1)
        if inner is None:
            inner = re.sub(r"^ *> ?", "", found.group(2), flags=re.MULTILINE)
        return _formatted("quote", inner, shown, is_block=True), found.end()
    if found := _HEADING.match(source, position):
        return _formatted(f"h{len(found.group(1))}", found.group(2), shown) + "\n", found.end()
    if found := _SUBTEXT.match(source, position):
        return _formatted("subtext", found.group(1), shown) + "\n", found.end()
    if found := _LIST_ITEM.match(source, position):
        line, _, _ = source[found.end() :].partition("\n")
        end = found.end() + len(line)
        inner = _read(line, shown, is_block=True)
        shown.formats.append(f"item {inner.strip()}")
        return f"{found.group(1) or ''} {inner}", end
    return None


def _inline(source: str, position: int, shown: Shown) -> tuple[str, int] | None:
    if found := _CODE_BLOCK.match(source, position):
        shown.formats.append(f"pre {found.group(1) or ''} {found.group(2)}")
        return found.group(2), found.end()
    if found := _ESCAPE.match(source, position):
        return found.group(1), found.end()
    for rule in (_AUTOLINK, _URL):
        if found := rule.match(source, position):
            url = found.group(found.lastindex or 0)
            if rule is _URL and url.endswith(")") and url.count(")") > url.count("("):
                url = url[:-1]
            shown.formats.append(f"url {url}")
            return url, position + len(url) if rule is _URL else found.end()
    for rule in (_MENTION, _EMOJI):
        if found := rule.match(source, position):
            shown.mentions.append(found.group())
            return found.group(), found.end()
    return _span(source, position, shown)


def _span(source: str, position: int, shown: Shown) -> tuple[str, int] | None:
    if found := _LINK.match(source, position):
        return _formatted(f"link({found.group(2)})", found.group(1), shown), found.end()
    if found := _INLINE_CODE.match(source, position):
        shown.formats.append(f"code {found.group(2)}")
        return found.group(2), found.end()
    rules = {"em": _EM, "strong": _STRONG, "underline": _UNDERLINE}
    matches = [
        (name, match) for name, rule in rules.items() if (match := rule.match(source, position))
    ]
    if matches:
        name, found = max(matches, key=lambda item: len(item[1].group()))
        inner = next(group for group in found.groups() if group is not None)
        return _formatted(name, inner, shown), found.end()
    for name, rule in (("strike", _STRIKE), ("spoiler", _SPOILER)):
        if found := rule.match(source, position):
            return _formatted(name, found.group(1), shown), found.end()
    return None


def _formatted(name: str, inner: str, shown: Shown, *, is_block: bool = False) -> str:
    place = len(shown.formats)
    text = _read(inner, shown, is_block=is_block)
    shown.formats.insert(place, f"{name} {text.strip()}")
    return text
