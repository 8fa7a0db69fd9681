"""`/compress`: its topic, and what it says about what was done."""

from dataclasses import replace

import pytest

from agent.context_engine import Level
from agent.ports import Compaction
from agent.view.view import Summary, ViewPlan
from gateway.commands.compress import (
    NOTHING_TO_COMPRESS,
    SUMMARY_FAILED,
    TOPIC_CHARS,
    compress_text,
    topic_of,
)
from gateway.commands.registry import parse
from tests.support.storage import compaction


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("/compress", ""),
        ("/compress  the\nschema ", "the schema"),
        ("/compact the schema", "the schema"),
        ("/compress " + "x" * 10_000, "x" * TOPIC_CHARS),
    ],
)
def test_the_topic_of_compress(text: str, topic: str) -> None:
    """One line of limited length: it goes into the prompt of the summary."""
    assert topic_of(parse(text).argument) == topic


def done(level: Level = "summary", source: str = "model", **changes: object) -> Compaction:
    """Return a compaction with a new summary."""
    plan = ViewPlan(
        summaries=(Summary("S", 2, 9, source="model" if source == "model" else "extract"),)
    )
    figures = {"level": level, "retained_share": 0.95, "summary_model": "small-1", **changes}
    return compaction(plan, **figures)


def test_compress_tells_real_figures() -> None:
    """Messages and tokens before and after, who wrote the summary, and the topic."""
    assert compress_text(done(), "the `schema`") == (
        "Condensed: 400 → 30 messages, 100,000 → 20,000 tokens (estimated)."
        " The earlier turns are now a summary by small-1. Topic: `the 'schema'`."
        " Every message stays on record."
    )


def test_compress_without_a_topic_names_none() -> None:
    """There is nothing to show back."""
    assert "Topic" not in compress_text(done())


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("none", ""),
        ("prune", "Old tool results are shortened."),
        ("short_summary", "It had to be a short one."),
        ("clip_tail", "Long messages are cut"),
        ("clip_newest", "Even your newest message is cut"),
    ],
)
def test_compress_tells_how_far_it_had_to_go(level: Level, told: str) -> None:
    """In plain words."""
    assert told in compress_text(done(level))


def test_a_summary_without_a_model_says_why() -> None:
    """Nothing that a provider said is shown."""
    failed = done("extract", "extract", summary_model=None, failure="RateLimited: sk-ant-123")
    text = compress_text(failed)
    assert f"a summary made without a model, because {SUMMARY_FAILED}" in text
    assert "sk-ant" not in text
    alone = compress_text(replace(failed, failure=None))
    assert "a summary made without a model, because no model writes summaries" in alone


def test_no_summary_is_claimed_where_none_was_written() -> None:
    """An older one in the plan is not this compaction's."""
    assert "summary" not in compress_text(done("prune", retained_share=None))


def test_compress_without_effect_says_so() -> None:
    """Whatever the topic was."""
    assert compress_text(None, "the schema") == NOTHING_TO_COMPRESS
