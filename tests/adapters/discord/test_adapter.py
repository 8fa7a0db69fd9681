"""Where files may come from, and what a failed download means."""

import orjson
import pytest

from adapters.discord.adapter import DiscordAdapter, is_discords
from adapters.errors import FetchDelayed, FetchRejected
from adapters.messages import Address, Attachment
from tests.adapters.discord.conftest import where
from tests.support.discord.faults import DROP, UNAVAILABLE, Fault
from tests.support.discord.server import DiscordServer
from tests.support.discord.world import Message

GONE = Fault("error", 404, 10008, "Unknown Message")
HERE = Address("discord", "default", "1")


def attachment(message: Message, url: str, **fields: str) -> Attachment:
    place = {"channel": message.channel.ref, "message": message.ref, "id": "1", "url": url}
    return Attachment(name="a", kind="file", ref=orjson.dumps(place | fields).decode())


@pytest.fixture
def written(server: DiscordServer) -> Message:
    return server.write(server.direct(), "see", files=(("a", "", b"12345"),))


def link(server: DiscordServer, message: Message, name: str = "a") -> str:
    host = server.api_url.removesuffix("/api/v10")
    return f"{host}/attachments/{message.channel.ref}/{message.files[0].id}/{name}"


@pytest.mark.parametrize(
    ("url", "is_theirs"),
    [
        ("https://cdn.discordapp.com/a", True),
        ("https://media.discordapp.net/a", True),
        ("http://cdn.discordapp.com/a", False),
        ("https://cdn.discordapp.com.example.org/a", False),
        ("http://files.example.org/a", True),
        ("http://169.254.169.254/", False),
    ],
)
def test_only_discords_servers_are_asked(url: str, is_theirs: bool) -> None:
    """Those of Discord over TLS, and the configured server's host."""
    assert is_discords(url, "http://files.example.org/api/v10") is is_theirs


@pytest.mark.parametrize("ref", ["", "[]", "{}", '{"url": 5}'])
async def test_a_ref_that_says_nothing(adapter: DiscordAdapter, ref: str) -> None:
    """It can never be had."""
    with pytest.raises(FetchRejected):
        await adapter.fetch(HERE, Attachment(name="a", kind="file", ref=ref), 100)


async def test_a_foreign_link(adapter: DiscordAdapter, written: Message) -> None:
    """No request is made."""
    with pytest.raises(FetchRejected, match="not on Discord"):
        await adapter.fetch(HERE, attachment(written, "https://example.org/a"), 100)


async def test_a_file_that_came_without_a_link(adapter: DiscordAdapter, written: Message) -> None:
    """The link is looked up in its message."""
    found = attachment(written, "", id=str(written.files[0].id))
    assert await adapter.fetch(HERE, found, 100) == b"12345"


async def test_a_file_larger_than_it_said(
    server: DiscordServer, adapter: DiscordAdapter, written: Message
) -> None:
    """Reading stops at the limit, whatever was said about the size."""
    server.expire_links()
    found = attachment(written, link(server, written), id=str(written.files[0].id))
    with pytest.raises(FetchRejected, match="larger than 4"):
        await adapter.fetch(HERE, found, 4)


async def test_a_broken_download_is_tried_again(
    server: DiscordServer, adapter: DiscordAdapter, written: Message
) -> None:
    """A lost connection says nothing about the file."""
    server.fail("cdn", DROP, DROP)
    with pytest.raises(FetchDelayed):
        await adapter.fetch(HERE, attachment(written, link(server, written)), 100)


@pytest.mark.parametrize(("fault", "wanted"), [(UNAVAILABLE, FetchDelayed), (GONE, FetchRejected)])
async def test_a_link_that_cannot_be_renewed(
    server: DiscordServer,
    adapter: DiscordAdapter,
    written: Message,
    fault: Fault,
    wanted: type[Exception],
) -> None:
    """Trouble of the server is none of the file; a deleted message is."""
    server.expire_links()
    server.fail("message", fault)
    with pytest.raises(wanted):
        await adapter.fetch(where(written.channel), attachment(written, link(server, written)), 100)


async def test_a_file_taken_off_its_message(
    server: DiscordServer, adapter: DiscordAdapter, written: Message
) -> None:
    """The message is there, the file is not."""
    server.expire_links()
    with pytest.raises(FetchRejected, match="does not exist"):
        await adapter.fetch(HERE, attachment(written, link(server, written)), 100)


async def test_a_new_link_that_is_dead_as_well(
    server: DiscordServer, adapter: DiscordAdapter, written: Message
) -> None:
    """One renewal is enough to know."""
    server.expire_links()
    server.fail("cdn", GONE, GONE)
    found = attachment(written, link(server, written), id=str(written.files[0].id))
    with pytest.raises(FetchRejected, match="does not exist"):
        await adapter.fetch(HERE, found, 100)
