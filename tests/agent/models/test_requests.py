"""What the settings add to requests: further keys, fields of the operator, questions."""

import pytest

from agent.errors import BadRequest, CredentialsRefused
from agent.messages import tool_message
from agent.models.anthropic.client import AnthropicModel
from agent.models.base import ModelRequest
from agent.models.catalog import FREE
from agent.models.factory import build_models
from agent.models.offline import OfflineModel
from agent.models.openai.client import OpenAIModel
from agent.prompt_caching import apply_cache_control
from agent.settings import ModelSettings
from tests.agent.models.clients import ASK, BOTH, CLOCK, KEY, Double, ask
from tests.support.anthropic_server import AnthropicServer
from tests.support.model_server import Fault, Reply, SinkSpy
from tests.support.openai_server import OpenAIServer
from tests.support.responses_server import ResponsesServer
from tests.support.scripted_model import ScriptedModel


def settings(**values: object) -> ModelSettings:
    return ModelSettings.model_validate(values)


@pytest.mark.parametrize("double", BOTH)
async def test_extra_fields_are_sent_and_win(double: Double) -> None:
    """The operator's fields go into the body, also in place of Parley's own."""
    limit = "max_output_tokens" if double is ResponsesServer else "max_tokens"
    async with double(default=Reply(text="ok")) as server:
        await ask(server, extra_body={"service_tier": "auto", limit: 77})
        body = server.requests[0].body
    assert (body["service_tier"], body[limit]) == ("auto", 77)


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize(
    "field",
    [
        "model",
        "messages",
        "system",
        "tools",
        "stream",
        "cache_control",
        "input",
        "instructions",
        "previous_response_id",
        "conversation",
        "background",
    ],
)
async def test_fields_that_parley_writes_are_refused(double: Double, field: str) -> None:
    """The error comes at start-up and names the setting."""
    async with double() as server:
        with pytest.raises(BadRequest, match=rf"^model\.extra_body must not set '{field}'$"):
            await ask(server, extra_body={field: []})
    assert server.requests == []


async def test_numbers_as_keys_are_sent_as_texts() -> None:
    """YAML has them, as in `logit_bias`; JSON has not."""
    async with OpenAIServer(default=Reply(text="ok")) as server:
        await ask(server, extra_body={"logit_bias": {50256: -100}})
    assert server.requests[0].body["logit_bias"] == {"50256": -100}


@pytest.mark.parametrize("double", BOTH)
async def test_fields_that_are_no_json_are_refused(double: Double) -> None:
    """The error comes at start-up and not with the first answer."""
    async with double() as server:
        with pytest.raises(BadRequest, match=r"^model\.extra_body is not JSON: "):
            await ask(server, extra_body={"metadata": {"tags": {"a", "b"}}})
    assert server.requests == []


async def test_no_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's SDK knows keys for administration; a model's server gets the model's key alone."""
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-0123456789")
    async with OpenAIServer(default=Reply(text="ok")) as server:
        await ask(server)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "sk-admin" not in str(server.requests[0].headers)


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "web search", "", "x" * 65])
async def test_a_call_of_what_is_no_tool_can_be_sent_back(double: Double, name: str) -> None:
    """Providers refuse the name that they let the model write."""
    async with double() as server:
        server.script(Reply(calls=((name, {"a": 1}),)), Reply(text="ok"))
        answer = (await ask(server, ModelRequest(ASK, (CLOCK,)))).message
        [made] = answer.get("tool_calls", [])
        history = [*ASK, answer, tool_message(made["id"], name, "there is no such tool")]
        assert (await ask(server, ModelRequest(history, (CLOCK,)))).message["content"] == "ok"


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ({"api_key": "a"}, ["m"]),
        ({"api_keys": ["a", "b"]}, ["m", "m (key 2)"]),
        ({"api_key": "a", "api_keys": ["a", " ", "b", "a", "c"]}, ["m", "m (key 2)", "m (key 3)"]),
        ({"api_key": "b", "api_keys": ["a", "b"]}, ["m", "m (key 2)"]),
    ],
)
async def test_one_model_for_each_key(keys: dict[str, object], labels: list[str]) -> None:
    """In their order, without repetitions; the name is the same."""
    models = build_models(settings(provider="openai", name="m", **keys))
    assert [model.name for model in models] == ["m"] * len(labels)
    assert [model.label for model in models] == labels
    for model in models:
        await model.close()


async def test_each_model_uses_its_own_key() -> None:
    """A key that is refused does not spoil the next one."""
    async with AnthropicServer(KEY, default=Reply(text="ok")) as server:
        server.key_faults = {"sk-old": Fault(status=401, error="authentication_error")}
        spent, good = build_models(
            settings(provider="anthropic", base_url=server.url, api_keys=["sk-old", KEY])
        )
        with pytest.raises(CredentialsRefused):
            await spent.complete(ModelRequest(ASK), SinkSpy())
        assert (await good.complete(ModelRequest(ASK), SinkSpy())).message["content"] == "ok"
        for model in (spent, good):
            await model.close()


async def test_keys_alone_choose_the_provider() -> None:
    """The first of several keys counts like a single one."""
    models = build_models(settings(api_keys=["sk-ant-1", "sk-ant-2"]))
    assert [model.provider for model in models] == ["anthropic", "anthropic"]
    for model in models:
        await model.close()


def test_the_offline_model_needs_no_key() -> None:
    """Keys of another provider make no second one."""
    assert len(build_models(settings(provider="offline", api_keys=["a", "b"]))) == 1
    assert len(build_models(settings())) == 1


async def test_facts_and_layout_are_known_before_the_first_call() -> None:
    """Prices come from the table or the settings, the layout from the provider."""
    priced = {"input_usd": 1, "output_usd": 2}
    claude = AnthropicModel(settings(provider="anthropic", api_key="k", facts=priced))
    router = {"provider": "openrouter", "api_key": "k", "name": "anthropic/claude-sonnet-5"}
    routed = OpenAIModel(settings(**router))
    local = OpenAIModel(settings(provider="openai", base_url="http://localhost:1/v1", name="x"))
    assert claude.facts.prices is not None
    assert (claude.facts.prices.input, claude.facts.name) == (1, "claude-sonnet-5-5")
    assert local.facts.prices is None
    layouts = [model.cache_layout for model in (claude, routed, local)]
    assert layouts == ["native", "envelope", None]
    for model in (claude, routed, local):
        await model.close()


def test_models_inside_parley_cost_nothing() -> None:
    """Unless a test says otherwise."""
    offline, scripted = OfflineModel(settings()), ScriptedModel([])
    assert (offline.facts.prices, scripted.facts.prices) == (FREE, FREE)
    assert (offline.cache_layout, scripted.cache_layout) == (None, None)
    named = ScriptedModel([], name="m", cache_layout="native", facts=offline.facts)
    assert (named.name, named.label, named.cache_layout) == ("m", "m", "native")
    assert named.facts is offline.facts


async def test_markers_reach_an_envelope() -> None:
    """Claude over OpenRouter gets its breakpoints on content parts."""
    async with OpenAIServer(default=Reply(text="ok")) as server:
        server.extensions = frozenset({"cache_control"})
        name = "anthropic/claude-sonnet-5"
        request = ModelRequest(apply_cache_control(ASK, native=False))
        await ask(server, request, provider="openrouter", name=name)
        marked = server.requests[0].body["messages"][0]["content"]
    assert marked[0]["cache_control"] == {"type": "ephemeral"}


async def test_prefix_of_a_conversation_stays() -> None:
    """The double finds what was sent up to the last breakpoint again in the next request."""
    async with AnthropicServer() as server:
        server.script(Reply(calls=(("current_time", {"b": 1, "a": "ü"}),)), Reply(text="Noon."))
        history = list(ASK)
        for _ in range(2):
            marked = apply_cache_control(history)
            answer = (await ask(server, ModelRequest(marked, (CLOCK,), conversation="c"))).message
            calls = answer.get("tool_calls", [])
            history += [answer, *(tool_message(each["id"], "current_time", "") for each in calls)]
        assert len(server.requests) == 2
        assert server.moved == []
