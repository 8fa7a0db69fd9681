"""Requests with pictures: what goes out, what stays on record, and what a refusal leads to."""

import pytest
from structlog.testing import capture_logs

from agent.errors import BadRequest
from agent.messages import user_message
from agent.models.anthropic_wire import request_body
from agent.models.images import UNSEEN, Images, image_part
from agent.models.openai_wire import request_body as openai_body
from agent.models.scripted import Step
from tests.agent.test_loop import Bench, look

URL = "data:image/png;base64,iVBORw0KGgo="
ASKED = user_message([{"type": "text", "text": "What is this?"}, image_part(7)])


async def load(conversation: str, attachment: int) -> str | None:
    return URL if (conversation, attachment) == ("c1", 7) else None


def bench(*steps: Step) -> Bench:
    made = Bench(*steps)
    made.images = Images(load)
    return made


def pictures(made: Bench) -> list[object]:
    """Return the last part of the question in each request."""
    return [
        next(m for m in request.messages if isinstance(m["content"], list))["content"][-1]  # type: ignore[index]
        for request in made.model.requests
    ]


SHOWN = {"type": "image_url", "image_url": {"url": URL}}


async def test_the_request_has_the_bytes_and_the_record_the_handle() -> None:
    """In every request of the turn; view and journal never hold them."""
    made = bench(look("a"), "A dot.")
    result = await made.run([ASKED])
    assert result.text == "A dot."
    assert pictures(made) == [SHOWN, SHOWN]
    assert made.journal.own[0] == ASKED
    assert ASKED in made.view.messages


async def test_both_wires_send_the_picture() -> None:
    """As Anthropic's and as OpenAI's API want it."""
    made = bench("A dot.")
    await made.run([ASKED])
    [request] = made.model.requests
    block = request_body(request, "claude-opus-5")["messages"][-1]["content"][-1]
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert {key: block[key] for key in ("type", "source")} == {"type": "image", "source": source}
    sent = openai_body(request, "gpt-6", "max_tokens")["messages"][-1]["content"]
    assert sent[-1] == SHOWN


async def test_a_refused_picture_is_left_out() -> None:
    """The turn goes on without it, and so do later ones."""
    made = bench(BadRequest("Could not process image"), "I cannot see it.", "Still not.")
    with capture_logs() as lines:
        assert (await made.run([ASKED])).text == "I cannot see it."
        await made.run([ASKED])
    assert pictures(made) == [SHOWN, UNSEEN, UNSEEN]
    [line] = [line for line in lines if line["event"] == "images_left_out"]
    assert (line["count"], line["reason"]) == (1, "Could not process image")


async def test_a_request_that_is_malformed_otherwise_is_not_blamed_on_pictures() -> None:
    """The failure is told, and the picture is shown next time."""
    made = bench(BadRequest("tools: bad"), BadRequest("tools: bad"), "A dot.")
    with pytest.raises(BadRequest):
        await made.run([ASKED])
    await made.run([ASKED])
    assert pictures(made) == [SHOWN, UNSEEN, SHOWN]


async def test_a_picture_that_was_taken_before_is_not_suspected() -> None:
    """What the provider refuses then is something else: nothing is tried in vain."""
    made = bench("A dot.", BadRequest("tools: bad"))
    await made.run([ASKED])
    with pytest.raises(BadRequest):
        await made.run([ASKED])
    assert len(made.model.requests) == 2
