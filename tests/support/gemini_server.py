"""A strict loopback double of Gemini's OpenAI-compatible endpoint, where it differs from OpenAI's.

Sources: https://ai.google.dev/gemini-api/docs/openai and …/docs/thought-signatures, and what the
endpoint answers in public issues (the list around errors, finish reasons, sums of usage, indexes).
"""

import json
from typing import Any

from typing_extensions import override

from agent.models.openai.wire import SIGNED_BY_NOBODY
from tests.support.model_server import Fault, Refusal, Reply, key_of, pieces, prompt_tokens
from tests.support.openai_server import OpenAIServer

_STATES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
_KNOWN = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "temperature",
    "top_p",
    "extra_body",
}
_UNCOMMON = {"const", "exclusiveMinimum", "$schema", "additionalProperties"}
_URL = "https://ai.google.dev/gemini-api/docs/thought-signatures"


class GeminiServer(OpenAIServer):
    """Answers POST /v1beta/openai/chat/completions; `url` ends in /v1beta/openai.

    Calls come whole, each in a delta of its own and all with the index 0; the first of an answer
    is signed. What the model thinks counts in the sum of the report alone.

    `Reply.extra` knows: no_ids (calls have none), thoughts (tokens).

    Attributes:
        signs: Whether the model signs its calls, and wants the signatures back (Gemini 3).
        signatures: All that were given out.
        words: Words of JSON schemas that it does not know.
    """

    path = "/v1beta/openai/chat/completions"
    root = "/v1beta/openai"

    def __init__(self, api_key: str = "", default: Reply | None = None) -> None:
        super().__init__(api_key, default)
        self.extensions = frozenset({"extra_content"})
        self.signs = True
        self.signatures: set[str] = set()
        self.words: set[str] = set(_UNCOMMON)
        self._made = 0

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        if self.api_key and key_of(headers) != self.api_key:
            text = "API key not valid. Please pass a valid API key."
            raise Refusal(400, "API_KEY_INVALID", text)
        for name in sorted(set(body) - _KNOWN):
            text = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            raise Refusal(400, "", text)
        for tool in body.get("tools", ()):
            self._check_schema(tool["function"]["parameters"])
        self._check_size(body)
        super().check(headers, body)
        if self.signs:
            self._check_signatures(body["messages"])

    def _check_size(self, body: dict[str, Any]) -> None:
        tokens, most = prompt_tokens(body), self.max_prompt_tokens
        if most is not None and tokens > most:
            text = f"The input token count ({tokens}) exceeds the maximum number of tokens"
            raise Refusal(400, "", f"{text} allowed ({most}).")

    def _check_schema(self, schema: object) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._check_schema(each)
        if not isinstance(schema, dict):
            return
        for word in sorted(self.words & set(schema)):
            place = "tools[0].function_declarations[0].parameters"
            text = f"Invalid JSON payload received. Unknown name \"{word}\" at '{place}': Cannot"
            raise Refusal(400, "", f"{text} find field.")
        for each in [*schema.get("properties", {}).values(), schema.get("items")]:
            self._check_schema(each)

    def _check_signatures(self, messages: list[dict[str, Any]]) -> None:
        """Refuse a step of the current turn whose first call is not signed."""
        asked = max(n for n, each in enumerate(messages) if each["role"] == "user")
        skipped = SIGNED_BY_NOBODY["google"]["thought_signature"]
        for place, message in enumerate(messages[asked:], start=asked):
            if calls := message.get("tool_calls"):
                extra = calls[0].get("extra_content", {}).get("google", {})
                signature = extra.get("thought_signature", "")
                if not signature:
                    name = calls[0]["function"]["name"]
                    text = "Function call is missing a thought_signature in functionCall parts."
                    more = f"Additional data, function call `default_api:{name}` , position {place}"
                    raise Refusal(400, "", f"{text} {more}. Please refer to {_URL}")
                if signature not in {*self.signatures, skipped}:
                    raise Refusal(400, "", "Thought signature is not valid.")

    @override
    def error_body(self, fault: Fault) -> Any:
        state = _STATES.get(fault.status, "INTERNAL")
        details: list[dict[str, Any]] = []
        if fault.error.endswith("s") and fault.status == 429:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            details.append({"@type": kind, "retryDelay": fault.error})
        error = {"code": fault.status, "message": fault.message, "status": state}
        return [{"error": error | ({"details": details} if details else {})}]

    @override
    def look_up(self, name: str) -> dict[str, Any] | None:
        entries = [{"id": f"models/{each}", "object": "model"} for each in self.infos]
        return {"object": "list", "data": entries}

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        deltas = [{"role": "assistant", "content": part} for part in pieces(reply.text, 20)]
        deltas += [{"tool_calls": [self._call(n, reply)]} for n in range(len(reply.calls))]
        chunks = [self._chunk(body, delta, reply) for delta in deltas]
        if reply.error:
            chunks.append(self.error_body(Fault(status=int(reply.error)))[0])
        elif reply.trouble is None:
            # "stop" also where calls were made.
            chunks.append(self._chunk(body, {}, reply, reply.stop or "stop"))
        ended = [] if reply.trouble or reply.error else [b"data: [DONE]\n\n"]
        return [*(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks), *ended]

    def _call(self, number: int, reply: Reply) -> dict[str, Any]:
        name, arguments = reply.calls[number]
        self._made += 1
        call_id = "" if reply.extra.get("no_ids") else f"function-call-{self._made}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        call: dict[str, Any] = {"index": 0, "id": call_id, "type": "function"}
        call["function"] = function
        if self.signs and number == 0:
            signature = f"sig-{self._made}"
            self.signatures.add(signature)
            call["extra_content"] = {"google": {"thought_signature": signature}}
        return call

    def _chunk(
        self, body: dict[str, Any], delta: dict[str, Any], reply: Reply, reason: str | None = None
    ) -> dict[str, Any]:
        prompt, answer = prompt_tokens(body), len(reply.text) // 4 + 1
        thoughts = reply.extra.get("thoughts", 0)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer + thoughts,
        }
        choice: dict[str, Any] = {"index": 0, "delta": delta}
        if reason:
            choice["finish_reason"] = reason
        chunk = {"object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
        # A report comes with every piece.
        return chunk | {"usage": usage | (reply.usage or {})}
