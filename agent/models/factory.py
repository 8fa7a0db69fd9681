"""Build models from the `model:` settings, and name them for selection.

Only the chosen provider's SDK is imported.
"""

from collections.abc import Sequence

from pydantic import SecretStr

from agent.models.base import ChatModel
from agent.models.catalog import DEFAULT_NAMES, PROVIDERS, base_url_of, can_reason, provider_of
from agent.models.openai.mode import is_official
from agent.prompt_caching import is_claude
from agent.settings import ModelSettings, Provider

# Source: the fields that CompletionCreateParams has and ResponseCreateParams lacks, OpenAI's SDK
# 3.54.0.
CHAT_FIELDS = frozenset({
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "max_tokens", "modalities", "n", "prediction", "presence_penalty"),
    *("reasoning_effort", "response_format", "seed", "stop", "verbosity", "web_search_options"),
})
"""Request fields that only Chat Completions has."""


def build_models(settings: ModelSettings) -> list[ChatModel]:
    """Return one model per configured key, in order; makes no network call.

    Raises:
        CredentialsRefused: The provider requires a key, but none is configured.
        ModelNotFound: No model is configured, and the provider has no default.
        BadRequest: `extra_body` sets a reserved field.
    """
    # The demo model needs no account.
    keys = [] if resolve_provider(settings) == "offline" else _keys(settings)
    return [_build(settings, key, number) for number, key in enumerate(keys or [None], start=1)]


def resolve_provider(settings: ModelSettings) -> Provider:
    """Resolve the provider; "auto" uses the key, then the base URL, else the offline model."""
    if settings.provider != "auto":
        return settings.provider
    if keys := _keys(settings):
        claude = provider_of(_text(keys[0])) == "anthropic" or is_claude(settings.name or "")
        return "anthropic" if claude else "openai"
    return "openai" if settings.base_url else "offline"


def group_by_choice(models: Sequence[ChatModel]) -> dict[str, list[ChatModel]]:
    """Group the models by the names that select them, in order.

    The keys of one model form one choice. If several providers offer a model of the same name, its
    choices are prefixed with the provider.
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
    """Return whether a model uses the Responses API; the provider is already resolved.

    By default only OpenAI's own reasoning models do, unless the operator's extra fields belong to
    Chat Completions, which all other servers speak.
    """
    if settings.api != "auto":
        return settings.api == "responses"
    if settings.provider != "openai" or not is_official(base_url_of(settings)):
        return False
    is_reasoning = can_reason(settings.name or DEFAULT_NAMES["openai"])
    return is_reasoning and CHAT_FIELDS.isdisjoint(settings.extra_body)


def _keys(settings: ModelSettings) -> list[SecretStr]:
    """Return the configured keys without duplicates and empty values."""
    secrets = (settings.api_key, *settings.api_keys)
    # Kept as secrets, so that a referenced key can be reread.
    found = {_text(secret): secret for secret in reversed(secrets) if secret and _text(secret)}
    return list(reversed(found.values()))


def _text(key: SecretStr) -> str:
    return key.get_secret_value().strip()
