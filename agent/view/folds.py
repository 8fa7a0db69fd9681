"""Folds over the messages of a view: each goes on where it stopped, so a turn costs what is new.

A view mostly grows at its end alone. What is costly to work out of all of its messages (its size,
the digests of what goes out, whether they are in order) is a fold: from what it is for the first
messages follows what it is for one more. A fold starts anew where the messages before are not what
they were, so whatever happened to a view, it is as if it had been worked out from nothing.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from agent.messages import ChatMessage

S = TypeVar("S")

MOST_FOLDS = 16
"""Of more, as where models or tools change often, the oldest are let go."""


@dataclass(frozen=True, slots=True)
class Fold(Generic[S]):
    """How something is worked out of messages.

    Attributes:
        key: Tells it from all others over the same messages.
        step: Is given what it is for the messages before a place, all messages and that place;
            returns what it is for all of them. Changes nothing of what it is given.
    """

    key: Hashable
    start: S
    step: Callable[[S, Sequence[ChatMessage], int], S]

    def of(self, messages: Sequence[ChatMessage], folds: "Folds | None" = None) -> S:
        """Return the value for messages; `folds` is what is known of them already, or None."""
        return self.step(self.start, messages, 0) if folds is None else folds.over(messages, self)


Known = dict[Hashable, Fold[Any]]
"""Folds by their keys."""


class _Seen(NamedTuple):
    """A list as it was when it was looked at, and the one before it, which it begins with."""

    source: Sequence[ChatMessage]
    shown: tuple[ChatMessage, ...]
    before: tuple[ChatMessage, ...]


class Folds:
    """What is known of the messages of one view; for one thread at a time.

    Messages are never changed in place, and lists of them only grow.
    """

    def __init__(self, asked: Known | None = None) -> None:
        """Know nothing yet; `asked` are the folds that `advance` works out, and learns about."""
        self._asked = {} if asked is None else asked
        self._seen = _Seen((), (), ())
        self._states: dict[Hashable, tuple[tuple[ChatMessage, ...], Any]] = {}

    def copy(self) -> "Folds":
        """Return what is known now; neither changes with the other, but for what is asked."""
        copied = Folds(self._asked)
        copied._seen = self._seen
        copied._states = dict(self._states)
        return copied

    def advance(self, messages: Sequence[ChatMessage]) -> None:
        """Work out for these messages what was asked of any others."""
        shown = self._shown(messages)
        # Views on other threads learn of folds meanwhile.
        for fold in list(self._asked.values()):
            self._at(shown, fold)

    def over(self, messages: Sequence[ChatMessage], fold: Fold[S]) -> S:
        """Return what a fold is for these messages; costs as much as those that are new to it."""
        state = self._at(self._shown(messages), fold)
        if fold.key not in self._asked:
            self._take_note(fold)
        return state

    def _at(self, shown: tuple[ChatMessage, ...], fold: Fold[S]) -> S:
        before, known = self._states.get(fold.key, ((), fold.start))
        state: S = known
        if before is not shown:
            if before is not self._seen.before and before != shown[: len(before)]:
                before, state = (), fold.start
            state = fold.step(state, shown, len(before))
            self._states[fold.key] = shown, state
        return state

    def _take_note(self, fold: Fold[Any]) -> None:
        for key in list(self._asked)[: 1 - MOST_FOLDS]:
            self._asked.pop(key, None)
            self._states.pop(key, None)
        self._asked[fold.key] = fold

    def _shown(self, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
        """Return the messages, as the same object for as long as none is added."""
        seen = self._seen
        if messages is not seen.source or len(messages) != len(seen.shown):
            shown, before = tuple(messages), seen.shown
            # Nearly all are the same objects: comparing them is a look at each pointer.
            if shown[: len(before)] != before:
                self._states.clear()
                before = ()
            elif len(shown) == len(before):
                # What is known of the one holds for the other.
                shown = before
            self._seen = seen = _Seen(messages, shown, before)
        return seen.shown
