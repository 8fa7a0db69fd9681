"""The scripted model."""

import asyncio

import pytest

from agent.errors import ModelUnreachable, RateLimited
from agent.messages import Usage, assistant_message, text_of, user_message
from agent.models.base import Completion, ModelRequest
from tests.agent.models.sink import CollectingSink
from tests.support.scripted_model import Cut, ScriptedModel, ScriptExhausted, tool_call

REQUEST = ModelRequest([user_message("hi")])


async def test_a_text_is_streamed_in_small_deltas() -> None:
    """The pieces add up to the message."""
    sink = CollectingSink()
    completion = await ScriptedModel(["Hello, wonderful world!"]).complete(REQUEST, sink)
    assert sink.deltas == ["Hello, wonderful", " world!"]
    assert (text_of(completion.message), completion.stop_reason) == (
        "Hello, wonderful world!",
        "stop",
    )
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 0 < completion.usage.output_tokens


async def test_tool_calls_come_without_text() -> None:
    """The stop reason says that results are awaited."""
    call = tool_call("add", {"left": 1})
    completion = await ScriptedModel([[call]]).complete(REQUEST, CollectingSink())
    assert completion.message.get("tool_calls") == [call]
    assert call["function"]["arguments"] == '{"left":1}'
    assert completion.stop_reason == "tool_calls"


async def test_a_whole_completion_is_returned_as_it_is() -> None:
    """Stop reasons and usage can be scripted too."""
    step = Completion(assistant_message("part"), "length", Usage(1, 2))
    sink = CollectingSink()
    assert await ScriptedModel([step]).complete(REQUEST, sink) is step
    assert sink.text == "part"


async def test_an_exception_is_raised_before_any_text() -> None:
    """The very exception of the script arrives."""
    error, sink = RateLimited("slow down", 3), CollectingSink()
    with pytest.raises(RateLimited) as raised:
        await ScriptedModel([error]).complete(REQUEST, sink)
    assert raised.value is error
    assert sink.deltas == []


async def test_a_cut_answer_shows_its_text_first() -> None:
    """This is how a broken stream looks."""
    sink = CollectingSink()
    with pytest.raises(ModelUnreachable):
        await ScriptedModel([Cut("half", ModelUnreachable("gone"))]).complete(REQUEST, sink)
    assert sink.text == "half"


async def test_steps_are_played_in_order_and_requests_kept() -> None:
    """The test can look at what the model was asked."""
    model = ScriptedModel(["one", "two"])
    told = [text_of((await model.complete(REQUEST, CollectingSink())).message) for _ in range(2)]
    assert told == ["one", "two"]
    assert model.requests == [REQUEST, REQUEST]


async def test_a_function_chooses_the_step() -> None:
    """It sees the request."""
    model = ScriptedModel(lambda request: text_of(request.messages[-1]).upper())
    completion = await model.complete(REQUEST, CollectingSink())
    assert text_of(completion.message) == "HI"


async def test_an_exhausted_script_says_so() -> None:
    """The text names the number of steps and the newest message."""
    with pytest.raises(ScriptExhausted, match=r"has 0 steps.*'hi'"):
        await ScriptedModel([]).complete(REQUEST, CollectingSink())


async def test_the_gate_holds_the_answer() -> None:
    """The request has arrived, and nothing is shown before the gate opens."""
    gate, sink = asyncio.Event(), CollectingSink()
    model = ScriptedModel(["held"], gate=gate)
    async with asyncio.TaskGroup() as group:
        group.create_task(model.complete(REQUEST, sink))
        await model.arrived.wait()
        assert sink.deltas == []
        gate.set()
    assert sink.text == "held"
    await model.close()
