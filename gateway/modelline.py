"""The models that answer, from the settings to the first call: keys, windows, prices.

Each key of a model is a model of its own in the line, so that recovery can go from one to the next.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from agent.errors import ModelError
from agent.models.base import ChatModel, ModelInfo
from agent.models.factory import build_models
from agent.prompt_caching import caching_line
from agent.settings import CachingSettings, ModelSettings
from gateway import startchecks
from gateway.errors import SettingsError
from gateway.providers import KEY_VARIABLES
from gateway.settings import Settings
from gateway.startchecks import Finding

log = structlog.get_logger()

LOOK_UP_S = 2.0
"""Longest wait for a provider's model information; a start waits for no more."""
INSIDE = frozenset({"offline", "recorded"})
"""Models that no network call is made for."""


class Configured(NamedTuple):
    """One block of the settings, its models (one for each key), and where it stands."""

    settings: ModelSettings
    models: Sequence[ChatModel]
    place: str = "model"


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
        return Configured(block, build_models(block), place)
    except ModelError as exc:
        # The models know their settings as `model.…`, wherever they stand.
        raise SettingsError(f"{place}: {str(exc).replace('model.', f'{place}.')}") from exc


async def learn_windows(line: Sequence[Configured]) -> list[Finding]:
    """Ask the providers how large their models' windows are, with each key; side by side.

    A window that the settings name stays, unless the provider says that it is smaller. Where a
    provider cannot be asked, the table's figure stays (agent/models/catalog.py).

    Returns:
        Which keys are taken; nothing for models inside Parley, which have none.
    """
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (block, [tasks.create_task(_asked(model)) for model in block.models]) for block in line
        ]
    findings: list[Finding] = []
    for block, each in asked:
        answers = [task.result() for task in each]
        _take_window(block, answers)
        findings += _findings(block, answers)
    return findings


Answer = ModelInfo | ModelError | TimeoutError | None


async def _asked(model: ChatModel) -> Answer:
    try:
        async with asyncio.timeout(LOOK_UP_S):
            return await model.look_up()
    except (ModelError, TimeoutError) as exc:
        return exc


def _findings(block: Configured, answers: Sequence[Answer]) -> list[Finding]:
    if block.models[0].provider in INSIDE:
        return []
    keys = zip(block.models, answers, strict=True)
    return [
        startchecks.of_model(
            model,
            _key_setting(block, number),
            answer if isinstance(answer, Exception) else None,
            asked=answer is not None,
        )
        for number, (model, answer) in enumerate(keys, start=1)
    ]


def _key_setting(block: Configured, number: int) -> str:
    """Return where the key of one of a block's models stands."""
    if number > 1:
        return f"{block.place}.api_keys"
    variable = KEY_VARIABLES.get(block.models[0].provider)
    return f"{block.place}.api_key" + (f" ({variable})" if variable else "")


def _take_window(block: Configured, answers: Sequence[Answer]) -> None:
    """Use what the first key that got an answer was told; all keys are of one model."""
    told = [answer for answer in answers if isinstance(answer, ModelInfo)]
    if not told and isinstance(answers[0], Exception):
        model, error = block.models[0], type(answers[0]).__name__
        log.warning("model_not_looked_up", provider=model.provider, model=model.name, error=error)
    if not told or told[0].context_length is None:
        return
    window, wanted = told[0].context_length, block.settings.context_length
    if wanted is not None and wanted > window:
        log.warning(
            "window_too_large", model=block.models[0].name, wanted=wanted, context_length=window
        )
    for each in block.models:
        each.context_length = min(wanted or window, window)


def caching_text(model: ChatModel, caching: CachingSettings) -> str:
    """Return what the start-up tells about prompt caching."""
    if not caching.enabled:
        return "💾 Prompt caching: DISABLED (prompt_caching.enabled is false)"
    return caching_line(model, ttl=caching.cache_ttl)
