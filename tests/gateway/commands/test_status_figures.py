"""What is said at the start about what does not work as it may have been meant."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.access.policy import Access
from gateway.commands.status_figures import StatusFacts, firing_text, start_warnings, status_facts
from gateway.context.prompts import OperatorFiles, Prompts
from gateway.settings.tree import AccessSettings
from gateway.wiring import build_context
from tests.agent.engines.views import write_plugin
from tests.support.gateway import agent_of, settings_of
from tests.support.scripted_model import ScriptedModel

MODEL = StatusFacts("small", 16_000, 8_000, "compressor", fixed_tokens=2_000)


def test_nothing_is_said_where_all_is_well() -> None:
    """The prompt leaves room, and no plugin is missing."""
    assert start_warnings((), MODEL) == ()


def test_a_missing_guard_is_said() -> None:
    """Since tools are refused without it."""
    [told] = start_warnings(("police",), MODEL)
    assert told.startswith("The plugin police could not be loaded")


def test_a_small_window_with_many_tools_is_said() -> None:
    """On the screen and in the log."""
    crowded = StatusFacts("small", 16_000, 8_000, "compressor", fixed_tokens=5_000)
    with capture_logs() as lines:
        [told] = start_warnings((), crowded)
    assert told.startswith("Prompt and tools: 5,000 of 8,000 tokens")
    assert [line["event"] for line in lines] == ["prompt_leaves_little_room"]


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
