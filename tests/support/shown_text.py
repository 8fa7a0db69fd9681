"""What a reader sees, as plain text: of markdown, of Telegram's, Discord's and Slack's messages.

Written without the renderers, to check them: markdown and Slack's dialect are read with the
unchanged CommonMark parser, Discord's with the rules of its client.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile, zip_longest

import orjson
from markdown_it import MarkdownIt
from markdown_it.token import Token

COMMONMARK = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

_DRAWN = re.compile("[│─┼•>]")

ShowsTarget = Callable[[str, str], bool]
"""Whether a link with this text and target shows its target."""


def bare(text: str) -> str:
    """Return a text without what renderers may add: white space, invisible and drawn signs."""
    text = _DRAWN.sub("", "".join(text.split()))
    if text.isascii():
        return text
    return "".join(char for char in text if unicodedata.category(char) not in {"Cf", "Zs"})


def markdown_text(
    tokens: Sequence[Token],
    shows_target: ShowsTarget,
    number_sign: str | None = None,
    table_columns: int | None = None,
) -> str:
    """Return the text of parsed markdown, with the numbers of lists; tables show all targets.

    `number_sign` stands behind these numbers, None for what was written. Tables wider than
    `table_columns` are read as lists of records, each value behind its heading.
    """
    return "".join(_block_text(tokens, shows_target, number_sign, table_columns))


def _block_text(
    tokens: Sequence[Token],
    shows_target: ShowsTarget,
    number_sign: str | None,
    table_columns: int | None,
) -> Iterator[str]:
    numbers: list[int | None] = []
    rest = iter(tokens)
    for token in rest:
        if token.type == "ordered_list_open":
            numbers.append(int(token.attrs.get("start", 1)))
        elif token.type == "bullet_list_open":
            numbers.append(None)
        elif token.type in {"ordered_list_close", "bullet_list_close"}:
            numbers.pop()
        elif token.type == "list_item_open" and (number := numbers[-1]) is not None:
            numbers[-1] = number + 1
            yield f"{number}{number_sign or token.markup} "
        elif token.type in {"fence", "code_block"}:
            yield f"{token.content}\n"
        elif token.type == "inline":
            yield inline_text(token.children or [], shows_target) + "\n"
        elif token.type == "table_open":
            yield from _table_text(
                takewhile(lambda inner: inner.type != "table_close", rest), table_columns
            )


def _table_text(tokens: Iterator[Token], columns: int | None) -> Iterator[str]:
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(inline_text(token.children or [], lambda label, target: True))
    widths = [max(map(_columns, column)) for column in zip_longest(*rows, fillvalue="")]
    if columns is None or len(rows) == 1 or sum(widths) + 3 * (len(widths) - 1) <= columns:
        yield from ("".join(row) + "\n" for row in rows)
        return
    for row in rows[1:]:
        for heading, value in zip(rows[0], row, strict=False):
            if value:
                yield f"{heading}: {value}\n" if heading else f"{value}\n"


def _columns(text: str) -> int:
    """Return how wide a text is in a fixed-width font."""
    wide = sum(unicodedata.east_asian_width(char) in {"W", "F"} for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def inline_text(tokens: Sequence[Token], shows_target: ShowsTarget) -> str:
    """Return the text of inline tokens."""
    out: list[str] = []
    links: list[tuple[int, str]] = []
    for token in tokens:
        if token.type == "link_open":
            target = "" if token.info == "auto" else str(token.attrs["href"])
            links.append((len(out), target))
        elif token.type == "link_close":
            begin, target = links.pop()
            out.append(_target("".join(out[begin:]), target, shows_target))
        elif token.type == "image":
            label = inline_text(token.children or [], shows_target)
            out.append(label)
            if not links:
                out.append(_target(label, str(token.attrs["src"]), shows_target))
            elif not label.strip():
                out.append("")
        else:
            out.append("\n" if token.type.endswith("break") else token.content)
    return "".join(out)


def _target(label: str, target: str, shows_target: ShowsTarget) -> str:
    if not target or label in {target, target.removeprefix("mailto:")}:
        return ""
    if not label.strip():
        return target
    return f" ({target})" if shows_target(label, target) else ""


def telegram_text(payload: str) -> str:
    """Return the text of a Telegram payload."""
    return str(orjson.loads(payload)["text"])


def slack_text(payload: str) -> str:
    """Return the text of a message as a reader of CommonMark sees it."""
    return markdown_text(COMMONMARK.parse(payload), lambda label, target: False)
