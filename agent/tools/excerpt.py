"""Which part of a long text is shown: around words that were looked for, or one of its ends."""

import re

STEM_CHARS = 5
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Thai and Lao, kana, Han, Hangul: words have no spaces between them, or grow together."""
_WORD = re.compile(rf"[{_UNSPACED}]{{2}}|[^\W{_UNSPACED}]+")
MARK = "…"
_CUT_SHARE = 0.2
"""How much of an end may be given up so that it begins with a word; a longer word is cut."""
_WORD_BEGINS = re.compile(r"(?<=\s)\S")


def place_of(query: str, text: str) -> int:
    """Return where the longest word of a query that a text holds begins in it; 0 for none.

    The longest one: the short ones of a question stand everywhere. Where no word stands there as it
    was asked for, another form of it does: its beginning is looked for.
    """
    folded = text.casefold()
    words = sorted(_WORD.findall(query.casefold()), key=len, reverse=True)
    beginnings = [word[:STEM_CHARS] for word in words if len(word) > STEM_CHARS]
    return next((at for word in (*words, *beginnings) if (at := folded.find(word)) >= 0), 0)


def end_of(text: str, most_chars: int) -> str:
    """Return a text; of a longer one its end from a word on, behind a mark."""
    if len(text) <= most_chars:
        return text
    start = len(text) - most_chars + len(MARK)
    found = _WORD_BEGINS.search(text, start, start + int(most_chars * _CUT_SHARE))
    return MARK + text[found.start() if found else start :]


def beginning_of(text: str, most_chars: int) -> str:
    """Return a text; of a longer one its beginning up to the end of a word, and a mark."""
    return end_of(text[::-1], most_chars)[::-1]
