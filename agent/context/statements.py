"""What a sentence says: its words, its kinds, the values in it, and how much it tells by itself.

Rules of language alone, for some fifteen languages; a sentence of another one has words and values
all the same. What a sentence is worth within a conversation is agent/context/extract.py's.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from agent.context import cues

Kind = Literal[
    "instruction",
    "preference",
    "decision",
    "plan",
    "change",
    "error",
    "command",
    "path",
    "value",
    "question",
    "courtesy",
]
"""instruction: holds from now on; preference: what somebody likes, or cannot have; decision: what
was agreed; plan: what somebody is about to do; change: something is no longer as it was."""


class Value(NamedTuple):
    """A number, an amount, a date, a time or a version in a sentence.

    Attributes:
        text: As it is written.
        unit: "date", "time", "%", a currency or a unit of measure; "" for a bare number.
        subject: The content words of the sentence beside it.
    """

    text: str
    unit: str
    subject: frozenset[str]


_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana, Han
)
_WORD = re.compile(r"\w+(?:[.,:'\u2019@/-]\w+)*")
_RUN = re.compile(f"[{_SPACELESS}]+|[^{_SPACELESS}]+")
_HAS_SPACELESS = re.compile(f"[{_SPACELESS}]")
_UNSPACED = re.compile(f"[{_SPACELESS}\uac00-\ud7af]")
_SUFFIXES = (
    "py|js|ts|tsx|jsx|rs|go|java|kt|c|h|cpp|cs|rb|php|sh|sql|md|txt|csv|json|ya?ml|toml|ini|cfg|conf"
    "|html|css|xml|pdf|docx?|xlsx?|pptx?|ipynb|log|lock|env"
)
_PROGRAMS = (
    "git|pip3?|npm|npx|yarn|pnpm|docker|kubectl|make|cargo|go|python3?|pytest|node|apt(?:-get)?|brew"
    "|curl|wget|ssh|scp|rsync|systemctl|uv|psql|sqlite3|terraform|ansible|aws|gcloud|az|helm|rg|grep"
    "|sed|awk|cat|ls|cd|chmod|mkdir|rm|cp|mv"
)
_PATH = re.compile(
    r"(?<![\w/.:])(?:[A-Za-z]:\\|[~.]{0,2}/)?(?:[\w.@-]+[/\\])+[\w@.-]*\w"
    rf"|\b[\w-]+\.(?:{_SUFFIXES})\b"
)
_COMMAND = re.compile(rf"(?:^|[`$] ?|\brun(?:ning)? )(?:sudo )?(?:{_PROGRAMS}) [^\s`]")
_ERROR = re.compile(
    r"\b\w*(?:Error|Exception|Warning)\b"
    rf"|\b(?:{'|'.join(cues.ERRORS.split())})\b|{'|'.join(cues.ERRORS_WITHIN.split())}"
    r"|\b(?:timed? out|not found|exit (?:code|status) [1-9])\b",
    re.IGNORECASE,
)

_MONTH = "|".join(sorted(re.findall(r"\w+", cues.MONTHS), key=len, reverse=True))
_DATE = (
    r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    rf"|\b(?:{_MONTH})\.? \d{{1,2}}(?:st|nd|rd|th)?\b(?:,? \d{{4}}\b)?"
    r"|\b\d{1,2}(?:\.|st|nd|rd|th|er|\u00ba)?(?: (?:de|of))? "
    rf"(?:{_MONTH})\b\.?(?:,?(?: de)? \d{{4}}\b)?"
    r"|(?:\d{2,4}\u5e74)?\d{1,2}\u6708\d{1,2}[\u65e5\u53f7]"
    r"|(?:\d{4}\ub144 ?)?\d{1,2}\uc6d4 ?\d{1,2}\uc77c"
)
_TIME = (
    r"\b\d{1,2}[:h]\d{2}(?::\d{2})?(?: ?[ap]\.?m\b\.?)?|\b\d{1,2} ?[ap]\.?m\b\.?"
    r"|\b\d{1,2} (?:uhr|uur|heures)\b|\d{1,2}[\u70b9\u6642\u65f6](?:\d{1,2}\u5206|\u534a)?"
)
_SIGNS = "$\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9\u20ba"
_NUMBER = r"\d+(?:[.,'\u202f]\d+)*(?: \d{3}\b)*"
_VALUE = re.compile(
    rf"(?P<date>{_DATE})|(?P<time>{_TIME})"
    r"|(?P<version>\bv?\d+(?:\.\d+){2,}\b|\bv\d+(?:\.\d+)*\b)"
    rf"|(?P<before>[{_SIGNS}]|\b(?:USD|EUR|GBP|CHF|JPY|CNY) ?){_NUMBER}"
    rf"|(?P<number>(?<![\w.,]){_NUMBER})(?:[ \u00a0-]?(?P<unit>%|[{_SIGNS}]|\w+[\u00b2\u00b3]?))?",
    re.IGNORECASE,
)
_UNIT_NAMES = dict(pair.split("=") for pair in cues.UNITS.split())
_FUNCTION_WORDS = frozenset(cues.FUNCTION_WORDS.split())
_WITHIN = {
    cast("Kind", kind): "".join(each.split()).split("|") for kind, each in cues.WITHIN.items()
}
_GARBAGE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[0-9A-Za-z+/=_-]{24,}|[0-9a-f]{16,}")
_DIGIT = re.compile(r"\d")


def _by_first_word(phrases: Mapping[str, str]) -> dict[str, list[tuple[str, Kind]]]:
    found: dict[str, list[tuple[str, Kind]]] = {}
    for kind, text in phrases.items():
        for phrase in text.split("|"):
            words = _WORD.findall(phrase)
            found.setdefault(words[0], []).append((f" {' '.join(words)} ", cast("Kind", kind)))
    return found


_PHRASES = _by_first_word(cues.PHRASES)
_FIRST_WORDS = frozenset(_PHRASES)


def words_of(text: str) -> list[str]:
    """Return all words of a text in small letters, in order; of spaceless scripts pairs of signs.

    What is written together with points, dashes or slashes is one word: "2,400", "well-known".
    """
    found = _WORD.findall(text.casefold().replace("\u2019", "'"))
    if text.isascii() or not _HAS_SPACELESS.search(text):
        return found
    return [part for word in found for part in _parts(word)]


def _parts(word: str) -> Iterable[str]:
    for run in _RUN.findall(word):
        if len(run) == 1 or not _HAS_SPACELESS.match(run):
            yield run
        else:
            yield from (run[n : n + 2] for n in range(len(run) - 1))


def content_words(text: str) -> list[str]:
    """Return the words of a text that are no function words; see `words_of`."""
    return [word for word in words_of(text) if word not in _FUNCTION_WORDS]


def kinds_of(sentence: str) -> frozenset[Kind]:
    """Return what kinds of statement a sentence is; none for most."""
    return frozenset(_kinds(sentence, words_of(sentence)))


def _kinds(sentence: str, words: list[str]) -> Iterable[Kind]:
    yield from _cued(sentence, words)
    if sentence.rstrip("\"'\u201d\u2019)*_ ").endswith(("?", "\uff1f", "\u061f")):
        yield "question"
    if _DIGIT.search(sentence) is not None:
        yield "value"
    if ("/" in sentence or "." in sentence or "\\" in sentence) and _PATH.search(sentence):
        yield "path"
    if " " in sentence and _COMMAND.search(sentence) is not None:
        yield "command"
    if _ERROR.search(sentence) is not None:
        yield "error"


def _cued(sentence: str, words: list[str]) -> Iterable[Kind]:
    if first := _FIRST_WORDS.intersection(words):
        spaced = f" {' '.join(words)} "
        phrases = (pair for word in first for pair in _PHRASES[word])
        yield from (kind for phrase, kind in phrases if phrase in spaced)
    if not sentence.isascii() and _UNSPACED.search(sentence):
        for kind, within in _WITHIN.items():
            if any(cue in sentence for cue in within):
                yield kind


def values_of(sentence: str) -> list[Value]:
    """Return the numbers, amounts, dates, times and versions of a sentence, in order."""
    if _DIGIT.search(sentence) is None:
        return []
    subject = frozenset(word for word in content_words(sentence) if not _DIGIT.search(word))
    found = []
    for match in _VALUE.finditer(sentence):
        unit = _unit(match)
        found.append(Value(match[0].strip(" -\u00a0"), unit, subject - {unit}))
    return found


def _unit(match: re.Match[str]) -> str:
    if match.lastgroup in {"date", "time", "version"}:
        return match.lastgroup
    before, behind = (match["before"] or "").strip().casefold(), (match["unit"] or "").casefold()
    if before:
        return _UNIT_NAMES.get(before, before)
    return "" if behind in _FUNCTION_WORDS else _UNIT_NAMES.get(behind, behind)


def is_noise(sentence: str) -> bool:
    """Whether a unit is data rather than words: encoded bytes, hashes, rows of symbols."""
    letters = sum(map(str.isalnum, sentence)) + sentence.count(" ")
    return letters < 0.6 * len(sentence) or _GARBAGE.search(sentence) is not None


KIND_WEIGHTS: dict[Kind, float] = {
    "instruction": 1.5,
    "preference": 1.4,
    "decision": 1.4,
    "change": 1.3,
    "plan": 1.2,
    "value": 1.3,
    "error": 1.1,
    "question": 0.7,
    "courtesy": 0.6,
}
"""What a sentence of a kind is worth beside another one with as many words."""


def weight_of(sentence: str, words: list[str]) -> float:
    """Return what the kinds of a sentence make of its worth, about 0.3 to 4; see `KIND_WEIGHTS`."""
    weight = 1.0
    for kind in frozenset(_kinds(sentence, words)):
        weight *= KIND_WEIGHTS.get(kind, 1.0)
    return weight


@lru_cache(maxsize=4096)
def telling(sentence: str) -> float:
    """Return how much a sentence says by itself: its content words, more for names and numbers.

    0 for noise and for what has no content word.
    """
    words = words_of(sentence)
    content = {word for word in words if word not in _FUNCTION_WORDS}
    if not content or is_noise(sentence):
        return 0.0
    said = sum(2.0 if _DIGIT.search(word) else 1.0 for word in content)
    return said * weight_of(sentence, words)
