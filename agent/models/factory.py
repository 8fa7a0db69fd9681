"""From `model:` settings to models, and the names under which people choose among them.

Only the chosen provider's SDK is imported.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

from agent.models.base import ChatModel
from agent.models.catalog import DEFAULT_NAMES, reasons
from agent.models.openai.mode import OFFICIAL_URL, is_official
from agent.models.providers import provider_of
from agent.settings import ModelSettings, Provider
from agent.usage import is_claude

# Source: CompletionCreateParams without what ResponseCreateParams has, OpenAI's SDK 3.54.0.
CHAT_FIELDS = frozenset({
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "max_tokens", "modalities", "n", "prediction", "presence_penalty"),
    *("reasoning_effort", "response_format", "seed", "stop", "verbosity", "web_search_options"),
})
"""Fields of requests that Chat Completions alone knows."""


def build_models(settings: ModelSettings) -> list[ChatModel]:
    """Return the model once for each of its keys, in their order; they differ in nothing else.

    Raises:
        ModelError: As for `build_model`.
    """
    keys = _keys(settings)
    # The demo model has no account that a second key could be of.
    if len(keys) < 2 or resolve_provider(settings) == "offline":
        return [build_model(settings)]
    return [_build(settings, key, number) for number, key in enumerate(keys, start=1)]


def build_model(settings: ModelSettings) -> ChatModel:
    """Return the model that the settings name, with its first key; no network call is made.

    Raises:
        CredentialsRefused: The provider needs a key and there is none.
        ModelNotFound: The provider has no default model and none is named.
        BadRequest: `extra_body` holds what Parley writes itself.
    """
    return _build(settings, next(iter(_keys(settings)), None))


def resolve_provider(settings: ModelSettings) -> Provider:
    """Return the provider; "auto" follows the key, then the base URL, else is offline."""
    if settings.provider != "auto":
        return settings.provider
    if keys := _keys(settings):
        claude = provider_of(_text(keys[0])) == "anthropic" or is_claude(settings.name or "")
        return "anthropic" if claude else "openai"
    return "openai" if settings.base_url else "offline"


def choices(models: Sequence[ChatModel]) -> dict[str, list[ChatModel]]:
    """Return the models by the name under which they are chosen, in their order.

    The keys of one model are one choice. Where several providers have models of one name, the
    provider stands before it.
    """
    providers: dict[str, set[str]] = {}
    for model in models:
        providers.setdefault(model.name, set()).add(model.provider)
    found: dict[str, list[ChatModel]] = {}
    for model in models:
        is_one = len(providers[model.name]) == 1
        found.setdefault(model.name if is_one else f"{model.provider}/{model.name}", []).append(
            model
        )
    return found


def _build(settings: ModelSettings, key: SecretStr | None, number: int = 1) -> ChatModel:
    provider = resolve_provider(settings)
    chosen = settings.model_copy(update={"provider": provider, "api_key": key})
    build = _class_of(provider, chosen)
    counted = {"key_number": number} if number > 1 else {}
    model: ChatModel = build(chosen, **counted)
    return model


def _class_of(provider: Provider, settings: ModelSettings) -> Any:
    """Import a provider's client: an SDK takes 40 to 70 MB, and only one of them is needed."""
    match provider:
        case "offline":
            from agent.models.offline import OfflineModel  # noqa: PLC0415

            return OfflineModel
        case "anthropic":
            from agent.models.anthropic.client import AnthropicModel  # noqa: PLC0415

            return AnthropicModel
        case _ if speaks_responses(settings):
            from agent.models.openai.responses import ResponsesModel  # noqa: PLC0415

            return ResponsesModel
        case _:
            from agent.models.openai.client import OpenAIModel  # noqa: PLC0415

            return OpenAIModel


def speaks_responses(settings: ModelSettings) -> bool:
    """Return which of OpenAI's two APIs a model is asked through; the provider is resolved.

    By itself OpenAI's own reasoning models alone: other servers have Chat Completions for sure, and
    what the operator adds to each request is written for one of the two.
    """
    if settings.api != "auto":
        return settings.api == "responses"
    if settings.provider != "openai" or not is_official(settings.base_url or OFFICIAL_URL):
        return False
    return reasons(settings.name or DEFAULT_NAMES["openai"]) and not (
        CHAT_FIELDS & settings.extra_body.keys()
    )


def _keys(settings: ModelSettings) -> list[SecretStr]:
    """Return the configured keys without repetitions and empty ones."""
    secrets = (settings.api_key, *settings.api_keys)
    # As they are: a key that is referred to can be read again.
    found = {_text(secret): secret for secret in reversed(secrets) if secret and _text(secret)}
    return list(reversed(found.values()))


def _text(key: SecretStr) -> str:
    return key.get_secret_value().strip()
