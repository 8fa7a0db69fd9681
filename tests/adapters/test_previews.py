"""Steps of previews that outlive their callers, and the answers that take their places."""

import asyncio

import pytest
from typing_extensions import override

from adapters.base import PreviewIntent
from adapters.messages import Address, MessageRef, Outgoing
from adapters.previews import Previews

GROUP = Address("p", "a", "group")


def answer_to(message_ref: str) -> Outgoing:
    return Outgoing(
        conversation=1, address=GROUP, seq=1, payload="", nonce="n", reply_to=message_ref
    )


class Slow(Previews):
    """Previews that are posted once the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.posted = asyncio.Event()
        self.begun = asyncio.Event()

    @override
    async def step(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        intent: PreviewIntent,
        *,
        grows: bool,
    ) -> str | None:
        self.begun.set()
        await self.posted.wait()
        return "preview"


async def shown_late(previews: Slow, message_ref: str) -> None:
    """Show a preview of a question whose turn ends before its message is known."""
    previews.posted.clear()
    previews.begun.clear()
    question = MessageRef(GROUP, "ann", message_ref)
    showing = asyncio.get_running_loop().create_task(previews.show(question, "half", None))
    await previews.begun.wait()
    showing.cancel()
    await asyncio.wait([showing])
    previews.posted.set()


async def test_late_previews_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten where its answer never came."""
    monkeypatch.setattr("adapters.previews.MOST_LATE", 2)
    previews = Slow()
    for each in ("1", "2", "3"):
        await shown_late(previews, each)
        await previews.settled(answer_to("0"))
    found = [(await previews.settled(answer_to(each))).preview_ref for each in ("1", "2", "3")]
    assert found == [None, "preview", "preview"]


async def test_an_answer_takes_no_preview_of_another_question() -> None:
    """Several people are answered at one address; each answer takes the place of its own."""
    previews = Slow()
    await shown_late(previews, "1")
    assert (await previews.settled(answer_to("2"))).preview_ref is None
    assert (await previews.settled(answer_to("1"))).preview_ref == "preview"
