"""What can happen to a stream, with both clients: the class of the error, the bill, the time."""

import asyncio
from typing import Any

import pytest

from agent.errors import ContextOverflow, ModelError, ModelUnreachable, RateLimited
from agent.messages import Usage
from agent.models import api
from agent.models.base import ModelRequest
from agent.tokens import estimate_tokens
from tests.agent.models.clients import ASK, BOTH, CLOCK, Double, ask, connected
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import Fault, ModelServer, Reply, SinkSpy
from tests.support.openai_server import OpenAIServer
from tests.support.virtual_time import run_virtually

PAGE = "<html><body><h1>502 Bad Gateway</h1>cloudflare</body></html>"
REPORT = {"input_tokens": 3, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 70}


async def failure(
    server: ModelServer, item: Reply | Fault, request: ModelRequest | None = None, **settings: Any
) -> ModelError:
    """Return how a call that gets `item` fails."""
    server.script(item)
    with pytest.raises(ModelError) as caught:
        await ask(server, request, **settings)
    assert len(server.requests) == 1
    return caught.value


@pytest.mark.thorough
@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    "item",
    [
        Fault(status=500),
        Fault(status=502, html=PAGE),
        Fault(status=503, json='{"error": {"message": "cut o'),
        Fault(trouble="cut"),
        Fault(trouble="stall"),
        Fault(status=200, html=PAGE),
        Fault(status=200, json='{"id": "x", "choi'),
        Reply(text="Once upon a", trouble="cut"),
        Reply(text="Once upon a", trouble="stall"),
        Reply(text="Once upon a", trouble="pings"),
        Reply(trouble="pings"),
        Reply(text="Once upon a", trouble="garbage"),
    ],
)
async def test_broken_answers_are_unreachable(double: Double, item: Reply | Fault) -> None:
    """Whatever ends an answer early, it ends in bounded time and may be tried again."""
    async with double() as server, asyncio.timeout(60):
        error = await failure(server, item, idle_timeout_s=1)
    assert type(error) is ModelUnreachable


@pytest.mark.thorough
@pytest.mark.parametrize("double", BOTH)
async def test_pings_end_with_the_connection(double: Double) -> None:
    """The limit for pings alone is 5 times the idle timeout, and the provider stops writing."""
    async with double() as server:
        error = await failure(server, Reply(trouble="pings"), idle_timeout_s=1)
        await asyncio.wait_for(server.left.wait(), 60)
    assert str(error) == "no content for 5 s"


@pytest.mark.thorough
@pytest.mark.parametrize("double", BOTH)
async def test_slow_content_is_no_silence(double: Double) -> None:
    """Text that trickles for longer than silence may last is read to its end."""
    async with double() as server:
        server.script(Reply(text="x" * 20, piece=1, pause_s=0.25))
        assert (await ask(server, idle_timeout_s=4)).message["content"] == "x" * 20


async def tellings(double: Double, reply: Reply | Fault, *, bytewise: bool = False) -> list[str]:
    """Return what is told of a stream that trickles, and how its call ends, in their order."""
    told: list[str] = []

    async def tell() -> None:
        told.append("told")

    async with double() as server:
        whole = server.frames
        if bytewise:
            server.frames = lambda body, reply: [  # type: ignore[method-assign]
                bytes([byte]) for byte in b"".join(whole(body, reply))
            ]
        server.script(reply)
        try:
            await ask(server, ModelRequest(ASK, on_trickle=tell), idle_timeout_s=60)
        except ModelUnreachable as exc:
            return [*told, str(exc)]
        return [*told, "answered"]


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("fields", [{"text": "x" * 30}, {"thinking": "x" * 30, "text": "y"}])
def test_a_stream_that_trickles_is_told_once_and_goes_on(
    double: Double, fields: dict[str, str]
) -> None:
    """A piece in ten seconds, said or thought, is as good as silence to the person."""
    trickle = Reply(piece=1, pause_s=10, **fields)  # type: ignore[arg-type]
    assert run_virtually(tellings(double, trickle)) == ["told", "answered"]


@pytest.mark.parametrize("double", BOTH)
def test_bytes_that_make_no_event_are_a_trickle(double: Double) -> None:
    """The person hears of it long before the call is given up."""
    told = run_virtually(tellings(double, Reply(text="x", pause_s=10), bytewise=True))
    assert told == ["told", "no content for 300 s"]


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="x" * 100, piece=1, pause_s=3),
        Reply(thinking="x" * 100, text="y", piece=1, pause_s=3),
        Reply(text="x", pause_s=8),
        Reply(text="Well", trouble="stall"),
    ],
    ids=["slow", "slow thoughts", "soon over", "cut as silent"],
)
def test_what_is_slow_or_silent_is_no_trickle(double: Double, reply: Reply) -> None:
    """A slow answer is seen to grow; of silence recovery tells, as of other failures."""
    assert "told" not in run_virtually(tellings(double, reply))


@pytest.mark.thorough
@pytest.mark.parametrize("double", BOTH)
async def test_a_stream_without_an_end_is_left(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content does not put off the limit of the whole call; what came by then is billed."""
    monkeypatch.setattr(api, "WHOLE_CALL_S", 2.0)
    async with double() as server:
        reply = Reply(text="word " * 2000, piece=5, pause_s=0.02)
        error = await failure(server, reply)
        await asyncio.wait_for(server.left.wait(), 60)
    assert type(error) is ModelUnreachable
    assert str(error) == "no end within 2 s"
    assert 0 < error.written_tokens < 2000


ENDLESS = {
    "text": ({"text": "word"}, ("text_delta", '"content": "word', "output_text.delta")),
    "thoughts": (
        {"thinking": "hmm"},
        ("thinking_delta", "reasoning_content", "reasoning_summary_text.delta"),
    ),
    "arguments": (
        {"calls": (("current_time", {"zone": "UTC"}),)},
        ("input_json_delta", '"function": {"arguments"', "function_call_arguments.delta"),
    ),
}


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("what", ENDLESS)
async def test_a_fast_stream_without_an_end_is_left_by_its_size(
    monkeypatch: pytest.MonkeyPatch, double: Double, what: str
) -> None:
    """Whatever it is that never ends: the rest is not read, no call is made, what came stays."""
    fields, marks = ENDLESS[what]
    extra = {"endless": marks[BOTH.index(double)]}
    monkeypatch.setattr("agent.models.api.CHARS_PER_TOKEN", 1)
    monkeypatch.setattr("agent.models.api.LEAST_ANSWER_CHARS", 20_000)
    async with double() as server, asyncio.timeout(60):
        server.script(Reply(**fields, trouble="endless", extra=extra))
        done = await ask(server)
        await server.left.wait()
    kept = len(done.message["content"] or "") + len(done.message.get("reasoning", ""))
    assert done.stop_reason == "endless"
    assert 19_500 <= kept <= 20_000 if what != "arguments" else not kept
    assert done.message.keys() <= {"role", "content", "reasoning"}
    assert server.sent_bytes < 20_000_000


@pytest.mark.parametrize("double", BOTH)
async def test_an_event_without_an_end_is_not_collected(double: Double) -> None:
    """Clients keep an event until it ends; beyond 8 MB it counts as a broken stream."""
    async with double() as server, asyncio.timeout(60):
        error = await failure(server, Reply(text="Once", trouble="endless_event"))
        await server.left.wait()
    assert type(error) is ModelUnreachable
    assert server.sent_bytes < 30_000_000


@pytest.mark.parametrize("double", BOTH)
async def test_an_error_page_is_read_as_far_as_is_sensible(double: Double) -> None:
    """A body that is no stream ends the call at 8 MB."""
    async with double() as server:
        error = await failure(server, Fault(status=502, html="<p>" * 4_000_000))
    assert type(error) is ModelUnreachable


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("status", [401, 404, 502])
async def test_pages_of_html_are_not_quoted(double: Double, status: int) -> None:
    """What a proxy writes for a browser is of no use in a log."""
    async with double() as server:
        assert str(await failure(server, Fault(status=status, html=PAGE))) == f"HTTP {status}"


@pytest.mark.parametrize("double", BOTH)
async def test_html_inside_an_error_is_not_quoted(double: Double) -> None:
    """Gateways put the page of their upstream into the message."""
    async with double() as server:
        error = await failure(server, Fault(status=502, error="api_error", message=PAGE))
    assert str(error) == "HTTP 502: api_error"


@pytest.mark.parametrize("double", BOTH)
async def test_retry_after_an_hour_is_passed_on(double: Double) -> None:
    """What to make of it is the policy's business."""
    async with double() as server:
        fault = Fault(status=429, error="rate_limit_error", headers={"retry-after": "3600"})
        error = await failure(server, fault)
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 3600


@pytest.mark.parametrize("double", BOTH)
async def test_too_large_requests_are_overflows(double: Double) -> None:
    """By tokens and by bytes, in the words of each provider."""
    for limits in ({"max_prompt_tokens": 10}, {"max_bytes": 50}):
        async with double() as server:
            for name, limit in limits.items():
                setattr(server, name, limit)
            with pytest.raises(ContextOverflow):
                await ask(server)
            assert len(server.refused) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "item",
    [
        Reply(text="Once upon a time there was", trouble="cut", usage=REPORT),
        Reply(text="Once upon a time there was", trouble="stall", usage=REPORT),
        Reply(text="Once upon a time there was", trouble="pings", usage=REPORT),
        Reply(text="Once upon a time there was", error="overloaded_error", usage=REPORT),
    ],
)
async def test_broken_stream_carries_its_bill(item: Reply) -> None:
    """Input and cache as reported, output estimated by what was streamed."""
    async with AnthropicServer() as server:
        error = await failure(server, item, idle_timeout_s=2)
    written = estimate_tokens(item.text, "claude-sonnet-5-5")
    assert error.usage == Usage(3, written, 1000, 70)


async def test_bill_counts_thoughts_and_calls() -> None:
    """Everything that was written is billed, shown or not."""
    reply = Reply(
        thinking="Which time is it?",
        text="Looking.",
        calls=(("current_time", {"zone": "Europe/Paris"}),),
        trouble="cut",
    )
    async with AnthropicServer() as server:
        error = await failure(server, reply, ModelRequest(ASK, (CLOCK,)))
    written = 'Which time is it?Looking.current_time{"zone": "Europe/Paris"}'
    assert error.usage is not None
    assert error.usage.output_tokens == estimate_tokens(written, "claude-sonnet-5-5")


async def test_final_count_is_not_estimated() -> None:
    """A stream that is cut after the last report is billed as reported."""
    async with AnthropicServer() as server:
        server.frames = (
            lambda body, reply: [  # type: ignore[method-assign]
                frame.replace(b'"end_turn"', b"null")
                for frame in AnthropicServer.frames(server, body, reply)[:-1]
            ]
        )
        final = {"output_tokens": 2}
        reply = Reply(text="Once upon a time " * 9, usage=REPORT, extra={"final_usage": final})
        assert (await failure(server, reply)).usage == Usage(3, 2, 1000, 70)


@pytest.mark.parametrize("double", BOTH)
async def test_nothing_reported_is_no_bill(double: Double) -> None:
    """Before the answer has begun nothing is known."""
    async with double() as server:
        error = await failure(server, Fault(status=500))
    assert (error.usage, error.written_tokens) == (None, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("reply", "written"),
    [
        (Reply(text="Once upon a time", trouble="cut"), "Once upon a time"),
        (Reply(text="<think>Hm, hm. Once upon a time", trouble="cut"), "Hm, hm. Once upon a time"),
        (Reply(text="<think>Hm.</think>Once <th", trouble="cut"), "Hm.Once <th"),
        (Reply(thinking="Which time is it?", text="Oh", trouble="stall"), "Which time is it?Oh"),
        (Reply(extra={"refusal": "I will not."}, trouble="cut"), "I will not."),
        (Reply(text="Once upon a time", error="server_error"), "Once upon a time"),
        (Reply(text="Once upon a time", stop="error", usage=None), "Once upon a time"),
        (Reply(trouble="cut"), ""),
    ],
)
async def test_openai_tells_what_was_streamed(reply: Reply, written: str) -> None:
    """It reports with the last chunk alone: that the model has spoken is all there is."""
    async with OpenAIServer() as server:
        error = await failure(server, reply, idle_timeout_s=3)
    assert (error.usage, error.written_tokens) == (None, estimate_tokens(written, "local-1"))


async def test_an_answer_that_ends_in_an_error_costs_what_was_streamed() -> None:
    """Its last chunk may report less: a stream that is cut is billed all the same."""
    text = "Once upon a time. " * 20
    reply = Reply(text=text, stop="error", usage={"completion_tokens": 1})
    async with OpenAIServer() as server:
        error = await failure(server, reply)
    assert error.usage is not None
    assert error.usage.output_tokens == estimate_tokens(text, "local-1")


async def test_a_proxy_that_reports_nothing_tells_what_was_streamed() -> None:
    """Zeros are no report: there is no call without a prompt."""
    usage = {"input_tokens": 0, "output_tokens": 0}
    async with AnthropicServer() as server:
        error = await failure(server, Reply(text="Once upon a", trouble="cut", usage=usage))
    written = estimate_tokens("Once upon a", "claude-sonnet-5-5")
    assert (error.usage, error.written_tokens) == (None, written)


async def test_openai_reports_before_the_end_count() -> None:
    """Servers that report with every chunk tell what a cut answer has cost."""
    async with OpenAIServer() as server:
        usage = {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41}
        chunk = b'data: {"choices": [], "usage": %s}\n\n' % str(usage).replace("'", '"').encode()
        server.frames = lambda body, reply: [  # type: ignore[method-assign]
            chunk,
            *OpenAIServer.frames(server, body, reply),
        ]
        error = await failure(server, Reply(text="Once upon a time", trouble="cut"))
    assert error.usage == Usage(40, estimate_tokens("Once upon a time", "local-1"))


@pytest.mark.thorough
async def test_chunks_without_choices_count_as_pings() -> None:
    """They keep the connection open and say nothing."""
    async with OpenAIServer() as server:
        server.ping = b'data: {"choices": []}\n\n'
        error = await failure(server, Reply(trouble="pings"), idle_timeout_s=1)
    assert str(error) == "no content for 5 s"


@pytest.mark.parametrize("double", BOTH)
async def test_cancellation_in_the_stream_goes_on(double: Double) -> None:
    """The limits of a call do not turn a cancellation into a failure."""
    sink = SinkSpy()
    async with double() as server, connected(server) as model, asyncio.timeout(60):
        server.script(Reply(text="Well", trouble="pings"))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(model.complete(ModelRequest(ASK), sink), name="call")
            await sink.started.wait()
            task.cancel()
        await server.left.wait()
    assert task.cancelled()
