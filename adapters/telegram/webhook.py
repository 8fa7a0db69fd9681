"""The webhook's HTTP side (step 1): Telegram gets its 200 only after the update was stored."""

import asyncio
import hashlib
import hmac
import json

import structlog
from aiohttp import web

from adapters.messages import Poison
from adapters.telegram.ingest import Ingest

log = structlog.get_logger()

_BODY_LIMIT_BYTES = 1 << 20
_BODY_TIMEOUT_S = 10.0
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the name of a header


class Webhook:
    """Takes Telegram's calls; every answer but 200 makes Telegram deliver the update again."""

    def __init__(self, secret: str, ingest: Ingest) -> None:
        self._secret = secret.encode()
        self._ingest = ingest

    async def handle(self, request: web.Request) -> web.Response:
        """Store one update."""
        given = request.headers.get(_SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._secret):
            log.warning("telegram_webhook_denied", remote=request.remote)
            return web.Response(status=401)
        if request.content_type != "application/json":
            return web.Response(status=415)
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await _read(request)
        return web.Response(status=413) if body is None else await self._stored(body)

    async def _stored(self, body: bytes) -> web.Response:
        """Return 200, or 503 if the update was not stored, for whatever reason."""
        try:
            await self._store(body)
        except Exception:
            log.exception("telegram_webhook_not_stored")
            return web.Response(status=503)
        return web.Response()

    async def _store(self, body: bytes) -> None:
        try:
            update = json.loads(body)
        except (ValueError, RecursionError) as exc:
            await self._ingest.store_poison(self._undecoded(body, str(exc)))
        else:
            await self._ingest.store([update])

    def _undecoded(self, body: bytes, reason: str) -> Poison:
        return Poison(
            source=self._ingest.source,
            dedupe_key=f"x{hashlib.sha256(body).hexdigest()[:32]}",
            raw=body.decode("utf-8", "replace"),
            reason=reason,
        )


async def _read(request: web.Request) -> bytes | None:
    """Return the body, None if it is larger than any update can be."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _BODY_LIMIT_BYTES:
            return None
    return bytes(body)
