"""A call of a model as a span, without texts; and the watch over the beginnings of requests."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent import spans
from agent.errors import ModelUnreachable
from agent.messages import (
    ChatMessage,
    ToolSchema,
    Usage,
    assistant_message,
    decode,
    encode,
    user_message,
)
from agent.models.base import (
    MODEL,
    PURPOSE,
    ModelRequest,
    Prefix,
    PrefixWatch,
    report_stale_thinking,
    report_unexpected_move,
    traced_call,
)
from agent.models.catalog import ModelFacts
from agent.prompt_caching import CacheLayout
from agent.spans import Span
from tests.support.conversations import conversation_of
from tests.support.scripted_model import ScriptedModel


class Kept:
    """A recorder that keeps what it hears."""

    exports = True
    seed = b""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def ended(self, span: Span) -> None:
        """Keep a span."""
        self.spans.append(span)


class Shown:
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, delta: str) -> None:
        """Append."""
        self.text += delta

    def restart(self) -> None:
        """Forget."""
        self.text = ""


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Record what the test does."""
    recorder = Kept()
    token = spans.RECORDER.set(recorder)
    yield recorder
    spans.RECORDER.reset(token)


REQUEST = ModelRequest([user_message("the secret question")], max_output_tokens=9, conversation="7")


async def test_a_call_is_a_span_in_the_words_of_the_conventions(kept: Kept) -> None:
    """Who was asked, what it took, when the first text came; the answer goes on as it is."""
    shown = Shown()
    completion = await traced_call(ScriptedModel(["the secret answer"]), REQUEST, shown)
    (call,) = kept.spans
    told = call.attributes
    assert shown.text == "the secret answer"
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "scripted")
    assert (told[MODEL], told["gen_ai.conversation.id"]) == ("scripted", "7")
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert completion.usage is not None
    assert told["gen_ai.usage.input_tokens"] == completion.usage.prompt_tokens > 0
    assert told["gen_ai.usage.output_tokens"] == completion.usage.output_tokens
    assert 0 <= float(str(told["parley.first_token_s"])) <= call.duration_s
    assert "secret" not in repr(call)


async def test_a_failed_call_is_a_span_with_its_error(kept: Kept) -> None:
    """Providers repeat what they were sent: the class of the error is all that is told."""
    failing = ScriptedModel([ModelUnreachable("no route to the secret host")])
    with pytest.raises(ModelUnreachable):
        await traced_call(failing, REQUEST, Shown(), "summary")
    (call,) = kept.spans
    assert call.error == "ModelUnreachable"
    assert call.attributes[PURPOSE] == "summary"
    assert call.attributes["parley.first_token_s"] is None
    assert "secret" not in repr(call)


async def test_cached_tokens_are_told_apart(kept: Kept) -> None:
    """The input counts them all, as the conventions say."""
    step = await ScriptedModel(["yes"]).complete(REQUEST, Shown())
    usage = Usage(10, 5, cache_read_tokens=70, cache_write_5m_tokens=20)
    model = ScriptedModel([replace(step, usage=usage)])
    await traced_call(model, REQUEST, Shown())
    told = kept.spans[0].attributes
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.cache_read.input_tokens"]) == (
        100,
        70,
    )
    assert told["gen_ai.usage.cache_creation.input_tokens"] == 20


SYSTEM = ChatMessage(role="system", content="You help.")
CLOCK = ToolSchema("clock", "Tells the time.", {"type": "object", "properties": {}})
ASK = [SYSTEM, user_message("hello")]
MORE = [*ASK, assistant_message("hi"), user_message("and?")]
WRITTEN = Usage(input_tokens=10, cache_write_5m_tokens=50_000)


@dataclass
class Model:
    """What the watch asks of a model."""

    name: str = "claude-sonnet-5"
    cache_layout: CacheLayout | None = "native"
    facts: ModelFacts = field(default_factory=lambda: ModelFacts("claude-sonnet-5"))

    @property
    def label(self) -> str:
        return self.name


SONNET: Any = Model()
OTHER: Any = Model("claude-opus-5")
PLAIN: Any = Model("gpt-6.1-terra", None)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


@pytest.fixture
def _production(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must not happen is logged here, as in production."""
    monkeypatch.setattr("agent.models.base.report_unexpected_move", report_unexpected_move)
    monkeypatch.setattr("agent.models.base.report_stale_thinking", report_stale_thinking)


def asked(
    messages: list[ChatMessage],
    usage: Usage | None = WRITTEN,
    model: Any = SONNET,
    tools: tuple[ToolSchema, ...] = (CLOCK,),
) -> PrefixWatch:
    """Return the watch of a turn whose first request was answered."""
    watch = PrefixWatch()
    watch.note(watch.take(messages, tools, model), usage)
    return watch


def next_turn(watch: PrefixWatch) -> PrefixWatch:
    """Return the watch of a turn that knows no more than what was stored."""
    return PrefixWatch(watch.last)


# take


def test_a_request_that_only_grew_is_in_order(logs: list[Any]) -> None:
    """Appending messages reports nothing, in the same turn and in the next one."""
    watch = asked(ASK)
    watch.take(MORE, (CLOCK,), SONNET)
    next_turn(watch).take([decode(encode(message)) for message in MORE], (CLOCK,), SONNET)
    assert logs == []


def test_the_same_request_again_is_in_order(logs: list[Any]) -> None:
    """An attempt after a failure sends what was sent before."""
    watch = asked(ASK)
    assert watch.take(MORE, (CLOCK,), SONNET).digest == watch.take(MORE, (CLOCK,), SONNET).digest
    assert logs == []


def test_a_fingerprint_names_the_request() -> None:
    """It holds the model, how many messages there were, and when."""
    started = time.time()
    prefix = PrefixWatch().take(ASK, (CLOCK,), SONNET)
    assert (prefix.model, prefix.messages, prefix.tokens) == ("claude-sonnet-5", 2, 0)
    assert started <= prefix.at <= time.time()


@pytest.mark.parametrize("key", ["content", "tool_calls", "tool_call_id", "opaque"])
def test_what_goes_out_is_part_of_the_fingerprint(key: str) -> None:
    """Another content, call, id or signed thought is another prefix."""
    changed = [SYSTEM, {**ASK[1], key: [{"type": "text", "text": "x"}]}]
    watch = PrefixWatch()
    assert watch.take(ASK, (), SONNET).digest != watch.take(changed, (), SONNET).digest  # type: ignore[arg-type]


def test_what_stays_here_is_no_part_of_it() -> None:
    """Readable reasoning and Parley's own marks never go out."""
    kept = [SYSTEM, {**ASK[1], "synthetic": True, "reasoning": "hm"}]
    watch = PrefixWatch()
    assert watch.take(ASK, (), SONNET).digest == watch.take(kept, (), SONNET).digest  # type: ignore[arg-type]


def test_an_unexpected_move_fails_every_test() -> None:
    """The fixture of all tests turns the report into a failure."""
    with pytest.raises(AssertionError, match="moved behind 1 messages; 50000 tokens"):
        asked(ASK).take([SYSTEM, user_message("hullo"), *MORE[2:]], (CLOCK,), SONNET)


@pytest.mark.usefixtures("_production")
@pytest.mark.parametrize(
    ("messages", "tools", "stayed"),
    [
        ([SYSTEM, user_message("hullo"), *MORE[2:]], (CLOCK,), 1),
        ([{**SYSTEM, "content": "You hinder."}, *MORE[1:]], (CLOCK,), 0),
        (MORE, (), 0),
        ([SYSTEM], (CLOCK,), 1),
    ],
)
def test_an_unexpected_move_is_a_warning(
    messages: list[ChatMessage], tools: tuple[ToolSchema, ...], stayed: int, logs: list[Any]
) -> None:
    """It says how many messages are as they were, and what the provider has to read anew."""
    asked(ASK).take(messages, tools, SONNET)
    assert logs == [
        {
            "event": "cache_prefix_moved",
            "log_level": "warning",
            "reason": "unexpected",
            "messages": stayed,
            "tokens": 50_000,
        }
    ]


@pytest.mark.usefixtures("_production")
def test_between_turns_it_is_not_known_where(logs: list[Any]) -> None:
    """Only the fingerprint of the last turn's request is stored."""
    next_turn(asked(ASK)).take([SYSTEM, user_message("hullo")], (CLOCK,), SONNET)
    assert [entry["messages"] for entry in logs] == [None]


def test_an_announced_move_has_its_reason(logs: list[Any]) -> None:
    """A step that moves the prefix says so beforehand; that is told once, whatever fails then."""
    watch = asked(ASK)
    watch.expect_move("compaction:threshold")
    for _ in range(2):
        watch.take([SYSTEM, user_message("summary")], (CLOCK,), SONNET)
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [
        ("info", "compaction:threshold")
    ]


def test_a_reason_covers_one_answered_request() -> None:
    """After the request that moved was answered, the next one must not move again."""
    watch = asked(ASK)
    watch.expect_move("compaction:threshold")
    short = [SYSTEM, user_message("summary")]
    watch.note(watch.take(short, (CLOCK,), SONNET), WRITTEN)
    assert watch.moving is None
    with pytest.raises(AssertionError, match="moved behind 1 messages"):
        watch.take(MORE, (CLOCK,), SONNET)


def test_another_model_is_told_once(logs: list[Any]) -> None:
    """Caches are kept for each model: what another one got is not compared."""
    watch = asked(ASK)
    for _ in range(2):
        watch.take([SYSTEM, user_message("other")], (CLOCK,), OTHER)
    watch.take(MORE, (CLOCK,), SONNET)
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [("info", "model")]


SIGNED = {"anthropic": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
THOUGHT = ChatMessage(role="assistant", content="hi", opaque=SIGNED)
OTHERS = ChatMessage(
    role="assistant", content="hi", reasoning="hm", opaque={"openai": {"reasoning_content": "hm"}}
)


def moved(reason: str, *answers: ChatMessage, same_turn: bool = True) -> PrefixWatch:
    """Return a watch that has seen a move for this reason, with these messages in what goes out."""
    watch = asked(ASK) if same_turn else next_turn(asked(ASK))
    watch.expect_move(reason)
    watch.take([SYSTEM, user_message("summary"), *answers, user_message("and?")], (CLOCK,), SONNET)
    return watch


def events_of(logs: list[Any]) -> list[str]:
    """Return the names of what was logged, in order."""
    return [entry["event"] for entry in logs]


BINDING = ["compaction:threshold", "compaction:fallback", "compression"]


@pytest.mark.parametrize("reason", BINDING)
def test_thinking_that_stands_behind_something_new_fails_every_test(reason: str) -> None:
    """The newest models bind it to the exact conversation before it and refuse it there."""
    with pytest.raises(AssertionError, match="signed thinking"):
        moved(reason, THOUGHT)


@pytest.mark.usefixtures("_production")
@pytest.mark.parametrize("same_turn", [True, False])
def test_thinking_that_stands_behind_something_new_is_a_warning(
    same_turn: bool, logs: list[Any]
) -> None:
    """Also where only the fingerprint of the last turn's request is known."""
    moved("compaction:threshold", THOUGHT, same_turn=same_turn)
    stale = [entry for entry in logs if entry["event"] == "stale_thinking_sent"]
    assert stale == [{"event": "stale_thinking_sent", "log_level": "warning"}]


@pytest.mark.usefixtures("_production")
@pytest.mark.parametrize("reason", BINDING)
def test_what_is_not_signed_may_stay(reason: str, logs: list[Any]) -> None:
    """Answers without thinking, and what other servers want back."""
    moved(reason, assistant_message("hi"), OTHERS)
    assert events_of(logs) == ["cache_prefix_moved"]


@pytest.mark.usefixtures("_production")
@pytest.mark.parametrize("reason", ["tools", "instructions", "model", "tools+model"])
def test_thinking_is_not_bound_to_what_stands_before_the_messages(
    reason: str, logs: list[Any]
) -> None:
    """Another system prompt or other tools leave the conversation as it was."""
    moved(reason, THOUGHT)
    assert events_of(logs) == ["cache_prefix_moved"]


@pytest.mark.usefixtures("_production")
def test_thinking_in_a_conversation_that_only_grows_is_in_order(logs: list[Any]) -> None:
    """It goes out again with every request, as the provider wants it."""
    watch = asked(ASK)
    watch.note(watch.take([*ASK, THOUGHT, user_message("and?")], (CLOCK,), SONNET), WRITTEN)
    watch.take([*ASK, THOUGHT, user_message("and?"), THOUGHT], (CLOCK,), SONNET)
    assert "cache_prefix_moved" not in events_of(logs)
    assert "stale_thinking_sent" not in events_of(logs)


@pytest.mark.usefixtures("_production")
def test_thinking_before_a_move_is_in_order(logs: list[Any]) -> None:
    """What stands before it has not changed."""
    watch = asked([*ASK, THOUGHT, user_message("and?")])
    watch.expect_move("compaction:fallback")
    watch.take([*ASK, THOUGHT, user_message("shorter")], (CLOCK,), SONNET)
    assert events_of(logs) == ["cache_prefix_moved"]


@pytest.mark.usefixtures("_production")
def test_thinking_behind_a_move_is_in_order(logs: list[Any]) -> None:
    """Once a request has been answered, what is thought from then on is bound to it."""
    watch = moved("compaction:threshold")
    messages = [SYSTEM, user_message("summary"), user_message("and?")]
    watch.note(watch.take(messages, (CLOCK,), SONNET), WRITTEN)
    watch.take([*messages, THOUGHT, user_message("so?")], (CLOCK,), SONNET)
    assert "stale_thinking_sent" not in events_of(logs)


@given(st.binary(min_size=2, max_size=24), st.binary(max_size=24))
def test_whatever_is_added_moves_nothing(first: bytes, added: bytes) -> None:
    """A conversation that only grows keeps its fingerprint, from objects and from the store."""
    messages = [SYSTEM, *conversation_of(first)]
    longer = [*messages, *conversation_of(added)]
    watch = asked(messages)
    taken = watch.take(longer, (CLOCK,), SONNET)
    later = next_turn(watch)
    stored = later.take([decode(encode(message)) for message in longer], (CLOCK,), SONNET)
    assert stored.digest == taken.digest
    # What has moved is no longer compared with.
    assert later.last is not None


@given(st.binary(min_size=4, max_size=24), st.data())
def test_whatever_is_taken_out_is_noticed(program: bytes, data: st.DataObject) -> None:
    """A message that is gone is a move, unless what follows says the same."""
    messages = [SYSTEM, *(user_message(str(n)) for n in program)]
    gone = data.draw(st.integers(1, len(messages) - 1))
    shorter = [*messages[:gone], *messages[gone + 1 :]]
    with pytest.raises(AssertionError, match="the prefix moved"):
        asked(messages).take(shorter, (CLOCK,), SONNET)


# note


def test_what_the_provider_keeps_is_remembered() -> None:
    """Read and written tokens are warm, those behind the last breakpoint are not."""
    watch = asked(ASK, Usage(input_tokens=7, cache_read_tokens=3_000, cache_write_1h_tokens=400))
    assert watch.last is not None
    assert watch.last.tokens == watch.warm_tokens(SONNET) == 3_400


def test_without_a_report_what_was_warm_stays() -> None:
    """A call that reported nothing does not make the cache empty."""
    watch = asked(ASK)
    watch.note(watch.take(MORE, (CLOCK,), SONNET), None)
    assert watch.warm_tokens(SONNET) == 50_000


def test_a_miss_is_a_warning(logs: list[Any]) -> None:
    """It says what should have been read, and what was."""
    watch = asked(ASK)
    prefix = watch.take(MORE, (CLOCK,), SONNET)
    watch.note(prefix, Usage(0, 0, 1_000, 49_500))
    assert logs == [
        {
            "event": "cache_missed",
            "log_level": "warning",
            "expected_tokens": 50_000,
            "read_tokens": 1_000,
        }
    ]


@pytest.mark.parametrize(
    "usage",
    [
        Usage(0, 0, 48_001, 2_000),  # fewer than 2,000 tokens
        Usage(0, 0, 47_000, 30_000),  # less than 5 % of the prompt
        Usage(0, 0, 60_000, 100),
    ],
)
def test_small_misses_are_not_told(usage: Usage, logs: list[Any]) -> None:
    """From 2,000 tokens and 5 % of the prompt on a miss is one."""
    watch = asked(ASK)
    watch.note(watch.take(MORE, (CLOCK,), SONNET), usage)
    assert logs == []


def miss(watch: PrefixWatch, model: Any = SONNET) -> None:
    """Have a request answered that read nothing from a cache."""
    watch.note(watch.take(MORE, (CLOCK,), model), Usage(60_000))


def test_no_miss_once_the_entries_have_died(logs: list[Any]) -> None:
    """After its life an entry is gone; one of an hour lives longer."""
    last = asked(ASK).last
    assert last is not None
    old = replace(last, at=last.at - 301)
    miss(PrefixWatch(old))
    assert logs == []
    miss(PrefixWatch(old, ttl="1h"))
    assert [entry["event"] for entry in logs] == ["cache_missed"]


def test_no_miss_where_nothing_can_be_cached(logs: list[Any]) -> None:
    """Prompts below the model's minimum, and models without breakpoints, promise nothing."""
    large: Any = Model(facts=ModelFacts("claude-sonnet-5", min_cache_tokens=60_000))
    miss(asked(ASK, model=large), large)
    miss(asked(ASK, model=PLAIN), PLAIN)
    assert logs == []


def test_no_miss_after_an_announced_move() -> None:
    """What a compaction moved cannot be read."""
    watch = asked(ASK)
    watch.expect_move("compaction:threshold")
    with capture_logs() as logs:
        watch.note(watch.take([SYSTEM, user_message("s")], (CLOCK,), SONNET), Usage(30_000))
    assert [entry["event"] for entry in logs] == ["cache_prefix_moved"]


# note_apart


def wrapped_up(watch: PrefixWatch) -> Prefix:
    """Have a last request answered that forbade tools."""
    return watch.note_apart(watch.take(MORE, (CLOCK,), SONNET))


def test_a_request_that_is_kept_apart_leaves_what_was_warm() -> None:
    """The next one that allows tools reads what the one before has left, and no more."""
    watch = asked(ASK)
    before = watch.last
    assert before is not None
    kept = wrapped_up(watch)
    assert watch.last == kept
    assert (kept.tokens, kept.at, kept.messages) == (before.tokens, before.at, len(MORE))
    assert watch.warm_tokens(SONNET) == 50_000


def test_a_request_that_is_kept_apart_is_what_the_next_one_begins_with() -> None:
    """A prefix that moves behind it is noticed as well."""
    watch = asked(ASK)
    wrapped_up(watch)
    with pytest.raises(AssertionError, match="moved behind"):
        watch.take([*MORE[:3], user_message("or?")], (CLOCK,), SONNET)


def test_a_request_that_is_kept_apart_ends_a_move() -> None:
    """Nothing is warm before it where it is the first of all."""
    watch = PrefixWatch(moving="compression")
    assert wrapped_up(watch).tokens == 0
    assert watch.moving is None


# warm_tokens


def test_most_is_warm_for_a_model_that_did_not_answer_last() -> None:
    """Nothing is known about its cache: a forecast of the least has to take it for full."""
    watch = asked(ASK)
    assert watch.most_warm_tokens(SONNET, 60_000) == 50_000
    assert watch.most_warm_tokens(OTHER, 60_000) == 60_000
    assert PrefixWatch().most_warm_tokens(SONNET, 60_000) == 0


def test_nothing_is_warm_for_another_model_or_before_a_move() -> None:
    """Warm is what the next request would read, if it is sent now to the same model."""
    watch = asked(ASK)
    assert (watch.warm_tokens(SONNET), watch.warm_tokens(OTHER)) == (50_000, 0)
    watch.expect_move("tools")
    assert watch.warm_tokens(SONNET) == 0
    assert PrefixWatch().warm_tokens(SONNET) == 0


def test_a_clock_that_was_set_back_warms_nothing() -> None:
    """An entry from the future may have any age."""
    ahead = Prefix("claude-sonnet-5", 2, "ab", time.time() + 60, 50_000)
    assert PrefixWatch(ahead).warm_tokens(SONNET) == 0
