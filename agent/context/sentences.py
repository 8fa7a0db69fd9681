"""Sentences of a text in any language: what is kept of a conversation is kept in whole sentences.

Prose is cut where sentences end, also where a script puts no spaces between them; lists, headings,
tables and code are taken line by line. Nothing is changed: every unit stands in the text as it is,
up to white space.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from agent.context import cues

MAX_CHARS = 400
"""A longer sentence is no statement but a pasted text: it is cut at its commas, else at spaces."""
GAP = "…"
"""Between spaces it stands for what is left out, and always ends a sentence."""

_WRAPPED_CHARS = 50
"""A shorter line was ended by its writer, not by a mail program."""

Form = Literal["prose", "item", "heading", "code", "row"]


class Unit(NamedTuple):
    """A sentence, a point of a list, a heading, a row of a table, or a line of code."""

    text: str
    form: Form


# What may close behind a full stop: quotes, brackets, emphasis.
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]*_`"
_WIDE_CLOSERS = "\u201d\u2019\u300d\u300f\uff09)\u3011\u300b"
_END = re.compile(
    rf"(?P<spaced>[.!?\u2026\u037e\u061f\u06d4\u0589\u1362]+[{_CLOSERS}]*\s+)"
    rf"|[\u3002\uff01\uff1f\uff61\u0964\u0965\u104b\u17d4]+[{_WIDE_CLOSERS}]*\s*"
)
_WIDE_QUOTE_GOES_ON = re.compile(
    "[\u300d\u300f]\\s*(?=[\u3068\u3063\u306e\u306a\u3092\u306b\u306f\u304c])"
)
_LEAD = re.compile(
    r"(?P<heading>\#{1,6}\s+)"
    r"|(?P<quote>(?:>\s?)+)"
    r"|(?P<item>(?:[-*+\u2022\u2023\u25aa\u25cf\u25e6\u00b7\u2013\u2014]\s+(?:\[[ xX]\]\s+)?)"
    r"|(?=(?:\d{1,3}|[A-Za-z])[.)]\s))"
)
_NUMBER = re.compile(r"(?:\d{1,3}|[A-Za-z])[.)]\s+")
_TITLE = re.compile(r"\*\*[^*]+\*\*:?|[^.!?\n]+[:\uff1a]")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_ENDED = re.compile(rf"[.!?:;\u2026\u3002\uff01\uff1f\uff1a\uff1b\u061f\u06d4\u0964][{_CLOSERS}]*$")
_CUTS = (
    re.compile(r"[;\uff1b]\s*"),
    re.compile(r"(?:[,\u060c]\s|[\uff0c\u3001])"),
    re.compile(r"\s"),
)

_ABBREVIATIONS = frozenset(cues.ABBREVIATIONS.split())
_BEFORE_NUMBER = frozenset(cues.BEFORE_NUMBER.split())
_BEFORE_ORDINAL = frozenset(cues.BEFORE_ORDINAL.split())
_MONTHS = frozenset(cues.GERMAN_MONTHS.split())


def units(text: str) -> list[Unit]:
    """Return what a text says, in order; lines without a letter or a digit are left out."""
    return [Unit(cut, form) for piece, form in _pieces(text) for cut in _cut(piece)]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, those of its lists included; code is left out."""
    return [unit.text for unit in units(text) if unit.form != "code"]


def _pieces(text: str) -> Iterator[tuple[str, Form]]:
    paragraph: list[str] = []
    form: Form = "prose"
    fence = ""
    for raw in text.splitlines():
        line = raw.strip()
        if fence:
            if line.startswith(fence) and not line.strip(fence[0]):
                fence = ""
            elif _says(line):
                yield line, "code"
            continue
        if paragraph:
            if _goes_on(paragraph[-1], line):
                paragraph.append(line)
                continue
            yield from _paragraph(paragraph, form)
            paragraph = []
        if (opened := _FENCE.match(line)) and opened[1] not in line[len(opened[1]) :]:
            fence = opened[1]
            continue
        said, form = _line(line)
        if form in {"prose", "item"} and _says(said):
            paragraph.append(said)
        elif _says(said):
            yield said, form
    yield from _paragraph(paragraph, form)


def _goes_on(before: str, line: str) -> bool:
    """Whether a line is the rest of the one before: that was full, and this one begins small."""
    return len(before) >= _WRAPPED_CHARS and line[:1].islower() and _ENDED.search(before) is None


def _line(line: str) -> tuple[str, Form]:
    """Return a line without the mark in front of it, and what it is."""
    if line.startswith("|"):
        return line, "row"
    found = _LEAD.match(line)
    if found is None:
        return line, "prose"
    forms: dict[str | None, Form] = {"heading": "heading", "item": "item"}
    return line[found.end() :], forms.get(found.lastgroup, "prose")


def _says(line: str) -> bool:
    """Whether a line holds a letter or a digit: else it is a rule, or a picture."""
    return line.isalnum() or any(map(str.isalnum, line))


def _paragraph(lines: Sequence[str], form: Form) -> Iterator[tuple[str, Form]]:
    if not lines:
        return
    paragraph = "\n".join(lines)
    if form == "prose" and len(paragraph) < _WRAPPED_CHARS and _TITLE.fullmatch(paragraph):
        yield paragraph, "heading"
        return
    for sentence in _sentences(paragraph):
        yield sentence, form


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph without the white space around them."""
    start = 0
    # "1. Buy milk": the number belongs to what follows it.
    search_from = numbered.end() if (numbered := _NUMBER.match(text)) else 0
    is_lower = text[search_from : search_from + 1].islower()
    for found in _END.finditer(text, search_from):
        if not _ends(text, found, is_lower=is_lower):
            continue
        if _says(sentence := text[start : found.end()].strip()):
            yield sentence
            start = found.end()
    if _says(sentence := text[start:].strip()):
        yield sentence


def _ends(text: str, found: re.Match[str], *, is_lower: bool) -> bool:
    """Whether a sentence ends at what looks like its end.

    Args:
        is_lower: Its writer begins sentences with small letters.
    """
    mark, after = found[0], text[found.end() : found.end() + 1]
    if not found["spaced"]:
        return _WIDE_QUOTE_GOES_ON.search(text, found.start(), found.end() + 1) is None
    if mark[0] == GAP and mark.strip() == GAP and text[found.start() - 1 : found.start()].isspace():
        return True
    if mark[0] != "." or mark.startswith(".."):
        # "Really?" she said. - Wait... what?
        quoted = mark.rstrip()[-1] not in "!?" or mark[0] in ".\u2026"
        return not (quoted and after.islower())
    word = _word_before(text, found.start())
    if _is_short_form(word, after):
        return False
    if word.isdigit() and len(word) <= 2 and _is_ordinal(text, found, word):
        return False
    return is_lower or not after.islower()


def _word_before(text: str, end: int) -> str:
    start = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end), end - 40) + 1
    return text[start:end].lstrip("([{\"'\u201c\u201e\u00ab*_")


def _is_short_form(word: str, after: str) -> bool:
    """Whether the full stop behind a word belongs to it: "Dr.", "z.B.", "J.", "No. 5"."""
    lower = word.casefold()
    if lower in _ABBREVIATIONS or (lower in _BEFORE_NUMBER and after.isdigit()):
        return True
    if len(word) == 1:
        # An initial, but "and I." ends a sentence, as does a letter that is no capital.
        return word.isalpha() and word != "I" and (word.isupper() or not after.isupper())
    parts = word.split(".")
    if len(parts) > 1 and all(len(part) <= 2 and part.isalpha() for part in parts):
        return lower not in {"a.m", "p.m"} or not after.isupper()
    return False


def _is_ordinal(text: str, found: re.Match[str], number: str) -> bool:
    """Whether a number with a full stop counts: "am 3. Mai", "der 2. Versuch"."""
    before = _word_before(text, found.start() - len(number) - 1).casefold()
    after = re.match(r"\w+", text[found.end() : found.end() + 20])
    return before in _BEFORE_ORDINAL or (after is not None and after[0].casefold() in _MONTHS)


def _cut(piece: str) -> Iterator[str]:
    """Yield a piece, in several where it is longer than a sentence is."""
    while len(piece) > MAX_CHARS:
        at = _place_to_cut(piece)
        yield piece[:at].strip()
        piece = piece[at:].strip()
    if piece:
        yield piece


def _place_to_cut(piece: str) -> int:
    for cut in _CUTS:
        ends = [found.end() for found in cut.finditer(piece, MAX_CHARS // 3, MAX_CHARS)]
        if ends:
            return ends[-1]
    at = MAX_CHARS
    # Nor between a letter and its accent, or within an emoji of several signs.
    while at > 1 and (unicodedata.combining(piece[at]) or "\u200d" in piece[at - 1 : at + 1]):
        at -= 1
    return at
