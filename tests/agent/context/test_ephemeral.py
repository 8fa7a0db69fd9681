"""What is only told beside a question: in view until it is compacted, in no summary."""

from collections.abc import Sequence

import pytest

from agent.context.boundaries import Newest, find_boundaries, leaving
from agent.context_compressor import ContextCompressor, facts_of, uncovered_messages
from agent.context_engine import CompressionRequest, Limits
from agent.engines.rounds import old_rounds
from agent.messages import ChatMessage, assistant_message, context_message, user_message
from agent.view.view import Entry, ViewPlan
from tests.agent.context.test_boundaries import request_of

TOLD = "zanzibar-4711.txt"


def entries_of(turns: int) -> tuple[Entry, ...]:
    """Return an example, and turns of context, question and answer."""
    rows: list[ChatMessage] = [
        context_message("2+2?"),
        ChatMessage(role="assistant", content="4.", synthetic=True, ephemeral=True),
    ]
    for n in range(turns):
        question = user_message(f"request {n} " * 40)
        rows += [
            context_message(f"{TOLD} {n} " * 20),
            question,
            assistant_message(f"did {n} " * 40),
        ]
    return tuple(Entry(n, row) for n, row in enumerate(rows, 1))


def said(entries: Sequence[Entry]) -> list[str]:
    """Return how messages begin."""
    return [str(entry.message["content"])[:9] for entry in entries]


def test_the_head_is_the_first_exchange_of_people() -> None:
    """The example and the context before it stay with it."""
    entries = entries_of(6)
    cut = find_boundaries(request_of(entries), [len(entries) - 4])
    assert cut is not None
    assert said(entries[: cut.head_end])[-2:] == ["request 0", "did 0 did"]
    assert cut.head_end == 5


def test_only_what_was_said_is_summarised() -> None:
    """Neither model nor extractor gets to read the rest, and no fact of it is missed."""
    entries = entries_of(6)
    request = request_of(entries)
    cut = find_boundaries(request, [len(entries) - 1])
    assert cut is not None
    assert not any("zanzibar" in text for text in said(uncovered_messages(request, cut)))
    assert len(cut.evicted) > len(leaving(entries, cut)) > 0
    assert not any("zanzibar" in fact for fact in facts_of(request, cut))


def test_a_cut_takes_out_something_that_was_said() -> None:
    """There is nothing to summarise where only context would leave."""
    entries = (*entries_of(1), Entry(6, context_message("c")), Entry(7, user_message("two")))
    cut = find_boundaries(request_of(entries), [6])
    assert cut is not None
    assert said(leaving(entries, cut)) == ["did 0 did"]


def test_an_example_is_no_answer() -> None:
    """It is never pinned as the newest answer, nor its question as the newest question."""
    assert Newest.of(entries_of(0)) == Newest(-1, -1)


def test_the_whole_view_is_compacted() -> None:
    """The newest question stays, the context of older ones goes, and no summary names it."""
    request = CompressionRequest(
        plan=ViewPlan(),
        entries=entries_of(40),
        limits=Limits(context_length=8_000, threshold=0.5, target_ratio=0.2, protect_last_n=2),
        tokens=12_000,
        fixed_tokens=100,
        trigger="threshold",
        estimate=lambda message: len(str(message["content"])) // 3,
    )
    found = ContextCompressor(request.limits, {}).compress(request)
    assert found is not None
    assert found.plan.summaries
    assert "zanzibar" not in found.plan.summaries[0].text
    newest = request.entries[Newest.of(request.entries).user]
    assert found.plan.shows(newest.seq)


@pytest.mark.parametrize("turns", [3, 12])
def test_rounds_keep_the_example(turns: int) -> None:
    """Their head is the first question too, and only what was said is archived."""
    entries = entries_of(turns)
    cut = old_rounds(request_of(entries), 2)
    assert cut is not None
    assert said(entries[: cut.head_end])[-1] == "request 0"
    assert not any("zanzibar" in text for text in said(leaving(entries, cut)))
