"""Bolt between Slack and the intake (step 1): one app that answers 200 only for what is stored.

Both modes dispatch through it; they differ in how an update waits for its commit.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NoReturn

import structlog
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse

from adapters.slack.client import Client, sdk_log
from adapters.slack.ingest import Ingest, Update

log = structlog.get_logger()

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What Bolt raises, before it asks anybody, for headers and payloads of a shape it did not expect.

It looks for ids in every corner of a payload and is not careful there: an event whose `user` is a
number is a TypeError.
"""


def bolt_app(
    client: Client,
    ingest: Ingest,
    store: Callable[[Update], Awaitable[None]],
    signing_secret: str = "",
) -> AsyncApp:
    """Return an app whose one global middleware stores updates; it has no token and calls nobody.

    Args:
        client: Names the server.
        ingest: Knows who the bot is.
        store: Returns once an update is committed.
        signing_secret: Signs Slack's calls in HTTP mode; Bolt skips the check in Socket Mode.
    """

    async def authorize() -> AuthorizeResult:
        """Bolt's own asks auth.test; if that fails it answers 200 and the event is lost."""
        me = ingest.identity
        return AuthorizeResult(
            enterprise_id=None,
            team_id=me.team if me else None,
            bot_id=me.bot if me else None,
            bot_user_id=me.user if me else None,
        )

    async def admit(body: dict[str, Any]) -> BoltResponse:
        """Answer at once, without `next()`: no listener may come before the commit."""
        return await answered(store(_update_of(body)))

    app = AsyncApp(
        # Below `slack_bolt`, since Bolt names loggers after the app.
        name="slack_bolt.parley",
        logger=sdk_log,
        client=client.anonymous(),
        authorize=authorize,
        signing_secret=signing_secret,
        # Bolt would otherwise acknowledge before a listener is done.
        process_before_response=True,
        # The adapter itself knows its own messages, and the bots that it listens to.
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )
    app.use(admit)
    app.error(_passed_on)
    return app


async def answered(storing: Awaitable[None]) -> BoltResponse:
    """Return 200, or 503 if an update was not stored, for whatever reason."""
    try:
        await storing
    except Exception:
        log.exception("slack_webhook_not_stored")
        return BoltResponse(status=HTTPStatus.SERVICE_UNAVAILABLE)
    return BoltResponse(status=HTTPStatus.OK)


def _update_of(body: dict[str, Any]) -> Update:
    if "event" in body:
        return Update("events_api", body)
    return Update("slash_commands" if "command" in body else "interactive", body)


async def _passed_on(error: Exception) -> NoReturn:
    """Bolt would make a 500 of it; only the caller knows what is to be done with the update."""
    raise error
