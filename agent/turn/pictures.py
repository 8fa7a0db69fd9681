"""Pictures on their way to a model: a stored message has a handle, a request has the bytes.

agent/turn/loop.py puts the bytes in just before a call, so transcripts, token counts and the watch
over the prefix work on the handle. A picture that cannot be shown becomes a label; the text next to
it names it. So does a picture that a provider refuses: every later request would be refused too.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from agent.messages import ChatMessage, handle_in, pictures_in
from agent.models.base import ChatModel

ImageLoader = Callable[[str, int], Awaitable[str | None]]
"""Returns the data URL of a picture of this conversation, or None if it has no such picture."""

MAX_IMAGES = 20
"""Source: Anthropic's vision guide: beyond 20 a request's pictures must be smaller."""
LEAP = 10
"""So many leave at a time, since each time the prefix moves and its cache is lost."""
MAX_REQUEST_CHARS = 20_000_000
"""Of all pictures of a request. Source: Anthropic's API takes 32 MB altogether."""
REMEMBERED = 4096
"""Most pictures that are known to be taken by a model."""
REFUSED_FOR_S = 600.0
"""A refused picture is left out so long; then it is tried again, since it may be innocent."""
UNSEEN = {"type": "text", "text": "[image: it cannot be looked at here]"}


def with_pictures(messages: Sequence[ChatMessage], shown: Mapping[int, str]) -> list[ChatMessage]:
    """Put bytes in place of handles, and labels in place of pictures that are not shown.

    Messages without pictures come back as the same objects; none is changed.
    """
    return [_filled(each, shown) if pictures_in([each]) else each for each in messages]


class Images:
    """Knows which pictures each model takes; shared by all turns. Without `load` all are labels."""

    def __init__(
        self, load: ImageLoader | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without knowledge of any picture."""
        self.load = load
        self._now = now
        self._taken: set[tuple[str, int]] = set()
        self._refused: dict[tuple[str, int], float] = {}
        self._newest: dict[tuple[str, str], tuple[frozenset[int], frozenset[int]]] = {}

    async def shown(
        self,
        inside: Sequence[int],
        model: ChatModel,
        conversation: str,
        left_out: Collection[int] = (),
    ) -> dict[int, str]:
        """Return the data URLs of the pictures that a request shows, oldest first, by id.

        They are the newest ones of those `inside` the view, as many as a request may have, without
        those that the model has refused lately. They leave in leaps, so that a request mostly
        begins like the one before.
        """
        # A model that cannot see refuses the whole request, not the picture alone.
        if not model.facts.vision:
            return {}
        gone = -(-max(0, len(inside) - MAX_IMAGES) // LEAP) * LEAP
        now = self._now()
        refused = {
            key[1] for key, until in self._refused.items() if key[0] == model.label and until > now
        }
        hidden = refused.union(left_out)
        return await self._loaded([it for it in inside[gone:] if it not in hidden], conversation)

    def suspects(self, shown: Iterable[int], model: ChatModel) -> list[list[int]]:
        """Return the pictures to leave out of a refused request, one list for each attempt.

        They are those that the model has never taken: the newer half, then the older one, then all.
        """
        new = [each for each in shown if (model.label, each) not in self._taken]
        middle = len(new) // 2
        halves = [new[middle:], new[:middle]] if middle else []
        return [*halves, new] if new else []

    def have_changed(
        self, shown: Collection[int], model: ChatModel, conversation: str, inside: Sequence[int]
    ) -> bool:
        """Whether old pictures of a view have left, or are back, since the model's newest answer.

        Its thoughts are bound to them, as to all that precedes them.
        """
        before = self._newest.get((model.label, conversation))
        if before is None:
            return False
        shown_then, inside_then = before
        return shown_then.intersection(inside) != inside_then.intersection(shown)

    def note_taken(
        self, shown: Collection[int], model: ChatModel, conversation: str, inside: Sequence[int]
    ) -> None:
        """Note that the model has answered a request that showed these pictures of the view."""
        if max(len(self._taken), len(self._newest)) >= REMEMBERED:
            self._taken.clear()
            self._newest.clear()
        self._taken.update((model.label, each) for each in shown)
        if inside:
            self._newest[model.label, conversation] = frozenset(shown), frozenset(inside)

    def note_refused(self, left_out: Iterable[int], model: ChatModel) -> None:
        """Note that a request was answered only without these pictures."""
        now = self._now()
        lately = {key: until for key, until in self._refused.items() if until > now}
        self._refused = lately | {(model.label, each): now + REFUSED_FOR_S for each in left_out}

    async def _loaded(self, wanted: Iterable[int], conversation: str) -> dict[int, str]:
        """Return the data URLs of the newest pictures that fit; they leave in leaps, too."""
        shown: deque[tuple[int, str]] = deque()
        chars = 0
        for attachment in wanted:
            url = await self.load(conversation, attachment) if self.load else None
            if url is None:
                continue
            shown.append((attachment, url))
            chars += len(url)
            if chars > MAX_REQUEST_CHARS:
                while chars > MAX_REQUEST_CHARS // 2 and len(shown) > 1:
                    chars -= len(shown.popleft()[1])
        return dict(shown)


def _filled(message: ChatMessage, shown: Mapping[int, str]) -> ChatMessage:
    parts: list[Any] = [*(message["content"] or ())]
    for n, part in enumerate(parts):
        attachment = handle_in(part)
        if attachment is not None:
            url = shown.get(attachment)
            parts[n] = {"type": "image_url", "image_url": {"url": url}} if url else UNSEEN
    return cast("ChatMessage", {**message, "content": parts})
