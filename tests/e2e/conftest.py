"""What the end-to-end tests share: the platform, and settings that point at it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.bot_api import TOKEN, BotApi
from tests.support.browser import CHROMIUM
from tests.support.engines import database_engine, on_both
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer

__all__ = ["database_engine"]
_IN_CHROMIUM = ["test_browser.py", "test_console.py", "test_console_acts.py"]
collect_ignore = [] if CHROMIUM else _IN_CHROMIUM


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what runs a gateway on both databases."""
    on_both(metafunc)


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    """Telegram; the test fails if the bot did what a correct bot never does."""
    async with BotApi() as server:
        yield server
        assert server.violations == []


@pytest.fixture
async def model() -> AsyncIterator[OpenAIServer]:
    """An OpenAI-compatible server that answers "Fine." unless it is scripted."""
    async with OpenAIServer(default=Reply(text="Fine.")) as server:
        yield server
        assert server.refused == []


def bot_settings(
    api: BotApi, model: OpenAIServer | None = None, *, mode: str = "open", **block: Any
) -> dict[str, Any]:
    """Return settings for a bot on this server; the offline model where no other one is named."""
    settings: dict[str, Any] = {
        "access": {"mode": mode},
        "platforms": {"telegram": {"token": TOKEN, "base_url": api.root, **block}},
    }
    if model is not None:
        settings["model"] = {"base_url": model.url, "name": "double"}
    return settings
