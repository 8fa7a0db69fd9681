"""Find the parts of a message that its sender pasted, in any language.

Third parties wrote pasted text: it taints the turn, its addresses do not count as named by the
sender, and it is remembered only with approval.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BLOCK_LINES = 3
BLOCK_CHARS = 400
"""Blocks with at least `BLOCK_LINES` lines or more characters than this can be pasted text."""
_FENCE = re.compile(r"\s*(?:`{3,}(?!.*`)|~{3,})")
_QUOTE = re.compile(r"\s*[>\uff1e]|\s*`{3,}.*`")
# "From: …", "Gesendet am: …"; a line of dashes precedes forwarded text.
_HEADER = re.compile(r"\s*\**[^\W\d_][\w-]{0,30}(?: [\w-]{1,20})?\**\s?[:\uff1a](?!//)\s*\S")
_RULE = re.compile(r"\s*[-_=\u2014\u2500]{3,}")
# In scripts without spaces, instructions could directly follow the address.
_ADDRESS = re.compile(r"[\W\d]*https?://[!-~]+\s*")
_ASKS = ("?", "\uff1f", "\u061f", "\u037e", "\u1367", ":", "\uff1a")
"""Punctuation that ends a request, for the scripts that have it."""


class _Paragraph(NamedTuple):
    """Positions of consecutive lines; `headed` if they begin with mail headers or dashes."""

    places: range
    headed: bool = False


def _marked(text: str, *, alone: bool) -> Iterator[tuple[str, bool]]:
    """Yield each line of a message and whether it is pasted; blank lines join the line before.

    Quotes (lines that begin with ">") and code fences (from the first to the last marker, so that
    pasted text cannot close them) are pasted. Of the other paragraphs, all but the one that
    addresses the bot are pasted if together they have at least `BLOCK_LINES` lines or more than
    `BLOCK_CHARS` characters, or begin with mail headers (two consecutive lines "Word: …") or a line
    of dashes. Lines that contain only web addresses are the sender's own.

    The first paragraph addresses the bot if it ends with "?" or ":" and is neither such a block nor
    headed. Otherwise no rule can tell, because a mail's greeting or last line looks like a request:
    then everything is pasted, even the request. No later paragraph addresses the bot.

    A message of one paragraph is the sender's own, however long. Its lines count as paragraphs if
    at least `BLOCK_LINES` follow the first one, and the message is long or its first line is a
    request.
    """
    lines = text.splitlines(keepends=True)
    pasted = _fenced(lines) | {n for n, line in enumerate(lines) if _QUOTE.match(line)}
    paragraphs = list(_paragraphs(lines, pasted))
    if alone and len(paragraphs) == 1 and _is_list(lines, paragraphs[0]):
        paragraphs = [_Paragraph(range(n, n + 1)) for n in paragraphs[0].places]
    for paragraph in _pasted(lines, paragraphs, alone=alone):
        pasted.update(paragraph.places)
    is_pasted = next((n for n, line in enumerate(lines) if line.strip()), -1) in pasted
    for n, line in enumerate(lines):
        is_pasted = n in pasted if line.strip() else is_pasted
        yield line, is_pasted


def own_words(text: str, *, alone: bool = True) -> str:
    """Return a message without its pasted parts.

    Unless the turn answers this message `alone`, a block of one paragraph counts as pasted, too.
    """
    return "".join(line for line, is_pasted in _marked(text, alone=alone) if not is_pasted)


def has_pasted(text: str, *, alone: bool = True) -> bool:
    """Return whether a message has a pasted part."""
    # Most messages are one short line.
    if len(text) <= BLOCK_CHARS and text[:1].isalnum() and len(text.splitlines()) == 1:
        return False
    return any(is_pasted for _, is_pasted in _marked(text, alone=alone))


def _fenced(lines: Sequence[str]) -> set[int]:
    fences = [n for n, line in enumerate(lines) if _FENCE.match(line)]
    if not fences:
        return set()
    return set(range(fences[0], fences[-1] + 1 if len(fences) > 1 else len(lines)))


def _paragraphs(lines: Sequence[str], pasted: set[int]) -> Iterator[_Paragraph]:
    free = [n for n, line in enumerate(lines) if line.strip() and n not in pasted]
    begins = {n for n in free if _begins_mail(lines, n)}
    start = 0
    for place in range(1, len(free) + 1):
        if place == len(free) or free[place] != free[place - 1] + 1 or free[place] in begins:
            yield _Paragraph(range(free[start], free[place - 1] + 1), free[start] in begins)
            start = place


def _begins_mail(lines: Sequence[str], n: int) -> bool:
    if _RULE.match(lines[n]):
        return True
    return all(_HEADER.match(line) for line in lines[n : n + 2]) and n + 1 < len(lines)


def _is_list(lines: Sequence[str], paragraph: _Paragraph) -> bool:
    """Return whether a paste may follow the first line, or precede the last one."""
    if len(paragraph.places) <= BLOCK_LINES or paragraph.headed:
        return False
    return _chars(lines, [paragraph]) > BLOCK_CHARS or _asks(lines, paragraph.places[0])


def _pasted(
    lines: Sequence[str], paragraphs: Sequence[_Paragraph], *, alone: bool
) -> Sequence[_Paragraph]:
    if not paragraphs or _are_addresses(lines, paragraphs[1:]):
        return ()
    if len(paragraphs) == 1:
        is_own = not paragraphs[0].headed and (alone or not _is_block(lines, paragraphs))
        return () if is_own else paragraphs
    first, rest = paragraphs[0], paragraphs[1:]
    if not (first.headed or any(each.headed for each in rest)) and not _is_block(lines, rest):
        is_own = not _is_block(lines, [first])
        return () if is_own else paragraphs
    addresses = not first.headed and not _is_block(lines, [first])
    return rest if addresses and _asks(lines, first.places[-1]) else paragraphs


def _is_block(lines: Sequence[str], paragraphs: Sequence[_Paragraph]) -> bool:
    count = sum(len(each.places) for each in paragraphs)
    return count >= BLOCK_LINES or _chars(lines, paragraphs) > BLOCK_CHARS


def _chars(lines: Sequence[str], paragraphs: Sequence[_Paragraph]) -> int:
    return sum(len(lines[n].strip()) for each in paragraphs for n in each.places)


def _are_addresses(lines: Sequence[str], paragraphs: Sequence[_Paragraph]) -> bool:
    places = [n for each in paragraphs for n in each.places]
    return bool(places) and all(_ADDRESS.fullmatch(lines[n]) for n in places)


def _asks(lines: Sequence[str], n: int) -> bool:
    return lines[n].rstrip().endswith(_ASKS)
