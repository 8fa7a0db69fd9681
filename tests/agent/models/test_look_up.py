"""What providers say about a model."""

import pytest

from agent.errors import CredentialsRefused, CreditUsedUp, ModelError, ModelUnreachable, RateLimited
from agent.models.offline import OfflineModel
from agent.models.openai.client import OpenAIModel, window_in_list
from agent.settings import ModelSettings
from tests.agent.models.clients import BOTH, Double, connected
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import Fault, ModelServer
from tests.support.openai_server import OpenAIServer
from tests.support.scripted_model import ScriptedModel


async def look_up(server: ModelServer) -> int | None:
    async with connected(server) as model:
        return await model.look_up()


async def test_anthropic_says_how_large_the_window_is() -> None:
    """It is that of the model's entry."""
    async with AnthropicServer() as server:
        server.infos = {"claude-sonnet-5-5": {"max_input_tokens": 900_000, "max_tokens": 64_000}}
        assert await look_up(server) == 900_000
        assert server.look_ups == ["/v1/models/claude-sonnet-5-5"]


@pytest.mark.parametrize("info", [{}, {"max_input_tokens": None}, {"max_input_tokens": "many"}])
async def test_an_entry_without_sizes_says_nothing(info: dict[str, object]) -> None:
    """Proxies answer with less than the API does; that they answer is known all the same."""
    async with AnthropicServer() as server:
        server.infos = {"claude-sonnet-5-5": info}
        assert await look_up(server) == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"context_length": 200_000}, 200_000),
        ({"max_model_len": 32_768}, 32_768),
        ({"meta": {"n_ctx": 16_384, "n_ctx_train": 131_072}}, 16_384),
        ({"meta": {"n_ctx_train": 131_072}}, 0),
        ({"loaded_context_length": 4096, "max_context_length": 131_072}, 4096),
        ({"context_window": 131_072}, 131_072),
        ({"owned_by": "library"}, 0),
        ({"context_length": 0}, 0),
        ({"context_length": True}, 0),
        ({"context_length": "8192"}, 0),
    ],
)
async def test_each_server_names_it_otherwise(entry: dict[str, object], expected: int) -> None:
    """The entry of the model in the list is read, whatever the server calls the sizes."""
    async with OpenAIServer() as server:
        server.infos = {"other": {"max_model_len": 1}, "local-1": entry}
        assert await look_up(server) == expected
        assert server.look_ups == ["/v1/models"]


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ({"data": [{"id": "/models/x.gguf", "max_model_len": 5}]}, 5),
        ([{"id": "m", "max_model_len": 5}, {"id": "n"}], 5),
        ({"data": [{"id": "a", "max_model_len": 5}, {"id": "b", "max_model_len": 6}]}, 0),
        ({"data": None}, 0),
        ({"data": [None, "m"]}, 0),
        ("<html>", 0),
        (None, 0),
    ],
)
def test_lists(listing: object, expected: int) -> None:
    """A single model is the one that answers; among several the name decides."""
    assert window_in_list(listing, "m") == expected


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_server_that_cannot_be_asked(double: Double, status: int) -> None:
    """The question is not supported: nothing is known, and nothing is wrong."""
    async with double() as server:
        server.look_up_fault = Fault(status=status, error="invalid_request_error")
        assert await look_up(server) is None


@pytest.mark.thorough
@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=401), CredentialsRefused),
        (Fault(status=429), RateLimited),
        (Fault(status=502, html="<h1>Bad gateway</h1>"), ModelUnreachable),
        (Fault(status=200, json='{"data": ['), ModelUnreachable),
        (Fault(trouble="cut"), ModelUnreachable),
        (Fault(trouble="stall"), ModelUnreachable),
    ],
)
async def test_failures(
    double: Double, fault: Fault, expected: type[ModelError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went wrong is told, within the time limit."""
    monkeypatch.setattr("agent.models.api.LOOK_UP_TIMEOUT_S", 1.0)
    async with double() as server:
        server.look_up_fault = fault
        with pytest.raises(expected):
            await look_up(server)


@pytest.mark.parametrize("double", BOTH)
async def test_a_page_of_html_says_nothing(double: Double) -> None:
    """A wrong address that answers with status 200 is no failure of the model."""
    async with double() as server:
        server.look_up_fault = Fault(status=200, html="<h1>Welcome</h1>")
        assert await look_up(server) is None


@pytest.mark.parametrize("double", BOTH)
async def test_a_key_that_may_not_look_is_not_refused(double: Double) -> None:
    """OpenAI's restricted keys get 403 for the list, and answer all the same."""
    async with double() as server:
        server.look_up_fault = Fault(status=403, error="permission_error")
        assert await look_up(server) is None


@pytest.mark.parametrize("double", BOTH)
async def test_an_account_without_money_is_told(double: Double) -> None:
    """The key is good, and no message would be answered."""
    async with double() as server:
        server.look_up_fault = Fault(status=402, error="billing_error")
        with pytest.raises(CreditUsedUp):
            await look_up(server)


@pytest.mark.parametrize("key", ["right", "wrong"])
async def test_openrouter_is_asked_about_the_key(key: str) -> None:
    """Its list of models is public: a wrong key would be shown it, too."""
    async with OpenAIServer(api_key="right") as server:
        block = {"provider": "openrouter", "name": "m", "api_key": key, "base_url": server.url}
        model = OpenAIModel(ModelSettings.model_validate(block))
        if key == "right":
            assert await model.look_up() == 0
        else:
            with pytest.raises(CredentialsRefused):
                await model.look_up()
        await model.close()
        assert server.look_ups[0] == "/v1/key"


async def test_models_inside_parley_have_nobody_to_ask() -> None:
    """Their settings are all there is."""
    assert await OfflineModel(ModelSettings()).look_up() is None
    assert await ScriptedModel([]).look_up() is None
