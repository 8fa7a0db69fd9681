"""Secrets that are replaced while a gateway runs: what takes the new ones, and what cannot."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent.safety.redaction import MASK
from gateway.errors import GatewayNotRunning
from gateway.http import control
from gateway.lifecycle.rotation import Reloaded, Rotation
from gateway.settings.references import References
from gateway.settings.tree import Settings
from gateway.wiring import build_agent, build_line
from tests.agent.models.clients import BOTH, Double
from tests.support.anthropic_server import AnthropicServer
from tests.support.gateway import Running, running, serving, settings_of
from tests.support.model_server import Reply

OLD, NEW = "sk-old-8Rk2Vb7Tq", "sk-new-3Hm9Xc4Wd"
TOKEN, NEW_TOKEN = "123456:old-token-of-a-bot", "123456:new-token-of-a-bot"


def referring(home: Path, **model: Any) -> Settings:
    """Return settings whose key and token lie in files."""
    for name, value in (("key", OLD), ("token", TOKEN)):
        (home / name).write_text(f"{value}\n")
    settings = settings_of(
        home,
        model={"provider": "openai", "api_key": f"file:{home}/key", **model},
        platforms={"telegram": [{"token": f"file:{home}/token"}]},
    )
    resolved: Settings = References({}).resolved(settings)
    return resolved


def rotation_of(settings: Settings) -> Rotation:
    """Return the rotation of the agent that these settings name."""
    agent = build_agent(settings, build_line(settings))
    return Rotation(settings, agent.models, agent.recovery.rests)


async def test_nothing_has_changed(tmp_path: Path) -> None:
    """Everything goes on as it is."""
    assert await rotation_of(referring(tmp_path)).reload() == Reloaded()


async def test_models_take_their_keys_and_platforms_need_a_restart(tmp_path: Path) -> None:
    """Each is named by its setting."""
    rotation = rotation_of(referring(tmp_path))
    (tmp_path / "key").write_text(NEW)
    (tmp_path / "token").write_text(NEW_TOKEN)
    done = await rotation.reload()
    assert done == Reloaded(("model.api_key",), ("platforms.telegram.0.token",))
    assert await rotation.reload() == Reloaded()


async def test_what_cannot_be_read_goes_on_as_it_was(tmp_path: Path) -> None:
    """The others are renewed all the same."""
    rotation = rotation_of(referring(tmp_path))
    (tmp_path / "token").unlink()
    (tmp_path / "key").write_text(NEW)
    done = await rotation.reload()
    assert done.renewed == ("model.api_key",)
    [line] = done.unreadable
    assert line.startswith(f"platforms.telegram.0.token: file:{tmp_path}/token cannot be read: No")


async def test_a_key_that_no_header_can_carry(tmp_path: Path) -> None:
    """The one before stays in use."""
    rotation = rotation_of(referring(tmp_path))
    (tmp_path / "key").write_text("schlüssel-12")
    assert "holds characters that no key has" in str((await rotation.reload()).unreadable)


@pytest.mark.parametrize("double", BOTH)
async def test_a_key_that_the_provider_no_longer_takes(tmp_path: Path, double: Double) -> None:
    """It is read again, and the message is answered; neither key is in the log or the answer."""
    async with double(NEW) as server:
        provider = "anthropic" if double is AnthropicServer else "openai"
        settings = referring(tmp_path, provider=provider, base_url=server.url, name="m-1")
        agent = build_agent(settings, build_line(settings))
        (tmp_path / "key").write_text(NEW)
        server.script(Reply(text=f"It is {NEW}, not {OLD}."))
        async with running(tmp_path, agent) as chat:
            assert await chat.ask("Which key?") == f"It is {MASK}, not {MASK}."
            assert chat.events("model_call_failed")[0]["action"] == "renew_key"
            assert NEW not in str(chat.log)


async def hung_up(chat: Running) -> dict[str, Any]:
    """Send this process SIGHUP once it listens, and return what was logged."""
    waiting = asyncio.create_task(chat.gateway.beside.rotation.on_hang_up())
    try:
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        return await chat.logged("secrets_reloaded")
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_signal_reloads(tmp_path: Path) -> None:
    """SIGHUP does what the command does, and tells it in the log."""
    before = signal.getsignal(signal.SIGHUP)
    async with running(tmp_path) as chat:
        line = await hung_up(chat)
    assert (line["level"], line["renewed"], line["restart_needed"]) == ("info", [], [])
    assert signal.getsignal(signal.SIGHUP) == before


async def test_the_command_reloads_through_the_socket(tmp_path: Path) -> None:
    """It prints what became of the secrets; where no gateway runs it says so."""
    async with serving(tmp_path):
        found = await control.reload_secrets(tmp_path)
    assert found == {"renewed": [], "restart": [], "unreadable": []}
    with pytest.raises(GatewayNotRunning, match="secrets are read when it starts"):
        await control.reload_secrets(tmp_path)
