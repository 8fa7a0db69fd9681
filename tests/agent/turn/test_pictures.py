"""Pictures on their way to a model."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, handle_in, image_part, pictures_in, user_message
from agent.models.catalog import ModelFacts
from agent.turn import pictures as module
from agent.turn.pictures import (
    LEAP,
    MAX_IMAGES,
    REFUSED_FOR_S,
    UNSEEN,
    Images,
    with_pictures,
)
from tests.support.scripted_model import ScriptedModel

SEEING = ScriptedModel(())
BLIND = ScriptedModel((), facts=ModelFacts("blind", vision=False))


class Message(dict[str, Any]):
    """A message whose end can be seen."""


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
    sent = with_pictures(messages, await Images(shelf).shown(pictures_in(messages), model, chat))
    return [_number(part) for each in sent for part in each["content"][1:]]  # type: ignore[index,arg-type]


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
    """The very objects; nothing is loaded."""
    messages = [user_message("attachment:1"), user_message([{"type": "text", "text": "x"}])]
    shelf = Shelf()
    pictures = await Images(shelf).shown(pictures_in(messages), SEEING, "c1")
    assert [*map(id, with_pictures(messages, pictures))] == [*map(id, messages)]
    assert shelf.asked == []


async def test_the_bytes_take_the_place_of_the_handle() -> None:
    """In a new message; the stored one and all others stay as they are."""
    messages = [user_message("hello"), message(7)]
    sent = with_pictures(messages, await Images(Shelf()).shown(pictures_in(messages), SEEING, "c1"))
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
    assert await Images().shown(pictures_in(view(1)), SEEING, "c1") == {}
    [sent] = with_pictures(view(1), {})
    assert sent["content"] == [{"type": "text", "text": "see"}, UNSEEN]


async def test_no_message_outlives_its_request() -> None:
    """Every turn reads its messages anew: what kept one would keep them all."""
    found = Images(Shelf())
    messages = [Message(message(7))]
    alive = weakref.ref(messages[0])
    with_pictures(messages, await found.shown(pictures_in(messages), SEEING, "c1"))  # type: ignore[arg-type]
    messages.clear()
    assert alive() is None


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
    monkeypatch.setattr(module, "MAX_REQUEST_CHARS", 100)
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


@pytest.mark.parametrize(
    ("count", "tries"),
    [(0, []), (1, [[1]]), (2, [[2], [1], [1, 2]]), (3, [[2, 3], [1], [1, 2, 3]])],
)
def test_new_pictures_are_suspected_in_halves(count: int, tries: list[list[int]]) -> None:
    """Never more than three attempts; that all are out comes last."""
    assert Images().suspects(range(1, count + 1), SEEING) == tries


def test_what_a_model_has_taken_is_beyond_suspicion() -> None:
    """That model only: another one may read less."""
    found = Images()
    found.note_taken([1, 2], SEEING, "c", [1, 2])
    assert found.suspects([1, 2], SEEING) == []
    assert found.suspects([1, 2, 3], SEEING) == [[3]]
    assert found.suspects([1], ScriptedModel((), name="other")) == [[1]]


@pytest.mark.parametrize(
    ("now", "others", "changed"),
    [
        ([1, 3], [1, 2, 3], False),
        ([1, 3, 4], [1, 2, 3, 4], False),
        ([0, 1, 3], [0, 1, 2, 3], False),
        ([3], [2, 3], False),
        ([3], [1, 2, 3], True),
        ([], [1, 2, 3], True),
        ([1, 2, 3], [1, 2, 3], True),
        ([1, 3, 5], [1, 2, 3, 5], True),
    ],
    ids=[
        *("the same", "a new one", "one that was taken long ago", "one was compacted away"),
        *("one has left", "all have left", "one is back", "the newest is back"),
    ],
)
def test_old_pictures_that_have_left_are_noticed(
    now: list[int], others: list[int], changed: bool
) -> None:
    """Since the newest answer of this model in this conversation; of others nothing is known."""
    found = Images()
    found.note_taken([1, 3], SEEING, "c", [1, 2, 3, 5])
    assert found.have_changed(now, SEEING, "c", others) is changed
    assert not found.have_changed(now, SEEING, "other", others)
    assert not found.have_changed(now, ScriptedModel((), name="other"), "c", others)


async def test_a_refused_picture_is_left_out_for_a_while() -> None:
    """By that model; then it has another chance."""
    clock = [1000.0]
    found = Images(Shelf(), now=lambda: clock[0])
    found.note_refused([2], SEEING)
    other = ScriptedModel((), name="other")
    assert list(await found.shown(pictures_in(view(3)), other, "c1")) == [1, 2, 3]
    for waited_s, shown_now in ((0.0, [1, 3]), (REFUSED_FOR_S, [1, 2, 3])):
        clock[0] = 1000.0 + waited_s
        assert list(await found.shown(pictures_in(view(3)), SEEING, "c1")) == shown_now


async def test_what_is_to_be_left_out_is_not_shown() -> None:
    """It keeps its place among those that a request may have."""
    pictures = await Images(Shelf()).shown(
        pictures_in(view(MAX_IMAGES)), SEEING, "c1", left_out=[2, 20]
    )
    assert list(pictures) == [1, *range(3, MAX_IMAGES)]


def test_what_is_known_of_pictures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway runs for months."""
    monkeypatch.setattr(module, "REMEMBERED", 3)
    clock = iter(range(0, 10_000, 300))
    found = Images(now=lambda: float(next(clock)))
    for n in range(10):
        found.note_taken([n], SEEING, f"c{n}", [n])
        found.note_refused([n], SEEING)
    assert len(found._taken) <= 3
    assert len(found._newest) <= 3
    assert len(found._refused) <= 2
