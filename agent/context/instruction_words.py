"""How people say in seven languages what shall hold from now on: the rules of `instructions`.

They stand in instructions.toml, which says what each key is. They are read once and compiled where
a language is first needed. The rules of `facts` stand in facts.toml.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

_PART = re.compile(r"@(\w+)@")
LATIN = ("english", "german", "french", "spanish")
BY_SCRIPT: Mapping[str, Sequence[str]] = {
    "latin": LATIN,
    "cyrillic": ("russian",),
    "kana": ("japanese",),
    "han": ("chinese",),
}
"""A text in kana is Japanese, one in Han alone is taken for Chinese."""


@dataclass(frozen=True)
class Phrases:
    """The patterns of one language.

    Attributes:
        mark: One of these words stands in every sentence that any rule matches; None where the
            script has no spaces, and `mark_pattern` tells that.
        rules: One of them matches a standing instruction.
        once: Says that it holds for one task or one time.
        told: Says that somebody else has said it, or asks about the words themselves.
        ask: Begins a question that is a request; other questions instruct nobody.
    """

    mark: frozenset[str] | None
    mark_pattern: str
    rules: tuple[str, ...]
    once: str
    told: str
    ask: str

    def is_marked(self, plain: str, words: Set[str]) -> bool:
        """Whether a rule may match a text, which has these words."""
        if self.mark is not None:
            return not self.mark.isdisjoint(words)
        return re.search(self.mark_pattern, plain) is not None

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        """The compiled rules."""
        return tuple(map(re.compile, self.rules))

    @cached_property
    def excluded(self) -> re.Pattern[str]:
        """What takes a sentence out."""
        return re.compile(f"{self.once}|{self.told}")

    @cached_property
    def requests(self) -> re.Pattern[str]:
        """The compiled `ask`."""
        return re.compile(self.ask)


@cache
def phrases_of(script: str) -> tuple[Phrases, ...]:
    """Return the languages that are written in a script, by its name in `BY_SCRIPT`."""
    return tuple(_phrases(_TABLES[language]) for language in BY_SCRIPT[script])


@cache
def subject_patterns() -> tuple[re.Pattern[str], Mapping[str, re.Pattern[str]]]:
    """Return what an instruction has that holds in some cases alone, and what it may be about."""
    subjects = {name: re.compile(pattern) for name, pattern in _TABLES["subjects"].items()}
    return re.compile(_TABLES["cases"]["in_cases"]), subjects


def _phrases(table: Mapping[str, Any]) -> Phrases:
    parts = {name: _any(part) for name, part in table["parts"].items()}
    whole = partial(expanded, parts=parts)
    mark = table.get("mark")
    return Phrases(
        mark=None if mark is None else frozenset(mark.split()),
        mark_pattern=whole(table.get("mark_pattern", "")),
        rules=tuple(map(whole, table["rules"])),
        once=whole(table["once"]),
        told=whole(table["told"]),
        ask=whole(table["ask"]),
    )


def expanded(pattern: str, parts: Mapping[str, str]) -> str:
    """Return a pattern with its parts in place of their names; parts may hold parts."""
    while "@" in (longer := _PART.sub(lambda match: parts[match[1]], pattern)):
        pattern = longer
    return longer


def _any(part: str | Sequence[str]) -> str:
    return part if isinstance(part, str) else f"(?:{'|'.join(part)})"


# Read with the module: what a first message imports or opens, it waits for.
_TABLES = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text("utf-8"))
FACTS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("facts.toml").read_text("utf-8"))
"""The table of facts.toml."""
