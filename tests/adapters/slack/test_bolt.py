"""Bolt's dispatch: whatever Slack sends reaches the intake once, and nothing else answers 200."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_sdk.socket_mode.response import SocketModeResponse

from adapters.slack.client import Client, api_root
from adapters.slack.ingest import IncomingPayload
from adapters.slack.platform import SlackSettings
from adapters.slack.socketmode import EnvelopeHandler, SocketConnection, bolt_app
from tests.adapters.slack.conftest import until
from tests.support.recording_intake import NotStored

ANYBODY: Any = SimpleNamespace(identity=None)
CORNERS = [
    "type",
    "event",
    "user",
    "user_id",
    "team",
    "view",
    "item",
    "channel",
    "message",
    "actions",
    "command",
    "thread_ts",
    "authorizations",
    "response_urls",
    "is_ext_shared_channel",
]
WORDS = ["event_callback", "block_actions", "message", "app_uninstalled", "x", 7, None, True, []]


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with keys that Bolt looks at."""
    return st.dictionaries(st.sampled_from(CORNERS), inner, max_size=5)


SHAPES = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=2) | objects(inner),
    max_leaves=8,
)


class Stores:
    """Takes updates as the envelopes of a socket do."""

    def __init__(self) -> None:
        self.updates: list[IncomingPayload] = []

    async def store(self, update: IncomingPayload) -> None:
        self.updates.append(update)


def app_with(store: Any) -> Any:
    """Return the app without anything behind it."""
    client = Client(SlackSettings(bot_token=SecretStr("xoxb-1")))
    return bolt_app(client, ANYBODY, store)


@settings(max_examples=150)
@given(payload=objects(SHAPES) | SHAPES)
def test_a_payload_of_any_shape_is_stored_once(payload: Any) -> None:
    """Where Bolt cannot read it, our own reading gets it; what comes is never refused for ever."""
    stores = Stores()
    delivery = EnvelopeHandler(app_with(stores.store), stores)  # type: ignore[arg-type]
    envelope = {"type": "events_api", "envelope_id": "e", "payload": payload}
    assert asyncio.run(delivery.status("e", envelope)) == 200
    (update,) = stores.updates
    assert update.payload == ({"text": payload} if isinstance(payload, str) else payload)


async def test_bolt_holds_no_token() -> None:
    """What has no token cannot answer in the bot's name past the outbox."""
    app = app_with(Stores().store)
    request = AsyncBoltRequest(body={"event": {"type": "message"}}, mode="socket_mode")
    await app.async_dispatch(request)
    assert (app.client.token, request.context.token, request.context.client.token) == (None,) * 3


class Line:
    """A connection that notes what is acknowledged, or is gone."""

    def __init__(self, *, gone: bool = False) -> None:
        self.acknowledged: list[str] = []
        self._gone = gone

    async def send_socket_mode_response(self, response: SocketModeResponse) -> None:
        if self._gone:
            raise ConnectionResetError
        self.acknowledged.append(response.envelope_id)


async def acknowledged(store: Any, line: Line, **changes: Any) -> list[str]:
    """Deliver one envelope; return what was acknowledged."""
    stores = Stores()
    delivery = EnvelopeHandler(app_with(store or stores.store), stores)  # type: ignore[arg-type]
    payload = {"event": {"type": "message"}}
    envelope = {"type": "events_api", "envelope_id": "e", "payload": payload} | changes
    await delivery.deliver(line, envelope)  # type: ignore[arg-type]
    return line.acknowledged


async def test_only_what_is_stored_is_acknowledged() -> None:
    """Bolt's answer to an error is no 200, so the socket stays silent."""

    async def failing(_: IncomingPayload) -> None:
        raise NotStored("disk full")

    assert await acknowledged(None, Line()) == ["e"]
    assert await acknowledged(failing, Line()) == []


async def test_an_envelope_of_a_new_kind_is_acknowledged() -> None:
    """Slack would deliver it again and again; without a name there is nothing to say."""
    assert await acknowledged(None, Line(), type="something_new", payload=None) == ["e"]
    assert await acknowledged(None, Line(), envelope_id=None) == []


async def test_an_acknowledgement_into_a_dead_line_is_nobodys_error() -> None:
    """The update is stored; Slack delivers it again, and it will be known."""
    assert await acknowledged(None, Line(gone=True)) == []


async def test_an_envelope_that_comes_while_the_run_ends_is_left_to_slack() -> None:
    """No task can be started any more; that is no error and leaves nothing behind."""
    delivered: list[Any] = []

    async def deliver(_: SocketConnection, envelope: Any) -> None:
        delivered.append(envelope)

    client = Client(SlackSettings(bot_token=SecretStr("xoxb-1")))
    async with asyncio.TaskGroup() as tasks:
        pass
    connection = SocketConnection(client, "ws://127.0.0.1/", deliver, tasks)
    connection.message_queue.put_nowait('{"type": "events_api"}')
    await until(connection.message_queue.empty)
    await connection.close()
    await client.close()
    gc.collect()
    assert delivered == []


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/api", "http://h:1/api/"])
def test_the_root_of_the_api_is_completed(url: str) -> None:
    """`platforms.slack.base_url` may stop short of /api/."""
    assert api_root(url) == "http://h:1/api/"
