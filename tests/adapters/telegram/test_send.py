"""Sending, editing, previews and typing against the strict server and its faults."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest
import structlog
from pydantic import SecretStr

from adapters.base import FENCE
from adapters.errors import AdapterError, ChatMoved, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, MessageRef, Outgoing, OutgoingFile, Reaction, Receipt
from adapters.pacing import PaceLimits
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.client import LIMITS
from adapters.telegram.platform import TelegramSettings
from adapters.telegram.send import EMOJI
from tests.adapters.telegram.conftest import MakeAdapter
from tests.support.bot_api import (
    BLOCKED,
    CUT,
    DROP,
    HANG,
    HTML_502,
    JUNK,
    SERVER_ERROR,
    TOKEN,
    BotApi,
    Fault,
    flood,
)
from tests.support.bot_wire import REACTIONS, Call, excesses
from tests.support.process import free_port
from tests.support.recording_intake import RecordingIntake
from tests.support.virtual_time import run_virtually

ANN = Address("telegram", "default", "7")
TOPIC = Address("telegram", "default", "-100", "3")
MIGRATED = Fault("error", 400, "Bad Request: upgraded", {"migrate_to_chat_id": -1007})
ODD_REPLY = Fault("reply", body={"ok": True, "result": {"strange": 1}})
TRUE_REPLY = Fault("reply", body={"ok": True, "result": True})


@pytest.fixture(autouse=True)
def _chats(api: BotApi) -> None:
    api.add_chat(7)
    api.add_chat(-100, topics=(3,))


def row(adapter: TelegramAdapter, text: str, address: Address = ANN, **fields: object) -> Outgoing:
    """Return an outbox row with the first payload of a text."""
    payload = adapter.render(text)[0]
    values = {"conversation": 1, "seq": 1, "nonce": "0" * 24} | fields
    return Outgoing(address=address, payload=payload, **values)  # type: ignore[arg-type]


def asked(address: Address, ref: str | None = None) -> MessageRef:
    """Return what an answer belongs to."""
    return MessageRef(address, "7", ref)


async def test_a_new_message(api: BotApi, adapter: TelegramAdapter) -> None:
    """A payload is shown with its formatting, without link previews."""
    receipt = await adapter.send(row(adapter, "**hi** 😀"))
    (shown,) = api.messages
    assert receipt == Receipt(str(shown.message_id))
    assert shown.text == "hi 😀"
    assert shown.entities == [{"type": "bold", "offset": 0, "length": 2}]
    (call,) = api.made("sendMessage")
    assert call.params["link_preview_options"] == {"is_disabled": True}
    assert "reply_parameters" not in call.params


async def test_every_kind_of_formatting_is_accepted(api: BotApi, adapter: TelegramAdapter) -> None:
    """The strict server takes all entity types that are made."""
    text = "# h\n\n> q *i* ~~s~~\n\n```py\nx\n```\n\n`c` [l](https://e.org)"
    await adapter.send(row(adapter, text))
    kinds = {entity["type"] for entity in api.messages[0].entities}
    assert len(kinds) == 7


async def test_an_answer_to_a_message(api: BotApi, adapter: TelegramAdapter) -> None:
    """A reply points at its message, and is sent although that was deleted."""
    asked = api.message_update(7, "?")["message"]["message_id"]
    await adapter.send(row(adapter, "a", reply_to=str(asked)))
    await adapter.send(row(adapter, "b", reply_to="99999"))
    assert [shown.reply_to for shown in api.messages] == [asked, None]


async def test_each_part_of_an_answer_in_a_group_replies(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """Nothing else keeps it in the comments of a post; topics and direct chats need no reply."""
    number = api.message_update(-100, "?")["message"]["message_id"]
    place = replace(TOPIC, thread=None)
    file = OutgoingFile("a.txt", "text/plain", b"a")
    await adapter.send(row(adapter, "1", place, reply_to=str(number), question=str(number)))
    await adapter.send(row(adapter, "2", place, question=str(number)))
    await adapter.send(row(adapter, "3", place, question=str(number), file=file))
    await adapter.send(row(adapter, "4", TOPIC, question=str(number)))
    await adapter.send(row(adapter, "5", question=str(number)))
    assert [shown.reply_to for shown in api.messages] == [number] * 3 + [None] * 2


async def test_the_final_answer_replaces_its_preview(api: BotApi, adapter: TelegramAdapter) -> None:
    """The message sent early is edited; nothing new appears."""
    ref = await adapter.preview(asked(ANN), "Hel", None)
    assert api.shown(7) == ["Hel …"]
    assert await adapter.send(row(adapter, "**Hello**", preview_ref=ref)) == Receipt(ref or "")
    assert api.shown(7) == ["Hello"]
    assert api.messages[0].entities


async def test_an_edit_done_twice_is_a_success(api: BotApi, adapter: TelegramAdapter) -> None:
    """After a lost answer the same edit is "not modified", which means shown."""
    ref = await adapter.preview(asked(ANN), "Hel", None)
    api.fail("editMessageText", CUT)
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "Hello", preview_ref=ref))
    again = row(adapter, "Hello", preview_ref=ref, outcome_unknown=True)
    assert await adapter.send(again) == Receipt(ref or "")
    assert api.shown(7) == ["Hello"]


async def test_a_deleted_preview_is_replaced_by_a_new_message(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """Where there is nothing to edit the answer is sent."""
    receipt = await adapter.send(row(adapter, "Hello", preview_ref="4711"))
    assert api.shown(7) == ["Hello"]
    assert receipt == Receipt(str(api.messages[0].message_id))


async def test_an_unknown_outcome_is_sent_again_with_a_mark(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """A lost answer is unknown; the second attempt says so and keeps its formatting."""
    api.fail("sendMessage", CUT)
    with pytest.raises(SendUnknown):
        await adapter.send(row(adapter, "**Hello**"))
    receipt = await adapter.send(row(adapter, "**Hello**", outcome_unknown=True))
    assert receipt.resent
    assert api.shown(7) == ["Hello", "(re-sent)\nHello"]
    assert api.messages[1].entities == [{"type": "bold", "offset": 10, "length": 5}]


async def test_the_mark_fits_into_a_full_message(api: BotApi, adapter: TelegramAdapter) -> None:
    """A message at the limit still has room for "(re-sent)"."""
    await adapter.send(row(adapter, "x" * 5000, outcome_unknown=True))
    assert len(api.messages[0].text) == 4096


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (flood(17), SendDelayed),
        (Fault("error", 429, "Too Many Requests"), SendDelayed),
        (SERVER_ERROR, SendDelayed),
        (HTML_502, SendUnknown),
        (Fault("late", 504), SendUnknown),
        (Fault("html", 503), SendDelayed),
        (Fault("html", 403), SendDelayed),
        (Fault("error", 401, "Unauthorized"), SendDelayed),
        (Fault("error", 409, "Conflict"), SendDelayed),
        (CUT, SendUnknown),
        (DROP, SendUnknown),
        (JUNK, SendUnknown),
        (ODD_REPLY, SendUnknown),
        (TRUE_REPLY, SendUnknown),
        (Fault("reply", body={"ok": False}), SendUnknown),
        (BLOCKED, SendRejected),
        (MIGRATED, ChatMoved),
        (Fault("error", 400, "Bad Request: message is too long"), SendRejected),
    ],
    ids=lambda value: getattr(value, "description", None),
)
async def test_what_becomes_of_a_failed_send(
    api: BotApi, adapter: TelegramAdapter, fault: Fault, error: type[AdapterError]
) -> None:
    """The class of the error says whether the message can have been shown."""
    api.fail("sendMessage", fault)
    with pytest.raises(error):
        await adapter.send(row(adapter, "Hello"))
    assert len(api.shown(7)) <= (error is SendUnknown)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (flood(17), SendDelayed),
        (HTML_502, SendDelayed),
        (CUT, SendDelayed),
        (JUNK, SendDelayed),
        (ODD_REPLY, SendDelayed),
        (BLOCKED, SendRejected),
        (Fault("error", 400, "Bad Request: MESSAGE_TOO_LONG"), SendRejected),
    ],
    ids=lambda value: getattr(value, "description", None),
)
async def test_what_becomes_of_a_failed_edit(
    api: BotApi, adapter: TelegramAdapter, fault: Fault, error: type[AdapterError]
) -> None:
    """An edit can be repeated, so no outcome of it is unknown."""
    ref = await adapter.preview(asked(ANN), "Hel", None)
    api.fail("editMessageText", fault)
    with pytest.raises(error):
        await adapter.send(row(adapter, "Hello", preview_ref=ref))
    assert len(api.messages) == 1


async def test_a_migrated_chat_names_its_new_id(api: BotApi, adapter: TelegramAdapter) -> None:
    """The gateway is told where the conversation goes on."""
    api.migrate(-100, -1007)
    with pytest.raises(ChatMoved) as caught:
        await adapter.send(row(adapter, "Hello", TOPIC))
    assert caught.value.new_chat == "-1007"


async def test_a_slow_answer_is_an_unknown_outcome(api: BotApi, make: MakeAdapter) -> None:
    """A timeout on a new message may hide a message that was shown."""
    adapter = make()
    # Its connection is open by then: opening one may take as long.
    await adapter.send(row(adapter, "before"))
    adapter._client.bot.request._transport._client.timeout = 0.05
    api.fail("sendMessage", Fault("slow", delay_s=0.3))
    with pytest.raises(SendUnknown):
        await adapter.send(row(adapter, "Hello"))


async def test_without_a_connection_nothing_was_shown(make: MakeAdapter) -> None:
    """A refused connection is no unknown outcome."""
    adapter = make(base_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "Hello"))


async def test_a_topic_gets_its_answer(api: BotApi, adapter: TelegramAdapter) -> None:
    """Answers and typing go into the topic."""
    await adapter.send(row(adapter, "Hello", TOPIC))
    await adapter.show_working(asked(TOPIC))
    assert api.messages[0].thread == 3
    assert api.made("sendChatAction")[0].params["message_thread_id"] == "3"


async def test_a_lost_topic_never_spills_into_the_main_chat(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """When the topic is gone or closed the answer is buried, not shown elsewhere."""
    api.close_topic(-100, 3)
    with pytest.raises(SendRejected, match=r"(?i)topic_closed"):
        await adapter.send(row(adapter, "Hello", TOPIC))
    api.delete_topic(-100, 3)
    with pytest.raises(SendRejected, match="thread not found"):
        await adapter.send(row(adapter, "Hello", TOPIC))
    assert api.shown(-100) == []


async def test_chats_that_the_bot_may_not_write_to(api: BotApi, adapter: TelegramAdapter) -> None:
    """Blocked, kicked, muted, unknown: nothing of that is tried again."""
    for number, lock in enumerate((api.block, api.kick, api.mute)):
        lock(-number - 1)
    for chat in ("-1", "-2", "-3", "-4"):
        with pytest.raises(SendRejected):
            await adapter.send(row(adapter, "Hello", Address("telegram", "default", chat)))


async def test_retry_after_blocks_the_chat(api: BotApi, adapter: TelegramAdapter) -> None:
    """After a 429 the chat gets nothing until its time; other chats do."""
    api.add_chat(8)
    api.fail("sendMessage", flood(30))
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(row(adapter, "Hello"))
    assert caught.value.retry_after_s == 30
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "Hello"))
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    await adapter.show_working(asked(ANN))
    assert len(api.rate_stamps(7)) == 1
    await adapter.send(row(adapter, "Hello", Address("telegram", "default", "8")))


@pytest.mark.parametrize("chats", [2, 3])
async def test_a_flood_of_the_whole_bot(api: BotApi, adapter: TelegramAdapter, chats: int) -> None:
    """Two chats may each have been spoken to too often; three at once mean the bot."""
    for chat in (8, 9, 10):
        api.add_chat(chat)
    api.fail("sendMessage", *[flood(30)] * chats)
    for chat in range(8, 8 + chats):
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "Hello", Address("telegram", "default", str(chat))))
    await adapter.show_working(asked(ANN))
    assert len(api.made("sendChatAction")) == (chats < 3)


async def test_floods_of_long_ago_do_not_add_up(api: BotApi, make: MakeAdapter) -> None:
    """Only what comes within seconds is taken for one flood."""
    now = [1000.0]
    adapter = make(clock=lambda: now[0])
    api.fail("sendMessage", *[flood(30)] * 3)
    for _ in range(3):
        api.add_chat(int(now[0]))
        with pytest.raises(SendDelayed):
            await adapter.send(row(adapter, "x", Address("telegram", "default", str(int(now[0])))))
        now[0] += 6
    await adapter.show_working(asked(ANN))
    assert len(api.made("sendChatAction")) == 1


async def sent_within_the_limits(chats: list[int]) -> BotApi:
    """Send a text to each of these chats at once; returns the server, which recorded them."""
    async with BotApi() as server:
        settings = TelegramSettings(token=SecretStr(TOKEN), base_url=server.root)
        adapter = TelegramAdapter(settings, RecordingIntake(), [], clock=time.monotonic)
        for chat in chats:
            server.add_chat(chat)
        addresses = [Address("telegram", "default", str(chat)) for chat in chats]
        await asyncio.gather(*(adapter.send(row(adapter, "Hello", it)) for it in addresses))
        await adapter.close()
    return server


def test_messages_to_a_chat_are_a_second_apart() -> None:
    """The real limits hold on the wire; the server records when requests came."""
    first, second, third = run_virtually(sent_within_the_limits([7] * 3)).rate_stamps(7)
    assert (second - first, third - second) == pytest.approx((1.0, 1.0))


async def test_previews_grow_in_one_message(api: BotApi, adapter: TelegramAdapter) -> None:
    """Each preview edits the first, and an unchanged text costs no request."""
    ref = await adapter.preview(asked(ANN), "Hel", None)
    assert await adapter.preview(asked(ANN), "Hello", ref) == ref
    assert await adapter.preview(asked(ANN), "Hello ", ref) == ref
    assert api.shown(7) == ["Hello …"]
    assert len(api.rate_stamps(7)) == 2


async def test_nothing_visible_is_not_previewed(api: BotApi, adapter: TelegramAdapter) -> None:
    """Before the first word there is no message."""
    assert await adapter.preview(asked(ANN), " \n", None) is None
    assert api.messages == []


async def test_previews_in_groups_are_rarer(api: BotApi, make: MakeAdapter) -> None:
    """In a group a preview within 3 s is skipped; the final answer is not."""
    now = [1000.0]
    adapter = make(limits=LIMITS, clock=lambda: now[0])
    group = Address("telegram", "default", "-100")
    ref = await adapter.preview(asked(group), "one", None)
    now[0] += 1.5
    await adapter.preview(asked(group), "one two", ref)
    assert api.shown(-100) == ["one …"]
    now[0] += 1.5
    await adapter.preview(asked(group), "one two three", ref)
    assert api.shown(-100) == ["one two three …"]
    now[0] += LIMITS.chat_interval_s
    await adapter.send(row(adapter, "done", group, preview_ref=ref))
    assert api.shown(-100) == ["done"]


@pytest.mark.parametrize(
    "fault", [flood(5), HTML_502, CUT, DROP, JUNK, ODD_REPLY, TRUE_REPLY, BLOCKED, MIGRATED]
)
async def test_a_preview_that_fails_costs_nothing(
    api: BotApi, adapter: TelegramAdapter, fault: Fault
) -> None:
    """Whatever goes wrong, a preview does not raise, and the reference stays."""
    api.fail("sendMessage", fault)
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    api.messages.clear()
    api.add_chat(8)
    other = Address("telegram", "default", "8")
    ref = await adapter.preview(asked(other), "Hel", None)
    api.fail("editMessageText", fault)
    assert await adapter.preview(asked(other), "Hello", ref) == ref


@pytest.mark.parametrize("fault", [CUT, Fault("late", 502)])
async def test_a_preview_that_may_stand_there_is_not_followed_by_another(
    api: BotApi, adapter: TelegramAdapter, fault: Fault
) -> None:
    """After an unknown outcome there is no second unfinished message; the answer still comes."""
    api.fail("sendMessage", fault)
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    assert await adapter.preview(asked(ANN), "Hello", None) is None
    assert api.shown(7) == ["Hel …"]
    await adapter.send(row(adapter, "Hello you"))
    assert await adapter.preview(asked(ANN), "Next", None) is not None
    assert api.shown(7) == ["Hel …", "Hello you", "Next …"]


async def test_nothing_is_sent_after_the_end(api: BotApi, adapter: TelegramAdapter) -> None:
    """What is left then waits for the next start."""
    await adapter.close()
    with pytest.raises(SendDelayed, match="closed"):
        await adapter.send(row(adapter, "hi"))
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    assert api.calls == []


async def test_a_preview_of_a_deleted_message_keeps_its_reference(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """When a person deletes the preview, the final answer is sent anew."""
    ref = await adapter.preview(asked(ANN), "Hel", None)
    api.delete_message(7, int(ref or 0))
    assert await adapter.preview(asked(ANN), "Hello", ref) == ref
    await adapter.send(row(adapter, "Hello!", preview_ref=ref))
    assert api.shown(7) == ["Hello!"]


async def test_many_chats_with_previews_do_not_pile_up(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """What is remembered of previews is bounded."""
    adapter._previews._shown.most = 3
    for chat in range(10, 16):
        api.add_chat(chat)
        await adapter.preview(asked(Address("telegram", "default", str(chat))), "Hel", None)
    assert len(adapter._previews._shown) == 3


async def test_drafts_in_private_chats(api: BotApi, make: MakeAdapter) -> None:
    """With `preview: draft` the growing answer is a draft and leaves no reference."""
    adapter = make(preview="draft")
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    assert await adapter.preview(asked(ANN), "Hello", None) is None
    assert api.drafts == [(7, "Hel …"), (7, "Hello …")]
    await adapter.send(row(adapter, "Hello!"))
    assert api.shown(7) == ["Hello!"]


async def test_a_group_has_no_drafts(api: BotApi, make: MakeAdapter) -> None:
    """In groups `preview: draft` falls back to a message that is edited."""
    adapter = make(preview="draft")
    assert await adapter.preview(asked(TOPIC), "Hel", None) is not None
    assert (api.drafts, api.shown(-100)) == ([], ["Hel …"])


async def test_a_failed_draft_does_not_silence_the_next(api: BotApi, make: MakeAdapter) -> None:
    """A draft can be repeated, so a lost answer to one is of no importance."""
    adapter = make(preview="draft")
    api.fail("sendMessageDraft", CUT)
    assert await adapter.preview(asked(ANN), "Hel", None) is None
    assert await adapter.preview(asked(ANN), "Hello", None) is None
    assert api.drafts[-1] == (7, "Hello …")


async def test_a_draft_is_kept_while_the_answer_is_made(api: BotApi, make: MakeAdapter) -> None:
    """It goes away after 30 s: without new text it is sent again in time, and not more often."""
    now = [1000.0]
    adapter = make(preview="draft", clock=lambda: now[0])
    await adapter.preview(asked(ANN), "Hel", None)
    await adapter.preview(asked(ANN), "Hel", None)
    now[0] += 19
    await adapter.show_working(asked(ANN))
    assert len(api.drafts) == 1
    now[0] += 1
    await adapter.show_working(asked(ANN))
    assert api.drafts == [(7, "Hel …")] * 2
    await adapter.send(row(adapter, "Hello!"))
    now[0] += 60
    await adapter.show_working(asked(ANN))
    assert len(api.drafts) == 2


async def test_drafts_are_paced(api: BotApi, make: MakeAdapter) -> None:
    """They cost what a message costs."""
    adapter = make(preview="draft", limits=LIMITS, clock=lambda: 1000.0)
    await adapter.preview(asked(ANN), "Hel", None)
    await adapter.preview(asked(ANN), "Hello", None)
    assert len(api.drafts) == 1


async def test_a_preview_in_a_group_shows_whom_it_answers(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """It becomes the answer by an edit, which can add no reply later; a direct chat needs none."""
    for chat in (-100, 7):
        number = api.message_update(chat, "?")["message"]["message_id"]
        address = Address("telegram", "default", str(chat))
        await adapter.preview(asked(address, str(number)), "Hel", None)
    assert [shown.reply_to is not None for shown in api.messages] == [True, False]


@pytest.mark.parametrize("fault", [flood(5), HTML_502, CUT, BLOCKED])
async def test_typing_is_best_effort(api: BotApi, adapter: TelegramAdapter, fault: Fault) -> None:
    """A typing signal that fails does not raise."""
    api.fail("sendChatAction", fault)
    await adapter.show_working(asked(ANN))
    assert len(api.made("sendChatAction")) == 1


async def test_typing_lasts_so_it_is_not_repeated(api: BotApi, make: MakeAdapter) -> None:
    """Within 4 s a second signal is left out."""
    adapter = make(limits=LIMITS, clock=lambda: 1000.0)
    await adapter.show_working(asked(ANN))
    await adapter.show_working(asked(ANN))
    assert len(api.made("sendChatAction")) == 1


def test_the_limits_hold_for_many_chats_at_once() -> None:
    """Sixty chats and a group: the server counts no excess."""
    server = run_virtually(sent_within_the_limits([*range(1, 61), -100]))
    assert server.excesses() == []
    assert len(server.made("sendMessage")) == 61


def test_the_recorder_sees_every_excess() -> None:
    """The double would notice a bot that is too fast for a chat, a group, or in all."""
    calls = [Call("sendMessage", {"chat_id": "7"}, at) for at in (0.0, 0.1, 0.2)]
    calls += [Call("editMessageText", {"chat_id": "-1"}, 10 + 2.5 * n) for n in range(21)]
    calls += [Call("sendChatAction", {"chat_id": str(n)}, 200 + n / 40) for n in range(31)]
    assert excesses(calls) == [
        "31 within 0.75 s in all",
        "more than one per second in 7",
        "21 within 50.00 s in -1",
    ]


@pytest.mark.thorough
async def test_sends_run_side_by_side(api: BotApi, adapter: TelegramAdapter) -> None:
    """A slow chat does not hold up the others."""
    api.add_chat(8)
    api.fail("sendMessage", HANG)
    slow = asyncio.get_running_loop().create_task(adapter.send(row(adapter, "slow")))
    await api.wait_for(lambda: api.made("sendMessage"))
    await adapter.send(row(adapter, "fast", Address("telegram", "default", "8")))
    assert [shown.text for shown in api.messages] == ["fast"]
    slow.cancel()


async def test_a_spent_budget_delays_instead_of_sending(api: BotApi, make: MakeAdapter) -> None:
    """A send does not wait longer than max_wait_s for its turn."""
    limits = PaceLimits(per_s=1, chat_interval_s=60.0, group_per_min=1)
    adapter = make(limits=limits, clock=lambda: 1000.0)
    await adapter.send(row(adapter, "one"))
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(row(adapter, "two"))
    assert caught.value.retry_after_s == 60
    assert api.shown(7) == ["one"]


def test_the_payload_is_json(adapter: TelegramAdapter) -> None:
    """A payload can be stored as text and sent by a later process."""
    assert orjson.loads(adapter.render("hi")[0]) == {"text": "hi", "entities": []}


@pytest.mark.parametrize("fields", [{}, {"file": OutgoingFile("a.txt", "text/plain", b"a")}])
async def test_a_process_that_stood_still_shows_nothing(
    api: BotApi, adapter: TelegramAdapter, fields: dict[str, Any]
) -> None:
    """Its lease ended while it waited for its turn: nothing leaves, and nothing is in doubt."""
    FENCE.set(lambda: False)
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "hi", **fields))
    assert api.messages == []


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
