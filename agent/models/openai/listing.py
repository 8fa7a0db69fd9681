"""What OpenAI-like servers say about a model in their list of models; each names it otherwise."""

from typing import Any

from agent.models.api import model_info
from agent.models.base import ModelInfo

# In order: what is loaded before what could be. A model's training window says nothing about the
# server's. Source: the servers' own answers, as their projects document them.
_WINDOW_KEYS = (
    ("loaded_context_length",),  # LM Studio
    ("max_model_len",),  # vLLM, SGLang
    ("meta", "n_ctx"),  # llama.cpp
    ("context_length",),  # OpenRouter, Together, Moonshot
    ("context_window",),  # Groq
    ("max_context_length",),  # Mistral, LM Studio
)


def info_from_list(listing: object, name: str) -> ModelInfo | None:
    """Return what a list says about a model, None where it says nothing.

    A server with a single model answers with that one, whatever it is called in the request
    (llama.cpp).

    Args:
        listing: The parsed answer to GET /models, which may be anything.
        name: The provider's name of the model.
    """
    entries = _entries(listing)
    named = [entry for entry in entries if entry.get("id") == name]
    entry = next(iter(named or (entries if len(entries) == 1 else [])), None)
    if entry is None:
        return None
    found = (_at(entry, path) for path in _WINDOW_KEYS)
    return model_info(next((value for value in found if value), None))


def _entries(listing: object) -> list[dict[str, Any]]:
    # Together sends the list without an envelope.
    models = listing.get("data") if isinstance(listing, dict) else listing
    return [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []


def _at(entry: object, path: tuple[str, ...]) -> object:
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry
