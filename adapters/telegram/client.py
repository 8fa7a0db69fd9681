"""python-telegram-bot as Parley uses it: its Bot, raw updates, and every answer checked first.

The stock request class tells an error answer apart from a broken connection only by text, and
warns about itself on each 429; `CheckedRequest` turns both into classes with attributes.
"""

import functools
import json
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import telegram
from telegram.error import NetworkError, TelegramError
from telegram.request import HTTPXRequest
from typing_extensions import override

from adapters.errors import AdapterRefused

if TYPE_CHECKING:
    from adapters.settings import TelegramSettings

PUBLIC_ROOT = "https://api.telegram.org"
ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "my_chat_member")
_ANSWER_TIMEOUT_S = 20.0
_UPLOAD_TIMEOUT_S = 60.0
_CONNECTIONS = 64
_DOWNLOADS = 8


class TooManyRequests(TelegramError):
    """Flood control (429); `retry_after_s` is what Telegram asked for, if it said so."""

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__(f"Too many requests: retry after {retry_after_s} s")
        self.retry_after_s = retry_after_s


class ServerTrouble(NetworkError):
    """An error answer that is the server's own (413, 5xx) or not in the Bot API's form."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The server answered with HTTP status {status}")
        self.status = status


class MalformedAnswer(TelegramError):
    """The server reported success in a form that cannot be understood."""


class CheckedRequest(HTTPXRequest):
    """The stock transport; answers that the SDK would misread become errors of this module."""

    @override
    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        if self._client.is_closed:
            raise NetworkError("The connections are closed")
        status, body = await super().do_request(*args, **kwargs)
        answer = _parse(body)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            if answer is None or "result" not in answer:
                raise MalformedAnswer("Malformed answer")
        elif answer is None or _is_own(status):
            raise ServerTrouble(status)
        else:
            _check_flood(status, answer)
        return status, body


class RawBot(telegram.Bot):
    """The SDK's bot, and updates as raw JSON: its own `get_updates` fails whole batches."""

    __slots__ = ()

    async def raw_updates(self, offset: int | None, timeout_s: int) -> Any:
        """Return the unchecked result of one long poll of at most `timeout_s` seconds.

        `do_api_request("getUpdates")` does the same and warns about it on every call.
        """
        data = {"offset": offset, "timeout": timeout_s, "allowed_updates": list(ALLOWED_UPDATES)}
        return await self._post("getUpdates", data, read_timeout=timeout_s + _ANSWER_TIMEOUT_S)

    async def raw_file(self, file_id: str) -> Any:
        """Return the unchecked result of getFile; the SDK's own makes an address of the path."""
        return await self._post("getFile", {"file_id": file_id})


class Client:
    """One bot with its own connections; it may be closed at any time, and only once.

    Attributes:
        downloads: For files, which are no answers of the Bot API.
        files_root: Begins the address of every file.
    """

    def __init__(self, settings: "TelegramSettings") -> None:
        self.token = token_of(settings)
        self._request = CheckedRequest(
            connection_pool_size=_CONNECTIONS,
            read_timeout=_ANSWER_TIMEOUT_S,
            pool_timeout=5,
            media_write_timeout=_UPLOAD_TIMEOUT_S,
            httpx_kwargs={"verify": _tls()},
        )
        root = (settings.base_url or PUBLIC_ROOT).rstrip("/")
        files = (settings.base_file_url or root).rstrip("/")
        self.files_root = f"{files}/file/bot{self.token}/"
        self.downloads = httpx.AsyncClient(
            timeout=_ANSWER_TIMEOUT_S,
            limits=httpx.Limits(max_connections=_DOWNLOADS),
            verify=_tls(),
        )
        self.bot = RawBot(
            self.token,
            base_url=f"{root}/bot",
            base_file_url=f"{files}/file/bot",
            request=self._request,
            get_updates_request=self._request,
        )

    async def close(self) -> None:
        """Close the connections; `Bot.shutdown` would leave those of a bot it never started."""
        await self._request.shutdown()
        await self.downloads.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read the certificates once per process: it takes 30 ms, in which nothing else runs."""
    return httpx.create_ssl_context()


def token_of(settings: "TelegramSettings") -> str:
    """Return the bot token.

    Raises:
        AdapterRefused: There is none.
    """
    token = settings.token.get_secret_value().strip() if settings.token else ""
    if not token:
        raise AdapterRefused("platforms.telegram.token is not set")
    return token


def redact(text: str, token: str) -> str:
    """Return the text without the token."""
    return text.replace(token, "***")


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _is_own(status: int) -> bool:
    server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return server_error or status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def _check_flood(status: int, answer: dict[str, Any]) -> None:
    parameters = answer.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    seconds = float(seconds) if isinstance(seconds, int | float) else None
    if status == HTTPStatus.TOO_MANY_REQUESTS or seconds is not None:
        raise TooManyRequests(seconds)
