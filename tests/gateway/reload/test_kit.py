"""What turns are made of: which models count, wherever models are counted."""

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import SettingsError
from gateway.reload.kit import build_mind
from gateway.wiring import NO_PLUGINS
from tests.support.gateway import Running, running

READER = {
    "memory": {
        "model": "tiny",
        "provider": "openai",
        "base_url": "http://127.0.0.1:1/v1",
        "facts": {"input_usd": 1.0, "output_usd": 2.0},
    }
}


async def anew(chat: Running, **more: Any) -> Any:
    """Return the mind that a reload would make."""
    gateway, before = chat.gateway, chat.gateway.reloading.mind
    settings = gateway.settings.model_copy(update=more)
    return build_mind(settings, chat.agent, gateway.database, NO_PLUGINS, before=before)


async def test_a_model_that_reads_for_the_memory_is_one_of_all(tmp_path: Path) -> None:
    """Its key is renewed, alerts look at it, `/usage` knows its price; a reload keeps it."""
    async with running(tmp_path, auxiliary=READER) as chat:
        gateway = chat.gateway
        mind, reader = gateway.reloading.mind, gateway.beside.recall.reader
        assert reader is not None
        [model] = mind.readers
        assert list(reader.models.models) == [model]
        assert model in mind.models
        assert model in gateway.beside.rotation.models
        assert model in mind.standing[0]
        assert "tiny" in gateway.intake.money().prices
        assert (await anew(chat)).readers == (model,)


async def test_a_budget_needs_the_price_of_what_reads(tmp_path: Path) -> None:
    """As of each model that costs something: else it would be spent past the budget."""
    block = {name: value for name, value in READER["memory"].items() if name != "facts"}
    with pytest.raises(SettingsError, match="the price of tiny is not known"):
        async with running(tmp_path, auxiliary={"memory": block}, budget={"daily_usd": 1.0}):
            pass
    async with running(tmp_path, auxiliary={"memory": block}) as chat:
        with pytest.raises(SettingsError, match="the price of tiny is not known"):
            await anew(
                chat, budget=chat.gateway.settings.budget.model_copy(update={"daily_usd": 1.0})
            )
