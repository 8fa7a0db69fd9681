"""Spans: one tree per message, whoever records it."""

import asyncio
from collections.abc import Iterator

import pytest

from agent import spans
from agent.spans import Span


class Kept:
    """A recorder that keeps what it hears."""

    exports = True

    def __init__(self, seed: bytes = b"") -> None:
        self.seed = seed
        self.spans: list[Span] = []

    def ended(self, span: Span) -> None:
        """Keep a span."""
        self.spans.append(span)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Record what the test does."""
    recorder = Kept()
    token = spans.RECORDER.set(recorder)
    yield recorder
    spans.RECORDER.reset(token)


def test_spans_stand_below_the_one_around_them(kept: Kept) -> None:
    """A span belongs to the trace of the one around it; the first stands below the root."""
    trace = spans.trace_of(7, 3)
    with spans.span("turn", trace=trace) as turn, spans.span("hygiene") as inner:
        inner.note(tokens=5, nothing=None)
    assert [each.name for each in kept.spans] == ["hygiene", "turn"]
    assert turn.parent == spans.root_of(trace)
    assert (inner.parent, inner.trace) == (turn.id, trace)
    assert inner.attributes == {"tokens": 5, "nothing": None}


def test_the_trace_of_a_message_is_the_same_after_a_restart() -> None:
    """Conversation and seq say which it is; another installation has others."""
    assert spans.trace_of(7, 3) == spans.trace_of(7, 3) != spans.trace_of(7, 4)
    before = spans.trace_of(7, 3)
    token = spans.RECORDER.set(Kept(b"another"))
    try:
        assert spans.trace_of(7, 3) != before
    finally:
        spans.RECORDER.reset(token)


def test_a_root_is_the_parent_that_its_children_name(kept: Kept) -> None:
    """It is recorded after them, with the time at which its message came in."""
    trace = spans.trace_of(1, 1)
    spans.record("queued", trace, 1000.0, platform="web")
    spans.record_root(trace, 1000.0, outcome="sent")
    queued, root = kept.spans
    assert queued.parent == root.id == spans.root_of(trace)
    assert root.parent is None
    assert root.begun_ns == 1_000_000_000_000
    assert root.duration_s > 0


def test_what_ends_a_span_is_named_by_its_class_alone(kept: Kept) -> None:
    """The text of an error may be what somebody wrote."""
    with pytest.raises(LookupError), spans.span("tool"):
        raise LookupError("a secret word")
    (failed,) = kept.spans
    assert failed.error == "LookupError"
    assert "secret" not in repr(failed)


def test_nobody_listens() -> None:
    """Then nothing is kept, and what notes attributes may go on."""
    with spans.span("turn", trace="0" * 31 + "1", platform="web"):
        spans.note(outcome="final_text")
    spans.record("queued", "", 0.0)
    assert spans.RECORDER.get() is None


async def test_tasks_record_below_the_span_in_which_they_began(kept: Kept) -> None:
    """As with the fields of log lines."""

    async def work() -> None:
        with spans.span("tool"):
            await asyncio.sleep(0)

    with spans.span("turn", trace=spans.trace_of(1, 1)) as turn:
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(work())
    assert [each.parent for each in kept.spans[:2]] == [turn.id, turn.id]


def test_a_line_can_name_the_open_span(kept: Kept) -> None:
    """Where somebody outside has it; else its id is of no use."""
    assert spans.exported_id() is None
    with spans.span("turn") as here:
        assert spans.exported_id() == f"{here.id:016x}"
        kept.exports = False
        assert spans.exported_id() is None
