"""Bold, italic, struck and linked text in one line of a message (step 8): the order of its signs.

A sign works only where the characters around it let it (CommonMark, "left-flanking delimiter
run"). Where they do not, the format is left out, so that no sign is ever shown as text.
"""

import string
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adapters.marks import BOLD, ITALIC, NO_MARKS, STRIKETHROUGH, Mark, Marks

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
    for _ in range(3):
        spans = _spans(runs)
        unwritable = _unwritable(runs, spans)
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
        following = following & marks if shown.isspace() else marks
        kept.append((shown, following))
    kept.reverse()
    before = NO_MARKS
    for place, (shown, marks) in enumerate(kept):
        before = before & marks if shown.isspace() else marks
        kept[place] = (shown, before)
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


def _unwritable(runs: Sequence[Run], spans: Sequence[_Span]) -> set[_Span]:
    """Return the formats whose signs would be taken for text, or for other signs."""
    begins, ends = _edges(runs, spans)
    signs = [span for span in spans if span.mark in _SIGNS]
    broken = {
        span
        for span in signs
        if not (begins[span.first].works and ends[span.last].works)
        or begins[span.first].touches(span.mark)
    }
    edges = [edge for span in signs for edge in (begins[span.first], ends[span.last])]
    if broken or all(edge.is_clear for edge in edges):
        return broken
    return {
        span
        for span in signs
        if span.mark == ITALIC
        and any(BOLD in marks for _, marks in runs[span.first : span.last + 1])
    }


def _edges(
    runs: Sequence[Run], spans: Sequence[_Span]
) -> tuple[dict[int, "_Edge"], dict[int, "_Edge"]]:
    """Return where formats begin and where they end, by their first and last run."""
    begins: dict[int, _Edge] = {}
    ends: dict[int, _Edge] = {}
    for mark, first, last in spans:
        if first not in begins:
            begins[first] = _Edge(runs[first - 1][0][-1] if first else "", runs[first][0][0])
        if last not in ends:
            after = runs[last + 1][0][0] if last + 1 < len(runs) else ""
            ends[last] = _Edge(after, runs[last][0][-1])
        begins[first].signs.append(mark)
        ends[last].signs.append(mark)
    for place in begins.keys() & {last + 1 for last in ends}:
        begins[place].others = ends[place - 1].signs
        ends[place - 1].others = begins[place].signs
    return begins, ends


@dataclass(slots=True)
class _Edge:
    """Where formats begin or end.

    Attributes:
        outside: The character on the outer side, "" where the line ends.
        inside: The one on the inner side.
        signs: The formats that begin (or end) here.
        others: The formats that end (or begin) here.
    """

    outside: str
    inside: str
    signs: list[Mark] = field(default_factory=list)
    others: list[Mark] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether signs are taken for signs."""
        if self.inside.isspace():
            return False
        if self.others or _is_free(self.outside) or _is_punctuation(self.outside):
            return True
        return not _is_punctuation(self.inside) and len(set(map(_sign_of, self.signs))) == 1

    @property
    def is_clear(self) -> bool:
        """Whether signs can only begin here, or only end here, so that they may be nested."""
        if _is_free(self.outside):
            return True
        # Beside another kind of sign, each one has punctuation on its inner side.
        if len(set(map(_sign_of, self.signs))) > 1 or _is_punctuation(self.inside):
            return False
        return _is_punctuation(self.outside)

    def touches(self, mark: Mark) -> bool:
        """Whether a sign would run together with one on its outer side."""
        return _sign_of(mark) in map(_sign_of, self.others)


def _sign_of(mark: Mark) -> str:
    return _SIGNS.get(mark, "[")[0]


def _is_free(char: str) -> bool:
    """Whether there is white space, or the end of the line."""
    return not char or char == "\t" or unicodedata.category(char) == "Zs"


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
