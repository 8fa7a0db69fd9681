"""Requests to Discord's HTTP API, with and without a gateway connection; one client per account.

Raises what `adapters.discord.errors` maps. Answers are JSON as received. No request is ended by
who asked for it.
"""

import asyncio
import io
import re
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import discord
import orjson
from discord.http import Route, json_or_text

from adapters.base import PoolUse
from adapters.discord.client import Http
from adapters.discord.errors import mapped_call
from adapters.errors import SendDelayed
from adapters.outbound import CLOSE_WITHIN_S, Outbound, verdict_of_aiohttp

if TYPE_CHECKING:
    from adapters.messages import OutgoingFile

PAGE = 100
"""Most messages in one answer. Source: GET /channels/{id}/messages."""
# The form that Discord asks for. Source: https://discord.com/developers/docs/reference#user-agent
_USER_AGENT = f"DiscordBot (parley, {version('parley')})"
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+(?:; ?[\w.+=-]+)*")
_BYTES = "application/octet-stream"
_UPLOAD_TIMEOUT = aiohttp.ClientTimeout(total=300.0, sock_connect=10.0)
_PLAIN_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=10.0)
# The SDK makes a request up to five times, each within its own limit, after server errors.
_DEADLINE_S = 120.0
_UPLOAD_DEADLINE_S = 600.0
_DOWNLOAD_DEADLINE_S = 60.0

T = TypeVar("T")


class Api:
    """The HTTP half of one bot; logs in when it is first needed.

    Args:
        account: Name of the account, for the log.
        token: The bot's.
        on_global: Called with the seconds that the whole bot has to pause.

    Attributes:
        user: The bot's own id; "" before the first request.
    """

    def __init__(self, account: str, token: str, on_global: Callable[[float], None]) -> None:
        self.user = ""
        self._on_global = on_global
        self._token = token
        self._http: Http | None = None
        self._plain: aiohttp.ClientSession | None = None
        self._login = asyncio.Lock()
        self._is_closed = False
        self._outbound = Outbound("discord", account, self._swap, verdict_of_aiohttp)

    @property
    def pool(self) -> PoolUse:
        """How far the connections are used; the SDK sets no limit to their number."""
        connectors = [self._http and self._http.connector, self._plain and self._plain.connector]
        in_use = sum(len(each._acquired) for each in connectors if each)  # noqa: SLF001
        return PoolUse(in_use, None, self._outbound.replaced)

    async def login(self) -> None:
        """Make sure that requests can be made.

        Raises:
            SendDelayed: Discord cannot be reached or does not know the token, or this was closed.
        """
        if self._http is None:
            with mapped_call():
                await self._run(self._ready(), _DEADLINE_S)

    async def get(self, path: str, *, params: dict[str, Any] | None = None, **ids: str) -> Any:
        """Read something; `ids` fill in the path, here and below."""
        return await self._request(Route("GET", path, **ids), params=params or {})

    async def call(
        self, method: str, path: str, *, json: dict[str, Any] | list[Any] | None = None, **ids: str
    ) -> Any:
        """Change something."""
        return await self._request(Route(method, path, **ids), json={} if json is None else json)

    async def upload(
        self, path: str, json: dict[str, Any], file: "OutgoingFile", **ids: str
    ) -> Any:
        """Post a message with a file."""
        # The SDK sends it once more from the start where Discord answers with a server error.
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
        return await self._run(self._carry(route, options), _UPLOAD_DEADLINE_S)

    async def callback(self, method: str, path: str, json: dict[str, Any], **ids: str) -> Any:
        """Answer an interaction: its token stands in the URL, which the SDK would log."""
        route = Route(method, path, **ids)

        async def answered() -> Any:
            async with self._session().request(method, route.url, json=json) as answer:
                data = await json_or_text(answer)
                if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                    raise discord.RateLimited(float(answer.headers.get("Retry-After", 1.0)))
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise discord.HTTPException(answer, data)
                return data

        return await self._run(answered(), _DEADLINE_S)

    async def download(self, url: str, take: Callable[[aiohttp.ClientResponse], Awaitable[T]]) -> T:
        """Return what `take` makes of a file; the caller has checked that it is one of Discord's.

        Raises:
            TimeoutError: It takes too long.
        """

        async def taken() -> T:
            async with self._session().get(url, allow_redirects=False) as answer:
                return await take(answer)

        return await self._run(taken(), _DOWNLOAD_DEADLINE_S)

    async def close(self) -> None:
        """Give back all connections; no request is made any more."""
        self._is_closed = True
        await self._outbound.close(self._shut, CLOSE_WITHIN_S)

    async def _request(self, route: Route, **options: Any) -> Any:
        return await self._run(self._carry(route, options), _DEADLINE_S)

    async def _run(self, request: Coroutine[Any, Any, T], deadline_s: float) -> T:
        if self._is_closed:
            request.close()
            self._check_open()
        return await self._outbound.run(request, deadline_s)

    async def _carry(self, route: Route, options: dict[str, Any]) -> Any:
        http = self._http or await self._ready()
        return await http.request(route, **options)

    async def _ready(self) -> Http:
        async with self._login:
            self._check_open()
            if self._http is None:
                self._http = await self._logged_in()
            return self._http

    async def _logged_in(self) -> Http:
        http = Http(self._on_global)
        try:
            me = await http.static_login(self._token)
            self._check_open()
        except BaseException:
            await http.close()
            raise
        self.user = str(me["id"])
        return http

    def _session(self) -> aiohttp.ClientSession:
        self._check_open()
        if self._plain is None:
            self._plain = aiohttp.ClientSession(
                timeout=_PLAIN_TIMEOUT, headers={"User-Agent": _USER_AGENT}
            )
        return self._plain

    def _check_open(self) -> None:
        if self._is_closed:
            raise SendDelayed("the bot is being stopped")

    async def _shut(self) -> None:
        await self._swap()()

    def _swap(self) -> Callable[[], Awaitable[None]]:
        """Let the next request log in anew; return what closes the connections until now."""
        http, self._http = self._http, None
        plain, self._plain = self._plain, None

        async def shut() -> None:
            for each in (http, plain):
                if each is not None:
                    await each.close()

        return shut
