"""Pictures in a running gateway: what stays of them in long chats, and what a refusal leads to."""

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapters.messages import Attachment
from agent.errors import BadRequest
from agent.models.base import ModelRequest
from agent.models.factory import build_models
from agent.turn.request import LEAP, MAX_IMAGES, UNSEEN
from agent.view.edits import IMAGE
from gateway.storage.conversation.message_content import look_at
from tests.support.faulty_models import KEYS, FaultyAnthropic, settings_for
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.long_chats import LongChatModel, compactions
from tests.support.model_server import Reply
from tests.support.pictures import png
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import Step

LABELS = {UNSEEN["text"]: "unseen", IMAGE: "pruned"}
BAD = 66


def platform() -> RecordingAdapter:
    """Return one that has pictures; their widths tell them apart."""
    adapter = RecordingAdapter()
    adapter.files = {str(width): png(width) for width in range(1, 100)}
    return adapter


async def look(chat: Running, *widths: int) -> str:
    """Ask about pictures of these widths."""
    files = [Attachment(name=f"{n}.png", kind="image", ref=str(n)) for n in widths]
    return await chat.ask("look " + "at what is around it " * 20, attachments=tuple(files))


def seen(request: ModelRequest) -> list[int | str]:
    """Return what stands in the place of each picture: its width, or which label."""
    contents = (message.get("content") for message in request.messages)
    lists = [content for content in contents if isinstance(content, list)]
    found = [_place(part) for content in lists for part in content]
    return [each for each in found if each]


def _place(part: dict[str, Any]) -> int | str | None:
    if part["type"] == "text":
        return LABELS.get(part["text"])
    picture = look_at(base64.b64decode(part["image_url"]["url"].partition(",")[2]))
    assert picture is not None
    return picture.width


def at_bad_ones(request: ModelRequest) -> Step:
    """Refuse what has the bad picture in it, as a provider does that cannot decode it."""
    found = seen(request)
    return BadRequest("Could not process image") if BAD in found else f"saw {found}"


async def test_old_pictures_become_labels_when_a_chat_is_compacted(tmp_path: Path) -> None:
    """The newest one stays as it is; no view is too large, and the transcript keeps all handles."""
    model = LongChatModel(context_length=10_000)
    async with running(tmp_path, model, adapter=platform()) as chat:
        for width in range(1, 13):
            await look(chat, width)
        assert len(await compactions(chat)) >= 2
        handles = str(await chat.transcript()).count("'attachment:")
    assert model.wrong == []
    assert [seen(view)[-1] for view in model.views] == list(range(1, 13))
    assert any("pruned" in seen(view) for view in model.views)
    assert handles == 12


async def test_between_two_leaps_each_request_begins_as_the_one_before(tmp_path: Path) -> None:
    """Nothing else moves a prefix when pictures leave; the watch agrees."""
    model = RecordingModel()
    async with running(tmp_path, model, adapter=platform()) as chat:
        for width in range(0, MAX_IMAGES + 2 * LEAP, 5):
            await look(chat, *range(width + 1, width + 6))
        assert chat.events("cache_prefix_moved") == []
    moved = [
        n
        for n, (before, after) in enumerate(pairwise(model.requests), start=2)
        if after.messages[: len(before.messages)] != before.messages
    ]
    assert moved == [5, 7]
    shown = [sum(isinstance(each, int) for each in seen(request)) for request in model.requests]
    assert shown == [5, 10, 15, 20, 15, 20, 15, 20]


async def test_pictures_that_leave_take_the_thinking_behind_them_along(tmp_path: Path) -> None:
    """The strict server binds it to them: it refuses nothing, and no picture is blamed."""
    async with FaultyAnthropic() as server:
        # Pictures that leave move the prefix, as the test above says.
        server.moves_allowed = True
        server.answer = lambda _: Reply(thinking=f"No {len(server.requests)}.", text="I see.")
        agent = agent_of(*build_models(settings_for("anthropic", server, KEYS[:1])))
        async with running(tmp_path, agent, adapter=platform()) as chat:
            for width in range(0, MAX_IMAGES + LEAP, 5):
                assert await look(chat, *range(width + 1, width + 6)) == "I see."
            assert chat.events("images_left_out") == []
            [repair] = chat.events("context_compressed")
            assert repair["trigger"] == "repair"
        assert server.refused == []


async def test_a_chat_lives_on_after_a_picture_that_is_refused(tmp_path: Path) -> None:
    """A good one beside it is seen, again after /retry, and so are later ones."""
    async with running(tmp_path, at_bad_ones, adapter=platform()) as chat:
        assert await look(chat, 1) == "saw [1]"
        assert await look(chat, BAD, 2) == "saw [1, 'unseen', 2]"
        assert await chat.ask("/retry") == "saw [1, 'unseen', 2]"
        assert await look(chat, 3) == "saw [1, 'unseen', 2, 3]"
        assert len(chat.events("images_left_out")) == 2


async def test_a_restart_makes_nothing_of_what_was_refused(tmp_path: Path) -> None:
    """What was known of pictures is found out again, by the first request."""
    for _ in range(2):
        model = RecordingModel(at_bad_ones)
        async with running(tmp_path, model, adapter=platform()) as chat:
            assert (await look(chat, BAD)).startswith("saw")
            assert (await chat.ask("again")).startswith("saw")
        assert len(model.requests) <= 5


async def test_turns_leave_no_messages_behind(tmp_path: Path) -> None:
    """What is known of pictures does not grow with turns."""
    async with running(tmp_path, adapter=platform()) as chat:
        await look(chat, 1, 2)
        images = chat.gateway.worker._kit.runner.parts.mind.agent.images
        kept = [len(str(vars(images)))]
        for n in range(5):
            await chat.ask(f"question {n}")
            kept.append(len(str(vars(images))))
    assert len(set(kept)) == 1
