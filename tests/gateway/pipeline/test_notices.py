"""What Parley itself says in a chat; reactions: in order within a chat, and best effort."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import get_args, get_type_hints
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typing_extensions import override

from adapters.messages import Address, MessageRef, Reaction
from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
    SpendLimitReached,
)
from agent.ports import CompactionStore
from agent.turn.loop import Outcome, TurnResult
from gateway.pipeline import notices
from gateway.pipeline.notices import AT_ONCE, WAITING, WAITING_IN_CHAT, ReactionQueue
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import model_call

OUTCOMES: tuple[Outcome, ...] = (
    "final_text",
    "partial",
    "empty",
    "refused",
    "endless",
    "max_iterations",
    "budget_exhausted",
)
SECRET = "sk-ant-12345"


def result(outcome: Outcome, text: str) -> TurnResult:
    return TurnResult(outcome, None, text, model_call())


@pytest.mark.parametrize(
    ("outcome", "text", "shown"),
    [
        ("final_text", "Hello.", "Hello."),
        ("max_iterations", "So far.", "So far."),
        ("partial", "One, two", "One, two" + notices.CUT),
        ("endless", "", notices.ENDLESS),
        ("endless", "ha ha", f"ha ha\n\n*[{notices.ENDLESS}]*"),
        ("empty", "", notices.EMPTY),
        ("empty", " \n", notices.EMPTY),
        ("partial", "", notices.EMPTY),
        ("refused", "", notices.REFUSED),
        ("refused", "I'd rather not.", f"I'd rather not.\n\n{notices.REFUSED}"),
    ],
)
def test_the_text_of_an_answer(outcome: Outcome, text: str, shown: str) -> None:
    """The model's words, and ours where they do not tell how the turn ended."""
    assert notices.answer_text(result(outcome, text)) == shown


@given(st.sampled_from(OUTCOMES), st.text())
def test_an_answer_is_never_empty(outcome: Outcome, text: str) -> None:
    """Whatever the model said, there is something to be shown that holds it."""
    shown = notices.answer_text(result(outcome, text))
    assert shown.strip()
    assert text.strip() in shown


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (ContextOverflow(SECRET), "/new"),
        (ContextOverflow(SECRET), "/compress"),
        (CredentialsRefused(SECRET), "operator"),
        (CreditUsedUp(SECRET), "add credit"),
        (ModelNotFound(SECRET), "operator"),
        (RateLimited(SECRET, 30), "/retry in a few minutes"),
        (RateLimited(SECRET, 3600), "/retry in about 60 minutes"),
        (ModelUnreachable(SECRET), "/retry"),
        (BadRequest(SECRET), "refuses the request. Send /retry"),
        (ModelRefused(SECRET), "declined"),
    ],
)
def test_a_failure_says_what_to_do(failure: ModelError, hint: str) -> None:
    """And nothing that the provider said."""
    text = notices.failure_text(failure)
    assert hint in text
    assert SECRET not in text


def test_a_refusal_that_may_be_of_the_size_advises_to_condense() -> None:
    """To ask the same again would not help."""
    failure = BadRequest(SECRET)
    failure.is_unexplained = True
    text = notices.failure_text(failure)
    assert ("/compress" in text, "/new" in text, "/retry" in text) == (True, True, False)


@pytest.mark.parametrize("failure", [None, BadRequest(SECRET), ModelUnreachable(SECRET)])
def test_a_fall_back_names_both_models_in_one_line(failure: ModelError | None) -> None:
    """And why, without a word of the provider's."""
    text = notices.fallback_text("vendor/kimi", "claude", failure)
    assert "`vendor/kimi`, did not answer: the " in text
    assert "`claude` answers" in text
    assert SECRET not in text
    assert "\n" not in text


def test_a_stopped_answer_is_marked() -> None:
    """What was written stays readable above the mark."""
    assert notices.stopped_text("Half an ans") == f"Half an ans\n\n{notices.STOPPED}"


def test_there_is_a_text_for_whatever_a_planner_tells() -> None:
    """`CompactionStore.tell` knows no other words."""
    told = get_args(get_type_hints(CompactionStore.tell)["what"])
    assert set(notices.CONTEXT) == set(told)


def test_a_clipped_message_is_said_to_be_kept() -> None:
    """Nothing is lost by it."""
    assert "stays on record" in notices.CONTEXT["clipped"]
    assert "shorter message" in notices.CONTEXT["floor"]


MIDNIGHT = datetime(2026, 9, 2, tzinfo=ZoneInfo("Europe/Berlin"))


def test_a_senders_own_budget_is_told() -> None:
    """With its amount, when it resets, and what to do then."""
    assert notices.failure_text(SpendLimitReached("sender", 2.0, MIDNIGHT)) == (
        "Today's budget for you is used up ($2.00). It resets at 00:00 Europe/Berlin;"
        " your message stays on record, send /retry then."
    )


def test_the_budget_of_all_is_told_without_its_amount() -> None:
    """That is the operator's business."""
    limit = SpendLimitReached("all", 123.0, MIDNIGHT.astimezone(UTC))
    assert notices.failure_text(limit).startswith(
        "Today's budget is used up. It resets at 22:00 UTC;"
    )


def test_a_budget_of_nothing_does_not_start_anew() -> None:
    """Waiting for tomorrow would not help."""
    text = notices.failure_text(SpendLimitReached("sender", 0.0, MIDNIGHT))
    assert "the operator can change that" in text
    assert "anew" not in text


# reactions

ACCOUNT = ("telegram", "default")


def question(ref: str | None, chat: str = "c1") -> MessageRef:
    return MessageRef(Address(*ACCOUNT, chat), "u1", ref)


@asynccontextmanager
async def at_work(adapter: RecordingAdapter) -> AsyncIterator[ReactionQueue]:
    """Reactions of one account that are being shown."""
    reactions = ReactionQueue({ACCOUNT: adapter})
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(reactions.run())
        yield reactions
        work.cancel()


class Moody(RecordingAdapter):
    """Never comes back from, or breaks at, messages of these names."""

    @override
    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        if question.message_ref == "hang":
            await asyncio.Event().wait()
        if question.message_ref == "break":
            raise ZeroDivisionError
        await super().acknowledge(question, mark)


async def test_the_marks_of_a_message_stay_in_order() -> None:
    """Received comes before answered."""
    adapter = RecordingAdapter()
    async with at_work(adapter) as reactions:
        reactions.show(question("m1"), "received")
        reactions.show(question("m1"), "answered")
        await adapter.watch.until(lambda: len(adapter.marks) == 2)
    assert adapter.marks == [("m1", "received"), ("m1", "answered")]


async def test_what_has_no_message_is_not_marked() -> None:
    """A button press is no message."""
    adapter = RecordingAdapter()
    async with at_work(adapter) as reactions:
        reactions.show(question(None), "received")
        reactions.show(question("m2"), "received")
        await adapter.watch.until(lambda: adapter.marks)
    assert adapter.marks == [("m2", "received")]


@pytest.mark.parametrize("trouble", ["hang", "break"])
async def test_a_failing_reaction_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The next one of the same chat is shown."""
    monkeypatch.setattr("gateway.pipeline.notices.REACTION_TIMEOUT_S", 0.01)
    adapter = Moody()
    async with at_work(adapter) as reactions:
        reactions.show(question(trouble), "received")
        reactions.show(question("m1"), "received")
        await adapter.watch.until(lambda: adapter.marks)
    assert adapter.marks == [("m1", "received")]


async def test_a_slow_chat_holds_up_no_other() -> None:
    """As many chats hang as reactions may be on their way, less one."""
    adapter = Moody()
    async with at_work(adapter) as reactions:
        for number in range(AT_ONCE - 1):
            reactions.show(question("hang", f"slow{number}"), "received")
            reactions.show(question("hang", f"slow{number}"), "received")
        for number in range(9):
            reactions.show(question(f"m{number}", "c1"), "received")
        await adapter.watch.until(lambda: len(adapter.marks) == 9)
    assert adapter.marks == [(f"m{number}", "received") for number in range(9)]


async def test_too_many_are_dropped() -> None:
    """Of one chat, and of all together; what a platform is too slow for does not pile up."""
    adapter = RecordingAdapter()
    reactions = ReactionQueue({ACCOUNT: adapter})
    with capture_logs() as dropped:
        for number in range(WAITING_IN_CHAT + 3):
            reactions.show(question(str(number)), "received")
        for number in range(WAITING + 5):
            reactions.show(question("m", f"c{number}"), "received")
    assert [line["event"] for line in dropped] == ["reaction_dropped"] * (3 + 6)
