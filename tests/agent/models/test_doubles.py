"""The doubles of the providers refuse what the providers refuse, in their words."""

from typing import Any

import httpx2
import pytest

from agent.view.view import MARKER
from tests.support.anthropic_server import AnthropicServer, signature
from tests.support.model_server import ModelServer, Reply
from tests.support.openai_server import OpenAIServer

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
USE = {"type": "tool_use", "id": "a", "name": "t", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a"}
CALL = {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}
TOOLS = [{"name": "t", "description": "", "input_schema": {"type": "object"}}]
HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


def text(content: str = "x", marker: dict[str, str] | None = None) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": content}
    return block | {"cache_control": marker} if marker else block


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


async def post(server: ModelServer, body: dict[str, Any]) -> str:
    """Return what is wrong with a request, "" for nothing."""
    async with httpx2.AsyncClient() as client:
        url = server.url + (
            "/v1/messages" if isinstance(server, AnthropicServer) else "/chat/completions"
        )
        answer = await client.post(url, json=body, headers=HEADERS)
    if answer.status_code == 200:
        return ""
    error = answer.json()["error"]
    return f"{answer.status_code} {error['message']}"


async def native(*messages: dict[str, Any], **fields: Any) -> str:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": list(messages)}
    async with AnthropicServer(default=Reply(text="ok")) as server:
        return await post(server, body | fields)


async def compatible(*messages: dict[str, Any], **fields: Any) -> str:
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": list(messages)}
    async with OpenAIServer(default=Reply(text="ok")) as server:
        return await post(server, body | fields)


@pytest.mark.parametrize(
    ("messages", "fields", "problem"),
    [
        ([user(text())], {}, ""),
        ([user(*[text("x", MARK)] * 4)], {}, ""),
        ([user(*[text("x", MARK)] * 5)], {}, "A maximum of 4 blocks with cache_control may be"),
        ([user(text("x", HOUR), text("x", MARK))], {}, ""),
        ([user(text("x", MARK), text("x", HOUR))], {}, "must not come after a ttl='5m'"),
        ([user(text("x", {"type": "ephemeral", "ttl": "2h"}))], {}, "Input should be '5m' or '1h'"),
        ([user(text("x", {"type": "eternal"}))], {}, "Input should be 'ephemeral'"),
        ([user(text("", MARK))], {}, "cache_control cannot be set for empty text blocks"),
        ([user(text(""))], {}, "text content blocks must be non-empty"),
        ([user(text(" "))], {}, "must contain non-whitespace text"),
        ([user(RESULT)], {}, "unexpected `tool_use_id`"),
        ([user(text()), assistant(USE), user(text())], {"tools": TOOLS}, "without `tool_result`"),
        ([user(text()), assistant(USE), user(RESULT)], {"tools": TOOLS}, ""),
        ([user(text()), assistant(USE), user(RESULT)], {}, "must define tools"),
        ([assistant(text()), user(text())], {}, "first message must use the user role"),
        ([user(text()), assistant(text())], {}, "assistant message prefill"),
        ([user(text())], {"max_tokens": 999_999}, "max_tokens: 999999 > 128000"),
        ([user(text())], {"frequency": 1}, "frequency: Extra inputs are not permitted"),
        ([user(text())], {"metadata": {"x": 1}}, "metadata: Extra inputs"),
        ([user({**text(), "x": 1})], {}, "text.x: Extra inputs are not permitted"),
    ],
)
async def test_anthropic(
    messages: list[dict[str, Any]], fields: dict[str, Any], problem: str
) -> None:
    """Each rule has its status 400 and its text."""
    refusal = await native(*messages, **fields)
    assert refusal.startswith("400 ") if problem else refusal == ""
    assert problem in refusal


async def test_anthropic_wants_thinking_signed_followed_and_unmarked() -> None:
    """A block goes back as it came, in front of something."""
    thought = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
    rest = [assistant(thought, text()), user(text())]
    assert await native(user(text()), *rest) == ""
    ends = await native(user(text()), assistant(text(), thought), user(text()))
    assert "final block in an assistant message cannot be `thinking`" in ends
    marked = {**thought, "cache_control": MARK}
    assert "Extra inputs" in await native(user(text()), assistant(marked, text()), user(text()))
    forged = {**thought, "signature": "x"}
    assert "signature" in await native(user(text()), assistant(forged, text()), user(text()))


@pytest.mark.parametrize(
    ("messages", "fields", "problem"),
    [
        ([{"role": "user", "content": "x"}], {}, ""),
        ([{"role": "tool", "tool_call_id": "a", "content": ""}], {}, "must follow a message"),
        ([{"role": "assistant", "tool_calls": [CALL]}], {}, "did not have response"),
        (
            [{"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": "x"}],
            {},
            "did not have response",
        ),
        ([{"role": "user", "content": "x"}], {"top_k": 1}, "Unrecognized request argument"),
        ([{"role": "user", "content": "x", "mood": 1}], {}, "Additional properties"),
        (
            [{"role": "user", "content": [{**text(), "cache_control": MARK}]}],
            {},
            "Unknown parameter",
        ),
        (
            [{"role": "assistant", "content": "x", "reasoning_content": "x"}],
            {},
            "Additional properties",
        ),
    ],
)
async def test_openai(messages: list[dict[str, Any]], fields: dict[str, Any], problem: str) -> None:
    """A strict server knows OpenAI's own fields and no others."""
    refusal = await compatible(*messages, **fields)
    assert refusal.startswith("400 ") if problem else refusal == ""
    assert problem in refusal


async def test_prompts_that_are_too_long() -> None:
    """By tokens and by bytes, with the sizes in the text."""
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [user(text("x" * 400))]}
    async with AnthropicServer(default=Reply(text="ok")) as server:
        server.max_prompt_tokens = 50
        assert (await post(server, body)).startswith("400 prompt is too long: 1")
        server.max_prompt_tokens, server.max_bytes = None, 100
        assert (await post(server, body)).startswith("413 Request exceeds the maximum size")


async def test_a_moved_prefix_is_noticed() -> None:
    """What was sent up to the last breakpoint must come again, byte for byte."""
    body = {"model": "m", "max_tokens": 9, "stream": True, "metadata": {"user_id": "c"}}
    first = [user(text("a"), text("b", MARK), text("c"))]
    async with AnthropicServer(default=Reply(text="ok")) as server:
        for messages in (first, [user(text("a", MARK), text("b"), text("d"))]):
            await post(server, body | {"messages": messages})
        assert server.moved == []
        await post(server, body | {"model": "n", "messages": [user(text("x", MARK))]})
        assert server.moved == []
        await post(server, body | {"model": "n", "messages": [user(text("y"))]})
        assert server.moved == ["c: 0 of 1 blocks are as before"]
        server.moves_allowed = True


async def test_a_prefix_that_a_summary_moved_is_in_order() -> None:
    """The provider takes and bills it; who asks for a summary stands beside the conversation."""
    body = {"model": "m", "max_tokens": 9, "stream": True, "metadata": {"user_id": "c"}}
    summary, asks = text(f"{MARKER} one"), text("Use exactly these headings: …", MARK)
    async with AnthropicServer(default=Reply(text="ok")) as server:
        for blocks in ([text("a"), text("b", MARK)], [text("a"), asks], [text("a"), text("b")]):
            await post(server, body | {"messages": [user(*blocks)]})
        await post(server, body | {"messages": [user(summary, text("c", MARK))]})
        assert server.moved == []
        await post(server, body | {"messages": [user(summary, text("d"))]})
        assert server.moved == ["c: 1 of 2 blocks are as before"]
        server.moves_allowed = True


async def test_thinking_is_bound_to_what_stands_before_it() -> None:
    """What was signed behind other messages is refused; marks of the cache change nothing."""
    body = {"model": "m", "max_tokens": 9, "stream": True}
    thought = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
    behind = [assistant(thought, text("ok")), user(text("b"))]
    async with AnthropicServer(default=Reply(thinking="hm", text="ok")) as server:
        await post(server, body | {"messages": [user(text("a"))]})
        assert await post(server, body | {"messages": [user(text("a", MARK)), *behind]}) == ""
        refusal = await post(server, body | {"messages": [user(text("A")), *behind]})
        assert "nor what stands before them" in refusal


async def test_a_moved_prefix_fails_the_test() -> None:
    """Unless it said that it may happen."""
    body = {"model": "m", "max_tokens": 9, "stream": True, "metadata": {"user_id": "c"}}
    server = await AnthropicServer(default=Reply(text="ok")).__aenter__()
    for content in "ab":
        await post(server, body | {"messages": [user(text(content, MARK))]})
    with pytest.raises(AssertionError, match="0 of 1 blocks"):
        await server.__aexit__(None, None, None)
