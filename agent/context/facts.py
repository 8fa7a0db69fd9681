"""Finds values that a person tells or changes: "the deadline is May 3", "we moved it from A to B".

By rules, without a model (agent/context/facts.toml). A fact is kept with its date, and a newer one
about the same subject ends it; so what counts is that the subject is named in the same words. Only
values that can be told from others count: numbers, dates, names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from agent.context.instruction_words import FACTS, expanded
from agent.context.instructions import sentences_in

MOST_CHARS = 6_000
"""Longer texts are documents: nobody's own facts."""
MOST_OF_ONE = 6
SUBJECT_WORDS = 6
VALUE_CHARS = 80


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that somebody has told.

    Attributes:
        text: The sentence, on one line.
        subject: What it is of, in small letters without articles: facts with the same one are about
            the same.
        value: As it was told.
        before: What it was until then, where the sentence says so; else empty.
    """

    text: str
    subject: str
    value: str
    before: str = ""


def facts_in(text: str) -> list[Fact]:
    """Return the facts of a message that one person has written, in order.

    Args:
        text: The person's own words; lines that begin with ">" are quotes of somebody.
    """
    if len(text) > MOST_CHARS or _rules().mark.search(text) is None:
        return []
    found = (_of_sentence(sentence) for sentence in sentences_in(text))
    return [fact for fact in found if fact is not None][:MOST_OF_ONE]


def _of_sentence(sentence: str) -> Fact | None:
    rules = _rules()
    if sentence.endswith(_ASKS) or rules.left_out.search(sentence):
        return None
    plain = sentence.rstrip(_ENDS)
    for pattern, of in rules.patterns:
        if (match := pattern.search(plain)) is None:
            continue
        found = match.groupdict()
        subject = of or _subject(found["subject"])
        value = _value(found["value"] or found.get("other") or "")
        if subject and value:
            return Fact(sentence, subject, value, _value(found.get("before") or ""))
    return None


_ASKS = ("?", "\uff1f")
_ENDS = " .!\u3002\uff01"
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def _subject(words: str) -> str:
    kept = [word for word in _WORD.findall(words.lower()) if word not in _rules().articles]
    return " ".join(kept) if 0 < len(kept) <= SUBJECT_WORDS else ""


def _value(text: str) -> str:
    """Return a value; empty where it cannot be told from others."""
    value, rules = " ".join(text.split()).strip(" ,;:"), _rules()
    is_one = len(value) <= VALUE_CHARS and rules.telling.search(value)
    return value if is_one and not rules.no_value.search(value) else ""


@cache
def _rules() -> "_Rules":
    return _Rules()


class _Rules:
    """What facts.toml says, compiled where it is first needed."""

    @cached_property
    def mark(self) -> re.Pattern[str]:
        return re.compile(FACTS["mark"], re.IGNORECASE)

    @cached_property
    def left_out(self) -> re.Pattern[str]:
        return re.compile(f"{FACTS['not_told']}|{FACTS['secret']}", re.IGNORECASE)

    @cached_property
    def telling(self) -> re.Pattern[str]:
        return re.compile(FACTS["telling"])

    @cached_property
    def no_value(self) -> re.Pattern[str]:
        return re.compile(FACTS["no_value"], re.IGNORECASE)

    @cached_property
    def articles(self) -> frozenset[str]:
        return frozenset(FACTS["articles"].split())

    @cached_property
    def patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return list(self._compiled())

    def _compiled(self) -> Iterator[tuple[re.Pattern[str], str]]:
        for rule in FACTS["rules"]:
            pattern = expanded(rule["pattern"], FACTS["parts"])
            yield re.compile(pattern, re.IGNORECASE), rule.get("of", "")
