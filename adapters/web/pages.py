"""The page and its files. They hold nothing secret and need no token: the login form is there."""

from pathlib import Path

from aiohttp import web

from adapters.web.errors import Refusal

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


async def index(_request: web.Request) -> web.StreamResponse:
    """Serve the page."""
    return web.FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def static(request: web.Request) -> web.StreamResponse:
    """Serve one of the page's files, by its plain name.

    Raises:
        Refusal: There is no such file.
    """
    name = request.match_info["name"]
    if name not in {file.name for file in PAGE.iterdir()}:
        raise Refusal(404, "no_such_file", "There is no such file.")
    return web.FileResponse(PAGE / name, headers=PAGE_HEADERS)
