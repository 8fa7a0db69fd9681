"""A strict loopback double of Anthropic's Messages API (streaming only)."""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from typing_extensions import override

from agent.view.view import MARKER
from tests.support.anthropic_rules import check_body, positions
from tests.support.model_server import (
    Fault,
    ModelServer,
    Refusal,
    Reply,
    asks_for_summary,
    key_of,
    pieces,
    prompt_tokens,
    require,
)

# Source: https://platform.claude.com/docs/en/api/migration-2026-10-21 (the SDK 2.x sends it, and
# the key as a bearer token).
_VERSIONS = {"2023-06-01", "2026-10-21"}


def signature(thinking: str) -> str:
    """Return the double's signature of a thinking block."""
    return "sig-" + hashlib.sha256(thinking.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Cached:
    """What a conversation's newest answered request left in the cache, to its last breakpoint."""

    model: str
    prefix: list[str]


class AnthropicServer(ModelServer):
    """Answers POST /v1/messages; `url` has no /v1, as the SDK wants it.

    Leaving it fails where a request did not begin with what the request before it (of the same
    conversation and model, answered, with a breakpoint) had up to its last breakpoint. The provider
    refuses no such request, it bills the whole of it: one whose new summary says why is in order,
    and one that asks for a summary stands beside the conversation, whatever was sent meanwhile.

    Thinking that it has signed is bound to the messages before it, as with the newest models.

    `Reply.extra` knows: redacted (data of a block in front), signature, final_usage, id (of the
    message), and blocks: content blocks to send in place of everything else.

    Attributes:
        max_output_tokens: Most that `max_tokens` may be.
        moved: What was wrong with the prefixes of which requests.
        moves_allowed: Whether that is fine, as with a compaction that writes no summary.
    """

    path = "/v1/messages"
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    garbage = b'event: content_block_delta\ndata: {"type": "content_block_de'

    def __init__(self, api_key: str = "", default: Reply | None = None) -> None:
        super().__init__(api_key, default)
        self.max_output_tokens = 128_000
        self.moved: list[str] = []
        self.moves_allowed = False
        self._cached: dict[str, Cached] = {}
        self._bound: defaultdict[str, set[str]] = defaultdict(set)

    @override
    async def __aexit__(self, *failure: object) -> None:
        await super().__aexit__(*failure)
        if failure[0] is None and not self.moves_allowed:
            assert not self.moved, self.moved

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        key = key_of(headers)
        if not key or (self.api_key and key != self.api_key):
            raise Refusal(401, "authentication_error", f"invalid key {key}")
        require(headers.get("anthropic-version") in _VERSIONS, "anthropic-version: invalid")
        if self.models is not None and body.get("model") not in self.models:
            raise Refusal(404, "not_found_error", f"model: {body.get('model')}")
        check_body(body, self.max_output_tokens)
        self._check_thoughts(body)
        tokens, most = prompt_tokens(body), self.max_prompt_tokens
        fits = most is None or tokens <= most
        require(fits, f"prompt is too long: {tokens} tokens > {most} maximum")

    @override
    def note_answered(self, body: dict[str, Any]) -> None:
        conversation = body.get("metadata", {}).get("user_id")
        if conversation is None or asks_for_summary(body):
            return
        before = self._cached.get(conversation)
        prompt = [_unmarked(owner, block) for owner, block in positions(body)]
        if before and before.model == body["model"]:
            pairs = zip(before.prefix, prompt, strict=False)
            same, size = sum(1 for _ in takewhile(_are_equal, pairs)), len(before.prefix)
            if same < size and _summaries(prompt) <= _summaries(before.prefix):
                self.moved.append(f"{conversation}: {same} of {size} blocks are as before")
        marked = [n for n, (_, block) in enumerate(positions(body)) if "cache_control" in block]
        if marked:
            self._cached[conversation] = Cached(body["model"], prompt[: marked[-1] + 1])

    def _check_thoughts(self, body: dict[str, Any]) -> None:
        for place, message in enumerate(body["messages"]):
            for _, block in positions({"messages": [message]}):
                if block["type"] != "thinking":
                    continue
                signed = block.get("signature", "")
                valid = signed == signature(block["thinking"])
                require(valid, "Invalid `signature` in `thinking` block")
                bound = self._bound.get(signed)
                fits = bound is None or _digest(body["messages"][:place]) in bound
                require(fits, "`thinking` blocks cannot be modified, nor what stands before them")

    @override
    def look_up(self, name: str) -> dict[str, Any] | None:
        return self.infos.get(name)

    @override
    def error_body(self, fault: Fault) -> dict[str, Any]:
        error = {"type": fault.error or "api_error", "message": fault.message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        blocks = [{"thinking": reply.thinking}, *reply.extra.get("blocks", [])]
        for block in blocks:
            if thought := block.get("thinking"):
                self._bound[signature(thought)].add(_digest(body["messages"]))
        events = [_start(body, reply), {"type": "ping"}, *_blocks(reply)]
        if reply.error:
            error = {"type": reply.error, "message": "scripted error event"}
            events.append({"type": "error", "error": error})
        elif reply.trouble in {None, "cut_after_end"}:
            events += [_delta(reply), {"type": "message_stop"}]
        return [_frame(event) for event in events]


def _frame(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _unmarked(owner: str, block: dict[str, Any]) -> str:
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    return f"{owner} {json.dumps(plain)}"


def _are_equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def _summaries(prompt: list[str]) -> set[str]:
    return {block for block in prompt if MARKER in block}


def _digest(messages: list[dict[str, Any]]) -> str:
    """Return what thinking behind these messages is bound to."""
    told = "\n".join(_unmarked(*each) for each in positions({"messages": messages}))
    return hashlib.sha256(told.encode()).hexdigest()


def _start(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    usage = {
        "input_tokens": prompt_tokens(body),
        "output_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    message = {
        "id": reply.extra.get("id", "msg_1"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | (reply.usage or {}),
    }
    return {"type": "message_start", "message": message}


def _delta(reply: Reply) -> dict[str, Any]:
    reason = reply.stop or ("tool_use" if reply.calls else "end_turn")
    usage = {"output_tokens": len(reply.text) // 4 + 1} | reply.extra.get("final_usage", {})
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": usage}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    contents = [_begun(block) for block in reply.extra.get("blocks", [])]
    if "redacted" in reply.extra:
        contents.append(({"type": "redacted_thinking", "data": reply.extra["redacted"]}, []))
    if reply.thinking:
        parts = [
            {"type": "thinking_delta", "thinking": part}
            for part in pieces(reply.thinking, reply.piece)
        ]
        signed = reply.extra.get("signature", signature(reply.thinking))
        parts.append({"type": "signature_delta", "signature": signed})
        contents.append(({"type": "thinking", "thinking": "", "signature": ""}, parts))
    if reply.text:
        parts = [{"type": "text_delta", "text": part} for part in pieces(reply.text, reply.piece)]
        contents.append(({"type": "text", "text": ""}, parts))
    contents += [_call(number, *call) for number, call in enumerate(reply.calls)]
    events: list[dict[str, Any]] = []
    for index, (block, deltas) in enumerate(contents):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    return events


def _begun(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how a block begins, and the deltas that complete it."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        parts = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, parts
    return block, []


def _call(
    number: int, name: str, arguments: dict[str, Any] | str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    digest = hashlib.sha256(f"{name}{text}".encode()).hexdigest()[:12]
    block = {"type": "tool_use", "id": f"toolu_{number}{digest}", "name": name, "input": {}}
    parts = ["", *pieces(text, 5)]
    return block, [{"type": "input_json_delta", "partial_json": part} for part in parts]
