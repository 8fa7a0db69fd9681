"""Who listens to what is logged: an event of the log is also news for metrics and alerts.

A listener hears an event before its line is made, also where `logging.level` leaves the line out;
of `debug` events it hears those that are logged. It is called where the event happens, often on the
path of a message: it takes note, returns at once, and neither raises nor logs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from structlog.typing import EventDict

Listener = Callable[[Mapping[str, Any]], None]
"""Takes the fields of a line: `event`, `level`, what was bound, and its own."""
End = Callable[[], None]
"""Ends what was begun."""

EVERYTHING = ""
"""Instead of a name: any event."""


class Taps:
    """The listeners of this process, as structlog's configuration is the process's."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)

    def listen(self, names: Iterable[str], listener: Listener) -> End:
        """Have a listener hear the events of these names; returns a function that ends it.

        Args:
            names: Of events, or `EVERYTHING`.
        """
        heard = tuple(dict.fromkeys(names))
        for name in heard:
            self._listeners[name].append(listener)

        def end() -> None:
            for name in heard:
                self._listeners[name].remove(listener)

        return end

    def tell(self, event: Mapping[str, Any]) -> None:
        """Tell who listens to it of an event."""
        for name in (event["event"], EVERYTHING):
            for listener in self._listeners.get(name, ()):
                listener(event)


TAPS = Taps()


class Tapped:
    """A processor of structlog: tells who listens, then drops what is below a level."""

    def __init__(self, level: int, taps: Taps = TAPS) -> None:
        self._taps = taps
        self.write_from(level)

    def write_from(self, level: int) -> None:
        """Have events of this level and above be written, from now on."""
        numbers = structlog.processors.NAME_TO_LEVEL
        self._written = frozenset(name for name, number in numbers.items() if number >= level)

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """Pass an event on.

        Raises:
            DropEvent: It is below the level that is written.
        """
        self._taps.tell(event)
        if event["level"] not in self._written:
            raise structlog.DropEvent
        return event
