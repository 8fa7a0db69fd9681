"""The tables of providers (keys, addresses) and of models (windows, prices, cache rules).

For each model the operator's settings take precedence over the provider's answer
(`ChatModel.look_up`), and that over the table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from agent.prompt_caching import is_claude
from agent.settings import FactsSettings, ModelSettings


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars per million tokens."""

    input: float
    cache_write_5m: float
    cache_write_1h: float
    cache_read: float
    output: float


FREE = Prices(0.0, 0.0, 0.0, 0.0, 0.0)
"""Prices of models that run inside Parley."""


class ProviderFacts(NamedTuple):
    """Facts of one provider.

    Attributes:
        owner: Company that issues the keys, as in "Anthropic".
        key_shape: Prefix of its keys; empty if they have none in common.
        base_url: Default address of its servers; `model.base_url` overrides it.
        example: A model name, for providers without a default model.
    """

    owner: str
    key_variable: str
    base_url: str
    key_shape: str = ""
    api: Literal["anthropic", "openai"] = "openai"
    keys_at: str = ""
    credit_at: str = ""
    example: str = ""


# Provider `auto` searches for their keys in this order.
PROVIDERS: Mapping[str, ProviderFacts] = {
    "anthropic": ProviderFacts(
        "Anthropic",
        "ANTHROPIC_API_KEY",
        "https://api.anthropic.com",
        "sk-ant-",
        "anthropic",
        keys_at="https://console.anthropic.com/settings/keys",
        credit_at="https://console.anthropic.com/settings/billing",
    ),
    "openai": ProviderFacts(
        "OpenAI",
        "OPENAI_API_KEY",
        "https://api.openai.com/v1",
        "sk-",
        keys_at="https://platform.openai.com/api-keys",
        credit_at="https://platform.openai.com/settings/organization/billing",
    ),
    "openrouter": ProviderFacts(
        "OpenRouter",
        "OPENROUTER_API_KEY",
        "https://openrouter.ai/api/v1",
        "sk-or-",
        keys_at="https://openrouter.ai/settings/keys",
        credit_at="https://openrouter.ai/settings/credits",
        example="anthropic/claude-sonnet-5.5",
    ),
    "nous": ProviderFacts(
        "Nous Research", "NOUS_API_KEY", "https://inference-api.nousresearch.com/v1"
    ),
}
KEY_VARIABLES = {name: facts.key_variable for name, facts in PROVIDERS.items()}


def base_url_of(settings: ModelSettings) -> str:
    """Return the address of a model's server."""
    return settings.base_url or PROVIDERS.get(settings.provider, PROVIDERS["openai"]).base_url


def provider_of(key: str) -> str | None:
    """Return the provider whose key prefix matches, or None."""
    shapes = {name: facts.key_shape for name, facts in PROVIDERS.items() if facts.key_shape}
    fitting = [name for name, shape in shapes.items() if key.startswith(shape)]
    # OpenAI's prefix is also the beginning of the others.
    return max(fitting, key=lambda name: len(shapes[name]), default=None)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of one model; None means unknown (an unknown price makes the cost unknown, never 0).

    Attributes:
        name: As spelled in the table.
        context_length: Window size in tokens.
        min_cache_tokens: Shorter prefixes are silently not cached.
        source: Origin of the values and the date they were read.
    """

    name: str
    context_length: int | None = None
    max_output_tokens: int | None = None
    min_cache_tokens: int = 1024
    prices: Prices | None = None
    vision: bool = True
    source: str = ""


# Prices in order: input, 5-minute cache write, 1-hour cache write, cache read, output.
_OPUS = Prices(5, 6.25, 10, 0.5, 25)
_SONNET_4 = Prices(3, 3.75, 6, 0.3, 15)
# Smallest cacheable prefix in tokens, then prices. If sources differ, the larger number is used;
# haiku-5-5 is undocumented and uses the larger number too.
_ROWS = {
    "claude-fable-5-1": (2048, Prices(10, 12.5, 20, 0.25, 50)),
    "claude-fable-5": (2048, Prices(10, 12.5, 20, 1, 50)),
    "claude-opus-5-5": (512, Prices(4, 5, 8, 0.2, 20)),
    "claude-opus-5": (512, _OPUS),
    "claude-opus-4-8": (2048, _OPUS),
    "claude-opus-4-7": (2048, _OPUS),
    "claude-opus-4-6": (4096, _OPUS),
    "claude-opus-4-5": (4096, _OPUS),
    "claude-sonnet-5-5": (512, Prices(2, 2.5, 4, 0.1, 10)),
    "claude-sonnet-5": (1024, Prices(2, 2.5, 4, 0.2, 10)),
    "claude-sonnet-4-6": (2048, _SONNET_4),
    "claude-sonnet-4-5": (1024, _SONNET_4),
    "claude-haiku-5-5": (4096, Prices(0.1, 0.125, 0.2, 0.01, 0.5)),
    "claude-haiku-4-5": (4096, Prices(1, 1.25, 2, 0.1, 5)),
}
_SMALL = ("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5")
_BY_NAME = {
    name: ModelFacts(
        name,
        context_length=200_000 if name in _SMALL else 1_000_000,
        max_output_tokens=64_000 if name in _SMALL else 128_000,
        min_cache_tokens=least,
        prices=prices,
        source="Anthropic's documentation and price list (autumn 2026)",
    )
    for name, (least, prices) in _ROWS.items()
}
_UNKNOWN_CLAUDE_TOKENS = 200_000
_UNKNOWN_TOKENS = 128_000
_SUFFIX = re.compile(r"(-latest|[-@]\d{8})$")

_GPT_VERSION = re.compile(r"gpt-(\d+)(?:-(\d{1,2}))?(?!\d)")
_REASONING = re.compile(r"o\d(?:-|$)")
_GPT_ROW = ModelFacts("", source="OpenAI's documentation (autumn 2026)")
GPT_WITH_WRITE_FEE = (5, 6)
"""OpenAI bills cache writes from this version on. Source: its documentation."""

# Source: the newest Sonnet in anthropic.types.Model, and the newest middle tier ("terra") in
# openai.types.ChatModel; SDKs 2.12.0 and 3.54.0.
DEFAULT_NAMES = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-terra"}

# Source: Anthropic's list prices, the same for most of its models.
WRITE_5M_RATIO = 1.25
WRITE_1H_RATIO = 2.0
READ_RATIO = 0.1


def facts_of(name: str, overrides: FactsSettings) -> ModelFacts:
    """Return the table's facts of a model, overridden by the operator's values.

    If the price of input or output is unknown, all prices are; missing cache prices are derived
    from the input price.
    """
    row = find_facts(name) or ModelFacts(name)
    facts = replace(row, prices=_overridden(row.prices, overrides))
    if overrides.min_cache_tokens is not None:
        facts = replace(facts, min_cache_tokens=overrides.min_cache_tokens)
    if overrides.vision is not None:
        facts = replace(facts, vision=overrides.vision)
    if facts == row:
        return row
    return replace(facts, source=f"settings; the rest: {row.source}" if row.source else "settings")


def find_facts(name: str) -> ModelFacts | None:
    """Return the table row of a model, matching dated ids and router spellings; None if unknown.

    "claude-haiku-4-5-20251001" and "anthropic/claude-haiku-4.5" match claude-haiku-4-5. A newer
    version may have other prices than its predecessor, so claude-sonnet-5-9 is unknown. Of OpenAI's
    models since GPT-5.6 only the cache rules are known.
    """
    plain = _plain(name)
    if bills_writes(name):
        return replace(_GPT_ROW, name=plain)
    return _BY_NAME.get(_SUFFIX.sub("", plain))


def context_length(name: str) -> int:
    """Return a model's window size in tokens, or a cautious guess."""
    facts = find_facts(name)
    if facts is not None and facts.context_length is not None:
        return facts.context_length
    # Too small a guess compacts early; too large a guess gets requests refused.
    return _UNKNOWN_CLAUDE_TOKENS if is_claude(name) else _UNKNOWN_TOKENS


def output_limit(name: str, wanted: int) -> int:
    """Cap the requested output tokens at the model's limit; a larger request is refused."""
    facts = find_facts(name)
    most = facts.max_output_tokens if facts else None
    return wanted if most is None else min(wanted, most)


def bills_writes(name: str) -> bool:
    """Return whether OpenAI bills cache writes for this model."""
    version = _GPT_VERSION.match(_plain(name))
    return version is not None and ((int(version[1]), int(version[2] or 0)) >= GPT_WITH_WRITE_FEE)


def can_reason(name: str) -> bool:
    """Return whether this is an OpenAI reasoning model: o1, GPT-5 and later."""
    plain = _plain(name)
    version = _GPT_VERSION.match(plain)
    return _REASONING.match(plain) is not None or (version is not None and int(version[1]) >= 5)


def _plain(name: str) -> str:
    return name.lower().rpartition("/")[2].replace(".", "-")


def _overridden(known: Prices | None, wanted: FactsSettings) -> Prices | None:
    given = {
        "input": wanted.input_usd,
        "cache_read": wanted.cache_read_usd,
        "output": wanted.output_usd,
    }
    if wanted.input_usd is not None:
        given["cache_write_5m"] = wanted.input_usd * WRITE_5M_RATIO
        given["cache_write_1h"] = wanted.input_usd * WRITE_1H_RATIO
    if known is None:
        if wanted.input_usd is None or wanted.output_usd is None:
            return None
        known = Prices(0, 0, 0, wanted.input_usd * READ_RATIO, 0)
    return replace(known, **{kind: usd for kind, usd in given.items() if usd is not None})
