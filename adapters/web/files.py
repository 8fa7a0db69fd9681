"""Files of the web chat: a form with files is read, and stored files are handed out.

Forms are measured while they arrive. Files come from strangers, so a browser must never run one: it
shows pictures, downloads everything else, and treats no file as a page of this site.
"""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import quote

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.door import Reach
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
HEADS_BYTES = 100_000
"""Limit of the headers of all parts of a form."""
CHUNK_BYTES = 65_536
UPLOAD_TIMEOUT_S = 600.0
# Errors that aiohttp raises for a malformed form.
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
class _PostedForm:
    """The parts of a form read so far.

    Attributes:
        limit: Bytes of all files together; with 0 none are taken.
        seen: Bytes of fields and files so far.
    """

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
        # A header need not be UTF-8, and databases reject other bytes.
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
    """Read a message from a form with the fields `id` and `text`, and with files.

    Args:
        request: Its body is multipart/form-data.
        reach: Called with the number of bytes, first with the announced number.
        limit_bytes: Of all files of a message; 0 accepts none.

    Raises:
        LimitReached: By `reach`: too many bytes.
        Refusal: 408 too slow, 413 too large or too many, 400 or 422 malformed.
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
