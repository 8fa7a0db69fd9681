"""What an answer of Telegram, or the lack of one, means: every status and every broken connection.

The tables go through the real client library down to httpx, whose transport is a double.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from telegram.error import TelegramError

from adapters.errors import (
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    ChatMoved,
    FetchDelayed,
    FetchRejected,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from adapters.messages import Address, Attachment
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import Client
from adapters.telegram.errors import (
    Flooded,
    MalformedAnswer,
    MessageGone,
    ServerTrouble,
    TooManyRequests,
    Troubled,
    mapped_edit,
    mapped_fetch,
    mapped_receiving,
    mapped_send,
)
from adapters.telegram.platform import TelegramSettings
from tests.support.bot_api import TOKEN
from tests.support.exceptions import below, missing_in
from tests.support.recording_intake import RecordingIntake

Answer = Callable[[httpx.Request], httpx.Response]
Outcome = type[AdapterError] | None
"""None: it counts as done."""


@dataclass(frozen=True)
class Outcomes:
    """What becomes of a new message, an edit, a file and a poll that meet the same thing."""

    send: Outcome
    edit: Outcome
    fetch: Outcome
    poll: Outcome


LATER = Outcomes(SendDelayed, SendDelayed, FetchDelayed, AdapterDisconnected)
TROUBLED = Outcomes(Troubled, Troubled, FetchDelayed, AdapterDisconnected)
FLOODED = Outcomes(Flooded, Flooded, FetchDelayed, AdapterDisconnected)
IN_DOUBT = Outcomes(SendUnknown, SendDelayed, FetchDelayed, AdapterDisconnected)
BEHIND_A_PROXY = Outcomes(SendUnknown, Troubled, FetchDelayed, AdapterDisconnected)
FINAL = Outcomes(SendRejected, SendRejected, FetchRejected, AdapterDisconnected)
UNKNOWN_BOT = Outcomes(SendDelayed, SendDelayed, FetchDelayed, AdapterRefused)


def says(status: int, description: str = "", **parameters: int) -> Answer:
    """Answer in the form of the Bot API."""
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return lambda _: httpx.Response(status, content=json.dumps(body))


def page(status: int) -> Answer:
    """Answer with the page of something that stands in front of Telegram."""
    return lambda _: httpx.Response(status, content=b"<html>sorry</html>")


ANSWERS = {
    "200 page": (page(200), IN_DOUBT),
    "200 without a result": (says(200), IN_DOUBT),
    "302 page": (page(302), TROUBLED),
    "302": (says(302, "Found"), LATER),
    "400": (says(400, "Bad Request: chat not found"), FINAL),
    "400 too long": (says(400, "Bad Request: message is too long"), FINAL),
    "400 the same text": (
        says(400, "Bad Request: message is not modified: new content is the same"),
        Outcomes(SendRejected, None, FetchRejected, AdapterDisconnected),
    ),
    "400 nothing to edit": (
        says(400, "Bad Request: message to edit not found"),
        Outcomes(SendRejected, MessageGone, FetchRejected, AdapterDisconnected),
    ),
    "400 not to be edited": (
        says(400, "Bad Request: message can't be edited"),
        Outcomes(SendRejected, MessageGone, FetchRejected, AdapterDisconnected),
    ),
    "400 no such message": (
        says(400, "Bad Request: MESSAGE_ID_INVALID"),
        Outcomes(SendRejected, MessageGone, FetchRejected, AdapterDisconnected),
    ),
    "400 file not there yet": (
        says(400, "Bad Request: file is temporarily unavailable"),
        Outcomes(SendRejected, SendRejected, FetchDelayed, AdapterDisconnected),
    ),
    "400 file too big": (says(400, "Bad Request: file is too big"), FINAL),
    "400 moved": (
        says(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1007),
        Outcomes(ChatMoved, ChatMoved, FetchDelayed, AdapterDisconnected),
    ),
    "400 with a pause": (says(400, "Bad Request: slow", retry_after=3), FLOODED),
    "400 page": (page(400), TROUBLED),
    "401": (says(401, "Unauthorized"), UNKNOWN_BOT),
    "401 page": (page(401), TROUBLED),
    "403": (says(403, "Forbidden: bot was blocked by the user"), FINAL),
    "403 page": (page(403), TROUBLED),
    "404": (says(404, "Not Found"), UNKNOWN_BOT),
    "404 page": (page(404), TROUBLED),
    "408": (says(408, "Request Timeout"), LATER),
    "409": (says(409, "Conflict: terminated by other getUpdates request"), LATER),
    "413": (
        says(413, "Request Entity Too Large"),
        Outcomes(SendRejected, SendRejected, FetchDelayed, AdapterDisconnected),
    ),
    "413 page": (
        page(413),
        Outcomes(SendRejected, SendRejected, FetchDelayed, AdapterDisconnected),
    ),
    "420": (says(420, "FLOOD_WAIT"), LATER),
    "429": (says(429, "Too Many Requests: retry after 3", retry_after=3), FLOODED),
    "429 without a time": (says(429, "Too Many Requests"), FLOODED),
    "429 page": (page(429), TROUBLED),
    "500": (says(500, "Internal Server Error"), TROUBLED),
    "500 page": (page(500), TROUBLED),
    "501": (says(501, "Not Implemented"), TROUBLED),
    "502": (says(502, "Bad Gateway"), BEHIND_A_PROXY),
    "502 page": (page(502), BEHIND_A_PROXY),
    "503": (says(503, "Service Unavailable"), TROUBLED),
    "503 page": (page(503), TROUBLED),
    "504": (says(504, "Gateway Timeout"), BEHIND_A_PROXY),
    "504 page": (page(504), BEHIND_A_PROXY),
    "599 page": (page(599), TROUBLED),
}
BROKEN: dict[type[BaseException], Outcomes] = {
    # Nothing has left.
    httpx.ConnectError: LATER,
    httpx.ConnectTimeout: LATER,
    httpx.PoolTimeout: LATER,
    httpx.ProxyError: LATER,
    httpx.UnsupportedProtocol: LATER,
    httpx.InvalidURL: LATER,
    # Something may have left, or all of it.
    httpx.HTTPError: IN_DOUBT,
    httpx.RequestError: IN_DOUBT,
    httpx.TransportError: IN_DOUBT,
    httpx.TimeoutException: IN_DOUBT,
    httpx.WriteTimeout: IN_DOUBT,
    httpx.ReadTimeout: IN_DOUBT,
    httpx.NetworkError: IN_DOUBT,
    httpx.ReadError: IN_DOUBT,
    httpx.WriteError: IN_DOUBT,
    httpx.CloseError: IN_DOUBT,
    httpx.ProtocolError: IN_DOUBT,
    httpx.LocalProtocolError: IN_DOUBT,
    httpx.RemoteProtocolError: IN_DOUBT,
    httpx.DecodingError: IN_DOUBT,
    httpx.TooManyRedirects: IN_DOUBT,
    httpx.HTTPStatusError: IN_DOUBT,
    # What comes from below or beside the transport.
    OSError: IN_DOUBT,
    TimeoutError: IN_DOUBT,
    ConnectionAbortedError: IN_DOUBT,
    RuntimeError: IN_DOUBT,
}
FILE_STATUSES = {
    302: FetchDelayed,
    400: FetchRejected,
    401: FetchDelayed,
    403: FetchRejected,
    404: FetchRejected,
    408: FetchDelayed,
    410: FetchRejected,
    429: FetchDelayed,
    500: FetchDelayed,
    502: FetchDelayed,
    503: FetchDelayed,
    504: FetchDelayed,
}


@asynccontextmanager
async def talking(answer: Answer) -> AsyncIterator[Client]:
    """Yield a bot whose every request, also for a file, meets this answer."""

    async def handle(_: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        return answer(request)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
        client = Client(TelegramSettings(token=SecretStr(TOKEN)))
        yield client
        await client.close(within_s=0)


async def outcomes_of(answer: Answer) -> Outcomes:
    """Return what becomes of each kind of request."""
    async with talking(answer) as client:
        bot = client.bot
        return Outcomes(
            await outcome_of(mapped_send, lambda: bot.send_message(7, "Hello")),
            await outcome_of(mapped_edit, lambda: bot.edit_message_text("Hello", 7, 3)),
            await outcome_of(mapped_fetch, lambda: bot.get_file("f")),
            await outcome_of(mapped_receiving, lambda: client.raw_updates(None, 1)),
        )


async def outcome_of(mapped: Callable[[str], Any], request: Callable[[], Any]) -> Outcome:
    try:
        with mapped(TOKEN):
            await request()
    except AdapterError as exc:
        return type(exc)
    return None


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_an_answer_means(name: str) -> None:
    """Telegram's own refusals are final or not; a proxy's error may hide a message."""
    answer, wanted = ANSWERS[name]
    assert await outcomes_of(answer) == wanted


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: error.__name__)
async def test_what_a_broken_connection_means(error: type[Exception]) -> None:
    """In doubt is what may have left; who waited for a connection in vain has sent nothing."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise made(error, request)

    assert await outcomes_of(fail) == BROKEN[error]


def made(error: type[Exception], request: httpx.Request) -> Exception:
    """Return an exception as httpx raises it."""
    if issubclass(error, httpx.HTTPStatusError):
        return error("broken", request=request, response=httpx.Response(500))
    return error("broken")


async def test_no_reason_tells_the_token() -> None:
    """Some errors of the transport quote the address, in which the token stands."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError(f"{request.url} is broken")

    async with talking(fail) as client:
        for mapped in (mapped_send, mapped_edit, mapped_fetch, mapped_receiving):
            with pytest.raises(AdapterError) as caught, mapped(TOKEN):
                await client.bot.get_me()
            assert "/bot***/getMe is broken" in str(caught.value)


def test_no_error_of_the_transport_is_left_out() -> None:
    """A class that a new version of httpx brings needs a decision."""
    assert missing_in(BROKEN, httpx.HTTPError, httpx.InvalidURL) == []


def test_no_error_of_the_library_is_left_out() -> None:
    """The answers above lead to every class of the SDK but those named here, and to all of ours."""
    met = {
        *("BadRequest", "ChatMigrated", "Conflict", "Forbidden", "InvalidToken", "NetworkError"),
        *("TimedOut", "TelegramError"),
    }
    not_ours = {
        "EndPointNotFound": "only a bot that was initialized raises it",
        "PassportDecryptionError": "no update is decrypted",
        "RetryAfter": "`CheckedRequest` raises TooManyRequests before it",
    }
    assert {error.__name__ for error in below(TelegramError)} == met | set(not_ours)
    own = [MalformedAnswer, ServerTrouble, TooManyRequests]
    assert all(issubclass(error, TelegramError) for error in own)


@pytest.mark.parametrize("status", FILE_STATUSES)
async def test_what_the_file_server_means(status: int) -> None:
    """A file that is gone is gone; a token can be fixed, and a server comes back."""
    with pytest.raises(FILE_STATUSES[status]):
        await fetched(lambda _: httpx.Response(status))


@pytest.mark.parametrize(
    "error",
    [error for error in BROKEN if issubclass(error, httpx.HTTPError | OSError)],
    ids=lambda error: error.__name__,
)
async def test_a_broken_download_is_tried_again(error: type[Exception]) -> None:
    """Whatever breaks on the way, the file is still there."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise made(error, request)

    with pytest.raises(FetchDelayed):
        await fetched(fail)


async def fetched(file_server: Answer) -> bytes:
    """Fetch a file that Telegram knows from a server that answers so."""
    found = {
        "ok": True,
        "result": {"file_id": "f", "file_unique_id": "u", "file_path": "documents/a.txt"},
    }

    def answer(request: httpx.Request) -> httpx.Response:
        is_file = request.url.path.startswith("/file/")
        return file_server(request) if is_file else httpx.Response(200, json=found)

    attachment = Attachment(name="a.txt", kind="file", ref='{"file_id": "f"}')
    async with talking(answer):
        adapter = TelegramAdapter(TelegramSettings(token=SecretStr(TOKEN)), RecordingIntake())
        try:
            return await adapter.fetch(Address("telegram", "default", "7"), attachment, 1_000)
        finally:
            await adapter.close()
