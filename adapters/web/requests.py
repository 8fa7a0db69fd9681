"""Reading requests of the web chat: chat ids and bounded JSON bodies. Refuses what is malformed."""

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from adapters.web.errors import Refusal

if TYPE_CHECKING:
    from adapters.messages import Attachment

MAX_BODY_BYTES = 1_500_000
MAX_TEXT_CHARS = 200_000
BODY_TIMEOUT_S = 60.0

_NUMBER = re.compile(r"[0-9]{1,18}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """What a client posted.

    Attributes:
        raw: The JSON text as received; of a form what it would be without the bytes of files.
        edits: The id of the message that it changes; None for a new one.
    """

    id: str
    text: str
    raw: str
    files: "tuple[Attachment, ...]" = ()
    edits: str | None = None


def chat_of(request: web.Request) -> str:
    """Return the chat that the path names.

    Raises:
        Refusal: It is not an id of 1 to 64 letters, digits, `_` and `-`.
    """
    return checked_id(request.match_info["chat"], "chat")


async def posted_message(request: web.Request) -> PostedMessage:
    """Read a message; its id names it within the chat, so that a repeated post is known.

    Raises:
        Refusal: Too large, not JSON, or a field is missing or has a wrong form.
    """
    body = await read_json(request)
    edits = body.fields.get("edits")
    return PostedMessage(
        id=checked_id(body.fields.get("id"), "id"),
        text=checked_text(body.fields.get("text")),
        raw=body.raw,
        edits=None if edits is None else checked_id(edits, "edits"),
    )


def file_of(request: web.Request) -> int:
    """Return the number of the file that the path names.

    Raises:
        Refusal: It is none.
    """
    number = request.match_info["file"]
    if not _NUMBER.fullmatch(number):
        raise Refusal(404, "no_such_file", "There is no such file.")
    return int(number)


async def posted_token(request: web.Request) -> str:
    """Read the token of a login.

    Raises:
        Refusal: Too large, not JSON, or without a token.
    """
    token = (await read_json(request)).fields.get("token")
    if not isinstance(token, str):
        raise Refusal(400, "bad_token", "token is a string.")
    return token


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON object, parsed and as received."""

    fields: dict[str, Any]
    raw: str


async def read_json(request: web.Request) -> JsonBody:
    """Read a body that is one JSON object of at most 1.5 MB.

    Raises:
        Refusal: 408 too slow, 413 too large, 400 not a JSON object.
    """
    body = await _read_body(request)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Refusal(400, "bad_json", f"The body is not JSON: {exc}.") from exc
    if not isinstance(fields, dict):
        raise Refusal(400, "bad_json", "The body is not a JSON object.")
    return JsonBody(fields, body.decode())


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_limited(request)
    except TimeoutError as exc:
        raise Refusal(408, "body_too_slow", "The request did not arrive in time.") from exc


async def _read_limited(request: web.Request) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            text = f"A request has at most {MAX_BODY_BYTES:,} bytes."
            raise Refusal(413, "body_too_large", text)
    return bytes(body)


def checked_id(value: object, name: str) -> str:
    """Return an id.

    Raises:
        Refusal: It has not 1 to 64 letters, digits, hyphens and underscores; `name` is told.
    """
    if not isinstance(value, str) or not _ID.fullmatch(value):
        text = f"{name} has 1 to 64 letters, digits, hyphens and underscores."
        raise Refusal(400, f"bad_{name}", text)
    return value


def checked_text(value: object, *, may_be_empty: bool = False) -> str:
    """Return the text of a message.

    Raises:
        Refusal: Not a string, too long, or empty where that may not be.
    """
    if not isinstance(value, str):
        raise Refusal(400, "bad_text", "text is a string.")
    if not value.strip() and not may_be_empty:
        raise Refusal(400, "empty_text", "The message is empty.")
    if len(value) > MAX_TEXT_CHARS:
        text = f"The message has {len(value):,} characters; at most {MAX_TEXT_CHARS:,} are taken."
        raise Refusal(422, "text_too_long", text)
    return value
