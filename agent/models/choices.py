"""The configured models as people choose among them: by name, however many keys they have."""

from collections.abc import Sequence

from agent.models.base import ChatModel


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
