"""Names of people (step 1): events hold only ids. Best effort, remembered, bounded in time."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from adapters.slack.client import Client
from adapters.slack.errors import CallFailed, Refused
from adapters.slack.text import storable
from adapters.slack.tiers import USERS, Budgets

log = structlog.get_logger()

WAIT_S = 0.5
"""How long a batch of updates waits for names; Slack wants its acknowledgement within 3 s."""
_QUIET_S = 30.0
"""How long nobody is asked for after Slack was late, so that only few updates wait for it."""
_AT_ONCE = 20
_REMEMBERED = 4096
_FORGET_FAILURES_S = 600.0


class Names:
    """The names of the people in one workspace.

    Args:
        client: The Web API; closed by its owner.
        budgets: What may be called when.
        clock: Monotonic seconds.
    """

    def __init__(
        self, client: Client, budgets: Budgets, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._budgets = budgets
        self._clock = clock
        self._names: OrderedDict[str, str] = OrderedDict()
        self._quiet_until = float("-inf")
        self._failed: OrderedDict[str, float] = OrderedDict()

    def get(self, user: str) -> str | None:
        """Return a person's name, if it is known."""
        return self._names.get(user)

    async def learn(self, users: Iterable[str]) -> None:
        """Ask for names that are not known yet, as many as the budget and `WAIT_S` allow."""
        unknown = [user for user in dict.fromkeys(users) if self._is_unknown(user)][:_AT_ONCE]
        if not unknown or self._clock() < self._quiet_until:
            return
        try:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
                for user in unknown:
                    tasks.create_task(self._ask(user), name="slack name")
        except TimeoutError:
            self._quiet_until = self._clock() + _QUIET_S
            log.debug("slack_names_late", users=len(unknown))

    def _is_unknown(self, user: str) -> bool:
        failed_at = self._failed.get(user, float("-inf"))
        is_waiting = self._clock() - failed_at < _FORGET_FAILURES_S
        return bool(user) and user not in self._names and not is_waiting

    async def _ask(self, user: str) -> None:
        chance = self._budgets.chance(USERS, user)
        if chance is None:
            return
        try:
            with chance:
                answer = await self._client.web.users_info(user=user)
        except CallFailed as exc:
            log.debug("slack_name_unknown", reason=exc.code)
            if isinstance(exc, Refused):
                _remember(self._failed, user, self._clock())
        else:
            _remember(self._names, user, _name(answer.get("user")) or user)


def _name(user: Any) -> str:
    known = user if isinstance(user, dict) else {}
    profile = known.get("profile")
    shown = profile if isinstance(profile, dict) else {}
    words = [shown.get("display_name"), shown.get("real_name"), known.get("name")]
    return storable(next((word for word in words if word and isinstance(word, str)), ""))


def _remember(known: OrderedDict[str, Any], user: str, value: Any) -> None:
    known[user] = value
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
