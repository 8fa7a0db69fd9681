"""Two replicas on one database: each goes by its own file, and one command tells both."""

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.people.mcp import ID_CHARS
from tests.e2e.web_chat import WebChat
from tests.security.test_mcp_programs import CALM, ORDER, Servers, ordering
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.postgres import PostgresServer
from tests.support.process import DATABASE_URL, ParleyProcess

# They share a database of their own.
pytestmark = pytest.mark.usefixtures("sqlite_alone")

STORAGE: dict[str, Any] = {"storage": {"url": f"env:{DATABASE_URL}"}}


@pytest.mark.thorough
async def test_a_command_at_one_replica_reloads_both(
    tmp_path: Path, postgres_worker: PostgresServer
) -> None:
    """A wrong file at the other one changes nothing there, and nothing here."""
    url = postgres_worker.url(postgres_worker.create())
    secret = tmp_path / "key"
    secret.write_text("metrics-token-one-1234-abcdefgh")
    secret.chmod(0o600)
    settings = STORAGE | {"metrics": {"token": f"file:{secret}"}}
    async with (
        ParleyProcess(tmp_path / "one", settings, {DATABASE_URL: url}) as one,
        ParleyProcess(tmp_path / "two", settings, {DATABASE_URL: url}) as two,
    ):
        # Nothing is told of the files: a secret that both refer to is another one.
        secret.write_text("metrics-token-two-5678-abcdefgh")
        done = await one.run("config", "reload")
        assert done.code == 0
        await two.event("secrets_reloaded")
        assert await two.event("settings_reloaded")
        two.configure(settings | {"queue": {"mode": "x"}})
        await two.event("settings_refused")
        done = await one.run("config", "set", "queue.mode", "followup")
        assert "in effect now: queue.mode" in done.stdout
        await two.event("settings_refused", count=2)
        assert "not allowed" in (await two.run("config", "reload")).stderr
        for each in (one, two):
            assert await WebChat(each, each.home.name).ask("Are you there?")


@pytest.mark.thorough
async def test_a_word_about_a_tool_at_one_replica_counts_at_both(
    tmp_path: Path, postgres_worker: PostgresServer
) -> None:
    """After a yes the other one offers the tool without a restart, after a no it does not."""
    url = postgres_worker.url(postgres_worker.create())
    async with OpenAIServer(default=Reply(text="Fine.")) as model:
        servers = Servers(tmp_path, model)
        servers.offer(CALM, ordering(ORDER))
        settings = STORAGE | servers.settings
        async with (
            ParleyProcess(tmp_path / "one", settings, {DATABASE_URL: url}) as one,
            ParleyProcess(tmp_path / "two", settings, {DATABASE_URL: url}) as two,
        ):
            here, there = WebChat(one, "here"), WebChat(two, "there")
            assert await servers.seen(there) == {"mcp_s_calm"}
            shown = await here.ask("/mcp")
            [number] = re.findall(rf"[0-9a-f]{{{ID_CHARS}}}", shown)
            for count, (verb, tools) in enumerate(
                [("approve", {"mcp_s_add", "mcp_s_calm"}), ("deny", {"mcp_s_calm"})], start=1
            ):
                await here.say(f"/mcp {verb} {number}")
                await two.event("settings_reloaded", count=count)
                assert await servers.seen(there) == tools
            assert len(two.named("settings_reloaded")) == 2
