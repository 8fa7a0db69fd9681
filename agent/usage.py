"""Tokens and prices of a model call, and how its provider caches: words of every room.

Imports the standard library alone: helper processes run on it.
"""

from dataclasses import dataclass, fields
from typing import Literal, Self

CacheLayout = Literal["native", "envelope"]
"""How a provider takes breakpoints of its prompt cache: as Anthropic's own API does, or inside the
content parts of an OpenAI-like request (OpenRouter)."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A dataclass that is added field by field."""

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class Usage(Summed):
    """Tokens of one model call as the provider reported them; the output includes thoughts.

    `prompt_tokens` fill the window: with caching, `input_tokens` (at the base price) are near 0.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All that the model read: input + cache read + cache creation."""
        created = self.cache_write_5m_tokens + self.cache_write_1h_tokens
        return self.input_tokens + self.cache_read_tokens + created

    @property
    def total_tokens(self) -> int:
        """All that the model read and wrote."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens of each kind."""

    input: float
    cache_write_5m: float
    cache_write_1h: float
    cache_read: float
    output: float


FREE = Prices(0.0, 0.0, 0.0, 0.0, 0.0)
"""Of models that run inside Parley."""


def is_claude(name: str) -> bool:
    """Whether a name, with or without a vendor in front, is one of Anthropic's."""
    return "claude" in name.lower()
