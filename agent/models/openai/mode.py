"""Quirks of servers that speak OpenAI's API, learned from their refusals.

The chat templates of many models require strict roles or reject system messages; some servers name
a field differently. These quirks are undocumented and change with the server's software. So a
request is first sent in the usual form; if the server refuses it with a known message, the request
is sent again in the form the message asks for.

A quirk is remembered per server and model for one day, in this process; after that another refusal
must teach it again. `wire.py` applies quirks.
"""

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import structlog

from agent.models.refusals import Refusal

log = structlog.get_logger()

Quirk = Literal[
    "strict_roles",
    "no_system",
    "no_tools",
    "no_null",
    "one_call",
    "short_ids",
    "signed_calls",
    "reasoned",
    "blank_reasoning",
    "max_tokens",
    "max_completion_tokens",
    "no_stream_options",
    "no_tool_choice",
    "no_encrypted_reasoning",
    "plain_schemas",
    "tool_parser_off",
]
"""Deviations of a server from the usual form.

- strict_roles: roles must alternate; no question directly after tool results.
- no_system: rejects system messages; their text goes before the first question.
- no_tools: rejects tools; earlier calls are sent as text.
- no_null: a message that only has calls still needs a text, even an empty one.
- one_call: accepts a single call per assistant message.
- short_ids: call ids must be nine letters or digits.
- signed_calls: every call needs a signature, even another model's call (Gemini 3).
- reasoned: an answer needs `reasoning_content`, even an empty one (DeepSeek, Kimi).
- blank_reasoning: it must not be empty, but an ellipsis suffices (some versions of Kimi).
- max_tokens, max_completion_tokens: the name of the output limit's field.
- no_stream_options, no_tool_choice: rejects the field.
- no_encrypted_reasoning: the model does not reason (Responses).
- plain_schemas: tool schemas may only use the common JSON Schema keywords.
- tool_parser_off: tool calls arrive as text. Changes no request; reported to the operator.
"""
Quirks = frozenset[Quirk]
PARSER_OFF: Quirk = "tool_parser_off"
Limit = Literal["window", "output"]
"""A size that a refusal may name: of the window or of the longest answer."""

_CALL_MARK = re.compile(
    # <tool_call>, [TOOL_CALLS], <function=…>, <invoke name=…>, <|python_tag|>, <|action_start|>
    r"(?<![\w`\"'])(?:\[tool_calls?\]|<[\w:|\uff5c\u2581]*(?:tool|function|invoke|action|python))"
    # gpt-oss, Phi, Gemma; Llama writes the object alone
    r"|\bto=functions\.|\bfunctools\[|```tool_code"
    r"|(?:\A|```(?:json)?)\s*[\[{]+\s*\"(?:name|type|function|tool)\"|\A\s*\[(?=\w+\()",
    re.IGNORECASE,
)
_CALL_CHARS = 200
"""The tool's name follows within this many characters after such a mark."""

REFUSALS = frozenset({400, 422, 500})
"""Status codes of a refused form; llama.cpp sends 500 if a template raises."""
LOOK_AGAIN_S = 24 * 3600.0
"""Lifetime of a learned quirk in seconds. Learning it again costs one refusal."""

_UNKNOWN = (
    r"(?:un(?:supported|known|recognized|expected)|not (?:supported|permitted|allowed|recognized)"
    r"|extra (?:inputs|fields)|cannot find field|does not support|invalid (?:field|argument))"
)


def _unknown(name: str) -> str:
    return rf"{_UNKNOWN}[^.]*\b{name}\b|\b{name}\b[^.]*{_UNKNOWN}"


_NO_REASONING = (
    r"reasoning_content\b.{0,80}(?:passed back|missing|required|must|empty|not found)"
    r"|(?:missing|requires?|without|expect\w*)\b.{0,60}\breasoning_content"
)
_NOT_BY_TURNS = (
    r"roles? must alternate|roles should be alternating|must alternate between"
    r"|multiturn requests alternate|unexpected role .{0,3}user.{0,3} after role .{0,3}(?:tool|user)"
    r"|function call turn comes immediately after a user turn"
)
_NO_TOOLS = (
    r"does not support (?:tools|function calling|tool use)"
    r"|(?:function calling|tool use) is not (?:enabled|supported)"
    r"|\btools?.? (?:is|are) not (?:supported|allowed|permitted)"
    r"|unsupported parameter: .?tools\b(?!\[)"
    r"|unrecognized request argument(?: supplied)?: .?tools\b(?!\[)"
    r"|requires --enable-auto-tool-choice|only user and assistant roles are supported"
    r"|(?:unknown|unsupported|invalid|unexpected) (?:message )?role:? .?tool\b"
)
_NO_NULL = (
    r"NoneType"
    r"|\bcontent\b.{0,60}(?:valid string|must be a string|not be (?:null|none)|is required)"
)
_NO_SYSTEM = (
    r"system (?:role|messages?|prompts?) (?:is |are )?not (?:supported|enabled|allowed)"
    r"|does not support .{0,3}system|developer instruction is not enabled"
    r"|(?:unknown|unsupported|invalid|unexpected) (?:message )?role:? .?system\b"
)
_SHORT_IDS = r"alphanumeric strings? with length 9|a-z, A-Z, 0-9, with a length of 9"
_ONE_CALL = r"only supports? single tool.calls?|parallel tool calls are not supported"
_SCHEMAS = rf"{_UNKNOWN}.{{0,200}}(?:function_declarations|function\.parameters|json schema)"
# Ordered from specific to general. Sources: `raise_exception` in templates (Llama, Mistral, Gemma),
# and messages of OpenAI, Mistral, Gemini, Perplexity, Ollama, vLLM and OpenRouter, quoted in their
# documentation and issue trackers.
_SIGNS: tuple[tuple[Quirk, str], ...] = (
    ("signed_calls", r"missing an? .{0,3}thought_signature"),
    ("reasoned", _NO_REASONING),
    ("blank_reasoning", _NO_REASONING),
    ("short_ids", _SHORT_IDS),
    ("one_call", _ONE_CALL),
    ("max_completion_tokens", r"max_tokens.{0,80}use .{0,3}max_completion_tokens"),
    ("max_tokens", _unknown("max_completion_tokens")),
    ("no_stream_options", _unknown("stream_options")),
    ("no_encrypted_reasoning", r"encrypted content is not supported"),
    ("plain_schemas", _SCHEMAS),
    ("no_tools", _NO_TOOLS),
    ("no_null", _NO_NULL),
    ("no_tool_choice", _unknown("tool_choice")),
    ("no_system", _NO_SYSTEM),
    ("strict_roles", _NOT_BY_TURNS),
    # Older templates count every message and report the same error for any unknown role.
    ("no_system", _NOT_BY_TURNS),
    ("no_tools", _NOT_BY_TURNS),
)
_COMPILED = [(quirk, re.compile(sign, re.IGNORECASE | re.DOTALL)) for quirk, sign in _SIGNS]
_OPPOSITE: dict[Quirk, Quirk] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
_SENT_WITH: dict[Quirk, Quirks] = {
    "max_tokens": frozenset({"max_completion_tokens"}),
    "blank_reasoning": frozenset({"reasoned"}),
}
"""Quirks that can only be learned from a request with these features."""


def is_official(base_url: str) -> bool:
    """Return whether a URL belongs to OpenAI itself."""
    return (urlsplit(base_url).hostname or "").endswith("api.openai.com")


@dataclass(slots=True)
class ServerMode:
    """The form and the size limits of requests to one server and model.

    Attributes:
        usual: Quirks known without a refusal.
        now: Clock in seconds since the epoch.
    """

    server: str
    usual: Quirks = frozenset()
    now: Callable[[], float] = time.time
    _learned: dict[Quirk, float] = field(default_factory=dict)
    _limits: dict[Limit, tuple[int, float, int]] = field(default_factory=dict)

    @property
    def quirks(self) -> Quirks:
        """Quirks for the next request."""
        return _with(self.usual, self.learned)

    @property
    def learned(self) -> Quirks:
        """Quirks learned within the last day; tool_parser_off stays until a proper call arrives."""
        since = self.now() - LOOK_AGAIN_S
        found = self._learned.items()
        return frozenset(each for each, at in found if at > since or each == PARSER_OFF)

    def limit(self, limit: Limit, believed: int | None = 0) -> float:
        """Return the limit in tokens named by a refusal within the last day, or inf.

        `believed` is the previously known limit, which may have changed since; None matches any.
        """
        tokens, seen, then = self._limits.get(limit, (0, 0.0, 0))
        is_new = self.now() - seen < LOOK_AGAIN_S and believed in {then, None}
        return tokens if is_new else math.inf

    def keep_limit(self, limit: Limit, tokens: int, believed: int = 0) -> None:
        """Limit later requests to `tokens`; `believed` was the limit so far."""
        self._limits[limit] = tokens, self.now(), believed
        log.warning("server_mode_learned", server=self.server, quirk=limit, tokens=tokens)

    def keep_to(self, quirks: Iterable[Quirk]) -> None:
        """Use these quirks from now on: the server accepted a request in their form."""
        for quirk in sorted(quirks):
            if quirk not in self._learned:
                # Log without the server's message: it may repeat the request.
                log.warning("server_mode_learned", server=self.server, quirk=quirk)
            self._learned.pop(_OPPOSITE.get(quirk, quirk), None)
            self._learned[quirk] = self.now()

    def note_calls(self, text: str, names: Iterable[str], *, called: bool) -> None:
        """Learn from an answer's text whether calls of the tools `names` arrive as text."""
        is_known = PARSER_OFF in self._learned
        if called and is_known:
            self._learned.pop(PARSER_OFF)
            log.info("server_mode_forgotten", server=self.server, quirk=PARSER_OFF)
        elif not called and not is_known and has_call(text, names):
            self.keep_to([PARSER_OFF])


_MODES: dict[str, ServerMode] = {}


def mode_of(server: str) -> ServerMode:
    """Return the shared mode of a server and model in this process."""
    return _MODES.setdefault(server, ServerMode(server))


def known_modes() -> list[ServerMode]:
    """Return the modes of all servers used so far."""
    return list(_MODES.values())


def has_call(text: str, names: Iterable[str]) -> bool:
    """Return whether a text contains a call of one of the tools, in any known model's format."""
    marks = (text[mark.start() : mark.end() + _CALL_CHARS] for mark in _CALL_MARK.finditer(text))
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    return any(known.search(each) for each in marks)


def _with(quirks: Quirks, learned: Quirks) -> Quirks:
    """Add learned quirks and remove their opposites."""
    return learned | {quirk for quirk in quirks if _OPPOSITE.get(quirk) not in learned}


def quirk_named_in(refusal: str, known: Quirks) -> Quirk | None:
    """Return the quirk named by the words of a refusal, or None.

    `known` holds the quirks of the refused request and its predecessors: it stops the retries with
    a server that refuses both of two forms.
    """
    for quirk, sign in _COMPILED:
        met = quirk in known or not _SENT_WITH.get(quirk, known) <= known
        if not met and sign.search(refusal):
            return quirk
    return None


class Negotiation:
    """Finds the form of a request that the server accepts; `build` makes a body for quirks."""

    def __init__(self, mode: ServerMode, build: Callable[[Quirks], dict[str, Any]]) -> None:
        self._mode = mode
        self._build = build
        self._quirks = mode.quirks
        self._learned: Quirks = frozenset()

    def body(self) -> dict[str, Any]:
        """Return the body to send now."""
        return self._build(self._quirks)

    def goes_on(self, refusal: Refusal) -> bool:
        """Return whether the server may accept another form."""
        if refusal.status not in REFUSALS:
            return False
        refused = self._build(self._quirks)
        known = self._quirks | self._learned
        # A quirk that leaves the request unchanged cannot be the reason for the refusal.
        while (quirk := quirk_named_in(refusal.text, known)) is not None:
            other = _with(self._quirks, frozenset({quirk}))
            if self._build(other) != refused:
                self._learned |= {quirk}
                self._quirks = other
                return True
            known |= {quirk}
        return False

    def settle(self) -> None:
        """Remember the form in which the server accepted the request."""
        if self._learned:
            self._mode.keep_to(self._learned & self._quirks)
