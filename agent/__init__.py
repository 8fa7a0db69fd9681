"""The agent: models, tools and the loop of one turn. No database, no platform, no gateway.

`__all__` is a library for lists of chat messages in OpenAI's format (docs/library.md).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from agent.context_compressor import ContextCompressor
    from agent.context_engine import ContextEngine
    from agent.engines.lcm.engine import LcmEngine
    from agent.engines.rounds import RoundsEngine
    from agent.errors import SummaryFailed
    from agent.library import CompactionResult, HistoryManager, compact_messages
    from agent.prompt_caching import apply_cache_control
    from agent.tokens import TokenCounter, estimate_tokens
    from agent.tools.truncate import ObservationTruncator

__all__ = [
    "CompactionResult",
    "ContextCompressor",
    "ContextEngine",
    "HistoryManager",
    "LcmEngine",
    "ObservationTruncator",
    "RoundsEngine",
    "SummaryFailed",
    "TokenCounter",
    "apply_cache_control",
    "compact_messages",
    "estimate_tokens",
]


def __getattr__(name: str) -> object:
    """Import a part of the library on first use: `parley --help` needs none."""
    # Statements rather than a table of strings, so that mypy and import-linter see the imports.
    part: ModuleType
    match name:
        case "TokenCounter" | "estimate_tokens":
            from agent import tokens as part
        case "ObservationTruncator":
            from agent.tools import truncate as part
        case "apply_cache_control":
            from agent import prompt_caching as part
        case "ContextEngine":
            from agent import context_engine as part
        case "ContextCompressor":
            from agent import context_compressor as part
        case "RoundsEngine":
            from agent.engines import rounds as part
        case "LcmEngine":
            from agent.engines.lcm import engine as part
        case "CompactionResult" | "HistoryManager" | "compact_messages":
            from agent import library as part
        case "SummaryFailed":
            from agent import errors as part
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(part, name)


def __dir__() -> list[str]:
    """Return all names, so that shells and editors suggest them before they are imported."""
    return sorted({*globals(), *__all__})
