"""The default engine: its four phases in order, and what happens where one is not enough."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from agent.context.boundaries import protected_tail
from agent.context.extract import extract
from agent.context_compressor import EXTRACT_SHARE, ContextCompressor, manual_limits
from agent.context_engine import Compressed, CompressionRequest, Limits, Sizes, Trigger
from agent.errors import SummaryFailed
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.tokens import estimate_message, estimate_tokens
from agent.view.view import Entry, Summary, View, ViewPlan
from tests.support.conversations import faults
from tests.support.scripted_model import tool_call

WINDOW = 40_000
TARGET = 12_000
"""60 % of half of the window."""
SYSTEM = "You are a test."

GOOD = (
    "## Goal\nShip the order.\n## Progress\n### Done\n1. asked\n## Next Steps\nnone\n"
    "## Critical Context\nthe order has number 4711\n## Active Task\nship it"
)


class Writer:
    """The summary model: answers one text after the other, and keeps what it was asked."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.limits: list[int] = []

    def __call__(self, prompt: str, max_tokens: int) -> str:
        self.prompts.append(prompt)
        self.limits.append(max_tokens)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def talk(turns: int, words: int = 80, start: int = 0) -> list[ChatMessage]:
    """Return so many exchanges, each with a number of its own."""
    said: list[ChatMessage] = []
    for n in range(start, start + turns):
        text = f"about order-{n}: " + "word " * words
        said += [user_message(text), assistant_message(text)]
    return said


def group(n: int, result: str) -> list[ChatMessage]:
    call = tool_call("read", {"path": f"file-{n}.txt"}, f"c{n}")
    asking = ChatMessage(role="assistant", content=None, tool_calls=[call])
    return [asking, tool_message(f"c{n}", "read", result)]


def tool_talk(steps: int, chars: int = 3_000) -> list[ChatMessage]:
    """Return one user message and so many steps with results of their own."""
    groups = [group(n, f"result {n} " + "data " * (chars // 5)) for n in range(steps)]
    return [user_message("Go."), *(message for pair in groups for message in pair)]


def entries_of(messages: Sequence[ChatMessage]) -> list[Entry]:
    return [Entry(seq, message) for seq, message in enumerate(messages, start=1)]


def request_of(
    messages: Sequence[ChatMessage], plan: ViewPlan | None = None, **more: Any
) -> CompressionRequest:
    """Return the request of a view that shows these messages under a plan."""
    view = View(SYSTEM, plan or ViewPlan(), entries_of(messages))
    fixed = estimate_message(view.messages[0])
    request = CompressionRequest(
        plan=view.plan,
        entries=tuple(view.entries),
        tokens=sum(map(estimate_message, view.messages)),
        fixed_tokens=fixed,
        limits=Limits(WINDOW),
        estimate=estimate_message,
        trigger="threshold",
    )
    return replace(request, **more)


def compressed(request: CompressionRequest) -> Compressed:
    """Compress, hold the result against what is true of every one, and return it."""
    found = ContextCompressor(request.limits, {}).compress(request)
    assert found is not None
    shown = shown_by(request, found.plan)
    assert faults(shown) == []
    assert found.tokens <= request.tokens
    assert abs(found.tokens - sum(map(estimate_message, shown))) <= 0.02 * found.tokens
    return found


def shown_by(request: CompressionRequest, plan: ViewPlan) -> list[ChatMessage]:
    return View(SYSTEM, plan, list(request.entries)).messages


def summary_of(found: Compressed) -> Summary:
    (summary,) = found.plan.summaries
    return summary


# When there is nothing to do


@pytest.mark.parametrize("trigger", ["threshold", "preflight", "hygiene"])
def test_a_view_below_its_target_is_left_alone(trigger: Trigger) -> None:
    """It would be compacted again and again."""
    request = request_of(talk(10), trigger=trigger)
    assert ContextCompressor(request.limits, {}).compress(request) is None


def test_a_command_compacts_a_view_below_its_target() -> None:
    """The user asked for it."""
    found = compressed(request_of(talk(25), trigger="manual"))
    assert found.level == "extract"
    assert found.plan.compacted


@pytest.mark.parametrize(("turns", "words", "most"), [(25, 80, 14), (10, 300, 8)])
def test_a_command_keeps_only_the_newest_messages(turns: int, words: int, most: int) -> None:
    """A quarter of the view, or six if they are more; the loop would keep twenty."""
    found = compressed(request_of(talk(turns, words), trigger="manual"))
    assert most - 2 <= 2 * turns + 1 - found.plan.tail_from <= most


def test_a_command_finds_nothing_in_a_short_view() -> None:
    """All of it is head and tail."""
    request = request_of(talk(2), trigger="manual")
    assert ContextCompressor(request.limits, {}).compress(request) is None


def test_an_overflow_compacts_a_view_below_its_target() -> None:
    """The window is smaller than believed: half of what was refused is the target."""
    request = request_of(talk(30, words=60), trigger="overflow")
    assert request.tokens < TARGET
    assert compressed(request).tokens <= request.tokens // 2


# Phase 1


def test_pruning_alone_is_enough_where_tools_fill_the_view() -> None:
    """No model is asked, nothing leaves the view, results in the tail stay."""
    writer = Writer()
    request = request_of(tool_talk(60, chars=1_000), summarise=writer)
    found = compressed(request)
    assert (found.level, found.retained_share, writer.prompts) == ("prune", None, [])
    assert not found.plan.compacted
    shown = shown_by(request, found.plan)
    assert len(shown) == len(request.entries) + 1
    assert shown[-1] is request.entries[-1].message


def test_pruning_that_is_not_enough_is_followed_by_a_summary() -> None:
    """The summary is written from the originals, and what stays is not pruned."""
    writer = Writer(GOOD)
    found = compressed(request_of([*talk(60), *tool_talk(30, 500)], summarise=writer))
    assert found.level == "summary"
    assert all(edit.kind != "prune" for edit in found.plan.edits)


def test_a_command_gets_its_summary_even_where_pruning_would_do() -> None:
    """That is what it asked for."""
    found = compressed(request_of(tool_talk(60, chars=1_000), trigger="manual"))
    assert found.plan.compacted


def test_what_was_pruned_stays_pruned() -> None:
    """Each result is shown in one form only, as long as its plan grows."""
    messages = tool_talk(60, chars=1_000)
    first = compressed(request_of(messages))
    more = [*messages, *[m for n in range(100, 160) for m in group(n, f"new {n} " + "data " * 200)]]
    request = request_of(more, first.plan)
    later = compressed(request)
    kept = [edit for edit in first.plan.edits if later.plan.shows(edit.seq)]
    assert set(kept) <= set(later.plan.edits)


def test_thoughts_are_dropped_by_every_change_of_the_plan() -> None:
    """They were signed for the history as it was (pruning and clipping included)."""
    for messages in (
        tool_talk(60, 1_000),
        talk(80),
        [user_message("Go."), *group(0, "x" * 90_000)],
    ):
        found = compressed(request_of(messages))
        assert found.plan.thinking_from == len(messages) + 1


# Phases 3 and 4


def test_a_models_summary_stands_between_head_and_tail() -> None:
    """With its source, its range, and the share of facts that it holds."""
    request = request_of(talk(60), summarise=Writer(GOOD))
    found = compressed(request)
    summary = summary_of(found)
    assert (found.level, found.failure, summary.source) == ("summary", None, "model")
    assert (summary.first_seq, summary.last_seq) == (3, found.plan.tail_from - 1)
    assert "the order has number 4711" in summary.text
    assert found.retained_share is not None
    assert found.retained_share < 0.05


def test_the_prompt_holds_originals_and_not_what_was_pruned() -> None:
    """The summary of a tool's result is written from the result."""
    writer = Writer(GOOD)
    messages = [*talk(30), *tool_talk(1, 3_000), assistant_message("Seen."), *talk(40)]
    compressed(request_of(messages, summarise=writer))
    assert "data data data" in writer.prompts[0]


@pytest.mark.parametrize("reason", ["429", "the summary took too long", "the summary is empty"])
def test_a_failed_summary_is_the_extractors(reason: str) -> None:
    """Used now, within the same target; the reason is told and the model asked once only."""
    writer = Writer(SummaryFailed(reason))
    found = compressed(request_of(talk(60), summarise=writer))
    assert (found.level, found.failure) == ("extract", reason)
    assert summary_of(found).source == "extract"
    assert found.tokens <= TARGET
    assert len(writer.prompts) == 1


def test_an_extract_says_on_which_days_something_was_said() -> None:
    """Where the day changes."""
    days = ((1, "2026-03-01"), (40, "2026-03-04"))
    text = str(summary_of(compressed(replace(request_of(talk(60)), days=days))).text)
    before, after = text.split("\n[2026-03-01]\n")[1].split("\n[2026-03-04]\n")
    assert max(numbers_in(before)) < 40 <= min(numbers_in(after))


def numbers_in(text: str) -> list[int]:
    """Return the numbers of the messages that lines of an extract are from."""
    return [int(found) for found in re.findall(r"^#(\d+) ", text, re.MULTILINE)]


def test_without_a_model_nothing_has_failed() -> None:
    """Nobody was asked."""
    found = compressed(request_of(talk(60)))
    assert (found.level, found.failure) == ("extract", None)
    assert found.retained_share is not None


def test_a_summary_that_is_too_long_is_cut_to_its_length() -> None:
    """It is asked for once, and what it says first in each section stays."""
    writer = Writer(f"{GOOD}\n{'Nobody asked for this. ' * 1_000}")
    found = compressed(request_of(talk(60), summarise=writer))
    assert (found.level, found.failure, len(writer.prompts)) == ("summary", None, 1)
    assert "the order has number 4711" in summary_of(found).text
    assert estimate_tokens(summary_of(found).text) <= writer.limits[0]


def test_a_copy_of_the_conversation_is_no_summary() -> None:
    """The extractor picks better than a cut; nobody asks again."""
    writer = Writer(f"{GOOD}\n{'padding ' * 19_000}")
    found = compressed(request_of(talk(60), summarise=writer))
    assert (found.level, len(writer.prompts)) == ("extract", 1)
    assert "its source no more" in str(found.failure)


LONG = f"{GOOD}\n" + "\n".join(f"- order-{n} noted as shipped to the depot" for n in range(60))


def tight(words: int = 250) -> list[ChatMessage]:
    """Return messages whose head and tail leave little room for a summary."""
    return [*talk(60), *talk(10, words)]


def test_a_summary_that_does_not_fit_is_cut_further() -> None:
    """Rather a shorter summary than clipped messages."""
    writer = Writer(LONG)
    found = compressed(request_of(tight(), summarise=writer))
    assert (found.level, found.failure, found.plan.edits) == ("short_summary", None, ())
    assert "order-0 noted" in summary_of(found).text
    assert TARGET * 0.9 < found.tokens <= TARGET


def test_where_half_of_the_summary_does_not_fit_messages_are_clipped() -> None:
    """A model's text is worth more than the ends of long messages."""
    found = compressed(request_of(tight(330), summarise=Writer(LONG)))
    assert (found.level, summary_of(found).source) == ("clip_tail", "model")
    assert found.tokens <= TARGET


@pytest.mark.parametrize("words", range(200, 300, 20))
def test_the_extractors_summary_keeps_the_view_within_its_target(words: int) -> None:
    """However little room the tail leaves for it."""
    assert compressed(request_of(tight(words))).tokens <= TARGET


def test_a_summary_longer_than_its_source_is_not_made() -> None:
    """A command finds a middle, but what stands for it would be longer; with more it would not."""
    short = request_of(talk(15, words=1), trigger="manual")
    tail_start = protected_tail(replace(short, limits=manual_limits(short)), Sizes(short))
    assert tail_start > 2
    assert ContextCompressor(short.limits, {}).compress(short) is None
    assert compressed(request_of(talk(40, words=1), trigger="manual"))


def test_an_earlier_summary_is_updated_and_replaced() -> None:
    """What it said is handed to the model; its range is part of the new one's."""
    messages = talk(60)
    plan = ViewPlan(head_upto=2, summaries=(Summary("he lives in Rome", 3, 20),), tail_from=21)
    writer = Writer(GOOD)
    found = compressed(request_of(messages, plan, summarise=writer))
    assert "he lives in Rome" in writer.prompts[0]
    assert summary_of(found).first_seq == 3


def test_the_extractor_carries_an_earlier_summary_on() -> None:
    """Nothing that was known gets lost because a model is down."""
    plan = ViewPlan(head_upto=2, summaries=(Summary("## Goal\nRome", 3, 20),), tail_from=21)
    found = compressed(request_of(talk(60), plan))
    assert "Rome" in summary_of(found).text


def noted(said: int) -> ViewPlan:
    """Return a plan whose notes are about as long as an extract may become."""
    told = entries_of([user_message(f"Crate {n} went to harbour {7 * n}.") for n in range(said)])
    notes = extract(told, "", int(WINDOW * 0.5 * EXTRACT_SHARE)).text
    summary = Summary(notes, 1, said, source="extract")
    return ViewPlan(head_upto=0, summaries=(summary,), tail_from=said + 1)


def later(messages: Sequence[ChatMessage], plan: ViewPlan, **more: Any) -> CompressionRequest:
    """Return the request of a view in which messages have come behind notes."""
    first = plan.tail_from
    view = View(SYSTEM, plan, [Entry(seq, each) for seq, each in enumerate(messages, first)])
    tokens = sum(map(estimate_message, view.messages))
    return request_of(messages, plan, entries=tuple(view.entries), tokens=tokens, **more)


def test_notes_do_not_give_way_to_a_long_turn() -> None:
    """They would be gone for good; the turn's results are clipped instead."""
    plan = noted(300)
    found = compressed(later([*talk(1), *tool_talk(14, chars=6_000)], plan))
    before, after = plan.summaries[0].text, summary_of(found).text
    assert found.tokens <= TARGET
    assert estimate_tokens(after) >= 0.9 * estimate_tokens(before)


def test_notes_are_not_halved_because_little_has_come() -> None:
    """A compaction of a view that is not full thins them a little at most."""
    plan = noted(300)
    found = compressed(later(talk(12, words=100), plan, trigger="manual"))
    before, after = plan.summaries[0].text, summary_of(found).text
    assert estimate_tokens(after) >= 0.75 * estimate_tokens(before)


def test_a_focus_reaches_the_model() -> None:
    """`/compress TOPIC` dwells on it."""
    writer = Writer(GOOD)
    compressed(request_of(talk(60), summarise=writer, trigger="manual", focus="order-17"))
    assert "order-17" in writer.prompts[0].split("BEGIN", maxsplit=1)[0]


# Summaries written ahead


def ahead(messages: Sequence[ChatMessage]) -> Summary:
    request = request_of(messages, summarise=Writer(GOOD), trigger="prepare")
    summary = ContextCompressor().prepare(request)
    assert summary is not None
    return summary


def test_a_summary_written_ahead_is_used_later() -> None:
    """Nobody is asked, and the tail is what it would be without; what lies between is told."""
    messages = talk(60)
    prepared = ahead(messages)
    longer = [*messages, *talk(5, start=100)]
    request = request_of(longer, summarise=Writer(), prepared=prepared)
    found = compressed(request)
    assert (found.level, found.failure) == ("summary", None)
    assert summary_of(found).source == "model"
    assert summary_of(found).text.startswith(f"{prepared.text}\n\n")
    start = protected_tail(request, Sizes(request))
    # One message earlier, so that no two neighbours have the same role.
    assert found.plan.tail_from == request.entries[start].seq - 1 > prepared.last_seq + 1
    assert summary_of(found).last_seq == found.plan.tail_from - 1


@pytest.mark.parametrize(("chars", "level"), [(3_000, "prune"), (500, "summary")])
def test_a_summary_that_is_there_is_used_where_pruning_leaves_much_more(
    chars: int, level: str
) -> None:
    """What stands for old results is read by every later request; nobody is asked for either."""
    messages = [user_message("Go."), *talk(1), *tool_talk(16 if chars == 3_000 else 90, chars)[1:]]
    limits = Limits(WINDOW, protect_last_n=4)
    request = request_of(messages, summarise=Writer(GOOD), trigger="prepare", limits=limits)
    prepared = ContextCompressor().prepare(request)
    assert prepared is not None
    found = compressed(request_of(messages, prepared=prepared, limits=limits))
    assert found.level == level


def test_a_summary_that_was_written_for_a_shorter_tail_decides_where_it_begins() -> None:
    """What it tells of need not be shown as well, as long as the newest messages are."""
    messages = talk(60)
    shorter = replace(Limits(WINDOW), target_ratio=0.1)
    request = request_of(messages, summarise=Writer(GOOD), trigger="prepare", limits=shorter)
    prepared = ContextCompressor().prepare(request)
    assert prepared is not None
    limits = replace(Limits(WINDOW), protect_last_n=4)
    found = compressed(request_of(messages, prepared=prepared, limits=limits))
    assert summary_of(found).text == prepared.text
    assert found.plan.tail_from == prepared.last_seq + 1


def test_the_share_of_facts_is_measured_for_a_summary_written_ahead() -> None:
    """A figure in the report is a measurement; this summary holds none of the facts."""
    prepared = replace(ahead(talk(60)), text="## Goal\nnothing of it")
    found = compressed(request_of([*talk(60), *talk(5)], prepared=prepared))
    assert found.retained_share != 1.0


def test_no_second_summary_is_paid_where_the_first_covers_too_little() -> None:
    """The extractor tells what came since; the view comes under its target all the same."""
    messages = talk(60)
    prepared = ahead(messages)
    longer = [*messages, *talk(60, start=100)]
    found = compressed(request_of(longer, summarise=(writer := Writer()), prepared=prepared))
    assert writer.prompts == []
    assert "the order has number 4711" in summary_of(found).text
    assert "order-105" in summary_of(found).text
    assert summary_of(found).last_seq > prepared.last_seq
    assert found.tokens <= TARGET


def test_what_was_written_ahead_of_the_head_is_no_use() -> None:
    """A summary that covers nothing of the middle; a new one is made."""
    prepared = Summary(GOOD, 1, 2, source="model")
    found = compressed(request_of(talk(60), prepared=prepared))
    assert found.level == "extract"


def test_there_is_nothing_to_prepare_without_a_middle() -> None:
    """No model is asked."""
    assert ContextCompressor().prepare(request_of(talk(2), summarise=Writer())) is None


def test_a_preparation_that_fails_says_so() -> None:
    """Unlike a compaction, it can wait."""
    with pytest.raises(SummaryFailed, match="down"):
        ContextCompressor().prepare(request_of(talk(60), summarise=Writer(SummaryFailed("down"))))


# Where a summary is not enough


def test_a_view_without_a_middle_is_clipped() -> None:
    """One exchange whose result is too large."""
    found = compressed(request_of([user_message("Go."), *group(0, "data " * 30_000)]))
    assert (found.level, found.retained_share) == ("clip_tail", None)
    assert not found.plan.compacted
    assert found.tokens <= TARGET


def test_a_view_that_cannot_be_clipped_is_left_alone() -> None:
    """Its one message is over the target, but it is the user's newest."""
    request = request_of([user_message("word " * 7_000)])
    assert TARGET < request.tokens < 18_000
    assert ContextCompressor(request.limits, {}).compress(request) is None


def test_large_messages_in_the_tail_are_clipped_behind_a_summary() -> None:
    """The newest messages stay, however large they were."""
    results = [message for n in range(10) for message in group(n, f"{n} " + "data " * 4_000)]
    messages = [*talk(40), user_message("Look."), *results]
    found = compressed(request_of(messages, summarise=Writer(GOOD)))
    assert found.level == "clip_tail"
    assert found.tokens <= TARGET
    assert all(found.plan.shows(seq) for seq in range(len(messages) - 19, len(messages) + 1))


def test_a_tiny_window_keeps_the_newest_message_whole() -> None:
    """It would fit alone, so everything else is clipped, and the view stays over its threshold."""
    request = request_of(talk(60), limits=Limits(1_024))
    found = compressed(request)
    assert found.level != "clip_newest"
    assert request.limits.threshold_tokens < found.tokens < 700
    assert request.entries[118].message in shown_by(request, found.plan)


@pytest.mark.parametrize("window", [2_048, 4_000])
def test_a_window_that_is_too_small_for_the_newest_messages_gets_fewer(window: int) -> None:
    """Twenty messages do not fit even when they are clipped."""
    request = request_of(talk(60), limits=Limits(window))
    found = compressed(request)
    assert found.tokens <= request.limits.threshold_tokens
    assert found.plan.shows(119)


def test_what_a_model_wrote_is_not_lost_where_fewer_messages_stay() -> None:
    """It is asked once, and what it said is in the summary of the smaller view."""
    writer = Writer(GOOD)
    found = compressed(request_of(talk(60), limits=Limits(4_000), summarise=writer))
    assert found.tokens <= 1_200
    assert len(writer.prompts) == 1
    assert "the order has number 4711" in summary_of(found).text


def test_messages_that_are_all_protected_make_way_where_clipping_is_not_enough() -> None:
    """Twenty messages have no middle; a window that is too small for them makes one."""
    found = compressed(request_of(talk(10, 300), limits=Limits(4_000)))
    assert found.tokens <= 1_200
    assert found.plan.compacted
    assert found.plan.shows(19)


def test_a_pinned_message_that_leaves_later_is_summarised() -> None:
    """The summary that stood around it does not cover it."""
    messages = talk(15, 300)
    messages[9] = assistant_message("the door code is 8472-XK")
    old = Summary("## Goal\nships", 3, 18, source="model")
    plan = ViewPlan(head_upto=2, summaries=(old,), pinned=(10,), tail_from=19)
    found = compressed(request_of(messages, plan, limits=Limits(4_000)))
    assert not found.plan.shows(10)
    assert "8472-XK" in summary_of(found).text


def test_a_turn_that_is_asked_again_is_summarised_again() -> None:
    """What stood for its hidden steps is gone, and nothing of it comes back."""
    messages = tool_talk(60)
    first = compressed(request_of(messages))
    hidden = first.plan.hiding(1, len(messages))
    assert first.plan.compacted
    request = request_of([*messages, *tool_talk(60)], hidden)
    assert request.entries[0].seq == len(messages) + 1
    later = compressed(request)
    assert summary_of(later).first_seq > len(messages)


def test_it_gets_smaller_each_time_and_then_stays() -> None:
    """Compaction after compaction converges: the same view is never compacted twice."""
    request = request_of(talk(60))
    found = compressed(request)
    again = request_of(talk(60), found.plan)
    assert ContextCompressor(again.limits, {}).compress(again) is None


def test_a_growing_conversation_stays_within_bounds() -> None:
    """Ten compactions, no rising floor, one summary, the same head."""
    messages, plan = talk(60), ViewPlan()
    sizes = []
    for n in range(10):
        found = compressed(request_of(messages, plan))
        plan = found.plan
        sizes.append(found.tokens)
        assert plan.head_upto == 2
        assert summary_of(found).first_seq == 3
        messages += talk(50 + n)
    assert max(sizes) <= TARGET
    assert all(later <= 1.6 * sooner for sooner, later in pairwise(sizes))
