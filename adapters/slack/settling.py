"""How much of a growing answer is settled: a stream can only be appended to (step 7b). Pure.

A half-written line may still turn out to be something else: a table, a list, bold text. It is held
back until it is sure; where this guess is wrong the preview goes on as edits.
"""

import re
from itertools import takewhile

from adapters.previews import PREVIEW_END
from adapters.slack.render import preview_text

_MARK_ONLY = re.compile(r"\s*([-+*#>]+|\d+[.)]?)?\s*")
_SIGN = re.compile(r"\*+|`+|~+|(?<!\w)_+|_+(?!\w)|[\[\](<)>]|\s")
_OPEN, _CLOSE = "[(<", "])>"


def settled(text: str) -> str:
    """Return the rendered beginning of an unfinished text that will not change any more.

    It ends behind a blank in front of a word, since Slack drops blanks that an appended piece
    begins with.
    """
    whole, sure = _rendered(text), _rendered(_certain(text))
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, sure, strict=False)))
    if end == len(sure):
        end += len(whole[end:]) - len(whole[end:].lstrip())
    if 0 < end < len(whole) and whole[end - 1].isspace():
        return whole[:end]
    words = whole[:end].rstrip()
    return words[: len(words) - len(words.rsplit(maxsplit=1)[-1])] if words else ""


def _rendered(text: str) -> str:
    return (preview_text(text) or "").removesuffix(PREVIEW_END)


def _certain(text: str) -> str:
    """Return the text without the end that may still change its meaning."""
    lines = text.split("\n")
    lines[-1] = _balanced(lines[-1])
    while lines and (lines[-1].lstrip().startswith("|") or _MARK_ONLY.fullmatch(lines[-1])):
        lines.pop()
    return "\n".join(lines)


def _balanced(line: str) -> str:
    """Return the longest beginning of a line that leaves no mark open, up to a blank."""
    odd: set[str] = set()
    depth, end = 0, 0
    for found in _SIGN.finditer(line):
        sign = found.group()
        if sign.isspace():
            end = found.end() if not odd and depth <= 0 else end
        elif sign in _OPEN or sign in _CLOSE:
            depth += 1 if sign in _OPEN else -1
        else:
            odd ^= {sign}
    return line[:end]
