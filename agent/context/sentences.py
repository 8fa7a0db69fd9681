"""Sentences of a text in any language: what is kept of a conversation is kept in whole sentences.

Prose is cut where sentences end, also where a script puts no spaces between them; lists, headings,
tables and code are taken line by line. Nothing is changed: every unit stands in the text as it is,
up to white space.
"""

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from agent.context.statements import FUNCTION_WORDS
from agent.tokens.estimate import estimate_tokens

MAX_CHARS = 400
"""A longer sentence is no statement but a pasted text: it is cut at its commas, else at spaces."""
GAP = "…"
"""Between spaces it stands for what is left out: no sentence reaches across."""
JOINT = "·"
"""Between spaces it stands for the end of a line: nor does one reach across this."""

_GAPS = frozenset({GAP, JOINT})
_GAP_APART = re.compile(rf"(?:^|\s)[{GAP}{JOINT}](?=\s|$)")
_NUMBERED = frozenset(").")
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
# These end a sentence where white space follows, the others in any case.
_SPACED = f".!?\u037e\u061f\u06d4\u0589\u1362{GAP}"
_WIDE = "\u3002\uff01\uff1f\uff61\u0964\u0965\u104b\u17d4"
# A class first, and no group: `re` skims for it.
_END = re.compile(rf"[{_SPACED}{_WIDE}{JOINT}][{_SPACED}{_WIDE}]*[{_CLOSERS}{_WIDE_CLOSERS}]*\s*")
_WIDE_QUOTE_GOES_ON = re.compile(
    "[\u300d\u300f]\\s*(?=[\u3068\u3063\u306e\u306a\u3092\u306b\u306f\u304c])"
)
_LEAD = re.compile(
    r"(?P<heading>\#{1,6}\s+)"
    r"|(?P<quote>(?:>\s?)+)"
    r"|(?P<item>(?:[-*+\u2022\u2023\u25aa\u25cf\u25e6\u00b7\u2013\u2014]\s+(?:\[[ xX]\]\s+)?)"
    r"|(?=(?:\d{1,3}|[A-Za-z])[.)]\s))"
)
# "It failed.I will": between two words, of which the second one is such as begin sentences.
_NO_SPACE = re.compile(r"(?<=[a-z]{2})[.!?](?=([A-Z][a-z]*)[ ,'\u2019])")
_NUMBER = re.compile(r"(?:\d{1,3}|[A-Za-z])[.)]\s+")
_TITLE = re.compile(r"\*\*[^*]+\*\*:?|[^.!?\n]+[:\uff1a]")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_ENDED = re.compile(rf"[.!?:;\u2026\u3002\uff01\uff1f\uff1a\uff1b\u061f\u06d4\u0964][{_CLOSERS}]*$")
# The last place of each kind: what is greedy begins at the end and goes back.
_CUTS = (
    re.compile(r".*[;\uff1b]\s*", re.DOTALL),
    re.compile(r".*(?:[,\u060c]\s|[\uff0c\u3001])", re.DOTALL),
    re.compile(r".*\s", re.DOTALL),
)

_ABBREVIATIONS_TEXT = """
    abs adj appt apt approx asst av avda ave bd bldg blvd bspw bzw ca capt cf corp dept dhr dipl doc
    dott dr dra ecc eds ej env esim evtl excl exkl exmo fr geb gest ggf godz gov hon hr hrsg incl
    inkl jh jr kap kl klo lic lt mag mevr mio mlle mme mon mr mrd mrs nr nro num núm pág prof puh
    resp sen sgt sig sn sog sr sra srta st ste str tel thr tlf tzw ud uds univ usw vgl vol vs zzgl
    г гл др ул кв руб тыс млн млрд стр рис см проф тел обл"""
"""Without their full stop; words that often end sentences are not among them."""
_BEFORE_NUMBER_TEXT = """
    apr art aug ch chap dec dez déc eq feb févr fig figs jan janv jul juil jun lc mar mär mrz ms n
    no nos nov oct okt p par pos pp pt q sat sec sect sep sept sun tab tue v ver vers wed thu fri"""
"""Abbreviations only where a number follows."""
_BEFORE_ORDINAL_TEXT = """
    am vom zum im der die das dem den des bis ab seit til"""
"""Behind these a number with a full stop counts: "am 3. Mai"."""
_MONTHS_TEXT = """
    januar februar märz april mai juni juli august september oktober november dezember jänner jan
    feb mär apr jun jul aug sep sept okt nov dez"""
_ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())
_BEFORE_NUMBER = frozenset(_BEFORE_NUMBER_TEXT.split())
_BEFORE_ORDINAL = frozenset(_BEFORE_ORDINAL_TEXT.split())
_MONTHS = frozenset(_MONTHS_TEXT.split())


def units(text: str) -> list[Unit]:
    """Return what a text says, in order; lines without a letter or a digit are left out."""
    found: list[Unit] = []
    paragraph: list[str] = []
    form: Form = "prose"
    fence = ""
    for raw in text.splitlines():
        line = raw.strip()
        if fence:
            fence = _add_code(found, line, fence)
            continue
        if paragraph:
            if _goes_on(paragraph[-1], line):
                paragraph.append(line)
                continue
            _add_paragraph(found, "\n".join(paragraph), form)
            paragraph = []
        if (opened := _FENCE.match(line)) and opened[1] not in line[len(opened[1]) :]:
            fence = opened[1]
            continue
        said, form = _line(line)
        if form in {"prose", "item"}:
            paragraph = [said] if _says(said) else []
        elif _says(said):
            _add(found, said, form)
    if paragraph:
        _add_paragraph(found, "\n".join(paragraph), form)
    return found


def _add_code(found: list[Unit], line: str, fence: str) -> str:
    """Add a line behind a fence; returns the fence, "" where the line closes it."""
    if line.startswith(fence) and not line.strip(fence[0]):
        return ""
    if _says(line):
        _add(found, line, "code")
    return fence


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, those of its lists included; code is left out."""
    return [unit.text for unit in units(text) if unit.form != "code"]


def _add(found: list[Unit], text: str, form: Form) -> None:
    """Add a text, in several pieces where something is left out of it, or it is too long."""
    if GAP in text or JOINT in text:
        for piece in filter(_says, _GAP_APART.split(text)):
            _add_piece(found, piece.strip(), form)
    else:
        _add_piece(found, text, form)


def _add_piece(found: list[Unit], piece: str, form: Form) -> None:
    """Add a piece, in several where it is longer than a sentence is."""
    while len(piece) > MAX_CHARS:
        at = _place_to_cut(piece)
        found.append(Unit(piece[:at].strip(), form))
        piece = piece[at:].strip()
    if piece:
        found.append(Unit(piece, form))


def _goes_on(before: str, line: str) -> bool:
    """Whether a line is the rest of the one before: that was full, and this one begins small."""
    return len(before) >= _WRAPPED_CHARS and line[:1].islower() and _ENDED.search(before) is None


def _line(line: str) -> tuple[str, Form]:
    """Return a line without the mark in front of it, and what it is."""
    # Most lines begin with a letter, and are nothing but prose.
    if line[:1].isalpha() and line[1:2] not in _NUMBERED:
        return line, "prose"
    if line.startswith("|"):
        return line, "row"
    found = _LEAD.match(line)
    if found is None:
        return line, "prose"
    forms: dict[str | None, Form] = {"heading": "heading", "item": "item"}
    return line[found.end() :], forms.get(found.lastgroup, "prose")


def _says(line: str) -> bool:
    """Whether a line holds a letter or a digit: else it is a rule, or a picture."""
    return line[:1].isalnum() or any(map(str.isalnum, line))


def _add_paragraph(found: list[Unit], text: str, form: Form) -> None:
    """Add the sentences of a paragraph, or the paragraph itself where it is a heading."""
    if form == "prose" and len(text) < _WRAPPED_CHARS and _TITLE.fullmatch(text):
        found.append(Unit(text, "heading"))
        return
    start = 0
    # "1. Buy milk": the number belongs to what follows it.
    numbered = _NUMBER.match(text) if form == "item" or text[1:2] in _NUMBERED else None
    search_from = numbered.end() if numbered else 0
    is_lower = text[search_from : search_from + 1].islower()
    for end in _END.finditer(text, search_from):
        at, until = end.span()
        is_gap = text[at] in _GAPS and _is_apart(text, at)
        # Most points stand within numbers and addresses, or at the very end.
        if not is_gap and (until == len(text) or not _ends(text, end, is_lower=is_lower)):
            continue
        if _says(sentence := text[start : at if is_gap else until].strip()):
            _add(found, sentence, form)
            start = until
        elif is_gap:
            start = until
    if _says(sentence := text[start:].strip()):
        _add(found, sentence, form)


def _is_apart(text: str, at: int) -> bool:
    """Whether a sign stands between spaces."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    return (not before or before.isspace()) and (not after or after.isspace())


def _ends(text: str, found: re.Match[str], *, is_lower: bool) -> bool:
    """Whether a sentence ends at what looks like its end.

    Args:
        is_lower: Its writer begins sentences with small letters.
    """
    mark, after = found[0], text[found.end() : found.end() + 1]
    if mark[0] == JOINT or (mark[0] in _SPACED and not mark[-1].isspace()):
        return _lacks_space(text, found.start())
    if mark[0] in _WIDE:
        return _WIDE_QUOTE_GOES_ON.search(text, found.start(), found.end() + 1) is None
    if mark[0] != "." or mark[1] == ".":
        # "Really?" she said. - Wait... what?
        quoted = mark.rstrip()[-1] not in "!?" or mark[0] in f".{GAP}"
        return not (quoted and after.islower())
    word = _word_before(text, found.start())
    if _is_short_form(word, after):
        return False
    if word.isdigit() and len(word) <= 2 and _is_ordinal(text, found, word):
        return False
    return is_lower or not after.islower()


def _lacks_space(text: str, at: int) -> bool:
    """Whether only the space is missing between two sentences."""
    found = _NO_SPACE.match(text, at)
    if found is None or found[1].casefold() not in FUNCTION_WORDS:
        return False
    return _word_before(text, at).isalpha()


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


def _place_to_cut(piece: str) -> int:
    for cut in _CUTS:
        if found := cut.match(piece, MAX_CHARS // 3, MAX_CHARS):
            return found.end()
    # Rather a short piece than a broken word.
    if (blank := piece.rfind(" ", 0, MAX_CHARS)) > 0:
        return blank
    at = MAX_CHARS
    # Nor between a letter and its accent, or within an emoji of several signs.
    while at > 1 and (unicodedata.combining(piece[at]) or "\u200d" in piece[at - 1 : at + 1]):
        at -= 1
    return at


def shortened(text: str, most_tokens: int) -> str:
    """Return a text with headings that takes no more than so many tokens, if that can be.

    The longest section gives way first: the last point of it, the last sentences of a point that is
    most of it, and the oldest of what was done. Each section keeps a sentence; a sign stands where
    something is left out.
    """
    sections = _sections(text)
    excess = sum(section.tokens for section in sections) - most_tokens
    while excess > 0:
        longest = max((each for each in sections if each.gives), key=_tokens_of, default=None)
        if longest is None:
            break
        before = longest.tokens
        longest.give_way()
        excess -= before - longest.tokens
    return "\n".join(section.text for section in sections)


@dataclass(slots=True)
class _Section:
    """A heading, and the points below it, each in sentences."""

    heading: str
    points: list[list[str]]
    sizes: list[int]
    gives: bool = True
    cut: bool = False

    @property
    def tokens(self) -> int:
        return estimate_tokens(self.heading) + sum(self.sizes) + 2 * self.cut

    @property
    def is_log(self) -> bool:
        return self.heading.lstrip("# *_").casefold().startswith("done")

    @property
    def text(self) -> str:
        lines = ["".join(point) for point in self.points]
        if self.cut:
            lines.insert(0 if self.is_log else len(lines), GAP)
        return "\n".join([self.heading, *lines] if self.heading else lines)

    def give_way(self) -> None:
        """Leave out a point, or a sentence; afterwards `gives` is False if nothing can go."""
        largest = max(range(len(self.sizes)), key=self.sizes.__getitem__, default=0)
        if not self.points or len(self.points) == len(self.points[0]) == 1:
            self.gives = False
        elif len(self.points[largest]) > 1 and 2 * self.sizes[largest] >= sum(self.sizes):
            point = self.points[largest]
            # Several of many at once: each time all of it is weighed anew.
            del point[-1 - len(point) // 50 :]
            point[-1] = f"{point[-1].rstrip(f' {GAP}')} {GAP}"
            self.sizes[largest] = _size("".join(point))
        elif len(self.points) > 1:
            gone = 0 if self.is_log else -1
            del self.points[gone], self.sizes[gone]
            self.cut = True
        else:
            self.gives = False


def _tokens_of(section: _Section) -> int:
    return section.tokens


def _size(point: str) -> int:
    return estimate_tokens(point) + 1


def _sections(text: str) -> list[_Section]:
    """Return the sections of a text; what is indented, or fenced code, is part of its point.

    Where a heading comes again, as in summaries that were put one behind the other, it goes on.
    """
    found, fenced = {"": list[str]()}, False
    points = found[""]
    for line in text.splitlines():
        lead = None if fenced else _LEAD.match(line)
        if lead and lead["heading"]:
            points = found.setdefault(line, [])
        elif points and (fenced or line[:1].isspace() or not line):
            points[-1] += f"\n{line}"
        else:
            points.append(line)
        fenced ^= line.lstrip().startswith("```")
    return [
        _Section(heading, [_in_sentences(each) for each in points], [*map(_size, points)])
        for heading, points in found.items()
        if heading or points
    ]


def _in_sentences(point: str) -> list[str]:
    """Return a text in pieces that end where its sentences do; joined they are the text."""
    at, ends = 0, []
    for unit in () if "```" in point else units(point):
        at = point.find(unit.text, at) + len(unit.text)
        ends.append(at)
    cuts = [0, *ends[:-1], len(point)]
    if sorted(cuts) != cuts:
        return [point]
    return [point[start:end] for start, end in pairwise(cuts)]
