"""What a server that speaks OpenAI's API does not take, learned from its refusals.

Servers differ in what they refuse: the chat templates of many models want strict roles or know no
system message, others know a field by another name. Nobody documents it all, and it changes with
the server's software. So a request goes out in the usual form; where the server refuses it in known
words, the quirk that meets them is noted, and the request is made again in the other form.

What was learned is valid for a server and a model, for a day, in this process: then a request goes
out in the usual form, and a refusal teaches it again. `roles.py` and `wire.py` apply it.
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
"""Ways in which a server differs.

- strict_roles: user and assistant by turns; no question right behind the results of tools.
- no_system: it knows no system message; the text goes in front of the first question.
- no_tools: it takes neither tools nor what belongs to them; earlier calls go as text.
- no_null: a message that only calls needs a text, if an empty one.
- one_call: an assistant message may hold one call alone.
- short_ids: ids of calls are nine letters or digits.
- signed_calls: a call needs a signature, also one that another model made (Gemini 3).
- reasoned: an answer needs `reasoning_content`, if an empty one (DeepSeek, Kimi).
- blank_reasoning: an empty one is refused as well, an ellipsis is not (some versions of Kimi).
- max_tokens, max_completion_tokens: what it calls the limit of the output.
- no_stream_options, no_tool_choice: it does not know the field.
- no_encrypted_reasoning: the model does not reason, so there is nothing to ask for (Responses).
- plain_schemas: it knows only the common words of the JSON schemas of tools.
- tool_parser_off: calls of tools come as text. Changes no request: the operator is told.
"""
Quirks = frozenset[Quirk]
PARSER_OFF: Quirk = "tool_parser_off"
Limit = Literal["window", "output"]
"""What a refusal tells the size of: the window, or the longest answer that may be asked for."""

OFFICIAL_URL = "https://api.openai.com/v1"

_CALL_MARK = re.compile(
    # <tool_call>, [TOOL_CALLS], <function=…>, <invoke name=…>, <|python_tag|>, <|action_start|>
    r"(?<![\w`\"'])(?:\[tool_calls?\]|<[\w:|\uff5c\u2581]*(?:tool|function|invoke|action|python))"
    # gpt-oss, Phi, Gemma; Llama writes the object alone
    r"|\bto=functions\.|\bfunctools\[|```tool_code"
    r"|(?:\A|```(?:json)?)\s*[\[{]+\s*\"(?:name|type|function|tool)\"|\A\s*\[(?=\w+\()",
    re.IGNORECASE,
)
_CALL_CHARS = 200
"""Behind such a mark the name of a tool follows within so many characters."""

REFUSALS = frozenset({400, 422, 500})
"""Statuses with which servers refuse a form; llama.cpp says 500 where a template raises."""
LOOK_AGAIN_S = 24 * 3600.0
"""So long a quirk is kept to after it was learned. To learn it again costs one refusal."""

_UNKNOWN = (
    r"(?:un(?:supported|known|recognized|expected)|not (?:supported|permitted|allowed|recognized)"
    r"|extra (?:inputs|fields)|cannot find field|does not support|invalid (?:field|argument))"
)


def _unknown(name: str) -> str:
    """Return the pattern of a refusal of one field, in the words of several servers."""
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
# In order: what says more first. Sources: the templates' own `raise_exception` (Llama 2 and 3.1,
# Mistral, Gemma), and the texts of OpenAI, Mistral, Gemini, Perplexity, Ollama, vLLM, OpenRouter,
# as their documentation and issue trackers quote them.
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
    # Older templates count every message, and say the same of each role that they do not know.
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
"""What can only be learned where something else was kept to."""


def is_official(base_url: str) -> bool:
    """Return whether a URL is OpenAI's own."""
    return (urlsplit(base_url).hostname or "").endswith("api.openai.com")


@dataclass(slots=True)
class ServerMode:
    """How requests to one server and model are formed, and how large they may be.

    Attributes:
        server: The server and model, as the log names them.
        usual: The quirks that are known without any refusal.
        now: Seconds since the epoch.
    """

    server: str
    usual: Quirks = frozenset()
    now: Callable[[], float] = time.time
    _learned: dict[Quirk, float] = field(default_factory=dict)
    _limits: dict[Limit, tuple[int, float, int]] = field(default_factory=dict)

    @property
    def quirks(self) -> Quirks:
        """What the next request keeps to."""
        return _with(self.usual, self.learned)

    @property
    def learned(self) -> Quirks:
        """What refusals of the last day taught; tool_parser_off until a call comes as one."""
        since = self.now() - LOOK_AGAIN_S
        found = self._learned.items()
        return frozenset(each for each, at in found if at > since or each == PARSER_OFF)

    @property
    def window(self) -> int:
        """The window that a refusal of the last day has shown; 0 for none."""
        tokens, seen, _ = self._limits.get("window", (0, 0.0, 0))
        return tokens if self.now() - seen < LOOK_AGAIN_S else 0

    def limit(self, limit: Limit, believed: int = 0) -> float:
        """Return the tokens that a refusal of the last day told while this was believed; or inf."""
        tokens, seen, then = self._limits.get(limit, (0, 0.0, 0))
        return tokens if then == believed and self.now() - seen < LOOK_AGAIN_S else math.inf

    def keep_limit(self, limit: Limit, tokens: int, believed: int = 0) -> None:
        """Keep requests within so many tokens from now on; `believed` were allowed so far."""
        self._limits[limit] = tokens, self.now(), believed
        log.warning("server_mode_learned", server=self.server, quirk=limit, tokens=tokens)

    def keep_to(self, quirks: Iterable[Quirk]) -> None:
        """Keep to quirks from now on: requests that kept to them were taken."""
        for quirk in sorted(quirks):
            if quirk not in self._learned:
                # Not the server's words: it may repeat what it was sent.
                log.warning("server_mode_learned", server=self.server, quirk=quirk)
            self._learned.pop(_OPPOSITE.get(quirk, quirk), None)
            self._learned[quirk] = self.now()

    def note_calls(self, text: str, names: Iterable[str], *, called: bool) -> None:
        """Learn from an answer to a request with tools whether calls come as calls, or as text.

        `text` is all that was written, `names` are those of the tools.
        """
        is_known = PARSER_OFF in self._learned
        if called and is_known:
            self._learned.pop(PARSER_OFF)
            log.info("server_mode_forgotten", server=self.server, quirk=PARSER_OFF)
        elif not called and not is_known and has_call(text, names):
            self.keep_to([PARSER_OFF])


_MODES: dict[str, ServerMode] = {}


def mode_of(server: str) -> ServerMode:
    """Return what is known of a server and model: one object for all who ask in this process."""
    return _MODES.setdefault(server, ServerMode(server))


def known_modes() -> list[ServerMode]:
    """Return the modes of all servers that were asked."""
    return list(_MODES.values())


def has_call(text: str, names: Iterable[str]) -> bool:
    """Whether a call of one of the tools stands in a text, in the form of any family of models."""
    marks = (text[mark.start() : mark.end() + _CALL_CHARS] for mark in _CALL_MARK.finditer(text))
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    return any(known.search(each) for each in marks)


def _with(quirks: Quirks, learned: Quirks) -> Quirks:
    """Return quirks with those that were learned; of two opposites the learned one."""
    return learned | {quirk for quirk in quirks if _OPPOSITE.get(quirk) not in learned}


def meaning_of(refusal: str, known: Quirks) -> Quirk | None:
    """Return what the words of a refusal say of a server; None for nothing that is known.

    `known` are the quirks that the refused request kept to, or that others before it did: a server
    that refuses both of two forms is not asked for ever.
    """
    for quirk, sign in _COMPILED:
        met = quirk in known or not _SENT_WITH.get(quirk, known) <= known
        if not met and sign.search(refusal):
            return quirk
    return None


class Negotiation:
    """What becomes of the form of one request until the server takes or refuses it.

    `build` makes the body that keeps to quirks.
    """

    def __init__(self, mode: ServerMode, build: Callable[[Quirks], dict[str, Any]]) -> None:
        self._mode = mode
        self._build = build
        self._quirks = mode.quirks
        self._learned: Quirks = frozenset()

    def body(self) -> dict[str, Any]:
        """Return the body to send now."""
        return self._build(self._quirks)

    def goes_on(self, refusal: Refusal) -> bool:
        """Return whether the server may take another form than the one that it refused."""
        if refusal.status not in REFUSALS:
            return False
        refused = self._build(self._quirks)
        known = self._quirks | self._learned
        # What would change nothing of the request is not what it was refused for.
        while (quirk := meaning_of(refusal.text, known)) is not None:
            other = _with(self._quirks, frozenset({quirk}))
            if self._build(other) != refused:
                self._learned |= {quirk}
                self._quirks = other
                return True
            known |= {quirk}
        return False

    def settle(self) -> None:
        """Take note that the server took the request, in the form that it was made in."""
        if self._learned:
            self._mode.keep_to(self._learned & self._quirks)
