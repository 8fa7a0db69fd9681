"""Rate limits of the Discord double: buckets per bot, route and channel, and their headers."""

import time
from dataclasses import dataclass

Window = tuple[int, float]

LIMITS: dict[str, Window] = {
    "send": (5, 5.0),
    "edit": (5, 5.0),
    "delete": (5, 1.0),
    "typing": (5, 5.0),
    "react": (1, 0.25),
    "thread": (50, 300.0),
}
"""Requests and seconds of a window; Discord publishes no figures, these are what it answers."""


@dataclass
class _Bucket:
    """A fixed window: at `until` the whole budget is there again."""

    until: float = 0.0
    taken: int = 0


class Limits:
    """Counts requests; a route without a figure is unlimited and has no headers."""

    def __init__(self, windows: dict[str, Window]) -> None:
        self.windows = windows
        self._buckets: dict[tuple[int, str, int], _Bucket] = {}

    def take(self, bot: int, route: str, channel: int) -> tuple[bool, dict[str, str]]:
        """Charge a request; return whether there was room, and the headers of the answer."""
        if route not in self.windows:
            return True, {}
        limit, window_s = self.windows[route]
        bucket = self._buckets.setdefault((bot, route, channel), _Bucket())
        now = time.monotonic()
        if now >= bucket.until:
            bucket.until, bucket.taken = now + window_s, 0
        room = bucket.taken < limit
        bucket.taken += room
        return room, {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(limit - bucket.taken),
            "X-RateLimit-Reset": f"{time.time() + bucket.until - now:.3f}",
            "X-RateLimit-Reset-After": f"{bucket.until - now:.3f}",
            "X-RateLimit-Bucket": f"loopback{route}",
        }
