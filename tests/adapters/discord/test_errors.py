"""What an exception of the SDK means for a row and for the adapter: pure."""

import zlib
from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import pytest

from adapters.discord.adapter import Expired, check_status
from adapters.discord.errors import CodedRefusal, mapped_call, mapped_receiving
from adapters.errors import (
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    FetchDelayed,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from tests.support.exceptions import MAYBE_SENT, NOT_SENT, below, missing_in, raised_by


def answered(status: int, code: int = 0, text: str = "no") -> discord.HTTPException:
    response: Any = SimpleNamespace(status=status, reason="", headers={})
    return discord.HTTPException(response, {"code": code, "message": text})


def closed(code: int) -> discord.ConnectionClosed:
    socket: Any = SimpleNamespace(close_code=code)
    return discord.ConnectionClosed(socket, shard_id=None, code=code)


DONE_OR_NOT = (SendUnknown, SendDelayed)
LATER = (SendDelayed, SendDelayed)
FINAL = (SendRejected, SendRejected)
"""What becomes of a new message, and of a request that can be repeated."""

ERRORS = "discord.errors"
PASSING_CLOSES = [1000, 1001, 1006, *range(4000, 4004), *range(4005, 4010)]
# (status, Discord's code; 0: the page of something in front of it, or an answer without a code)
ANSWERS = {
    (304, 0): LATER,
    (400, 0): LATER,
    (400, 20012): FINAL,
    (400, 50006): FINAL,
    (400, 50035): FINAL,
    (400, 50083): FINAL,
    (400, 160004): FINAL,
    (400, 160005): FINAL,
    (400, 160006): FINAL,
    (400, 160007): FINAL,
    (400, 200000): FINAL,
    (400, 240000): FINAL,
    # Slow mode, a channel's write limit, a feature that is off for now, trouble inside of Discord.
    (400, 20016): LATER,
    (400, 20028): LATER,
    (403, 20016): LATER,
    (403, 20028): LATER,
    (403, 40006): LATER,
    (403, 40333): LATER,
    # The bot's token can be fixed; 50027 is about that of an interaction, which is over.
    (401, 0): LATER,
    (401, 40001): LATER,
    (401, 50027): FINAL,
    (403, 0): LATER,
    (403, 40005): FINAL,
    (403, 50001): FINAL,
    (403, 50007): FINAL,
    (403, 50013): FINAL,
    (404, 0): LATER,
    (404, 10003): FINAL,
    (404, 10008): FINAL,
    (404, 10015): FINAL,
    (404, 10062): FINAL,
    (405, 0): LATER,
    (405, 40060): FINAL,
    (408, 0): LATER,
    (413, 0): FINAL,
    (413, 40005): FINAL,
    (415, 0): LATER,
    (429, 0): LATER,
    (429, 20028): LATER,
    (500, 0): DONE_OR_NOT,
    (500, 130000): DONE_OR_NOT,
    (501, 0): DONE_OR_NOT,
    (502, 0): DONE_OR_NOT,
    (503, 0): DONE_OR_NOT,
    (504, 0): DONE_OR_NOT,
    (520, 0): DONE_OR_NOT,
    (524, 0): DONE_OR_NOT,
    (599, 0): DONE_OR_NOT,
}


def passes(raised: Exception) -> bool:
    """Whether an error of the SDK has nothing to do with credentials, intents or close codes."""
    told = discord.LoginFailure | discord.PrivilegedIntentsRequired | discord.ConnectionClosed
    return not isinstance(raised, told)


OF_THE_SDK = [
    discord.DiscordException(),
    discord.ClientException(),
    discord.InvalidData(),
    discord.LoginFailure("token"),
    closed(1006),
    discord.PrivilegedIntentsRequired(None),
    discord.GatewayNotFound(),  # type: ignore[no-untyped-call]
    discord.RateLimited(3.0),
]
NEVER_MET = {
    "FFmpegProcessError": "no voice",
    "InteractionResponded": "callbacks are answered without the SDK's objects",
    "MissingApplicationID": "the SDK's command tree is not used",
    "HTTPException": "in ANSWERS, as the following are",
    "Forbidden": "403",
    "NotFound": "404",
    "DiscordServerError": "5xx",
}


CASES: list[tuple[Exception, tuple[type[AdapterError], type[AdapterError]]]] = [
    *[(answered(*said), outcomes) for said, outcomes in ANSWERS.items()],
    *[(raised, LATER) for raised in NOT_SENT],
    *[(raised, DONE_OR_NOT) for raised in (*MAYBE_SENT, zlib.error())],
    *[(raised, LATER) for raised in OF_THE_SDK],
]


def name_of(raised: Exception) -> str:
    if isinstance(raised, discord.HTTPException):
        return f"{raised.status}-{raised.code}"
    if isinstance(raised, discord.ConnectionClosed):
        return f"closed-{raised.code}"
    return type(raised).__name__


NO_CLASS = r"^(?!.*[a-z](?:Error|Exception))"
"""In the log alone."""


@pytest.mark.parametrize(
    ("raised", "outcomes"), CASES, ids=[name_of(raised) for raised, _ in CASES]
)
def test_what_becomes_of_a_request(
    raised: Exception, outcomes: tuple[type[AdapterError], type[AdapterError]]
) -> None:
    """A new message may have been shown where the request left; all else can be repeated."""
    for once, wanted in zip((True, False), outcomes, strict=True):
        with pytest.raises(wanted), mapped_call(once=once):
            raise raised


def test_no_error_of_the_libraries_is_left_out() -> None:
    """A class that a new version brings needs a decision."""
    met = {type(raised) for raised in [*NOT_SENT, *MAYBE_SENT, *OF_THE_SDK]}
    assert missing_in(met, aiohttp.ClientError) == []
    errors = {each for each in below(discord.DiscordException) if each.__module__ == ERRORS}
    assert {each.__name__ for each in errors - met} == set(NEVER_MET)


def test_a_pause_is_told() -> None:
    """What Discord asks for goes on to who schedules the row."""
    with pytest.raises(SendDelayed) as caught, mapped_call(once=True):
        raise discord.RateLimited(3.5)
    assert caught.value.retry_after_s == 3.5


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (answered(403, 160005), "the thread is locked (Discord's code 160005)"),
        (answered(400, 50035, "Invalid\nForm"), "Invalid Form (Discord's code 50035)"),
        (answered(413, 0, "<html>"), "HTTP status 413"),
    ],
)
def test_the_reason_of_a_refusal(raised: Exception, reason: str) -> None:
    """It is ours where we know the code, and never an error page."""
    with pytest.raises(CodedRefusal) as caught, mapped_call():
        raise raised
    assert str(caught.value) == reason


FILE_STATUSES: dict[int, type[Exception] | None] = {
    200: None,
    302: FetchDelayed,
    400: FetchDelayed,
    401: FetchDelayed,
    403: Expired,
    404: Expired,
    408: FetchDelayed,
    410: Expired,
    429: FetchDelayed,
    **dict.fromkeys((500, 502, 503, 504, 520, 599), FetchDelayed),
}


@pytest.mark.parametrize("status", FILE_STATUSES)
def test_what_the_file_server_means(status: int) -> None:
    """A link that has expired is renewed; everything else passes by."""
    assert raised_by(check_status, status) is FILE_STATUSES[status]


ENDS: list[tuple[Exception, type[Exception], str]] = [
    (discord.LoginFailure("x"), AdapterRefused, "platforms.discord.token"),
    *[(closed(code), AdapterDisconnected, str(code)) for code in PASSING_CLOSES],
    *[(raised, AdapterDisconnected, NO_CLASS) for raised in NOT_SENT + MAYBE_SENT],
    *[(answered(*said), AdapterDisconnected, "status|code") for said in ANSWERS],
    *[(raised, AdapterDisconnected, NO_CLASS) for raised in OF_THE_SDK if passes(raised)],
    (closed(4004), AdapterRefused, "platforms.discord.token"),
    (closed(4014), AdapterRefused, "message_content: false"),
    (discord.PrivilegedIntentsRequired(None), AdapterRefused, "message_content: false"),
    (closed(4010), AdapterRefused, "platforms.discord.shards"),
    (closed(4011), AdapterRefused, "too many servers"),
    (closed(4012), AdapterRefused, "update Parley"),
    (closed(4013), AdapterRefused, "intents"),
]


@pytest.mark.parametrize(("raised", "wanted", "word"), ENDS, ids=[name_of(end[0]) for end in ENDS])
def test_what_ends_a_connection(raised: Exception, wanted: type[Exception], word: str) -> None:
    """Credentials and intents stop the adapter and name the setting; all else is tried again."""
    with pytest.raises(wanted, match=word), mapped_receiving():
        raise raised
