"""Requests with pictures: what goes out, what stays on record, and what a refusal leads to."""

import re

import pytest
from structlog.testing import capture_logs

from agent.errors import BadRequest
from agent.messages import image_part, user_message
from agent.models.anthropic.wire import request_body
from agent.models.base import ModelRequest
from agent.models.catalog import ModelFacts
from agent.models.openai.wire import request_body as openai_body
from agent.prompt_caching import CacheLayout
from agent.tokens import IMAGE_TOKENS, estimate_messages
from agent.turn.request import UNSEEN, Images, with_pictures
from tests.agent.turn.test_loop import USAGE, Bench, look
from tests.support.scripted_model import Step

URL = "data:image/png;base64,iVBORw0KGgo="
ASKED = user_message([{"type": "text", "text": "What is this?"}, image_part(7)])


async def load_any(_conversation: str, attachment: int) -> str:
    return f"{URL}#{attachment}"


def seen(request: ModelRequest) -> set[int]:
    """Return which pictures of `load_any` a request has."""
    return {int(n) for n in re.findall(r"#(\d+)", str(request.messages))}


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
    sent = openai_body(request, "gpt-6")["messages"][-1]["content"]
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


@pytest.mark.parametrize(("bad", "attempts"), [({8}, 2), ({7}, 3), ({7, 8}, 4)])
async def test_a_picture_beside_a_bad_one_is_shown(bad: set[int], attempts: int) -> None:
    """Within three more attempts; what is left out of the next request is the bad one alone."""
    made = Bench(script=lambda request: BadRequest("image") if bad & seen(request) else "ok")
    made.images = Images(load_any)
    question = user_message([{"type": "text", "text": "?"}, image_part(7), image_part(8)])
    assert (await made.run([question])).text == "ok"
    assert len(made.model.requests) == attempts
    await made.run([question])
    assert len(made.model.requests) == attempts + 1
    assert seen(made.model.requests[-1]) == {7, 8} - bad


async def test_a_provider_that_refuses_everything_is_asked_four_times() -> None:
    """However many pictures there are; each attempt is booked as any other."""
    refusal = BadRequest("no")
    refusal.usage = USAGE
    made = Bench(script=lambda _: refusal)
    made.images = Images(load_any)
    question = user_message([{"type": "text", "text": "?"}, *map(image_part, range(20))])
    with pytest.raises(BadRequest):
        await made.run([question])
    assert [len(seen(request)) for request in made.model.requests] == [20, 10, 10, 0]
    assert [call.usage for call in made.journal.booked] == [USAGE] * 4


async def test_a_request_that_is_malformed_otherwise_is_not_blamed_on_pictures() -> None:
    """The first failure is told, and the picture is shown next time."""
    made = bench(BadRequest("tools: bad"), BadRequest("still bad"), "A dot.")
    with pytest.raises(BadRequest, match="tools: bad"):
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


async def test_a_model_that_cannot_see_gets_the_label_at_once() -> None:
    """On OpenAI's wire as text; where it refuses the request, pictures were no part of it."""
    made = bench("I cannot see.", BadRequest("tools: bad"))
    made.model.facts = ModelFacts("blind", vision=False)
    await made.run([ASKED])
    [request] = made.model.requests
    sent = openai_body(request, "gpt-6")["messages"][-1]["content"]
    assert sent == f"What is this?\n{UNSEEN['text']}"
    with pytest.raises(BadRequest):
        await made.run([ASKED])
    assert len(made.model.requests) == 2


@pytest.mark.parametrize("layout", ["native", "envelope"])
async def test_the_end_of_the_request_is_marked_on_the_picture(layout: CacheLayout) -> None:
    """It is the last block; on both wires the marker goes out with it."""
    made = bench("A dot.")
    made.model.cache_layout = layout
    await made.run([ASKED])
    [request] = made.model.requests
    body = (
        request_body(request, "claude-opus-5")
        if layout == "native"
        else openai_body(request, "claude", layout=layout)
    )
    last = body["messages"][-1]["content"][-1]
    assert last["type"] in {"image", "image_url"}
    assert last["cache_control"] == {"type": "ephemeral"}


async def test_a_picture_counts_the_same_however_large_it_is() -> None:
    """What is measured is the view with its handles; the bytes are no text."""
    request = ModelRequest(with_pictures([ASKED], {7: URL + "A" * 100_000}))
    assert estimate_messages(request.messages) == estimate_messages([ASKED])
    assert estimate_messages([ASKED]) > IMAGE_TOKENS
