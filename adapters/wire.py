"""Shared by the readers of all platforms: strict decoding, texts to store, poison, quotes, files.

Only the fields that Parley uses are decoded, so that a new kind of content never makes a text
unreadable. An update that cannot be decoded is stored as poison, and the cursor moves on.
"""

import hashlib
import json
import re
from collections.abc import AsyncIterable, Collection, Iterable
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from adapters.errors import FetchRejected
from adapters.messages import UNKNOWN_AUTHOR, AttachmentKind, Poison

MAX_QUOTE_CHARS = 500
# SQLite refuses lone surrogates, and cuts a text at NUL in some of its functions.
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
# Not orjson: an update may hold lone surrogates, which only the standard library writes back.
_JSON = json.JSONEncoder(separators=(",", ":"))
_KINDS = frozenset(get_args(AttachmentKind)) - {"voice"}


def storable(text: str) -> str:
    """Replace characters that databases refuse; the length stays, also in UTF-16 units."""
    return _NOT_STORABLE.sub("\ufffd", text)


Text = Annotated[str, AfterValidator(storable)]


class WirePart(BaseModel):
    """Base of decoded objects: strict types; a null field is a missing one."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        return filled(data) if isinstance(data, dict) and None in data.values() else data


def filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in data.items() if value is not None}


def flaw(exc: ValidationError) -> str:
    """Return why an update cannot be decoded, without its content."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def raw_json(update: Any) -> str:
    """Return an update as the JSON text that is stored."""
    return _JSON.encode(update)


def poison(source: str, raw: str, reason: str, key: str = "") -> Poison:
    """Wrap an update that cannot be decoded; the default key is a hash of it."""
    key = key or f"x{hashlib.sha256(raw.encode()).hexdigest()[:32]}"
    return Poison(source, key, raw, reason)


def quote(said: str, author: str = "") -> str:
    """Return a text as a quote, shortened."""
    said = said.strip()
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    lines = said.splitlines()
    return quoted_lines([f"{author}:", *lines] if author else lines)


def quoted_lines(lines: list[str]) -> str:
    """Return lines as a quote."""
    return "\n".join(f"> {line}" for line in lines)


def others(authors: Iterable[str | None], known: Collection[str]) -> tuple[str, ...]:
    """Return the other authors in a message, each once.

    Args:
        authors: Of its quotes and forwarded parts; None if the platform does not name one.
        known: The sender and the bot, which are left out.
    """
    named = (author or UNKNOWN_AUTHOR for author in authors)
    return tuple(dict.fromkeys(author for author in named if author not in known))


def file_name(name: str) -> str:
    """Return a file's name without folders, "" if nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    return "" if last in {".", ".."} else last


async def read_within(chunks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Return a file that comes in chunks, or raise FetchRejected beyond the limit."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        # Counted while it comes: the announced size is the sender's claim.
        if len(content) > limit_bytes:
            raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
    return bytes(content)


def file_kind(mime: str) -> AttachmentKind:
    """Return the kind of a file by its MIME type; never "voice"."""
    kind = mime.partition("/")[0]
    return kind if kind in _KINDS else "file"  # type: ignore[return-value]
