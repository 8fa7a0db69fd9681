"""python-telegram-bot as Parley uses it: its Bot, raw updates, and every answer checked first.

The stock request class tells an error answer apart from a broken connection only by text, and
warns about itself on each 429; `CheckedRequest` turns both into classes with attributes. It is also
the one place that every request passes, so that none is ended by who asked for it, and goes over
`AiohttpTransport`, mostly past httpx's client (decision 200). `RateLimits` says what is done about
a 429, and about requests that are only best effort.
"""

import asyncio
import functools
import io
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from importlib import import_module
from typing import Any, TypeVar

import aiohttp
import httpx
import orjson
import structlog
import telegram
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest, RequestData
from typing_extensions import override

from adapters.base import Clock, PoolUse
from adapters.errors import AdapterError
from adapters.messages import Address
from adapters.outbound import CLOSE_WITHIN_S, Outbound, Shut, Verdict
from adapters.pacing import Pacer
from adapters.registry import credential
from adapters.telegram.errors import Flooded, MalformedAnswer, ServerTrouble, TooManyRequests
from adapters.telegram.platform import TelegramSettings
from agent.network import in_words, proxy_for, tls_for

log = structlog.get_logger()

PUBLIC_ROOT = "https://api.telegram.org"
# Telegram keeps the list of the last call. A kind that is not named here is neither sent nor kept.
ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "my_chat_member")
NO_LINK_PREVIEW = {"is_disabled": True}
_ANSWER_TIMEOUT_S = 20.0
_UPLOAD_TIMEOUT_S = 60.0
_POOL_TIMEOUT_S = 5.0
# Above what the client's own limits for connecting, writing and reading add up to.
_DEADLINE_S = 60.0
_UPLOAD_DEADLINE_S = 300.0
_DOWNLOAD_DEADLINE_S = 150.0
_CONNECTIONS = 64
_DOWNLOADS = 8
_KEPT_S = 5.0
"""How long a connection is kept that nobody uses; as long as httpx does."""
_LARGE_BYTES = 1 << 16
# In order: the first class that fits tells what httpx calls it.
_SAME: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    # Some of these are InvalidURL too, but an answer has led there: the request has left.
    (aiohttp.RedirectClientError, httpx.RemoteProtocolError),
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    # From here on something may have left.
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientOSError, httpx.ReadError),
    (aiohttp.ClientError, httpx.RemoteProtocolError),
    (TimeoutError, httpx.ReadTimeout),
    (OSError, httpx.ReadError),
)

T = TypeVar("T")
# Telegram does not say whom a 429 is for: one of a chat comes alone, one of the bot hits whatever
# is under way.
_FLOODED_CHATS = 3
_FLOODED_WITHIN_S = 5.0


class CheckedRequest(HTTPXRequest):
    """The stock transport; answers that the SDK would misread become errors of this module."""

    def __init__(self, account: str, root: str, connections: int) -> None:
        self._limit = connections
        self._proxy, self._tls = proxy_for(root), tls_for(root)
        super().__init__(
            connection_pool_size=connections,
            read_timeout=_ANSWER_TIMEOUT_S,
            pool_timeout=_POOL_TIMEOUT_S,
            media_write_timeout=_UPLOAD_TIMEOUT_S,
            httpx_kwargs={"verify": self._tls, "trust_env": False},
        )
        self._outbound = Outbound("telegram", account, self._swap, _verdict)

    @property
    def pool(self) -> PoolUse:
        """How far the connections are used."""
        return PoolUse(self._transport.in_use, self._limit, self._outbound.replaced)

    @override
    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        # The SDK's own error would count as in doubt, and nothing has left.
        if self._client.is_closed:
            raise NetworkError("The connections are closed")
        request = self._straight(**kwargs) or super().do_request(*args, **kwargs)
        try:
            status, body = await self._outbound.run(request, _deadline_s(**kwargs))
        except (TimeoutError, ConnectionAbortedError) as exc:
            raise NetworkError(f"The request was ended: {in_words(exc)}") from exc
        answer = _parse(body)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            if answer is None or "result" not in answer:
                raise MalformedAnswer("Malformed answer")
        # The SDK tells these from a broken connection only by its own words for them.
        elif answer is None or _is_own(status):
            raise ServerTrouble(status)
        else:
            _check_flood(status, answer)
        return status, body

    def _straight(
        self, request_data: RequestData | None = None, **given: Any
    ) -> Coroutine[Any, Any, tuple[int, bytes]] | None:
        """Return a request past httpx's client, which costs as much again; None for files."""
        transport = self._client._transport  # noqa: SLF001
        if not isinstance(transport, AiohttpTransport) or request_data is None:
            return None
        if request_data.contains_files:
            return None
        limits_s, read_s = self._client.timeout.as_dict(), given.get("read_timeout")
        # Else it is the SDK's DEFAULT_NONE.
        if isinstance(read_s, int | float):
            limits_s["read"] = read_s
        return self._asked(transport, given["url"], request_data, limits_s)

    async def _asked(
        self,
        transport: "AiohttpTransport",
        url: str,
        data: RequestData,
        limits_s: Mapping[str, float | None],
    ) -> tuple[int, bytes]:
        headers = {"User-Agent": self.USER_AGENT, "Content-Type": "application/json"}
        try:
            answer, content = await transport.exchange(
                "POST", url, headers, orjson.dumps(data.json_parameters), limits_s
            )
        except httpx.TransportError as exc:
            raise NetworkError(f"{in_words(exc, quoted=True)}") from exc
        return answer.status, content

    @override
    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:
        """Decode what `do_request` has checked."""
        answer: dict[str, Any] = _decoded(payload)
        return answer

    @override
    def _build_client(self) -> httpx.AsyncClient:
        self._transport = AiohttpTransport(self._limit, self._tls, self._proxy)
        return httpx.AsyncClient(**self._client_kwargs | {"transport": self._transport})

    async def close(self, within_s: float) -> None:
        """Close the connections; requests on their way may go on for so many seconds before."""
        await self._outbound.close(self.shutdown, within_s)

    def _swap(self) -> Shut:
        replaced, self._client = self._client, self._build_client()
        return replaced.aclose


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Requests over aiohttp's connections, read as a whole; also as a transport of httpx.

    httpx's own transport parses HTTP in Python: of a small request that is most of what it costs.
    What aiohttp raises becomes what that one raises for the same, since whether a message can have
    left hangs on the class (`adapters.telegram.errors`).

    Attributes:
        in_use: How many requests are on their way.
    """

    def __init__(self, limit: int, tls: ssl.SSLContext, proxy: str | None) -> None:
        self.in_use = 0
        self._free = asyncio.Semaphore(limit)
        self._tls = tls
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer, content = await self.exchange(
            request.method,
            str(request.url),
            request.headers.multi_items(),
            await request.aread(),
            request.extensions["timeout"],
            # httpx does it, as its headers have promised.
            auto_decompress=False,
        )
        return httpx.Response(answer.status, headers=answer.raw_headers, content=content)

    async def exchange(
        self,
        method: str,
        url: str,
        headers: Any,
        body: bytes,
        limits_s: Mapping[str, float | None],
        *,
        auto_decompress: bool = True,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Make one request; return its answer and that one's body.

        Args:
            limits_s: Seconds, by their names in `httpx.Timeout`.

        Raises:
            TransportError: What httpx's own transport would raise.
        """
        await self._take_place(limits_s["pool"])
        try:
            async with self._opened().request(
                method,
                url,
                headers=headers,
                # aiohttp writes bytes in one piece, and warns about large ones.
                data=io.BytesIO(body) if len(body) > _LARGE_BYTES else body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    sock_connect=limits_s["connect"],
                    # It runs while a body is written, too.
                    sock_read=_longest(limits_s["read"], limits_s["write"]),
                ),
                auto_decompress=auto_decompress,
            ) as answer:
                return answer, await answer.read()
        except (aiohttp.ClientError, OSError) as exc:
            same = next(same for kind, same in _SAME if isinstance(exc, kind))
            raise same(str(exc) or in_words(exc)) from exc
        finally:
            self.in_use -= 1
            self._free.release()

    @override
    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _take_place(self, within_s: float | None) -> None:
        """Wait for a connection to be free, and take it.

        Raises:
            PoolTimeout: None was in time; nothing has left.
        """
        try:
            async with asyncio.timeout(within_s if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError as exc:
            raise httpx.PoolTimeout("Pool timeout: no connection is free") from exc
        self.in_use += 1

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The places above are the limit: who waits here would not know what for.
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=_KEPT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                proxy=self._proxy,
            )
        return self._session


class RawBot(telegram.Bot):
    """The SDK's bot, and what each message needs as raw JSON.

    The SDK's own methods make objects of what is sent and of all that comes back, for more CPU than
    the request takes; its `get_updates` fails whole batches.
    """

    __slots__ = ()

    async def call(self, method: str, **parameters: Any) -> Any:
        """Return the unchecked result of a method, whose parameters are JSON; None is left out."""
        return await self._post(method, parameters)

    async def edit(self, chat: str, ref: str, text: str, **more: Any) -> Any:
        """Return the unchecked result of editMessageText."""
        where = {"chat_id": chat, "message_id": int(ref), "link_preview_options": NO_LINK_PREVIEW}
        return await self.call("editMessageText", text=text, **where, **more)

    async def raw_updates(self, offset: int | None, timeout_s: int) -> Any:
        """Return the unchecked result of one long poll of at most `timeout_s` seconds.

        `do_api_request("getUpdates")` does the same and warns about it on every call.
        """
        data = {"offset": offset, "timeout": timeout_s, "allowed_updates": list(ALLOWED_UPDATES)}
        return await self._post("getUpdates", data, read_timeout=timeout_s + _ANSWER_TIMEOUT_S)

    async def raw_file(self, file_id: str) -> Any:
        """Return the unchecked result of getFile; the SDK's own makes an address of the path."""
        return await self._post("getFile", {"file_id": file_id})


class Downloads:
    """The connections for files, which are no answers of the Bot API."""

    def __init__(self, account: str, root: str) -> None:
        self._root = root
        self._client: httpx.AsyncClient | None = None
        self._outbound = Outbound("telegram", account, self._swap, _verdict)

    async def read(self, url: str, take: Callable[[httpx.Response], Awaitable[T]]) -> T:
        """Return what `take` makes of a file that is being sent.

        Raises:
            httpx.HTTPError: The file cannot be had.
            TimeoutError: It takes too long.
        """
        if self._client is None:
            # What httpx sends with is 70 modules and 4 MB, which few bots come to need at all.
            await asyncio.to_thread(import_module, "httpcore")
        client = self._client = self._client or _file_client(self._root)

        async def taken() -> T:
            async with client.stream("GET", url) as answer:
                return await take(answer)

        return await self._outbound.run(taken(), _DOWNLOAD_DEADLINE_S)

    async def close(self) -> None:
        """Close the connections; a file is asked for again at the next start."""
        await self._outbound.close(self._swap(), 0)

    def _swap(self) -> Shut:
        """Leave the connections to whoever calls what this returns; the next file opens others."""
        replaced, self._client = self._client, None
        return functools.partial(_shut, replaced)


class Client:
    """One bot with its own connections; it may be closed at any time, and only once.

    Attributes:
        downloads: For files.
        files_root: Begins the address of every file.
    """

    def __init__(self, settings: TelegramSettings) -> None:
        self.token = credential(settings.token, "platforms.telegram.token")
        root = (settings.base_url or PUBLIC_ROOT).rstrip("/")
        self._request = CheckedRequest(settings.name, root, _CONNECTIONS)
        files = (settings.base_file_url or root).rstrip("/")
        self.files_root = f"{files}/file/bot{self.token}/"
        self.downloads = Downloads(settings.name, files)
        self.bot = RawBot(
            self.token,
            # The SDK appends the token to both.
            base_url=f"{root}/bot",
            base_file_url=f"{files}/file/bot",
            request=self._request,
            # The SDK would open a second pool for a poller that is not used.
            get_updates_request=self._request,
        )

    @property
    def pool(self) -> PoolUse:
        """How far the connections to the Bot API are used."""
        return self._request.pool

    async def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Close the connections; `Bot.shutdown` closes none of a bot that was never started.

        Args:
            within_s: How long requests on their way may go on before.
        """
        await self._request.close(within_s)
        await self.downloads.close()


class RateLimits:
    """Keeps a chat quiet, or the whole bot, as long as Telegram asked for.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, pacer: Pacer, clock: Clock = time.monotonic) -> None:
        self._pacer = pacer
        self._clock = clock
        self._refused_at: OrderedDict[str, float] = OrderedDict()

    def heed(self, chat: str, exc: AdapterError) -> None:
        """Block what an error asks for, if it does."""
        if not isinstance(exc, Flooded) or exc.retry_after_s is None:
            return
        self._pacer.block(chat, exc.retry_after_s)
        if self._chats_refused(chat) >= _FLOODED_CHATS:
            log.warning("telegram_flooded", seconds=exc.retry_after_s)
            # Several chats refused within moments: it is the bot's own limit.
            self._pacer.block_all(exc.retry_after_s)

    @contextmanager
    def best_effort(self, action: str, chat: str) -> Iterator[None]:
        """Log the failure of a request that nothing depends on, and go on."""
        try:
            yield
        except AdapterError as exc:
            self.heed(chat, exc)
            log.debug("telegram_signal_failed", action=action, chat=chat, reason=str(exc))

    def _chats_refused(self, chat: str) -> int:
        now = self._clock()
        self._refused_at[chat] = now
        self._refused_at.move_to_end(chat)
        while now - next(iter(self._refused_at.values())) > _FLOODED_WITHIN_S:
            self._refused_at.popitem(last=False)
        return len(self._refused_at)


def is_group(chat: str) -> bool:
    """Groups and supergroups have negative ids."""
    return chat.startswith("-")


def topic(address: Address) -> int | None:
    """Return the `message_thread_id`; without one, a message goes to the chat itself."""
    return None if address.thread is None else int(address.thread)


def reply_to(ref: str | None) -> dict[str, Any] | None:
    """Point at the message that is answered, if it still exists."""
    if ref is None:
        return None
    # A question that was deleted must not bury its answer.
    return {"message_id": int(ref), "allow_sending_without_reply": True}


def _longest(*seconds: float | None) -> float | None:
    """Return the largest limit; None is none at all."""
    known = [each for each in seconds if each is not None]
    return max(known) if len(known) == len(seconds) else None


def _file_client(root: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=_ANSWER_TIMEOUT_S,
        limits=httpx.Limits(max_connections=_DOWNLOADS),
        verify=tls_for(root),
        proxy=proxy_for(root),
        trust_env=False,
    )


async def _shut(client: httpx.AsyncClient | None) -> None:
    if client is not None:
        await client.aclose()


def _deadline_s(
    request_data: RequestData | None = None, read_timeout: object = None, **_: object
) -> float:
    if request_data is not None and request_data.contains_files:
        return _UPLOAD_DEADLINE_S
    # A poll has a limit of its own; the SDK's DEFAULT_NONE stands for that of the client.
    return _DEADLINE_S + (read_timeout if isinstance(read_timeout, int | float) else 0.0)


def _verdict(exc: BaseException | None) -> Verdict:
    """Tell a broken way to Telegram from an answer; answers have no cause in the transport."""
    cause = exc.__cause__ if isinstance(exc, TelegramError) else exc
    if isinstance(cause, httpx.PoolTimeout):
        return "exhausted"
    return "unreachable" if isinstance(cause, httpx.HTTPError | TimeoutError) else "reached"


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        answer = _decoded(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _decoded(body: bytes) -> Any:
    """Decode an answer as the SDK does, which reads also what is no proper UTF-8; but faster."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body.decode("utf-8", "replace"))


def _is_own(status: int) -> bool:
    server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return server_error or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def _check_flood(status: int, answer: dict[str, Any]) -> None:
    parameters = answer.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    seconds = float(seconds) if isinstance(seconds, int | float) else None
    if status == HTTPStatus.TOO_MANY_REQUESTS or seconds is not None:
        raise TooManyRequests(seconds)
