"""The recorded model and the recorded tools."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from agent.compression.edits import clipped
from agent.errors import ContextOverflow, RecordingMismatch
from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest, ToolSchema, Usage
from agent.models.recorded import RecordedModel, RecordedTools
from agent.recordings import Exchange, Recording, load_recordings
from agent.tokens import estimate_messages, estimate_usage
from tests.agent.models.sink import CollectingSink
from tests.agent.tools.doubles import call, context
from tests.support.shared import SHARED

LOOK = ToolCall(id="a", type="function", function=FunctionCall(name="look", arguments="{}"))
STEP = ChatMessage(role="assistant", content="I look.", tool_calls=[LOOK])
RESULT = tool_message("a", "look", "a tree")
RECORDING = Recording(
    "walk",
    (
        Exchange("one", (STEP, RESULT, assistant_message("A tree."))),
        Exchange("two", (assistant_message("Bye."),)),
    ),
)
ONE = user_message("one")
FOREIGN = ChatMessage(role="assistant", tool_calls=[call("go", call_id="z")])
TOOLS = (ToolSchema("look", "Looks.", {"type": "object"}),)


SECOND = user_message("two")


def model(exchange: int = 0, context_length: int = 200_000) -> RecordedModel:
    recorded = RecordedModel(context_length)
    recorded.play("c1", RECORDING, exchange)
    return recorded


async def complete(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> Completion:
    request = ModelRequest(list(view), **{"conversation": "c1", **extra})
    return await recorded.complete(request, CollectingSink())


async def told(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> str:
    return text_of((await complete(recorded, *view, **extra)).message)


async def usage(recorded: RecordedModel, *view: ChatMessage, **extra: Any) -> Usage:
    found = (await complete(recorded, *view, **extra)).usage
    assert found is not None
    return found


async def test_the_answers_of_an_exchange_are_played_in_order() -> None:
    """The newest call in the view tells how far it is."""
    recorded = model()
    assert await told(recorded, ONE) == "I look."
    assert await told(recorded, ONE, STEP, RESULT) == "A tree."


async def test_the_player_says_which_exchange_is_asked() -> None:
    """What came before need not be in the view: it may be compacted."""
    assert await told(model(1), SECOND) == "Bye."
    summary = user_message("[a summary of one]", synthetic=True)
    assert await told(model(1), summary, STEP, RESULT, SECOND) == "Bye."


async def test_a_compacted_turn_goes_on() -> None:
    """Between the question and its newest group there is a summary of the groups before."""
    first, second, third = (group(f"{n}") for n in range(3))
    recorded = RecordedModel()
    recorded.play("c1", Recording("x", (Exchange("one", (*first, *second, *third)),)), 0)
    summary = ChatMessage(role="assistant", content="[a summary]", synthetic=True)
    assert await told(recorded, ONE) == "0"
    assert await told(recorded, ONE, *first) == "1"
    assert await told(recorded, ONE, summary, *second) == "2"


def group(name: str) -> list[ChatMessage]:
    """Return an assistant message with one call, and its result."""
    asked = ChatMessage(role="assistant", content=name, tool_calls=[call("go", call_id=name)])
    return [asked, tool_message(name, "go", "gone")]


async def test_a_request_that_is_made_again_gets_the_same_answer() -> None:
    """Its answer was lost on the way into the transcript."""
    recorded = model()
    views = [(ONE,), (ONE,), (ONE, STEP, RESULT), (ONE, STEP, RESULT)]
    answers = [await told(recorded, *view) for view in views]
    assert answers == ["I look.", "I look.", "A tree.", "A tree."]


async def test_a_completion_is_what_was_recorded() -> None:
    """Calls and stop reason are there, and the text was pushed."""
    sink = CollectingSink()
    completion = await model().complete(ModelRequest([ONE], conversation="c1"), sink)
    assert (completion.message, completion.stop_reason) == (STEP, "tool_calls")
    assert sink.text == "I look."


async def test_what_parley_added_does_not_count() -> None:
    """A system message, a synthetic request and a sender's name before the text."""
    system = ChatMessage(role="system", content="Be kind.")
    named = user_message("Ann: one")
    synthetic = user_message("Go on.", synthetic=True)
    recorded = model()
    assert await told(recorded, system, named) == "I look."
    assert await told(recorded, system, named, STEP, RESULT, synthetic) == "A tree."


async def test_without_tools_the_final_text_is_played() -> None:
    """The loop's last call must end in a text."""
    completion = await complete(model(), ONE, allow_tools=False)
    assert (text_of(completion.message), completion.stop_reason) == ("A tree.", "stop")


async def test_a_clipped_question_is_taken() -> None:
    """The compressor cuts a giant message to its head, a pointer and its tail."""
    long = "word " * 1000
    recorded = RecordedModel()
    recorded.play("c1", Recording("x", (Exchange(long, (assistant_message("Yes."),)),)), 0)
    shown = clipped(user_message(long), 300, 1)
    assert long not in text_of(shown)
    assert await told(recorded, shown) == "Yes."


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        ([], "there is no user message in the view"),
        ([STEP, RESULT], "there is no user message in the view"),
        ([user_message("other")], "'other' was asked, not the recorded 'one'"),
        ([user_message("on")], "'on' was asked, not the recorded 'one'"),
        ([ONE, SECOND], "'two' was asked, not the recorded 'one'"),
        ([ONE, STEP, RESULT], "0 answers to 'one' were given, but the newest call .* is 'a'"),
        ([ONE, FOREIGN], "0 answers to 'one' were given, but the newest call .* is 'z'"),
    ],
)
async def test_a_view_that_does_not_fit_is_refused(view: list[ChatMessage], problem: str) -> None:
    """A wrong answer would hide that something was lost."""
    with pytest.raises(RecordingMismatch, match=problem):
        await complete(model(), *view)


async def test_a_view_that_lost_the_newest_group_is_refused() -> None:
    """It would be asked for the same again for ever."""
    recorded = model()
    await complete(recorded, ONE)
    await complete(recorded, ONE, STEP, RESULT)
    with pytest.raises(RecordingMismatch, match="2 answers to 'one' were given"):
        await complete(recorded, ONE)


async def test_the_usage_is_that_of_the_estimates() -> None:
    """Together they are what any other model without a report counts."""
    request = ModelRequest([ONE, SECOND, ONE], TOOLS, conversation="c1")
    completion = await model().complete(request, CollectingSink())
    expected = estimate_usage(request, completion.message)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == expected.prompt_tokens
    assert completion.usage.output_tokens == expected.output_tokens
    assert completion.usage.cache_read_tokens == 0


async def test_the_common_prefix_is_read_from_the_cache() -> None:
    """What the conversation's request before has too, tools first; the rest is written."""
    recorded = model()
    first = await usage(recorded, ONE, tools=TOOLS)
    again = [deepcopy(message) for message in (ONE, STEP, RESULT)]
    second = await usage(recorded, *again, tools=TOOLS)
    assert second.cache_read_tokens == first.prompt_tokens
    added = estimate_messages([STEP, RESULT])
    assert (second.cache_write_5m_tokens, second.input_tokens) == (added, 0)


async def test_the_cache_outlives_an_exchange() -> None:
    """It belongs to the conversation."""
    recorded = model(1)
    before = await usage(recorded, SECOND)
    recorded.play("c1", RECORDING, 1)
    assert (await usage(recorded, SECOND)).cache_read_tokens == before.prompt_tokens


async def test_a_changed_message_ends_what_is_read() -> None:
    """As a compaction does: everything behind it is written anew."""
    system = ChatMessage(role="system", content="Be kind.")
    noted = ChatMessage(role="system", content="Be kind. [Note]")
    recorded = model()
    await usage(recorded, system, ONE, tools=TOOLS)
    second = await usage(recorded, noted, ONE, STEP, RESULT, tools=TOOLS)
    assert second.cache_read_tokens == estimate_usage(ModelRequest([], TOOLS), ONE).prompt_tokens
    assert second.prompt_tokens > second.cache_read_tokens


async def test_changed_tools_end_the_cache() -> None:
    """They come first."""
    recorded = model()
    await usage(recorded, ONE, tools=TOOLS)
    assert (await usage(recorded, ONE)).cache_read_tokens == 0


async def test_a_request_beyond_the_window_is_refused() -> None:
    """It counts as not made: once it is smaller, its answer comes."""
    recorded = model(context_length=200)
    with pytest.raises(ContextOverflow, match="tokens do not fit into 200"):
        await complete(recorded, user_message("x" * 2000), ONE)
    assert await told(recorded, ONE) == "I look."


async def test_a_conversation_without_recording_is_refused() -> None:
    """The text names it."""
    with pytest.raises(RecordingMismatch, match="'c9' has no recording"):
        await complete(model(), ONE, conversation="c9")


def test_recorded_tools_are_those_of_the_recordings() -> None:
    """In the order of their names, taking any object, without effects."""
    other = Recording(
        "x", (Exchange("q", (ChatMessage(role="assistant", tool_calls=[call("go")]),)),)
    )
    tools = RecordedTools(model(), [RECORDING, other, RECORDING])
    assert [(it.name, it.parameters) for it in tools.schemas] == [
        ("go", {"type": "object"}),
        ("look", {"type": "object"}),
    ]
    assert (tools.effect("look"), tools.exclusive("look")) == ("read", False)


async def test_recorded_tools_give_the_recorded_result() -> None:
    """The id of the call decides."""
    tools = RecordedTools(model(), [RECORDING])
    outcome = await tools.execute(LOOK, context())
    assert (outcome.text, outcome.status) == ("a tree", "ok")
    with pytest.raises(RecordingMismatch, match="walk has no result for call 'z'"):
        await tools.execute(call("look", call_id="z"), context())


if SHARED:

    @pytest.mark.parametrize(
        "path", sorted(SHARED.glob("*/*.[jt][sr]*")), ids=lambda path: str(path.name)
    )
    async def test_real_recordings_play_to_their_end(path: Path) -> None:
        """A plain loop over the user messages gets every recorded step, in order."""
        for recording in load_recordings(path):
            recorded = RecordedModel()
            tools = RecordedTools(recorded, [recording])
            users: list[ChatMessage] = []
            for position, exchange in enumerate(recording.exchanges):
                recorded.play("c1", recording, position)
                users.append(user_message(exchange.user))
                assert await _play(recorded, tools, users) == list(exchange.steps)

    async def _play(
        recorded: RecordedModel, tools: RecordedTools, users: list[ChatMessage]
    ) -> list[ChatMessage]:
        """Run one turn; earlier answers are not in the view, as the place does not need them."""
        steps: list[ChatMessage] = []
        while True:
            request = ModelRequest([*users, *steps], tools.schemas, conversation="c1")
            completion = await recorded.complete(request, CollectingSink())
            steps.append(completion.message)
            if completion.stop_reason == "stop":
                return steps
            for asked in completion.message["tool_calls"]:
                outcome = await tools.execute(asked, context())
                name = asked["function"]["name"]
                steps.append(tool_message(asked["id"], name, outcome.text))
