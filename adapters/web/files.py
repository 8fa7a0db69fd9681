"""Files of the web chat: a form with files is read, and stored files are handed out.

Forms are measured while they arrive, and spooled to disk. Files come from strangers, so a browser
must never run one: it shows pictures, downloads everything else, and treats no file as a page of
this site.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO
from urllib.parse import quote

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adapters.door import Reach
from adapters.messages import Attachment, OutgoingFile
from adapters.web.requests import BUSY, PostedMessage, Refusal, checked_id, checked_text
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
SPOOL_BYTES = 1_000_000
WHOLE_AT_ONCE = 2
"""Messages whose files are in memory as a whole while they are stored."""
DISK_S = 60
"""Seconds after which a page tries again if the disk is full."""
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


@dataclass(frozen=True, slots=True)
class _PostedFile:
    """A file of a form, whose bytes are in the spool."""

    name: str
    mime: str
    size: int


@dataclass(slots=True)
class _PostedForm:
    """The parts of a form read so far.

    Attributes:
        spool: The bytes of all files, concatenated.
        seen: Bytes of fields and files so far.
    """

    spool: IO[bytes]
    reach: Reach
    fields: dict[str, str] = field(default_factory=dict)
    files: list[_PostedFile] = field(default_factory=list)
    seen: int = 0

    @property
    def field_chars(self) -> int:
        return sum(map(len, self.fields.values()))

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.files)

    async def keep(self, chunk: bytes) -> None:
        """Write to the spool.

        Raises:
            Refusal: There is no room on the disk.
        """
        try:
            await asyncio.to_thread(_write, self.spool, chunk)
        except OSError as exc:
            text = f"Files cannot be stored now ({exc.strerror})."
            raise Refusal(503, BUSY, text, retry_after_s=DISK_S) from exc

    def read(self) -> PostedMessage:
        """Return the message with the bytes of its files."""
        self.spool.seek(0)
        fields = {"id": self.fields.get("id"), "text": self.fields.get("text", "")}
        names = [{"name": file.name, "size": file.size} for file in self.files]
        return PostedMessage(
            id=checked_id(fields["id"], "id"),
            text=checked_text(fields["text"], may_be_empty=bool(self.files)),
            raw=orjson.dumps(fields | {"files": names}).decode(),
            files=tuple(_attachment(file, self.spool.read(file.size)) for file in self.files),
        )


def _write(spool: IO[bytes], chunk: bytes) -> None:
    # Without a buffer: a full disk shows here, not when the file is closed.
    left = memoryview(chunk)
    while left:
        left = left[spool.write(left) :]


def _attachment(file: _PostedFile, content: bytes) -> Attachment:
    kind = file_kind(file.mime.lower())
    return Attachment(
        name=file.name, kind=kind, mime=file.mime, size_bytes=file.size, content=content
    )


class Uploads:
    """Reads messages with files.

    Above `SPOOL_BYTES` the files of a message are spooled to an unnamed temporary file until all of
    them have arrived. It disappears with the process, however that ends.

    Args:
        limit_bytes: Of all files of a message; 0 accepts none.
        folder: For temporary files; None: the system's.
    """

    def __init__(self, limit_bytes: int, folder: Path | None) -> None:
        self._limit = limit_bytes
        self._folder = None if folder is None else str(folder)
        self._whole = asyncio.Semaphore(WHOLE_AT_ONCE)

    @asynccontextmanager
    async def posted(self, request: web.Request, reach: Reach) -> AsyncIterator[PostedMessage]:
        """Read a message from a form with the fields `id` and `text`, and with files.

        Args:
            request: Its body is multipart/form-data.
            reach: Called with the number of bytes, first with the announced number.

        Raises:
            LimitReached: By `reach`: too many bytes.
            Refusal: 408 too slow, 413 too large or too many, 400 or 422 malformed.
        """
        announced = request.content_length or 0
        if announced > self._limit + MAX_FIELD_BYTES + HEADS_BYTES:
            raise Refusal(413, "body_too_large", self._too_much)
        reach(announced)
        with SpooledTemporaryFile(SPOOL_BYTES, buffering=0, dir=self._folder) as spool:
            form = _PostedForm(spool, reach)
            try:
                async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                    await self._read(request, form)
            except TimeoutError as exc:
                raise Refusal(408, "body_too_slow", "The files did not arrive in time.") from exc
            except _MALFORMED as exc:
                raise Refusal(400, "bad_form", "The form cannot be read.") from exc
            async with self._whole:
                yield await asyncio.to_thread(form.read)

    @property
    def _too_much(self) -> str:
        return f"The files of a message have at most {self._limit / 1e6:g} MB altogether."

    async def _read(self, request: web.Request, form: _PostedForm) -> None:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise Refusal(400, "bad_form", "A form must not contain forms.")
            if part.filename is None:
                await _read_field(part, form)
            else:
                await self._read_file(part, form)

    async def _read_file(self, part: BodyPartReader, form: _PostedForm) -> None:
        if self._limit == 0:
            raise Refusal(413, "no_files", "This Parley accepts no files.")
        if len(form.files) == MAX_FILES:
            raise Refusal(413, "too_many_files", f"A message has at most {MAX_FILES} files.")
        begin, size = form.file_bytes, 0
        async for chunk in _chunks(part, form):
            size += len(chunk)
            if begin + size > self._limit:
                raise Refusal(413, "body_too_large", self._too_much)
            await form.keep(chunk)
        # A header need not be UTF-8, and databases reject other bytes.
        name, mime = (
            text.encode(errors="replace").decode()
            for text in (part.filename or "file", part.headers.get("Content-Type", ""))
        )
        form.files.append(_PostedFile(name, mime, size))


async def _read_field(part: BodyPartReader, form: _PostedForm) -> None:
    name = part.name or ""
    # Otherwise memory would grow with each field.
    if name not in FIELDS or name in form.fields:
        raise Refusal(400, "bad_form", f"A form has the fields {' and '.join(FIELDS)}.")
    content, left = bytearray(), MAX_FIELD_BYTES - form.field_chars
    async for chunk in _chunks(part, form):
        content += chunk
        if len(content) > left:
            raise Refusal(413, "body_too_large", "The message is too long.")
    form.fields[name] = content.decode()


async def _chunks(part: BodyPartReader, form: _PostedForm) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(CHUNK_BYTES):
        form.seen += len(chunk)
        form.reach(form.seen)
        yield chunk
