"""Status lines, reactions: signs of life beside the messages. Best effort."""

import time
from collections.abc import Awaitable, Callable

import structlog

from adapters.base import Clock, Recent
from adapters.errors import AdapterError
from adapters.messages import Address, MessageRef, Reaction
from adapters.slack.client import REACT, STATUS, UNREACT, Client
from adapters.slack.errors import Coded, code_of
from adapters.slack.ingest import position_of

log = structlog.get_logger()

STATUS_FOR_S = 100.0
"""Slack takes a status away after two minutes. Source: its page of assistant.threads.setStatus."""
Call = Callable[[], Awaitable[object]]
_WORKING = "is thinking..."
_REMEMBERED = 1024
_REACTIONS: dict[Reaction, str] = {
    "received": "eyes",
    "answered": "white_check_mark",
    "failed": "warning",
}
# What was asked for is so already.
_DONE = frozenset({"already_reacted", "no_reaction"})
# Slack will not do it for this app, however often it is asked.
_NEVER = frozenset({"missing_scope", "unknown_method"})


class Reactions:
    """The signs of life of one app.

    A thread's work is an agent session where Slack takes the app for an agent (then it shows its
    own stop button), else it has a status line. Outside of threads Slack has neither.
    """

    def __init__(self, client: Client, *, reactions: bool, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._reactions = reactions
        self._clock = clock
        self._working: Recent[Address, float] = Recent(_REMEMBERED)
        self._has_sessions = True
        self._has_status = True

    async def show_working(self, question: MessageRef) -> None:
        """Show that an answer is being made, once for as long as Slack shows it."""
        address, now = question.address, self._clock()
        if address.thread is None or not self._has_status:
            return
        if now - self._working.get(address, float("-inf")) < STATUS_FOR_S:
            return
        self._working[address] = now
        if self._has_sessions:
            await self._session(address, "processing", question.sender)
        if not self._has_sessions:
            await self._status(address, _WORKING)

    async def show_done(self, address: Address, *, posted: bool) -> None:
        """Take the sign of work away; a new message ends a status line, but no agent session."""
        if self._working.pop(address, None) is None:
            return
        if self._has_sessions:
            await self._session(address, "active")
        elif not posted:
            await self._status(address, "")

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to a message, in place of an earlier reaction."""
        ts = question.message_ref
        if not self._reactions or ts is None or position_of(ts) is None:
            return
        channel = question.address.chat
        if mark == "received":
            await self._try(REACT, channel, lambda: self._react(channel, ts, mark))
            return
        # Slack keeps several reactions of one user beside each other.
        await self._see_to(UNREACT, channel, lambda: self._unreact(channel, ts))
        await self._see_to(REACT, channel, lambda: self._react(channel, ts, mark))

    async def _session(self, address: Address, status: str, sender: str | None = None) -> None:
        failed = await self._try(
            STATUS,
            address.chat,
            lambda: self._client.web.agents_sessions_setStatus(
                channel_id=address.chat,
                thread_ts=address.thread,
                status=status,
                initiator_user_id=sender,
            ),
        )
        if isinstance(failed, Coded):
            self._has_sessions = False

    async def _status(self, address: Address, status: str) -> None:
        failed = await self._try(
            STATUS,
            address.chat,
            lambda: self._client.web.assistant_threads_setStatus(
                channel_id=address.chat, thread_ts=address.thread or "", status=status
            ),
        )
        if failed is not None and code_of(failed) in _NEVER:
            self._has_status = False

    def _react(self, channel: str, ts: str, mark: Reaction) -> Awaitable[object]:
        name = _REACTIONS[mark]
        return self._client.web.reactions_add(channel=channel, timestamp=ts, name=name)

    def _unreact(self, channel: str, ts: str) -> Awaitable[object]:
        name = _REACTIONS["received"]
        return self._client.web.reactions_remove(channel=channel, timestamp=ts, name=name)

    async def _try(self, method: str, channel: str, call: Call) -> AdapterError | None:
        """Make a call if there is room for it; return how it failed, if it did."""
        chance = self._client.chance(method, channel)
        if chance is None:
            return None
        try:
            with chance:
                await call()
        except AdapterError as exc:
            return _noted(channel, exc)
        return None

    async def _see_to(self, method: str, channel: str, call: Call) -> None:
        """Make a call that ought to come, waiting for its turn."""
        try:
            async with self._client.turn(method, channel):
                await call()
        except AdapterError as exc:
            _noted(channel, exc)


def _noted(channel: str, exc: AdapterError) -> AdapterError:
    if code_of(exc) not in _DONE:
        log.debug("slack_sign_failed", channel=channel, reason=str(exc))
    return exc
