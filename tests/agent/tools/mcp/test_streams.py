"""What is looked at before the SDK sees it."""

from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from agent.tools.mcp.streams import MAX_PARTS, Watched


async def received(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result as it is handed to the SDK."""
    sending, receiving = anyio.create_memory_object_stream[SessionMessage](1)
    async with sending, Watched(receiving, lambda: None) as watched:
        await sending.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result=result)))
        message = await watched.receive()
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, JSONRPCResponse)
    return message.message.result


async def test_a_result_of_too_many_parts_is_cut() -> None:
    """The SDK would hold the loop for seconds; the mark says how many are missing."""
    part = {"type": "text", "text": "x"}
    parts = (await received({"content": [part] * (MAX_PARTS + 500)}))["content"]
    assert parts[:-1] == [part] * MAX_PARTS
    assert parts[-1] == {"type": "text", "text": "[500 more parts left out]"}


async def test_other_results_pass_as_they_are() -> None:
    """Whatever they hold."""
    for result in ({"content": [1] * MAX_PARTS}, {"content": "odd"}, {}):
        assert await received(dict(result)) == result
