"""The models that answer, from the settings to the first call: keys, windows, prices.

Each key of a model is a model of its own in the line, so that recovery can go from one to the next.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from agent.errors import ModelError
from agent.models.base import ChatModel
from agent.models.factory import build_models
from agent.prompt_caching import caching_line
from agent.settings import CachingSettings, ModelSettings
from gateway.errors import SettingsError
from gateway.settings import Settings

log = structlog.get_logger()

LOOK_UP_S = 2.0
"""Longest wait for a provider's model information; a start waits for no more."""


class Configured(NamedTuple):
    """One block of the settings, and its models: one for each key."""

    settings: ModelSettings
    models: Sequence[ChatModel]


def build_line(settings: Settings) -> list[Configured]:
    """Return the main model and its fallbacks, in order; no network call is made.

    Raises:
        SettingsError: A model lacks its key, or a block cannot be used.
    """
    named = {"model": settings.model}
    named |= {f"fallbacks.{number}": block for number, block in enumerate(settings.fallbacks)}
    line = [_configured(place, block) for place, block in named.items()]
    if not settings.prompt_caching.enabled:
        for model in (model for block in line for model in block.models):
            model.cache_layout = None
    return line


def models_of(line: Sequence[Configured]) -> list[ChatModel]:
    """Return all models, one for each key, in the order in which they are asked."""
    return [model for block in line for model in block.models]


def _configured(place: str, block: ModelSettings) -> Configured:
    try:
        return Configured(block, build_models(block))
    except ModelError as exc:
        # The models know their settings as `model.…`, wherever they stand.
        raise SettingsError(f"{place}: {str(exc).replace('model.', f'{place}.')}") from exc


async def learn_windows(line: Sequence[Configured]) -> None:
    """Ask the providers how large their models' windows are.

    A window that the settings name stays, unless the provider says that it is smaller. Where a
    provider cannot be asked, the table's figure stays (agent/models/catalog.py).
    """
    async with asyncio.TaskGroup() as tasks:
        for block in line:
            tasks.create_task(_learn_window(block), name=f"look up {block.models[0].name}")


async def _learn_window(block: Configured) -> None:
    model = block.models[0]
    try:
        async with asyncio.timeout(LOOK_UP_S):
            info = await model.look_up()
    except (ModelError, TimeoutError) as exc:
        error = type(exc).__name__
        log.warning("model_not_looked_up", provider=model.provider, model=model.name, error=error)
        return
    if info is None or info.context_length is None:
        return
    wanted = block.settings.context_length
    if wanted is not None and wanted > info.context_length:
        log.warning(
            "window_too_large", model=model.name, wanted=wanted, context_length=info.context_length
        )
    for each in block.models:
        each.context_length = min(wanted or info.context_length, info.context_length)


def caching_text(model: ChatModel, caching: CachingSettings) -> str:
    """Return what the start-up tells about prompt caching."""
    if not caching.enabled:
        return "💾 Prompt caching: DISABLED (prompt_caching.enabled is false)"
    return caching_line(model, ttl=caching.cache_ttl)
