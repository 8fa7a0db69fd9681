"""docs/engines.md: its example plugin works as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.context_engine import ContextEngine, Limits
from agent.plugins.engines import available, resolve
from agent.view.view import View, ViewPlan
from tests.agent.engines.views import SYSTEM, conversation, request_of, write_plugin

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
LIMITS = Limits(12_000)
MakeEngine = Callable[[], ContextEngine]


def block(language: str) -> str:
    """Return the page's only code block in a language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    return str(found)


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    """Install the example as the page says; return what makes its engine."""
    folder = write_plugin(tmp_path, "last_turns", block("python"))
    (folder / "plugin.yaml").write_text(block("yaml"))
    (folder / "plugin.yaml").chmod(0o644)
    return lambda: resolve("last_turns", tmp_path, {})(LIMITS)


def test_it_is_listed_with_its_description(tmp_path: Path, make_engine: MakeEngine) -> None:
    """From the plugin.yaml of the page."""
    info = available(tmp_path)[0]
    assert (info.name, info.source, info.problem) == ("last_turns", "plugin", None)
    assert info.description == "Keeps the first message and the newest turns. (version 1.0.0)"


def test_it_keeps_the_first_message_and_the_newest_turns(make_engine: MakeEngine) -> None:
    """Of a view; the host has nothing to complain about."""
    view = View(SYSTEM, ViewPlan(), conversation(10, 30))
    request = request_of(view.entries, 12_000)
    with capture_logs() as logs:
        found = make_engine().compress(request)
    assert logs == []
    assert found is not None
    before = view.messages
    view.adopt(found.plan)
    assert view.messages[1] is before[1]
    assert view.messages[3:] == before[17:]
    listed = str(view.messages[2]["content"]).splitlines()
    assert [line[:11] for line in listed if line.startswith("- ")] == [
        "- request 2",
        "- request 3",
        "- request 4",
    ]
    assert found.tokens < request.tokens


def test_it_goes_on_where_it_stopped(make_engine: MakeEngine) -> None:
    """A second compaction lists more requests; a third has nothing to do."""
    entries = conversation(12, 30)
    once = make_engine().compress(request_of(entries[:40], 12_000))
    assert once is not None
    request = request_of(entries, 12_000, once.plan)
    with capture_logs() as logs:
        twice = make_engine().compress(request)
    assert logs == []
    assert twice is not None
    [summary] = twice.plan.summaries
    assert [line[:11] for line in summary.text.splitlines()][-1] == "- request 6"
    assert len(summary.text.splitlines()) == 5
    assert make_engine().compress(request_of(entries, 12_000, twice.plan)) is None
