"""Facts of the providers: their keys, addresses, and the pages of their accounts."""

from collections.abc import Mapping
from typing import NamedTuple


class ProviderFacts(NamedTuple):
    """Facts of one provider.

    Attributes:
        owner: Of the keys: "Anthropic".
        key_variable: Of the environment.
        key_shape: The beginning of its keys; empty if they have none in common.
        base_url: Of a preset of `openai`.
        example: A model, for providers without a default one.
    """

    owner: str
    key_variable: str
    key_shape: str = ""
    base_url: str = ""
    keys_at: str = ""
    credit_at: str = ""
    example: str = ""


# In the order in which provider `auto` looks for their keys.
PROVIDERS: Mapping[str, ProviderFacts] = {
    "anthropic": ProviderFacts(
        "Anthropic",
        "ANTHROPIC_API_KEY",
        "sk-ant-",
        keys_at="https://console.anthropic.com/settings/keys",
        credit_at="https://console.anthropic.com/settings/billing",
    ),
    "openai": ProviderFacts(
        "OpenAI",
        "OPENAI_API_KEY",
        "sk-",
        keys_at="https://platform.openai.com/api-keys",
        credit_at="https://platform.openai.com/settings/organization/billing",
    ),
    "openrouter": ProviderFacts(
        "OpenRouter",
        "OPENROUTER_API_KEY",
        "sk-or-",
        "https://openrouter.ai/api/v1",
        keys_at="https://openrouter.ai/settings/keys",
        credit_at="https://openrouter.ai/settings/credits",
        example="anthropic/claude-sonnet-5.5",
    ),
    "nous": ProviderFacts(
        "Nous Research", "NOUS_API_KEY", base_url="https://inference-api.nousresearch.com/v1"
    ),
}
KEY_VARIABLES = {name: facts.key_variable for name, facts in PROVIDERS.items()}


def provider_of(key: str) -> str | None:
    """Return the provider whose keys begin like this one, or None."""
    shapes = {name: facts.key_shape for name, facts in PROVIDERS.items() if facts.key_shape}
    fitting = [name for name, shape in shapes.items() if key.startswith(shape)]
    # OpenAI's shape begins the others, too.
    return max(fitting, key=lambda name: len(shapes[name]), default=None)
