"""Posts alerts as JSON to the operator's URL, as a second channel if no chat shows them.

Posts alerts that no chat has shown within a minute, or all (`alerts.webhook_when`). A failed post
is repeated every minute for a day with the same id. With a secret it is signed:
`X-Parley-Signature` is "sha256=" plus the hex HMAC of "TIME.BODY", TIME as in `X-Parley-Timestamp`.
The operator configures the URL, so it may be a private address.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
import structlog
from pydantic import SecretStr

from agent.network import UnusableEnvironment, in_words, proxy_for, tls_for
from gateway.findings.finding import Sight
from gateway.findings.report import FINDINGS
from gateway.findings.telling import Key, Telling, prefix_of_begin
from gateway.storage.database import Database
from gateway.storage.queue import alerts, outbox
from gateway.storage.queue.alerts import BEGIN, END, Alert
from gateway.storage.schema import iso_time

log = structlog.get_logger()

LOOK_EVERY_S = 5.0
UNHEARD_S = 60.0
"""Seconds for a chat to show an alert."""
TIMEOUT_S = 10.0
AGAIN_S = 60.0
"""Seconds for which a post is claimed, and the pause between attempts; above `TIMEOUT_S`."""

Event = Literal["begin", "over", "test"]


@dataclass(slots=True)
class AlertWebhook:
    """Posts alerts.

    Args:
        telling: Provides the settings with the URL.
        unstored: Posted alerts without a row.
    """

    database: Database
    telling: Callable[[], Telling]
    unstored: set[Key] = field(default_factory=set)

    async def post_due(self) -> None:
        """Post due alerts.

        Raises:
            StorageError: The rows cannot be read or written.
        """
        for alert in await self.database.read(self._due):
            if await self.database.write(alerts.claim_post, alert.id, AGAIN_S):
                is_over = alert.over_at is not None
                if await self._post("over" if is_over else "begin", f"alert-{alert.id}", alert):
                    stage = END if is_over else BEGIN
                    await self.database.write(alerts.mark_posted, alert.id, stage)

    async def tell_unstored(self, seen: Mapping[Key, Sight]) -> None:
        """Post alerts that cannot be stored, each once per process; their rows follow later."""
        for key in seen.keys() - self.unstored:
            kind, subject = key
            text = self.telling().text_of(kind, seen[key])
            at = time.time() - seen[key].since_s
            alert = Alert(0, kind, subject, text, at, None, None, 0)
            if await self._post("begin", f"{kind}-{at:.0f}", alert):
                self.unstored.add(key)

    async def test(self) -> bool:
        """Post a test; return whether it was accepted."""
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
        kind = FINDINGS.get(alert.kind)
        told = {
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
        try:
            status = await self._send(orjson.dumps(told))
            reason = f"HTTP {status}" if status >= 300 else ""
        except UnusableEnvironment as exc:
            reason = str(exc)
        except (aiohttp.ClientError, TimeoutError) as exc:
            # Not its text, which may contain the URL with a token.
            reason = in_words(exc)
        if reason:
            log.warning("alert_not_posted", id=id_, reason=reason)
        else:
            log.info("alert_posted", id=id_, kind=alert.kind, state=event)
        return not reason

    async def _send(self, body: bytes) -> int:
        """Send a body; return the response status."""
        settings = self.telling().settings
        url = (settings.webhook or SecretStr("")).get_secret_value()
        headers = {"Content-Type": "application/json", "User-Agent": "parley"}
        if settings.webhook_secret is not None:
            secret = settings.webhook_secret.get_secret_value()
            headers |= signature(secret, body, str(int(time.time())))
        proxy, tls = proxy_for(url), tls_for(url)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.post(url, data=body, allow_redirects=False, proxy=proxy, ssl=tls) as answer,
        ):
            return answer.status


def signature(secret: str, body: bytes, timestamp: str) -> dict[str, str]:
    """Return the headers that authenticate a request."""
    signed = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    found = f"sha256={signed.hexdigest()}"
    return {"X-Parley-Timestamp": timestamp, "X-Parley-Signature": found}


def _is_unheard(conn: Any, alert: Alert) -> bool:
    """Whether no chat has shown an alert within a minute."""
    kind = FINDINGS.get(alert.kind)
    is_told = kind and kind.told and not kind.announced
    if not is_told or alerts.noticed_s(conn, alert.id) < UNHEARD_S:
        return False
    return not outbox.is_shown(conn, prefix_of_begin(alert))
