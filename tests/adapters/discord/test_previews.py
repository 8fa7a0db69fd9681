"""Messages that grow with their answers, where something goes wrong with them."""

import pytest

from adapters.discord.adapter import DiscordAdapter
from adapters.messages import Question
from tests.adapters.discord.conftest import row, where
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
    question = Question(where(chat))
    ref = await adapter.preview(question, "growing", None)
    assert await adapter.preview(question, "growing more", ref) == ref
    assert chat.texts == ["growing more …"]


async def test_a_preview_in_doubt_is_the_only_one(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """No second one follows one that perhaps stands there, until the answer is sent."""
    chat = server.direct()
    server.fail("send", CUT)
    question = Question(where(chat))
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
    ref = await adapter.preview(Question(where(thread)), "half of", None)
    server.archive(thread)
    server.fail("delete", *trouble)  # type: ignore[arg-type]
    receipt = await adapter.send(row(adapter, "half of it all", where(thread), preview_ref=ref))
    assert receipt.platform_ref == thread.messages[-1].ref
    assert thread.texts == ["half of …"] * bool(trouble) + ["half of it all"]
