"""Summaries written ahead: what is asked for them, and which of two ways is taken."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.context.meter import TokenMeter
from agent.context.phases.summary import RULES, SECTIONS
from agent.context.summary_model import Summariser, SummaryCalls, WarmPrefix
from agent.context_engine import CompressionRequest, Limits
from agent.errors import ModelRefused, SummaryFailed
from agent.messages import (
    ChatMessage,
    assistant_message,
    full_text,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion
from agent.models.catalog import ModelFacts
from agent.models.images import Images, image_part, with_pictures
from agent.models.prefix import Prefix, PrefixWatch
from agent.settings import CachingSettings
from agent.turn.background_summary import (
    LEAST_LEFT_S,
    FutureUse,
    is_cheaper,
    prepare,
    warm_prefix,
)
from agent.turn.request import marked
from agent.usage import Prices
from agent.view.view import Edit, Entry, Summary, View, ViewPlan
from tests.agent.tools.doubles import HangingModel
from tests.support.gateway import agent_of
from tests.support.scripted_model import ScriptedModel, Step, tool_call

WINDOW = 20_000
LIMITS = Limits(WINDOW, protect_last_n=4)
FACTS = ModelFacts("scripted", prices=Prices(2.0, 2.5, 4.0, 0.2, 10.0))
GOOD = (
    "## Active Task\nNone.\n## Goal\nShip the order.\n## Progress\n### Done\n1. Asked.\n"
    "## Critical Context\nThe order has number 4711."
)


def model_of(*steps: Step, **options: Any) -> ScriptedModel:
    return ScriptedModel(steps, facts=FACTS, cache_layout="native", **options)


def said(n: int) -> ChatMessage:
    text = f"message {n} " + "word " * 80
    return ChatMessage(role="user" if n % 2 else "assistant", content=text)


def view_of(count: int = 66, plan: ViewPlan | None = None) -> View:
    entries = [Entry(n, said(n)) for n in range(1, count + 1)]
    return View("You are a test.", plan or ViewPlan(), entries)


def sent(view: View, model: ScriptedModel, tokens: int = 9_000, age_s: float = 20) -> Prefix:
    """Return the fingerprint of a view that was sent some time ago."""
    prefix = PrefixWatch().take(view.messages, (), model)
    return replace(prefix, tokens=tokens, at=time.time() - age_s)


async def warm_of(view: View, model: ScriptedModel, **options: Any) -> WarmPrefix | None:
    prefix = sent(view, model, **options)
    return await warm_prefix(view, prefix, agent_of(model), "7")


def calls_of(*models: ScriptedModel) -> SummaryCalls:
    return Summariser(models, 10.0).calls()


async def written(
    view: View, calls: SummaryCalls, warm: WarmPrefix | None = None, limits: Limits = LIMITS
) -> Summary | None:
    return await prepare(view, TokenMeter("scripted"), limits, calls, warm)


async def ways(model: ScriptedModel, view: View, **options: Any) -> list[str]:
    """Return how a model was asked for the summary of a view that its provider has cached."""
    warm = await warm_of(view, model, **options)
    assert warm is not None
    assert await written(view, calls_of(model), warm) is not None
    return [
        "warm" if request.messages[0]["role"] == "system" else "cold" for request in model.requests
    ]


# What the provider's cache holds


async def test_the_request_is_what_the_loop_has_sent() -> None:
    """The view with its marks, the same tools, the same name of the conversation."""
    model, view = model_of(), view_of()
    warm = await warm_of(view, model)
    assert warm is not None
    assert warm.request.messages == marked(view.messages, model, CachingSettings())
    assert (warm.request.conversation, warm.request.allow_tools) == ("7", True)
    assert (warm.model, warm.tokens, warm.ttl, warm.newer) == (model, 9_000, "5m", 0)


async def test_pictures_are_in_it_as_the_loop_has_sent_them() -> None:
    """The fingerprint is of the handles; other bytes would miss the provider's cache."""

    async def load(_conversation: str, attachment: int) -> str:
        return f"data:image/png;base64,{attachment}"

    model, view = model_of(), view_of()
    view.extend([Entry(67, user_message([image_part(7)]))])
    agent = replace(agent_of(model), images=Images(load))
    warm = await warm_prefix(view, sent(view, model), agent, "7")
    assert warm is not None
    shown = with_pictures(view.messages, await agent.images.shown(view.messages, model, "7"))
    assert warm.request.messages == marked(shown, model, CachingSettings())
    assert "data:image/png;base64,7" in str(warm.request.messages[-1])


async def test_what_came_after_the_request_is_not_sent_with_it() -> None:
    """It would have to be written, and a call whose result is missing would need a stub."""
    model, view = model_of(), view_of(60)
    prefix = sent(view, model)
    asking = ChatMessage(role="assistant", content=None, tool_calls=[tool_call("clock", {})])
    view.extend([Entry(61, asking)])
    warm = await warm_prefix(view, prefix, agent_of(model), "7")
    assert warm is not None
    assert warm.request.messages == marked(view_of(60).messages, model, CachingSettings())
    assert warm.newer == 1


@pytest.mark.parametrize("age_s", [300 - LEAST_LEFT_S + 1, 301, 4_000])
async def test_a_cache_entry_that_is_about_to_die_is_no_use(age_s: float) -> None:
    """The request must arrive while it lives."""
    assert await warm_of(view_of(), model_of(), age_s=age_s) is None


async def test_what_was_not_kept_is_not_warm() -> None:
    """The provider reported that it had cached nothing."""
    assert await warm_of(view_of(), model_of(), tokens=0) is None


async def test_before_the_first_request_nothing_is_warm() -> None:
    """Nor after one that nobody remembers."""
    assert await warm_prefix(view_of(), None, agent_of(model_of()), "7") is None


async def test_another_models_cache_is_of_no_use() -> None:
    """A fallback answered last."""
    prefix = sent(view_of(), model_of(name="fallback"))
    assert await warm_prefix(view_of(), prefix, agent_of(model_of()), "7") is None


async def test_a_view_that_begins_otherwise_is_not_warm() -> None:
    """It is compared byte for byte; nothing is reported, since nothing was sent."""
    model = model_of()
    prefix = sent(view_of(), model)
    with capture_logs() as log:
        other = view_of(plan=ViewPlan(first_seq=3))
        assert await warm_prefix(other, prefix, agent_of(model), "7") is None
    assert log == []


# What is asked for


async def behind_the_first(count: int, view: View, model: ScriptedModel) -> Summary | None:
    """Return the summary of a view whose last request ended with its message number `count`."""
    prefix = sent(view_of(count), model)
    warm = await warm_prefix(view, prefix, agent_of(model), "7")
    return await written(view, calls_of(model), warm)


async def test_messages_that_the_request_lacks_are_not_counted() -> None:
    """The model counts what it sees, from the end."""
    view, model = view_of(), model_of(GOOD)
    summary = await behind_the_first(60, view, model)
    (request,) = model.requests
    assert len(request.messages) == 62
    assert summary is not None
    assert f"the newest {60 - summary.last_seq}." in text_of(request.messages[-1])


async def test_a_request_without_the_place_where_to_stop_is_not_sent_again() -> None:
    """So much has come since that what leaves the view is not all in it."""
    view, model = view_of(), model_of(GOOD)
    summary = await behind_the_first(30, view, model)
    assert summary is not None
    assert summary.last_seq > 30
    assert model.requests[0].messages[0]["role"] == "user"


async def test_the_summary_is_asked_for_behind_the_view() -> None:
    """One message more, with the sections and rules of every summary; it names where to stop."""
    model, view = model_of(GOOD), view_of()
    warm = await warm_of(view, model)
    assert warm is not None
    summary = await written(view, calls_of(model), warm)
    (request,) = model.requests
    assert request.messages[:-1] == warm.request.messages
    asked = text_of(request.messages[-1])
    assert SECTIONS in asked
    assert RULES.split("{")[0] in asked
    assert "<<" not in asked
    assert summary is not None
    staying = said(summary.last_seq + 1)
    assert f'begins with "{text_of(staying)[:12]}' in asked
    assert f"the newest {66 - summary.last_seq}." in asked


async def test_both_ways_lead_to_the_same_candidate() -> None:
    """The same range, the same checks, the same key facts behind the model's text."""
    view, model = view_of(), model_of(GOOD, GOOD)
    cold = await written(view, calls_of(model))
    warm = await written(view, calls_of(model), await warm_of(view, model))
    assert cold == warm
    assert cold is not None
    assert (cold.source, cold.model, cold.first_seq) == ("model", "scripted", 3)


@pytest.mark.parametrize("compacted", [True, False])
async def test_an_earlier_summary_is_to_be_carried_over(compacted: bool) -> None:
    """It stands in the view and is part of what the new one covers."""
    summary = Summary("## Goal\nShip it.", 3, 10, role="user", source="model")
    plan = ViewPlan(head_upto=2, summaries=(summary,), tail_from=11)
    view, model = view_of(80, plan if compacted else None), model_of(GOOD)
    assert await ways(model, view) == ["warm"]
    asked = text_of(model.requests[0].messages[-1])
    assert ("summary of what came before" in asked) == compacted


def working() -> View:
    """Return a view whose assistant only calls tools."""
    entries = [Entry(1, said(1))]
    for n in range(2, 90, 2):
        call = tool_call("look", {"at": f"place {n}"}, f"c{n}")
        asking = ChatMessage(role="assistant", content=None, tool_calls=[call])
        entries += [Entry(n, asking), Entry(n + 1, tool_message(f"c{n}", "look", "seen " * 60))]
    return View("You are a test.", ViewPlan(), entries)


async def test_a_call_without_words_is_named_by_what_it_calls() -> None:
    """The place up to which the summary goes can always be found."""
    view, model = working(), model_of(GOOD)
    warm = await warm_of(view, model)
    summary = await written(view, calls_of(model), warm)
    assert summary is not None
    staying = next(m for seq, m in view.entries if seq > summary.last_seq)
    assert f'your own message that begins with "{full_text(staying)}"' in text_of(
        model.requests[0].messages[-1]
    )


async def test_a_message_without_any_text_is_named_by_its_place() -> None:
    """An image, for one."""
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    shown = [ChatMessage(role=said(n)["role"], content=image) for n in range(1, 42)]
    view = View("You are a test.", ViewPlan(), [Entry(n, m) for n, m in enumerate(shown, 1)])
    model = model_of(GOOD)
    assert await ways(model, view, tokens=70_000) == ["warm"]
    asked = text_of(model.requests[0].messages[-1])
    assert "message, but not including it; it is the first of the newest" in asked


# Which way


@pytest.mark.parametrize(
    ("cached", "material", "pays"),
    [
        (10_000, 1_001, True),
        (10_000, 999, False),
        (9_000, 2_151, True),
        (9_000, 2_149, False),
        (12_000, 1_001, True),
    ],
)
def test_the_cheaper_way_is_taken(cached: int, material: int, pays: bool) -> None:
    """0.1 for what is read, 1.25 for what is written, 1 for what is sent as material."""
    warm = WarmPrefix(model_of(), None, cached, "5m")  # type: ignore[arg-type]
    assert is_cheaper(warm, 10_000, material) == pays


async def test_what_is_not_in_the_cache_is_sent_as_material() -> None:
    """A view of which most is new since the last request would have to be written."""
    view, model = view_of(), model_of(GOOD)
    warm = await warm_of(view, model, tokens=1_500)
    await written(view, calls_of(model), warm)
    assert model.requests[0].messages[0]["role"] == "user"


async def test_what_came_after_the_request_costs_nothing() -> None:
    """However large a result has made the view: it is not sent."""
    view, model = view_of(60), model_of(GOOD)
    warm = await warm_of(view, model, tokens=TokenMeter("scripted").measure(view).tokens)
    assert warm is not None
    view.extend([Entry(n, user_message("word " * 2_000)) for n in range(61, 67)])
    grown = replace(warm, newer=6)
    await written(view, calls_of(model), grown, Limits(WINDOW, protect_last_n=20))
    assert model.requests[0].messages[:-1] == warm.request.messages


async def test_what_is_shown_shortened_is_summarised_from_the_originals() -> None:
    """A pruned result says nothing any more; the ordinary way reads what it was."""
    view = working()
    view.adopt(ViewPlan(edits=(Edit(5, "prune"),)))
    assert await ways(model_of(GOOD), view) == ["cold"]


async def test_edits_in_what_stays_do_not_matter() -> None:
    """It is not summarised."""
    view = working()
    view.adopt(ViewPlan(edits=(Edit(89, "prune"),)))
    assert await ways(model_of(GOOD), view) == ["warm"]


async def test_a_view_that_leaves_no_room_for_the_answer_is_not_sent_again() -> None:
    """The provider would refuse it."""
    view, model = view_of(), model_of(*[GOOD] * 3)
    model.context_length = TokenMeter("scripted").measure(view).tokens + 2_000
    # In parts, and merged.
    assert await ways(model, view) == ["cold"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        [tool_call("clock", {})],
        "Hello again!",
        "",
        GOOD.partition("## Critical")[0],
        Completion(assistant_message(GOOD), "refused"),
        ModelRefused("no"),
    ],
)
async def test_what_is_no_summary_is_asked_for_in_the_ordinary_way(answer: Step) -> None:
    """The rules are the same: empty, cut short, refused, a tool call; it is logged."""
    view, model = view_of(), model_of(answer, GOOD)
    with capture_logs() as log:
        assert await ways(model, view) == ["warm", "cold"]
    told = [line for line in log if line["event"] != "model_call_failed"]
    assert [(line["event"], line["log_level"]) for line in told] == [
        ("warm_summary_failed", "info")
    ]


async def test_an_answer_that_is_too_long_is_cut_and_told() -> None:
    """As in the ordinary way, which is not paid for as well."""
    view, model = view_of(), model_of(f"{GOOD} {'And so on. ' * 500}")
    with capture_logs() as log:
        assert await ways(model, view) == ["warm"]
    (told,) = [line for line in log if line["event"] == "summary_too_long"]
    assert told["answers"] == 1
    assert 0 < told["kept_tokens"] < told["tokens"]


async def test_both_attempts_are_booked() -> None:
    """What was not used was paid for too."""
    view, model = view_of(), model_of("Hello again!", GOOD)
    calls = calls_of(model)
    await written(view, calls, await warm_of(view, model))
    assert [call.purpose for call in calls.spent] == ["summary", "summary"]


# Written ahead at all


async def test_a_short_view_has_nothing_to_prepare() -> None:
    """No model is asked, whether the view is warm or not."""
    view, model = view_of(4), model_of()
    assert await written(view, calls_of(model), await warm_of(view, model)) is None
    assert await written(view, calls_of(model)) is None
    assert model.requests == []


async def test_an_engine_is_told_the_days() -> None:
    """As at a compaction: what it writes without a model names them."""
    asked: list[CompressionRequest] = []

    def write(request: CompressionRequest) -> None:
        asked.append(request)

    use = FutureUse(write, days=((1, "2026-03-04"),))
    await prepare(view_of(), TokenMeter("scripted"), LIMITS, calls_of(model_of()), use=use)
    assert [request.days for request in asked] == [((1, "2026-03-04"),)]


async def test_a_preparation_that_fails_says_so() -> None:
    """The extractor's summary is not worth preparing."""
    with pytest.raises(SummaryFailed):
        await written(view_of(), calls_of(model_of("")))


async def test_a_cancelled_preparation_ends_its_call() -> None:
    """A stop of the gateway does not wait for it; what it has cost is known."""
    model = HangingModel()
    calls = calls_of(model)
    work = asyncio.ensure_future(written(view_of(), calls))
    async with asyncio.timeout(30):
        await model.arrived.wait()
        work.cancel()
        await model.ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [call.purpose for call in calls.spent] == ["lost"]
