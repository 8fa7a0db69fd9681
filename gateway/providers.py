"""Completes a model block from the usual provider variables: which provider, and its key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

if TYPE_CHECKING:
    from agent.settings import ModelSettings

# In the order in which provider `auto` looks for them.
KEY_VARIABLES = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "nous": "NOUS_API_KEY",
}


def completions(
    block: "ModelSettings", environ: Mapping[str, str], name: str
) -> dict[str, tuple[Any, str]]:
    """Return what the environment adds to a model block: field → (value, origin).

    A key in the block wins over every variable. Provider `auto` becomes a concrete provider.

    Args:
        block: The block as configured.
        environ: The process environment.
        name: The block's name in the tree, for the origins.
    """
    found: dict[str, tuple[Any, str]] = {}
    provider: str = block.provider
    if provider == "auto":
        provider, origin = _decide(block, environ, name)
        found["provider"] = provider, origin
    variable = KEY_VARIABLES.get(provider, "")
    if block.api_keys and not block.api_key:
        found["api_key"] = block.api_keys[0], f"{name}.api_keys"
    elif not block.api_key and _given(environ, variable):
        found["api_key"] = SecretStr(environ[variable].strip()), variable
    return found


def _decide(block: "ModelSettings", environ: Mapping[str, str], name: str) -> tuple[str, str]:
    if block.base_url:
        return "openai", f"{name}.base_url"
    if key := block.api_key or next(iter(block.api_keys), None):
        return _by_shape(key.get_secret_value()), f"{name}.api_key"
    for provider, variable in KEY_VARIABLES.items():
        if _given(environ, variable):
            return provider, variable
    return "offline", "default"


def _given(environ: Mapping[str, str], variable: str) -> bool:
    return bool(environ.get(variable, "").strip())


def _by_shape(key: str) -> str:
    if key.startswith("sk-ant-"):
        return "anthropic"
    return "openrouter" if key.startswith("sk-or-") else "openai"
