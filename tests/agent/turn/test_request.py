"""One request: made for its model, booked at its cost, with its pictures and its masks."""

import re
import weakref
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import CredentialsRefused, ModelError, ModelUnreachable
from agent.messages import (
    ChatMessage,
    Usage,
    assistant_message,
    handle_in,
    image_part,
    pictures_in,
    user_message,
)
from agent.models.base import Completion, ModelRequest
from agent.models.catalog import ModelFacts, Prices
from agent.ports import ModelCall
from agent.prompt_caching import CacheLayout, is_marked
from agent.safety.redaction import MASK, Redactor
from agent.settings import AgentSettings, CachingSettings
from agent.turn import request as module
from agent.turn.request import (
    LEAP,
    MAX_IMAGES,
    REFUSED_FOR_S,
    SHOWN_CHARS,
    UNSEEN,
    Images,
    MaskedSink,
    masked_message,
    with_pictures,
)
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
