"""What the readers of all platforms share: strict decoding, texts to store, poison, quotes, kinds.

Only the fields that Parley uses are decoded, so that a new kind of content never spoils a readable
text. What cannot be decoded is kept as poison, and the cursor moves on.
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
    """Replace what no database takes; the length stays, also in UTF-16 units."""
    return _NOT_STORABLE.sub("\ufffd", text)


Text = Annotated[str, AfterValidator(storable)]


class WirePart(BaseModel):
    """Base of what is decoded: strict types, so that a broken update is noticed."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        """A field that is null says as much as one that is missing."""
        return filled(data) if isinstance(data, dict) and None in data.values() else data


def filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in data.items() if value is not None}


def flaw(exc: ValidationError) -> str:
    """Return why an update cannot be decoded: its first flaw, without what it holds."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def raw_json(update: Any) -> str:
    """Return an update as the JSON text that is stored."""
    return _JSON.encode(update)


def poison(source: str, raw: str, reason: str, key: str = "") -> Poison:
    """Wrap an update that cannot be understood; without a key it is named by its bytes."""
    key = key or f"x{hashlib.sha256(raw.encode()).hexdigest()[:32]}"
    return Poison(source, key, raw, reason)


def quote(said: str, author: str = "") -> str:
    """Return what somebody said as a quote, shortened."""
    said = said.strip()
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    lines = said.splitlines()
    return quoted_lines([f"{author}:", *lines] if author else lines)


def quoted_lines(lines: list[str]) -> str:
    """Return lines as a quote."""
    return "\n".join(f"> {line}" for line in lines)


def others(authors: Iterable[str | None], known: Collection[str]) -> tuple[str, ...]:
    """Return whose words a message holds beside its sender's, each once.

    Args:
        authors: Of what it quotes or forwards; None where the platform does not say.
        known: The sender and the bot: their quoted words are those of nobody else.
    """
    named = (author or UNKNOWN_AUTHOR for author in authors)
    return tuple(dict.fromkeys(author for author in named if author not in known))


def file_name(name: str) -> str:
    """Return a file's name without the folders in front of it, "" if nothing is left."""
    # A sender's program may have put folders in front of it, in either way of writing.
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    return "" if last in {".", ".."} else last


async def read_within(chunks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Return a file that comes in chunks.

    Raises:
        FetchRejected: It has more bytes than the limit.
    """
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        # Counted while it comes: the size that was announced is the sender's word.
        if len(content) > limit_bytes:
            raise FetchRejected(f"the file is larger than {limit_bytes} bytes")
    return bytes(content)


def file_kind(mime: str) -> AttachmentKind:
    """Return which kind of file a MIME type names; no platform names voice messages by it."""
    kind = mime.partition("/")[0]
    return kind if kind in _KINDS else "file"  # type: ignore[return-value]
