"""The recorded model and the recorded tools."""

from pathlib import Path

import pytest

from agent.errors import RecordingMismatch
from agent.messages import (
    ChatMessage,
    FunctionCall,
    ToolCall,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest
from agent.models.recorded import RecordedModel, RecordedTools
from agent.recordings import Exchange, Recording, load_recordings
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


def model() -> RecordedModel:
    recorded = RecordedModel()
    recorded.register("c1", RECORDING)
    return recorded


async def complete(*view: ChatMessage, conversation: str = "c1", **extra: bool) -> Completion:
    request = ModelRequest(list(view), conversation=conversation, **extra)
    return await model().complete(request, CollectingSink())


@pytest.mark.parametrize(
    ("view", "told"),
    [
        ([ONE], "I look."),
        ([ONE, STEP, RESULT], "A tree."),
        ([ONE, STEP, RESULT, assistant_message("A tree."), user_message("two")], "Bye."),
    ],
)
async def test_the_place_is_found_from_the_view(view: list[ChatMessage], told: str) -> None:
    """A fresh model goes on in the middle, as after a restart."""
    assert text_of((await complete(*view)).message) == told


async def test_a_completion_is_what_was_recorded() -> None:
    """Calls, stop reason and an estimated usage are there, and the text was pushed."""
    sink = CollectingSink()
    completion = await model().complete(ModelRequest([ONE], conversation="c1"), sink)
    assert (completion.message, completion.stop_reason) == (STEP, "tool_calls")
    assert sink.text == "I look."
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 0 < completion.usage.output_tokens


async def test_what_parley_added_does_not_count() -> None:
    """A system message, a synthetic request and a sender's name before the text."""
    system = ChatMessage(role="system", content="Be kind.")
    named = user_message("Ann: one")
    synthetic = user_message("Go on.", synthetic=True)
    completion = await complete(system, named, STEP, RESULT, synthetic)
    assert text_of(completion.message) == "A tree."


async def test_without_tools_the_final_text_is_played() -> None:
    """The loop's last call must end in a text."""
    completion = await complete(ONE, allow_tools=False)
    assert (text_of(completion.message), completion.stop_reason) == ("A tree.", "stop")


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        ([], "has 2 user messages, the view has 0"),
        ([ONE, ONE, ONE], "has 2 user messages, the view has 3"),
        ([user_message("other")], "user message 1 is not the recorded 'one'"),
        ([ONE, STEP, RESULT, assistant_message("A tree.")], "2 answers to 'one' are in the view"),
    ],
)
async def test_a_view_that_does_not_fit_is_refused(view: list[ChatMessage], problem: str) -> None:
    """A wrong answer would hide that something was lost."""
    with pytest.raises(RecordingMismatch, match=problem):
        await complete(*view)


async def test_a_conversation_without_recording_is_refused() -> None:
    """The text names it."""
    with pytest.raises(RecordingMismatch, match="'c9' has no recording"):
        await complete(ONE, conversation="c9")


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
            recorded.register("c1", recording)
            tools = RecordedTools(recorded, [recording])
            users: list[ChatMessage] = []
            for exchange in recording.exchanges:
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
