"""The table of models."""

from typing import get_args

import pytest
from anthropic.types import Model
from openai.types import ChatModel

from agent.models.catalog import DEFAULT_NAMES, context_length, find_facts, output_limit


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("claude-sonnet-5-5", 1_000_000),
        ("claude-haiku-4-5", 200_000),
        ("claude-opus-4-6-20260101", 1_000_000),
        ("claude-opus-4-6-latest", 1_000_000),
        ("anthropic/claude-opus-4.6", 1_000_000),
        ("claude-opus-4-6@20260101", 1_000_000),
        ("claude-next-9", 200_000),
        ("gpt-whatever", 128_000),
    ],
)
def test_windows(name: str, tokens: int) -> None:
    """Known models by any spelling, cautious guesses for the others."""
    assert context_length(name) == tokens


def test_newer_version_is_not_its_predecessor() -> None:
    """A name that only begins like a known one is unknown."""
    assert find_facts("claude-sonnet-5-9") is None


def test_output_limit_is_capped_for_known_models_only() -> None:
    """A small wish stays, a large one is cut to what the model has."""
    limits = [output_limit(name, 90_000) for name in ("claude-haiku-4-5", "claude-opus-5", "x")]
    assert limits == [64_000, 90_000, 90_000]
    assert output_limit("claude-haiku-4-5", 100) == 100


def test_defaults_are_known_to_the_sdks() -> None:
    """The default names exist in the installed SDKs' model types."""
    literal, _ = get_args(Model)
    assert DEFAULT_NAMES["anthropic"] in get_args(literal)
    assert DEFAULT_NAMES["openai"] in get_args(ChatModel)


def test_default_claude_is_the_newest_sonnet() -> None:
    """No Sonnet of the SDK is newer than the default."""
    literal, _ = get_args(Model)
    sonnets = [name for name in get_args(literal) if name.startswith("claude-sonnet-")]
    versions = {name: [int(part) for part in name.split("-")[2:4]] for name in sonnets}
    assert max(versions, key=lambda name: versions[name]) == DEFAULT_NAMES["anthropic"]
