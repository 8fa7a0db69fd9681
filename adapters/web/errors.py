"""How a request of the web chat is refused: one exception, one JSON shape."""

import orjson
from aiohttp import web

API_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Refusal(Exception):
    """The request is answered with `status` and a JSON error, and nothing was changed.

    `code` is for programs, the text for people; a client repeats only what got 408, 429 or 5xx.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


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
    return json_response({"error": refusal.code, "message": str(refusal)}, refusal.status)
