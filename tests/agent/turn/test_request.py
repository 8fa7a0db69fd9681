"""One request: made for the model that is asked, and booked as what it cost, if it failed too."""

import re
from base64 import b64encode
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import CredentialsRefused, ModelError, ModelUnreachable
from agent.messages import ChatMessage, assistant_message, user_message
from agent.models.base import Completion, ModelRequest
from agent.models.catalog import ModelFacts
from agent.ports import ModelCall
from agent.prompt_caching import is_marked
from agent.safety.redaction import MASK, Redactor
from agent.settings import AgentSettings, CachingSettings
from agent.turn.loop import SHOWN_CHARS, MaskedSink, masked_message
from agent.usage import CacheLayout, Prices, Usage
from agent.view.view import Edit, ViewPlan
from tests.agent.turn.test_loop import QUESTION, Bench, asked, look, seen
from tests.support.scripted_model import Script, ScriptedModel

DOLLAR_A_TOKEN = Prices(1e6, 1.25e6, 2e6, 0.1e6, 5e6)
PRICED = ModelFacts("claude", min_cache_tokens=10, prices=DOLLAR_A_TOKEN)


def model(*steps: object, layout: CacheLayout | None = "native", **named: str) -> ScriptedModel:
    script: Script = steps  # type: ignore[assignment]
    return ScriptedModel(script, cache_layout=layout, facts=PRICED, **named)  # type: ignore[arg-type]


def bench_of(*models: ScriptedModel, **caching: object) -> Bench:
    bench = Bench()
    bench.models = list(models)
    bench.caching = CachingSettings.model_validate(caching)
    return bench


def marks(request: ModelRequest) -> int:
    return sum(map(is_marked, request.messages))


def ended(usage: Usage, cost_usd: float | None = None) -> Completion:
    return Completion(assistant_message("Hi."), "stop", usage, "claude-9", cost_usd)


@pytest.mark.parametrize(("layout", "expected"), [("native", 4), ("envelope", 4), (None, 0)])
async def test_a_request_is_marked_where_the_model_takes_marks(
    layout: CacheLayout | None, expected: int
) -> None:
    """Four breakpoints, or none."""
    asked = model("Hi.", layout=layout)
    await bench_of(asked).run()
    assert marks(asked.requests[0]) == expected


async def test_marks_are_of_the_request_alone() -> None:
    """Neither the view nor what is recorded ever holds one."""
    bench = bench_of(model(look("a"), "Hi."))
    await bench.run()
    assert not any(map(is_marked, bench.view.messages))
    assert not any(map(is_marked, bench.journal.own))


async def test_the_lifetime_is_the_configured_one() -> None:
    """`prompt_caching.cache_ttl`."""
    asked = model("Hi.")
    await bench_of(asked, cache_ttl="1h").run()
    system = asked.requests[0].messages[0]["content"]
    assert isinstance(system, list)
    assert system[0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


REWRITTEN = ViewPlan(edits=(Edit(2, "arguments", 100),))
"""Up to the second message what is old is shown shortened."""


@pytest.mark.parametrize(
    ("own", "places"),
    [([QUESTION], [0, 1, 2, 3]), ([seen("nobody asked"), QUESTION], [0, 1, 3])],
    ids=["as it is", "fixed"],
)
async def test_the_end_of_what_was_rewritten_is_marked(
    own: list[ChatMessage], places: list[int]
) -> None:
    """But not in a list that had to be fixed: another message may stand there."""
    asked = model("Hi.")
    await bench_of(asked, strategy="anchored").run(own, plan=REWRITTEN)
    (request,) = asked.requests
    assert len(request.messages) == 4
    assert [n for n, message in enumerate(request.messages) if is_marked(message)] == places


@pytest.mark.parametrize(
    ("thinking_from", "places"), [(0, [0, 10, 11, 12]), (13, [0, 2, 10, 12]), (12, [0, 10, 11, 12])]
)
async def test_the_request_behind_a_compaction_is_anchored(
    thinking_from: int, places: list[int]
) -> None:
    """With both strategies: the last three messages would find nothing of what stayed in place."""
    own = [user_message(str(n)) if n % 2 else assistant_message(str(n)) for n in range(9)]
    asked = model("Hi.")
    plan = replace(REWRITTEN, thinking_from=thinking_from)
    await bench_of(asked).run([*own, QUESTION], plan=plan)
    (request,) = asked.requests
    assert [n for n, each in enumerate(request.messages) if is_marked(each)] == places


async def test_a_last_call_tells_nothing_about_the_next_request() -> None:
    """It forbids tools, which are a part of what is cached; the call before it still counts."""
    step = Completion(asked(look("a")), "tool_calls", Usage(cache_write_5m_tokens=1_000))
    bench = bench_of(model(step, ended(Usage(input_tokens=9_000))))
    bench.settings = AgentSettings(max_iterations=1)
    result = await bench.run()
    (first,) = [call.prefix for call in bench.journal.calls if call is not None]
    last = result.call.prefix
    assert (result.outcome, bench.planner.watch.last) == ("max_iterations", last)
    assert first is not None
    assert last is not None
    assert (last.tokens, last.at) == (first.tokens, first.at) == (1_000, first.at)
    assert last.messages > first.messages


async def test_a_last_call_tells_the_size_of_the_view() -> None:
    """The meter learns from every report."""
    step = Completion(asked(look("a")), "tool_calls", Usage(1_000))
    bench = bench_of(model(step, ended(Usage(input_tokens=9_000))))
    bench.settings = AgentSettings(max_iterations=1)
    result = await bench.run()
    assert bench.planner.meter.report is not None
    assert bench.planner.meter.report.prompt_tokens == 9_000
    assert result.call.ratio == bench.planner.meter.ratio


async def test_a_call_that_reported_nothing_is_booked_as_an_estimate() -> None:
    """Its tokens are Parley's own count; the watch and the meter learn nothing from it."""
    silent = Completion(assistant_message("Hi."), "stop", None)
    bench = bench_of(model(silent))
    result = await bench.run()
    assert (result.call.estimated, result.call.prefix, result.call.ratio) == (True, None, None)
    assert result.call.usage is not None
    assert result.call.usage.prompt_tokens > 0
    assert bench.planner.watch.last is None


async def test_a_fallback_gets_a_request_of_its_own() -> None:
    """Marked as it takes marks, and booked under its name."""
    refused = model(CredentialsRefused("401"), name="main")
    fallback = model("Hi.", layout=None, name="spare")
    result = await bench_of(refused, fallback).run()
    assert (marks(refused.requests[0]), marks(fallback.requests[0])) == (4, 0)
    assert (result.call.model, result.text) == ("spare", "Hi.")


async def test_the_model_that_answered_is_asked_again() -> None:
    """It has the prompt in its cache; and the other one rests."""
    refused = model(CredentialsRefused("401"), name="main")
    fallback = model(look("a"), "Hi.", name="spare")
    bench = bench_of(refused, fallback)
    await bench.run()
    assert (len(refused.requests), len(fallback.requests)) == (1, 2)
    assert bench.rests.in_order([refused, fallback]) == [fallback, refused]


async def test_a_call_costs_what_was_reported() -> None:
    """By the model's prices: read, written and plain tokens each at their own."""
    result = await bench_of(model(ended(Usage(1, 1, 10, 4, 2)))).run()
    assert result.call.cost_usd == pytest.approx(1 + 5 + 1 + 5 + 4)
    assert result.call.reported_name == "claude-9"


async def test_a_cost_that_the_provider_tells_counts() -> None:
    """It knows its discounts."""
    result = await bench_of(model(ended(Usage(1, 1), cost_usd=0.25))).run()
    assert result.call.cost_usd == 0.25


async def test_a_cost_without_prices_is_unknown() -> None:
    """Not nothing."""
    unpriced = ScriptedModel([ended(Usage(1, 1))], facts=ModelFacts("x"))
    assert (await bench_of(unpriced).run()).call.cost_usd is None


async def test_the_forecast_knows_what_is_in_the_cache() -> None:
    """What the call before has written is read, the rest is written."""
    step = Completion(asked(look("a")), "tool_calls", Usage(cache_write_5m_tokens=1_000))
    bench = bench_of(model(step, "Hi."))
    await bench.run()
    warm = bench.spending.forecasts[-1]
    assert warm is not None
    assert 0.1 * 1_000 < warm < 0.1 * 1_000 + 1.25 * 100


async def test_a_failed_call_that_was_reported_is_booked_at_its_price() -> None:
    """The provider bills what it read before the stream broke."""
    error = ModelUnreachable("cut")
    error.usage = Usage(cache_read_tokens=10, output_tokens=1)
    bench = bench_of(model(error, "Hi."))
    await bench.run()
    (lost,) = bench.journal.booked
    assert lost.model == "scripted"
    assert lost.cost_usd == pytest.approx(6)


async def lost_by(error: ModelError) -> tuple[Bench, list[ModelCall]]:
    """Return what a call that ends so leaves behind; the next one is answered."""
    bench = bench_of(model(error, "Hi."))
    await bench.run()
    return bench, bench.journal.booked


def cut(usage: Usage | None = None, written_tokens: int = 0) -> ModelError:
    error = ModelUnreachable("cut")
    error.usage, error.written_tokens = usage, written_tokens
    return error


async def test_what_was_reported_counts() -> None:
    """It holds what was written, too."""
    _, [lost] = await lost_by(cut(Usage(10, 1), written_tokens=40))
    assert lost.usage == Usage(10, 1)


async def test_an_answer_that_had_begun_is_booked_as_expected() -> None:
    """Where nothing was reported: the prompt that was forecast, and what had been streamed."""
    bench, [lost] = await lost_by(cut(written_tokens=40))
    forecast = bench.spending.forecasts[0]
    assert lost.usage is not None
    assert lost.usage.prompt_tokens > 0
    assert (lost.usage.output_tokens, lost.purpose, lost.estimated) == (40, "lost", True)
    assert forecast is not None
    assert lost.cost_usd == pytest.approx(forecast + 40 * 5)


async def test_an_answer_that_had_not_begun_costs_nothing() -> None:
    """Nobody bills an error."""
    _, booked = await lost_by(cut())
    assert booked == []


KEY = "sk-q7Wz0Lk3Tn8Rb5"
LONGER = KEY + "-and-more-2"
OTHER = "Rb5-xyz-77-pq"
"""Begins with what `KEY` ends with."""
ODD = 'p"ss\\wörd 9'
REDACTOR = Redactor([KEY, LONGER, OTHER, ODD])


class Shown:
    """What a sink was given since it began anew."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def push(self, delta: str) -> None:
        """Keep a piece."""
        self.pieces.append(delta)

    def restart(self) -> None:
        """Forget all."""
        self.pieces.clear()

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(self.pieces)


def pushed(*pieces: str, redactor: Redactor = REDACTOR) -> Shown:
    """Return what is shown of pieces, before the end is known."""
    shown = Shown()
    sink = MaskedSink(shown, redactor)
    for piece in pieces:
        sink.push(piece)
    return shown


async def test_a_continued_answer_knows_the_first_half_of_a_key() -> None:
    """Its preview is one of its own, and holds nothing of the second."""
    first = Completion(assistant_message(f"The key: {KEY[:9]}"), "length")
    bench = Bench(first, f"{KEY[9:]} is all.")
    bench.approval = replace(bench.approval, redactor=REDACTOR)
    assert (await bench.run()).text == f"The key: {MASK} is all."
    assert bench.sink.text == f"{MASK} is all."


class TestMessage:
    def test_one_without_secrets_is_the_same_object(self) -> None:
        """Nothing is copied for nothing."""
        message = ChatMessage(role="assistant", content="The key is under the mat.")
        assert masked_message(message, REDACTOR) is message

    def test_every_text_of_it_is_masked(self) -> None:
        """Content in parts and the arguments of calls, also as JSON writes the secret."""
        call: Any = {
            "id": "c",
            "type": "function",
            "function": {"name": "say", "arguments": '{"text": "p\\"ss\\\\wörd 9"}'},
        }
        message: Any = {
            "role": "assistant",
            "content": [{"type": "text", "text": f"It is {KEY}."}],
            "tool_calls": [call],
        }
        masked: Any = masked_message(message, REDACTOR)
        assert masked["content"][0]["text"] == f"It is {MASK}."
        assert masked["tool_calls"][0]["function"]["arguments"] == f'{{"text": "{MASK}"}}'
        assert KEY in message["content"][0]["text"]

    def test_opaque_fields_stay_where_no_secret_stands_in_them(self) -> None:
        """The provider wants them back as they were."""
        message: Any = {"role": "assistant", "content": KEY, "opaque": {"anthropic": {"a": 1}}}
        masked: Any = masked_message(message, REDACTOR)
        assert masked == {"role": "assistant", "content": MASK, "opaque": {"anthropic": {"a": 1}}}


class TestSink:
    @given(st.data())
    def test_pieces_of_any_size_show_what_the_whole_text_would(self, data: st.DataObject) -> None:
        """But for the last few characters, which may begin a secret."""
        words = st.sampled_from([KEY, LONGER, OTHER, ODD, KEY[:9], OTHER[:4], "sk-", " ", "a", "é"])
        text = "".join(data.draw(st.lists(words, max_size=12)))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
        ends = [0, *cuts, len(text)]
        shown = Shown()
        sink = MaskedSink(shown, REDACTOR)
        for start, end in pairwise(ends):
            sink.push(text[start:end])
        for secret in (KEY, OTHER, ODD):
            assert secret not in shown.text
        sink.push(".")
        sink.close()
        assert shown.text == REDACTOR.configured(f"{text}.")

    def test_the_beginning_of_a_secret_is_held_back(self) -> None:
        """It is shown once it turns out to be none."""
        assert pushed("The key: s", "k-q7W").text == "The key: "
        assert pushed("The key: s", "k-q7W", "ithout").text == "The key: sk-q7Without"

    @pytest.mark.parametrize(("rest", "told"), [("sk-q", "sk-q"), ("sk-q7", MASK), ("", "")])
    def test_an_end_within_a_secret(self, rest: str, told: str) -> None:
        """Four characters of it are told, more are not."""
        shown = Shown()
        sink = MaskedSink(shown, REDACTOR)
        sink.push(f"It is {rest}")
        sink.close()
        assert shown.text == f"It is {told}"
        assert len(rest) <= SHOWN_CHARS or rest not in shown.text

    def test_a_new_beginning_forgets_what_was_held(self) -> None:
        """What failed is not put before the next attempt's text."""
        shown = Shown()
        sink = MaskedSink(shown, REDACTOR)
        sink.push(KEY[:8])
        sink.restart()
        sink.push("Hello.")
        assert shown.text == "Hello."

    def test_without_secrets_every_piece_goes_on_at_once(self) -> None:
        """As it came."""
        assert pushed("s", "k", "-", redactor=Redactor()).pieces == ["s", "k", "-"]

    @pytest.mark.parametrize("ends", ["\n", "\r\n", "\\n", "\n    "])
    @given(st.data())
    def test_a_secret_in_lines_of_base64_is_held_back(self, ends: str, data: st.DataObject) -> None:
        """In pieces of any size, wherever a line ends; what is shown of it tells nothing."""
        columns = data.draw(st.sampled_from([64, 76]))
        # So that a line ends within it.
        beside = data.draw(st.integers(columns * 3 // 4 - len(KEY) + 2, columns * 3 // 4 - 2))
        coded = b64encode(f"{'x' * beside}{KEY} {'y' * 60}".encode()).decode()
        lines = (coded[at : at + columns] for at in range(0, len(coded), columns))
        text = f"Here it is:\n{ends.join(lines)}\nThat is all."
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
        shown = pushed(*(text[start:end] for start, end in pairwise([0, *cuts, len(text)])))
        assert shown.text.startswith("Here it is:\n")
        assert shown.text.endswith("all.")
        assert MASK in shown.text
        assert not REDACTOR.holds_configured(re.sub(r"\s|\\n", "", shown.text))

    @given(st.integers(1, len(KEY) - 1), st.integers(1, 8))
    def test_the_second_half_of_a_key_is_none_in_the_next_call(self, cut: int, size: int) -> None:
        """An answer that is continued begins a new preview, where the first half is known."""
        rest = f"{KEY[cut:]} is it."
        shown = Shown()
        sink = MaskedSink(shown, REDACTOR, before=f"It is {KEY[:cut]}")
        for at in range(0, len(rest), size):
            sink.push(rest[at : at + size])
        sink.close()
        assert shown.text == f"{MASK} is it."

    @given(st.text(alphabet="sk-q7Wx ", max_size=8), st.text(alphabet="sk-q7Wx ", max_size=8))
    def test_what_was_said_before_is_not_said_again(self, before: str, text: str) -> None:
        """Whatever of it looked like the beginning of a secret."""
        shown = Shown()
        sink = MaskedSink(shown, REDACTOR, before=before)
        sink.push(text)
        sink.push("\n.")
        sink.close()
        assert shown.text == f"{text}\n."
