"""The offline model: answers, tools, streaming."""

import asyncio

import orjson
import pytest

from agent.messages import (
    ChatMessage,
    ToolSchema,
    assistant_message,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion, ModelRequest
from agent.models.offline import COUNT_LIMIT, NOTICE, OfflineModel
from agent.settings import ModelSettings
from agent.tools.builtin.basics import evaluate
from tests.agent.models.sink import CollectingSink
from tests.support.effort import effort

TOOLS = tuple(ToolSchema(name, "", {"type": "object"}) for name in ("current_time", "calculate"))


def talk(*texts: str) -> list[ChatMessage]:
    """User texts with an answer after each but the last."""
    view: list[ChatMessage] = []
    for text in texts:
        view += [user_message(text), assistant_message("An answer.")]
    return view[:-1]


async def complete(
    view: list[ChatMessage], *, allow_tools: bool = True, tools: tuple[ToolSchema, ...] = TOOLS
) -> Completion:
    model = OfflineModel(ModelSettings(), word_delay_s=0)
    request = ModelRequest(view, tools, allow_tools=allow_tools, conversation="c1")
    return await model.complete(request, CollectingSink())


async def answer(*texts: str, allow_tools: bool = True) -> str:
    return text_of((await complete(talk(*texts), allow_tools=allow_tools)).message)


async def calls(*texts: str) -> list[tuple[str, dict[str, str]]]:
    completion = await complete(talk(*texts))
    assert completion.stop_reason == "tool_calls"
    return [
        (call["function"]["name"], orjson.loads(call["function"]["arguments"]))
        for call in completion.message["tool_calls"]
    ]


async def answer_after(question: str, *results: str) -> str:
    """The answer to a question whose calls had these results."""
    view = talk(question)
    message = (await complete(view)).message
    view.append(message)
    for call, result in zip(message["tool_calls"], results, strict=True):
        view.append(tool_message(call["id"], call["function"]["name"], result))
    return text_of((await complete(view)).message)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (("one fish", "two fish", "What was my first message?"), "> one fish"),
        (("What was my first message?",), "This is your first message"),
    ],
)
async def test_questions_about_the_conversation(texts: tuple[str, ...], told: str) -> None:
    """They are answered from the view."""
    assert told in await answer(*texts)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("What time is it?", {}),
        ("Could you tell me the time in Africa/Lagos?", {"timezone": "Africa/Lagos"}),
        ("current time in Narnia please", {"timezone": "Narnia"}),
    ],
)
async def test_the_time_is_asked_of_the_tool(text: str, arguments: dict[str, str]) -> None:
    """A place is passed on as it is written."""
    assert await calls(text) == [("current_time", arguments)]


@pytest.mark.parametrize(
    ("text", "value"),
    [("what is 12*7?", 84), ("Hi! Calculate (3 + 4) * 2", 14), ("What is -3 + 4 = ?", 1)],
)
async def test_arithmetic_is_asked_of_the_tool(text: str, value: float) -> None:
    """The expression is one that the tool can work out."""
    [(name, arguments)] = await calls(text)
    assert name == "calculate"
    assert evaluate(arguments["expression"]) == value


@pytest.mark.parametrize("text", ["what is e-mail?", "2024-05-15", "what is 5 apples?"])
async def test_what_only_looks_like_arithmetic_is_not(text: str) -> None:
    """It gets the honest answer."""
    assert "no real answer" in await answer("before", text)


@pytest.mark.parametrize("result", ["84", "Error: division by zero", "cancelled by the user"])
async def test_results_are_quoted(result: str) -> None:
    """An error and a note of the gateway as well."""
    told = await answer_after("what is 12*7?", result)
    assert told.startswith(f"The tool `calculate` answered:\n\n> {result}")


@pytest.mark.parametrize("text", ["what time is it?", "what is 1+1?"])
async def test_without_tools_it_says_what_is_missing(text: str) -> None:
    """Both when none are offered and when calls are forbidden."""
    forbidden = await answer(text, allow_tools=False)
    assert text_of((await complete(talk(text), tools=())).message) == forbidden
    assert "not available to me" in forbidden


async def test_several_unanswered_messages_are_read_together() -> None:
    """A burst is one question."""
    view = [user_message("My name is Ann"), user_message("and I like tea")]
    assert "> My name is Ann\n> and I like tea" in text_of((await complete(view)).message)


async def test_counting_goes_to_the_number() -> None:
    """Every number is there, up to the limit."""
    assert (await answer("hi", "count to 12")).replace("\n", " ") == ", ".join(
        str(number) for number in range(1, 13)
    )
    long = await answer("hi", "Count from 1 to 99999")
    assert long.endswith(f", {COUNT_LIMIT}")
    assert await answer("hi", "count to 0") == "There is nothing to count."


async def test_formatting_is_shown() -> None:
    """A table and a code block are in the sample."""
    sample = await answer("hi", "Show me a table")
    assert "|---|" in sample
    assert "```python" in sample


async def test_the_unknown_is_answered_honestly() -> None:
    """It restates the question and says what it can do."""
    told = await answer("hi", "What is the capital of France?")
    assert "offline demo model and have no real answer" in told
    assert "> What is the capital of France?" in told
    assert "Count to 500" in told


async def test_only_the_first_answer_carries_the_notice() -> None:
    """A system message and a tool call before it do not count as answers."""
    system = ChatMessage(role="system", content="Be kind.")
    first = text_of((await complete([system, user_message("hi")])).message)
    assert first.endswith(NOTICE)
    assert "ANTHROPIC_API_KEY" in NOTICE
    assert (await answer_after("what is 12*7?", "84")).endswith(NOTICE)
    assert NOTICE not in await answer("hi", "hi")


async def test_the_same_request_gets_the_same_answer() -> None:
    """Ids of calls included, and they differ within a view."""
    first, second = (
        await complete(talk("the time in Paris")),
        await complete(talk("the time in Paris")),
    )
    assert first == second
    later = await complete(talk("the time in Paris", "what time is it?"))
    ids = [call["id"] for it in (first, later) for call in it.message["tool_calls"]]
    assert len(set(ids)) == 2


async def test_it_streams_word_by_word() -> None:
    """The pieces are words and add up to the message."""
    sink = CollectingSink()
    model = OfflineModel(ModelSettings(), word_delay_s=0)
    completion = await model.complete(ModelRequest(talk("a", "hi")), sink)
    assert sink.deltas[:2] == ["I ", "am "]
    assert sink.text == text_of(completion.message)
    assert completion.usage is not None
    assert completion.usage.output_tokens > 0
    assert (completion.model, model.provider) == ("parley-offline", "offline")
    await model.close()


@pytest.mark.parametrize(("setting", "tokens"), [(None, 200_000), (8192, 8192)])
def test_the_window_is_that_of_the_settings(setting: int | None, tokens: int) -> None:
    """200,000 tokens if none is set."""
    assert OfflineModel(ModelSettings(context_length=setting)).context_length == tokens


@pytest.mark.parametrize(
    "text",
    ["tell " * 200_000, " " * 1_000_000, "my name is" + " " * 1_000_000, "in A " * 200_000, ""],
)
def test_a_huge_or_empty_text_is_answered_quickly(text: str) -> None:
    """No pattern may take the event loop for long."""
    assert effort(lambda: asyncio.run(answer("hi", text))) < 250
    assert effort(lambda: asyncio.run(answer(text, "hi"))) < 250
