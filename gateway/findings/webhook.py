"""The second way: alerts as JSON to an address of the operator's, where no chat shows them.

It is told what no chat was shown within a minute, or all of it (`alerts.webhook_when`). A request
is tried some times at once, and later again for a day; whoever receives one twice knows it by its
id. With a secret it is signed: `X-Parley-Signature` is "sha256=" and the HMAC of "TIME.BODY" in
hex, TIME as in `X-Parley-Timestamp`. The address is the operator's own setting, so it may be a
private one.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
import structlog
import tenacity
from pydantic import SecretStr

from agent.network import UnusableEnvironment, proxy_for, tls_for
from gateway.findings.finding import Sight
from gateway.findings.report import FINDINGS
from gateway.findings.telling import CurrentTelling, Key, prefix_of_begin
from gateway.storage.database import Database
from gateway.storage.queue import alerts, outbox
from gateway.storage.queue.alerts import BEGIN, END, Alert
from gateway.storage.schema import iso_time

log = structlog.get_logger()

LOOK_EVERY_S = 5.0
UNHEARD_S = 60.0
"""How long a chat has to show an alert."""
TIMEOUT_S = 10.0
TRIES = 4
CLAIM_S = 120.0
"""Longer than all tries at once take."""
AGAIN_S = 300.0

Event = Literal["begin", "over", "test"]


class PostRefused(Exception):
    """The receiver did not take a request; it may take another one."""


@dataclass(slots=True)
class AlertWebhook:
    """Posts alerts.

    Args:
        telling: Returns what tells now: its settings have the address, its texts are the chats'.
        pause_s: After the first try at a request; then twice as long, and so on.
        unstored: What was posted without a row, and has none yet.
    """

    database: Database
    telling: CurrentTelling
    pause_s: float = 1.0
    unstored: set[Key] = field(default_factory=set)

    async def post_due(self) -> None:
        """Post what the webhook is to be told, and was not yet.

        Raises:
            StorageError: What is due cannot be read, or what was posted cannot be noted.
        """
        for alert in await self.database.read(self._due):
            if not await self.database.write(alerts.claim_post, alert.id, CLAIM_S):
                continue
            is_over = alert.over_at is not None
            if await self._post("over" if is_over else "begin", f"alert-{alert.id}", alert):
                stage = END if is_over else BEGIN
                await self.database.write(alerts.mark_posted, alert.id, stage)
            else:
                await self.database.write(alerts.put_off, alert.id, AGAIN_S)

    async def tell_unstored(self, seen: Mapping[Key, Sight]) -> None:
        """Post what cannot be stored, each once in a process; its row is made later."""
        for key in seen.keys() - self.unstored:
            kind, subject = key
            text = self.telling().text_of(kind, seen[key])
            at = time.time() - seen[key].since_s
            alert = Alert(0, kind, subject, text, at, None, None, 0)
            if await self._post("begin", f"{kind}-{at:.0f}", alert):
                self.unstored.add(key)

    async def test(self) -> bool:
        """Post a test; whether it was taken."""
        alert = Alert(0, "test", "alerts", "a test of the alerts", time.time(), None, None, 0)
        return await self._post("test", f"test-{time.time():.0f}", alert)

    def _due(self, conn: Any) -> list[Alert]:
        is_always = self.telling().settings.webhook_when == "always"
        return [
            each
            for each in alerts.to_post(conn)
            if is_always or (each.posted == BEGIN if each.over_at else _is_unheard(conn, each))
        ]

    async def _post(self, event: Event, id_: str, alert: Alert) -> bool:
        body = orjson.dumps(_told(event, id_, alert))
        url = self.telling().settings.webhook or SecretStr("")
        trying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_exponential(self.pause_s),
            retry=tenacity.retry_if_exception_type((
                PostRefused,
                aiohttp.ClientError,
                TimeoutError,
            )),
        )
        try:
            await trying(self._send, url.get_secret_value(), body)
        except tenacity.RetryError as exc:
            # Not the error itself: its text may hold the address, and that a token.
            reason = exc.last_attempt.exception()
            why = str(reason) if isinstance(reason, PostRefused) else type(reason).__name__
            log.warning("alert_not_posted", id=id_, reason=why)
            return False
        log.info("alert_posted", id=id_, kind=alert.kind, state=event)
        return True

    async def _send(self, url: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "parley"}
        if (secret := self.telling().settings.webhook_secret) is not None:
            headers |= signature(secret.get_secret_value(), body, str(int(time.time())))
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            proxy, tls = proxy_for(url), tls_for(url)
        except UnusableEnvironment as exc:
            raise PostRefused(str(exc)) from exc
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=proxy,
                ssl=tls,
            ) as response,
        ):
            if not response.ok or response.status >= 300:
                raise PostRefused(f"HTTP {response.status}")


def signature(secret: str, body: bytes, timestamp: str) -> dict[str, str]:
    """Return the headers by which a receiver knows that a request is Parley's."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return {
        "X-Parley-Timestamp": timestamp,
        "X-Parley-Signature": f"sha256={signed.hexdigest()}",
    }


def _is_unheard(conn: Any, alert: Alert) -> bool:
    """Whether chats had a minute to show an alert, and none has."""
    kind = FINDINGS.get(alert.kind)
    is_told = kind and kind.told and not kind.told.announced
    if not is_told or alerts.noticed_s(conn, alert.id) < UNHEARD_S:
        return False
    return not outbox.is_shown(conn, prefix_of_begin(alert))


def _told(event: Event, id_: str, alert: Alert) -> dict[str, Any]:
    kind = FINDINGS.get(alert.kind)
    return {
        "id": id_,
        "event": event,
        "kind": alert.kind,
        "level": kind.level if kind else "note",
        "subject": alert.subject,
        "text": alert.text,
        "since": iso_time(alert.since),
        "over": iso_time(alert.over_at) if alert.over_at is not None else None,
        "remedy": kind.remedy if kind else "",
    }
