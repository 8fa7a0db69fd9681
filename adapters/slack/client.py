"""slack_sdk's AsyncWebClient without retries, on one connection pool, within request budgets.

The SDK's retry handlers would post again after a lost response, and the one for rate limits reads
only the first digit of Retry-After (slack_sdk 3.47.0, `builtin_async_handlers`). Slack allows one
message per second and channel, and limits each method per workspace. Source:
https://docs.slack.dev/apis/web-api/rate-limits and the methods' own pages.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
from slack_sdk.web.async_client import AsyncWebClient
from typing_extensions import override

from adapters.base import Clock, Share
from adapters.messages import read_within
from adapters.outbound import Outbound, Shut, verdict_of_aiohttp
from adapters.pacing import PaceLimits, Pacer, Slot
from adapters.registry import AccountReport, credential
from adapters.slack.errors import Limited, mapped, mapped_receiving
from adapters.slack.platform import SlackSettings
from agent.network import proxy_for, tls_for

# The workspace-wide limit of posts is unpublished ("several hundred per minute").
LIMITS = PaceLimits(per_s=10, chat_interval_s=1.0)

POST = "chat.postMessage"
START = "chat.startStream"
APPEND = "chat.appendStream"
STOP = "chat.stopStream"
UPDATE = "chat.update"
REACT = "reactions.add"
UNREACT = "reactions.remove"
STATUS = "assistant.threads.setStatus"
USERS = "users.info"
_ONCE = frozenset({POST, START, APPEND})
_PER_MIN = {
    START: 20,
    STOP: 20,
    APPEND: 100,
    UPDATE: 50,
    REACT: 50,
    UNREACT: 50,
    STATUS: 50,
    USERS: 100,
}
# Pause after a 429 without a delay.
_BLOCKED_S = 30.0
_CHUNK_BYTES = 1 << 16
_ANSWER_TIMEOUT_S = 20
# Limit for obtaining a connection; until then the request was not sent.
_CONNECT_TIMEOUT_S = 10
_CONNECTIONS = 100
_DEADLINE_S = 60.0
PAGE = 200
"""Most messages in one response, as Slack recommends. Source: conversations.history."""
_METADATA_EVENT = "parley_message"
_SLACK_DOMAINS = ("slack.com", "slack-gov.com")
SCOPES = (
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "chat:write",
    "commands",
    "files:read",
    "files:write",
    "groups:history",
    "im:history",
    "mpim:history",
    "reactions:write",
    "users:read",
)
"""Source: the manifest in docs/platforms/slack.md; a test compares them."""

sdk_log = logging.getLogger("parley.slack_sdk")
"""The logger of slack_sdk and Bolt, which log texts and tokens below WARNING."""
sdk_log.setLevel(logging.WARNING)


class Client:
    """One app's Web API with its own budgets and connections; the first call opens them."""

    def __init__(
        self, settings: SlackSettings, limits: PaceLimits = LIMITS, clock: Clock = time.monotonic
    ) -> None:
        self._posts = Pacer(limits, clock=clock)
        self._methods = {
            method: Pacer(_tier(per_min, limits.share), clock=clock)
            for method, per_min in _PER_MIN.items()
        }
        self.outbound = Outbound(
            "slack",
            settings.name,
            self._swap,
            lambda exc: verdict_of_aiohttp(exc, full=self.outbound.in_use >= _CONNECTIONS),
            limit=_CONNECTIONS,
        )
        self.close = self.outbound.close
        self._base_url = api_root(settings.base_url or AsyncWebClient.BASE_URL)
        # Detect an unusable proxy setting now rather than in each request.
        proxy_for(self._base_url)
        self._tls = tls_for(self._base_url)
        self._token = credential(settings.bot_token, "platforms.slack.bot_token")
        self._web: AsyncWebClient | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def web(self) -> AsyncWebClient:
        """The SDK's client; requires a running event loop."""
        if self._web is None:
            self._web = _Web(
                self.outbound,
                self._token,
                base_url=self._base_url,
                session=self.session,
                # Used by the socket as well.
                ssl=self._tls,
                logger=sdk_log,
                # The SDK's handlers would post again after a lost response.
                retry_handlers=[],
            )
            # The SDK itself would ignore NO_PROXY.
            self._web.proxy = proxy_for(self._base_url)
        return self._web

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session

    @asynccontextmanager
    async def turn(self, method: str, channel: str) -> AsyncIterator[None]:
        """Wait for budget for the call in the block.

        Raises:
            SendDelayed: The wait would be too long; nothing was charged.
            AdapterError: The call failed; SendUnknown only if it posts something new.
        """
        pacer, chat, group = self._pacer(method, channel)
        slot = await pacer.wait(chat, group=group)
        with _taken(pacer, chat, slot, once=method in _ONCE):
            yield

    def chance(self, method: str, channel: str) -> AbstractContextManager[None] | None:
        """Return `turn` for a best-effort call, or None without budget for it now."""
        pacer, chat, group = self._pacer(method, channel)
        slot = pacer.try_preview(chat, group=group)
        return None if slot is None else _taken(pacer, chat, slot, once=method in _ONCE)

    def _pacer(self, method: str, channel: str) -> tuple[Pacer, str, bool]:
        """Return a call's pacer, its key, and whether processes share this budget."""
        if method == POST:
            # Ids of direct chats start with D.
            return self._posts, channel, not channel.startswith("D")
        return self._methods[method], method, True

    async def exchange(
        self,
        method: str,
        url: str,
        check: Callable[[aiohttp.ClientResponse], None],
        *,
        limit_bytes: int = 0,
        **options: Any,
    ) -> bytes:
        """Make a request outside the Web API and return the response body.

        Args:
            check: Raises the error for a bad response.
            limit_bytes: Largest body; 0 reads nothing.

        Raises:
            FetchRejected: The body is too large.
            aiohttp.ClientError: The request failed; OSError after a timeout.
        """

        async def taken() -> bytes:
            proxy = proxy_for(url)
            async with self.session.request(method, url, proxy=proxy, **options) as answer:
                check(answer)
                chunks = answer.content.iter_chunked(_CHUNK_BYTES)
                return await read_within(chunks, limit_bytes) if limit_bytes else b""

        return await self.outbound.run(taken(), _DEADLINE_S)

    async def history(
        self, channel: str, thread: str | None, *, oldest: str, cursor: str | None, **options: Any
    ) -> dict[str, Any]:
        """Return a page of messages of a channel or thread after `oldest`.

        The cursor is the previous page's `next_cursor`, or None for the first.

        Raises:
            SendDelayed: The history cannot be read now.
            Refused: The history cannot be read.
        """
        place: dict[str, Any] = {"channel": channel, "oldest": oldest, "limit": PAGE}
        with mapped():
            if thread is None:
                page = await self.web.conversations_history(**place, cursor=cursor, **options)
            else:
                page = await self.web.conversations_replies(
                    **place, ts=thread, cursor=cursor, **options
                )
            return cast("dict[str, Any]", page.data)

    def anonymous(self) -> AsyncWebClient:
        """Return a client of the same server without token or connections."""
        return AsyncWebClient(base_url=self._base_url, logger=sdk_log, retry_handlers=[])

    def authorization(self, url: str) -> dict[str, str] | None:
        """Return the authorization header; None for a server that must not see the token."""
        return {"Authorization": f"Bearer {self._token}"} if self.is_slack(url) else None

    def is_slack(self, url: str) -> bool:
        """Whether a URL belongs to Slack or the server of `base_url`."""
        parts, base = urlsplit(url), urlsplit(self._base_url)
        if (parts.scheme, parts.netloc) == (base.scheme, base.netloc):
            return True
        host = parts.hostname or ""
        return parts.scheme == "https" and any(host.endswith(f".{each}") for each in _SLACK_DOMAINS)

    def _swap(self) -> list[Shut]:
        """Let later calls open new connections; return functions that close the old ones."""
        session, self._session, self._web = self._session, None, None
        return [session.close] if session is not None else []


def api_root(url: str) -> str:
    """Return the URL of the methods, ending in `/api/` as the SDK expects."""
    root = url.rstrip("/")
    return f"{root}/" if root.endswith("/api") else f"{root}/api/"


def metadata_of(nonce: str) -> dict[str, Any]:
    """Return the metadata that identifies a posted message."""
    return {"event_type": _METADATA_EVENT, "event_payload": {"id": nonce}}


def nonce_of(message: dict[str, Any]) -> str | None:
    """Return Parley's nonce of a message from the history, or None."""
    metadata = message.get("metadata") or {}
    if metadata.get("event_type") != _METADATA_EVENT:
        return None
    nonce = (metadata.get("event_payload") or {}).get("id")
    return nonce if isinstance(nonce, str) else None


def signing_secret(settings: SlackSettings) -> str:
    """Return the signing secret of Slack's calls, or ""."""
    secret = settings.signing_secret
    return secret.get_secret_value().strip() if secret else ""


async def check(settings: SlackSettings) -> AccountReport:
    """Report the app's name and its missing scopes.

    Checks the App-Level Token by requesting a socket's URL, without opening it.
    """
    client = Client(settings)
    try:
        with mapped_receiving("bot_token"):
            answer = await client.web.auth_test()
        if settings.mode == "socket":
            token = credential(settings.app_token, "platforms.slack.app_token")
            with mapped_receiving("app_token"):
                await client.web.apps_connections_open(app_token=token)
        else:
            credential(settings.signing_secret, "platforms.slack.signing_secret")
    finally:
        await client.close()
    name, team = str(answer.get("user") or ""), str(answer.get("team") or "")
    text = f"the token is that of {name} in the workspace {team}"
    return AccountReport("accepted", text, bot=name, lacks=_lacks(answer.headers))


def _lacks(headers: Any) -> tuple[str, ...]:
    """Return a text about missing scopes; empty if Slack does not name the granted ones."""
    named = {str(name).lower(): str(value) for name, value in headers.items()}
    granted = {each.strip() for each in named.get("x-oauth-scopes", "").split(",")} - {""}
    missing = [scope for scope in SCOPES if scope not in granted]
    if not granted or not missing:
        return ()
    what = "a scope is missing" if len(missing) == 1 else "scopes are missing"
    where = "under OAuth & Permissions, then Reinstall to Workspace (https://api.slack.com/apps)"
    return (f"{what}: add {', '.join(missing)} {where}",)


@contextmanager
def _taken(pacer: Pacer, chat: str, slot: Slot, *, once: bool) -> Iterator[None]:
    """Charge the call, and block the chat for a pause requested by Slack."""
    try:
        with slot, mapped(once=once):
            yield
    except Limited as exc:
        pacer.block(chat, _BLOCKED_S if exc.retry_after_s is None else exc.retry_after_s)
        raise


def _tier(per_min: int, share: Share) -> PaceLimits:
    return PaceLimits(
        per_s=per_min,
        chat_interval_s=0.0,
        chat_burst=per_min,
        group_per_min=per_min,
        # Best-effort calls (`chance`) leave a quarter to required calls (`turn`).
        group_preview_interval_s=0.0,
        share=share,
    )


class _Web(AsyncWebClient):
    """The SDK's client; a cancelled caller does not abort a call."""

    def __init__(self, outbound: Outbound, token: str, **options: Any) -> None:
        super().__init__(token, **options)
        self._outbound = outbound

    @override
    async def api_call(self, api_method: str, **call: Any) -> Any:
        return await self._outbound.run(super().api_call(api_method, **call), _DEADLINE_S)
