"""Sending, editing, previews, files and typing against the strict server and its faults."""

import asyncio
import itertools
import time

import pytest

from adapters.base import FENCE
from adapters.discord.adapter import DiscordAdapter
from adapters.discord.client import LIMITS
from adapters.errors import AdapterError, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Choice, MessageRef, OutgoingFile, Receipt
from tests.adapters.discord.conftest import NONCE, MakeAdapter, adapter_of, asked, row, where
from tests.support.discord.faults import (
    CUT,
    DROP,
    JUNK,
    LATE_502,
    NO_ACCESS,
    NO_PERMISSION,
    SERVER_ERROR,
    UNAVAILABLE,
    Fault,
    flood,
)
from tests.support.discord.server import DiscordServer
from tests.support.discord.world import Channel
from tests.support.process import free_port
from tests.support.recording_intake import RecordingIntake
from tests.support.virtual_time import run_virtually

PNG = OutgoingFile("plot.png", "image/png", b"\x89PNG")
ODD_REPLY = Fault("reply", body={"strange": 1})


@pytest.fixture
def chat(server: DiscordServer) -> Channel:
    return server.direct()


@pytest.fixture
def thread(server: DiscordServer) -> Channel:
    return server.open_thread(server.write(server.general, "hello", mention=True))


async def test_a_new_message(server: DiscordServer, adapter: DiscordAdapter, chat: Channel) -> None:
    """A payload is shown with its nonce; it answers the message that it belongs to."""
    question = server.write(chat, "?")
    receipt = await adapter.send(row(adapter, "**hi** 😀", where(chat), reply_to=question.ref))
    shown = chat.messages[-1]
    assert receipt == Receipt(shown.ref)
    assert (shown.content, shown.nonce) == ("**hi** 😀", NONCE)
    assert server.made("send")[0].data["enforce_nonce"] is True


async def test_nobody_can_be_mentioned(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Mentions in an answer are text: `allowed_mentions` is empty in sends, edits and previews."""
    ref = await adapter.preview(MessageRef(where(chat)), "@everyone", None)
    text = f"@everyone <@{server.ann.id}>"
    await adapter.send(row(adapter, text, where(chat), preview_ref=ref))
    await adapter.send(row(adapter, text, where(chat), nonce="n2"))
    bodies = [call.data for call in (*server.made("send"), *server.made("edit"))]
    assert len(bodies) == 3
    assert all(body["allowed_mentions"]["parse"] == [] for body in bodies)


async def test_an_answer_to_a_deleted_message(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """It is sent all the same."""
    await adapter.send(row(adapter, "hi", where(chat), reply_to="4711"))
    assert chat.texts == ["hi"]


async def test_the_longest_message(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Every part of a long answer is within 2000 characters."""
    parts = adapter.render("word 😀 " * 900)
    for number, part in enumerate(parts):
        await adapter.send(row(adapter, part, where(chat), nonce=str(number)))
    assert len(parts) == len(chat.texts) > 3


async def test_the_final_answer_replaces_its_preview(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """The message sent early grows by edits and becomes the answer; nothing new appears."""
    question = asked(server.write(chat, "?"))
    ref = await adapter.preview(question, "Hel", None)
    assert ref is not None
    assert chat.texts[1].startswith("Hel")
    assert await adapter.preview(question, "Hello w", ref) == ref
    receipt = await adapter.send(row(adapter, "**Hello**", where(chat), preview_ref=ref))
    assert receipt.platform_ref == ref
    assert chat.texts[1:] == ["**Hello**"]


async def test_an_edit_done_twice_is_a_success(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """After a lost answer the same edit is made again; the text stands there once."""
    ref = await adapter.preview(MessageRef(where(chat)), "Hel", None)
    server.fail("edit", CUT)
    with pytest.raises((SendDelayed, SendUnknown)):
        await adapter.send(row(adapter, "Hello", where(chat), preview_ref=ref))
    again = row(adapter, "Hello", where(chat), preview_ref=ref, outcome_unknown=True)
    assert (await adapter.send(again)).platform_ref == ref
    assert chat.texts == ["Hello"]


async def test_a_deleted_preview_is_replaced_by_a_new_message(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Where there is nothing to edit the answer is sent."""
    ref = await adapter.preview(MessageRef(where(chat)), "Hel", None)
    server.delete(chat.messages[-1])
    receipt = await adapter.send(row(adapter, "Hello", where(chat), preview_ref=ref))
    assert chat.texts == ["Hello"]
    assert receipt.platform_ref == chat.messages[-1].ref != ref


async def test_a_preview_is_best_effort(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Whatever happens to a preview, nothing is raised, and a 429 stops those that follow."""
    question = MessageRef(where(chat))
    server.fail("send", NO_ACCESS, flood(30))
    assert await adapter.preview(question, "Hel", None) is None
    assert await adapter.preview(question, "Hello", None) is None
    assert await adapter.preview(question, "Hello w", None) is None
    assert len(server.made("send")) == 2


async def test_the_same_preview_is_not_edited(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """A long answer's preview is cut to one message; a cut that shows nothing new is no edit."""
    ref = await adapter.preview(MessageRef(where(chat)), "word " * 900, None)
    await adapter.preview(MessageRef(where(chat)), "word " * 950, ref)
    assert len(chat.texts) == 1
    assert len(chat.texts[0]) <= 2000
    assert server.made("edit") == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (flood(17), SendDelayed),
        (flood(17, everywhere=True), SendDelayed),
        (flood(17, via=False), SendDelayed),
        (Fault("error", 401, 0, "401: Unauthorized"), SendDelayed),
        (Fault("html", 403), SendDelayed),
        (Fault("error", 400, 20016, "slowmode"), SendDelayed),
        (UNAVAILABLE, (SendDelayed, SendUnknown)),
        (Fault("html", 503), (SendDelayed, SendUnknown)),
        (CUT, SendUnknown),
        (DROP, SendUnknown),
        (JUNK, SendUnknown),
        (ODD_REPLY, SendUnknown),
        (NO_PERMISSION, SendRejected),
        (NO_ACCESS, SendRejected),
        (Fault("error", 403, 50007, "Cannot send messages to this user"), SendRejected),
        (Fault("error", 404, 10003, "Unknown Channel"), SendRejected),
        (Fault("error", 400, 50035, "Invalid Form Body"), SendRejected),
        (Fault("error", 400, 50006, "Cannot send an empty message"), SendRejected),
    ],
    ids=str,
)
async def test_what_becomes_of_a_failed_send(
    server: DiscordServer,
    adapter: DiscordAdapter,
    chat: Channel,
    fault: Fault,
    error: type[AdapterError],
) -> None:
    """The class of the error says whether the message can have been shown."""
    server.fail("send", fault)
    with pytest.raises(error):
        await adapter.send(row(adapter, "Hello", where(chat)))
    assert len(server.made("send")) == 1


async def test_a_long_pause_is_passed_on(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """The `retry_after` of a 429 goes to the outbox."""
    server.fail("send", flood(17.5))
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(row(adapter, "Hello", where(chat)))
    assert caught.value.retry_after_s == pytest.approx(17.5, abs=1)


async def test_a_cloudflare_block_is_passed_on(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """A 429 without `Via` says how long in its header."""
    server.fail("send", flood(30, via=False))
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(row(adapter, "Hello", where(chat)))
    assert caught.value.retry_after_s == pytest.approx(30, abs=1)


async def test_no_server_at_all(make: MakeAdapter, chat: Channel) -> None:
    """What never left this machine is not unknown."""
    place = f"127.0.0.1:{free_port()}"
    adapter = make(api_url=f"http://{place}/api/v10")
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "Hello", where(chat)))


async def test_a_cut_answer_is_shown_once(
    server: DiscordServer, make: MakeAdapter, chat: Channel
) -> None:
    """Sent again with its nonce, also by another process, Discord gives back the first message."""
    server.fail("send", CUT)
    with pytest.raises(SendUnknown):
        await make().send(row(make(), "Hello", where(chat)))
    receipt = await make().send(row(make(), "Hello", where(chat), outcome_unknown=True, age_s=20))
    assert chat.texts == ["Hello"]
    assert receipt == Receipt(chat.messages[0].ref)


async def test_a_cut_answer_of_long_ago_is_looked_up(
    server: DiscordServer, make: MakeAdapter, chat: Channel
) -> None:
    """When Discord has forgotten the nonce, the channel's history tells."""
    server.fail("send", CUT)
    with pytest.raises(SendUnknown):
        await make().send(row(make(), "Hello", where(chat)))
    server.rest.forget_nonces()
    for number in range(130):
        server.write(chat, f"later {number}")
    late = row(make(), "Hello", where(chat), outcome_unknown=True, age_s=7200)
    receipt = await make().send(late)
    assert chat.texts.count("Hello") == 1
    assert receipt == Receipt(chat.messages[0].ref)


async def test_an_equal_answer_to_an_earlier_question(
    server: DiscordServer, make: MakeAdapter, chat: Channel
) -> None:
    """It is not taken for the one in doubt, also not by a process that has not sent it."""
    await make().send(row(make(), "Done.", where(chat), nonce="earlier"))
    asking = server.write(chat, "and now?")
    late = row(make(), "Done.", where(chat), reply_to=asking.ref, outcome_unknown=True, age_s=60)
    receipt = await make().send(late)
    assert receipt.platform_ref == chat.messages[-1].ref
    assert chat.texts[-3:] == ["Done.", "and now?", "Done."]


async def test_a_lost_answer_of_long_ago_is_sent(
    server: DiscordServer, make: MakeAdapter, chat: Channel
) -> None:
    """What is not in the history was never shown; the same text said earlier does not count."""
    adapter = make()
    await adapter.send(row(adapter, "Hello", where(chat), nonce="earlier"))
    server.fail("send", DROP)
    with pytest.raises(SendUnknown):
        await adapter.send(row(adapter, "Hello", where(chat)))
    server.rest.forget_nonces()
    await adapter.send(row(adapter, "Hello", where(chat), outcome_unknown=True, age_s=7200))
    assert chat.texts == ["Hello", "Hello"]


async def test_an_archived_thread_is_opened_by_an_answer(
    server: DiscordServer, adapter: DiscordAdapter, thread: Channel
) -> None:
    """Sending un-archives."""
    server.archive(thread)
    await adapter.send(row(adapter, "hi", where(thread)))
    assert not thread.archived
    assert thread.texts == ["hi"]


async def test_a_preview_in_a_thread_that_was_archived(
    server: DiscordServer, adapter: DiscordAdapter, thread: Channel
) -> None:
    """An edit does not un-archive (50083), so the adapter does; the answer is shown once."""
    ref = await adapter.preview(MessageRef(where(thread)), "Hel", None)
    server.archive(thread)
    await adapter.send(row(adapter, "Hello", where(thread), preview_ref=ref))
    assert [text for text in thread.texts if text.startswith("Hello")] == ["Hello"]
    assert not thread.archived


@pytest.mark.parametrize("preview", [False, True])
async def test_a_locked_thread_takes_nothing(
    server: DiscordServer, adapter: DiscordAdapter, thread: Channel, *, preview: bool
) -> None:
    """160005 ends the row; nothing appears in the parent."""
    ref = await adapter.preview(MessageRef(where(thread)), "Hel", None) if preview else None
    server.archive(thread, locked=True)
    with pytest.raises(SendRejected, match="lock"):
        await adapter.send(row(adapter, "Hello", where(thread), preview_ref=ref))
    assert len(server.general.texts) == 1


async def test_a_deleted_thread_takes_nothing(
    server: DiscordServer, adapter: DiscordAdapter, thread: Channel
) -> None:
    """A thread that was there and is gone is not opened again, nor answered in the parent."""
    await adapter.send(row(adapter, "one", where(thread)))
    server.delete_channel(thread)
    with pytest.raises(SendRejected):
        await adapter.send(row(adapter, "two", where(thread), nonce="n2"))
    assert len(server.general.texts) == 1


async def test_the_cap_of_active_threads(server: DiscordServer, adapter: DiscordAdapter) -> None:
    """160006 ends the row with a reason."""
    server.rest.max_threads = 0
    asking = server.write(server.general, "hello", mention=True)
    address = where(server.general)
    address = type(address)("discord", "default", server.general.ref, asking.ref)
    with pytest.raises((SendRejected, SendDelayed), match="threads"):
        await adapter.send(row(adapter, "hi", address, reply_to=asking.ref))
    assert len(server.general.texts) == 1


async def test_a_closed_direct_chat(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """50007: the person takes no messages from the bot."""
    chat.closed = True
    with pytest.raises(SendRejected, match="direct messages"):
        await adapter.send(row(adapter, "Hello", where(chat)))


async def test_an_answer_to_the_starter_goes_without_a_reference(
    server: DiscordServer, adapter: DiscordAdapter, thread: Channel
) -> None:
    """The question stands in the parent, and a reply must be in the same channel."""
    await adapter.send(row(adapter, "hi", where(thread), reply_to=thread.ref))
    assert thread.texts == ["hi"]


async def test_where_another_process_has_the_session_a_reply_names_what_it_answers(
    server: DiscordServer, adapter: DiscordAdapter
) -> None:
    """In a channel several people talk: what the directory would tell is asked for, once."""
    for n in range(2):
        said = server.write(server.general, f"question {n}")
        where_asked = where(server.general)
        await adapter.send(
            row(adapter, f"answer {n}", where_asked, reply_to=said.ref, nonce=f"{n}")
        )
        sent = server.made("send")[-1].data
        assert sent["message_reference"]["message_id"] == said.ref
    assert len(server.made("channel")) == 1


async def test_a_file(server: DiscordServer, adapter: DiscordAdapter, thread: Channel) -> None:
    """A file arrives with its name and bytes, in the thread, and once."""
    server.fail("send", CUT)
    with pytest.raises(SendUnknown):
        await adapter.send(row(adapter, "", where(thread), file=PNG))
    await adapter.send(row(adapter, "", where(thread), file=PNG, outcome_unknown=True))
    (file,) = thread.messages[-1].files
    assert (file.name, file.content) == ("plot.png", b"\x89PNG")
    assert len(thread.texts) == 1


async def test_a_file_with_a_strange_name(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Neither its name nor its type gets into the headers of the request."""
    file = OutgoingFile('a"b\r\nX-Evil: 1.txt', "text/plain\r\nX-Evil: 1", b"x")
    await adapter.send(row(adapter, "", where(chat), file=file))
    (shown,) = chat.messages[-1].files
    assert (shown.mime, shown.content) == ("application/octet-stream", b"x")
    assert "\r" not in shown.name


async def test_a_file_that_is_too_large(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """More than 10 MiB is refused for good, with the reason."""
    large = OutgoingFile("big.bin", "application/octet-stream", bytes(10 * 1024 * 1024 + 1))
    with pytest.raises(SendRejected, match="large"):
        await adapter.send(row(adapter, "", where(chat), file=large))


async def test_typing(server: DiscordServer, adapter: DiscordAdapter, thread: Channel) -> None:
    """It is shown in the thread; trouble with it is nobody's business."""
    await adapter.show_working(MessageRef(where(thread)))
    assert (server.typed(thread), server.typed(server.general)) == (1, 0)
    server.fail("typing", UNAVAILABLE)
    await adapter.show_working(MessageRef(where(thread)))


async def test_buttons_go_with_the_text(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """Eight choices need two rows; each has its label and comes back with its text."""
    choices = tuple(Choice(f"Choice {n}", f"/pair approve {n}") for n in range(8))
    await adapter.send(row(adapter, "Pick", where(chat), choices=choices))
    shown = chat.messages[-1]
    assert [button["label"] for button in shown.buttons] == [c.label for c in choices]
    assert len(shown.components) == 2


async def test_buttons_replace_a_preview(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel
) -> None:
    """An answer that replaces its preview brings its buttons."""
    ref = await adapter.preview(MessageRef(where(chat)), "Pi", None)
    choices = (Choice("Yes", "yes"),)
    await adapter.send(row(adapter, "Pick", where(chat), preview_ref=ref, choices=choices))
    assert [button["label"] for button in chat.messages[-1].buttons] == ["Yes"]
    assert len(chat.texts) == 1


@pytest.mark.thorough
async def test_one_chat_never_waits_for_another(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel, thread: Channel
) -> None:
    """While Discord hangs over one chat, another gets its answer."""
    server.fail("send", Fault("slow", delay_s=600.0))
    slow = asyncio.get_running_loop().create_task(adapter.send(row(adapter, "slow", where(chat))))
    await server.wait_for(lambda: server.made("send"))
    await adapter.send(row(adapter, "quick", where(thread), nonce="n2"))
    assert not slow.done()
    assert thread.texts == ["quick"]
    slow.cancel()


def test_pacing_stays_below_the_limit() -> None:
    """Sends and edits of two chats together never exceed 5 in 5 s in either of them."""
    for stamps in run_virtually(spoken_in_two_chats()):
        assert len(stamps) >= 5
        assert all(late - early >= 5 for early, late in zip(stamps, stamps[5:], strict=False))


async def spoken_in_two_chats() -> list[list[float]]:
    """Return when messages were sent and edited, in each of two chats."""
    async with DiscordServer() as server:
        adapter = adapter_of(server, RecordingIntake(), limits=LIMITS, clock=time.monotonic)
        chat = server.direct()
        thread = server.open_thread(server.write(server.general, "hello", mention=True))
        ref = await adapter.preview(MessageRef(where(chat)), "a", None)
        sends = [
            adapter.send(row(adapter, str(n), where(place), nonce=f"{place.ref}{n}"))
            for place, n in itertools.product((chat, thread), range(6))
        ]
        final = adapter.send(row(adapter, "end", where(chat), preview_ref=ref, nonce="end"))
        results = await asyncio.gather(final, *sends, return_exceptions=True)
        assert all(isinstance(result, Receipt | SendDelayed) for result in results)
        await adapter.close()
        assert server.violations == []
        return [server.rate_stamps(place) for place in (chat, thread)]


@pytest.mark.parametrize("file", [None, PNG])
async def test_a_process_that_stood_still_shows_nothing(
    server: DiscordServer, adapter: DiscordAdapter, chat: Channel, file: OutgoingFile | None
) -> None:
    """Its lease ended while it waited for its turn: nothing leaves, and nothing is in doubt."""
    FENCE.set(lambda: False)
    with pytest.raises(SendDelayed):
        await adapter.send(row(adapter, "hi", where(chat), file=file))
    assert chat.messages == []


@pytest.fixture
def no_pause_in_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits 1 s and more before it repeats what a server error answered."""

    async def at_once(_seconds: float) -> None:
        return

    monkeypatch.setattr("discord.http.asyncio.sleep", at_once)


@pytest.mark.usefixtures("no_pause_in_the_sdk")
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


@pytest.mark.usefixtures("no_pause_in_the_sdk")
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


@pytest.mark.usefixtures("no_pause_in_the_sdk")
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
