"""`/model` in a running gateway: what it shows, who may choose, and what follows a choice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import BadRequest, CredentialsRefused, ModelError, ModelNotFound
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.models.catalog import FREE, ModelFacts, Prices
from agent.models.factory import group_by_choice
from gateway.commands.model import NO_ROOM, choice_of, price_text
from gateway.pipeline.notices import CONTEXT, fallback_text
from gateway.storage import schema
from tests.support.gateway import RecordingModel, Running, agent_of, running
from tests.support.scripted_model import ScriptedModel, Step
from tests.support.turns import lose_the_first_answer

WINDOW = 200_000
PRICES = Prices(3.0, 3.75, 6.0, 0.3, 15.0)


def named(name: str, window: int = WINDOW, prices: Prices | None = FREE) -> RecordingModel:
    """Return a model that answers with its name."""
    facts = ModelFacts(name, prices=prices)
    return RecordingModel(lambda _: f"I am {name}", name=name, context_length=window, facts=facts)


def two() -> tuple[RecordingModel, RecordingModel]:
    """Return a main model and a fallback."""
    return named("main"), named("other", 100_000, PRICES)


async def chosen(chat: Running) -> list[str | None]:
    """Return what is stored for each conversation."""
    return [row.model for row in await chat.rows(schema.conversation)]


async def test_model_alone_lists_what_is_configured(tmp_path: Path) -> None:
    """Name, window, price, and which one answers here."""
    async with running(tmp_path, agent_of(*two())) as chat:
        text = await chat.ask("/model")
        assert "- `main`: 200,000 tokens, free, default, **answers here**\n" in text
        price = "$3 in, $15 out for a million tokens"
        assert f"- `other`: 100,000 tokens, {price}\n" in text
        await chat.ask("/model other")
        text = await chat.ask("/model")
        assert f"- `other`: 100,000 tokens, {price}, **answers here**\n" in text
        assert [row.outcome for row in await chat.rows(schema.turn)] == [
            "model_listed",
            "model_chosen",
            "model_listed",
        ]


async def test_the_chosen_model_answers_in_its_conversation_alone(tmp_path: Path) -> None:
    """Names are taken whatever their case; `default` takes the choice back."""
    async with running(tmp_path, agent_of(*two())) as chat:
        assert await chat.ask("hi") == "I am main"
        told = await chat.ask("/model OTHER")
        assert told == "From now on `other` answers here (100,000 tokens)."
        assert await chat.ask("hi") == "I am other"
        assert await chat.ask("hi", chat="c2") == "I am main"
        assert await chosen(chat) == ["other", None]
        told = await chat.ask("/model default")
        assert told == "From now on the default answers here: `main` (200,000 tokens)."
        assert await chat.ask("hi") == "I am main"
        assert await chosen(chat) == [None, None]


async def test_a_choice_survives_a_restart(tmp_path: Path) -> None:
    """It stands in the conversation's row."""
    async with running(tmp_path, agent_of(*two())) as chat:
        await chat.ask("/model other")
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path, agent_of(*two())) as chat:
        assert await chat.ask("hi") == "I am other"


async def test_the_others_stay_as_fallbacks(tmp_path: Path) -> None:
    """Where the chosen one fails the main one answers."""
    main, _ = two()
    broken = RecordingModel([CredentialsRefused("no")], name="other")
    async with running(tmp_path, agent_of(main, broken)) as chat:
        await chat.ask("/model other")
        told = await asked(chat, "hi")
        assert told == [fallback_text("other", "main", CredentialsRefused("")), "I am main"]
    assert len(broken.requests) == 1


async def asked(chat: Running, text: str, where: str = "c1") -> list[str]:
    """Ask something; return everything that the chat is shown up to the answer."""
    before = len(chat.texts(where))
    await chat.say(text, where)
    await chat.until(lambda: any(each.startswith("I am") for each in chat.texts(where)[before:]))
    return chat.texts(where)[before:]


def failing(*answers: str) -> RecordingModel:
    """Return a model whose requests are refused, but for these questions; it does not rest."""

    def script(request: ModelRequest) -> Step:
        is_answered = text_of(request.messages[-1]) in answers
        return "I am other" if is_answered else BadRequest("missing field: secret")

    return RecordingModel(script, name="other")


NOTICE = (
    "The model chosen here, `other`, did not answer: the provider refuses the request."
    " `main` answers until it works again."
)


async def test_a_chosen_model_that_fails_is_told_once(tmp_path: Path) -> None:
    """Also across a restart; each conversation that chose it hears of it, and none that did not."""
    async with running(tmp_path, agent_of(named("main"), failing())) as chat:
        for where in ("c1", "c2"):
            await chat.ask("/model other", chat=where)
            assert await asked(chat, "one", where) == [NOTICE, "I am main"]
            assert await asked(chat, "two", where) == ["I am main"]
        assert await asked(chat, "one", "c3") == ["I am main"]
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path, agent_of(named("main"), failing())) as chat:
        assert await asked(chat, "three") == ["I am main"]


async def test_it_is_told_again_once_the_model_has_worked(tmp_path: Path) -> None:
    """A second outage is news."""
    async with running(tmp_path, agent_of(named("main"), failing("works"))) as chat:
        await chat.ask("/model other")
        assert await asked(chat, "one") == [NOTICE, "I am main"]
        assert await asked(chat, "works") == ["I am other"]
        assert await asked(chat, "two") == [NOTICE, "I am main"]
        assert await asked(chat, "three") == ["I am main"]


async def test_it_is_told_again_after_another_choice(tmp_path: Path) -> None:
    """Whoever chooses it anew expects that it answers; the default's fall-back is not told."""
    async with running(tmp_path, agent_of(failing(), named("main"))) as chat:
        assert await asked(chat, "zero") == ["I am main"]
        for _ in range(2):
            await chat.ask("/model other")
            assert await asked(chat, "one") == [NOTICE, "I am main"]
            await chat.ask("/model")
            assert await asked(chat, "two") == ["I am main"]


@pytest.mark.parametrize("failure", [CredentialsRefused("no"), ModelNotFound("no")])
async def test_a_chosen_model_that_rests_is_told_with_its_reason(
    tmp_path: Path, failure: ModelError
) -> None:
    """It failed in another conversation, and is not asked in this one."""
    broken = RecordingModel([failure], name="other")
    async with running(tmp_path, agent_of(named("main"), broken)) as chat:
        for where in ("c1", "c2"):
            await chat.ask("/model other", chat=where)
            told = await asked(chat, "hi", where)
            assert told == [fallback_text("other", "main", failure), "I am main"]
    assert len(broken.requests) == 1


async def test_another_key_of_the_chosen_model_is_no_fallback(tmp_path: Path) -> None:
    """The person gets the model that they chose."""
    broken = RecordingModel([CredentialsRefused("no")], name="other")
    async with running(tmp_path, agent_of(named("main"), broken, named("other"))) as chat:
        await chat.ask("/model other")
        assert await asked(chat, "hi") == ["I am other"]
    assert len(broken.requests) == 1


async def test_the_prompt_is_written_anew_for_it(tmp_path: Path) -> None:
    """The session says why its requests begin otherwise; the fallback's label moves no prefix."""
    main, other = two()
    async with running(tmp_path, agent_of(main, other)) as chat:
        await chat.ask("hi")
        await chat.ask("/model other")
        await chat.ask("again")
        [base] = await chat.rows(schema.prompt_base)
        assert '"model":"other"' in base.inputs
        moved = chat.events("cache_prefix_moved")
        assert [line["reason"] for line in moved] == ["model"]
    assert [text_of(m) for m in other.requests[0].messages[1:]] == ["hi", "I am main", "again"]
    assert text_of(other.requests[0].messages[0]) != text_of(main.requests[0].messages[0])


async def test_unknown_names_are_told_what_exists(tmp_path: Path) -> None:
    """Nothing changes."""
    async with running(tmp_path, agent_of(*two())) as chat:
        told = await chat.ask("/model `gpt`\nx")
        assert told.startswith("There is no model `'gpt' x`. These are configured:\n\n- `main`")
        assert await chosen(chat) == [None]


async def test_guests_may_look_but_not_choose(tmp_path: Path) -> None:
    """A stranger in an open chat is no member."""
    async with running(tmp_path, agent_of(*two())) as chat:
        assert (await chat.ask("/model other", sender="stranger")).startswith("Only people")
        assert "`other`" in await chat.ask("/model", sender="stranger")
        assert await chosen(chat) == [None]


async def test_model_keeps_its_place_in_the_queue(tmp_path: Path) -> None:
    """What was asked before it is answered by the model of before."""
    agent = agent_of(*two())
    async with running(tmp_path, agent, at_work=False) as chat:
        for text in ("one", "/model other", "two"):
            await chat.say(text)
    async with running(tmp_path, agent) as chat:
        first, told, second = await chat.answers(3)
        assert (first, second) == ("I am main", "I am other")
        assert told.startswith("From now on `other`")


@asynccontextmanager
async def long_chat(home: Path) -> AsyncIterator[Running]:
    """Run a gateway with a conversation that a second model, "small", cannot hold."""
    small = named("small", 8_000)
    main = RecordingModel(lambda _: "word " * 900, name="main")
    async with running(home, agent_of(main, small), compression={"protect_last_n": 2}) as chat:
        for n in range(6):
            await chat.ask(f"question {n}: " + "detail " * 300)
        yield chat


async def test_a_smaller_window_is_compacted_for_at_once(tmp_path: Path) -> None:
    """The answer says so; the next request fits."""
    async with long_chat(tmp_path) as chat:
        told = await chat.ask("/model small")
        assert told.startswith("From now on `small` answers here (8,000 tokens). Its window is too")
        assert "Condensed: " in told
        [row] = await chat.rows(schema.compaction)
        assert (row.trigger, row.tokens_after < 8_000) == ("fallback", True)
        assert await chat.ask("hi") == "I am small"


async def test_a_window_without_room_is_told_in_the_answer(tmp_path: Path) -> None:
    """And not in a message of its own beside it."""
    tiny = named("tiny", 1_024)
    (tmp_path / "SOUL.md").write_text("rule " * 1_500)
    async with running(tmp_path, agent_of(named("main"), tiny)) as chat:
        await chat.ask("hi")
        told = await chat.ask("/model tiny")
        assert told.startswith("From now on `tiny` answers here (1,024 tokens).")
        assert told.endswith(NO_ROOM)
        assert chat.events("context_floor_reached")
        assert CONTEXT["floor"] not in chat.texts()


async def test_a_choice_whose_answer_was_lost_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction is on record, the choice is not: both are told, nothing is done twice."""
    lose_the_first_answer(monkeypatch)
    async with long_chat(tmp_path) as chat:
        assert "Condensed: " in await chat.ask("/model small")
        assert len(await chat.rows(schema.compaction)) == 1
        assert await chosen(chat) == ["small"]
        assert len(chat.events("turn_failed")) == 1


async def test_status_and_usage_follow_the_choice(tmp_path: Path) -> None:
    """Name and window are those of the chosen model."""
    async with running(tmp_path, agent_of(*two())) as chat:
        await chat.ask("/model other")
        status = await chat.ask("/status")
        assert "- **Model**: other (chosen here)\n" in status
        assert "of 100,000 tokens" in status
        assert "from 50,000 tokens on" in await chat.ask("/usage")


async def test_a_model_that_is_gone_gives_way_to_the_default(tmp_path: Path) -> None:
    """The log, `/status` and `/model` say so; the choice stays on record."""
    async with running(tmp_path, agent_of(*two())) as chat:
        await chat.ask("/model other")
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path, agent_of(named("main"))) as chat:
        assert await chat.ask("hi") == "I am main"
        assert (await chat.logged("chosen_model_gone"))["model"] == "other"
        gone = "the chosen `other` is no longer configured"
        assert f"- **Model**: main ({gone})\n" in await chat.ask("/status")
        assert "is no longer configured" in await chat.ask("/model")
        assert await chosen(chat) == ["other"]


def test_keys_of_one_model_are_one_choice() -> None:
    """Two providers' models of one name have the provider before it."""
    first, second, third = (ScriptedModel([], name="a") for _ in range(3))
    third.provider = "openrouter"
    assert group_by_choice([first, second]) == {"a": [first, second]}
    assert group_by_choice([first, third]) == {"scripted/a": [first], "openrouter/a": [third]}


def test_preferring_puts_all_keys_of_a_choice_first() -> None:
    """The order within is kept; an unknown choice changes nothing."""
    main, key_1, key_2 = (ScriptedModel([], name=name) for name in ("main", "b", "b"))
    agent = agent_of(main, key_1, key_2)
    assert agent.preferring("b").models == [key_1, key_2, main]
    assert agent.preferring("c") is agent.preferring(None) is agent


@pytest.mark.parametrize(
    ("prices", "text"),
    [
        (None, "price not known"),
        (FREE, "free"),
        (replace(PRICES, input=0.25), "$0.25 in, $15 out for a million tokens"),
    ],
)
def test_prices_are_told(prices: Prices | None, text: str) -> None:
    """For a million tokens."""
    assert price_text(prices) == text


@pytest.mark.parametrize(
    ("wanted", "name"), [("default", ""), ("A", "a"), ("b", None)], ids=["default", "a", "b"]
)
def test_what_is_meant(wanted: str, name: str | None) -> None:
    """A name of the list, or the default."""
    known: dict[str, Any] = {"a": []}
    assert choice_of(wanted, known) == name
