"""What messages take, and how many tokens a text has, told from its bytes: no data files.

A text is counted by a linear model over classes of UTF-8 bytes. Used for Claude and unknown models,
and where a tokenizer is not at hand; see agent/tokens/estimate.py.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from agent.messages import IMAGE_PARTS

Count = Callable[[str], int]
"""Tells how many tokens a text has."""

MESSAGE_TOKENS = 4
"""Overhead of one message (role, separators). Source: OpenAI cookbook."""

IMAGE_TOKENS = 1600
"""Flat cost of one image. Source: Anthropic's vision guide, an image at the size limit."""


def message_tokens(message: Mapping[str, Any], count: Count, call_tokens: int) -> int:
    """Return the tokens of a message: its text, its calls, images at a flat cost, the overhead.

    Takes what other libraries make of OpenAI's format, too: missing keys, parts of any type.

    Args:
        message: `reasoning` and `opaque` are not counted: most requests leave them out.
    """
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
    """Return the tokens of a content: a string, None, a part, or a list of parts."""
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
    # Sound or a file, probably: its bytes are no text.
    return min(count(as_json(part)), IMAGE_TOKENS)


def as_json(value: Any) -> str:
    """Return what is no text as one, whatever it holds."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # lone surrogates; keys that are not strings
        return repr(value)


def rough_tokens(text: str, model: str | None = None) -> int:
    """Return about how many tokens `text` has, rounded up; 0 only for the empty text.

    Mean error 9 to 11 % on Claude tokenizers. Lone surrogates count like "?".

    Args:
        model: Name of the model, a vendor prefix allowed; None or unknown: the newest weights,
            which are the larger ones.
    """
    return -(-_hundredths(text, _weights_for(model)) // 100)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Hundredths of a token.

    Attributes:
        per_byte: For each byte value, at most 255: the rest of four-byte characters is `emoji`.
        word: For each run of characters between white space.
        indent: What a tab that indents weighs more than a space.
    """

    per_byte: bytes
    emoji: int
    word: int
    indent: int


def _hundredths(text: str, weights: _Weights) -> int:
    data = text.encode("utf-8", "replace")
    total = sum(data.translate(weights.per_byte)) + weights.word * len(text.split())
    total += weights.emoji * (len(data) - len(data.translate(None, _FOUR_BYTE_LEADS)))
    return total - weights.indent * _indenting_tabs(data)


def _indenting_tabs(data: bytes) -> int:
    """Return how many tabs follow a newline or another tab.

    Tokenizers merge them into what stands before them, as they do with spaces: on the tab-indented
    code of billed sessions the weight of a lone tab is 35 % over.
    """
    marks = data.translate(_TAB_MARKS)
    return marks.count(b"\t") - marks.count(b"x\t") - marks.startswith(b"\t")


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
    """Return the weights of a model's tokenizer: Claude 3 to 4.6 have the older one."""
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
