"""The engine `lcm`: leaves, levels, pointers, and what it makes of other engines' plans."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, Limits, Node
from agent.engines.lcm import engine as lcm
from agent.engines.lcm import nodes
from agent.engines.lcm.engine import GOAL_SHARE, LcmEngine
from agent.engines.lcm.nodes import POINTER, Scribe, join_texts, pick_longest, split_text
from agent.engines.rounds import RoundsEngine
from agent.errors import SummaryFailed, ToolError
from agent.messages import ChatMessage, assistant_message, encode, user_message
from agent.plugins.contracts import find_problems
from agent.tokens import estimate_message
from agent.view.view import Edit, Entry, Summary, View, ViewPlan, render
from tests.agent.engines.views import conversation, request_of
from tests.agent.tools.doubles import MemoryArchive

WINDOW = 12_000
GOOD = "## Goal\nTo look.\n## Critical Context\nfile1.txt"


def engine(archive: MemoryArchive | None = None) -> LcmEngine:
    made = LcmEngine(Limits(WINDOW), {})
    if archive is not None:
        made.attach(archive)
    return made


def asked(rounds: int = 40, plan: ViewPlan | None = None, **more: Any) -> CompressionRequest:
    return request_of(conversation(rounds), WINDOW, plan, **more)


def found_of(request: CompressionRequest) -> Compressed:
    found = engine().compress(request)
    assert found is not None
    return found


def going_on(times: int, words: int = 60) -> tuple[list[Entry], ViewPlan, MemoryArchive]:
    """Return a conversation that was compacted so often, its plan and its nodes."""
    entries, plan, archive = conversation(30 * times, words), ViewPlan(), MemoryArchive()
    for n in range(1, times + 1):
        request = request_of(entries[: 120 * n], WINDOW, plan)
        found = engine(archive).compress(request)
        if found is not None:
            plan = found.plan
            archive.stored += found.nodes
    archive.rows = {seq: encode(message) for seq, message in entries}
    return entries, plan, archive


def test_below_the_target_nothing_is_done() -> None:
    """There is no cost without need."""
    assert engine().compress(asked(2)) is None


def test_the_oldest_messages_become_leaves() -> None:
    """As many as it takes; the newest stay as they are."""
    request = asked(24)
    found = found_of(request)
    assert find_problems(found.plan, request) == []
    assert found.tokens <= request.limits.target_tokens
    assert {node.level for node in found.nodes} == {0}
    assert all(node.tokens < node.source_tokens for node in found.nodes)
    assert [each.node for each in found.plan.summaries] == [node.number for node in found.nodes]


def test_a_compaction_goes_on_below_its_target() -> None:
    """What stays is read by every request until the next one."""
    request = asked(40)
    request = replace(request, limits=replace(request.limits, target_ratio=0.1, protect_last_n=2))
    goal = request.limits.threshold_tokens * GOAL_SHARE
    assert found_of(request).tokens <= 1.2 * goal < request.limits.target_tokens


def test_protected_messages_are_given_up_for_the_target_alone() -> None:
    """Where they alone are larger, as many of them go as it takes, and no more."""
    request = asked(28)
    request = replace(request, limits=replace(request.limits, protect_last_n=50))
    goal = request.limits.threshold_tokens * GOAL_SHARE
    assert goal < found_of(request).tokens <= request.limits.target_tokens


def test_leaves_are_condensed_by_level() -> None:
    """Every node stays within reach, and ranges have neither gaps nor overlaps."""
    _, plan, archive = going_on(12)
    levels = [each.level for each in plan.summaries]
    assert max(levels) >= 1
    spans = [(each.first_seq, each.last_seq) for each in plan.summaries]
    assert all(one[1] + 1 == two[0] for one, two in pairwise(spans))
    assert (spans[0][0], spans[-1][1]) == (plan.head_upto + 1, plan.tail_from - 1)
    reached = {each.node for each in plan.summaries}
    reached |= {child for node in archive.stored for child in node.children}
    assert reached == {node.number for node in archive.stored}


def set_fan_out(monkeypatch: pytest.MonkeyPatch, leaves: int) -> None:
    for module in (lcm, nodes):
        monkeypatch.setattr(module, "FAN_OUT", leaves)


def test_as_many_as_the_fan_out_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that is full becomes one node of the next."""
    set_fan_out(monkeypatch, 2)
    found = found_of(asked())
    assert any(node.children == (1, 2) and node.level == 1 for node in found.nodes)


def test_a_model_writes_details_first() -> None:
    """Its text is taken as it is."""
    found = found_of(asked(summarise=lambda _prompt, _tokens: GOOD))
    assert {node.source for node in found.nodes} == {"model"}
    assert (found.level, found.failure) == ("summary", None)


def test_a_text_that_is_too_long_is_asked_for_in_bullets() -> None:
    """Of half the length; the prompt says so."""
    prompts: list[str] = []

    def summarise(prompt: str, _max_tokens: int) -> str:
        prompts.append(prompt)
        return GOOD if "only bullets" in prompt else GOOD + " many words" * 900

    found = found_of(asked(summarise=summarise))
    assert found.level == "short_summary"
    assert {node.source for node in found.nodes} == {"model"}
    assert ["only bullets" in prompt for prompt in prompts[:2]] == [False, True]


def test_a_model_that_fails_is_asked_once() -> None:
    """The extractor writes every node, and the reason is told."""
    prompts: list[str] = []

    def summarise(prompt: str, _max_tokens: int) -> str:
        prompts.append(prompt)
        raise SummaryFailed("overloaded")

    found = found_of(asked(summarise=summarise))
    assert (len(prompts), found.failure, found.level) == (1, "overloaded", "extract")
    assert {node.source for node in found.nodes} == {"extract"}


def test_what_does_not_shrink_becomes_a_pointer() -> None:
    """A stretch of a few words has no summary that is shorter."""
    scribe = Scribe(asked())
    told = scribe.leaf([Entry(1, user_message("go on")), Entry(2, assistant_message("ok"))], 100)
    assert (told.source, told.text) == ("pointer", POINTER)
    told = scribe.condensed([Summary(POINTER, 1, 2), Summary(POINTER, 3, 4)], 100, 100)
    assert (told.source, told.text) == ("pointer", POINTER)


def test_a_prepared_leaf_is_used_without_a_call() -> None:
    """Nobody waits for a model where the next leaf is there."""
    request = asked(22, summarise=lambda _prompt, _tokens: GOOD)
    limits = replace(request.limits, threshold=request.tokens / WINDOW)
    request = replace(request, limits=limits)
    ahead = engine().prepare(request)
    assert ahead is not None

    def never(_prompt: str, _tokens: int) -> str:
        raise AssertionError("nobody asks")

    found = found_of(replace(request, summarise=never, prepared=ahead))
    assert 1 < len(found.nodes) <= 3
    assert (found.nodes[0].first_seq, found.nodes[-1].last_seq) == (
        ahead.first_seq,
        ahead.last_seq,
    )
    assert all(node.text in ahead.text for node in found.nodes)
    assert found.retained_share is None
    assert found.tokens <= 0.9 * request.limits.threshold_tokens
    assert found.level == "summary"
    assert [each for each in found.plan.edits if each.kind == "clip"] == []


def test_a_full_level_is_condensed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap that fills it waits for no model either."""
    set_fan_out(monkeypatch, 100)
    request = asked(28, summarise=lambda _prompt, _tokens: GOOD)
    before = found_of(request)
    set_fan_out(monkeypatch, len(before.nodes))
    later = request_of(
        conversation(48), WINDOW, before.plan, summarise=lambda _prompt, _tokens: GOOD
    )
    ahead = engine().prepare(later)
    assert ahead is not None
    assert ahead.first_seq == before.plan.summaries[0].first_seq

    def never(_prompt: str, _tokens: int) -> str:
        raise AssertionError("nobody asks")

    limits = replace(later.limits, threshold=later.tokens / WINDOW)
    swap = replace(later, summarise=never, prepared=ahead, limits=limits)
    found = found_of(swap)
    assert find_problems(found.plan, swap) == []
    assert [node.level for node in found.nodes] == [1, 0, 0]
    assert found.nodes[0].children == tuple(node.number for node in before.nodes)


@given(st.lists(st.tuples(st.integers(1, 9), st.text(max_size=30)), min_size=1, max_size=4))
def test_what_was_written_ahead_is_kept_as_one_text(said: list[tuple[int, str]]) -> None:
    """And taken apart again; what was no such text stays whole."""
    parts, first = [], 1
    for count, text in said:
        told = f"Told: {text}".strip()
        parts.append(Summary(told, first, first + count - 1, source="model"))
        first += count
    assert split_text(join_texts(parts)) == parts
    assert split_text(None) == []


def test_condensed_notes_hold_the_best_of_all() -> None:
    """Whole sentences, of both alike."""
    scribe, both = Scribe(asked()), []
    for first in (1, 41):
        numbers = range(first, first + 40)
        entries = [Entry(n, user_message(f"Crate {n} goes to dock {n}x.")) for n in numbers]
        both.append(Summary(scribe.leaf(entries, 400).text, first, first + 39))
    told = scribe.condensed(both, 100, 500).text.splitlines()
    lines = [line for line in told if line.startswith("#")]
    assert lines
    assert all(line in f"{both[0].text}\n{both[1].text}" for line in lines)


def test_a_prepared_summary_of_something_else_is_not_used() -> None:
    """A leaf begins where the frontier ends."""
    found = found_of(asked(prepared=Summary("Else.", 5, 9, source="model")))
    assert all(node.text != "Else." for node in found.nodes)


def test_without_a_usable_answer_nothing_is_prepared() -> None:
    """An extract is made when it is needed."""
    with pytest.raises(SummaryFailed):
        engine().prepare(asked(summarise=lambda _prompt, _tokens: ""))
    assert engine().prepare(asked(1)) is None


def test_large_content_is_shown_as_an_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the newest question; the original is named."""
    monkeypatch.setattr(lcm, "LARGE_TOKENS", 1_000)
    rows = "\n".join(f"{n},name {n},{n * n}" for n in range(3_000))
    messages = [user_message("hi"), assistant_message("Hello."), user_message(rows)]
    messages += [assistant_message("Read."), user_message("and now?")]
    entries = [Entry(seq, message) for seq, message in enumerate(messages, start=1)]
    found = engine().compress(request_of(entries, 20_000))
    assert found is not None
    assert found.plan.edits == (Edit(3, "outline"),)
    shown = render(found.plan, entries)[2]
    assert "message 3 of the transcript" in str(shown["content"])
    assert f"text, {len(rows):,} characters, 3,000 lines" in str(shown["content"])
    newest = request_of(entries[:3], 20_000, trigger="threshold")
    again = engine().compress(newest)
    assert again is None or all(edit.kind != "outline" for edit in again.plan.edits)


def test_a_summary_of_the_compressor_becomes_a_node() -> None:
    """Its text goes on standing there; what was pinned is told of in the next leaf."""
    before = asked()
    other = ContextCompressor(before.limits, {}).compress(before)
    assert other is not None
    entries = conversation(60)
    found = found_of(request_of(entries, WINDOW, other.plan))
    adopted = found.nodes[0]
    assert adopted.text == other.plan.summaries[0].text
    assert (adopted.first_seq, adopted.last_seq) == (
        other.plan.head_upto + 1,
        other.plan.tail_from - 1,
    )


def test_there_and_back_again() -> None:
    """lcm, the compressor, lcm: the old nodes stand under the summary that took them over."""
    _, plan, archive = going_on(2)
    limits = replace(Limits(WINDOW), protect_last_n=4)
    between = ContextCompressor(limits, {}).compress(
        request_of(conversation(70), WINDOW, plan, trigger="manual")
    )
    assert between is not None
    assert [each.node for each in between.plan.summaries] == [0]
    later = conversation(100)
    found = engine(archive).compress(request_of(later, WINDOW, between.plan))
    assert found is not None
    adopted = found.nodes[0]
    assert set(adopted.children) == {each.node for each in plan.summaries}
    assert adopted.number == max(node.number for node in archive.stored) + 1


def test_rounds_takes_over_too() -> None:
    """Its archive holds what the nodes said."""
    _, plan, _ = going_on(1)
    limits = Limits(WINDOW)
    taken = RoundsEngine(limits, {"min_retain_rounds": 2}).compress(
        request_of(conversation(45), WINDOW, plan)
    )
    assert taken is not None
    assert taken.nodes == ()


def test_after_new_numbers_go_on() -> None:
    """The new root shows no old node, and makes none that is known already."""
    entries, _, archive = going_on(1)
    last = max(node.number for node in archive.stored)
    fresh = ViewPlan(first_seq=5)
    found = engine(archive).compress(request_of(entries, WINDOW, fresh))
    assert found is not None
    assert min(node.number for node in found.nodes) == last + 1
    assert found.plan.summaries[0].first_seq >= 5


def test_manual_compaction_cuts_all_there_is() -> None:
    """Whoever asks for it gets it, also below the threshold."""
    found = found_of(asked(10, trigger="manual"))
    assert found.plan.tail_from > 20


def test_a_view_without_a_middle_is_clipped() -> None:
    """The ladder below is everybody's."""
    messages = [user_message("look"), assistant_message("x " * 4000), user_message("again")]
    entries = [Entry(seq, message) for seq, message in enumerate(messages, start=1)]
    found = engine().compress(request_of(entries, 4_000))
    assert found is not None
    assert (found.level, found.nodes) == ("clip_tail", ())


def test_passing_notes_are_left_out() -> None:
    """What was of use only while it was in view stands in no node."""
    entries = conversation(40)
    note = ChatMessage(role="user", content="Zanzibar note", synthetic=True, ephemeral=True)
    entries[8] = Entry(9, note)
    found = found_of(request_of(entries, WINDOW))
    assert all("Zanzibar" not in node.text for node in found.nodes)


def test_without_records_its_tools_say_so() -> None:
    """They are offered all the same: schemas must not change."""
    assert [schema.name for schema in engine().get_tool_schemas()] == [
        "lcm_grep",
        "lcm_describe",
        "lcm_expand",
    ]
    with pytest.raises(ToolError, match="cannot be read"):
        engine().handle_tool_call("lcm_grep", {"query": "tea"})
    told = engine(MemoryArchive({}, [NODE])).handle_tool_call("lcm_describe", {})
    assert told.startswith("node 1: level 0, messages 3 to 9")


NODE = Node(1, 0, 3, 9, "Goal: tea.", "extract", 4, 90)


def test_the_view_after_a_compaction_is_what_the_plan_says() -> None:
    """The planner measures what will be sent."""
    request = asked(recall="Look it up.")
    found = found_of(request)
    view = View("", found.plan, list(request.entries))
    total = sum(map(estimate_message, view.messages[1:]))
    assert abs(found.tokens - request.fixed_tokens - total) < 100
    assert found.plan.recall == "Look it up."


def test_what_tells_most_of_a_message_is_condensed_first() -> None:
    """So the beginning of a conversation, which was condensed before, does not fade alone."""

    def node(first: int, last: int, level: int, text: str) -> Summary:
        return Summary(text, first, last, node=first, level=level)

    old = [node(1, 40, 1, "x" * 400), node(41, 80, 1, "x" * 400)]
    new = [node(81, 90, 0, "x" * 300), node(91, 99, 0, "x" * 300)]
    assert pick_longest([*old, *new]) == slice(2, 4)
    assert pick_longest([*old, node(81, 99, 0, "x" * 300)]) == slice(0, 2)
    assert pick_longest([old[0], new[0]]) == slice(0, 2)
