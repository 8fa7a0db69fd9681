"""Acknowledging reactions: only what Telegram allows, and never at the cost of an answer."""

import pytest
import structlog

from adapters.messages import Address, MessageRef, Reaction
from adapters.pacing import PaceLimits
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import LIMITS
from adapters.telegram.preview import EMOJI
from tests.adapters.telegram.conftest import MakeAdapter
from tests.support.bot_api import BLOCKED, CUT, HTML_502, BotApi, Fault, flood
from tests.support.bot_wire import REACTIONS


@pytest.fixture
def question(api: BotApi) -> MessageRef:
    """Something that Ann asked in chat 7."""
    return question_in(api, 7)


def question_in(api: BotApi, chat: int) -> MessageRef:
    number = api.message_update(chat, "?")["message"]["message_id"]
    return MessageRef(Address("telegram", "default", str(chat)), "7", str(number))


def test_telegram_allows_all_of_them() -> None:
    """Every mark has an emoji from the list, and no two have the same."""
    assert len(set(EMOJI.values())) == 3
    assert set(EMOJI.values()) <= REACTIONS


async def test_a_reaction_takes_the_place_of_the_one_before(
    api: BotApi, adapter: TelegramAdapter, question: MessageRef
) -> None:
    """Received, then answered or failed; there is one at a time."""
    marks: list[Reaction] = ["received", "answered", "failed"]
    seen = []
    for mark in marks:
        await adapter.acknowledge(question, mark)
        seen.append(api.reactions[7, int(question.message_ref or 0)])
    assert seen == ["👀", "👌", "😢"]


async def test_reactions_can_be_switched_off(
    api: BotApi, make: MakeAdapter, question: MessageRef
) -> None:
    """With `reactions: false` there are none."""
    await make(reactions=False).acknowledge(question, "received")
    assert api.made("setMessageReaction") == []


async def test_a_message_without_an_id(api: BotApi, adapter: TelegramAdapter) -> None:
    """There is nothing to react to."""
    await adapter.acknowledge(MessageRef(Address("telegram", "default", "7")), "received")
    assert api.calls == []


async def test_a_chat_without_reactions(api: BotApi, adapter: TelegramAdapter) -> None:
    """Where they are not allowed nothing is raised; other chats have theirs."""
    api.without_reactions |= {-1}
    for chat in (-1, -2):
        await adapter.acknowledge(question_in(api, chat), "received")
    assert [chat for chat, _ in api.reactions] == [-2]


async def test_a_deleted_message_says_nothing_of_its_chat(
    api: BotApi, adapter: TelegramAdapter, question: MessageRef
) -> None:
    """The next message of the chat is reacted to."""
    api.delete_message(7, int(question.message_ref or 0))
    await adapter.acknowledge(question, "received")
    await adapter.acknowledge(question_in(api, 7), "received")
    assert len(api.reactions) == 1


@pytest.mark.parametrize("fault", [flood(5), HTML_502, CUT, BLOCKED])
async def test_reactions_are_best_effort(
    api: BotApi, adapter: TelegramAdapter, question: MessageRef, fault: Fault
) -> None:
    """A reaction that fails does not raise."""
    api.fail("setMessageReaction", fault)
    await adapter.acknowledge(question, "received")
    assert len(api.made("setMessageReaction")) == 1


async def test_reactions_leave_the_chats_budgets_alone(api: BotApi, make: MakeAdapter) -> None:
    """In a group whose second is taken a reaction goes out at once, and charges no message."""
    adapter = make(limits=LIMITS, clock=lambda: 1000.0)
    group = question_in(api, -7)
    assert await adapter.preview(group, "one", None)
    await adapter.acknowledge(group, "received")
    await adapter.acknowledge(group, "answered")
    assert len(api.made("setMessageReaction")) == 2
    assert adapter._client.pacer._chats["-7"].minute.left(1000.0) == 19  # type: ignore[union-attr]


async def test_the_own_budgets_are_no_flood(api: BotApi, make: MakeAdapter) -> None:
    """Marks that wait too long are dropped; nothing is blocked for them."""
    limits = PaceLimits(per_s=1, chat_interval_s=0.0, max_wait_s=0.0)
    adapter = make(limits=limits, clock=lambda: 1000.0)
    with structlog.testing.capture_logs() as logs:
        for chat in range(1, 5):
            await adapter.acknowledge(question_in(api, chat), "answered")
    assert [entry["event"] for entry in logs] == ["telegram_signal_failed"] * 3


async def test_a_busy_bot_leaves_the_first_mark_out(
    api: BotApi, make: MakeAdapter, question: MessageRef
) -> None:
    """Where the overall budget is used up "received" is dropped, and nothing waits for it."""
    adapter = make(limits=LIMITS, clock=lambda: 1000.0)
    while adapter._client.pacer.try_signal("1"):
        pass
    await adapter.acknowledge(question, "received")
    assert api.made("setMessageReaction") == []
