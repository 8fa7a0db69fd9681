"""The meter: anchored and cold sizes, what it learns, and what it forgets."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.context import meter as meter_module
from agent.context.meter import Measure, ReportedUsage, TokenMeter
from agent.messages import ChatMessage, ToolSchema, Usage, assistant_message, user_message
from agent.tokens import estimate_message, estimate_messages, estimate_tokens, estimate_tools
from agent.view.view import Entry, View, ViewPlan
from tests.bench.estimates import SESSIONS, cold_errors, follow
from tests.bench.figures import percentile
from tests.support.shared import SHARED

MODEL = "claude-opus-5"
TOOL = ToolSchema("look", "Looks at something.", {"type": "object"})
LONG = user_message("some words that are said here " * 500)
IMAGE = ChatMessage(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}])
texts = st.text(max_size=30)


def view_of(*messages: ChatMessage, system: str = "Be kind.") -> View:
    """Return a view of messages whose seqs count from 1."""
    return View(system, ViewPlan(), [Entry(seq, m) for seq, m in enumerate(messages, 1)])


def meter_of(
    report: ReportedUsage | None = None, ratio: float = 1.0, model: str = MODEL
) -> TokenMeter:
    return TokenMeter(model, (TOOL,), ratio=ratio, report=report)


def estimated(*messages: ChatMessage) -> int:
    return estimate_messages(messages, MODEL)


def test_a_cold_view_is_estimated_as_a_whole() -> None:
    """System prompt, tools and messages, times k."""
    view = view_of(user_message("Hello there."))
    raw = estimate_messages(view.messages, MODEL) + estimate_tools([TOOL], MODEL)
    assert meter_of().measure(view) == Measure(raw, "estimated")
    assert meter_of(ratio=2.0).measure(view) == Measure(2 * raw, "estimated")


def test_the_fixed_part_is_system_prompt_and_tools() -> None:
    """In the scale of the measure."""
    view = view_of(LONG)
    meter = meter_of(ratio=2.0)
    fixed = meter.fixed_tokens(view.messages[0])
    assert fixed == meter.measure(view_of()).tokens
    assert fixed + meter.estimate(LONG) == meter.measure(view).tokens


def test_what_was_reported_is_the_measure_until_something_is_added() -> None:
    """Prompt and answer; nothing of it is estimated again."""
    view = view_of(user_message("hi"), assistant_message("hello"))
    assert meter_of(ReportedUsage(5000, 3, 2)).measure(view) == Measure(5003, "reported")


def test_an_answer_that_is_not_added_yet_counts_as_reported() -> None:
    """Between a report and the recording of its answer."""
    assert meter_of(ReportedUsage(5000, 300, 2)).measure(view_of(LONG)).tokens == 5300


def test_what_was_added_since_is_estimated() -> None:
    """Times k, however many messages."""
    added = [user_message("one"), user_message("two, and a bit more")]
    view = view_of(user_message("hi"), assistant_message("hello"), *added)
    measure = meter_of(ReportedUsage(5000, 3, 2), ratio=1.5).measure(view)
    assert measure == Measure(5003 + -(-estimated(*added) * 3 // 2), "reported")


@pytest.mark.parametrize("seqs", [[3, 4], [1, 4], []])
def test_a_report_of_another_view_is_no_anchor(seqs: list[int]) -> None:
    """Its answer is not in the view: a reset or a retry came between."""
    view = View("", ViewPlan(), [Entry(seq, LONG) for seq in seqs])
    assert meter_of(ReportedUsage(90_000, 3, 2)).measure(view).source == "estimated"


def test_forgetting_the_report_makes_the_next_measure_cold() -> None:
    """What was learned stays."""
    meter = meter_of(ReportedUsage(5000, 3, 2), ratio=1.5)
    meter.forget_report()
    assert meter.measure(view_of(LONG, LONG)).source == "estimated"
    assert meter.ratio == 1.5


def test_thoughts_that_are_not_sent_back_are_not_counted() -> None:
    """A short answer after 20,000 tokens of hidden reasoning."""
    view = view_of(user_message("hi"), assistant_message("Yes."))
    tokens = meter_of(ReportedUsage(5000, 20_000, 2)).measure(view).tokens
    assert 5000 + estimated(assistant_message("Yes.")) <= tokens < 5200


def test_thoughts_that_are_sent_back_are_counted() -> None:
    """Signed thinking is part of the next prompt, reported or estimated."""
    thought: dict[str, Any] = {"type": "thinking", "thinking": "hmm " * 900, "signature": "A" * 99}
    answer = assistant_message("Yes.") | {"opaque": {"anthropic": [thought]}}
    view = view_of(user_message("hi"), answer)
    assert meter_of(ReportedUsage(5000, 950, 2)).measure(view).tokens == 5950
    in_thought = estimate_tokens("hmm " * 900, MODEL)
    assert meter_of().estimate(answer) == estimated(assistant_message("Yes.")) + in_thought


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_details": [{"type": "reasoning.text", "text": "hmm " * 900}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hmm " * 900}]},
        {"reasoning_field": "reasoning_content"},
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "hmm " * 900, "signature": None},
                {"type": "reasoning.encrypted", "data": "A" * 900, "summary": None},
            ]
        },
    ],
    ids=["text", "summary", "field", "encrypted"],
)
def test_reasoning_that_servers_want_back_is_counted(fields: dict[str, Any]) -> None:
    """What stands in it in clear; the size of what is encrypted is not known."""
    answer = assistant_message("Yes.")
    answer["reasoning"] = "hmm " * 900
    answer["opaque"] = {"openai": {"origin": "host/model", **fields}}
    in_thought = estimate_tokens("hmm " * 900, MODEL)
    assert meter_of().estimate(answer) == estimated(assistant_message("Yes.")) + in_thought


def test_reasoning_that_stays_behind_is_not_counted() -> None:
    """Only what is kept for the server goes back to it."""
    answer = assistant_message("Yes.")
    answer["reasoning"] = "hmm " * 900
    answer["opaque"] = {"openai": {"origin": "host/model", "extra_content": {"a": "x" * 900}}}
    assert meter_of().estimate(answer) == estimated(assistant_message("Yes."))


def test_a_report_moves_k_towards_what_the_growth_was() -> None:
    """By more than half of the way, where the sample is larger than the inertia."""
    raw = 4 * estimated(LONG)
    meter = meter_of(ReportedUsage(5000, 3, 2))
    view = view_of(user_message("hi"), assistant_message("hello"), LONG, LONG, LONG, LONG)
    meter.note(Usage(input_tokens=5003 + int(0.7 * raw), output_tokens=9), view, 7)
    assert 0.7 < meter.ratio < 0.85
    assert meter.report == ReportedUsage(5003 + int(0.7 * raw), 9, 7, MODEL)


def test_the_first_report_teaches_from_the_whole_view() -> None:
    """Cached tokens are part of what was read."""
    view = view_of(LONG, LONG, LONG)
    meter = meter_of()
    usage = Usage(1, 9, 2 * meter.measure(view).tokens - 1)
    meter.note(usage, view, 4)
    assert 1.4 < meter.ratio < 2.0


def test_k_converges() -> None:
    """After a few reports the measure is what will be reported."""
    meter, view, tokens = meter_of(ReportedUsage(1000, 0, 1)), view_of(LONG), 1000
    for seq in range(2, 9):
        view.extend([Entry(seq, LONG)])
        tokens += int(1.3 * estimated(LONG))
        meter.note(Usage(input_tokens=tokens), view, seq)
    view.extend([Entry(9, LONG)])
    expected = tokens + 1.3 * estimated(LONG)
    assert meter.measure(view).tokens == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("added", "prompt_tokens"),
    [
        (user_message("ok"), 5100),
        (LONG, 4000),
        (IMAGE, 5303),
    ],
)
def test_samples_that_say_nothing_leave_k_alone(added: ChatMessage, prompt_tokens: int) -> None:
    """Overheads of tiny messages, a view that shrank, images at their flat cost."""
    meter = meter_of(ReportedUsage(5000, 3, 2))
    view = view_of(user_message("hi"), assistant_message("hello"), added)
    meter.note(Usage(input_tokens=prompt_tokens, output_tokens=5), view, 4)
    assert (meter.ratio, meter.report) == (1.0, ReportedUsage(prompt_tokens, 5, 4, MODEL))


@pytest.mark.parametrize(("reporter", "learns"), [("gpt-4o", False), (MODEL, True), (None, True)])
def test_growth_between_two_models_is_not_learned(reporter: str | None, learns: bool) -> None:
    """Another tokenizer counted what lies before: the sample is the view as a whole."""
    view = view_of(*[LONG] * 4, assistant_message("hello"), *[LONG] * 4)
    meter = meter_of(ReportedUsage(10, 3, 5, reporter))
    meter.note(Usage(input_tokens=meter_of().measure(view).tokens), view, 10)
    assert (meter.ratio > 1.2, meter.ratio == 1.0) == (learns, not learns)
    assert meter.report is not None
    assert meter.report.model == MODEL


def test_a_cold_view_with_images_teaches_nothing() -> None:
    """Their flat cost would outweigh the text."""
    meter = meter_of()
    meter.note(Usage(input_tokens=9000), view_of(LONG, IMAGE), 3)
    assert meter.ratio == 1.0


def test_a_call_without_report_changes_nothing() -> None:
    """Some servers send zeros."""
    meter = meter_of(ReportedUsage(5000, 3, 2))
    meter.note(Usage(output_tokens=7), view_of(LONG, LONG, LONG), 4)
    assert (meter.ratio, meter.report) == (1.0, ReportedUsage(5000, 3, 2))


@example([1, 1, 1], 1.0)
@example([10**6, 10**6], 1.0)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.floats(0.01, 9))
def test_k_stays_within_its_bounds(reported: list[int], ratio: float) -> None:
    """Whatever is stored or reported."""
    meter, view = meter_of(ratio=ratio), view_of(LONG)
    for seq, tokens in enumerate(reported, 2):
        meter.note(Usage(input_tokens=tokens), view, seq)
        view.extend([Entry(seq, LONG)])
        assert 0.5 <= meter.ratio <= 2.0
        assert meter.measure(view).tokens >= 0


@given(st.lists(texts, max_size=6), texts, st.floats(0.5, 2))
def test_a_view_that_grows_is_never_smaller(said: list[str], more: str, ratio: float) -> None:
    """With a report and without; by the estimate of what was added, within the rounding."""
    messages = [user_message(text) for text in said]
    for report in (None, ReportedUsage(5000, 3, 1)):
        meter = meter_of(report, ratio)
        before = meter.measure(view_of(LONG, *messages)).tokens
        after = meter.measure(view_of(LONG, *messages, user_message(more))).tokens
        assert after - before == pytest.approx(meter.estimate(user_message(more)), abs=1)


def test_a_message_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring again costs no estimate of what was there; equal messages are others."""
    seen: list[ChatMessage] = []

    def counting(message: ChatMessage, model: str) -> int:
        seen.append(message)
        return 7

    monkeypatch.setattr(meter_module, "estimate_message", counting)
    meter, view = meter_of(), view_of(LONG)
    assert meter.measure(view) == meter.measure(view)
    view.extend([Entry(2, LONG.copy())])
    meter.measure(view)
    assert len(seen) == 3


def test_the_memory_of_estimates_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may ask for any number of candidates."""
    monkeypatch.setattr(meter_module, "KNOWN_MESSAGES", 10)
    meter = meter_of()
    for n in range(25):
        message = user_message(f"candidate {n} " * n)
        assert meter.estimate(message) == estimate_message(message, MODEL)
    assert len(meter._known) <= 10


def test_openai_models_are_counted() -> None:
    """The scale is their tokenizer's."""
    assert meter_of(model="gpt-4").estimate(user_message("hello world")) == 2 + 4


if SHARED:

    @pytest.mark.parametrize("name", SESSIONS)
    def test_measures_are_near_to_what_was_billed(name: str) -> None:
        """Every prompt of a real session, k learned on the way; 430 and more of them."""
        followed = follow(SHARED / "pi" / f"{name}.jsonl")
        assert len(followed.anchored) > 420
        assert percentile(followed.anchored, 0.5) <= 0.0005
        assert percentile(followed.anchored, 0.95) <= 0.0025
        assert max(followed.anchored) <= 0.06
        assert max(followed.unlearned) <= 0.12

    @pytest.mark.parametrize("name", SESSIONS)
    def test_cold_estimates_are_near_to_what_was_billed(name: str) -> None:
        """The median, with k = 1 and without any report but the first."""
        assert percentile(cold_errors(SHARED / "pi" / f"{name}.jsonl"), 0.5) <= 0.12
