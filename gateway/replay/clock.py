"""When a replayed conversation's requests are made: a replay runs at once, a prompt cache ages."""

import random
from collections.abc import Iterator
from typing import Literal

from gateway.replay.recordings import Exchange, Recording

Gap = Literal["none", "busy", "chat", "recorded"]
"""none: no time passes. busy: 20 to 120 s between turns. chat: as busy, but every fifth pause is up
to 5 minutes, about every seventh up to 40 minutes, one in twenty up to 10 hours. recorded: as the
recording says, busy where it says nothing. Steps of a turn are 4 to 20 s apart.
Source: `timeline` of the peers' benchmark (peerbench/bench_session.py)."""

STEP_S = (4.0, 20.0)
PAUSE_S = (20.0, 120.0)
CHAT_PAUSES_S = ((0.6, PAUSE_S), (0.8, (120.0, 280.0)), (0.95, (360.0, 2400.0)))
"""Up to these shares of the pauses."""
LONG_PAUSE_S = (7200.0, 36_000.0)


def schedule(recording: Recording, gap: Gap) -> list[tuple[float, ...]]:
    """Return, for each exchange, when each of its assistant messages is asked for.

    Returns:
        Seconds on a clock of the conversation's own, never falling. The same recording has the
        same times in every replay.
    """
    clock = _Clock(gap, random.Random(recording.name))  # noqa: S311 - made-up pauses, no secret
    return [tuple(clock.times(exchange)) for exchange in recording.exchanges]


class _Clock:
    def __init__(self, gap: Gap, chance: random.Random) -> None:
        self._gap = gap
        self._chance = chance
        self._now_s = 0.0

    def times(self, exchange: Exchange) -> Iterator[float]:
        """Yield the times of an exchange's answers."""
        answers = sum(step["role"] == "assistant" for step in exchange.steps)
        if self._gap == "recorded" and exchange.asked_at:
            for at in exchange.asked_at:
                self._now_s = max(self._now_s, at)
                yield self._now_s
            return
        for number in range(answers):
            self._now_s += self._step_s() if number else self._pause_s()
            yield self._now_s

    def _step_s(self) -> float:
        return 0.0 if self._gap == "none" else self._chance.uniform(*STEP_S)

    def _pause_s(self) -> float:
        if self._gap == "none":
            return 0.0
        if self._gap != "chat":
            return self._chance.uniform(*PAUSE_S)
        place = self._chance.random()
        limits = next((limits for share, limits in CHAT_PAUSES_S if place < share), LONG_PAUSE_S)
        return self._chance.uniform(*limits)
