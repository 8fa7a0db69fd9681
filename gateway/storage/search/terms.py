"""From text to the terms that the search index holds, and from a question to those it asks for.

Words are folded (case, accents) and stemmed. Scripts that put no spaces between words, and Hangul,
whose endings grow together with the word, become overlapping pairs of characters, traditional
Chinese ones as the simplified. All of it is pure: the same text always has the same terms, which is
how they are taken out of the index again.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from agent.messages import ChatMessage, full_text
from gateway.storage.search.forms import Shared, shared_terms, sought
from gateway.storage.search.stems import MAX_TERM_CHARS, folded, stem
from gateway.storage.search.vocabulary import alike, stop_words_of

VERSION = 4
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
KNOWN_WORDS = 4096
"""Words whose terms are remembered: 1 MB. Of 152,000 words of English prose and code 4,388 are
different ones."""
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
    """Return the text of a message without copies of what stands elsewhere."""
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
            yield from terms_of_word(run[0][:MAX_TERM_CHARS])
        else:
            # The last character too: it begins no pair, and one is looked for by its beginning.
            yield from (run[0][n : n + 2] for n in range(len(run[0])))


@lru_cache(maxsize=KNOWN_WORDS)
def terms_of_word(word: str) -> tuple[str, ...]:
    """Return what the index holds for a word."""
    return (stem(word), *shared_terms(word))


class AskedWord(NamedTuple):
    """A word of a question; each term is looked for in the index, `*` ends a beginning.

    Attributes:
        term: What its forms have in common.
        shared: Forms and compounds that are looked for beside it, for less.
        alike: Words that mean about the same.
    """

    term: str
    shared: Shared = Shared()
    alike: tuple[str, ...] = ()


def asked_words(question: str) -> list[AskedWord]:
    """Return the words of a question that say most: the longest, which are the rarest.

    Words that any question has are left out, unless there is nothing else in it.
    """
    runs = list(_RUNS.finditer(folded(question[:MAX_QUERY_CHARS])))
    words = [run[0][:MAX_TERM_CHARS] for run in runs if run["pairs"] is None]
    common = stop_words_of(words)
    found: dict[str, AskedWord] = {}
    left_out: dict[str, AskedWord] = {}
    for run in runs:
        if run["pairs"] is None:
            word = run[0][:MAX_TERM_CHARS]
            into = left_out if word in common else found
            into.setdefault(term := stem(word), AskedWord(term, sought(word), alike(term)))
        else:
            found.update((pair, AskedWord(pair)) for pair in _asked_pairs(run[0]))
    words_of_it = list((found or left_out).values())
    return sorted(words_of_it, key=lambda each: len(each.term), reverse=True)[:MAX_QUERY_TERMS]


def _asked_pairs(run: str) -> list[str]:
    run = _PARTICLE.sub("", run)
    return [run[n : n + 2] for n in range(len(run) - 1)] or [f"{run}*"]


_PARTICLE = re.compile(
    "(?<=[\uac00-\ud7af])"
    "(?:\uc5d0\uc11c|\uc5d0\uac8c|\ud55c\ud14c|\uc73c\ub85c|\uae4c\uc9c0|\ubd80\ud130|\ucc98\ub7fc|\ubcf4\ub2e4|\ud558\uace0|\uc774\ub791|\uaed8\uc11c|\ub9c8\ub2e4|\ubc16\uc5d0|\uc870\ucc28)?"
    "(?:[\uc740\ub294\uc774\uac00\uc744\ub97c\uc5d0\ub85c\uc640\uacfc\ub3c4\ub9cc\uc758]|\uc11c)?$"
)
"""Behind a Korean noun: from, to, with, by, as far as …; then the topic, the subject, …"""
