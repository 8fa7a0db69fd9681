"""Which part of a long text is shown where words of it were looked for."""

import re

STEM_CHARS = 5
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Thai and Lao, kana, Han, Hangul: words have no spaces between them, or grow together."""
_WORD = re.compile(rf"[{_UNSPACED}]{{2}}|[^\W{_UNSPACED}]+")


def place_of(query: str, text: str) -> int:
    """Return where the longest word of a query that a text holds begins in it; 0 for none.

    The longest one: the short ones of a question stand everywhere. Where no word stands there as it
    was asked for, another form of it does: its beginning is looked for.
    """
    folded = text.casefold()
    words = sorted(_WORD.findall(query.casefold()), key=len, reverse=True)
    beginnings = [word[:STEM_CHARS] for word in words if len(word) > STEM_CHARS]
    return next((at for word in (*words, *beginnings) if (at := folded.find(word)) >= 0), 0)
