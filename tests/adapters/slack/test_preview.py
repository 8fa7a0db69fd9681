"""The live preview: native streaming with roll-over, and how the final answer replaces it.

Also how much of a growing answer is settled, so that a stream may show it.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, Choice, OutgoingFile
from adapters.slack.adapter import SlackAdapter
from adapters.slack.preview import _settled
from tests.adapters.slack.conftest import (
    DM,
    Clock,
    MakeAdapter,
    connected,
    outgoing,
    question,
    running,
    thread_in,
)
from tests.support.slack.faults import (
    CUT,
    DROP,
    HTML_502,
    JUNK,
    SERVER_ERROR,
    Fault,
    flood,
    refused,
)
from tests.support.slack.people import ANNS_DM, GENERAL
from tests.support.slack.server import SlackServer

FAULTS = [
    CUT,
    DROP,
    JUNK,
    HTML_502,
    SERVER_ERROR,
    flood(0),
    refused("channel_type_not_supported"),
]
GROWING = ["one\n\n", "one\n\ntwo\n\n", "one\n\ntwo\n\nthree\n\n"]


@pytest.fixture
def thread(slack: SlackServer) -> Address:
    """A conversation in a channel."""
    return thread_in(GENERAL, slack.write(GENERAL, "hello", mention=True, tell=False))


@pytest.fixture
async def streaming(
    slack: SlackServer, make: MakeAdapter, clock: Clock
) -> AsyncIterator[SlackAdapter]:
    """An adapter that is connected, and so knows its workspace."""
    adapter = make(clock=clock)
    async with running(adapter):
        await connected(slack)
        yield adapter


def shown_in(slack: SlackServer, address: Address) -> list[str]:
    return slack.shown(address.chat, address.thread)


async def grow(
    adapter: SlackAdapter, clock: Clock, address: Address, texts: list[str]
) -> str | None:
    """Show an answer as it grows, two seconds apart."""
    ref = None
    for text in texts:
        ref = await adapter.preview(question(address, address.thread), text, ref)
        clock.now += 2
    return ref


async def test_an_answer_streams_into_its_thread(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """One message grows, by Slack's own streaming; the final answer stands in its place, once."""
    ref = await grow(streaming, clock, thread, ["one\n\n", "one\n\ntwo\n\n"])
    assert len(shown_in(slack, thread)) == 1
    assert shown_in(slack, thread)[0].startswith("one")
    assert slack.made("chat.startStream")
    receipt = await streaming.send(outgoing("one\n\ntwo\n\nthree", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one\n\ntwo\n\nthree"]
    assert slack.messages(GENERAL, thread.thread)[-1].ts == receipt.platform_ref
    assert not open_streams(slack)


async def test_an_answer_that_became_another_replaces_its_preview(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """Streams are append-only; what was taken back is corrected in the end."""
    ref = await grow(streaming, clock, thread, ["let me look\n\n", "no, other\n\n"])
    await streaming.send(outgoing("no, other words", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["no, other words"]
    assert not open_streams(slack)


async def test_what_tells_of_tools_is_a_message_that_is_edited(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """It changes, and a stream can only grow; the answer takes its place."""
    ref = None
    asked = question(thread, thread.thread)
    for status in ("\N{WRENCH} terminal: `ls`", "\N{CHECK MARK} terminal: `ls`"):
        ref = await streaming.preview(asked, status, ref, grows=False)
        assert shown_in(slack, thread) == [f"{status} \N{HORIZONTAL ELLIPSIS}"]
        clock.now += 2
    assert not slack.made("chat.startStream")
    await streaming.send(outgoing("two files", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["two files"]


async def test_a_tool_in_the_middle_of_an_answer_ends_its_stream(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """The same message goes on as edits."""
    ref = await grow(streaming, clock, thread, ["Let me see.\n\n"])
    status = "\N{WRENCH} terminal: `ls`"
    await streaming.preview(question(thread, thread.thread), status, ref, grows=False)
    assert shown_in(slack, thread) == [f"{status} \N{HORIZONTAL ELLIPSIS}"]
    assert not open_streams(slack)


async def test_a_final_answer_of_two_parts(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """The first part takes the preview's place, the second one follows."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    await streaming.send(outgoing("one", thread, preview_ref=ref))
    await streaming.send(outgoing("two", thread, nonce="f" * 24))
    assert shown_in(slack, thread) == ["one", "two"]


async def test_a_stream_that_slack_closed_loses_nothing(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """message_not_in_streaming_state: the answer stands there in the end, whole and once."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    slack.api.stream_s = -1.0
    ref = await streaming.preview(question(thread, thread.thread), "one two\n\nthree\n\n", ref)
    clock.now += 2
    await streaming.send(outgoing("one two\n\nthree\n\nfour", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one two\n\nthree\n\nfour"]


async def test_a_long_stream_rolls_over_before_slack_closes_it(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """After four minutes the old stream is stopped; the final answer is shown once, whole."""
    ref = await grow(streaming, clock, thread, ["one\n\n", "one\n\ntwo\n\n"])
    clock.now += 245
    ref = await streaming.preview(question(thread, thread.thread), "one\n\ntwo\n\nthree\n\n", ref)
    assert slack.made("chat.stopStream") or slack.made("chat.update")
    clock.now += 2
    text = "one\n\ntwo\n\nthree\n\nfour"
    await streaming.send(outgoing(text, thread, preview_ref=ref))
    assert shown_in(slack, thread) == [text]
    assert not open_streams(slack)


async def test_a_preview_longer_than_one_message(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """Nothing over Slack's limit goes out while the model writes; the end comes in parts."""
    text = "".join(f"paragraph {number} {'x' * 300}\n\n" for number in range(80))
    ref = await grow(streaming, clock, thread, [text[:9_000], text[:14_000], text])
    parts = streaming.render(text)
    for number, part in enumerate(parts):
        row = outgoing(
            part, thread, nonce=f"{number:024x}", preview_ref=ref if not number else None
        )
        await streaming.send(row)
    assert shown_in(slack, thread) == parts
    assert not open_streams(slack)


@pytest.mark.parametrize("method", ["chat.startStream", "chat.appendStream", "chat.update"])
@pytest.mark.parametrize(
    "fault",
    [CUT, DROP, JUNK, HTML_502, SERVER_ERROR, flood(0), refused("channel_type_not_supported")],
)
async def test_a_preview_that_cannot_be_shown_costs_nothing(
    slack: SlackServer,
    streaming: SlackAdapter,
    clock: Clock,
    thread: Address,
    method: str,
    fault: Fault,
) -> None:
    """Whatever happens to a preview, no error comes of it and the answer follows."""
    slack.fail(method, fault)
    ref = await grow(
        streaming, clock, thread, ["one\n\n", "one\n\ntwo\n\n", "one\n\ntwo\n\nthree\n\n"]
    )
    await streaming.send(outgoing("one\n\ntwo\n\nthree\n\nfour", thread, preview_ref=ref))
    assert shown_in(slack, thread)[-1] == "one\n\ntwo\n\nthree\n\nfour"


async def test_the_final_edit_is_repeated_without_harm(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """A lost reply to the edit of a preview is no doubt about what is shown."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    for method in ("chat.stopStream", "chat.update"):
        slack.fail(method, CUT)
    for unknown in (False, True, True):
        row = outgoing("one two", thread, preview_ref=ref, outcome_unknown=unknown)
        with suppress(SendDelayed, SendUnknown):
            await streaming.send(row)
    assert shown_in(slack, thread) == ["one two"]


async def test_a_new_process_takes_the_preview_of_an_old_one(
    slack: SlackServer, make: MakeAdapter, clock: Clock, thread: Address
) -> None:
    """The stream is still open at Slack; the answer replaces it all the same."""
    old = make(clock=clock)
    ref = await grow(old, clock, thread, ["one two\n\n"])
    await old.close()
    await make().send(outgoing("one two", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one two"]
    assert not open_streams(slack)


async def test_a_preview_that_was_deleted_is_posted_anew(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """Somebody may delete the preview before the answer is there."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    slack.delete(GENERAL, slack.messages(GENERAL, thread.thread)[-1].ts, tell=False)
    await streaming.send(outgoing("one two", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one two"]


async def test_a_person_may_stop_the_stream(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """Slack refuses further appends; what is said in the end is shown all the same."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    slack.stop_stream(GENERAL, slack.messages(GENERAL, thread.thread)[-1].ts)
    ref = await streaming.preview(question(thread, thread.thread), "one two\n\nthree\n\n", ref)
    await streaming.send(outgoing("one, stopped", thread, preview_ref=ref))
    assert shown_in(slack, thread)[-1] == "one, stopped"


async def test_a_preview_in_a_direct_chat(
    slack: SlackServer,
    streaming: SlackAdapter,
    clock: Clock,
) -> None:
    """A direct chat has no thread to stream into; the answer stands there once all the same."""
    asked = slack.write(ANNS_DM, "hello", tell=False)
    ref = None
    for text in ("one\n\n", "one\n\ntwo\n\n"):
        ref = await streaming.preview(question(DM, asked), text, ref)
        clock.now += 4
    await streaming.send(outgoing("one\n\ntwo\n\nthree", preview_ref=ref))
    assert slack.shown(ANNS_DM) == ["one\n\ntwo\n\nthree"]
    assert slack.shown(ANNS_DM, asked) == []


async def test_a_preview_in_the_assistant_container(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock
) -> None:
    """A direct chat's thread streams, and needs no recipient."""
    address = thread_in(ANNS_DM, slack.write(ANNS_DM, "hi", tell=False))
    ref = await grow(streaming, clock, address, ["one\n\n", "one\n\ntwo\n\n"])
    await streaming.send(outgoing("one\n\ntwo", address, preview_ref=ref))
    assert shown_in(slack, address) == ["one\n\ntwo"]
    assert slack.made("chat.startStream")


@pytest.mark.parametrize("stop", [SERVER_ERROR, CUT, flood(0)])
async def test_an_append_in_doubt_is_never_repeated(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address, stop: Fault
) -> None:
    """The append was carried out and its reply lost, and then the stream could not be stopped."""
    ref = await grow(streaming, clock, thread, ["one "])
    slack.fail("chat.appendStream", CUT)
    slack.fail("chat.stopStream", stop)
    for text in ("one two ", "one two three ", "one two three four "):
        ref = await streaming.preview(question(thread, thread.thread), text, ref)
        clock.now += 4
    await streaming.send(outgoing("one two three four five", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one two three four five"]
    assert not open_streams(slack)


async def test_buttons_take_the_place_of_a_preview(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """A stream shows no buttons; the answer that has some is put there by an edit."""
    ref = await grow(streaming, clock, thread, ["Shall I "])
    choices = (Choice("Yes", "yes"),)
    await streaming.send(outgoing("Shall I go?", thread, preview_ref=ref, choices=choices))
    (message,) = [m for m in slack.messages(GENERAL, thread.thread) if m.bot]
    assert (message.shown, message.buttons) == ("Shall I go?", ["Yes"])
    assert not open_streams(slack)


async def test_a_lost_preview_and_a_lost_reply_show_the_answer_once(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """The answer is posted anew, its reply is lost: the next attempt looks it up."""
    ref = await grow(streaming, clock, thread, ["one two\n\n"])
    slack.delete(GENERAL, slack.messages(GENERAL, thread.thread)[-1].ts, tell=False)
    slack.fail("chat.postMessage", CUT)
    with pytest.raises(SendUnknown):
        await streaming.send(outgoing("one two", thread, preview_ref=ref))
    await streaming.send(outgoing("one two", thread, preview_ref=ref, outcome_unknown=True))
    assert shown_in(slack, thread) == ["one two"]


async def test_without_a_connection_an_answer_is_shown_by_edits(
    slack: SlackServer, make: MakeAdapter, clock: Clock, thread: Address
) -> None:
    """A stream needs the workspace's id, which Slack does not tell now."""
    slack.fail("auth.test", *[SERVER_ERROR] * 9)
    adapter = make(clock=clock)
    ref = None
    for text in ("one ", "one two ", "one two three "):
        ref = await adapter.preview(question(thread, thread.thread), text, ref)
        clock.now += 5
    await adapter.send(outgoing("one two three four", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one two three four"]
    assert not slack.made("chat.startStream")
    assert slack.made("chat.update")


async def test_where_another_process_has_the_socket_an_answer_streams_too(
    slack: SlackServer, make: MakeAdapter, clock: Clock, thread: Address
) -> None:
    """Who only sends asks who the bot is, once."""
    adapter = make(clock=clock)
    ref = await grow(adapter, clock, thread, ["one\n\n", "one\n\ntwo\n\n"])
    assert slack.made("chat.startStream")
    await adapter.send(outgoing("one\n\ntwo\n\nthree", thread, preview_ref=ref))
    assert shown_in(slack, thread) == ["one\n\ntwo\n\nthree"]
    assert len(slack.made("auth.test")) == 1


def open_streams(slack: SlackServer) -> list[str]:
    """Return the timestamps of streams that nobody has stopped."""
    return [m.ts for m in slack.workspace.own() if m.stream is not None and m.stream.open]


NOBODYS = frozenset[str]()


async def test_a_stream_is_found_behind_its_question(
    slack: SlackServer, streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """It has no metadata before its end; what has is something else, and so is a file."""
    await streaming.send(outgoing("an answer", thread))
    await streaming.send(outgoing("", thread, file=OutgoingFile("a.txt", "text/plain", b"a")))
    asked = question(thread, thread.thread)
    assert await streaming.find_preview(asked, "n", NOBODYS) is None
    ref = await grow(streaming, clock, thread, GROWING[:2])
    assert str(ref).startswith("stream:")
    assert await streaming.find_preview(asked, "n", NOBODYS) == ref


async def test_one_of_several_streams_is_not_guessed(
    streaming: SlackAdapter, clock: Clock, thread: Address
) -> None:
    """Unless the others are known to be something else."""
    first = await grow(streaming, clock, thread, GROWING[:2])
    clock.now += 60
    second = await grow(streaming, clock, thread, GROWING[:2])
    asked = question(thread, thread.thread)
    with pytest.raises(SendRejected, match="2 messages"):
        await streaming.find_preview(asked, "n", NOBODYS)
    others = frozenset([str(first).removeprefix("stream:")])
    assert await streaming.find_preview(asked, "n", others) == second


async def test_a_preview_is_not_found_where_nobody_may_read(
    slack: SlackServer, streaming: SlackAdapter, thread: Address
) -> None:
    """It can never be said; where Slack has trouble, not now."""
    asked = question(thread, thread.thread)
    slack.fail("conversations.replies", refused("missing_scope"), SERVER_ERROR)
    with pytest.raises(SendRejected):
        await streaming.find_preview(asked, "n", NOBODYS)
    with pytest.raises(SendDelayed):
        await streaming.find_preview(asked, "n", NOBODYS)
    with pytest.raises(SendRejected, match="no place in the history"):
        await streaming.find_preview(question(DM), "n", NOBODYS)


async def test_a_preview_cannot_be_looked_for_before_slack_says_who_the_bot_is(
    slack: SlackServer, make: MakeAdapter, thread: Address
) -> None:
    """Else it would not know which messages are its own; it needs no socket for that."""
    slack.fail("auth.test", SERVER_ERROR)
    adapter = make()
    with pytest.raises(SendDelayed):
        await adapter.find_preview(question(thread, thread.thread), "n", NOBODYS)
    assert await adapter.find_preview(question(thread, thread.thread), "n", NOBODYS) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("one", ""),
        ("one two three", "one two "),
        ("one **two thr", "one "),
        ("one **two** three ", "one **two** "),
        ("one two three four", "one two three "),
        ("one [two](htt", "one "),
        ("one\n\n| a | b |\n|---|---|\n| 1 | 2", "one\n\n"),
        ("one two\n\n- ", "one two\n\n"),
        ("one two\n\n# ", "one "),
        ("one `two thr", "one "),
        ("```py\na = 1\nb = 2\n```", "```py\na = 1\nb = 2\n"),
    ],
)
def test_what_may_still_change_is_held_back(text: str, shown: str) -> None:
    """Half words, open marks, tables, marks of lists and headings."""
    assert _settled(text) == shown


WORDS = st.lists(st.sampled_from(["alpha", "beta.", "**bold**", "`code`", "a_b", "\n\n", "1 < 2"]))


@settings(max_examples=50)
@given(WORDS, st.integers(1, 9))
def test_what_is_settled_stays(words: list[str], step: int) -> None:
    """Each longer text begins with what was settled before, so that a stream can go on."""
    text = " ".join(words)
    before = ""
    for end in range(0, len(text), step):
        now = _settled(text[:end])
        assert now.startswith(before) or before.startswith(now)
        before = max(before, now, key=len)
        assert not now[:1].isspace()
