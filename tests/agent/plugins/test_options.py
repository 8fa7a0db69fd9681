"""Options of plugins: what is secret among them is shown to the plugin alone."""

from pathlib import Path

import pytest

from agent.settings import PluginSettings
from gateway.settings.loading import secret_values
from gateway.settings.tree import Settings

BLOCK = {
    "api_key": "abcdefgh1",
    "deep": [{"authToken": 7, "auth-token": "ijklmnop2"}],
    "appSecret": "mnopqrst3",
    "keyboard": "qwerty",
    "monkey": "banana",
}


def test_secrets_are_hidden_in_the_settings() -> None:
    """By the ends of their keys, at any depth; the plugin gets what was written."""
    settings = PluginSettings(options={"mine": BLOCK})
    assert "abcdefgh1" not in repr(settings)
    assert "ijklmnop2" not in repr(settings)
    assert "mnopqrst3" not in repr(settings)
    assert "qwerty" in repr(settings)
    assert "banana" in repr(settings)
    assert settings.options_of("mine") == BLOCK
    assert settings.options_of("other") == {}


@pytest.mark.parametrize("secret", ["abcdefgh1", "ijklmnop2", "mnopqrst3"])
def test_secrets_are_masked_in_logs(secret: str) -> None:
    """Like every other one that is configured."""
    settings = Settings(home=Path("/x"), plugins=PluginSettings(options={"mine": BLOCK}))
    assert secret in secret_values(settings)
