"""The adapter with the gateway's own intake on a real database: threads, gaps, restarts."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, select

from adapters.discord.adapter import DiscordAdapter
from adapters.discord.platform import DiscordSettings
from adapters.discord.render import render
from gateway.access.policy import Access
from gateway.commands.registry import StatusFacts
from gateway.pipeline.admission import IntakeRules
from gateway.pipeline.intake import GatewayIntake
from gateway.replicas.replica import AccountLeases
from gateway.settings.tree import AccessSettings, QueueSettings
from gateway.signals import Wakeups
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.supervision.silence import Traffic
from tests.adapters.discord.conftest import COMMANDS, running, where
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.recording_intake import FAST
from tests.support.thorough import WAIT_S

RULES = IntakeRules(
    access=Access(AccessSettings(mode="open")),
    queue=QueueSettings(),
    groups="per_user",
    model=lambda _: StatusFacts("m", 1000, None, "compressor", 10),
)


@pytest.fixture
def gateway_intake(database: Database) -> GatewayIntake:
    renderers, alone = {("discord", "default"): render}, AccountLeases(is_alone=True)
    return GatewayIntake(database, RULES, renderers, Wakeups(), Traffic(), alone)


@pytest.fixture
async def at_gateway(
    server: DiscordServer, gateway_intake: GatewayIntake
) -> AsyncIterator[DiscordAdapter]:
    urls = {"api_url": server.api_url, "gateway_url": server.gateway_url}
    settings = DiscordSettings.model_validate({"token": SecretStr(TOKEN)} | urls)
    adapter = DiscordAdapter(settings, gateway_intake, COMMANDS, limits=FAST)
    yield adapter
    await adapter.close()


def _queued(conn: Connection) -> list[tuple[int, str]]:
    rows = conn.execute(
        select(schema.inbox.c.conversation, schema.inbox.c.text)
        .where(schema.inbox.c.state == "queued")
        .order_by(schema.inbox.c.conversation, schema.inbox.c.seq)
    )
    return [(row[0], row[1]) for row in rows]


async def queued(database: Database, server: DiscordServer, count: int) -> list[tuple[int, str]]:
    """Wait until this many messages are queued; return (conversation, text) of each."""
    async with asyncio.timeout(WAIT_S):
        while len(found := await database.read(_queued)) < count:
            await server._change()
    return found


async def test_a_conversation_in_a_thread(
    server: DiscordServer, database: Database, at_gateway: DiscordAdapter
) -> None:
    """The mention begins it, what follows in its thread belongs to it, other talk does not."""
    async with running(at_gateway, server):
        server.write(server.general, "among us")
        written = server.write(server.general, "how tall is K2?", mention=True)
        await server.wait_for(lambda: written.thread)
        server.write(server.thread_of(written), "and K3?")
        found = await queued(database, server, 2)
    assert [text for _, text in found] == ["how tall is K2?", "and K3?"]
    assert len({conversation for conversation, _ in found}) == 1


async def test_a_gap_is_filled_once(
    server: DiscordServer,
    database: Database,
    gateway_intake: GatewayIntake,
    at_gateway: DiscordAdapter,
) -> None:
    """After a refused RESUME nothing is missing and nothing is there twice."""
    chat = server.direct()
    async with running(at_gateway, server):
        server.write(chat, "one")
        await queued(database, server, 1)
        server.gateway.refuse_resumes = 1
        server.gateway.drop()
        server.write(chat, "two")
        written = server.write(server.general, "in a channel never read", mention=True)
        await queued(database, server, 3)
        server.gateway.drop()
        server.write(chat, "three")
        found = await queued(database, server, 4)
    assert sorted(text for _, text in found) == ["in a channel never read", "one", "three", "two"]
    assert await gateway_intake.position(f"discord:default:{chat.ref}") == chat.messages[-1].id
    assert await gateway_intake.is_conversation(where(server.thread_of(written)))
