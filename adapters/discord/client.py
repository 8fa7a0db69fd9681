"""discord.py's HTTP API, with or without a connection to the gateway.

Requests raise the errors of `adapters.discord.errors`; a cancelled caller does not abort one.
"""

import asyncio
import io
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar

import aiohttp
import discord
import orjson
import structlog
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Ratelimit, Route, json_or_text
from typing_extensions import override
from yarl import URL

from adapters.base import Clock
from adapters.discord.errors import mapped_call, mapped_receiving
from adapters.discord.platform import DiscordSettings
from adapters.errors import AdapterError, SendDelayed
from adapters.messages import OutgoingFile
from adapters.outbound import Outbound, Shut, verdict_of_aiohttp
from adapters.pacing import PaceLimits, Pacer
from adapters.registry import AccountReport, credential
from agent.network import proxy_for, tls_for

log = structlog.get_logger()

_ID_BITS_OF_TIME = 22
BUCKET_WAIT_S = 5.0
"""Longest wait for a route's budget, in seconds; a longer one raises SendDelayed."""
UNSAID_RETRY_S = 5.0
"""Pause after a 429 without a delay."""
# Source: https://discord.com/developers/docs/topics/rate-limits#global-rate-limit; channel limits
# are unpublished, but Discord's responses have named 5 in 5 s for years.
LIMITS = PaceLimits(per_s=50, chat_interval_s=1.0, chat_burst=5, typing_interval_s=8.0)
LONGEST_WAIT_S = 5.0
"""Longest wait of an answer for its thread or acknowledgement, in seconds."""
_CLOCK_GRAIN_S = 0.01
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=60.0, sock_connect=10.0)

# Raise every 429 instead of sleeping: the caller decides how to wait.
_NO_SILENT_WAIT_S = 0.001

T = TypeVar("T")
# First pause between attempts of `answer_to`, unless Discord names one.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
MESSAGES = "/channels/{channel_id}/messages"
MESSAGE = MESSAGES + "/{message_id}"
PAGE = 100
"""Most messages in one response. Source: GET /channels/{id}/messages."""
# The required format. Source: https://discord.com/developers/docs/reference#user-agent
USER_AGENT = f"DiscordBot (parley, {version('parley')})"
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+(?:; ?[\w.+=-]+)*")
_BYTES = "application/octet-stream"
_UPLOAD_TIMEOUT = aiohttp.ClientTimeout(total=300.0, sock_connect=10.0)
_PLAIN_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=10.0)
# After server errors the SDK makes up to five attempts, each with its own timeout.
_DEADLINE_S = 120.0
_UPLOAD_DEADLINE_S = 600.0
_DOWNLOAD_DEADLINE_S = 60.0
_PORTAL = "https://discord.com/developers/applications"
# docs/platforms/discord.md lists them.
_PERMISSIONS = 309237746752
# Source: https://discord.com/developers/docs/resources/application#application-object
_READS = 1 << 18 | 1 << 19


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `of` connections of a bot, over which Discord spreads its servers.

    A bot in more than 2,500 servers needs several. Direct chats come over the first (0). Each is
    used by one process at a time; they are spread over all processes. Source:
    https://docs.discord.com/developers/events/gateway#sharding
    """

    number: int = 0
    of: int = 1

    def receives(self, guild: str | None) -> bool:
        """Whether this connection receives a server's events; None means direct messages."""
        return self.number == ((int(guild) >> _ID_BITS_OF_TIME) % self.of if guild else 0)


class Http(HTTPClient):
    """The SDK's HTTP client with bounded requests; every 429 raises RateLimited.

    A bot-wide 429 blocks the pacer.
    """

    def __init__(self, pacer: Pacer) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        super().__init__(
            asyncio.get_running_loop(),
            connector(),
            proxy=proxy_for(Route.BASE),
            max_ratelimit_timeout=30.0,
            http_trace=trace,
        )
        self._pacer = pacer
        # The constructor accepts only 30 s and more.
        self.max_ratelimit_timeout = _NO_SILENT_WAIT_S

    @override
    def get_ratelimit(self, key: str) -> Ratelimit:
        budget = super().get_ratelimit(key)
        if not isinstance(budget, _Budget):
            self._buckets[key] = budget = _Budget(self.max_ratelimit_timeout)
        return budget

    @override
    async def request(self, route: Route, **kwargs: Any) -> Any:
        kwargs.setdefault("timeout", _REQUEST_TIMEOUT)
        try:
            return await super().request(route, **kwargs)
        except discord.HTTPException as exc:
            if exc.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            # Without the header `Via` the SDK treats a 429 as final.
            raise discord.RateLimited(await _retry_after_s(exc.response)) from exc

    async def _answered(
        self, _session: object, _context: object, end: aiohttp.TraceRequestEndParams
    ) -> None:
        """Check every response, since the SDK does not report which limit was hit."""
        answer = end.response
        if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
            return
        if "X-RateLimit-Global" in answer.headers or (await _said(answer)).get("global") is True:
            self._pacer.block_all(await _retry_after_s(answer))


class Api:
    """The HTTP half of one bot, with its budgets; logs in on first use.

    `user` is the bot's own id, "" before the first request.
    """

    def __init__(
        self, settings: DiscordSettings, limits: PaceLimits = LIMITS, clock: Clock = time.monotonic
    ) -> None:
        use_servers(settings)
        self.token = credential(settings.token, "platforms.discord.token")
        self.user = ""
        self.pacer = Pacer(limits, clock=clock)
        self._http: Http | None = None
        self._plain: aiohttp.ClientSession | None = None
        self._login = asyncio.Lock()
        # The SDK does not limit the number of connections.
        self.outbound = Outbound("discord", settings.name, self._swap, verdict_of_aiohttp)
        self.close = self.outbound.close
        # Detect an unusable proxy setting now rather than in each request.
        proxy_for(Route.BASE)
        tls_for(Route.BASE)

    @contextmanager
    def best_effort(self, action: str, channel: str) -> Iterator[None]:
        """Log and ignore the failure of an optional request; obey a requested pause."""
        try:
            yield
        except AdapterError as exc:
            if isinstance(exc, SendDelayed) and exc.retry_after_s is not None:
                self.pacer.block(channel, exc.retry_after_s)
            log.debug("discord_signal_failed", action=action, reason=str(exc))

    async def get(self, path: str, *, params: dict[str, Any] | None = None, **ids: str) -> Any:
        """Send a GET request; `ids` fill in the path (in the methods below, too)."""
        return await self._request(Route("GET", path, **ids), params=params or {})

    async def history(self, channel: str, after: int, limit: int = PAGE) -> list[Any]:
        """Return the messages after an id, oldest first.

        Raises:
            SendDelayed: The history cannot be read now.
            CodedRefusal: The bot may not read the history.
        """
        params = {"after": str(after), "limit": limit}
        with mapped_call():
            page = await self.get(MESSAGES, params=params, channel_id=channel)
            return sorted(page, key=lambda message: int(message["id"]))

    async def message(self, channel: str, number: str) -> Any:
        """Return one message."""
        return await self.get(MESSAGE, channel_id=channel, message_id=number)

    async def call(
        self, method: str, path: str, json: dict[str, Any] | list[Any] | None = None, **ids: str
    ) -> Any:
        """Send a request with a JSON body."""
        return await self._request(Route(method, path, **ids), json={} if json is None else json)

    async def upload(self, path: str, json: dict[str, Any], file: OutgoingFile, **ids: str) -> Any:
        """Send a message with a file."""
        # The SDK sends it again from the start after a server error.
        content = discord.File(io.BytesIO(file.content), filename=_CONTROL.sub("_", file.name))
        form: list[dict[str, Any]] = [
            {"name": "payload_json", "value": orjson.dumps(json).decode()},
            {
                "name": "files[0]",
                "value": content.fp,
                "filename": content.filename,
                "content_type": file.mime if _MIME.fullmatch(file.mime) else _BYTES,
            },
        ]
        options = {"form": form, "files": [content], "timeout": _UPLOAD_TIMEOUT}
        route = Route("POST", path, **ids)
        return await self.outbound.run(self._carry(route, options), _UPLOAD_DEADLINE_S)

    async def callback(self, method: str, path: str, json: dict[str, Any], **ids: str) -> Any:
        """Answer an interaction without the SDK, which would log the URL with its token."""
        route = Route(method, path, **ids)

        async def taken(answer: aiohttp.ClientResponse) -> Any:
            data = await json_or_text(answer)
            if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise discord.RateLimited(float(answer.headers.get("Retry-After", 1.0)))
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise discord.HTTPException(answer, data)
            return data

        request = self._plainly(method, route.url, taken, json=json)
        return await self.outbound.run(request, _DEADLINE_S)

    async def download(self, url: str, take: Callable[[aiohttp.ClientResponse], Awaitable[T]]) -> T:
        """Download a URL, checked by the caller, and return the result of `take`."""
        # No redirects: the caller checked only this address.
        request = self._plainly("GET", url, take, allow_redirects=False)
        return await self.outbound.run(request, _DOWNLOAD_DEADLINE_S)

    async def _request(self, route: Route, **options: Any) -> Any:
        return await self.outbound.run(self._carry(route, options), _DEADLINE_S)

    async def _plainly(
        self,
        method: str,
        url: str,
        take: Callable[[aiohttp.ClientResponse], Awaitable[T]],
        **options: Any,
    ) -> T:
        """Make a request without the SDK's client, which would add the bot's token."""
        proxy = proxy_for(url)
        async with self._session().request(method, url, proxy=proxy, **options) as answer:
            return await take(answer)

    async def _carry(self, route: Route, options: dict[str, Any]) -> Any:
        http = self._http or await self._ready()
        return await http.request(route, **options)

    async def _ready(self) -> Http:
        # The SDK's client can log in only once; later requests wait for it.
        async with self._login:
            if self._http is None:
                self._http = await self._logged_in()
            return self._http

    async def _logged_in(self) -> Http:
        http = Http(self.pacer)
        try:
            me = await http.static_login(self.token)
        except BaseException:
            await http.close()
            raise
        if self.outbound.is_closed:
            await http.close()
            raise SendDelayed("the bot is being stopped")
        self.user = str(me["id"])
        return http

    def _session(self) -> aiohttp.ClientSession:
        if self._plain is None:
            self._plain = aiohttp.ClientSession(
                connector=connector(), timeout=_PLAIN_TIMEOUT, headers={"User-Agent": USER_AGENT}
            )
        return self._plain

    def _swap(self) -> list[Shut]:
        """Let the next request log in again; return functions that close the old connections."""
        used, self._http, self._plain = (self._http, self._plain), None, None
        return [each.close for each in used if each is not None]


class PendingKeys:
    """Keys of threads being opened or interactions being acknowledged.

    A key starts before the message is committed, so that no answer can come first.
    """

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def begin(self, key: str) -> None:
        """Make others wait for the key."""
        self._events.setdefault(key, asyncio.Event())

    def end(self, key: str) -> None:
        """Wake the key's waiters; idempotent."""
        if (event := self._events.pop(key, None)) is not None:
            event.set()

    async def wait(self, key: str) -> None:
        """Wait up to 5 s for the key's end."""
        if (event := self._events.get(key)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await event.wait()


def connector() -> aiohttp.TCPConnector:
    """Return an unlimited connection pool."""
    return aiohttp.TCPConnector(limit=0, ssl=tls_for(Route.BASE))


def use_servers(settings: DiscordSettings) -> None:
    """Point the SDK at the configured servers, process-wide."""
    if settings.api_url:
        root = settings.api_url.rstrip("/")
        # Complete `http://host` and `http://host/api` with the SDK's API version.
        version_of = {"": f"{root}/api/v10", "/api": f"{root}/v10"}
        Route.BASE = version_of.get(URL(root).path.rstrip("/"), root)
    if settings.gateway_url:
        DiscordWebSocket.DEFAULT_GATEWAY = URL(settings.gateway_url)


async def answer_to(request: Callable[[], Awaitable[T]], *, channel: str, action: str) -> T:
    """Retry a request that raises SendDelayed until it succeeds or is refused."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await request()
        except SendDelayed as exc:
            log.warning("discord_read_delayed", action=action, channel=channel, reason=str(exc))
            await asyncio.sleep(exc.retry_after_s or pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def check(settings: DiscordSettings) -> AccountReport:
    """Report the bot's name and the disabled features of its app.

    Opens no gateway connection, which would count against the daily limit.
    """
    api = Api(settings)
    try:
        with mapped_receiving():
            name = str((await api.get("/users/@me"))["username"])
            app, gateway = await api.get("/applications/@me"), await api.get("/gateway/bot")
            lacks = tuple(_lacks(settings, app, gateway))
    finally:
        await api.close()
    return AccountReport("accepted", f"the token is that of {name}", bot=name, lacks=lacks)


def _lacks(settings: DiscordSettings, app: Any, gateway: Any) -> list[str]:
    number = app["id"]
    found = []
    if settings.message_content and not app.get("flags", 0) & _READS:
        found.append(
            "the Message Content intent is off: switch it on and save"
            f" ({_PORTAL}/{number}/bot), or set platforms.discord.message_content: false"
        )
    if app.get("interactions_endpoint_url"):
        found.append(
            "commands and buttons go to another address: empty the field Interactions Endpoint URL"
            f" ({_PORTAL}/{number}/information)"
        )
    # Older responses lack the number.
    if app.get("approximate_guild_count") == 0:
        query = f"client_id={number}&scope=bot+applications.commands&permissions={_PERMISSIONS}"
        found.append(
            f"it is in no server yet: invite it (https://discord.com/oauth2/authorize?{query})"
        )
    if (wanted := gateway["shards"]) > settings.shards:
        found.append(f"it is in so many servers that it needs platforms.discord.shards: {wanted}")
    return found


class _Budget(Ratelimit):
    """The budget of a route, as Discord reported it.

    The SDK's own class refuses when a period exceeds the longest wait, even with budget left, and
    delays the response that used up the budget. This one waits before a request, and only if
    nothing is left.
    """

    def __init__(self, longest_s: float | None) -> None:
        super().__init__(longest_s)
        self._freed = asyncio.Event()

    @override
    def is_inactive(self) -> bool:
        return self.outgoing == 0 and (self.expires is None or self.is_expired())

    @override
    async def acquire(self) -> None:
        while True:
            if self.is_expired():
                self.reset()  # type: ignore[no-untyped-call]
            if self.remaining > 0:
                break
            now = asyncio.get_running_loop().time()
            wait_s = BUCKET_WAIT_S if self.expires is None else self.expires - now
            # Return the row to the outbox, which can wait for hours.
            if wait_s > BUCKET_WAIT_S:
                raise discord.RateLimited(wait_s)
            self._freed.clear()
            # Wait until a request ends or the budget is restored.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), max(wait_s, 0.0) + _CLOCK_GRAIN_S)
        self.remaining -= 1
        self.outgoing += 1

    @override
    async def __aexit__(self, *_: object) -> None:
        self.outgoing -= 1
        if self.expires is None:
            self.reset()  # type: ignore[no-untyped-call]
        self._freed.set()


async def _retry_after_s(answer: Any) -> float:
    """Return the pause requested by a 429 in its body or header."""
    said = await _said(answer)
    try:
        return float(said.get("retry_after", answer.headers.get("Retry-After")))
    except (TypeError, ValueError):
        return UNSAID_RETRY_S


async def _said(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return a response's body; empty if not a JSON object."""
    try:
        said = await answer.json(content_type=None)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
