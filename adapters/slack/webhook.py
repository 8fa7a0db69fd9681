"""HTTP mode (step 1): Slack gets its 200 only after what it brought was stored.

Bolt checks the signature, answers Slack's own checks of the address, and tells events, buttons
and slash commands apart, which all come to the same address.
"""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl

import structlog
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response, to_bolt_request
from slack_bolt.response import BoltResponse
from slack_sdk.signature import SignatureVerifier

from adapters.slack.bolt import UNREADABLE, answered, bolt_app
from adapters.slack.client import Client
from adapters.slack.ingest import MENTION_DELAY_S, Ingest, Update, is_bare_mention

log = structlog.get_logger()

_BODY_TIMEOUT_S = 10.0


class Webhook:
    """Takes Slack's calls; an event that is answered with anything but 200 is delivered again.

    Args:
        secret: The app's signing secret.
        client: Names Slack's server.
        ingest: Where updates are made durable.
    """

    def __init__(self, secret: str, client: Client, ingest: Ingest) -> None:
        self._ingest = ingest
        self._verifier = SignatureVerifier(secret)
        self._app = bolt_app(client, ingest, self._store, secret)

    async def handle(self, request: web.Request) -> web.Response:
        """Store one update."""
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await request.read()
        try:
            answer = await self._dispatched(request)
        except UnicodeDecodeError:
            # Slack sends UTF-8, and nothing else can be checked.
            answer = BoltResponse(status=HTTPStatus.BAD_REQUEST)
        except UNREADABLE as exc:
            answer = await self._set_aside(body, request.headers, exc)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            log.warning("slack_webhook_denied", remote=request.remote)
        return await to_aiohttp_response(answer)

    async def _dispatched(self, request: web.Request) -> BoltResponse:
        call = await to_bolt_request(request)
        if not call.body and call.raw_body:
            # Bolt 1.30.0 loses a slash command that has the word "payload" in its text.
            call.body = dict(parse_qsl(call.raw_body, keep_blank_values=True))
        return await self._app.async_dispatch(call)

    async def _store(self, update: Update) -> None:
        if is_bare_mention(update):
            await asyncio.sleep(MENTION_DELAY_S)
        await self._ingest.store([update])

    async def _set_aside(
        self, body: bytes, headers: Mapping[str, str], reason: Exception
    ) -> BoltResponse:
        """Store what Bolt cannot read, if it is signed: our own reading is stricter."""
        try:
            is_signed = self._verifier.is_valid_request(body, headers)
        except UNREADABLE:
            is_signed = False
        if not is_signed:
            return BoltResponse(status=HTTPStatus.UNAUTHORIZED)
        return await answered(self._store_anyway(body, reason))

    async def _store_anyway(self, body: bytes, reason: Exception) -> None:
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            await self._ingest.store_poison(body, str(reason))
        else:
            await self._ingest.store([Update("events_api", payload)])
