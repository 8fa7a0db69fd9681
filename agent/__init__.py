"""The agent: models, tools and the loop of one turn. No database, no platform, no gateway.

As a library: `compact_messages`, `apply_cache_control` and `estimate_tokens` work on lists of
OpenAI chat messages.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.library import (
        CompactionResult,
        SummaryFailed,
        apply_cache_control,
        compact_messages,
        estimate_tokens,
    )

__all__ = [
    "CompactionResult",
    "SummaryFailed",
    "apply_cache_control",
    "compact_messages",
    "estimate_tokens",
]


def __getattr__(name: str) -> object:
    """Return a part of the library.

    It is imported when it is asked for: `parley --help` and the helper processes import modules of
    this package too, and need none of what the library does.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent import library

    return getattr(library, name)
