"""From settings to a model."""

import subprocess
import sys
from typing import get_args
from urllib.parse import urlsplit

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from agent.errors import CredentialsRefused, ModelNotFound
from agent.models.catalog import PROVIDERS
from agent.models.factory import CHAT_FIELDS, build_models, resolve_provider
from agent.models.openai.client import OpenAIModel
from agent.models.openai.responses import ResponsesModel
from agent.settings import ModelSettings, Provider


def settings(**values: object) -> ModelSettings:
    return ModelSettings.model_validate(values)


@pytest.mark.parametrize(
    ("values", "provider"),
    [
        ({}, "offline"),
        ({"name": "claude-sonnet-5"}, "offline"),
        ({"api_key": "sk-ant-1"}, "anthropic"),
        ({"api_key": "k", "name": "claude-sonnet-5"}, "anthropic"),
        ({"api_key": "sk-1"}, "openai"),
        ({"base_url": "http://localhost:1/v1"}, "openai"),
        ({"provider": "nous", "api_key": "sk-ant-1"}, "nous"),
    ],
)
def test_provider(values: dict[str, object], provider: str) -> None:
    """A named provider stays; auto follows the key, then the base URL."""
    assert resolve_provider(settings(**values)) == provider


@pytest.mark.parametrize(
    ("values", "provider", "name", "window"),
    [
        ({"api_key": "sk-ant-1"}, "anthropic", "claude-sonnet-5-5", 1_000_000),
        ({"api_key": "sk-1"}, "openai", "gpt-6.1-terra", 128_000),
        ({"api_key": "k", "provider": "openrouter", "name": "x/y"}, "openrouter", "x/y", 128_000),
        ({"base_url": "http://localhost:1/v1", "context_length": 4096}, "openai", None, 4096),
    ],
)
async def test_models_are_built(
    values: dict[str, object], provider: str, name: str | None, window: int
) -> None:
    """Each provider's class gets its name, window and default model."""
    [model] = build_models(settings(**values))
    assert (model.provider, model.context_length) == (provider, window)
    assert name in {None, model.name}
    await model.close()


def test_every_provider_is_in_the_table() -> None:
    """A provider that can be set but is not in the table would have no address and no class."""
    assert {*get_args(Provider)} == {"auto", "offline", *PROVIDERS}


@pytest.mark.parametrize(
    ("provider", "host"),
    [("openrouter", "openrouter.ai"), ("nous", "inference-api.nousresearch.com")],
)
async def test_presets_know_their_address(provider: str, host: str) -> None:
    """A preset is an OpenAI model at that provider's base URL."""
    [model] = build_models(settings(provider=provider, api_key="k", name="x"))
    assert isinstance(model, OpenAIModel)
    assert urlsplit(model._server.base_url).hostname == host
    await model.close()


@pytest.mark.parametrize(
    ("provider", "place"),
    [
        ("anthropic", "model.api_key or ANTHROPIC_API_KEY"),
        ("openai", "model.api_key or OPENAI_API_KEY"),
        ("openrouter", "model.api_key"),
    ],
)
def test_missing_key_names_the_setting(
    provider: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to set; the SDKs' own variables are not looked at."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(CredentialsRefused, match=f"{place}$"):
        build_models(settings(provider=provider, name="x"))


def test_preset_without_a_name_says_so() -> None:
    """A router has no default model."""
    with pytest.raises(ModelNotFound, match="has no default model"):
        build_models(settings(provider="nous", api_key="k"))


async def test_offline_needs_nothing() -> None:
    """Without key and base URL the offline model answers."""
    [model] = build_models(settings())
    assert model.provider == "offline"
    await model.close()


@pytest.mark.thorough
def test_only_the_chosen_sdk_is_imported() -> None:
    """The factory alone, and an offline model, load neither SDK."""
    code = (
        "import sys; from agent.models.factory import build_models; "
        "from agent.settings import ModelSettings; build_models(ModelSettings()); "
        "sys.exit(bool({'anthropic', 'openai', 'httpx2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("values", "is_responses"),
    [
        ({"api_key": "sk-1"}, True),
        ({"api_key": "sk-1", "name": "gpt-5-mini"}, True),
        ({"api_key": "sk-1", "name": "o4-mini"}, True),
        ({"api_key": "sk-1", "name": "gpt-4.1"}, False),
        ({"api_key": "sk-1", "name": "gpt-4o"}, False),
        ({"api_key": "sk-1", "api": "chat"}, False),
        ({"api_key": "sk-1", "name": "gpt-4o", "api": "responses"}, True),
        ({"api_key": "sk-1", "extra_body": {"reasoning_effort": "low"}}, False),
        ({"api_key": "sk-1", "extra_body": {"reasoning": {"effort": "low"}}}, True),
        ({"api_key": "sk-1", "base_url": "https://eu.api.openai.com/v1"}, True),
        ({"base_url": "http://localhost:1/v1", "name": "gpt-5"}, False),
        ({"base_url": "http://localhost:1/v1", "name": "gpt-5", "api": "responses"}, True),
        ({"provider": "openrouter", "api_key": "k", "name": "openai/gpt-5"}, False),
        ({"api_key": "sk-ant-1", "api": "responses"}, False),
    ],
)
async def test_which_of_openais_apis(values: dict[str, object], is_responses: bool) -> None:
    """Responses for its own reasoning models; what the settings say holds for servers like it."""
    [model] = build_models(settings(**values))
    assert isinstance(model, ResponsesModel) is is_responses
    await model.close()


def test_fields_of_chat_completions_alone_are_those_of_the_sdk() -> None:
    """What Parley writes itself, and what it may not have, left out."""
    chat = set(CompletionCreateParamsBase.__annotations__)
    responses = set(ResponseCreateParamsBase.__annotations__)
    assert chat - responses - {"messages"} == CHAT_FIELDS
