"""What is known about a model beside its window: prices, and the rules of its prompt cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens of each kind."""

    input: float
    cache_write_5m: float
    cache_write_1h: float
    cache_read: float
    output: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model.

    Attributes:
        name: In the spelling of the table (agent/models/catalog.py).
        context_length: Tokens; None where the table does not know the model.
        max_output_tokens: Most that one call may ask for; None for not known.
        min_cache_tokens: Shorter prefixes are not cached, and no error says so.
        prices: None where they are not known: such a cost is unknown, never 0.
        vision: Whether it can look at pictures.
        source: Who says so, and `read_on` when.
    """

    name: str
    context_length: int | None = None
    max_output_tokens: int | None = None
    min_cache_tokens: int = 1024
    prices: Prices | None = None
    vision: bool = True
    source: str = ""
    read_on: str = ""


FREE = Prices(0.0, 0.0, 0.0, 0.0, 0.0)
"""Of models that run inside Parley: nobody sends a bill."""
