"""Fields of OpenAI-like servers that only the server understands: kept, and sent back verbatim.

`message["opaque"]["openai"]` holds

- `origin`: the server and the family of the model that wrote them; nobody else gets them back;
- `reasoning_details` (OpenRouter): signed or encrypted reasoning, a list of parts;
- `reasoning_field`: the name of the text field in which the reasoning came (Moonshot and DeepSeek
  want it back beside tool calls); the text itself is `message["reasoning"]`;
- `extra_content`: by the id of a tool call what belongs to it (Gemini's thought signature).

The wire calls `with_opaque` for each assistant message, before markers are set.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from agent.messages import ChatMessage
from agent.models.draft import mend_surrogates

Fields = dict[str, Any]

PROVIDER = "openai"
REPLAYED_TEXT_FIELD = "reasoning_content"
_GROWING = ("text", "summary")
_FAMILY = re.compile(r"[a-z]+")


def origin_of(base_url: str, model: str) -> str:
    """Return who writes opaque fields: the server's name and the family of the model."""
    family = _FAMILY.search(model.lower().rpartition("/")[2])
    return f"{urlsplit(base_url).hostname or ''}/{family[0] if family else ''}"


def with_opaque(wired: Fields, message: ChatMessage, origin: str) -> Fields:
    """Return an assistant message of the wire with the opaque fields that its origin wants back.

    Args:
        wired: The message as it goes out without them; not changed.
        message: The message as stored.
        origin: Who it goes to, see `origin_of`; "" for somebody who wants none.
    """
    kept: Fields = (message.get("opaque") or {}).get(PROVIDER) or {}
    if not origin or kept.get("origin") != origin:
        return wired
    calls = wired.get("tool_calls")
    replayed = dict(wired)
    if details := kept.get("reasoning_details"):
        replayed["reasoning_details"] = details
    if calls and kept.get("reasoning_field") == REPLAYED_TEXT_FIELD:
        replayed[REPLAYED_TEXT_FIELD] = message.get("reasoning", "")
    if calls and (extras := kept.get("extra_content")):
        replayed["tool_calls"] = [_with_extra(call, extras) for call in calls]
    return replayed


def _with_extra(call: Fields, extras: Fields) -> Fields:
    extra = extras.get(call["id"])
    return call if extra is None else {**call, "extra_content": extra}


class OpaqueParts:
    """Collects the opaque fields of one stream."""

    def __init__(self, origin: str) -> None:
        """`origin` is who writes them, see `origin_of`."""
        self._origin = origin
        self._details: list[Fields] = []
        self._field = ""

    def take_details(self, parts: object) -> None:
        """Take the `reasoning_details` of a delta.

        Pieces of one part have its index and type: their texts are joined, of other fields the
        newest value stays.
        """
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict):
                self._take_part(part)

    def take_field(self, name: str) -> None:
        """Take note of the field in which the reasoning comes."""
        self._field = name

    def add_to(self, message: ChatMessage, extra_content: Fields) -> None:
        """Store in a finished message what there is to keep; `extra_content` is by call id."""
        kept: Fields = {}
        if self._details:
            kept["reasoning_details"] = [_mended(part) for part in self._details]
        if self._field == REPLAYED_TEXT_FIELD and message.get("tool_calls"):
            kept["reasoning_field"] = self._field
        if extra_content:
            kept["extra_content"] = extra_content
        if kept:
            message["opaque"] = {PROVIDER: {"origin": self._origin, **kept}}

    def _take_part(self, part: Fields) -> None:
        # Without an index a piece can only belong to the newest part.
        begun = self._details if part.get("index") is not None else self._details[-1:]
        grown = next((old for old in reversed(begun) if _continues(part, old)), None)
        if grown is None:
            self._details.append(dict(part))
            return
        for name, value in part.items():
            before = grown.get(name) or ""
            if name in _GROWING and isinstance(value, str) and isinstance(before, str):
                grown[name] = before + value
            elif value is not None:
                grown[name] = value


def _continues(part: Fields, old: Fields) -> bool:
    """Return whether a piece belongs to a part that has begun; encrypted data comes whole."""
    if part.get("data") is not None or part.get("type") != old.get("type"):
        return False
    ids = {part.get("id"), old.get("id")} - {None}
    return len(ids) <= 1 and part.get("index") == old.get("index")


def _mended(part: Fields) -> Fields:
    return {
        name: mend_surrogates(value) if isinstance(value, str) else value
        for name, value in part.items()
    }
