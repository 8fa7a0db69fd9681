"""Who is looking at which chat, and what is shown there that is not in the history yet.

Nothing is queued for a listener: it is only woken, and reads what it missed from the history. A
slow one therefore costs nothing and blocks nobody.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """One state of a growing answer; a new state is a new object."""

    text: str


class Listener:
    """One open event stream.

    Attributes:
        stale: The history may hold something new.
        working: A sign of work is to be shown, once.
    """

    def __init__(self) -> None:
        self.stale = True
        self.working = False
        self.woken = asyncio.Event()


@dataclass(slots=True)
class _Chat:
    preview: Preview | None = None
    listeners: set[Listener] = field(default_factory=set)


class Hub:
    """The listeners of all chats; every call returns at once."""

    def __init__(self) -> None:
        self._chats: dict[str, _Chat] = {}
        self.closed = False

    @contextmanager
    def listen(self, chat: str) -> Iterator[Listener]:
        """Register a listener for as long as the block runs; it starts out stale."""
        listener = Listener()
        self._chats.setdefault(chat, _Chat()).listeners.add(listener)
        try:
            yield listener
        finally:
            self._chats[chat].listeners.discard(listener)
            self._forget_if_unused(chat)

    def preview(self, chat: str) -> Preview | None:
        """Return the newest state of the answer that is growing in the chat."""
        found = self._chats.get(chat)
        return found.preview if found else None

    def show(self, chat: str, text: str) -> None:
        """Show a growing answer, to those who join later as well; an empty text shows none."""
        self._chats.setdefault(chat, _Chat()).preview = Preview(text) if text else None
        self._wake(chat)
        self._forget_if_unused(chat)

    def show_working(self, chat: str) -> None:
        """Show those who listen now that an answer is being made."""
        for listener in self._listeners(chat):
            listener.working = True
        self._wake(chat)

    def refresh(self, chat: str) -> None:
        """Have the listeners read the history again."""
        for listener in self._listeners(chat):
            listener.stale = True
        self._wake(chat)

    def close(self) -> None:
        """Let every stream end."""
        self.closed = True
        for chat in self._chats:
            self._wake(chat)

    def _wake(self, chat: str) -> None:
        for listener in self._listeners(chat):
            listener.woken.set()

    def _listeners(self, chat: str) -> set[Listener]:
        found = self._chats.get(chat)
        return found.listeners if found else set()

    def _forget_if_unused(self, chat: str) -> None:
        state = self._chats[chat]
        if not state.listeners and state.preview is None:
            del self._chats[chat]
