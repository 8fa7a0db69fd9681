"""Webhook mode: the adapter's route behind a real HTTP server, called as Telegram calls it."""

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.telegram import receive
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import ALLOWED_UPDATES
from tests.adapters.telegram.conftest import MakeAdapter, running
from tests.support.bot_api import BotApi, Fault
from tests.support.bot_replicas import until
from tests.support.process import free_port
from tests.support.recording_intake import RecordingIntake

SECRET = "a-webhook_SECRET"
HEADERS = {"X-Telegram-Bot-Api-Secret-Token": SECRET, "Content-Type": "application/json"}


@pytest.fixture
async def url() -> str:
    return f"http://127.0.0.1:{free_port()}/telegram/default"


@pytest.fixture
async def hooked(make: MakeAdapter, url: str) -> AsyncIterator[TelegramAdapter]:
    """An adapter in webhook mode whose route is served at `url`; it does not run yet."""
    adapter = make(mode="webhook", webhook_url=url, webhook_secret=SecretStr(SECRET))
    app = web.Application()
    app.add_routes(adapter.routes())
    async with TestServer(app, port=int(url.split(":")[2].split("/")[0])):
        yield adapter


@pytest.fixture
async def served(hooked: TelegramAdapter) -> AsyncIterator[TelegramAdapter]:
    """The adapter of `hooked`, running and registered with Telegram."""
    async with running(hooked):
        # Telegram knows of it before the adapter has read the answer.
        await until(lambda: hooked.receivers[0].connected)
        yield hooked


async def post(url: str, body: Any, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=HEADERS | headers) as answer,
    ):
        return answer.status


async def test_an_update_is_stored_and_then_acknowledged(
    api: BotApi, intake: RecordingIntake, served: TelegramAdapter
) -> None:
    """200 means stored."""
    assert await api.deliver_webhook(api.message_update(7, "hello")) == [200]
    assert intake.texts == ["hello"]
    assert intake.cursors == []


async def test_the_webhook_is_registered_completely(
    api: BotApi, served: TelegramAdapter, url: str
) -> None:
    """Telegram learns URL, secret and kinds of updates, and keeps what is pending."""
    assert api.webhook == {
        "url": url,
        "secret_token": SECRET,
        "allowed_updates": list(ALLOWED_UPDATES),
        "drop_pending_updates": "false",
    }
    assert api.made("getUpdates") == []
    # Its answer is on its way when the platform has it.
    await until(lambda: served.receivers[0].connected)


async def test_what_was_not_stored_comes_again(
    api: BotApi, intake: RecordingIntake, served: TelegramAdapter
) -> None:
    """A failing intake is answered with 503, so that Telegram delivers again."""
    update = api.message_update(7, "hello")
    intake.broken = 99
    assert await api.deliver_webhook(update, attempts=2) == [503, 503]
    intake.broken = 0
    assert await api.deliver_webhook(update) == [200]
    assert intake.texts == ["hello"]


async def test_polling_and_webhook_name_a_message_alike(
    api: BotApi, intake: RecordingIntake, served: TelegramAdapter, make: MakeAdapter
) -> None:
    """A message that came by webhook is recognised when polling brings it again."""
    update = api.message_update(7, "hello")
    await api.deliver_webhook(update)
    api.webhook = None
    api.push_raw(update)
    async with running(make()):
        await api.wait_for(lambda: not api.pending)
    assert intake.texts == ["hello"]


@pytest.mark.parametrize("secret", ["", "wrong", SECRET.lower(), "\u00e4"])
async def test_a_wrong_secret_is_denied(
    intake: RecordingIntake, served: TelegramAdapter, url: str, secret: str
) -> None:
    """Without the secret nothing is read, stored or told."""
    assert await post(url, "{}", **{"X-Telegram-Bot-Api-Secret-Token": secret}) == 401
    assert intake.attempts == 0


async def test_only_json_is_taken(
    intake: RecordingIntake, served: TelegramAdapter, url: str
) -> None:
    """Another content type is refused."""
    assert await post(url, "x=1", **{"Content-Type": "text/plain"}) == 415
    assert intake.attempts == 0


@pytest.mark.parametrize("body", [b"{not json", b"\xff\xfe", b"[" * 100_000])
async def test_what_is_no_json_is_poison(
    intake: RecordingIntake, served: TelegramAdapter, url: str, body: bytes
) -> None:
    """Undecodable bytes are stored and acknowledged, else Telegram would repeat them forever."""
    assert await post(url, body) == 200
    (item,) = intake.poison
    assert item.source == "telegram:default"
    assert item.raw == body.decode("utf-8", "replace")


async def test_a_malformed_update_is_poison(
    intake: RecordingIntake, served: TelegramAdapter, url: str
) -> None:
    """JSON that is no update is stored and acknowledged."""
    assert await post(url, '{"update_id": 5, "message": 3}') == 200
    assert [item.dedupe_key for item in intake.poison] == ["u5"]


async def test_a_body_beyond_any_update_is_refused(
    intake: RecordingIntake, served: TelegramAdapter, url: str
) -> None:
    """Two megabytes are not read to their end."""
    assert await post(url, io.BytesIO(b" " * (2 << 20))) == 413
    assert intake.attempts == 0


async def test_nothing_is_taken_before_the_bot_knows_its_name(
    intake: RecordingIntake, hooked: TelegramAdapter, url: str
) -> None:
    """Before getMe mentions cannot be told apart: Telegram has to wait."""
    assert await post(url, "{}") == 503
    assert intake.attempts == 0


@pytest.mark.parametrize("missing", ["webhook_url", "webhook_secret"])
async def test_webhook_mode_needs_url_and_secret(make: MakeAdapter, missing: str) -> None:
    """A missing setting is named."""
    settings = {"webhook_url": "https://e.org/hook", "webhook_secret": SecretStr(SECRET)}
    adapter = make(mode="webhook", **{**settings, missing: None})
    with pytest.raises(AdapterRefused, match=rf"platforms\.telegram\.{missing}"):
        await adapter.receivers[0].run()


@pytest.mark.parametrize(
    "changes",
    [{"webhook_url": "ftp://e.org"}, {"webhook_secret": SecretStr("not allowed!")}],
)
async def test_settings_that_telegram_refuses(make: MakeAdapter, changes: dict[str, Any]) -> None:
    """What setWebhook refuses is a matter of configuration."""
    settings = {"webhook_url": "https://e.org/hook", "webhook_secret": SecretStr(SECRET)}
    with pytest.raises(AdapterRefused, match="webhook"):
        await make(mode="webhook", **(settings | changes)).receivers[0].run()


async def test_polling_mode_and_missing_secret_serve_no_route(make: MakeAdapter) -> None:
    """There is no route that anybody could call without a secret."""
    assert make().routes() == []
    assert make(mode="webhook", webhook_url="https://e.org").routes() == []


async def test_telegram_is_asked_now_and_then(
    api: BotApi, hooked: TelegramAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In webhook mode too it is noticed when Telegram is out of reach or refuses the token."""
    monkeypatch.setattr(receive, "_CHECK_INTERVAL_S", 0.01)
    api.fail("getMe", Fault("slow"), Fault("slow"), Fault("html", 502))
    with pytest.raises(AdapterDisconnected):
        await hooked.receivers[0].run()
    api.fail("getMe", Fault("slow"), Fault("error", 401, "Unauthorized"))
    with pytest.raises(AdapterRefused):
        await hooked.receivers[0].run()
