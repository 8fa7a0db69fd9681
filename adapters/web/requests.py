"""Requests of the web chat: what they say, how they are refused, and the files of the page.

Who may ask is said by the guard (adapters/web/guard.py).
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from adapters.door import Reach
from adapters.messages import Attachment

API_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MAX_BODY_BYTES = 1_500_000
MAX_TEXT_CHARS = 200_000
BODY_TIMEOUT_S = 60.0
BUSY = "busy"
"""The code of a request refused for lack of room; the client may repeat it later."""
CROWDED = web.RequestKey("crowded", bool)
"""Set in a request while connections are so scarce that only owners are served."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
        " object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refusal(Exception):
    """The request is answered with `status` and a JSON error, and nothing was changed.

    `code` is for programs, the text for people; a client repeats only requests that got 408, 429
    or 5xx, after the seconds in `headers`.
    """

    def __init__(
        self, status: int, code: str, text: str, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        again = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        self.headers: dict[str, str] = again


def json_response(data: object, status: int = 200) -> web.Response:
    """Return an API response that no cache keeps."""
    return web.Response(
        body=orjson.dumps(data),
        status=status,
        content_type="application/json",
        headers=API_HEADERS,
    )


def refusal_response(refusal: Refusal) -> web.Response:
    """Return the JSON form of a refusal."""
    body = {"error": refusal.code, "message": str(refusal)}
    response = json_response(body, refusal.status)
    response.headers.update(refusal.headers)
    return response


def give_up(request: web.Request) -> None:
    """End the connection of a client that does not read its answer."""
    if request.transport is not None:
        request.transport.abort()


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
    files: tuple[Attachment, ...] = ()
    edits: str | None = None


def chat_of(request: web.Request) -> str:
    """Return the chat that the path names.

    Raises:
        Refusal: It is not an id of 1 to 64 letters, digits, `_` and `-`.
    """
    return checked_id(request.match_info["chat"], "chat")


async def posted_message(request: web.Request, reach: Reach) -> PostedMessage:
    """Read a message; its id names it within the chat, so that a repeated post is known.

    Args:
        request: Its body is JSON.
        reach: Called with the number of bytes, first with the announced number.

    Raises:
        LimitReached: By `reach`: too many bytes.
        Refusal: Too large, not JSON, or a field is missing or has a wrong form.
    """
    body = await read_json(request, MAX_BODY_BYTES, reach)
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


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON object, parsed and as received."""

    fields: dict[str, Any]
    raw: str


async def read_json(request: web.Request, limit_bytes: int, reach: Reach | None = None) -> JsonBody:
    """Read a body that is one JSON object.

    Raises:
        LimitReached: `reach` refuses it.
        Refusal: 408 too slow, 413 too large, 400 not a JSON object.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _read_limited(request, limit_bytes, reach)
    except TimeoutError as exc:
        raise Refusal(408, "body_too_slow", "The request did not arrive in time.") from exc
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Refusal(400, "bad_json", f"The body is not JSON: {exc}.") from exc
    if not isinstance(fields, dict):
        raise Refusal(400, "bad_json", "The body is not a JSON object.")
    return JsonBody(fields, body.decode())


async def _read_limited(request: web.Request, limit_bytes: int, reach: Reach | None) -> bytes:
    body, size = bytearray(), request.content_length or 0
    while size <= limit_bytes:
        if reach is not None:
            reach(size)
        chunk = await request.content.readany()
        if not chunk:
            return bytes(body)
        body += chunk
        size = max(size, len(body))
    raise Refusal(413, "body_too_large", f"A request has at most {limit_bytes:,} bytes.")


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
        text = f"The message has {len(value):,} characters; the limit is {MAX_TEXT_CHARS:,}."
        raise Refusal(422, "text_too_long", text)
    return value


async def index(_request: web.Request) -> web.StreamResponse:
    """Serve the page."""
    return web.FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def static(request: web.Request) -> web.StreamResponse:
    """Serve one of the page's files, by its plain name.

    Raises:
        Refusal: There is no such file.
    """
    name = request.match_info["name"]
    # A list of names cannot be climbed out of, as a path can.
    if name not in {file.name for file in PAGE.iterdir()}:
        raise Refusal(404, "no_such_file", "There is no such file.")
    return web.FileResponse(PAGE / name, headers=PAGE_HEADERS)
