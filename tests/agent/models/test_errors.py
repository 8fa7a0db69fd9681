"""Which failure means what: by status, type and code; texts decide only inside of those."""

import pytest

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from tests.agent.models.clients import BOTH, Double, ask
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import Fault, ModelServer
from tests.support.openai_server import OpenAIServer

EXTRA_USAGE = "Extra usage is required for long context requests."
NO_BETA = "The long context beta is not yet available for this subscription."
TPM = "Request too large for gpt-x in organization o on tokens per min (TPM): Limit 3, Requested 4"


async def kind_of(server: ModelServer, fault: Fault) -> type[ModelError]:
    server.script(fault)
    with pytest.raises(ModelError) as caught:
        await ask(server)
    return type(caught.value)


@pytest.mark.parametrize(
    ("status", "error", "message", "expected"),
    [
        (429, "rate_limit_error", EXTRA_USAGE, ContextOverflow),
        (400, "invalid_request_error", NO_BETA, ContextOverflow),
        (403, "permission_error", NO_BETA, ContextOverflow),
        (500, "api_error", EXTRA_USAGE, ModelUnreachable),
        (429, "rate_limit_error", "prompt is too long: 9 > 8", RateLimited),
        (401, "authentication_error", "prompt is too long", CredentialsRefused),
        (529, "overloaded_error", "context window", RateLimited),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 190 + 20 > 200",
            ContextOverflow,
        ),
    ],
)
async def test_anthropic(status: int, error: str, message: str, expected: type[ModelError]) -> None:
    """A text that belongs to another status or type changes nothing."""
    async with AnthropicServer() as server:
        fault = Fault(status=status, error=error, message=message)
        assert await kind_of(server, fault) is expected


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"message": "maximum context length is 8", "code": 400}, ContextOverflow),
        (
            400,
            {
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "n_ctx": 8,
            },
            ContextOverflow,
        ),
        (
            400,
            {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"message":"prompt is too long: 9 tokens > 8 maximum"}'},
            },
            ContextOverflow,
        ),
        (400, {"message": "The input token count (9) exceeds the maximum"}, ContextOverflow),
        (422, {"message": "context length must be a number"}, BadRequest),
        (500, {"message": "context length exceeded"}, ContextOverflow),
        (413, {"message": TPM, "code": "rate_limit_exceeded"}, ContextOverflow),
        (429, {"message": TPM, "code": "rate_limit_exceeded"}, ContextOverflow),
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, RateLimited),
        (429, {"message": "context length", "code": None}, RateLimited),
        (429, {"message": "no money", "type": "insufficient_quota"}, CreditUsedUp),
        (402, {"message": "This request requires more credits", "code": 402}, CreditUsedUp),
        (403, {"message": "no", "metadata": {"reasons": ["violence"]}}, ModelRefused),
        (403, {"message": "no", "metadata": None}, CredentialsRefused),
        (403, {"message": "Key limit exceeded (total limit)", "code": 403}, CreditUsedUp),
        (404, {"message": "No endpoints found that support tool use"}, ModelNotFound),
        (400, {"message": ["odd"], "type": {"odd": 1}, "code": None}, BadRequest),
        (503, {"message": "overloaded"}, ModelUnreachable),
    ],
)
async def test_openai(status: int, body: dict[str, object], expected: type[ModelError]) -> None:
    """Compatible servers say in words what OpenAI has codes for."""
    async with OpenAIServer() as server:
        server.error_body = lambda fault: {"error": body}  # type: ignore[method-assign]
        assert await kind_of(server, Fault(status=status)) is expected


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
async def test_an_unavailable_server_that_says_when_to_come_back(
    double: Double, header: str
) -> None:
    """It is overloaded: what it asks for is kept to, and it rests for so long."""
    async with double() as server:
        server.script(Fault(status=503, error="api_error", headers={header: "3000"}))
        with pytest.raises(RateLimited) as caught:
            await ask(server)
    assert caught.value.retry_after_s == {"retry-after": 3000, "retry-after-ms": 3}[header]


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    ("status", "headers"), [(503, {"retry-after": "soon"}), (503, {}), (500, {"retry-after": "9"})]
)
async def test_other_server_errors_are_unreachable(
    double: Double, status: int, headers: dict[str, str]
) -> None:
    """Nothing says that waiting so long would help."""
    async with double() as server:
        fault = Fault(status=status, error="api_error", headers=headers)
        assert await kind_of(server, fault) is ModelUnreachable


async def test_body_without_the_envelope() -> None:
    """Older vLLM servers send the error itself."""
    async with OpenAIServer() as server:
        body = {"object": "error", "message": "maximum context length is 8", "code": 400}
        server.error_body = lambda fault: body  # type: ignore[method-assign]
        assert await kind_of(server, Fault(status=400)) is ContextOverflow


@pytest.mark.parametrize("body", [{"error": {"type": 7, "message": {}}}, {"error": "odd"}, []])
async def test_odd_bodies_are_judged_by_the_status(body: object) -> None:
    """Whatever a proxy makes of the body, the status is there."""
    async with AnthropicServer() as server:
        server.error_body = lambda fault: body  # type: ignore[assignment,method-assign,return-value]
        assert await kind_of(server, Fault(status=429)) is RateLimited
