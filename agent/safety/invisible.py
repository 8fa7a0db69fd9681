"""Characters that nobody sees: which of them a text may hold, and where it holds others.

Joiners belong into emoji sequences and into the writing of Persian, Hindi and others, direction
marks into lines with Hebrew or Arabic in them. What stands elsewhere, or in runs, hides something.
"""

import re
from collections.abc import Iterator, Sequence

_RTL = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
_JOINING = f"{_RTL}\u0900-\u0fff\u1000-\u109f\u1780-\u18af"
_PICTURES = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff\ufe0f\U0001f3fb-\U0001f3ff"
_BREAKING = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u0f00-\u0fff"

_RUN = re.compile(
    "["
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f"  # control characters
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # musical, tags, variation selectors
    "]+"
)
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")

_picture = re.compile(f"[{_PICTURES}]").match
_joining = re.compile(f"[{_JOINING}]").match
_breaking = re.compile(f"[{_BREAKING}]").match
_rtl = re.compile(f"[{_RTL}]").search
_ideograph = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]").match


def unseen_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each run of characters that nobody sees, in order."""
    return [match.span() for match in _RUN.finditer(text)]


def out_of_place(text: str, unseen: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield those of a text's unseen runs that no script and no emoji needs."""
    flags = [match.span() for match in _FLAG.finditer(text)]
    for start, end in unseen:
        if any(low <= start and end <= high for low, high in flags):
            continue
        if not _is_in_place(text, start, end):
            yield start, end


def _is_in_place(text: str, start: int, end: int) -> bool:
    run, before, after = text[start:end], text[start - 1 : start], text[end : end + 1]
    if run == "\ufe0f\u200d":
        return bool(_picture(before) and _picture(after))
    if len(run) > 1:
        return False
    if run in "\u200e\u200f\u061c":
        return bool(_rtl(_line_around(text, start)))
    if run == "\ufeff":
        return start == 0
    return _belongs(run, before, after)


def _belongs(one: str, before: str, after: str) -> bool:
    """Whether a character that nobody sees has its place between these two."""
    joins = _joining(before)
    if one == "\u200d":
        joins = joins or (_picture(before) and _picture(after))
    rules = (
        (one in "\u200c\u200d", joins),
        ("\ufe00" <= one <= "\ufe0f", before.strip()),
        ("\U000e0100" <= one <= "\U000e01ef", _ideograph(before)),
        (one == "\u200b", _breaking(before) and _breaking(after)),
        (one == "\u00ad", before.isalpha() and after.isalpha()),
        ("\u180b" <= one <= "\u180f", True),
    )
    return any(applies and fits for applies, fits in rules)


def _line_around(text: str, place: int) -> str:
    """Return the line that a place is in, 200 characters of it at most on either side."""
    first = text.rfind("\n", max(0, place - 200), place) + 1 or max(0, place - 200)
    last = text.find("\n", place, place + 200)
    return text[first : last if last >= 0 else place + 200]
