"""A strict loopback double of OpenAI's Responses API (streaming only, nothing stored)."""

import json
from typing import Any

from typing_extensions import override

from tests.support.model_server import Refusal, Reply, pieces, prompt_tokens, require
from tests.support.openai_server import BLANK, NAME, OpenAIServer

_TOP_KEYS = {
    "model",
    "input",
    "instructions",
    "stream",
    "store",
    "include",
    "tools",
    "tool_choice",
    "max_output_tokens",
    "reasoning",
    "text",
    "parallel_tool_calls",
    "prompt_cache_key",
    "service_tier",
    "metadata",
}
_ITEM_KEYS = {
    "message": {"type", "role", "content", "phase"},
    "function_call": {"type", "call_id", "name", "arguments", "id", "status"},
    "function_call_output": {"type", "call_id", "output", "id", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
}
ENCRYPTED = "enc:"
"""What thoughts begin with that this server has encrypted."""


class ResponsesServer(OpenAIServer):
    """Answers POST /v1/responses; `url` ends in /v1.

    Thoughts go out as reasoning items in front of the text, a further one in front of the calls,
    and must come back verbatim, each in front of what it led to.

    `Reply.extra` knows: refusal; phase (of the text); incomplete (a reason); failed (the error of
    `response.failed`); whole (no deltas, only whole items); no_items (the end alone);
    encrypted (False leaves it out).

    Attributes:
        reasons: Whether the model reasons; else it refuses to be asked for its thoughts.
        thoughts: All that were given out, by id.
    """

    path = "/v1/responses"
    ping = b": keep-alive\n\n"
    garbage = b'event: response.output_text.delta\ndata: {"type": "respo\n\n'

    def __init__(self, api_key: str = "", default: Reply | None = None) -> None:
        super().__init__(api_key, default)
        self.reasons = True
        self.thoughts: dict[str, dict[str, Any]] = {}
        self._made = 0

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.check_caller(headers, body)
        unknown = set(body) - _TOP_KEYS
        require(not unknown, f"Unknown parameter: {sorted(unknown)}")
        require(isinstance(body.get("model"), str), "Missing required parameter: 'model'.")
        require(body.get("stream") is True, "the double only streams")
        require(body.get("store") is False, "the double stores nothing")
        require(body.get("instructions", "x").strip(), BLANK)
        require(isinstance(body.get("input"), list) and body["input"], "Missing 'input'.")
        if not self.reasons:
            require(not body.get("include"), "Encrypted content is not supported with this model.")
        _check_tools(body)
        self._check_items(body["input"])
        tokens, most = prompt_tokens(body), self.max_prompt_tokens
        if most is not None and tokens > most:
            text = "Your input exceeds the context window of this model."
            raise Refusal(400, "context_length_exceeded", text)

    def _check_items(self, items: list[dict[str, Any]]) -> None:
        open_calls: set[str] = set()
        before: dict[str, Any] = {}
        for place, item in enumerate(items):
            kind = item.get("type", "")
            require(kind in _ITEM_KEYS, f"Invalid value: '{kind}' of input[{place}].type")
            extra = set(item) - _ITEM_KEYS[kind]
            require(not extra, f"Unknown parameter: 'input[{place}].{sorted(extra)}'.")
            if before.get("type") == "reasoning":
                leads = kind in {"reasoning", "function_call"} or item.get("role") == "assistant"
                text = "was provided without its required following item."
                require(leads, f"Item '{before['id']}' of type 'reasoning' {text}")
            if kind == "message":
                _check_message(place, item)
            elif kind == "function_call":
                _check_call(item)
                open_calls.add(item["call_id"])
            elif kind == "function_call_output":
                known = item.get("call_id") in open_calls
                require(known, f"No tool call found for {kind} with call_id {item.get('call_id')}.")
                open_calls.discard(item["call_id"])
                require(isinstance(item.get("output"), str), f"input[{place}].output: a string")
                require(not item["output"].isspace(), BLANK)
            else:
                self._check_thought(item)
            before = item
        last = before.get("id")
        require(before.get("type") != "reasoning", f"Item '{last}' without its required following")
        require(not open_calls, f"No tool output found for function call {sorted(open_calls)}.")

    def _check_thought(self, item: dict[str, Any]) -> None:
        text = f"Item with id '{item.get('id')}' not found. Items are not persisted when `store`"
        if "encrypted_content" not in item:
            raise Refusal(404, "invalid_request_error", f"{text} is set to false.")
        made = self.thoughts.get(item["id"])
        same = made is not None and made == item
        require(same, "The encrypted content could not be verified.", error="invalid_encrypted")

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        response = {"id": "resp_1", "object": "response", "model": body["model"], "output": []}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**response, "status": "in_progress"}}
        ]
        if not reply.extra.get("no_items"):
            for place, item in enumerate(self._output(body, reply)):
                events += _item_events(place, item, reply)
        if reply.error:
            events.append({
                "type": "error",
                "code": reply.error,
                "message": "scripted",
                "param": "",
            })
        elif reply.trouble in {None, "cut_after_end"}:
            events.append(_end_event(response, body, reply))
        return [
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            for number, event in enumerate(events)
            if event.setdefault("sequence_number", number) >= 0
        ]

    def _output(self, body: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        if reply.thinking:
            output.append(self._thought(body, reply, reply.thinking))
        if text := reply.text:
            message = {"type": "message", "role": "assistant", "id": "msg_1"}
            content = [{"type": "output_text", "text": text, "annotations": []}]
            phase = {"phase": reply.extra["phase"]} if "phase" in reply.extra else {}
            output.append({**message, "content": content, **phase})
        if refusal := reply.extra.get("refusal"):
            content = [{"type": "refusal", "refusal": refusal}]
            output.append({"type": "message", "role": "assistant", "id": "m", "content": content})
        if reply.thinking and reply.text and reply.calls:
            output.append(self._thought(body, reply, f"{reply.thinking} And call."))
        for number, (name, arguments) in enumerate(reply.calls):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            self._made += 1
            call = {"type": "function_call", "id": f"fc_{number}", "name": name}
            output.append({**call, "call_id": f"call_{self._made}", "arguments": text})
        return output

    def _thought(self, body: dict[str, Any], reply: Reply, text: str) -> dict[str, Any]:
        thought: dict[str, Any] = {
            "id": f"rs_{len(self.thoughts)}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}],
        }
        if "reasoning.encrypted_content" in body.get("include", ()):
            if reply.extra.get("encrypted", True):
                thought["encrypted_content"] = f"{ENCRYPTED}{text[::-1]}"
            self.thoughts[thought["id"]] = dict(thought)
        return thought


def _item_events(place: int, item: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
    begun = {key: value for key, value in item.items() if key not in {"content", "arguments"}}
    deltas = [] if reply.extra.get("whole") else _deltas(item, reply)
    done = {"type": "response.output_item.done", "output_index": place, "item": item}
    events = [{"type": "response.output_item.added", "item": begun, "output_index": place}]
    events += [{**delta, "output_index": place, "item_id": item["id"]} for delta in deltas]
    # A stream that is cut after its text is cut before the item is done.
    return events if reply.trouble == "cut" else [*events, done]


def _deltas(item: dict[str, Any], reply: Reply) -> list[dict[str, Any]]:
    if item["type"] == "reasoning":
        texts, name = [each["text"] for each in item["summary"]], "reasoning_summary_text"
    elif item["type"] == "function_call":
        texts, name = [item["arguments"]], "function_call_arguments"
    else:
        part = item["content"][0]
        texts = [part.get("text") or part.get("refusal")]
        name = part["type"]
    parts = [part for text in texts for part in pieces(text, reply.piece)]
    return [{"type": f"response.{name}.delta", "delta": part} for part in parts]


def _end_event(response: dict[str, Any], body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    prompt, answer = prompt_tokens(body), len(reply.text) // 4 + 1
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + answer,
    }
    told = {**response, "usage": None if reply.usage is None else usage | reply.usage}
    if error := reply.extra.get("failed"):
        return {"type": "response.failed", "response": {**told, "status": "failed", "error": error}}
    if reason := reply.extra.get("incomplete"):
        details = {"reason": reason}
        ended = {**told, "status": "incomplete", "incomplete_details": details}
        return {"type": "response.incomplete", "response": ended}
    return {"type": "response.completed", "response": {**told, "status": "completed"}}


def _check_tools(body: dict[str, Any]) -> None:
    for tool in body.get("tools", []):
        known = {"type", "name", "description", "parameters", "strict"}
        require(set(tool) == known, f"Unknown parameter: tools {sorted(set(tool) ^ known)}")
        require(NAME.fullmatch(tool["name"]), "Invalid 'tools[0].name': pattern")
        require(tool["strict"] is False, "strict schemas must require every property")
        require(tool["parameters"].get("type") == "object", "tools.parameters: type")
    if "tool_choice" in body:
        require(body.get("tools"), "tool_choice is only allowed when tools are specified")


def _check_message(place: int, item: dict[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    require(role in {"user", "assistant", "system", "developer"}, f"input[{place}].role: {role}")
    require("phase" not in item or role == "assistant", f"input[{place}].phase")
    if isinstance(content, str):
        require(content, f"input[{place}].content: empty")
        require(content.strip(), BLANK)
        return
    require(isinstance(content, list) and content, f"input[{place}].content: a string or parts")
    assert isinstance(content, list)
    for part in content:
        kind = part.get("type")
        known = {"input_text": {"type", "text"}, "input_image": {"type", "image_url", "detail"}}
        require(kind in known, f"Invalid value: '{kind}' of input[{place}].content")
        require(set(part) == known[kind], f"Unknown parameter: {sorted(part)}")
        require(kind != "input_text" or part["text"].strip(), BLANK)


def _check_call(item: dict[str, Any]) -> None:
    require(NAME.fullmatch(item.get("name", "")), "Invalid 'name': pattern")
    require(isinstance(json.loads(item["arguments"]), dict), "arguments must be a JSON object")
