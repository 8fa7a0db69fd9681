"""Messages that grow with their answers, where something goes wrong with them."""

import pytest

from adapters.discord.adapter import DiscordAdapter
from adapters.errors import SendRejected
from adapters.messages import MessageRef
from tests.adapters.discord.conftest import asked, row, where
from tests.support.discord.faults import CUT, LATE_502, SERVER_ERROR
from tests.support.discord.server import DiscordServer


@pytest.fixture(autouse=True)
def _no_pause_in_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits 1 s and more before it repeats what a server error answered."""

    async def at_once(_seconds: float) -> None:
        return

    monkeypatch.setattr("discord.http.asyncio.sleep", at_once)


async def test_a_preview_that_is_posted_again(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """What the SDK repeats after a server error is shown once, and can be edited."""
    chat = server.direct()
    server.fail("send", LATE_502)
    question = MessageRef(where(chat))
    ref = await adapter.preview(question, "growing", None)
    assert await adapter.preview(question, "growing more", ref) == ref
    assert chat.texts == ["growing more …"]


async def test_a_preview_in_doubt_is_the_only_one(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """No second one follows one that perhaps stands there, until the answer is sent."""
    chat = server.direct()
    server.fail("send", CUT)
    question = MessageRef(where(chat))
    assert await adapter.preview(question, "growing", None) is None
    assert await adapter.preview(question, "growing more", None) is None
    assert chat.texts == ["growing …"]
    await adapter.send(row(adapter, "grown", where(chat)))
    assert await adapter.preview(question, "next", None) is not None


@pytest.mark.parametrize("trouble", [(), [SERVER_ERROR] * 5], ids=["fine", "trouble"])
async def test_a_preview_in_a_thread_archived_meanwhile(
    server: DiscordServer, adapter: DiscordAdapter, trouble: list[object]
) -> None:
    """The answer is a new message, and the half of it above is taken away if that is possible."""
    thread = server.open_thread(server.write(server.general, "hello"))
    ref = await adapter.preview(MessageRef(where(thread)), "half of", None)
    server.archive(thread)
    server.fail("delete", *trouble)  # type: ignore[arg-type]
    receipt = await adapter.send(row(adapter, "half of it all", where(thread), preview_ref=ref))
    assert receipt.platform_ref == thread.messages[-1].ref
    assert thread.texts == ["half of …"] * bool(trouble) + ["half of it all"]


NOBODYS = frozenset[str]()


async def test_only_an_unfinished_message_is_a_preview(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Neither an answer behind the question nor what a person wrote is taken for one."""
    chat = server.direct()
    question = asked(server.write(chat, "hello"))
    await adapter.send(row(adapter, "an answer", where(chat)))
    server.write(chat, "and then …")
    assert await adapter.find_preview(question, "n", NOBODYS) is None
    ref = await adapter.preview(question, "half of", None)
    assert await adapter.find_preview(question, "n", NOBODYS) == ref


async def test_one_of_several_previews_is_not_guessed(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """Unless the others are known to be something else."""
    chat = server.direct()
    question = asked(server.write(chat, "hello"))
    first = await adapter.preview(question, "half of", None)
    second = await adapter.preview(question, "half of another", None)
    with pytest.raises(SendRejected, match="2 of 2 messages"):
        await adapter.find_preview(question, "n", NOBODYS)
    assert await adapter.find_preview(question, "n", frozenset([str(first)])) == second


async def test_a_preview_is_not_found_where_the_history_is_closed(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """It can never be said."""
    chat = server.direct()
    question = asked(server.write(chat, "hello"))
    chat.forbidden.add("history")
    with pytest.raises(SendRejected):
        await adapter.find_preview(question, "n", NOBODYS)
    with pytest.raises(SendRejected, match="no place in the history"):
        await adapter.find_preview(MessageRef(where(chat)), "n", NOBODYS)
