"""Pictures on their way to a model: a stored message has a handle, a request has the bytes.

agent/turn/loop.py puts the bytes in just before a call. So transcripts, token counts and
the watch over the prefix all work on the handle. What cannot be shown becomes a label; the text
beside it names the picture. A picture that a provider refuses becomes one as well: it stands in
every later request, and none of them would be answered.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from agent.messages import ChatMessage, handle_in, pictures_in
from agent.models.base import ChatModel

ImageLoader = Callable[[str, int], Awaitable[str | None]]
"""Returns the data URL of a picture of this conversation; None if it has no such picture."""

MAX_IMAGES = 20
"""Source: Anthropic's vision guide: beyond 20 a request's pictures must be smaller."""
LEAP = 10
"""How many of them leave at a time: each time the prefix moves, and its cache is lost."""
MAX_REQUEST_CHARS = 20_000_000
"""Most that the pictures of a request take. Source: Anthropic's API takes 32 MB altogether."""
REMEMBERED = 4096
"""Of so many pictures at most is known that a model takes them."""
REFUSED_FOR_S = 600.0
"""How long a refused picture is left out; then it is tried again, since it may be innocent."""
UNSEEN = {"type": "text", "text": "[image: it cannot be looked at here]"}


def with_pictures(messages: Sequence[ChatMessage], shown: Mapping[int, str]) -> list[ChatMessage]:
    """Return the messages with bytes in place of handles, labels for what is not shown.

    Messages without pictures come back as the same objects; none is changed.
    """
    return [_filled(each, shown) if pictures_in([each]) else each for each in messages]


class Images:
    """Knows what can be shown to whom; shared by all turns.

    Attributes:
        load: Where pictures come from; None for nowhere: labels take their place.
    """

    def __init__(
        self, load: ImageLoader | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing known about any picture."""
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
        """Return the data URLs of the pictures that a request is to show, oldest first, by id.

        These are the newest ones, as many as a request may have. Which these are changes in leaps,
        so that a request mostly begins as the one before.

        Args:
            inside: The pictures of the view, as `pictures_in` finds them.
            model: Who is asked; gets no picture where it cannot see, or has refused it lately.
        """
        # A model that cannot see refuses the whole request, not the picture alone.
        if not model.facts.vision:
            return {}
        # In leaps: each picture that leaves moves the prefix, and the cache behind it is lost.
        gone = -(-max(0, len(inside) - MAX_IMAGES) // LEAP) * LEAP
        now = self._now()
        refused = {
            key[1] for key, until in self._refused.items() if key[0] == model.label and until > now
        }
        hidden = refused.union(left_out)
        return await self._loaded([it for it in inside[gone:] if it not in hidden], conversation)

    def suspects(self, shown: Iterable[int], model: ChatModel) -> list[list[int]]:
        """Return what to leave out of a refused request, one attempt after the other.

        It is what the model has never taken before: the newer half, then the older one, then all.
        Of two pictures the good one is shown in the end; of more, those that stood with it may be
        out for a while.
        """
        # What this model has taken before cannot be why it refuses now.
        new = [each for each in shown if (model.label, each) not in self._taken]
        middle = len(new) // 2
        halves = [new[middle:], new[:middle]] if middle else []
        return [*halves, new] if new else []

    def have_changed(
        self,
        shown: Collection[int],
        model: ChatModel,
        conversation: str,
        inside: Sequence[int],
    ) -> bool:
        """Whether old pictures of a view have left, or are back, since the model's newest answer.

        What it thought is bound to them, as to all that stands before it.
        """
        before = self._newest.get((model.label, conversation))
        if before is None:
            return False
        shown_then, inside_then = before
        return shown_then.intersection(inside) != inside_then.intersection(shown)

    def note_taken(
        self,
        shown: Collection[int],
        model: ChatModel,
        conversation: str,
        inside: Sequence[int],
    ) -> None:
        """Take note that a request with these pictures was answered: they are beyond suspicion.

        Args:
            shown: Of those in its view.
            model: Who has answered.
            conversation: As the others, what `have_changed` is asked with next.
            inside: The pictures of the view.
        """
        if max(len(self._taken), len(self._newest)) >= REMEMBERED:
            self._taken.clear()
            self._newest.clear()
        self._taken.update((model.label, each) for each in shown)
        if inside:
            self._newest[model.label, conversation] = frozenset(shown), frozenset(inside)

    def note_refused(self, left_out: Iterable[int], model: ChatModel) -> None:
        """Take note that a request was answered only without these pictures."""
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
