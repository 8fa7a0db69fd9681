"""Facts about models that are needed before their provider says anything."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model; sizes in tokens, `read_on` is when the source said so."""

    name: str
    context_length: int
    max_output_tokens: int
    source: str = "Anthropic's documentation, as noted in the design page MODELS.md"
    read_on: str = "autumn 2026"


_ROWS = (
    ModelFacts("claude-fable-5-1", 1_000_000, 128_000),
    ModelFacts("claude-fable-5", 1_000_000, 128_000),
    ModelFacts("claude-opus-5-5", 1_000_000, 128_000),
    ModelFacts("claude-opus-5", 1_000_000, 128_000),
    ModelFacts("claude-opus-4-8", 1_000_000, 128_000),
    ModelFacts("claude-opus-4-7", 1_000_000, 128_000),
    ModelFacts("claude-opus-4-6", 1_000_000, 128_000),
    ModelFacts("claude-opus-4-5", 200_000, 64_000),
    ModelFacts("claude-sonnet-5-5", 1_000_000, 128_000),
    ModelFacts("claude-sonnet-5", 1_000_000, 128_000),
    ModelFacts("claude-sonnet-4-6", 1_000_000, 128_000),
    ModelFacts("claude-sonnet-4-5", 200_000, 64_000),
    ModelFacts("claude-haiku-5-5", 1_000_000, 128_000),
    ModelFacts("claude-haiku-4-5", 200_000, 64_000),
)
_BY_NAME = {row.name: row for row in _ROWS}
_UNKNOWN_CLAUDE_TOKENS = 200_000
_UNKNOWN_TOKENS = 128_000
_SUFFIX = re.compile(r"(-latest|[-@]\d{8})$")

# Source: the newest Sonnet in anthropic.types.Model, and the newest middle tier ("terra") in
# openai.types.ChatModel; SDKs 2.12.0 and 3.54.0.
DEFAULT_NAMES = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-terra"}


def find_facts(name: str) -> ModelFacts | None:
    """Return the row of a model, also for a dated id or a router's spelling; None if unknown.

    "claude-haiku-4-5-20251001" and "anthropic/claude-haiku-4.5" are claude-haiku-4-5. A newer
    version is not its predecessor: claude-sonnet-5-9 is unknown.
    """
    plain = name.lower().rpartition("/")[2].replace(".", "-")
    return _BY_NAME.get(_SUFFIX.sub("", plain))


def context_length(name: str) -> int:
    """Return the size of a model's window in tokens, a cautious guess if it is unknown."""
    facts = find_facts(name)
    if facts is not None:
        return facts.context_length
    return _UNKNOWN_CLAUDE_TOKENS if is_claude(name) else _UNKNOWN_TOKENS


def output_limit(name: str, wanted: int) -> int:
    """Return the tokens to ask for: a known model refuses a call that asks for more than it has."""
    facts = find_facts(name)
    return min(wanted, facts.max_output_tokens) if facts else wanted


def is_claude(name: str) -> bool:
    """Return whether a name, with or without a vendor in front, is one of Anthropic's."""
    return "claude" in name.lower()
