"""Bold, italic, struck and linked text in one line of a message (step 8): the order of its signs.

A sign works only where the characters around it let it (CommonMark, "left-flanking delimiter
run"). Where they do not, the format is left out, so that no sign is ever shown as text.
"""

import string
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adapters.styled import BOLD, ITALIC, NO_MARKS, STRIKETHROUGH, Mark, Marks

_SIGNS = {BOLD: "**", ITALIC: "*", STRIKETHROUGH: "~~"}
# Next to these every sign works; a "!" would make a picture of a link.
_AFTER_SIGNS = frozenset(string.punctuation + " ")
_BEFORE_SIGNS = _AFTER_SIGNS - {"!"}

Run = tuple[str, Marks]
"""Text as it is written, and what it is to be inside of: emphasis and at most one link."""


class _Span(NamedTuple):
    """One format from run `first` to run `last`."""

    mark: Mark
    first: int
    last: int


def joined(runs: Sequence[Run]) -> str:
    """Return a line with all formats that can be written."""
    simple = _simply_joined(runs)
    if simple is not None:
        return simple
    runs = _without_edges(runs)
    for _ in range(2):
        spans = _spans(runs)
        unwritable = set(_unwritable(runs, spans))
        if not unwritable:
            return _written(runs, spans)
        runs = _without(runs, unwritable)
    runs = _merged([(shown, marks - _SIGNS.keys()) for shown, marks in runs])
    return _written(runs, _spans(runs))


def _simply_joined(runs: Sequence[Run]) -> str | None:
    """Return the line if it is one of the usual ones: no format touches another; else None."""
    out: list[str] = []
    last, was_marked = " ", False
    for shown, marks in runs:
        if marks:
            (mark, *others) = marks
            edges = shown[0] + shown[-1]
            if others or was_marked or last not in _BEFORE_SIGNS or edges.strip() != edges:
                return None
            sign = _SIGNS.get(mark)
            out.append(f"{sign}{shown}{sign}" if sign else f"[{shown}]({mark.detail})")
        elif was_marked and shown[0] not in _AFTER_SIGNS:
            return None
        else:
            out.append(shown)
        last, was_marked = shown[-1], bool(marks)
    return "".join(out)


def _without_edges(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with white space inside of a format only between its words."""
    parts = [(part, marks) for shown, marks in runs for part in _parts(shown)]
    kept: list[Run] = []
    following = NO_MARKS
    for shown, marks in reversed(parts):
        if not shown.isspace():
            following = marks
        kept.append((shown, marks & following))
    kept.reverse()
    before = NO_MARKS
    for place, (shown, marks) in enumerate(kept):
        if not shown.isspace():
            before = marks
        kept[place] = (shown, marks & before)
    return _merged(kept)


def _parts(shown: str) -> Iterator[str]:
    """Yield white space, text and white space, without empty ones."""
    text = shown.strip()
    begin = len(shown) - len(shown.lstrip()) if text else len(shown)
    yield from filter(None, (shown[:begin], text, shown[begin + len(text) :]))


def _merged(runs: Sequence[Run]) -> list[Run]:
    merged: list[tuple[list[str], Marks]] = []
    for shown, marks in runs:
        if merged and merged[-1][1] == marks:
            merged[-1][0].append(shown)
        else:
            merged.append(([shown], marks))
    return [("".join(shown), marks) for shown, marks in merged]


def _spans(runs: Sequence[Run]) -> list[_Span]:
    """Return the formats in the order of their ends; each pair is nested or apart."""
    ends = _ends(runs)
    spans: list[_Span] = []
    opened: list[tuple[Mark, int]] = []
    for place, (_, marks) in enumerate(runs):
        lasting = max(
            (ends[place][mark] for mark in marks - {mark for mark, _ in opened}), default=0
        )
        for depth, (mark, _) in enumerate(opened):
            if mark not in marks or ends[place][mark] < lasting:
                spans += [_Span(*span, place - 1) for span in reversed(opened[depth:])]
                del opened[depth:]
                break
        new = marks - {mark for mark, _ in opened}
        order = sorted(new, key=lambda mark: (-ends[place][mark], mark))
        opened += [(mark, place) for mark in order]
    return spans + [_Span(*span, len(runs) - 1) for span in reversed(opened)]


def _ends(runs: Sequence[Run]) -> list[dict[Mark, int]]:
    """Return for each run and each of its formats the last run that it goes on to."""
    ends: list[dict[Mark, int]] = []
    after: dict[Mark, int] = {}
    for place in range(len(runs) - 1, -1, -1):
        after = {mark: after.get(mark, place) for mark in runs[place][1]}
        ends.append(after)
    ends.reverse()
    return ends


def _unwritable(runs: Sequence[Run], spans: Sequence[_Span]) -> Iterator[_Span]:
    """Yield the formats whose signs would be taken for text."""
    begins: dict[int, list[Mark]] = {}
    finishes: dict[int, list[Mark]] = {}
    for mark, first, last in spans:
        begins.setdefault(first, []).append(mark)
        finishes.setdefault(last + 1, []).append(mark)
    for span in spans:
        if span.mark not in _SIGNS:
            continue
        place = span.first
        before = runs[place - 1][0][-1] if place else ""
        opens = _works(before, runs[place][0][0], begins[place], finishes.get(place, ()))
        place = span.last + 1
        after = runs[place][0][0] if place < len(runs) else ""
        closes = _works(after, runs[span.last][0][-1], finishes[place], begins.get(place, ()))
        if not (opens and closes) or _touches(span, finishes.get(span.first, ())):
            yield span


def _works(outside: str, inside: str, signs: Sequence[Mark], others: Sequence[Mark]) -> bool:
    """Whether signs work between two characters, with other signs on their outer side."""
    if inside.isspace():
        return False
    if not outside or others or _is_space(outside) or _is_punctuation(outside):
        return True
    return not _is_punctuation(inside) and len({_sign_of(mark) for mark in signs}) == 1


def _touches(span: _Span, finished: Sequence[Mark]) -> bool:
    """Whether a sign would run together with that of a format which ends where it begins."""
    return any(_sign_of(mark) == _sign_of(span.mark) for mark in finished)


def _sign_of(mark: Mark) -> str:
    return _SIGNS.get(mark, "[")[0]


def _is_space(char: str) -> bool:
    return char == "\t" or unicodedata.category(char) == "Zs"


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _without(runs: Sequence[Run], spans: set[_Span]) -> list[Run]:
    removed: list[set[Mark]] = [set() for _ in runs]
    for mark, first, last in spans:
        for place in range(first, last + 1):
            removed[place].add(mark)
    return _merged([
        (shown, marks - gone) for (shown, marks), gone in zip(runs, removed, strict=True)
    ])


def _written(runs: Sequence[Run], spans: Sequence[_Span]) -> str:
    openers: dict[int, list[Mark]] = {}
    closers: dict[int, list[Mark]] = {}
    for mark, first, last in spans:
        openers.setdefault(first, []).append(mark)
        closers.setdefault(last, []).append(mark)
    out: list[str] = []
    for place, (shown, _) in enumerate(runs):
        for mark in reversed(openers.get(place, ())):
            if mark not in _SIGNS and out and out[-1].endswith("!"):
                out[-1] = out[-1][:-1] + "\\!"
            out.append(_SIGNS.get(mark, "["))
        out.append(shown)
        out += [_SIGNS.get(mark, f"]({mark.detail})") for mark in closers.get(place, ())]
    return "".join(out)
