"""Finds what a person asks for once and for all: standing instructions and preferences.

By rules, without a model, in English, German, French, Spanish, Russian, Chinese and Japanese
(agent/context/instruction_words.py). What is found is pinned into later views, so precision goes
before completeness: quotes, code and what somebody else has said are left out, and so is what holds
for one task or one time. `instructions_in` costs some microseconds for a text without any mark of
an instruction, and never more than `MOST_CHARS` characters are looked at.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.context.instruction_words import Phrases, phrases_of, subject_patterns
from agent.context.sentences import sentences

MOST_CHARS = 6_000
"""Of one message. What is longer is mostly pasted: its beginning and its end are looked at."""
EDGE_CHARS = 1_500
SENTENCE_CHARS = 400
"""A longer sentence is no instruction that somebody has thought of."""
LEAST_CHARS = 3
MOST_OF_ONE = 8
"""Instructions of one message; a list of more is a document."""
ALIKE = 0.6
"""Share of common words from which on two instructions are the same one, said again."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A standing instruction in the person's own words.

    Attributes:
        text: The sentence, on one line.
        subject: What it is about, where rules know that: a newer one about it ends it. Else empty.
    """

    text: str
    subject: str = ""


def instructions_in(text: str) -> list[Instruction]:
    """Return the standing instructions of a message that one person has written, in order.

    Args:
        text: The person's own words; lines that begin with ">" are quotes of somebody.
    """
    text = _edges(text)
    # Most messages hold no mark of an instruction, and are not taken apart.
    if not _marked(_small(text)):
        return []
    found = dict.fromkeys(each for each in sentences_in(text) if is_instruction(each))
    return [Instruction(each, subject_of(each)) for each in [*found][:MOST_OF_ONE]]


def is_instruction(sentence: str) -> bool:
    """Whether a sentence asks for something once and for all."""
    plain = _plain(sentence)
    is_asked = plain.rstrip(_CLOSERS).endswith(_ASKS)
    return any(_says(phrases, plain, is_asked=is_asked) for phrases in _marked(plain))


def _says(phrases: Phrases, plain: str, *, is_asked: bool) -> bool:
    if is_asked and phrases.requests.search(plain) is None:
        return False
    stripped = plain.rstrip(_ENDS)
    found = any(rule.search(stripped) for rule in phrases.compiled)
    return found and phrases.excluded.search(stripped) is None


def _marked(plain: str) -> list[Phrases]:
    """Return the languages of whose rules one may match."""
    words = set(_WORD.findall(plain))
    return [each for each in _phrases_for(plain) if each.is_marked(plain, words)]


def _phrases_for(plain: str) -> Sequence[Phrases]:
    if _KANA.search(plain):
        return phrases_of("kana")
    if _HAN.search(plain):
        return phrases_of("han")
    return phrases_of("cyrillic" if _CYRILLIC.search(plain) else "latin")


_ENDS = " .!?\u3002\uff01\uff1f\u2026"
_CLOSERS = ' )"\u201d\u00bb\u300d'
_ASKS = ("?", "\uff1f", "\u304b")
_WORD = re.compile(r"[^\W_]+")
_KANA = re.compile("[\u3041-\u30ff]")
_HAN = re.compile("[\u4e00-\u9fff]")
_CYRILLIC = re.compile("[\u0400-\u04ff]")

_QUOTE_LINE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_SPACES = re.compile(r"\s+")


def _edges(text: str) -> str:
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:EDGE_CHARS]}\n\n{text[-EDGE_CHARS:]}"


def sentences_in(text: str) -> Iterator[str]:
    """Yield the sentences of somebody's own words, each on one line; code and quotes are left out.

    What is longer than `SENTENCE_CHARS` is none.
    """
    for found in sentences(_QUOTE_LINE.sub("", text)):
        sentence = _SPACES.sub(" ", found)
        if LEAST_CHARS <= len(sentence) < SENTENCE_CHARS:
            yield sentence


_QUOTED = re.compile(
    r"\"[^\"]{12,}\"|“[^”]{12,}”|„[^“”]{12,}[“”]|«[^»]{12,}»|「[^」]{8,}」|`[^`]+`"
)
_APOSTROPHE = re.compile("[\u2019\u2018`\u00b4]")


def _plain(sentence: str) -> str:
    """Return a sentence in small letters, without what is quoted in it."""
    return _small(_QUOTED.sub(" … ", sentence))


def _small(text: str) -> str:
    # Not `casefold`, which writes "ß" as "ss".
    return _APOSTROPHE.sub("'", text.lower())


def subject_of(sentence: str) -> str:
    """Return what an instruction is about; empty where rules do not know it."""
    plain = _plain(sentence)
    in_cases, subjects = subject_patterns()
    if in_cases.search(plain):
        return ""
    return next((name for name, pattern in subjects.items() if pattern.search(plain)), "")


def are_alike(one: str, other: str) -> bool:
    """Whether two instructions are the same one, said again."""
    words = [_terms(each) for each in (one, other)]
    both, either = words[0] & words[1], words[0] | words[1]
    return bool(either) and len(both) >= ALIKE * len(either)


def _terms(text: str) -> set[str]:
    words = _WORD.findall(text.casefold())
    # Of a script without spaces a run is a sentence: pairs of its characters stand for words.
    return {
        part
        for word in words
        for part in ([word] if word.isascii() or not _HAN.search(word) else _pairs(word))
    }


def _pairs(word: str) -> list[str]:
    return [word[n : n + 2] for n in range(max(1, len(word) - 1))]
