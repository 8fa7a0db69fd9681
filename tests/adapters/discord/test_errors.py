"""What an exception of the SDK means for a row and for the adapter: pure."""

from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import pytest

from adapters.discord.errors import Refusal, mapped_call, mapped_post, mapped_receiving
from adapters.errors import (
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    SendDelayed,
    SendRejected,
    SendUnknown,
)


def answered(status: int, code: int = 0, text: str = "no") -> discord.HTTPException:
    response: Any = SimpleNamespace(status=status, reason="", headers={})
    return discord.HTTPException(response, {"code": code, "message": text})


def closed(code: int) -> discord.ConnectionClosed:
    socket: Any = SimpleNamespace(close_code=code)
    return discord.ConnectionClosed(socket, shard_id=None, code=code)


REFUSED_CONNECTION = aiohttp.ClientConnectorError(
    SimpleNamespace(host="h", port=1, ssl=True),  # type: ignore[arg-type]
    OSError("refused"),
)


@pytest.mark.parametrize(
    ("raised", "post", "call"),
    [
        (answered(400, 50035), SendRejected, SendRejected),
        (answered(400, 20016), SendDelayed, SendDelayed),
        (answered(400), SendDelayed, SendDelayed),
        (answered(403, 40006), SendDelayed, SendDelayed),
        (answered(403, 40333), SendDelayed, SendDelayed),
        (answered(403, 20028), SendDelayed, SendDelayed),
        (answered(413), SendRejected, SendRejected),
        (answered(403, 50013), SendRejected, SendRejected),
        (answered(404, 10003), SendRejected, SendRejected),
        (answered(403), SendDelayed, SendDelayed),
        (answered(401), SendDelayed, SendDelayed),
        (answered(401, 50027), SendRejected, SendRejected),
        (answered(503), SendUnknown, SendDelayed),
        (discord.RateLimited(3.0), SendDelayed, SendDelayed),
        (discord.LoginFailure("token"), SendDelayed, SendDelayed),
        (REFUSED_CONNECTION, SendDelayed, SendDelayed),
        (aiohttp.ServerDisconnectedError(), SendUnknown, SendDelayed),
        (ConnectionResetError(), SendUnknown, SendDelayed),
        (TimeoutError(), SendUnknown, SendDelayed),
        (KeyError("id"), SendUnknown, SendDelayed),
    ],
)
def test_what_becomes_of_a_request(
    raised: Exception, post: type[AdapterError], call: type[AdapterError]
) -> None:
    """A new message may have been shown where the request left; all else can be repeated."""
    for mapped, wanted in ((mapped_post, post), (mapped_call, call)):
        with pytest.raises(wanted), mapped():
            raise raised


def test_a_pause_is_told() -> None:
    """What Discord asks for goes on to who schedules the row."""
    with pytest.raises(SendDelayed) as caught, mapped_post():
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
    with pytest.raises(Refusal) as caught, mapped_call():
        raise raised
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("raised", "wanted", "word"),
    [
        (discord.LoginFailure("x"), AdapterRefused, "platforms.discord.token"),
        (closed(4004), AdapterRefused, "platforms.discord.token"),
        (closed(4014), AdapterRefused, "message_content: false"),
        (discord.PrivilegedIntentsRequired(None), AdapterRefused, "message_content: false"),
        (closed(4010), AdapterRefused, "all servers"),
        (closed(4011), AdapterRefused, "too many servers"),
        (closed(4012), AdapterRefused, "update Parley"),
        (closed(4000), AdapterDisconnected, "4000"),
        (answered(502), AdapterDisconnected, "502"),
        (TimeoutError(), AdapterDisconnected, "TimeoutError"),
        (AttributeError("sequence"), AdapterDisconnected, "AttributeError"),
    ],
)
def test_what_ends_a_connection(raised: Exception, wanted: type[Exception], word: str) -> None:
    """Credentials and intents stop the adapter and name the setting; all else is tried again."""
    with pytest.raises(wanted, match=word), mapped_receiving():
        raise raised
