"""Pictures on their way to a model: a stored message holds a handle, a request holds the bytes.

The bytes are put in just before a call (agent/asking.py, agent/warm_summary.py), so transcripts,
token counts and the watch over the prefix all work on the handle. What cannot be shown becomes a
label; the text beside it names the picture.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from agent.errors import BadRequest
from agent.messages import ChatMessage
from agent.models.base import ChatModel

ImageLoader = Callable[[str, int], Awaitable[str | None]]
"""Returns the data URL of a picture of this conversation; None if it has no such picture."""

MAX_IMAGES = 20
"""Source: Anthropic's vision guide: beyond 20 a request's pictures must be smaller."""
LEAP = 10
"""How many of them leave at a time: each time the request begins otherwise than the one before."""
MAX_REQUEST_CHARS = 20_000_000
"""Most that the pictures of a request take. Source: Anthropic's API takes 32 MB altogether."""
MEMO_CHARS = 32_000_000
"""Beyond that all that was loaded is forgotten."""
REMEMBERED = 4096
"""Pictures of which is known whether a model takes them."""
UNSEEN = {"type": "text", "text": "[image: it cannot be looked at here]"}

_HANDLE = re.compile(r"attachment:(\d{1,18})")

Part = dict[str, Any]


class Place(NamedTuple):
    """Where a picture stands: the message, the part of its content; and which it is."""

    message: int
    part: int
    attachment: int


def image_part(attachment_id: int) -> Part:
    """Return the content part that stands for a stored picture."""
    return {"type": "image_url", "image_url": {"url": f"attachment:{attachment_id}"}}


def handle_in(part: object) -> int | None:
    """Return the id of the picture that a content part stands for; None for any other part."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            found = _HANDLE.fullmatch(url)
            return int(found[1]) if found else None
    return None


class Images:
    """Puts pictures into requests; shared by all turns.

    Attributes:
        load: Where they come from; None for nowhere: labels take their place.
    """

    def __init__(self, load: ImageLoader | None = None) -> None:
        """Begin with nothing known about any picture."""
        self.load = load
        self._urls: dict[tuple[str, int], str] = {}
        self._url_chars = 0
        self._filled: dict[int, tuple[ChatMessage, list[str | None], ChatMessage]] = {}
        self._verdicts: dict[tuple[str, int], bool] = {}

    async def put_into(
        self, messages: list[ChatMessage], model: ChatModel, conversation: str
    ) -> list[ChatMessage]:
        """Return the messages with bytes in place of handles; themselves where there are none.

        The newest pictures are shown, as many as a request may have. Which these are changes in
        leaps, so that a request mostly begins as the one before.

        Args:
            messages: Never changed. One without a picture comes back as it is, one with pictures
                as the same object again and again, as long as little else is asked for.
            model: Who is asked; gets no picture where it cannot see, or has refused it.
            conversation: Whose pictures may be loaded.
        """
        places = _places(messages)
        if not places:
            return messages
        seeable = [place for place in _newest(places) if self._may_see(model, place.attachment)]
        urls = await self._loaded(seeable, conversation)
        filled = list(messages)
        for n in {place.message: None for place in places}:
            mine = [place for place in places if place.message == n]
            filled[n] = self._with(messages[n], mine, [urls.get(place) for place in mine])
        return filled

    def suspects(self, messages: Sequence[ChatMessage], model: ChatModel) -> list[int]:
        """Return the pictures in a refused request that this model has never taken before."""
        shown = {place.attachment: None for place in _newest(_places(messages))}
        return [each for each in shown if (model.label, each) not in self._verdicts]

    def note_taken(self, messages: Sequence[ChatMessage], model: ChatModel) -> None:
        """Take note that a request was answered."""
        self._note(self.suspects(messages, model), model, taken=True)

    @contextmanager
    def without(self, suspects: Sequence[int], model: ChatModel) -> Iterator[None]:
        """Leave pictures out; for good, unless the request is refused without them as well."""
        self._note(suspects, model, taken=False)
        try:
            yield
        except BadRequest:
            for each in suspects:
                self._verdicts.pop((model.label, each), None)
            raise

    def _note(self, attachments: Iterable[int], model: ChatModel, *, taken: bool) -> None:
        if len(self._verdicts) >= REMEMBERED:
            self._verdicts.clear()
        self._verdicts.update({(model.label, each): taken for each in attachments})

    def _may_see(self, model: ChatModel, attachment: int) -> bool:
        return model.facts.vision and self._verdicts.get((model.label, attachment), True)

    async def _loaded(self, places: Iterable[Place], conversation: str) -> dict[Place, str]:
        """Return the data URLs of the newest pictures that fit; they leave in leaps, too."""
        shown: deque[tuple[Place, str]] = deque()
        chars = 0
        for place in places:
            url = await self._url(conversation, place.attachment)
            if url is None:
                continue
            shown.append((place, url))
            chars += len(url)
            if chars > MAX_REQUEST_CHARS:
                while chars > MAX_REQUEST_CHARS // 2 and len(shown) > 1:
                    chars -= len(shown.popleft()[1])
        return dict(shown)

    async def _url(self, conversation: str, attachment: int) -> str | None:
        known = self._urls.get((conversation, attachment))
        if known is not None or self.load is None:
            return known
        url = await self.load(conversation, attachment)
        if url is not None:
            self._url_chars += len(url)
            if self._url_chars > MEMO_CHARS:
                self._urls.clear()
                self._filled.clear()
                self._url_chars = len(url)
            self._urls[conversation, attachment] = url
        return url

    def _with(
        self, message: ChatMessage, places: Sequence[Place], urls: list[str | None]
    ) -> ChatMessage:
        known = self._filled.get(id(message))
        if known is not None and known[1] == urls:
            return known[2]
        content = list(cast("list[Part]", message["content"]))
        for place, url in zip(places, urls, strict=True):
            shown = {"type": "image_url", "image_url": {"url": url}}
            content[place.part] = UNSEEN if url is None else shown
        filled = cast("ChatMessage", {**message, "content": content})
        # The message is kept with it: its id is its own only as long as it lives.
        self._filled[id(message)] = message, urls, filled
        return filled


def _places(messages: Iterable[ChatMessage]) -> list[Place]:
    return [
        Place(n, part_n, attachment)
        for n, message in enumerate(messages)
        if isinstance(content := message.get("content"), list)
        for part_n, part in enumerate(content)
        if (attachment := handle_in(part)) is not None
    ]


def _newest(places: Sequence[Place]) -> Sequence[Place]:
    """Return the places that may be shown by their number: some of them leave at a time."""
    surplus = len(places) - MAX_IMAGES
    return places if surplus <= 0 else places[-(-surplus // LEAP) * LEAP :]
