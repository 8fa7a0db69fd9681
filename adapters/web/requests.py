"""Reads web chat requests and builds responses: refusals, stored files, the page.

Forms are measured while they arrive. Files come from strangers, so a browser must never execute
one: it shows pictures, downloads everything else, and never treats a file as a page of this site.
"""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.door import Reach
from adapters.messages import Attachment, OutgoingFile, file_kind

API_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
MAX_BODY_BYTES = 1_500_000
MAX_TEXT_CHARS = 200_000
BODY_TIMEOUT_S = 60.0
BUSY = "busy"
"""Code of a request refused for lack of room; the client may retry later."""
INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
FILE_HEADERS = {
    "Cache-Control": "private, max-age=3600",
    # A stored HTML file must not run as a page of this site.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
MAX_FILES = 10
MAX_FIELD_BYTES = 1_000_000
"""Limit of all fields together: more than the longest accepted text."""
FIELDS = ("id", "text")
HEADS_BYTES = 100_000
"""Limit of all part headers of a form."""
CHUNK_BYTES = 65_536
UPLOAD_TIMEOUT_S = 600.0
# Errors raised by aiohttp for a malformed form.
_MALFORMED = (ValueError, RuntimeError, AssertionError, HttpProcessingError)
CROWDED = web.RequestKey("crowded", bool)
"""Set on a request while connections are so scarce that only owners are served."""

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
    """Refuses a request with `status` and a JSON error; nothing was changed.

    `code` is for programs, the text for people. Clients retry after 408, 429 or 5xx.
    """

    def __init__(
        self, status: int, code: str, text: str, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


def json_response(data: object, status: int = 200) -> web.Response:
    """Return an uncacheable API response."""
    body, kind = orjson.dumps(data), "application/json"
    return web.Response(body=body, status=status, content_type=kind, headers=API_HEADERS)


def give_up(request: web.Request) -> None:
    """Close the connection of a client that does not read its response."""
    if request.transport is not None:
        request.transport.abort()


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """A posted message.

    Attributes:
        raw: The JSON text as received; for a form, its fields as JSON without file contents.
        edits: The id of the edited message; None for a new one.
    """

    id: str
    text: str
    raw: str
    files: tuple[Attachment, ...] = ()
    edits: str | None = None


async def posted_message(request: web.Request, reach: Reach) -> PostedMessage:
    """Read a message as JSON; its id identifies a repeated post."""
    fields, raw = await read_json(request, MAX_BODY_BYTES, reach)
    edits = fields.get("edits")
    return PostedMessage(
        id=checked_id(fields.get("id"), "id"),
        text=checked_text(fields.get("text")),
        raw=raw,
        edits=None if edits is None else checked_id(edits, "edits"),
    )


def file_of(request: web.Request) -> int:
    """Return the file number from the path, or raise a Refusal."""
    number = request.match_info["file"]
    if not _NUMBER.fullmatch(number):
        raise Refusal(404, "no_such_file", "There is no such file.")
    return int(number)


async def read_json(
    request: web.Request, limit_bytes: int, reach: Reach | None = None
) -> tuple[dict[str, Any], str]:
    """Read a JSON object; return it parsed and as received.

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
    return fields, body.decode()


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
    """Validate an id; raise a Refusal that names the field."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        text = f"{name} has 1 to 64 letters, digits, hyphens and underscores."
        raise Refusal(400, f"bad_{name}", text)
    return value


def checked_text(value: object, *, may_be_empty: bool = False) -> str:
    """Validate a message's text; raise a Refusal if not a string, empty, or too long."""
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
    """Serve one of the page's files by name."""
    name = request.match_info["name"]
    # Compared with existing names, so that no path leaves the folder.
    if name not in {file.name for file in PAGE.iterdir()}:
        raise Refusal(404, "no_such_file", "There is no such file.")
    return web.FileResponse(PAGE / name, headers=PAGE_HEADERS)


def file_response(file: OutgoingFile) -> web.Response:
    """Serve a picture inline, any other file as a download."""
    kind = "inline" if file.mime in INLINE else "attachment"
    # Source: RFC 6266, section 4.1; RFC 8187 for the name.
    disposition = f"{kind}; filename*=UTF-8''{quote(file.name, safe='')}"
    return web.Response(
        body=file.content,
        content_type=file.mime if file.mime in INLINE else "application/octet-stream",
        headers={**FILE_HEADERS, "Content-Disposition": disposition},
    )


@dataclass(slots=True)
class _PostedForm:
    """The parts of a form read so far: `seen` bytes, with `limit` for all files together."""

    reach: Reach
    limit: int
    fields: dict[str, str] = field(default_factory=dict)
    files: list[Attachment] = field(default_factory=list)
    seen: int = 0

    @property
    def too_much(self) -> str:
        return f"The files of a message have at most {self.limit / 1e6:g} MB altogether."

    async def read(self, request: web.Request) -> None:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise Refusal(400, "bad_form", "A form must not contain forms.")
            if part.filename is None:
                await self._read_field(part)
            else:
                await self._read_file(part)

    async def _read_field(self, part: BodyPartReader) -> None:
        name = part.name or ""
        # Otherwise memory would grow with each field.
        if name not in FIELDS or name in self.fields:
            raise Refusal(400, "bad_form", f"A form has the fields {' and '.join(FIELDS)}.")
        left = MAX_FIELD_BYTES - sum(map(len, self.fields.values()))
        self.fields[name] = (await self._content(part, left, "The message is too long.")).decode()

    async def _read_file(self, part: BodyPartReader) -> None:
        if self.limit == 0:
            raise Refusal(413, "no_files", "This Parley accepts no files.")
        if len(self.files) == MAX_FILES:
            raise Refusal(413, "too_many_files", f"A message has at most {MAX_FILES} files.")
        left = self.limit - sum(file.size_bytes or 0 for file in self.files)
        content = await self._content(part, left, self.too_much)
        # Headers may not be UTF-8, which databases require.
        name, mime = (
            text.encode(errors="replace").decode()
            for text in (part.filename or "file", part.headers.get("Content-Type", ""))
        )
        kind, size = file_kind(mime.lower()), len(content)
        file = Attachment(name=name, kind=kind, mime=mime, size_bytes=size, content=content)
        self.files.append(file)

    async def _content(self, part: BodyPartReader, limit_bytes: int, too_long: str) -> bytes:
        content = bytearray()
        while chunk := await part.read_chunk(CHUNK_BYTES):
            self.seen += len(chunk)
            self.reach(self.seen)
            content += chunk
            if len(content) > limit_bytes:
                raise Refusal(413, "body_too_large", too_long)
        return bytes(content)


async def posted_form(request: web.Request, reach: Reach, limit_bytes: int) -> PostedMessage:
    """Read a message from a form with the fields `id` and `text` and files.

    `limit_bytes` limits all files together; 0 accepts none.
    """
    form = _PostedForm(reach, limit_bytes)
    announced = request.content_length or 0
    if announced > limit_bytes + MAX_FIELD_BYTES + HEADS_BYTES:
        raise Refusal(413, "body_too_large", form.too_much)
    reach(announced)
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            await form.read(request)
    except TimeoutError as exc:
        raise Refusal(408, "body_too_slow", "The files did not arrive in time.") from exc
    except _MALFORMED as exc:
        raise Refusal(400, "bad_form", "The form cannot be read.") from exc
    fields = {"id": form.fields.get("id"), "text": form.fields.get("text", "")}
    names = [{"name": file.name, "size": file.size_bytes} for file in form.files]
    return PostedMessage(
        id=checked_id(fields["id"], "id"),
        text=checked_text(fields["text"], may_be_empty=bool(form.files)),
        raw=orjson.dumps(fields | {"files": names}).decode(),
        files=tuple(form.files),
    )
