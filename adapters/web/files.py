"""Files as the web chat hands them out: pictures to be seen, everything else to be kept.

They come from strangers, so a browser must never run one: nothing in them is a page of this site.
"""

from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web

if TYPE_CHECKING:
    from adapters.messages import OutgoingFile

INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
FILE_HEADERS = {
    "Cache-Control": "private, max-age=3600",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def file_response(file: "OutgoingFile") -> web.Response:
    """Return a file: a picture inline, anything else as a download of its name."""
    kind = "inline" if file.mime in INLINE else "attachment"
    # Source: RFC 6266, section 4.1; RFC 8187 for the name.
    disposition = f"{kind}; filename*=UTF-8''{quote(file.name, safe='')}"
    return web.Response(
        body=file.content,
        content_type=file.mime if file.mime in INLINE else "application/octet-stream",
        headers={**FILE_HEADERS, "Content-Disposition": disposition},
    )
