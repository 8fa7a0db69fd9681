"""A strict loopback double of OpenAI's Chat Completions API (streaming only)."""

import json
import re
from typing import Any

from typing_extensions import override

from tests.support.model_server import (
    Fault,
    ModelServer,
    Refusal,
    Reply,
    key_of,
    pieces,
    prompt_tokens,
    require,
)

_TOP_KEYS = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "max_tokens",
    "logit_bias",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "reasoning_effort",
    "parallel_tool_calls",
    "service_tier",
    "prompt_cache_key",
    "metadata",
    "user",
}
_MESSAGE_KEYS = {
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
BLANK = "messages: text content blocks must contain non-whitespace text"
"""What Claude says behind a bridge: LiteLLM, OpenRouter, Bedrock."""
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class OpenAIServer(ModelServer):
    """Answers POST /v1/chat/completions; `url` ends in /v1, as the SDK wants it.

    `Reply.extra` knows: reasoning_field (default reasoning_content), call_ids (False leaves them
    out), one_index (every call has index 0), refusal, done (False leaves out `[DONE]`),
    raw (deltas to send before the text), extra_content (of every call).

    Attributes:
        extensions: Fields beyond OpenAI's own that this server takes in messages: cache_control,
            reasoning_content, reasoning_details, extra_content.
    """

    path = "/v1/chat/completions"
    root = "/v1"
    ping = b": OPENROUTER PROCESSING\n\n"
    garbage = b'data: {"id": "chatcmpl-1", "choi\n\n'

    def __init__(self, api_key: str = "", default: Reply | None = None) -> None:
        super().__init__(api_key, default)
        self.extensions: frozenset[str] = frozenset()

    def check_caller(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        """Refuse a wrong key, and a model that there is not."""
        key = key_of(headers)
        if self.api_key and key != self.api_key:
            raise Refusal(401, "invalid_api_key", f"Incorrect API key provided: {key}")
        if self.models is not None and body.get("model") not in self.models:
            raise Refusal(404, "model_not_found", f"no model {body.get('model')}")

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.check_caller(headers, body)
        unknown = set(body) - _TOP_KEYS
        require(not unknown, f"Unrecognized request argument supplied: {sorted(unknown)}")
        require(isinstance(body.get("model"), str), "you must provide a model parameter")
        require(body.get("stream") is True, "the double only streams")
        limits = {"max_tokens", "max_completion_tokens"} & set(body)
        require(len(limits) == 1, f"one limit, not {sorted(limits)}")
        require(isinstance(body.get("messages"), list) and body["messages"], "messages missing")
        _check_tools(body)
        _check_messages(body["messages"], self.extensions)
        tokens, most = prompt_tokens(body), self.max_prompt_tokens
        if most is not None and tokens > most:
            text = f"This model's maximum context length is {most} tokens. However, your messages"
            text += f" resulted in {tokens} tokens."
            raise Refusal(400, "context_length_exceeded", text)

    @override
    def look_up(self, name: str) -> dict[str, Any] | None:
        entries = [{"id": model, "object": "model", **info} for model, info in self.infos.items()]
        if name:
            return next((entry for entry in entries if entry["id"] == name), None)
        return {"object": "list", "data": entries}

    @override
    def error_body(self, fault: Fault) -> dict[str, Any]:
        error = {"message": fault.message, "type": "error", "param": None, "code": fault.error}
        return {"error": error}

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        chunks = [_chunk(body, delta) for delta in _deltas(reply)]
        if reply.error:
            chunks.append({"error": {"message": "scripted error event", "code": reply.error}})
        elif reply.trouble in {None, "cut_after_end"}:
            reason = reply.stop or ("tool_calls" if reply.calls else "stop")
            chunks.append(_chunk(body, {}, reason))
            if reply.usage is not None and body.get("stream_options", {}).get("include_usage"):
                chunks.append(_usage_chunk(body, reply))
        frames = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
        ended = not reply.trouble and not reply.error and reply.extra.get("done", True)
        return [*frames, b"data: [DONE]\n\n"] if ended else frames


def _chunk(
    body: dict[str, Any], delta: dict[str, Any], reason: str | None = None
) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        "usage": None,
    }


def _usage_chunk(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    prompt, answer = prompt_tokens(body), len(reply.text) // 4 + 1
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }
    return _chunk(body, {}) | {"choices": [], "usage": usage | (reply.usage or {})}


def _deltas(reply: Reply) -> list[dict[str, Any]]:
    field = reply.extra.get("reasoning_field", "reasoning_content")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{field: part} for part in pieces(reply.thinking, reply.piece)]
    deltas += reply.extra.get("raw", [])
    deltas += [{"content": part} for part in pieces(reply.text, reply.piece)]
    deltas += [{"refusal": part} for part in pieces(reply.extra.get("refusal", ""), reply.piece)]
    for number, (name, arguments) in enumerate(reply.calls):
        deltas += _call_deltas(number, name, arguments, reply)
    return deltas


def _call_deltas(
    number: int, name: str, arguments: dict[str, Any] | str, reply: Reply
) -> list[dict[str, Any]]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    index = 0 if reply.extra.get("one_index") else number
    call_id = f"call_{number}{name}" if reply.extra.get("call_ids", True) else None
    function: dict[str, Any] = {"name": name, "arguments": ""}
    first = {"index": index, "id": call_id, "type": "function", "function": function}
    if "extra_content" in reply.extra:
        first["extra_content"] = reply.extra["extra_content"]
    rest = [{"index": index, "function": {"arguments": part}} for part in pieces(text, 5)]
    return [{"tool_calls": [call]} for call in [first, *rest]]


def _check_tools(body: dict[str, Any]) -> None:
    for tool in body.get("tools", []):
        require(set(tool) == {"type", "function"}, "tools: unknown keys")
        function = tool["function"]
        require(set(function) <= {"name", "description", "parameters"}, "tools: unknown keys")
        require(NAME.fullmatch(function["name"]), "tools.function.name: pattern")
        require(function["parameters"].get("type") == "object", "tools.function.parameters: type")
    if "tool_choice" in body:
        require(body.get("tools"), "tool_choice is only allowed when tools are specified")


def _check_messages(messages: list[dict[str, Any]], extensions: frozenset[str]) -> None:
    open_ids: set[str] = set()
    for place, message in enumerate(messages):
        role = message.get("role", "")
        require(role in _MESSAGE_KEYS, f"messages.[{place}].role: {role!r} is not one of the roles")
        known = _MESSAGE_KEYS[role] | (extensions if role == "assistant" else frozenset())
        extra = set(message) - known
        require(not extra, f"messages.[{place}]: Additional properties are not allowed {extra}")
        _check_content(place, message.get("content"), extensions)
        if role == "tool":
            known_id = message.get("tool_call_id") in open_ids
            require(known_id, "messages with role 'tool' must follow a message with 'tool_calls'")
            open_ids.discard(message["tool_call_id"])
        else:
            require(not open_ids, f"tool_call_ids did not have response messages: {open_ids}")
        if role == "assistant":
            open_ids = _check_assistant(message, extensions)
        else:
            require(message.get("content") is not None, f"messages.[{place}].content: string")
    require(not open_ids, f"tool_call_ids did not have response messages: {open_ids}")


def _check_content(place: int, content: object, extensions: frozenset[str]) -> None:
    if content is None or isinstance(content, str):
        require(not (content or "").isspace(), BLANK)
        return
    require(isinstance(content, list) and content, f"messages.[{place}].content: a string or parts")
    assert isinstance(content, list)
    for part in content:
        kind = part.get("type")
        require(kind in {"text", "image_url"}, f"messages.[{place}].content: type {kind!r}")
        extra = set(part) - {"type", kind} - (extensions & {"cache_control"})
        require(not extra, f"messages.[{place}].content: Unknown parameter {extra}")
        require(part[kind], f"messages.[{place}].content: empty {kind}")
        require(kind != "text" or part[kind].strip(), BLANK)


def _check_assistant(message: dict[str, Any], extensions: frozenset[str]) -> set[str]:
    calls = message.get("tool_calls")
    require(calls or message.get("content"), "assistant message without content and tool_calls")
    require(calls != [], "tool_calls: array too short")
    for call in calls or []:
        extra = set(call) - {"id", "type", "function"} - (extensions & {"extra_content"})
        require(not extra, f"tool_calls: unknown keys {extra}")
        arguments = call["function"]["arguments"]
        require(NAME.fullmatch(call["function"]["name"]), "tool_calls.function.name: pattern")
        require(isinstance(json.loads(arguments), dict), "arguments must be a JSON object")
    ids = [call["id"] for call in calls or []]
    require(len(ids) == len(set(ids)), "tool_calls: duplicate ids")
    return set(ids)
