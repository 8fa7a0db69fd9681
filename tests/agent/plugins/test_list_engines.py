"""Engines of lists: what they return becomes a plan, is checked, and nothing else of it is kept."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent import compact_messages
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.messages import ChatMessage, Usage, text_of, tool_message, user_message
from agent.plugins.contracts import ResultRefused, check_result
from agent.plugins.engines import resolve
from agent.plugins.registry import adapt, register_context_engine, registered, takes_lists
from agent.view.view import Entry, Summary, View, ViewPlan
from tests.agent.engines.views import SYSTEM, conversation, request_of, write_plugin
from tests.support.conversations import faults

Messages = list[dict[str, Any]]

HERMES_PLUGIN = """
from agent.context_engine import ContextEngine


class Own(ContextEngine):
    @property
    def name(self):
        return "own"

    def __init__(self):
        self.seen = 0

    def update_from_response(self, usage):
        self.last_prompt_tokens = usage["prompt_tokens"]

    def should_compress(self, prompt_tokens=None):
        return (prompt_tokens or self.last_prompt_tokens) >= self.threshold_tokens

    def compress(self, messages, current_tokens=None, focus_topic=None):
        said = [m["content"] for m in messages[2:-4] if m["role"] == "user"]
        summary = {"role": "user", "content": "Asked: " + "; ".join(said)}
        return [messages[0], messages[1], messages[2], messages[3], summary, *messages[-4:]]


def register(ctx):
    ctx.register_context_engine(Own())
"""


class Engine:
    """An engine of lists whose `compress` a test gives."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def update_from_response(self, usage: dict[str, Any]) -> None:
        self.usage = usage

    def should_compress(self, prompt_tokens: int) -> bool:
        return prompt_tokens > 5

    def compress(self, messages: Messages, **asked: Any) -> Any:
        raise NotImplementedError


def engine_of(compress: Any) -> Any:
    """Return what makes an adapted engine."""
    offered = type("Given", (Engine,), {"compress": lambda _self, messages: compress(messages)})
    return adapt(offered, "given")(Limits(4_000), {})


def planned(compress: Any, request: CompressionRequest | None = None) -> Compressed:
    """Return what the host makes of what an engine returns."""
    request = request or request_of(conversation(10))
    found = engine_of(compress).compress(request)
    assert found is not None
    return check_result(found, request)


def shown(found: Compressed, entries: list[Entry]) -> list[ChatMessage]:
    """Return the view under a plan that was accepted, without the system prompt."""
    view = View(SYSTEM, ViewPlan(), list(entries))
    view.adopt(found.plan)
    return view.messages[1:]


def test_a_summary_in_the_middle_is_one_here() -> None:
    """Head and tail stay; the text stands for what was left out; originals are on record."""
    entries = conversation(10)
    found = planned(
        lambda m: [*m[:1], {"role": "assistant", "content": "All is well."}, *m[-4:]],
        request_of(entries),
    )
    plan = found.plan
    assert (plan.head_upto, plan.tail_from, plan.pinned, plan.edits) == (1, 37, (), ())
    [summary] = plan.summaries
    assert (summary.text, summary.first_seq, summary.last_seq) == ("All is well.", 2, 36)
    assert (summary.role, summary.source, found.level) == ("assistant", "model", "summary")
    messages = shown(found, entries)
    assert messages[0] is entries[0].message
    assert messages[-1] is entries[-1].message
    assert faults(messages) == []


def test_a_role_that_does_not_fit_is_changed() -> None:
    """Between a user's message and another one the text is the assistant's."""
    found = planned(lambda m: [*m[:1], {"role": "user", "content": "So far."}, *m[-4:]])
    assert found.plan.summaries[0].role == "assistant"


def test_what_is_left_out_without_a_word_is_told() -> None:
    """The model learns that something is missing."""
    found = planned(lambda m: [*m[:1], *m[-8:]])
    assert "left out by the engine" in found.plan.summaries[0].text
    assert (found.plan.summaries[0].source, found.level) == ("pointer", "extract")


def test_a_message_more_is_shown_where_no_role_fits() -> None:
    """Between a user's message and an assistant's neither role could stand."""
    found = planned(lambda m: [*m[:1], *m[-7:]])
    assert (found.plan.summaries[0].role, found.plan.tail_from) == ("assistant", 33)


def test_what_stays_between_is_told_in_the_summary() -> None:
    """Head and tail are shown, single messages between them by their words."""
    found = planned(lambda m: [*m[:1], *m[4:8], {"role": "user", "content": "New."}, *m[-4:]])
    text = found.plan.summaries[0].text
    assert [text.count(each) for each in ("request 2", "result 2", "answer 2", "New.")] == [1] * 4
    assert found.plan.pinned == ()


def test_shortened_results_and_arguments_are_shown_in_full() -> None:
    """The messages are the same; nothing was left out."""

    def shorten(messages: Messages) -> Messages:
        call = messages[1]["tool_calls"][0]
        function = {**call["function"], "arguments": "{}"}
        messages[1]["tool_calls"] = [{**call, "function": function}]
        messages[2]["content"] = "[cleared]"
        return messages

    entries = conversation(10)
    summary = {"role": "assistant", "content": "So far."}
    found = planned(lambda m: [*shorten(m)[:4], *m[4:5], summary, *m[-4:]], request_of(entries))
    assert (found.plan.head_upto, found.plan.edits) == (5, ())
    assert engine_of(shorten).compress(request_of(entries)) is None


def test_a_summary_that_was_put_into_a_message_is_the_summary() -> None:
    """As Hermes does where no role fits: the message is told with it, as one text."""
    entries = conversation(10)

    def merge(messages: Messages) -> Messages:
        first = messages[-4]
        merged = {**first, "content": f"{first['content']}\n\nSUMMARY: all is well."}
        return [*messages[:5], merged, *messages[-3:]]

    request = request_of([*entries, *conversation(11)[-4:]])
    found = planned(lambda m: [*merge(m[:-4]), *m[-4:]], request)
    text = found.plan.summaries[0].text
    assert text == f"{text_of(entries[36].message)}\n\nSUMMARY: all is well."


def test_an_earlier_summary_is_kept_or_replaced() -> None:
    """As the engine returns it, or not."""
    entries = conversation(12)
    plan = ViewPlan(head_upto=1, summaries=(Summary("Once.", 2, 8, role="assistant"),), tail_from=9)
    request = request_of(entries, plan=plan)
    kept = planned(lambda m: [*m[:2], {"role": "assistant", "content": "Then."}, *m[-4:]], request)
    assert kept.plan.summaries[0].text == "Once.\n\nThen."
    assert (kept.plan.summaries[0].first_seq, kept.plan.summaries[0].last_seq) == (2, 44)
    new = planned(lambda m: [*m[:1], {"role": "assistant", "content": "Then."}, *m[-4:]], request)
    assert new.plan.summaries[0].text == "Then."


def test_the_same_list_is_no_plan() -> None:
    """Nothing was left out."""
    assert engine_of(lambda m: m).compress(request_of(conversation(10))) is None
    assert engine_of(list).compress(request_of(conversation(10))) is None


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "NoneType, not a list"),
        ([], "not a list"),
        ("text", "str, not a list"),
        ([1], "other than messages"),
        ([{"content": "x"}], "other than messages"),
        ([{"role": "user", "content": 7}], "other than messages"),
    ],
)
def test_what_is_no_list_of_messages_is_refused(returned: Any, complaint: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(ResultRefused, match=complaint):
        engine_of(lambda _: returned).compress(request_of(conversation(10)))


def test_a_plugin_of_hermes_runs_as_it_is(tmp_path: Path) -> None:
    """From its folder: the object that it registers, its signature, the words of its usage."""
    write_plugin(tmp_path, "own", HERMES_PLUGIN)
    engine = resolve("own", tmp_path, {})(Limits(4_000))
    engine.update_from_response(Usage(input_tokens=1_500, output_tokens=9))
    assert not engine.should_compress()
    assert engine.should_compress(2_000)
    with capture_logs() as logs:
        found = engine.compress(request_of(conversation(10)))
    assert logs == []
    assert found is not None
    assert (found.engine, found.level) == ("", "summary")
    assert found.plan.summaries[0].text.startswith("Asked: request 2")


def test_a_plugin_that_drops_the_newest_question_is_replaced(tmp_path: Path) -> None:
    """By the built-in, with a warning that says how."""
    source = HERMES_PLUGIN.replace("summary, *messages[-4:]]", "summary, messages[-1]]")
    write_plugin(tmp_path, "own", source)
    with capture_logs() as logs:
        found = resolve("own", tmp_path, {})(Limits(4_000)).compress(request_of(conversation(10)))
    assert found is not None
    assert found.engine == "compressor"
    assert "does not show the newest user message" in str(logs)


def test_each_turn_has_an_engine_of_its_own() -> None:
    """What one does to itself no other sees."""
    offered = Engine()
    one, two = (adapt(offered, "given")(Limits(4_000), {}) for _ in range(2))
    one.update_from_response(Usage(1, 2, 3))
    assert one._inner.usage["prompt_tokens"] == 4  # type: ignore[attr-defined]
    assert not hasattr(two._inner, "usage")  # type: ignore[attr-defined]
    assert not hasattr(offered, "usage")


def test_arguments_are_those_that_it_takes() -> None:
    """Its own options, and of a compaction what its signature names."""
    told: dict[str, Any] = {}

    class Asking(Engine):
        """Keeps what it is asked."""

        def __init__(self, share: float) -> None:
            told["share"] = share

        def compress(
            self, messages: Messages, current_tokens: int = 0, force: bool = False
        ) -> Messages:  # type: ignore[override]
            told.update(tokens=current_tokens, force=force)
            return messages

    engine = adapt(Asking, "asking")(Limits(4_000), {"share": 0.5, "more": 1})
    request = request_of(conversation(10), trigger="manual")
    assert engine.compress(request) is None
    assert told == {"share": 0.5, "tokens": request.tokens, "force": True}


def test_tools_stand_in_either_form() -> None:
    """Bare, or in OpenAI's envelope; a call is the engine's to answer."""

    class WithTools(Engine):
        """Offers two."""

        def get_tool_schemas(self) -> Messages:
            bare = {"name": "one", "description": "First.", "parameters": {"type": "object"}}
            return [bare, {"type": "function", "function": {"name": "two"}}]

        def handle_tool_call(self, name: str, args: dict[str, Any]) -> str:
            return f"{name}: {args}"

    engine = adapt(WithTools, "tools")(Limits(4_000), {})
    assert [schema.name for schema in engine.get_tool_schemas()] == ["one", "two"]
    assert engine.handle_tool_call("one", {"a": 1}) == "one: {'a': 1}"
    assert engine.get_status()["threshold_tokens"] == 2_000


def test_one_that_derives_from_our_base_knows_its_limits() -> None:
    """And the options: the base has none before it is told."""

    class Derived(ContextEngine):
        """Takes lists, and decides by Parley's limits."""

        name = "derived"

        def compress(self, messages: Messages) -> Messages:  # type: ignore[override]
            return messages

        def get_status(self) -> dict[str, Any]:
            return {"limit": self.limits.threshold_tokens, **self.options}

    engine = adapt(Derived, "derived")(Limits(4_000), {"keep": 3})
    assert engine.get_status() == {"threshold_tokens": 2_000, "limit": 2_000, "keep": 3}


def test_it_is_known_by_its_first_argument() -> None:
    """A class or an object; an engine of plans is none."""
    assert takes_lists(Engine)
    assert takes_lists(Engine())
    assert not takes_lists(int)
    assert not takes_lists(type("Plans", (), {"compress": lambda self, request: None}))


def test_programs_of_their_own_use_such_an_engine() -> None:
    """`register_context_engine` takes the object, `compact_messages` the class."""

    class Halving(Engine):
        """Keeps the first message and the newest ones."""

        name = "halving"

        def compress(self, messages: Messages, **asked: Any) -> Messages:
            return [messages[0], {"role": "assistant", "content": "…"}, *messages[-10:]]

    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " * 90} for n in range(60)]
    found = compact_messages(talk, context_length=8_000, engine=Halving)  # type: ignore[arg-type]
    assert (len(found.messages), found.summary) == (12, "…")
    register_context_engine(Halving())  # type: ignore[arg-type]
    try:
        again = compact_messages(talk, context_length=8_000, engine="halving")
    finally:
        del registered["halving"]
    assert again == found


@given(st.data())
def test_whatever_is_returned_the_host_decides(data: st.DataObject) -> None:
    """Any selection, order and change of the messages: a sound plan, or a refusal."""
    entries = conversation(8)
    request = request_of(entries)

    def scramble(messages: Messages) -> Messages:
        picked = data.draw(st.lists(st.sampled_from(messages), min_size=1, max_size=40))
        extra = [user_message("new"), tool_message("c1", "look", "short")]
        return [dict(each) for each in [*picked, *data.draw(st.lists(st.sampled_from(extra)))]]

    accepted = None
    with suppress(ResultRefused):
        found = engine_of(scramble).compress(request)
        accepted = None if found is None else check_result(found, request)
    assert accepted is None or faults(shown(accepted, entries)) == []


WITHOUT = HERMES_PLUGIN.replace("    def __init__(self):\n        self.seen = 0\n", "")


def told_by(before: str, source: str = HERMES_PLUGIN) -> str:
    """Return a plugin of Hermes' with more methods."""
    return source.replace("    def update_from", f"{before}\n    def update_from")


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        (HERMES_PLUGIN, 2_000),
        (HERMES_PLUGIN.replace("Own())", "Own)"), 2_000),
        (HERMES_PLUGIN.replace("(ContextEngine)", ""), 2_000),
        (WITHOUT, 2_000),
        (WITHOUT.replace("Own())", "Own)"), 2_000),
        (
            told_by(
                "    @property\n    def threshold_tokens(self):\n"
                "        return int(self.context_length * self.threshold_percent * 1.2)\n"
            ),
            2_400,
        ),
        (
            told_by("    def get_status(self):\n        return {'threshold_tokens': 1500.0}\n"),
            1_500,
        ),
        (
            told_by(
                "    def get_status(self):\n"
                "        return {'last_prompt_tokens': self.last_prompt_tokens,\n"
                "                'compression_count': self.compression_count}\n"
            ),
            2_000,
        ),
        (told_by("    def get_status(self):\n        return {'threshold_tokens': 0}\n"), None),
        (told_by("    def get_status(self):\n        return {'threshold_tokens': None}\n"), None),
    ],
)
def test_the_status_is_the_engine_s_before_any_answer(
    tmp_path: Path, source: str, tokens: int | None
) -> None:
    """What it inherits is not asked for numbers that it was never told; nothing fails."""
    write_plugin(tmp_path, "own", source)
    with capture_logs() as logs:
        engine = resolve("own", tmp_path, {})(Limits(4_000))
        told = engine.get_status()["threshold_tokens"]
    assert (engine.name, logs) == ("own", [])
    assert (told or None) == tokens


def test_an_engine_that_only_compresses_has_the_rest_from_here(tmp_path: Path) -> None:
    """Hermes asks for two methods more, of which ours has its own."""
    own = HERMES_PLUGIN.partition("    def update_from")[0]
    source = f"{own}    def compress(self, messages):\n        return messages\n\n\n"
    source += "def register(ctx):\n    ctx.register_context_engine(Own())\n"
    write_plugin(tmp_path, "own", source)
    with capture_logs() as logs:
        engine = resolve("own", tmp_path, {})(Limits(4_000))
        engine.on_session_start("s")
        engine.update_from_response(Usage(input_tokens=2_500, output_tokens=9))
        wants = engine.should_compress(), engine.should_compress(1_000), engine.get_tool_schemas()
    assert (wants, logs) == ((True, False, ()), [])
