"""Buttons out, presses in: against the strict server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from adapters.errors import SendDelayed, SendRejected
from adapters.messages import Address, Admission, Choice, Outgoing, Withdrawal
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import LIMITS
from tests.adapters.telegram.conftest import MakeAdapter, running
from tests.support.bot_api import CUT, HTML_502, BotApi, Fault, flood
from tests.support.bot_replicas import until
from tests.support.recording_intake import RecordingIntake

ANN = Address("telegram", "default", "7")
CHOICES = (Choice("Allow", "/approve 1"), Choice("Deny", "/deny 1"))
BOB = {"id": 9, "is_bot": False, "first_name": "Bob"}
MESSAGE = {"message_id": 1, "date": 1, "chat": {"id": 7, "type": "private"}}
QUERY = {"id": "q", "from": BOB, "chat_instance": "c", "data": "/x"}


@pytest.fixture
async def asking(
    api: BotApi, intake: RecordingIntake, adapter: TelegramAdapter
) -> AsyncIterator[TelegramAdapter]:
    """A running bot that has asked something in chat 7."""
    api.add_chat(7)
    await adapter.send(row(adapter, "**May** I?", choices=CHOICES))
    async with running(adapter):
        await api.wait_for(lambda: api.made("getUpdates"))
        yield adapter


def row(adapter: TelegramAdapter, text: str, **fields: object) -> Outgoing:
    values = {"conversation": 1, "seq": 1, "nonce": "0" * 24, "address": ANN} | fields
    return Outgoing(payload=adapter.render(text)[0], **values)  # type: ignore[arg-type]


async def test_choices_are_buttons(api: BotApi, adapter: TelegramAdapter) -> None:
    """Few short ones stand side by side, others below each other."""
    api.add_chat(7)
    long = tuple(Choice(f"choice number {number}", f"/n {number}") for number in range(3))
    await adapter.send(row(adapter, "two", choices=CHOICES))
    await adapter.send(row(adapter, "three", choices=long))
    first, second = (message.buttons for message in api.messages)
    assert [[it["text"] for it in line] for line in first] == [["Allow", "Deny"]]
    assert [len(line) for line in second] == [1, 1, 1]
    assert second[2][0]["callback_data"] == "/n 2"


async def test_an_answer_that_replaces_its_preview_has_them_too(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """The edit brings the buttons."""
    api.add_chat(7)
    sent = await adapter.send(row(adapter, "Ma"))
    await adapter.send(row(adapter, "May I?", preview_ref=sent.platform_ref, choices=CHOICES))
    assert len(api.messages) == len(api.messages[0].buttons) == 1


async def test_a_press_is_stored_and_then_answered(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter
) -> None:
    """The button stops spinning, the choice is noted in place of the buttons."""
    query = api.press(7, "Allow", BOB)
    # The press is confirmed, answered and taken off side by side.
    await api.wait_for(lambda: not (api.messages[0].buttons or api.pending) and api.answered)
    (message,) = intake.messages
    assert (message.text, message.sender, message.dedupe_key) == ("/approve 1", "9", f"cb:{query}")
    assert api.answered[query]["text"] == "Allow"
    assert api.shown(7) == ["May I?\n→ Allow"]
    assert api.messages[0].entities == [{"type": "bold", "offset": 0, "length": 3}]


@pytest.mark.parametrize(
    ("outcome", "notice"),
    [
        ("denied", "This button is not for you."),
        ("ignored", "This button is not for you."),
        ("refused", "Allow"),
    ],
)
async def test_a_press_that_does_not_count(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter, outcome: str, notice: str
) -> None:
    """A stranger is told so; the buttons stay, for those who may or for another try."""
    intake.outcome = outcome
    query = api.press(7, "Allow", BOB)
    await api.wait_for(lambda: query in api.answered)
    assert api.answered[query]["text"] == notice
    api.push_text(7, "next")
    await intake.has(2)
    assert api.shown(7) == ["May I?"]
    assert api.messages[0].buttons


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        ({"answer": "refused", "told": "Not for you."}, "May I?"),
        ({"answer": "over", "told": "Too late.", "over": "stopped"}, "May I?\n→ stopped"),
    ],
    ids=["refused", "over"],
)
async def test_a_press_that_decides_nothing(
    api: BotApi,
    intake: RecordingIntake,
    asking: TelegramAdapter,
    verdict: dict[str, Any],
    shown: str,
) -> None:
    """Who pressed is told why; the buttons stay unless nobody waits for them any more."""
    intake.outcome, intake.verdict = "command", verdict
    query = api.press(7, "Allow", BOB)
    await api.wait_for(lambda: query in api.answered and api.shown(7) == [shown])
    assert api.answered[query]["text"] == verdict["told"]
    assert api.answered[query]["show_alert"]
    assert bool(api.messages[0].buttons) == (verdict["answer"] == "refused")
    assert intake.messages[0].pressed


def withdrawal(adapter: TelegramAdapter, ref: str) -> Withdrawal:
    """Return what takes the buttons off a message."""
    payload = adapter.render("**May** I?")[0]
    return Withdrawal(address=ANN, message_ref=ref, payload=payload, note="stopped")


async def test_the_buttons_of_a_question_that_is_over_go(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """Below its text stands how it ended; the same again changes nothing."""
    api.add_chat(7)
    sent = await adapter.send(row(adapter, "**May** I?", choices=CHOICES))
    for _ in range(2):
        await adapter.withdraw(withdrawal(adapter, sent.platform_ref))
    assert api.shown(7) == ["May I?\n→ stopped"]
    assert api.messages[0].entities == [{"type": "bold", "offset": 0, "length": 3}]
    assert not api.messages[0].buttons


async def test_buttons_that_cannot_be_taken_off_now(api: BotApi, adapter: TelegramAdapter) -> None:
    """The pause is passed on; a message that is gone is refused, and nothing is shown instead."""
    api.add_chat(7)
    sent = await adapter.send(row(adapter, "May I?", choices=CHOICES))
    with pytest.raises(SendRejected):
        await adapter.withdraw(withdrawal(adapter, "4711"))
    api.fail("editMessageText", flood(3))
    with pytest.raises(SendDelayed) as failure:
        await adapter.withdraw(withdrawal(adapter, sent.platform_ref))
    assert failure.value.retry_after_s == 3
    with pytest.raises(SendDelayed, match="budget"):
        await adapter.withdraw(withdrawal(adapter, sent.platform_ref))
    assert api.shown(7) == ["May I?"]


async def test_a_pause_for_buttons_holds_for_the_next_answer(
    api: BotApi, make: MakeAdapter
) -> None:
    """Telegram counts edits and messages of a chat together; another chat is not held up.

    Source: https://github.com/tdlib/td/issues/3034 ("Limits for message editing and sending are
    shared").
    """
    now = [1000.0]
    adapter = make(clock=lambda: now[0])
    for chat in (7, 8):
        api.add_chat(chat)
    sent = await adapter.send(row(adapter, "May I?", choices=CHOICES))
    api.fail("editMessageText", flood(30))
    with pytest.raises(SendDelayed):
        await adapter.withdraw(withdrawal(adapter, sent.platform_ref))
    with pytest.raises(SendDelayed) as failure:
        await adapter.send(row(adapter, "The answer"))
    assert failure.value.retry_after_s == 30
    await adapter.send(row(adapter, "Elsewhere", address=Address("telegram", "default", "8")))
    now[0] += 30
    await adapter.send(row(adapter, "The answer"))
    assert (api.shown(7), api.shown(8)) == (["May I?", "The answer"], ["Elsewhere"])


async def test_nothing_is_answered_before_it_is_stored(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter
) -> None:
    """A press that could not be committed comes again, unanswered."""
    intake.broken = 99
    api.press(7, "Allow")
    await api.wait_for(lambda: intake.attempts == 1 or api.pending)
    assert api.answered == {}


@pytest.mark.parametrize("fault", [flood(0), HTML_502, CUT, Fault("error", 400, "Bad Request: x")])
async def test_an_answer_that_fails_still_takes_the_buttons_off(
    api: BotApi, asking: TelegramAdapter, fault: Fault
) -> None:
    """Each step is best effort on its own; an edit that is refused leaves the text as it was."""
    api.fail("answerCallbackQuery", fault)
    api.fail("editMessageText", Fault("error", 400, "Bad Request: ENTITY_BOUNDS_INVALID"))
    api.press(7, "Deny")
    await api.wait_for(lambda: not api.messages[0].buttons)
    assert api.shown(7) == ["May I?"]


async def test_a_press_that_is_answered_too_late(api: BotApi, asking: TelegramAdapter) -> None:
    """An expired query costs nothing but the spinning."""
    api.expire(api.press(7, "Deny"))
    await api.wait_for(lambda: api.shown(7) == ["May I?\n→ Deny"])
    assert api.answered == {}


async def test_a_press_delivered_twice(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter
) -> None:
    """The second one is known: one message, and no harm."""
    update = api.press_update(7, "Allow")
    api.push_raw(update)
    api.push_raw(update)
    await api.wait_for(lambda: len(api.made("answerCallbackQuery")) == 2)
    assert intake.texts == ["/approve 1"]


async def test_no_room_for_the_choice(api: BotApi, adapter: TelegramAdapter) -> None:
    """Below a full message nothing is noted; the buttons go all the same."""
    api.add_chat(7)
    choice = Choice("Allow it this time", "/approve 1")
    await adapter.send(row(adapter, "x" * 4086, choices=(choice,)))
    async with running(adapter):
        api.press(7, choice.label)
        await api.wait_for(lambda: not api.messages[0].buttons)
    assert api.shown(7) == ["x" * 4086]
    assert api.made("editMessageReplyMarkup")


async def test_a_flood_of_presses_is_bounded(
    adapter: TelegramAdapter,
) -> None:
    """What cannot be answered in time is dropped, with a line for those who look for it."""
    update = {"callback_query": QUERY | {"message": MESSAGE}}
    with structlog.testing.capture_logs() as logs:
        for _ in range(257):
            adapter._buttons.put(update, Admission("queued"))
    assert [entry["reason"] for entry in logs] == ["too many"]


async def test_a_message_that_is_known_no_more(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter
) -> None:
    """Of an old message only the id comes; the press counts, nothing else can be done."""
    update = api.press_update(7, "Allow")
    message = update["callback_query"]["message"]
    update["callback_query"]["message"] = {
        "chat": message["chat"],
        "message_id": message["message_id"],
        "date": 0,
    }
    api.push_raw(update)
    await api.wait_for(lambda: api.answered)
    assert intake.texts == ["/approve 1"]
    assert api.shown(7) == ["May I?"]


async def test_a_message_with_broken_buttons(
    api: BotApi, intake: RecordingIntake, asking: TelegramAdapter
) -> None:
    """The press is stored as far as it is known, and the next update is read."""
    nothing, odd = (api.press_update(7, "Allow") for _ in range(2))
    nothing["callback_query"]["message"]["reply_markup"] = None
    odd["callback_query"]["message"]["reply_markup"] = {"inline_keyboard": [7]}
    with structlog.testing.capture_logs() as logs:
        api.push_raw(odd)
        api.push_raw(nothing)
        await api.wait_for(lambda: api.answered)
    assert intake.texts == ["/approve 1"] * 2
    assert list(api.answered) == [nothing["callback_query"]["id"]]
    assert any("cannot be understood" in entry.get("reason", "") for entry in logs)
    assert api.messages[0].buttons


@pytest.mark.thorough
async def test_presses_in_one_chat_delay_no_other_chat(api: BotApi, make: MakeAdapter) -> None:
    """All are answered at once; the buttons of a message go once, by the press that came first."""
    now = 0.0
    adapter = make(limits=LIMITS, clock=lambda: now)
    api.add_chat(7)
    await adapter.send(row(adapter, "May I?", choices=CHOICES))
    async with running(adapter):
        first = api.press_update(7, "Deny", BOB)
        updates = [first, *(api.press_update(7, "Allow", BOB) for _ in range(40))]
        for update in updates:
            api.push_raw(update)
        await api.wait_for(lambda: len(api.answered) == len(updates))
        assert not api.made("editMessageText")
        now = LIMITS.chat_interval_s
        await api.wait_for(lambda: not api.messages[0].buttons)
    assert len(api.made("editMessageText")) == 1
    assert api.shown(7) == ["May I?\n→ Deny"]


async def test_buttons_that_could_not_be_taken_off(api: BotApi, asking: TelegramAdapter) -> None:
    """The next press tries again."""
    api.fail("editMessageText", HTML_502)
    api.press(7, "Allow")
    await api.wait_for(lambda: api.answered and api.made("editMessageText"))
    await until(lambda: not asking._buttons._taken_off)
    api.press(7, "Deny")
    await api.wait_for(lambda: not api.messages[0].buttons)
    assert api.shown(7) == ["May I?\n→ Deny"]


async def test_remembered_messages_are_bounded(
    adapter: TelegramAdapter,
) -> None:
    """Only of the last ones it is known that their buttons are off."""
    adapter._buttons._taken_off.most = 2
    keyboard = {"inline_keyboard": [[{"text": "X", "callback_data": "/x"}]]}
    for number in range(3):
        message = MESSAGE | {"message_id": number, "reply_markup": keyboard}
        query = QUERY | {"message": message}
        adapter._buttons.put({"callback_query": query}, Admission("queued"))
    assert len(adapter._buttons._taken_off) == 2
