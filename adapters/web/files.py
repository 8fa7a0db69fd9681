"""Files of the web chat: a form with files is read, and stored files are handed out.

Forms are measured while they arrive. Files come from strangers, so a browser must never run one:
pictures are shown, everything else is kept, and nothing in them is a page of this site.
"""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import quote

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.messages import Attachment, OutgoingFile
from adapters.web.requests import PostedMessage, Refusal, checked_id, checked_text
from adapters.wire import file_kind

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
"""Of all fields together: more than the longest text that is taken."""
FIELDS = ("id", "text")
UPLOAD_TIMEOUT_S = 600.0
# What aiohttp raises for a form that is none.
_MALFORMED = (ValueError, RuntimeError, AssertionError, HttpProcessingError)


def file_response(file: OutgoingFile) -> web.Response:
    """Return a file: a picture inline, anything else as a download of its name."""
    kind = "inline" if file.mime in INLINE else "attachment"
    # Source: RFC 6266, section 4.1; RFC 8187 for the name.
    disposition = f"{kind}; filename*=UTF-8''{quote(file.name, safe='')}"
    return web.Response(
        body=file.content,
        content_type=file.mime if file.mime in INLINE else "application/octet-stream",
        headers={**FILE_HEADERS, "Content-Disposition": disposition},
    )


@dataclass(slots=True)
class _Posted:
    """What was read so far."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[Attachment] = field(default_factory=list)

    @property
    def field_chars(self) -> int:
        return sum(map(len, self.fields.values()))

    @property
    def file_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)


async def posted_with_files(request: web.Request, limit_bytes: int) -> PostedMessage:
    """Read a message from a form with the fields `id` and `text`, and with files.

    Args:
        request: Its body is multipart/form-data.
        limit_bytes: For all files together; 0 where none are taken.

    Raises:
        Refusal: 408 too slow, 413 too large or too many, 400 or 422 for what is malformed.
    """
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            form = await _read(request, limit_bytes)
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


async def _read(request: web.Request, limit_bytes: int) -> _Posted:
    form = _Posted()
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            raise Refusal(400, "bad_form", "A form has no forms inside.")
        if part.filename is None:
            name = part.name or ""
            # Else what is read, and kept until the end, would grow with each field.
            if name not in FIELDS or name in form.fields:
                raise Refusal(400, "bad_form", f"A form has the fields {' and '.join(FIELDS)}.")
            left = MAX_FIELD_BYTES - form.field_chars
            content = await _content(part, left, "The message is too long.")
            form.fields[name] = content.decode()
        else:
            form.files.append(await _file(part, form, limit_bytes))
    return form


async def _file(part: BodyPartReader, form: _Posted, limit_bytes: int) -> Attachment:
    if limit_bytes == 0:
        raise Refusal(413, "no_files", "Files are not taken here.")
    if len(form.files) == MAX_FILES:
        raise Refusal(413, "too_many_files", f"A message has at most {MAX_FILES} files.")
    too_much = f"The files of a message have at most {limit_bytes / 1e6:g} MB altogether."
    content = await _content(part, limit_bytes - form.file_bytes, too_much)
    # A header need not be UTF-8, and no database takes what of it is none.
    name, mime = (
        text.encode(errors="replace").decode()
        for text in (part.filename or "file", part.headers.get("Content-Type", ""))
    )
    return Attachment(
        name=name,
        kind=file_kind(mime.lower()),
        mime=mime,
        size_bytes=len(content),
        content=content,
    )


async def _content(part: BodyPartReader, limit_bytes: int, too_much: str) -> bytes:
    content = bytearray()
    while chunk := await part.read_chunk():
        content += chunk
        if len(content) > limit_bytes:
            raise Refusal(413, "body_too_large", too_much)
    return bytes(content)
