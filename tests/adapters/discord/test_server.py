"""The double itself, against the unmodified SDK: what Discord does and refuses, it does too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import discord
import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route
from yarl import URL

from tests.support.discord.limits import LIMITS
from tests.support.discord.server import TOKEN, DiscordServer


class Sdk(discord.Client):
    """The SDK, with everything that it was told."""

    def __init__(self, **intents: bool) -> None:
        super().__init__(
            intents=discord.Intents(**intents),
            allowed_mentions=discord.AllowedMentions.none(),
            guild_ready_timeout=0,
        )
        self.said: list[discord.Message] = []

    async def on_message(self, message: discord.Message) -> None:
        self.said.append(message)

    def place(self, channel_id: int) -> Any:
        return self.get_channel(channel_id)


@asynccontextmanager
async def connected(server: DiscordServer, **intents: bool) -> AsyncIterator[Sdk]:
    """Run the SDK until it is ready, with the given intents besides guilds and messages."""
    Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY = server.api_url, URL(server.gateway_url)
    client = Sdk(guilds=True, messages=True, **intents)
    task = asyncio.get_running_loop().create_task(client.start(TOKEN))
    try:
        await server.wait_for(lambda: task.done() or server.gateway.online())
        await asyncio.wait_for(client.wait_until_ready(), 30)
        yield client
    finally:
        await client.close()
        await asyncio.wait([task])


async def code_of(doing: Awaitable[object]) -> int:
    """Return the JSON error code with which a request is refused."""
    with pytest.raises(discord.HTTPException) as caught:
        await doing
    return caught.value.code


async def test_a_nonce_is_enforced(server: DiscordServer) -> None:
    """The same nonce returns the same message, in its window only."""
    async with connected(server) as client:
        place = client.place(server.general.id)
        first = await place.send("a", nonce="n")
        assert (await place.send("b", nonce="n")).id == first.id
        server.rest.forget_nonces()
        await place.send("c", nonce="n")
    assert server.general.texts == ["a", "c"]


async def test_messages_that_are_refused(server: DiscordServer) -> None:
    """Too long, empty, a long nonce, a reply to nothing."""
    del server.limits.windows["send"]
    async with connected(server) as client:
        place = client.place(server.general.id)
        assert await code_of(place.send("x" * 2001)) == 50035
        assert await code_of(place.send(" ")) == 50006
        assert await code_of(place.send("x", nonce="n" * 26)) == 50035
        nothing = discord.MessageReference(message_id=1, channel_id=place.id)
        assert await code_of(place.send("x", reference=nothing)) == 50035
        await place.send("x" * 2000)
    assert len(server.general.texts) == 1


async def test_missing_allowed_mentions_are_noted() -> None:
    """A bot that lets itself be made to mention everybody breaks a test."""
    async with DiscordServer() as server:
        async with connected(server) as client:
            client._connection.allowed_mentions = None
            await client.place(server.general.id).send("x")
        assert len(server.violations) == 1


async def test_threads(server: DiscordServer) -> None:
    """A thread has its message's id, only one is opened, and its first message is the starter."""
    async with connected(server, message_content=True) as client:
        written = server.write(server.general, "hello")
        place = client.place(server.general.id)
        message = await place.fetch_message(written.id)
        thread = await message.create_thread(name="topic")
        assert await code_of(message.create_thread(name="again")) == 160004
        own = await thread.send("first")
        assert [m.type.name async for m in thread.history(oldest_first=True)] == [
            "thread_starter_message",
            "default",
        ]
        server.archive(server.thread_of(written))
        assert await code_of(own.edit(content="x")) == 50083
        await thread.send("second")
        assert not server.thread_of(written).archived
        server.archive(server.thread_of(written), locked=True)
        assert await code_of(thread.send("third")) == 160005
        server.delete_channel(server.thread_of(written))
        assert await code_of(thread.send("fourth")) == 10003
    assert thread.id == written.id


async def test_content_needs_the_intent(server: DiscordServer) -> None:
    """Without it only mentions, direct chats and own messages have a content."""
    async with connected(server) as client:
        server.write(server.general, "secret")
        server.write(server.general, "hello", mention=True)
        server.write(server.direct(), "direct")
        await client.place(server.general.id).send("own")
        await server.wait_for(lambda: len(client.said) == 4)
        contents = [message.content for message in client.said]
    assert contents[0] == ""
    assert contents[2:] == ["direct", "own"]
    assert contents[1].endswith("hello")


async def test_history_pages(server: DiscordServer) -> None:
    """Pages after a message follow each other without a gap."""
    written = [server.write(server.general, str(number)) for number in range(250)]
    async with connected(server, message_content=True) as client:
        after = discord.Object(written[9].id)
        place = client.place(server.general.id)
        found = [m.content async for m in place.history(after=after, limit=None)]
    assert found == [str(number) for number in range(10, 250)]


async def test_a_resume_replays_and_a_refused_one_does_not(server: DiscordServer) -> None:
    """Events of the gap come with the RESUME; after a refused one they are lost."""
    async with connected(server, message_content=True) as client:
        server.gateway.drop()
        server.write(server.general, "replayed")
        await server.wait_for(lambda: client.said)
        server.gateway.refuse_resumes = 1
        server.gateway.drop()
        server.write(server.general, "lost")
        await server.wait_for(lambda: not server.gateway.refuse_resumes)
        assert [message.content for message in client.said] == ["replayed"]


async def test_the_sdk_keeps_the_limits_that_headers_tell(server: DiscordServer) -> None:
    """Six sends need a second window; nobody is told 429."""
    server.limits.windows["send"] = (5, 0.3)
    async with connected(server) as client:
        place = client.place(server.general.id)
        await asyncio.gather(*(place.send(str(number)) for number in range(11)))
    stamps = server.rate_stamps(server.general)
    assert stamps[-1] - stamps[0] > 0.5


async def test_too_much_is_a_violation() -> None:
    """A bot that does not look at the headers gets a 429 and is noted."""
    async with DiscordServer(limits=LIMITS | {"typing": (1, 60.0)}) as server:
        async with connected(server) as client:
            url = f"{server.api_url}/channels/{server.general.ref}/typing"
            headers = {"Authorization": f"Bot {TOKEN}", "User-Agent": "DiscordBot (x, 1)"}
            session = client.http._HTTPClient__session  # type: ignore[attr-defined]
            statuses = [(await session.post(url, headers=headers)).status for _ in range(3)]
        assert statuses == [204, 429, 429]
        assert len(server.violations) == 3
