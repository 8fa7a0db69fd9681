"""From nothing to the first answer: `parley setup`, `parley run`, the code, a question."""

import stat
from pathlib import Path

import yaml

from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import TOKEN, BotApi
from tests.support.first_answer import KEY, Stranger, environment, walk
from tests.support.model_server import Reply


async def test_a_stranger_with_a_key_and_a_token_is_answered(tmp_path: Path) -> None:
    """The key is tried with a real answer, whose price is shown, and neither secret is."""
    default = Reply(text="I am here.")
    async with BotApi() as api, AnthropicServer(KEY, default=default) as model:
        stranger = Stranger(tmp_path / "home", environment(api, model))
        assert await walk(stranger, api) == "I am here."
        assert api.violations == []
    assert "answers “I am here.”; the question and the answer cost $" in stranger.seen
    assert "the token is that of @parley_bot" in stranger.seen
    assert "https://t.me/parley_bot?start=" in stranger.seen
    assert KEY not in stranger.seen
    assert TOKEN not in stranger.seen
    file = stranger.home / "parley.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert yaml.safe_load(file.read_text()) == {
        "model": {"provider": "anthropic", "name": "claude-sonnet-5-5", "api_key": KEY},
        "platforms": {"telegram": {"token": TOKEN}},
    }
