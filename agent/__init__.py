"""The agent: models, tools and the loop of one turn. No database, no platform, no gateway.

As a library: `compact_messages`, `apply_cache_control` and `estimate_tokens` work on lists of
OpenAI chat messages.
"""

from agent.errors import SummaryFailed
from agent.library import CompactionResult, compact_messages
from agent.prompt_caching import apply_cache_control
from agent.tokens.estimate import estimate_tokens

__all__ = [
    "CompactionResult",
    "SummaryFailed",
    "apply_cache_control",
    "compact_messages",
    "estimate_tokens",
]
