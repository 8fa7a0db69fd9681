"""Receives for one app, through its socket or through its webhook (step 1)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import structlog

from adapters.base import Intake
from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.slack.backfill import Backfill
from adapters.slack.client import Client, secret_of
from adapters.slack.errors import CallFailed, mapped, receiving_error
from adapters.slack.followups import follow_up
from adapters.slack.inbound import Identity
from adapters.slack.ingest import Ingest
from adapters.slack.socketmode import Socket

if TYPE_CHECKING:
    from adapters.settings import SlackSettings

log = structlog.get_logger()

_FRESH_FOR_S = 90.0
_CHECK_INTERVAL_S = 45.0
_SHORTEST_CONNECTION_S = 5.0


class Receiver:
    """The incoming half of one app.

    Args:
        settings: The app's block.
        ingest: Where updates are made durable.
        intake: Knows how far everything was read.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: "SlackSettings",
        ingest: Ingest,
        intake: Intake,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._ingest = ingest
        self._backfill = Backfill(ingest, intake)
        self._clock = clock
        self._reached_at = float("-inf")
        self._socket: Socket | None = None

    @property
    def connected(self) -> bool:
        """Whether the socket answers, or in HTTP mode whether Slack did within the last 90 s."""
        if self._settings.mode == "socket":
            return self._socket is not None and self._socket.alive
        return self._clock() - self._reached_at < _FRESH_FOR_S

    async def run(self) -> NoReturn:
        """Receive until cancelled, on connections of its own.

        Whatever the intake raises goes on to the caller. Nothing was acknowledged then: Slack
        delivers it again, and the next run reads what is missing.
        """
        app_token = _checked(self._settings)
        client = Client(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow_up(self._ingest, client), name="slack follow-ups")
                if app_token is None:
                    await self._serve(client)
                else:
                    await self._listen(client, Socket(app_token, self._ingest))
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures
        finally:
            self._socket = None
            await client.close()
        raise AdapterDisconnected("the receiver ended")

    async def _listen(self, client: Client, socket: Socket) -> NoReturn:
        self._socket = socket
        while True:
            await self._greet(client)
            began = self._clock()
            await socket.run(client, lambda: self._backfill.run(client))
            if self._clock() - began < _SHORTEST_CONNECTION_S:
                raise AdapterDisconnected("Slack asks for a new connection at once")

    async def _serve(self, client: Client) -> NoReturn:
        """Catch up, then look now and then whether Slack still knows the app."""
        await self._greet(client)
        await self._backfill.run(client)
        while True:
            try:
                await asyncio.wait_for(self._ingest.revoked.wait(), _CHECK_INTERVAL_S)
            except TimeoutError:
                await self._identify(client)
            else:
                raise AdapterRefused("the app was removed from its workspace")

    async def _greet(self, client: Client) -> None:
        identity = await self._identify(client)
        await self._backfill.hold()
        self._ingest.identity = identity
        account = self._settings.name
        log.info("slack_connected", account=account, bot=identity.name, mode=self._settings.mode)

    async def _identify(self, client: Client) -> Identity:
        try:
            with mapped():
                me = await client.web.auth_test()
        except CallFailed as exc:
            raise receiving_error(exc, "bot_token") from exc
        self._reached_at = self._clock()
        words = [str(me.get(key) or "") for key in ("user_id", "bot_id", "team_id", "user")]
        return Identity(*words)


def signing_secret(settings: "SlackSettings") -> str:
    """Return the secret that signs Slack's calls, empty if none is set."""
    secret = settings.signing_secret
    return secret.get_secret_value().strip() if secret else ""


def _checked(settings: "SlackSettings") -> str | None:
    """Return the app token, None in HTTP mode, once all that the mode needs is there."""
    if settings.mode == "socket":
        return secret_of(settings.app_token, "app_token")
    secret_of(settings.signing_secret, "signing_secret")
    return None


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure that says most: a refusal before a broken connection."""
    leaves = list(_leaves(failures))
    refusals = [each for each in leaves if isinstance(each, AdapterRefused)]
    return (refusals or leaves)[0]


def _leaves(failure: BaseException) -> Sequence[BaseException]:
    if not isinstance(failure, BaseExceptionGroup):
        return [failure]
    return [leaf for each in failure.exceptions for leaf in _leaves(each)]
