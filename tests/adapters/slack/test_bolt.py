"""Bolt's dispatch: whatever Slack sends reaches the intake once, and nothing else answers 200."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from slack_bolt.request.async_request import AsyncBoltRequest

from adapters.slack.client import Client, api_root
from adapters.slack.ingest import IncomingPayload
from adapters.slack.platform import SlackSettings
from adapters.slack.receive import UNREADABLE, bolt_app

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
    """Takes updates as the webhook does."""

    def __init__(self) -> None:
        self.updates: list[IncomingPayload] = []

    async def store(self, update: IncomingPayload) -> None:
        self.updates.append(update)


def app_with(store: Any) -> Any:
    """Return the app without anything behind it."""
    client = Client(SlackSettings(bot_token=SecretStr("xoxb-1")))
    return bolt_app(client, ANYBODY, store, "secret")


@settings(max_examples=150)
@given(payload=objects(SHAPES))
def test_a_payload_of_any_shape_is_stored_once(payload: Any) -> None:
    """Bolt hands it over, or raises what has our own reading get it; nothing else happens."""
    stores = Stores()
    app = app_with(stores.store)
    try:
        request = AsyncBoltRequest(body=payload, mode="socket_mode")
        answer = asyncio.run(app.async_dispatch(request))
    except UNREADABLE:
        assert stores.updates == []
    else:
        assert answer.status == 200
        assert [update.payload for update in stores.updates] == [payload]


async def test_bolt_holds_no_token() -> None:
    """What has no token cannot answer in the bot's name past the outbox."""
    app = app_with(Stores().store)
    request = AsyncBoltRequest(body={"event": {"type": "message"}}, mode="socket_mode")
    await app.async_dispatch(request)
    assert (app.client.token, request.context.token, request.context.client.token) == (None,) * 3


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/api", "http://h:1/api/"])
def test_the_root_of_the_api_is_completed(url: str) -> None:
    """`platforms.slack.base_url` may stop short of /api/."""
    assert api_root(url) == "http://h:1/api/"
