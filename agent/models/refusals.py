"""Interpret providers' refusals: one parser and one vocabulary for all clients.

Servers wrap a refusal in an object, a text, a list, a text that contains JSON, or an HTML page.
`parse_refusal` reads them all as names (codes, types) and texts. A precise name decides first, then
the words, then the status.

Source of the words: the servers' messages, quoted in their documentation and issue trackers
(docs/models.md, "When a call fails").
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html import unescape

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.models.wire import field_in

STANDARD_WINDOW_TOKENS = 200_000
"""Window that every account has; a larger one may require another tier. Source: Anthropic's error
"Extra usage is required for long context requests."""
IN_STREAM = 500
"""Status of an error inside a stream of status 200 if its code is not an HTTP status."""
_LONGEST_REASON = 300
_LONGEST_TEXT = 4_000
_DEEPEST = 8
_LEAST_OUTPUT = 16
_UNAVAILABLE = 503
_FORBIDDEN = 403
_TOO_LARGE = 413
_CLEAR_STATUS: dict[int, type[ModelError]] = {
    **dict.fromkeys((401, 403), CredentialsRefused),
    402: CreditUsedUp,
    404: ModelNotFound,
    **dict.fromkeys((408, 409), ModelUnreachable),
    413: ContextOverflow,
    **dict.fromkeys((429, 529), RateLimited),
}
"""Names that decide regardless of the text."""


def _by_name(names: Mapping[type[ModelError], str]) -> dict[str, type[ModelError]]:
    return {name: kind for kind, listed in names.items() for name in listed.split()}


_PRECISE = _by_name({
    CreditUsedUp: """insufficient_quota billing_hard_limit_reached billing_error
        contract_spend_limit_reached enforced_spend_limit_reached exceeded_current_quota_error""",
    CredentialsRefused: "invalid_api_key organization_on_hold",
    ModelNotFound: "model_not_found",
    # The number is Zhipu's.
    ContextOverflow: """context_length_exceeded context_window_exceeded exceed_context_size_error
        request_body_too_large_after_decoding request_too_large tokens_limit_reached 1261""",
    RateLimited: "rate_limit_exceeded",
    # Source of the last three: openai.types.responses.ResponseError, SDK 3.54.0.
    ModelRefused: """content_filter content_policy_violation image_content_policy_violation
        bio_policy misalignment_policy_violation""",
    BadRequest: "invalid_prompt",
})
_BY_TYPE = _by_name({
    CredentialsRefused: "authentication_error permission_error",
    ModelNotFound: "not_found_error",
    RateLimited: "rate_limit_error overloaded_error",
    BadRequest: "invalid_request_error",
    ModelUnreachable: "timeout_error api_error",
})
"""Names that decide if the status says nothing, as inside a stream."""


def _precise(name: str) -> type[ModelError] | None:
    # The Responses API has ten names for unusable images.
    return _PRECISE.get(name) or (BadRequest if "image" in name else None)


def _words(*signs: str) -> re.Pattern[str]:
    return re.compile("|".join(signs), re.IGNORECASE)


_NO_MONEY = _words(
    r"credit balance is too low|key limit exceeded|insufficient (?:account )?balance",
    r"reached your (?:specified )?(?:api )?usage limit",
)
_WRONG_KEY = _words(
    r"api key (?:not valid|expired)",
    r"(?:invalid|incorrect) api key|(?:organization|account) has been disabled",
)
# OpenRouter has no code for a key at its own spending limit; Gemini reports a wrong key as a wrong
# argument; OpenAI and Groq report a request above the whole rate limit as too large.
_BY_WORDS: tuple[tuple[frozenset[int], re.Pattern[str], type[ModelError]], ...] = (
    (frozenset({400, 403, 429}), _NO_MONEY, CreditUsedUp),
    (frozenset({400}), _WRONG_KEY, CredentialsRefused),
    (frozenset({429}), _words(r"request too large for"), ContextOverflow),
)
"""Combinations of status and words, with their meaning."""
_LONG_CONTEXT = _words(
    r"extra usage is required for long context", r"long context beta is not yet available"
)
"""Source: issues of anthropics/claude-code, e.g. 42616 and 50784 (429, also for small requests)."""

_WINDOW = _words(r"context[ _-]?(?:length|window|size|limit)")
# A refusal of a request that is too long names the thing and its excess. These nouns suffice:
_CONTEXT = _words(
    _WINDOW.pattern,
    r"n_ctx|max_?(?:model|seq\w*|input|prompt)_?len",
    r"(?:model|prompt|input|sequence)(?:'s)? (?:max(?:imum)? )?(?:allowed )?(?:length|token limit)",
    r"model token limit",
    r"max(?:imum)? (?:allowed )?(?:context|prompt|input|model|sequence)",
    r"length of (?:all |the |your )*(?:messages|prompt|input)",
    r"input token count|(?:prompt|input) tokens? (?:\(\d|count|exceed)|max(?:imum)? message tokens",
    r"上下文|(?:输入|提示词|对话|prompt|(?<!输出)(?<!输出 )tokens?)[\w ]{0,8}(?:超|过长|太长)",
)
# These may also refer to something else that is too long:
_INPUT = _words(
    r"prompt|input(?! (?:validation|should))|context|conversation|\bmessages?\b|history",
    r"your request|requested tokens?|tokens in (?:the )?request|token (?:count|limit)",
    r"(?:too many|number of|total) (?:(?!output|completion)\w+ ){0,2}tokens",
    r"(?:request|sequence) (?:length|size|body)",
)
_TOO_LONG = _words(
    r"too (?:long|large|many|big|small)|exceed|overflow|(?:longer|larger|greater|more|less) than",
    r"at most|up to|cannot be (?:longer|larger|greater|more|over|above|\d)|<=|≤|only \d",
    r"reduce the|range of|should be \[|超|过长|太长",
    r"max(?:imum)?\b|limit (?:is|of)",
)
_OF_ANOTHER = _words(
    r"image|picture|photo|video|audio|\bfiles?\b|pdf|document|attachment|\btools?\b|tool_call",
    r"function|schema|description|\bname\b|header|stop sequence|metadata|\burl\b",
)
_OF_A_RATE = _words(
    r"rate.?limit|per[ _-](?:minute|min|second|day|hour|month)\b|\b[TR]P[MD]\b|quota|throttl",
    r"too many requests|try again (?:later|in)|please wait|concurren|at once",
)
_OUTPUT = _words(
    r"max_(?:completion_|output_|new_)?tokens|max_?(?:output|completion)_?tokens",
    r"(?:completion|output) tokens|maximum tokens you requested",
)

_NUMBER = r"[\[(`'\"]*(\d[\d,_]*)"
# In order: the first match decides.
_WINDOWS = tuple(
    re.compile(pattern.replace("N", _NUMBER), re.IGNORECASE | re.VERBOSE)
    for pattern in (
        r"n_ctx\W{0,3}N",  # llama.cpp
        r">\ ?N",  # Anthropic: "9 tokens > 8 maximum", "1 + 2 > 2"
        r"\[\d+,\ ?N\]",  # DashScope
        r"with\ N\ maximum\ context",  # Mistral
        # The limit in a comparison, not the compared size.
        r"(?:than|exceeds?|exceed(?:ed|ing))\ (?:(?!by\b|\d)[\w'-]+\ ){0,7}(\d[\d,_]*)",
        r"""max(?:imum)?(?:\ (?!output|completion)\w+){0,3}?
            \ (?:length|size|window|context|limit|tokens(?:\ allowed)?)
            (?:\ (?:of|for)\ \S+)?(?:\ is|\ of|:|\ was)?\ ?N""",
        r"""(?:context|token|available)[ _]?(?:length|size|window|limit)(?:\ limit)?
            (?:\ is|\ of|:)?(?:\ only)?\ ?N""",
        r"max_\w*(?:len|tokens)\w*\ N",
        r"N[ -]tokens?\ (?:limit|maximum|context|window)",
        # MiniMax puts its error code in brackets.
        r"limit(?:\ is|\ of|:|\ to)?\ (\d[\d,_]*)",
        r"""(?:(?:cannot|must\ not|not)\ exceed|(?:less|fewer|lower)\ than(?:\ or\ equal\ to)?
            |<=?|≤|up\ to|at\ most|maximum|supports?(?:\ only)?)(?:\ of|\ is)?\ ?N""",
    )
)
_IN_CHARS = _words(r"\barray\b|\bstring\b|characters|\bchars\b|bytes|\bMB\b")
_ANY_NUMBER = re.compile(r"(?<![\w.-])\d[\d,_]*(?![\w-]|\.\d)")

_NAMES = frozenset({"code", "type", "status", "error_type", "error_code", "status_code"})
_ECHOES = frozenset({"input", "url", "body", "request", "prompt", "request_id"})
"""Fields in which a server repeats the request, or that only humans need."""
_TAG = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A parsed refusal.

    Attributes:
        names: Its codes, types and statuses, outermost first.
        text: All other texts. They may repeat the request: use only for matching, shortened in the
            log.
        is_page: Whether it was HTML, which is useless in a log.
        waits: The headers, or the wait requested in the body.
    """

    status: int
    names: tuple[str, ...] = ()
    text: str = ""
    is_page: bool = False
    is_moderated: bool = False
    waits: Mapping[str, str] = field(default_factory=dict)

    def meaning(self) -> type[ModelError]:
        """Return the class of error."""
        status = self.status
        if status == _TOO_LARGE:
            return ContextOverflow
        if status == _FORBIDDEN and self.is_moderated:
            return ModelRefused
        for statuses, sign, kind in _BY_WORDS:
            if status in statuses and sign.search(self.text):
                return kind
        if status not in _CLEAR_STATUS and is_too_long(self.text):
            return ContextOverflow
        typed = (_BY_TYPE[name] for name in self.names if name in _BY_TYPE)
        is_clear = next(filter(None, map(_precise, self.names)), None) or _CLEAR_STATUS.get(status)
        if status < IN_STREAM:
            # This status blames the request, even if the type blames the server.
            typed = (kind for kind in typed if kind is not ModelUnreachable)
        default = BadRequest if 400 <= status < IN_STREAM else ModelUnreachable
        return is_clear or next(typed, default)

    def described(self, key: str) -> str:
        """Describe the refusal in one short log line; hides an echoed key."""
        kind = next((each for each in self.names if not (each.isdecimal() or each == "error")), "")
        # An event inside a stream has status 200.
        parts = [f"HTTP {self.status}", kind, "" if self.is_page else self.text]
        line = " ".join(": ".join(part for part in parts if part).split())
        return (line.replace(key, "[key]") if key else line)[:_LONGEST_REASON]

    def error(self, key: str, window: int = 0, asked: int = 0) -> ModelError:
        """Convert the refusal to an error.

        Args:
            key: The account's key, to be hidden.
            window: The model's window in tokens as known so far; 0 if unknown.
            asked: Requested output limit in tokens.
        """
        kind, reason = self.meaning(), self.described(key)
        if self.status < 500 and _LONG_CONTEXT.search(self.text):
            # Some servers also send this for small requests; then it is transient.
            kind = ContextOverflow if window > STANDARD_WINDOW_TOKENS else RateLimited
        wait_s = retry_after_s(self.waits)
        # A server that names a wait is overloaded, not broken.
        if self.status == _UNAVAILABLE and kind is ModelUnreachable and wait_s is not None:
            kind = RateLimited
        if issubclass(kind, RateLimited):
            return kind(reason, wait_s)
        error = kind(reason)
        if isinstance(error, ContextOverflow):
            long = _LONG_CONTEXT.search(self.text)
            error.window_tokens = STANDARD_WINDOW_TOKENS if long else window_in(self.text)
        if isinstance(error, BadRequest):
            error.output_tokens = output_in(self.text, asked)
            is_known = any(map(_precise, self.names)) or _OF_ANOTHER.search(self.text)
            error.is_unexplained = not (is_known or _OUTPUT.search(self.text))
        return error


def parse_refusal(status: int, headers: Mapping[str, str], said: object) -> Refusal:
    """Parse a refusal: `said` is the body, raw or parsed, or the error in a stream event."""
    names, texts = list[str](), list[str]()
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    is_page = isinstance(said, str) and said.lstrip().startswith("<")
    if isinstance(said, str):
        with suppress(ValueError, RecursionError):
            said = json.loads(said)
    for kind, value in _found(said, "", 0):
        if kind in _NAMES:
            names.append(value)
        elif value not in texts:
            texts.append(value)
        if sum(map(len, texts)) + len(names) > _LONGEST_TEXT:
            break
    is_page = is_page or any(text.lstrip().startswith("<") for text in texts)
    text = " ".join(unescape(_TAG.sub(" ", each)) if is_page else each for each in texts)
    asked = _retry_delay(said, 0)
    return Refusal(
        status,
        tuple(names),
        text[:_LONGEST_TEXT],
        is_page,
        is_moderated=bool(field_in(field_in(field_in(said, "error"), "metadata"), "reasons")),
        waits={"retry-after": asked} if asked else headers,
    )


def parse_stream_error(failure: object) -> Refusal:
    """Parse an error in a stream; OpenRouter and others use the code as a status."""
    found = parse_refusal(IN_STREAM, {}, failure)
    codes = (int(name) for name in found.names if name.isdecimal() and len(name) == 3)
    status = next((code for code in codes if code >= 400), IN_STREAM)
    return parse_refusal(status, {}, failure)


def _found(said: object, key: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the texts of a body with their keys; parse JSON inside texts as well."""
    if depth > _DEEPEST or key in _ECHOES:
        return
    match said:
        case dict():
            for name, value in said.items():
                yield from _found(value, str(name), depth + 1)
        case list() if key == "loc":
            yield key, ".".join(map(str, said))
        case list():
            for value in said:
                yield from _found(value, key, depth + 1)
        case bool() | None:
            return
        case int():
            yield key, str(said) if key in _NAMES else f"{key} {said}"
        case str() if said.strip():
            yield from _found_in_text(said, key, depth)


def _found_in_text(text: str, key: str, depth: int) -> Iterator[tuple[str, str]]:
    begins = min((place for sign in "{[" if (place := text.find(sign)) >= 0), default=len(text))
    inner: object = None
    if key not in _NAMES:
        with suppress(ValueError, RecursionError):
            inner, _ = json.JSONDecoder().raw_decode(text, begins)
    is_list = isinstance(inner, list) and any(isinstance(each, dict) for each in inner)
    if not (is_list or isinstance(inner, dict)):
        yield key, text
        return
    if before := text[:begins].strip(" -:"):
        yield key, before
    yield from _found(inner, key, depth + 1)


def _retry_delay(said: object, depth: int) -> str:
    """Return the wait that Gemini requests in the body, such as "34s".

    Source: google.rpc.RetryInfo, https://cloud.google.com/apis/design/errors
    """
    if depth > _DEEPEST or not isinstance(said, dict | list):
        return ""
    if isinstance(said, dict) and isinstance(wait := said.get("retryDelay"), str):
        return wait.removesuffix("s")
    inner = said.values() if isinstance(said, dict) else said
    return next(filter(None, (_retry_delay(each, depth + 1) for each in inner)), "")


def is_too_long(text: str) -> bool:
    """Return whether a refusal says that the request is too long for the model.

    Excludes rate limits, an output limit that is too large, and things with separate limits.
    """
    if _OF_A_RATE.search(text):
        return False
    if _OUTPUT.search(text) and not _INPUT.search(_WINDOW.sub("", text)):
        return False
    if _CONTEXT.search(text):
        return _TOO_LONG.search(text) is not None or window_in(text) is not None
    is_input = _INPUT.search(text) is not None and _OF_ANOTHER.search(text) is None
    return is_input and _TOO_LONG.search(text) is not None


def window_in(text: str) -> int | None:
    """Return the window size in tokens named in a refusal, or None."""
    if _OF_A_RATE.search(text) or _IN_CHARS.search(text):
        return None
    for pattern in _WINDOWS:
        if found := pattern.search(text):
            return _number_of(found[1])
    return None


def output_in(text: str, asked: int) -> int | None:
    """Return the longest answer in tokens that a refusal allows, or None.

    It is the largest number below `asked`; small numbers mean something else.
    """
    if not _OUTPUT.search(text):
        return None
    numbers = map(_number_of, _ANY_NUMBER.findall(text))
    below = [each for each in numbers if _LEAST_OUTPUT <= each < asked]
    # Gemini: "from 1 (inclusive) to 65537 (exclusive)".
    return max(below) - ("(exclusive)" in text) if below else None


def _number_of(digits: str) -> int:
    return int(re.sub(r"\D", "", digits))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in seconds, at least 0, that the headers request, or None.

    Source: RFC 9110 §10.2.3 (seconds or a date); `retry-after-ms` is OpenAI's finer form.
    """
    for name, units in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            if math.isfinite(seconds := float(headers.get(name, "")) / units):
                return max(seconds, 0.0)
    with suppress(ValueError):
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
    return None
