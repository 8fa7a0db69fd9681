"""Pictures on their way to a model."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import BadRequest
from agent.messages import ChatMessage, user_message
from agent.models import images
from agent.models.facts import ModelFacts
from agent.models.images import LEAP, MAX_IMAGES, UNSEEN, Images, handle_in, image_part
from agent.models.scripted import ScriptedModel

SEEING = ScriptedModel(())
BLIND = ScriptedModel((), facts=ModelFacts("blind", vision=False))


class Shelf:
    """Loads data URLs: of conversation c1 those that it has; notes what was asked for."""

    def __init__(self, chars: int = 30, missing: Sequence[int] = ()) -> None:
        self.asked: list[int] = []
        self._chars = chars
        self._missing = missing

    async def __call__(self, conversation: str, attachment: int) -> str | None:
        self.asked.append(attachment)
        if conversation != "c1" or attachment in self._missing:
            return None
        return f"data:image/png;base64,{attachment}".ljust(self._chars, "=")


def message(*attachments: int, text: str = "see") -> ChatMessage:
    return user_message([{"type": "text", "text": text}, *map(image_part, attachments)])


def view(count: int) -> list[ChatMessage]:
    """Return messages with one picture each, numbered from 1."""
    return [message(n) for n in range(1, count + 1)]


async def shown(
    messages: list[ChatMessage], shelf: Shelf, model: ScriptedModel = SEEING, chat: str = "c1"
) -> list[Any]:
    """Return the number of each picture that is sent, None for a label."""
    sent = await Images(shelf).put_into(messages, model, chat)
    return [_number(part) for each in sent for part in each["content"][1:]]  # type: ignore[index]


def _number(part: dict[str, Any]) -> int | None:
    if part == UNSEEN:
        return None
    return int(part["image_url"]["url"].partition(",")[2].rstrip("="))


def test_a_part_is_known_by_its_handle() -> None:
    """Pictures that stand there with their bytes, and texts, are none of ours."""
    assert handle_in(image_part(12)) == 12
    for url in ("data:image/png;base64,", "https://x/attachment:1", "attachment:x"):
        assert handle_in({"type": "image_url", "image_url": {"url": url}}) is None
    assert handle_in({"type": "text", "text": "attachment:1"}) is None
    assert handle_in("attachment:1") is None


async def test_messages_without_pictures_come_back_themselves() -> None:
    """The very list, at the cost of a look."""
    messages = [user_message("attachment:1"), user_message([{"type": "text", "text": "x"}])]
    shelf = Shelf()
    assert await Images(shelf).put_into(messages, SEEING, "c1") is messages
    assert shelf.asked == []


async def test_the_bytes_take_the_place_of_the_handle() -> None:
    """In a new message; the stored one and all others stay as they are."""
    messages = [user_message("hello"), message(7)]
    sent = await Images(Shelf()).put_into(messages, SEEING, "c1")
    assert sent[0] is messages[0]
    assert await shown(messages[1:], Shelf()) == [7]
    assert messages[1] == message(7)


@pytest.mark.parametrize(
    ("shelf", "model", "chat"),
    [(Shelf(missing=[1]), SEEING, "c1"), (Shelf(), SEEING, "c2"), (Shelf(), BLIND, "c1")],
)
async def test_what_cannot_be_shown_is_a_label(
    shelf: Shelf, model: ScriptedModel, chat: str
) -> None:
    """It is gone, of another conversation, or the model cannot see."""
    assert await shown(view(1), shelf, model, chat) == [None]


async def test_without_a_loader_all_are_labels() -> None:
    """As in a replay, which has no database."""
    [sent] = await Images().put_into(view(1), SEEING, "c1")
    assert sent["content"] == [{"type": "text", "text": "see"}, UNSEEN]


async def test_the_same_message_comes_back_as_the_same_object() -> None:
    """What is built for the wire is remembered by that; nothing is loaded again."""
    shelf, messages = Shelf(), view(2)
    found = Images(shelf)
    first = await found.put_into(messages, SEEING, "c1")
    again = await found.put_into([*messages, message(3)], SEEING, "c1")
    assert all(one is other for one, other in zip(first, again, strict=False))
    assert shelf.asked == [1, 2, 3]


async def test_the_memory_of_pictures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit all are forgotten, and loaded again where they are asked for."""
    monkeypatch.setattr(images, "MEMO_CHARS", 70)
    shelf, messages = Shelf(chars=30), view(3)
    found = Images(shelf)
    for _ in range(2):
        assert len(await found.put_into(messages, SEEING, "c1")) == 3
    assert shelf.asked == [1, 2, 3, 1, 2, 3]


async def test_as_many_as_a_request_may_have_are_shown() -> None:
    """The newest ones."""
    assert await shown(view(MAX_IMAGES), Shelf()) == list(range(1, MAX_IMAGES + 1))
    dropped = [None] * LEAP
    assert await shown(view(MAX_IMAGES + 1), Shelf()) == [*dropped, *range(11, MAX_IMAGES + 2)]


async def test_older_ones_leave_in_leaps() -> None:
    """A request that begins otherwise than the one before has to be read anew."""
    starts = [(await shown(view(n), Shelf())).count(None) for n in range(1, 45)]
    assert starts == sorted(starts)
    assert len(set(starts)) == 4
    assert all(0 < n - gone <= MAX_IMAGES for n, gone in enumerate(starts, start=1))


async def test_large_pictures_leave_in_leaps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to half of what a request may have; the newest one always stays."""
    monkeypatch.setattr(images, "MAX_REQUEST_CHARS", 100)
    assert await shown(view(3), Shelf(chars=30)) == [1, 2, 3]
    assert await shown(view(4), Shelf(chars=30)) == [None, None, None, 4]
    assert await shown(view(5), Shelf(chars=30)) == [None, None, None, 4, 5]
    assert await shown(view(2), Shelf(chars=300)) == [None, 2]


@given(st.lists(st.integers(0, 3), max_size=12))
async def test_every_picture_is_shown_or_labelled_in_its_place(counts: list[int]) -> None:
    """Texts and order stay, whatever stands where."""
    numbers = iter(range(1, 100))
    messages = [message(*(next(numbers) for _ in range(count))) for count in counts]
    expected = [n for each in messages for n in map(handle_in, each["content"][1:])]  # type: ignore[index]
    found = await shown(messages, Shelf())
    pairs = zip(found, expected, strict=True)
    assert all(one in {None, other} for one, other in pairs)
    assert len(found) == sum(counts)


async def test_a_refused_picture_is_left_out_from_then_on() -> None:
    """For that model; those that it has taken before are beyond suspicion."""
    found = Images(Shelf())
    found.note_taken(view(1), SEEING)
    suspects = found.suspects(view(2), SEEING)
    assert suspects == [2]
    with found.without(suspects, SEEING):
        pass
    sent = await found.put_into(view(2), SEEING, "c1")
    assert [UNSEEN in each["content"] for each in sent] == [False, True]  # type: ignore[operator]
    assert found.suspects(view(2), SEEING) == []
    assert found.suspects(view(2), ScriptedModel((), name="other")) == [1, 2]


async def test_pictures_were_not_the_reason_where_the_rest_is_refused_as_well() -> None:
    """They are shown again, to whatever mends the request."""
    found = Images(Shelf())
    with pytest.raises(BadRequest), found.without([1], SEEING):
        raise BadRequest("still malformed")
    assert found.suspects(view(1), SEEING) == [1]


def test_what_is_known_of_pictures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway runs for months."""
    monkeypatch.setattr(images, "REMEMBERED", 3)
    found = Images()
    for n in range(10):
        found.note_taken([message(n)], SEEING)
    assert len(found._verdicts) <= 3
