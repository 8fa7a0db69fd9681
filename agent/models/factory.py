"""From `model:` settings to a model. Only the chosen provider's SDK is imported."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from agent.models.catalog import is_claude

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.models.base import ChatModel
    from agent.settings import ModelSettings, Provider

_OPENAI = "agent.models.openai:OpenAIModel"
_CLASSES: dict[str, str] = {
    "anthropic": "agent.models.anthropic:AnthropicModel",
    "openai": _OPENAI,
    "openrouter": _OPENAI,
    "nous": _OPENAI,
    "offline": "agent.models.offline:OfflineModel",
}


def build_model(settings: "ModelSettings") -> "ChatModel":
    """Return the model that the settings name; no network call is made.

    Raises:
        CredentialsRefused: The provider needs a key and there is none.
        ModelNotFound: The provider has no default model and none is named.
    """
    provider = resolve_provider(settings)
    module, _, class_name = _CLASSES[provider].partition(":")
    build = cast("Callable[[ModelSettings], ChatModel]", getattr(import_module(module), class_name))
    return build(settings.model_copy(update={"provider": provider}))


def resolve_provider(settings: "ModelSettings") -> "Provider":
    """Return the provider; "auto" follows the key, then the base URL, else is offline."""
    if settings.provider != "auto":
        return settings.provider
    if settings.api_key is not None:
        key = settings.api_key.get_secret_value()
        claude = key.startswith("sk-ant-") or is_claude(settings.name or "")
        return "anthropic" if claude else "openai"
    return "openai" if settings.base_url else "offline"
