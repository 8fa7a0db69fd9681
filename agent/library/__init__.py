"""The context parts for programs of their own: no gateway, no database, no network.

docs/library.md shows them; `agent` exports them by name, each imported when it is asked for.
"""

from agent.errors import SummaryFailed
from agent.library.compaction import CompactionResult, compact_messages
from agent.prompt_caching import apply_cache_control
from agent.tokens.estimate import estimate_tokens

__all__ = [
    "CompactionResult",
    "SummaryFailed",
    "apply_cache_control",
    "compact_messages",
    "estimate_tokens",
]
