"""From `model:` settings to models, and the names for choosing among them.

Only the chosen provider's SDK is imported.
"""

from collections.abc import Sequence

from pydantic import SecretStr

from agent.models.base import ChatModel
from agent.models.catalog import DEFAULT_NAMES, PROVIDERS, base_url_of, provider_of, reasons
from agent.models.openai.mode import is_official
from agent.prompt_caching import is_claude
from agent.settings import ModelSettings, Provider

# Source: CompletionCreateParams without what ResponseCreateParams has, OpenAI's SDK 3.54.0.
CHAT_FIELDS = frozenset({
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "max_tokens", "modalities", "n", "prediction", "presence_penalty"),
    *("reasoning_effort", "response_format", "seed", "stop", "verbosity", "web_search_options"),
})
"""Fields of requests that only Chat Completions has."""


def build_models(settings: ModelSettings) -> list[ChatModel]:
    """Return the model once for each of its keys, in order; no network call is made.

    Raises:
        CredentialsRefused: The provider needs a key and there is none.
        ModelNotFound: The provider has no default model and none is named.
        BadRequest: `extra_body` sets a reserved field.
    """
    # The demo model has no account.
    keys = [] if resolve_provider(settings) == "offline" else _keys(settings)
    return [_build(settings, key, number) for number, key in enumerate(keys or [None], start=1)]


def resolve_provider(settings: ModelSettings) -> Provider:
    """Return the provider; "auto" follows the key, then the base URL, else is offline."""
    if settings.provider != "auto":
        return settings.provider
    if keys := _keys(settings):
        claude = provider_of(_text(keys[0])) == "anthropic" or is_claude(settings.name or "")
        return "anthropic" if claude else "openai"
    return "openai" if settings.base_url else "offline"


def choices(models: Sequence[ChatModel]) -> dict[str, list[ChatModel]]:
    """Return the models by the names for choosing them, in order.

    The keys of one model are one choice. If several providers have a model of one name, the
    provider is a part of the names.
    """
    providers: dict[str, set[str]] = {}
    for model in models:
        providers.setdefault(model.name, set()).add(model.provider)
    found: dict[str, list[ChatModel]] = {}
    for model in models:
        is_one = len(providers[model.name]) == 1
        name = model.name if is_one else f"{model.provider}/{model.name}"
        found.setdefault(name, []).append(model)
    return found


def _build(settings: ModelSettings, key: SecretStr | None, number: int) -> ChatModel:
    provider = resolve_provider(settings)
    chosen = settings.model_copy(update={"provider": provider, "api_key": key})
    # An SDK takes 40 to 70 MB, and only one of them is needed.
    if provider == "offline":
        from agent.models.offline import OfflineModel  # noqa: PLC0415

        return OfflineModel(chosen)
    match PROVIDERS[provider].api:
        case "anthropic":
            from agent.models.anthropic.client import AnthropicModel  # noqa: PLC0415

            return AnthropicModel(chosen, key_number=number)
        case "openai" if _speaks_responses(chosen):
            from agent.models.openai.responses import ResponsesModel  # noqa: PLC0415

            return ResponsesModel(chosen, key_number=number)
        case "openai":
            from agent.models.openai.client import OpenAIModel  # noqa: PLC0415

            return OpenAIModel(chosen, key_number=number)


def _speaks_responses(settings: ModelSettings) -> bool:
    """Whether a model is asked through the Responses API; the provider is resolved.

    By default only OpenAI's own reasoning models, unless the operator's extra fields are those of
    Chat Completions: all other servers have that.
    """
    if settings.api != "auto":
        return settings.api == "responses"
    if settings.provider != "openai" or not is_official(base_url_of(settings)):
        return False
    is_reasoning = reasons(settings.name or DEFAULT_NAMES["openai"])
    return is_reasoning and CHAT_FIELDS.isdisjoint(settings.extra_body)


def _keys(settings: ModelSettings) -> list[SecretStr]:
    """Return the configured keys without repetitions and empty ones."""
    secrets = (settings.api_key, *settings.api_keys)
    # As secrets: a referenced key can be read again.
    found = {_text(secret): secret for secret in reversed(secrets) if secret and _text(secret)}
    return list(reversed(found.values()))


def _text(key: SecretStr) -> str:
    return key.get_secret_value().strip()
