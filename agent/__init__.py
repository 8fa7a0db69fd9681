"""The agent: models, tools and the loop of one turn. No database, no platform, no gateway.

As a library: `compact_messages` and `estimate_tokens` work on lists of OpenAI chat messages.
"""

from agent.errors import SummaryFailed
from agent.library import CompactionResult, compact_messages
from agent.tokens import estimate_tokens

__all__ = ["CompactionResult", "SummaryFailed", "compact_messages", "estimate_tokens"]
