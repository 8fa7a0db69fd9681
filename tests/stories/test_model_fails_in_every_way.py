"""The fault matrix: both SDKs, every way in which a provider fails, alone and with a way out.

For each: what was done about it, how often and how long it was tried, how the turn ended, and what
the chat was told.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelNotFound,
    RateLimited,
)
from agent.errors import ModelUnreachable as Unreachable
from agent.models import api
from gateway.findings.models import FAILING_S
from gateway.pipeline import notices
from tests.support.alerts import end_soon
from tests.support.faulty_models import (
    ANSWER,
    KEYS,
    PROVIDERS,
    PROVIDERS_WORDS,
    SPARE_ANSWER,
    Bench,
    ProviderName,
    bench,
)
from tests.support.model_server import Fault, Reply
from tests.support.process import free_port
from tests.support.thorough import products

Open = Callable[..., AbstractAsyncContextManager[Bench]]

BACKOFF_S = [1, 2, 4, 8, 16, 30, 30]
"""All that fit into 120 seconds."""
MOST_WAITED_S = 120

MALFORMED = notices.failure_text(BadRequest(""))
CREDENTIALS = notices.failure_text(CredentialsRefused(""))
MONEY = notices.failure_text(CreditUsedUp(""))
NOT_FOUND = notices.failure_text(ModelNotFound(""))
OVERLOADED = notices.failure_text(RateLimited(""))
TOO_LONG = notices.failure_text(ContextOverflow(""))
UNREACHABLE = notices.failure_text(Unreachable(""))

HTML = "<html><body><h1>502 Bad Gateway</h1></body></html>"
HALF = "Half of an ans"


@dataclass(frozen=True)
class Row:
    """One fault, and what is right where it does not pass.

    Attributes:
        faults: What the provider does, by its name.
        alone: What is done about it by a single model, in order.
        told: What the chat is told then.
        waits: How long was waited in between.
        instead: What is done about it where there is a fallback.
        rotates: Whether a second key of the model is tried at once.
        read: Whether such a call has begun to answer: it is billed.
        alert: What the owner is told of, once, where it lasts for `FAILING_S`; "" for what is no
            trouble of the model.
    """

    faults: dict[ProviderName, Fault | Reply]
    alone: Sequence[str]
    told: str
    waits: Sequence[float] = ()
    instead: Sequence[str] = ("next_model",)
    rotates: bool = False
    read: bool = False
    alert: str = "model-failing"

    @property
    def takes_long(self) -> bool:
        """Whether the chat is told to wait: for a long wait at once, else for the third one."""
        return len(self.waits) >= 3 or any(wait >= 15 for wait in self.waits)


def http(
    status: int, anthropic: str, openai: str = "", **fields: Any
) -> dict[ProviderName, Fault | Reply]:
    """Return an HTTP error of both providers."""
    words = {"message": PROVIDERS_WORDS} | fields
    return {
        "anthropic": Fault(status=status, error=anthropic, **words),
        "openai": Fault(status=status, error=openai, **words),
    }


def both(reply: Reply | Fault) -> dict[ProviderName, Fault | Reply]:
    return dict.fromkeys(PROVIDERS, reply)


RETRIED = ["retry"] * (len(BACKOFF_S) + 1)
THRICE = ("retry", "retry", "next_model")
passing = partial(Row, alone=RETRIED, waits=BACKOFF_S, instead=THRICE)

MATRIX: dict[str, Row] = {
    "400": Row(http(400, "invalid_request_error"), ["give_up"], MALFORMED, alert=""),
    "400 too long": Row(
        {
            "anthropic": Fault(
                status=400,
                error="invalid_request_error",
                message=f"prompt is too long: {PROVIDERS_WORDS}",
            ),
            "openai": Fault(status=400, error="context_length_exceeded", message=PROVIDERS_WORDS),
        },
        ["compress"],
        TOO_LONG,
        instead=(),
        alert="",
    ),
    "413": Row(http(413, "request_too_large"), ["compress"], TOO_LONG, instead=(), alert=""),
    "401": Row(
        http(401, "authentication_error", "invalid_api_key", message=f"no key {KEYS[0]}"),
        ["next_model"],
        CREDENTIALS,
        rotates=True,
        alert="key-refused",
    ),
    "402": Row(
        http(402, "billing_error", "insufficient_quota"),
        ["next_model"],
        MONEY,
        rotates=True,
        alert="money-gone",
    ),
    "no credit": Row(
        {
            "anthropic": Fault(
                status=400,
                error="invalid_request_error",
                message="Your credit balance is too low to access the Anthropic API.",
            ),
            "openai": Fault(status=429, error="insufficient_quota"),
        },
        ["next_model"],
        MONEY,
        rotates=True,
        alert="money-gone",
    ),
    "403": Row(
        http(403, "permission_error"),
        ["next_model"],
        CREDENTIALS,
        rotates=True,
        alert="key-refused",
    ),
    "404": Row(http(404, "not_found_error", "model_not_found"), ["next_model"], NOT_FOUND),
    "429 for an hour": Row(
        http(429, "rate_limit_error", "rate_limit_exceeded", headers={"retry-after": "3600"}),
        ["retry"] * 3,
        notices.failure_text(RateLimited("", 3600)),
        waits=[60, 60],
        rotates=True,
    ),
    "429 for 20 s": Row(
        http(429, "rate_limit_error", "rate_limit_exceeded", headers={"retry-after": "20"}),
        ["retry"] * 6,
        OVERLOADED,
        waits=[20] * 5,  # the back-off's next wait, 30 s, would end too late
        instead=THRICE,
        rotates=True,
    ),
    "408": passing(http(408, "timeout_error", "timeout"), told=UNREACHABLE),
    "503": passing(http(503, "api_error", "service_unavailable"), told=UNREACHABLE),
    "500": passing(http(500, "api_error", "server_error"), told=UNREACHABLE),
    "502 in HTML": passing(both(Fault(status=502, html=HTML)), told=UNREACHABLE),
    "529": passing(http(529, "overloaded_error"), told=OVERLOADED, rotates=True),
    "529 in the stream": passing(
        {
            "anthropic": Reply(text=HALF, error="overloaded_error"),
            "openai": Reply(text=HALF, error="529"),
        },
        told=OVERLOADED,
        rotates=True,
        read=True,
    ),
    "500 in the stream": passing(
        {
            "anthropic": Reply(text=HALF, error="api_error"),
            "openai": Reply(text=HALF, error="server_error"),
        },
        told=UNREACHABLE,
        read=True,
    ),
    "cut stream": passing(both(Reply(text=HALF, trouble="cut")), told=UNREACHABLE, read=True),
    "truncated JSON": passing(
        both(Reply(text=HALF, trouble="garbage")), told=UNREACHABLE, read=True
    ),
    "cut before the first byte": passing(both(Fault(trouble="cut")), told=UNREACHABLE),
    "an error of half a JSON": passing(
        both(Fault(status=500, json='{"error": {"message": "')), told=UNREACHABLE
    ),
    "a page in place of a stream": passing(both(Fault(status=200, html=HTML)), told=UNREACHABLE),
}
PASSING = [name for name, row in MATRIX.items() if "retry" in row.alone]
WITH_A_WAY_OUT = [name for name, row in MATRIX.items() if row.instead]
OF_A_KEY = [name for name, row in MATRIX.items() if row.rotates]

every_provider = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture
def opened(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(bench, database_file.parent, monkeypatch)


async def lost(at: Bench, row: Row) -> list[tuple[str, int, int]]:
    """Return what was booked for failed calls: those that had begun to answer, and no others."""
    calls = [call for call in await at.ledger() if call[0] == "lost"]
    if not row.read:
        assert calls == []
    for _, read, written in calls:
        assert read > 0
        assert written > 0
    return calls


@pytest.mark.parametrize(("fault", "provider"), products([*MATRIX], PROVIDERS))
async def test_a_fault_that_stays_ends_the_turn_with_a_notice(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """One model, one key: as many attempts as help, then the chat is told what is wrong."""
    row = MATRIX[fault]
    async with opened(provider) as at:
        at.main.broken = row.faults[provider]
        told = await at.ask()
        trouble = [notices.TROUBLE] if row.takes_long else []
        assert told == [*trouble, row.told]
        assert (at.calls, at.actions) == ((len(row.alone), 0), list(row.alone))
        assert at.clock.waits == list(row.waits)
        assert sum(at.clock.waits) <= MOST_WAITED_S
        assert await at.outcomes() == ["provider_failed"]
        assert len(at.chat.events("no_model_answered")) == 1
        assert len(await lost(at, row)) == (len(row.alone) if row.read else 0)
        await at.fix()
        await at.check()


@pytest.mark.parametrize(("fault", "provider"), products([*WITH_A_WAY_OUT], PROVIDERS))
async def test_a_fault_that_stays_leads_to_the_fallback(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """The other provider answers, in the same turn, and nobody is told of anything else."""
    row = MATRIX[fault]
    async with opened(provider, fallback=True) as at:
        at.main.broken = row.faults[provider]
        told = await at.ask()
        assert [text for text in told if text != notices.TROUBLE] == [SPARE_ANSWER]
        assert (at.calls, at.actions) == ((len(row.instead), 1), list(row.instead))
        assert at.clock.waits == list(row.waits)[: len(row.instead) - 1]
        assert await at.outcomes() == ["final_text"]
        assert (await at.chat.logged("turn_finished"))["model"] == at.models[-1].name
        await lost(at, row)
        await at.fix()
        await at.check()


def of_a_choice(at: Bench, row: Row) -> str:
    """Return what a person is told whose chosen model fails like this."""
    why, _, _ = row.told.removeprefix("I could not answer: ").removesuffix(".").partition(". ")
    chosen, other = (model.name for model in at.models)
    return (
        f"The model chosen here, `{chosen}`, did not answer: {why}."
        f" `{other}` answers until it works again."
    )


@pytest.mark.parametrize(("fault", "provider"), products([*WITH_A_WAY_OUT], PROVIDERS))
async def test_a_chosen_model_that_fails_is_told_once(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """By name and with the reason, before the other model's answer; not with the next one."""
    row = MATRIX[fault]
    async with opened(provider, fallback=True) as at:
        await at.ask(f"/model {at.models[0].name}")
        at.main.broken = row.faults[provider]
        told = [text for text in await at.ask() if text != notices.TROUBLE]
        assert told == [of_a_choice(at, row), SPARE_ANSWER]
        assert await at.ask("Once more?") == [SPARE_ANSWER]
        await at.check()


@every_provider
async def test_a_chosen_model_that_cannot_be_connected_to_is_told_once(
    opened: Open, provider: ProviderName
) -> None:
    """Its server is gone."""
    row = passing(both(Fault()), told=UNREACHABLE)
    nowhere = {"base_url": f"http://127.0.0.1:{free_port()}/v1"}
    async with opened(provider, fallback=True, main=nowhere) as at:
        await at.ask(f"/model {at.models[0].name}")
        told = [text for text in await at.ask() if text != notices.TROUBLE]
        assert told == [of_a_choice(at, row), SPARE_ANSWER]
        assert await at.ask("Once more?") == [SPARE_ANSWER]
        assert at.calls == (0, 2)
        await at.check()


@pytest.mark.parametrize(("fault", "provider"), products([*OF_A_KEY], PROVIDERS))
async def test_a_fault_of_a_key_leads_to_the_next_key(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """No wait, no fallback: the second key of the same model answers."""
    row = MATRIX[fault]
    async with opened(provider, keys=2, fallback=True) as at:
        broken = row.faults[provider]
        if isinstance(broken, Reply):
            at.main.script(broken)
        else:
            at.main.key_faults[KEYS[0]] = broken
        assert await at.ask() == [ANSWER]
        assert (at.calls, at.actions, at.clock.waits) == ((2, 0), ["next_model"], [])
        assert KEYS[1] in str(at.main.requests[1].headers)
        assert await at.outcomes() == ["final_text"]
        await lost(at, row)
        await at.fix()
        await at.check()


@pytest.mark.parametrize(("fault", "provider"), products([*PASSING], PROVIDERS))
async def test_a_fault_that_passes_is_not_noticed(
    opened: Open, provider: ProviderName, fault: str
) -> None:
    """One more attempt after the first wait, and the whole answer, once."""
    row = MATRIX[fault]
    async with opened(provider) as at:
        at.main.script(row.faults[provider])
        trouble = [notices.TROUBLE] if row.waits[0] >= 15 else []
        assert await at.ask() == [*trouble, ANSWER]
        assert (at.calls, at.actions) == ((2, 0), ["retry"])
        assert at.clock.waits == list(row.waits)[:1]
        assert await at.outcomes() == ["final_text"]
        assert [purpose for purpose, *_ in await at.ledger()][-1] == "answer"
        assert len(await lost(at, row)) == row.read
        await at.fix()
        await at.check()


@pytest.mark.parametrize(("fault", "provider"), products([*MATRIX], PROVIDERS))
async def test_a_fault_that_lasts_is_told_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch, provider: ProviderName, fault: str
) -> None:
    """To the owner, as the right trouble; its end as well. What passes within minutes is none."""
    row = MATRIX[fault]
    end_soon(monkeypatch)
    async with opened(provider) as at:
        await at.ask()
        watch = at.chat.gateway.platforms.alerts
        assert watch is not None
        at.main.broken = row.faults[provider]
        begun, ended = [], []
        for _ in range(3):
            await at.ask()
            begun += (await watch.look()).begun
            at.clock.waits.append(FAILING_S)
        assert [each.kind for each in begun] == ([row.alert] if row.alert else [])
        at.main.fix()
        await at.ask()
        for _ in range(2):
            ended += (await watch.look()).ended
        assert [each.id for each in ended] == [each.id for each in begun]
        await at.chat.gateway.delivery.wait_idle()
        told = [text for text in at.chat.texts() if text.startswith(("**Trouble", "**Over"))]
        assert len(told) == 2 * len(begun)


@every_provider
async def test_a_short_wait_is_followed_to_the_second(opened: Open, provider: ProviderName) -> None:
    """429 with retry-after 1."""
    row = http(429, "rate_limit_error", "rate_limit_exceeded", headers={"retry-after": "1"})
    async with opened(provider) as at:
        at.main.script(row[provider])
        assert await at.ask() == [ANSWER]
        assert at.clock.waits == [1]
        await at.check()


@pytest.mark.thorough
@every_provider
@pytest.mark.parametrize(
    "silence", [Fault(trouble="stall"), Reply(trouble="stall"), Reply(text=HALF, trouble="stall")]
)
async def test_a_stream_that_falls_silent_is_left(
    opened: Open, provider: ProviderName, silence: Fault | Reply
) -> None:
    """Before its first byte, its first word or after it: the call is closed and made again."""
    async with opened(provider, main={"idle_timeout_s": 3}) as at:
        await at.ask()
        at.main.script(silence)
        assert await at.ask() == [ANSWER]
        assert (at.actions, at.clock.waits) == (["retry"], [1])
        if isinstance(silence, Reply):
            await at.main.left.wait()
        await at.check()


@pytest.mark.thorough
@every_provider
async def test_a_stream_without_an_end_is_left(
    opened: Open, provider: ProviderName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the time for one call is over it is made again; what it wrote is booked as lost."""
    # Long enough for a busy machine to see the beginning.
    monkeypatch.setattr(api, "WHOLE_CALL_S", 5.0)
    async with opened(provider) as at:
        at.main.script(Reply(text="word " * 4000, piece=5, pause_s=0.02))
        assert await at.ask() == [ANSWER]
        assert (at.actions, at.clock.waits) == (["retry"], [1])
        await at.main.left.wait()
        [(purpose, _, written), (second, *_)] = await at.ledger()
        assert (purpose, second) == ("lost", "answer")
        assert 0 < written < 4000
        await at.check()


@every_provider
async def test_what_a_lost_call_has_cost_is_booked(opened: Open, provider: ProviderName) -> None:
    """Tokens read as the provider said, if it did, tokens written as far as they came."""
    async with opened(provider) as at:
        usage = {"input_tokens": 4321, "output_tokens": 1}
        at.main.script(Reply(text="word " * 40, trouble="cut", usage=usage))
        await at.ask()
        booked = await at.ledger()
    [(purpose, read, written), (second, *_)] = booked
    assert (purpose, second) == ("lost", "answer")
    assert read == 4321 if provider == "anthropic" else 200 <= read <= 400
    assert 30 <= written <= 120


@every_provider
async def test_a_model_that_failed_is_not_asked_first_for_a_while(
    opened: Open, provider: ProviderName
) -> None:
    """Half a minute after an outage, then it has its turn again."""
    async with opened(provider, fallback=True) as at:
        at.main.broken = MATRIX["500"].faults[provider]
        assert (await at.ask())[-1] == SPARE_ANSWER
        at.main.broken = None
        assert await at.ask() == [SPARE_ANSWER]
        at.clock.waits.append(31)
        assert await at.ask() == [ANSWER]
        await at.check()


@every_provider
async def test_all_models_are_tried_before_a_turn_is_given_up(
    opened: Open, provider: ProviderName
) -> None:
    """The main model is out, the fallback's key is refused: both are named in no notice."""
    other = PROVIDERS[1 - PROVIDERS.index(provider)]
    async with opened(provider, fallback=True) as at:
        at.main.broken = MATRIX["500"].faults[provider]
        at.spare.broken = MATRIX["402"].faults[other]
        told = await at.ask()
        assert at.calls[1] == 1
        assert told[0] == notices.TROUBLE
        assert told[1:] == [UNREACHABLE]
        assert sum(at.clock.waits) <= MOST_WAITED_S
        await at.fix()
        await at.check()
