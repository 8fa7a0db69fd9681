"""`/status`: what it says of a conversation and its model, and the warnings of a start."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.access.policy import Access
from gateway.commands.registry import StatusFacts
from gateway.commands.status import (
    crowding_text,
    firing_text,
    status_facts,
    status_text,
)
from gateway.context.prompts import OperatorFiles, Prompts
from gateway.settings.tree import AccessSettings
from gateway.storage.reports.usage import ContextFill
from gateway.wiring import build_context
from tests.agent.engines.views import write_plugin
from tests.support.gateway import agent_of, settings_of
from tests.support.scripted_model import ScriptedModel

MODEL = StatusFacts("claude-test", 200_000, 100_000, "compressor", 900)
STANDING = ContextFill(3, 1234, 9, 2, "What is it? #2", 50_000, "reported", 1)


def test_the_status_of_an_idle_conversation() -> None:
    """Readable figures, and how the last turn ended."""
    assert status_text(STANDING, MODEL, "max_iterations", 0).splitlines() == [
        "- **Conversation**: 3, session 9",
        "- **Title**: `What is it? #2`",
        "- **Model**: claude-test",
        "- **Context**: 50,000 of 200,000 tokens (25%), reported",
        "- **Compression**: from 100,000 tokens on (engine compressor); 1 compaction so far",
        "- **Messages**: 1,234 so far",
        "- **State**: idle, 0 messages queued",
        "- **Last turn**: max iterations",
    ]


def test_tools_that_are_off_are_said() -> None:
    """With the line of the start."""
    off = replace(MODEL, tools_off="terminal and the file tools are off: no wall works here")
    assert (
        f"- **Tools**: {off.tools_off}"
        in status_text(STANDING, off, "max_iterations", 0).splitlines()
    )


@pytest.mark.parametrize(
    ("answered_by", "told"),
    [
        (None, "claude-test"),
        ("claude-test", "claude-test"),
        ("gpt-4", "claude-test (last answer by gpt-4)"),
    ],
)
def test_a_fallback_that_answered_last_is_named(answered_by: str | None, told: str) -> None:
    """Beside the model that will be asked first."""
    standing = replace(STANDING, answered_by=answered_by)
    assert f"- **Model**: {told}\n" in status_text(standing, MODEL, "max_iterations", 0)


def test_a_prompt_that_leaves_little_room_is_told() -> None:
    """From half of the threshold on; of the window where nothing is compacted."""
    narrow = replace(MODEL, fixed_tokens=5_000, threshold_tokens=8_000)
    told = "- **Prompt and tools**: 5,000 of 8,000 tokens, which leaves little room\n"
    assert told in status_text(STANDING, narrow, "max_iterations", 0)
    assert crowding_text(replace(narrow, threshold_tokens=10_000)) is None
    assert crowding_text(replace(narrow, threshold_tokens=None)) is None


def test_the_status_while_a_turn_runs() -> None:
    """The outcome of the turn before is of no interest now."""
    text = status_text(STANDING, MODEL, "running", 2)
    assert "working on an answer, 2 messages queued" in text
    assert "Last turn" not in text


def test_the_status_before_the_first_answer() -> None:
    """The context is estimated; a conversation without a title has no line for it."""
    standing = ContextFill(3, 0, 9, 1, "", 1_234, "estimated", 0)
    text = status_text(standing, MODEL, None, 1)
    assert "1,234 of 200,000 tokens (1%), estimated" in text
    assert "0 compactions so far" in text
    assert "Title" not in text
    assert "Last turn" not in text


def test_compression_that_is_switched_off_has_no_threshold() -> None:
    """The engine is named all the same."""
    off = replace(MODEL, threshold_tokens=100_000, engine="rounds", compresses=False)
    text = status_text(STANDING, off, "max_iterations", 0)
    assert "- **Compression**: switched off (engine rounds)" in text


def test_an_engine_that_tells_no_threshold_is_not_switched_off() -> None:
    """A plugin decides by itself, and need not say from where on."""
    silent = replace(MODEL, threshold_tokens=None, engine="newest")
    text = status_text(STANDING, silent, "max_iterations", 0)
    assert "- **Compression**: when the engine newest asks for it; 1 compaction so far" in text


def test_a_title_cannot_break_the_markup() -> None:
    """It is what a person wrote, shown as it is."""
    text = status_text(replace(STANDING, title="**`x`**"), MODEL, "max_iterations", 0)
    assert "- **Title**: `**'x'**`" in text


LISTS = """
class Own:
    def get_status(self):
        return {{"threshold_tokens": {told}}}

    def compress(self, messages):
        return messages


def register(ctx):
    ctx.register_context_engine(Own)
"""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("1500", "from 1,500 tokens on (engine own)"),
        ("self.threshold_tokens", "from 20,000 tokens on (engine own)"),
        ("self.context_length * 0.5", "from 20,000 tokens on (engine own)"),
        ("0", "when the engine own asks for it"),
        ("-1", "when the engine own asks for it"),
        ("float('nan')", "when the engine own asks for it"),
        ("float('inf')", "when the engine own asks for it"),
        ("None", "when the engine own asks for it"),
        ("'many'", "when the engine own asks for it"),
        ("True", "when the engine own asks for it"),
        ("1 / 0", "from 20,000 tokens on (engine own)"),
    ],
)
def test_where_an_engine_of_lists_compresses(tmp_path: Path, told: str, said: str) -> None:
    """As it tells: a whole number or not; what is no size is none."""
    write_plugin(tmp_path, "own", LISTS.format(told=told))
    agent = agent_of(ScriptedModel([], context_length=40_000))
    context = build_context(settings_of(tmp_path, context={"engine": "own"}), agent)
    prompts = Prompts(OperatorFiles(tmp_path), Access(AccessSettings()))
    assert firing_text(status_facts(agent, context, prompts, "")(None)) == said
