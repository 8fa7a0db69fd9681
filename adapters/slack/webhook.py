"""HTTP mode (step 1): Slack gets its 200 only after what it brought was stored.

Events, buttons and slash commands come to the same address, told apart by their form.
"""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import structlog
from aiohttp import web

from adapters.slack.ingest import MENTION_DELAY_S, Ingest, Update, is_bare_mention

log = structlog.get_logger()

_BODY_LIMIT_BYTES = 1 << 20
_BODY_TIMEOUT_S = 10.0
# Source: https://docs.slack.dev/authentication/verifying-requests-from-slack
_MOST_SKEW_S = 300


class Webhook:
    """Takes Slack's calls; an event that is answered with anything but 200 is delivered again.

    Args:
        secret: The app's signing secret.
        ingest: Where updates are made durable.
        now: Seconds since the epoch.
    """

    def __init__(
        self, secret: str, ingest: Ingest, *, now: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret.encode()
        self._ingest = ingest
        self._now = now

    async def handle(self, request: web.Request) -> web.Response:
        """Store one update."""
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await _read(request)
        if body is None:
            return web.Response(status=413)
        if not self._is_signed(request, body):
            log.warning("slack_webhook_denied", remote=request.remote)
            return web.Response(status=401)
        if request.content_type == "application/json":
            return await self._events(body)
        return await self._form(body)

    def _is_signed(self, request: web.Request, body: bytes) -> bool:
        at = request.headers.get("X-Slack-Request-Timestamp", "")
        if not at.isdecimal() or abs(self._now() - int(at)) > _MOST_SKEW_S:
            return False
        signed = hmac.new(self._secret, f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
        given = request.headers.get("X-Slack-Signature", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"v0={signed}".encode())

    async def _events(self, body: bytes) -> web.Response:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError) as exc:
            return await self._stored(self._ingest.store_poison(body, str(exc)))
        if isinstance(payload, dict) and payload.get("type") == "url_verification":
            return web.json_response({"challenge": payload.get("challenge")})
        update = Update("events_api", payload)
        if is_bare_mention(update):
            await asyncio.sleep(MENTION_DELAY_S)
        return await self._stored(self._ingest.store([update]))

    async def _form(self, body: bytes) -> web.Response:
        update = _form_update(body)
        if update is None:
            return web.Response(status=400)
        return await self._stored(self._ingest.store([update]))

    async def _stored(self, storing: Any) -> web.Response:
        """Return 200, or 503 if the update was not stored, for whatever reason."""
        try:
            await storing
        except Exception:
            log.exception("slack_webhook_not_stored")
            return web.Response(status=503)
        return web.Response()


def _form_update(body: bytes) -> Update | None:
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        if "payload" in form:
            return Update("interactive", json.loads(form["payload"]))
    except (ValueError, RecursionError):
        return None
    return Update("slash_commands", form) if "command" in form else None


async def _read(request: web.Request) -> bytes | None:
    """Return the body, None if it is larger than any update can be."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _BODY_LIMIT_BYTES:
            return None
    return bytes(body)
