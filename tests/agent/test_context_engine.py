"""The numbers that every context engine works with, and the sizes of views that it considers."""

from collections import Counter
from collections.abc import Callable

import pytest

from agent.context_compressor import ContextCompressor
from agent.context_engine import CompressionRequest, Limits, Sizes
from agent.errors import ToolError
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.tokens import estimate_message
from agent.view.view import Edit, Entry, Summary, View, ViewPlan
from tests.support.conversations import summary_message
from tests.support.scripted_model import tool_call


def test_all_limits_are_shares_of_the_window() -> None:
    """Compaction at half of it, a fifth of that stays verbatim, three fifths are aimed at."""
    limits = Limits(200_000)
    assert limits.threshold_tokens == 100_000
    assert limits.tail_tokens == 20_000
    assert limits.target_tokens == 60_000
    assert limits.guard_tokens == 170_000
    assert limits.max_summary_tokens == 10_000


def test_a_summary_has_a_most_however_large_the_window_is() -> None:
    """Nobody reads more of it."""
    assert Limits(1_000_000).max_summary_tokens == 12_000


@pytest.mark.parametrize(("window", "threshold"), [(150_000, 100_000), (100_000, 85_000)])
def test_a_fallback_is_compacted_for_at_the_same_size(window: int, threshold: int) -> None:
    """Or at 85 % of its window, where that is less."""
    within = Limits(200_000).within(window)
    assert within.context_length == window
    assert within.threshold_tokens == pytest.approx(threshold, abs=1)


SYSTEM = "You are a test."
CALLS = [tool_call("look", {}, "c1")]
MESSAGES = [
    user_message("What is up?"),
    ChatMessage(role="assistant", content=None, tool_calls=CALLS),
    tool_message("c1", "look", "data " * 500),
    assistant_message("Not much."),
    user_message("Tell me."),
]
ENTRIES = [Entry(3 * n, message) for n, message in enumerate(MESSAGES, start=1)]
SUMMARY = Summary("what was", 3, 9)
EDITED = ViewPlan(edits=(Edit(9, "prune"),))
CUT = ViewPlan(head_upto=3, summaries=(SUMMARY,), tail_from=12)


def sizes_of(plan: ViewPlan, estimate: Callable[[ChatMessage], int] = estimate_message) -> Sizes:
    """Return the sizes of a request with this plan in force."""
    view = View(SYSTEM, plan, list(ENTRIES))
    fixed = estimate_message(view.messages[0])
    tokens = sum(map(estimate_message, view.messages))
    entries = tuple(view.entries)
    limits = Limits(20_000)
    request = CompressionRequest(plan, entries, tokens, fixed, limits, estimate, "threshold")
    return Sizes(request)


def size_of_view(plan: ViewPlan) -> int:
    return sum(map(estimate_message, View(SYSTEM, plan, list(ENTRIES)).messages))


def test_a_size_is_that_of_the_view_which_the_plan_shows() -> None:
    """With edits, with what is left out, and with the summary."""
    sizes = sizes_of(ViewPlan())
    assert sizes.view(ViewPlan()) == size_of_view(ViewPlan())
    assert sizes.view(EDITED) == size_of_view(EDITED) < size_of_view(ViewPlan())


def test_a_first_summary_brings_the_note_with_it() -> None:
    """The system prompt grows; at a later compaction the note is part of what is fixed."""
    first, size = sizes_of(ViewPlan()).view(CUT), size_of_view(CUT)
    assert size <= first <= size + 10
    assert sizes_of(CUT).view(CUT) == size


def test_what_each_message_takes_is_told_by_seq() -> None:
    """As it is shown; what is not shown has no size."""
    sizes = sizes_of(ViewPlan())
    assert sizes.shown(CUT) == {
        3: estimate_message(MESSAGES[0]),
        12: estimate_message(MESSAGES[3]),
        15: estimate_message(MESSAGES[4]),
    }
    assert sizes.shown(EDITED)[9] < sizes.shown(ViewPlan())[9]


def test_summaries_count_as_they_are_shown() -> None:
    """With the marker around them."""
    sizes = sizes_of(ViewPlan())
    assert sizes.summaries(CUT) == estimate_message(summary_message(SUMMARY))
    assert sizes.summaries(ViewPlan()) == 0


def test_no_original_is_counted_twice() -> None:
    """However many plans are considered; what an edit made is counted each time."""
    counted: Counter[int] = Counter()

    def estimate(message: ChatMessage) -> int:
        counted[id(message)] += 1
        return estimate_message(message)

    sizes = sizes_of(ViewPlan(), estimate)
    for plan in (ViewPlan(), EDITED, CUT, ViewPlan(), EDITED):
        sizes.view(plan)
    assert [counted[id(message)] for message in MESSAGES] == [1] * 5


def test_originals_are_counted_when_they_are_needed() -> None:
    """A plan that shows little costs little."""
    counted: list[ChatMessage] = []

    def estimate(message: ChatMessage) -> int:
        counted.append(message)
        return 1

    sizes = sizes_of(ViewPlan(), estimate)
    sizes.message(MESSAGES[0])
    assert MESSAGES[0] in counted
    assert MESSAGES[2] not in counted


def test_an_engine_without_tools_refuses_every_call() -> None:
    """The model is told; a subclass that offers tools overrides it."""
    engine = ContextCompressor(Limits(200_000), {})
    assert engine.get_tool_schemas() == ()
    with pytest.raises(ToolError, match="compressor offers no tool 'grep'"):
        engine.handle_tool_call("grep", {})
