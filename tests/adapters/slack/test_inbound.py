"""Events, commands and buttons → messages; pure functions, no server.

The names of people are asked from a real server.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.messages import Address, Choice, InboundMessage, Poison
from adapters.slack.adapter import SlackAdapter
from adapters.slack.buttons import (
    choice_blocks,
    pressed_blocks,
    read_command,
    read_press,
    read_stop,
    response_url,
)
from adapters.slack.inbound import (
    BotIdentity,
    Reading,
    _readable,
    escaped,
    mentioned,
    people_in,
    read_message,
    unescaped,
    without_address,
)
from adapters.slack.ingest import (
    IncomingPayload,
    _in_order,
    is_bare_mention,
    newer_than,
    position_of,
    ts_of,
)
from adapters.slack.platform import SlackSettings
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.faults import refused, slow
from tests.support.slack.people import ANN, ANNS_DM, BOB, GENERAL
from tests.support.slack.server import SlackServer

NAMES = {"U1": "Ann", "U2": "Bob"}
READING = Reading(
    SlackSettings(),
    BotIdentity("UBOT", "BBOT", "T1", "parley"),
    commands=frozenset({"status", "new"}),
    name_of=NAMES.get,
)
TS = "1700000000.000100"


def event(**changes: Any) -> dict[str, Any]:
    """Return a direct message of Ann's."""
    known = {"type": "message", "channel": "D1", "channel_type": "im", "user": "U1", "ts": TS}
    return {**known, "text": "hello", **changes}


def said(reading: Reading = READING, **changes: Any) -> InboundMessage:
    """Return what an event says, which must be something."""
    message = read_message(event(**changes), reading)
    assert isinstance(message, InboundMessage)
    return message


def group(**changes: Any) -> InboundMessage:
    """Return what somebody says in a channel."""
    return said(**{"channel": "C1", "channel_type": "channel", **changes})


def test_a_direct_message() -> None:
    """The conversation is the chat; name and ids are Slack's."""
    message = said()
    assert message.address == Address("slack", "default", "D1")
    assert (message.chat_kind, message.addressed) == ("dm", "direct")
    assert (message.sender, message.sender_name) == ("U1", "Ann")
    assert (message.message_ref, message.dedupe_key) == (TS, f"D1:{TS}")


def test_a_thread_in_a_direct_chat_is_a_conversation_of_its_own() -> None:
    """It still is a direct chat; its first message is not in it."""
    assert said(thread_ts="1.000001").address.thread == "1.000001"
    assert said(thread_ts="1.000001").chat_kind == "dm"
    assert said(thread_ts=TS).address.thread is None


def test_history_has_no_channel_type() -> None:
    """A direct chat is known by its id."""
    assert said(channel_type=None).chat_kind == "dm"
    assert said(channel="C1", channel_type=None).chat_kind == "group"


@pytest.mark.parametrize("kind", ["channel", "group", "mpim"])
def test_a_mention_opens_a_thread_on_itself(kind: str) -> None:
    """Wherever more than one person is."""
    message = group(channel_type=kind, text="<@UBOT> hi")
    assert message.address == Address("slack", "default", "C1", TS)
    assert (message.chat_kind, message.addressed, message.text) == ("thread", "direct", "hi")


def test_both_events_of_a_mention_are_read_alike() -> None:
    """Whichever comes first, the message is the same."""
    mention = group(text="<@UBOT> hi")
    other = said(type="app_mention", channel="C1", channel_type=None, text="<@UBOT> hi")
    assert replace(other, raw="") == replace(mention, raw="")


def test_a_reply_in_a_thread_may_be_for_the_bot() -> None:
    """The intake decides; a mention there is for it."""
    assert group(thread_ts="1.000001").addressed == "thread"
    assert group(thread_ts="1.000001").address.thread == "1.000001"
    assert group(thread_ts="1.000001", text="<@UBOT> hi").addressed == "direct"


def test_talk_in_a_channel_is_overheard() -> None:
    """It belongs to the channel itself."""
    message = group()
    assert (message.chat_kind, message.addressed, message.address.thread) == (
        "group",
        "overheard",
        None,
    )


@pytest.mark.parametrize("subtype", ["thread_broadcast", "me_message", "file_share"])
def test_other_ways_to_say_something(subtype: str) -> None:
    """Slack's subtypes of what a person says."""
    assert said(subtype=subtype).text == "hello"


@pytest.mark.parametrize(
    "changes",
    [
        {"subtype": "channel_join"},
        {"subtype": "message_deleted", "deleted_ts": TS},
        {"subtype": "bot_message", "bot_id": "B2"},
        {"bot_id": "B2"},
        {"user": "UBOT"},
        {"user": None, "bot_id": "BBOT"},
        {"user": None},
        {"ts": None},
        {"subtype": "message_changed"},
    ],
)
def test_what_no_person_said_is_dropped(changes: dict[str, Any]) -> None:
    """Notices, bots, the bot itself."""
    assert read_message(event(**changes), READING) is None


@pytest.mark.parametrize("known", ["B2", "U9", "A3"])
def test_a_bot_can_be_allowed(known: str) -> None:
    """By its id as a bot, as a user or as an app; never the bot itself."""
    reading = replace(READING, settings=SlackSettings(allow_bots=(known, "UBOT", "BBOT")))
    message = said(reading, user="U9", bot_id="B2", app_id="A3", username="robo")
    assert message.sender_name == "robo"
    assert read_message(event(user="UBOT", bot_id="BBOT"), reading) is None


def changed(text: str, before: str = "hello", **edit: Any) -> dict[str, Any]:
    """Return the event of an edit."""
    inner = {"user": "U1", "ts": TS, "text": text, **edit}
    previous = {"user": "U1", "ts": TS, "text": before}
    change = {"subtype": "message_changed", "ts": "1700000009.000000", "user": None, "text": None}
    return event(**change, message=inner, previous_message=previous)


def test_an_edit_is_a_new_version() -> None:
    """It is named by the message and the time of the edit."""
    edited = {"user": "U1", "ts": "1700000005.000000"}
    message = read_message(changed("better", edited=edited), READING)
    assert isinstance(message, InboundMessage)
    assert (message.kind, message.text, message.message_ref) == ("edit", "better", TS)
    assert message.dedupe_key == f"D1:{TS}:e1700000005.000000"


@pytest.mark.parametrize(
    "change",
    [
        changed("hello", edited={"ts": "1.000001"}),
        changed("better"),
        changed("better", edited={"ts": "1.000001"}, bot_id="B2"),
        changed("better", edited={"ts": "1.000001"}, subtype="tombstone"),
    ],
)
def test_other_changes_are_no_edits(change: dict[str, Any]) -> None:
    """Previews of links, replies counted, bots, deleted messages."""
    assert read_message(change, READING) is None


def test_files_become_attachments() -> None:
    """By their ids; what Slack does not hand out is told."""
    files = [
        {"id": "F1", "name": "a.png", "mimetype": "image/png", "size": 5, "mode": "hosted"},
        {"id": "F2", "title": "note", "mimetype": "audio/mp4", "subtype": "slack_audio"},
        {"id": "F3", "name": "v.mp4", "mimetype": "video/mp4"},
        {"id": "F4", "name": "s.mp3", "mimetype": "audio/mpeg"},
        {"id": "F5", "name": None, "mimetype": None, "size": None},
    ]
    message = said(subtype="file_share", text="", files=files)
    kinds = [each.kind for each in message.attachments]
    assert kinds == ["image", "voice", "video", "audio", "file"]
    assert [each.ref for each in message.attachments] == ["F1", "F2", "F3", "F4", "F5"]
    assert [each.name for each in message.attachments] == [
        "a.png",
        "note",
        "v.mp4",
        "s.mp3",
        "F5",
    ]
    assert message.unreadable is None


@pytest.mark.parametrize(
    "file", [{"id": "F1", "is_external": True}, {"id": "F1", "mode": "tombstone"}, {"name": "x"}]
)
def test_a_file_that_cannot_be_had(file: dict[str, Any]) -> None:
    """It is said, and nothing is fetched."""
    message = said(text="", files=[file])
    assert message.attachments == ()
    assert message.unreadable == "a file that Slack does not hand out"


def test_a_message_without_anything() -> None:
    """There is nothing to read in it."""
    assert said(text="").unreadable == "an empty message"


def test_a_shared_message_is_quoted_and_brings_its_files() -> None:
    """What a link shows is nobody's word."""
    shared = {
        "is_share": True,
        "from_url": "https://w.slack.com/archives/C1/p1",
        "author_name": "Bob",
        "text": "one &amp;\ntwo",
        "files": [{"id": "F1", "name": "a.txt"}],
    }
    link = {"from_url": "https://a.example", "text": "A page"}
    message = said(text="see", attachments=[shared, link, {"text": " "}])
    assert message.text == "> Bob:\n> one &\n> two\n\nsee"
    assert [each.ref for each in message.attachments] == ["F1"]


SHARED: dict[str, Any] = {"is_share": True, "text": "one", "author_id": "U2"}


@pytest.mark.parametrize(
    ("shared", "authors"),
    [
        (SHARED, ("U2",)),
        ({"is_msg_unfurl": True, "from_url": "x", "text": "one", "author_id": "U2"}, ("U2",)),
        (SHARED | {"author_id": "U1"}, ()),
        (SHARED | {"author_id": "UBOT"}, ()),
        (SHARED | {"author_id": ""}, ("?",)),
        (SHARED | {"text": " "}, ()),
        (SHARED | {"text": "", "files": [{"id": "F1"}]}, ("U2",)),
        ({"from_url": "https://a.example", "text": "A page"}, ()),
        ({"text": "shown by an app"}, ("?",)),
    ],
)
def test_whose_words_a_message_shares(shared: Any, authors: tuple[str, ...]) -> None:
    """Those of who wrote what is shown; what Slack shows of a link is nobody's word."""
    message = said(text="see", attachments=[shared])
    assert message.authors == authors
    assert [each.authors for each in message.attachments] in ([], [authors])


def test_what_a_bot_shows_below_its_text_is_its_own() -> None:
    """Of a bot that is listened to; what it shares is somebody else's."""
    reading = replace(READING, settings=SlackSettings(allow_bots=("B9",)))
    own = said(reading, bot_id="B9", subtype="bot_message", attachments=[{"text": "one"}])
    shared = said(reading, bot_id="B9", subtype="bot_message", attachments=[SHARED])
    assert (own.authors, shared.authors) == ((), ("U2",))


def test_a_command_stands_alone() -> None:
    """A quote in front of it would hide it."""
    message = said(text="!new", attachments=[{"text": "quoted"}])
    assert (message.text, message.authors) == ("/new", ())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("!status now", "/status now"),
        ("!wow", "!wow"),
        ("! status", "! status"),
        ("!", "!"),
        ("<@UBOT> !status", "/status"),
        ("<@UBOT> /status", "/status"),
    ],
)
def test_commands_in_threads(text: str, meant: str) -> None:
    """An exclamation mark makes a command only of what is in the menu."""
    assert group(text=text, thread_ts="1.000001").text == meant


def test_names_are_shown_where_they_are_known() -> None:
    """Of who speaks and of who is named; else ids."""
    assert said(text="<@U2> and <@U7>, <@UBOT>").text == "@Bob and @U7, @parley"
    assert said(user="U7").sender_name == "U7"
    profile = {"display_name": "", "real_name": "Annabel"}
    assert said(user_profile=profile).sender_name == "Annabel"


@pytest.mark.parametrize(
    "broken",
    [
        [],
        "x",
        {"type": "message"},
        event(ts=5),
        event(files="x"),
        event(text={"a": 1}),
        event(message=[]),
    ],
)
def test_what_cannot_be_read_is_poison(broken: Any) -> None:
    """It is kept as it came."""
    item = read_message(broken, READING)
    assert isinstance(item, Poison)
    assert json.loads(item.raw) == broken


def test_the_same_poison_has_the_same_name() -> None:
    """A redelivery is known."""
    assert read_message([], READING) == read_message([], READING)


def test_raw_updates_hold_no_secrets() -> None:
    """The verification token goes."""
    envelope = {"token": "secret", "event": event()}
    message = read_message(envelope["event"], READING, envelope)
    assert isinstance(message, InboundMessage)
    assert "secret" not in message.raw


def test_what_no_database_takes_is_replaced() -> None:
    """NUL and lone surrogates."""
    assert said(text="a\x00b\ud800c").text == "a\ufffdb\ufffdc"


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda c: (
            st.lists(c)
            | st.dictionaries(
                st.sampled_from([
                    "type",
                    "channel",
                    "user",
                    "ts",
                    "text",
                    "files",
                    "message",
                    "edited",
                    "id",
                    "attachments",
                    "subtype",
                    "bot_id",
                    "thread_ts",
                ]),
                c,
            )
        ),
    )
)
def test_reading_never_raises(update: Any) -> None:
    """Whatever Slack sends."""
    assert isinstance(read_message(update, READING), InboundMessage | Poison | None)
    assert all(isinstance(person, str) for person in people_in(update))


def command(text: str = "", **changes: str) -> InboundMessage:
    """Return a slash command of Ann's."""
    form = {
        "command": "/parley",
        "text": text,
        "user_id": "U1",
        "user_name": "ann",
        "channel_id": "C1",
        "trigger_id": "1.2.abc",
        "response_url": "https://hooks.slack.com/commands/1",
        "token": "secret",
    }
    message = read_command({**form, **changes}, READING)
    assert message is not None
    return message


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", "/help"),
        ("status", "/status"),
        (" status now ", "/status now"),
        ("/status", "/status"),
        ("what is it?", "what is it?"),
        ("/", "/help"),
    ],
)
def test_a_slash_command_is_text(text: str, meant: str) -> None:
    """Its first word may be a command of the menu; anything else is a question."""
    assert command(text).text == meant


def test_a_further_slash_command_names_itself() -> None:
    """An app may have one for each command of the menu."""
    assert command("now", command="/status").text == "/status now"
    assert command("now", command="/other").text == "now"


def test_a_slash_command_knows_where_it_is_answered() -> None:
    """Its own address is kept for chats that the bot is not in; it is nowhere else."""
    message = command("status")
    assert response_url(message.message_ref) == "https://hooks.slack.com/commands/1"
    assert message.dedupe_key == "command:1.2.abc"
    assert (message.chat_kind, message.addressed) == ("group", "direct")
    assert command(channel_id="D1").chat_kind == "dm"
    assert "secret" not in message.raw
    assert "hooks.slack.com" not in message.raw
    assert response_url(TS) is None
    assert response_url(None) is None


def test_a_command_of_nobody_is_dropped() -> None:
    """Without a person or a place there is nothing to answer."""
    assert read_command({"command": "/parley"}, READING) is None


CHOICES = (Choice("Yes & <ok>", "/pair approve X"), Choice("No", "/pair deny X"))


def press(**changes: Any) -> dict[str, Any]:
    """Return the payload of a press of the first button."""
    blocks = choice_blocks("Let Bob in?", CHOICES)
    button = {**blocks[1]["elements"][0], "action_ts": "1700000007.000000"}
    message = {"ts": TS, "text": "Let Bob in?", "blocks": blocks}
    known = {
        "type": "block_actions",
        "user": {"id": "U1", "name": "ann"},
        "channel": {"id": "D1"},
        "message": message,
        "actions": [button],
    }
    return {**known, **changes}


def test_a_pressed_button_is_a_message() -> None:
    """As if its text had been written."""
    pressed = read_press(press(), READING)
    assert pressed is not None
    assert pressed.message.text == "/pair approve X"
    assert pressed.message.address == Address("slack", "default", "D1")
    assert pressed.message.dedupe_key == f"action:D1:{TS}:1700000007.000000:U1"


def test_a_button_in_a_thread() -> None:
    """Its answer belongs there."""
    message = {"ts": TS, "thread_ts": "1.000001"}
    pressed = read_press(press(channel={"id": "C1"}, message=message), READING)
    assert pressed is not None
    assert pressed.message.address.thread == "1.000001"
    assert pressed.message.chat_kind == "thread"


def test_a_pressed_button_goes_and_its_choice_stays() -> None:
    """With who chose it; markup of the label is text."""
    pressed = read_press(press(), READING)
    assert pressed is not None
    text, note = pressed_blocks(pressed)
    assert text == {"type": "markdown", "text": "Let Bob in?"}
    assert note["elements"][0]["text"] == "*Yes &amp; &lt;ok&gt;*: <@U1>"


@pytest.mark.parametrize(
    "payload",
    [
        [],
        {"type": "view_submission"},
        press(actions=[{"action_id": "other", "value": "x"}]),
        press(actions=None),
        press(user=None),
        press(channel="C1"),
        press(message=None),
    ],
)
def test_other_interactions_are_dropped(payload: Any) -> None:
    """Buttons of nobody's, and what has no place."""
    assert read_press(payload, READING) is None


def test_the_stop_button_is_a_command() -> None:
    """Slack's own, which it shows while an agent works."""
    stop = {"channel": "C1", "thread_ts": "1.000001", "user": "U1", "event_ts": TS}
    message = read_stop(stop, READING)
    assert message is not None
    assert (message.text, message.address.thread) == ("/stop", "1.000001")
    assert read_stop({**stop, "user": None}, READING) is None


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        ("<#C1|general> <#C2>", "#general #C2"),
        ("<@U9|bo>", "@bo"),
        ("<https://a.example|here>", "here (https://a.example)"),
        ("<https://a.example>", "https://a.example"),
        ("<a.example|a.example>", "a.example"),
        ("<mailto:a@b.example|a@b.example>", "a@b.example"),
        ("<!here> <!channel|channel> <!subteam^S1|@team>", "@here channel @team"),
        ("<!subteam^S1>", "@subteam"),
        ("<!date^1^{date}|today>", "today"),
        ("1 &lt; 2 &amp;&amp; 3 &gt; 2", "1 < 2 && 3 > 2"),
        ("&amp;lt;", "&lt;"),
        ("a < b > c", "a < b > c"),
    ],
)
def test_markup_is_shown_as_people_see_it(markup: str, shown: str) -> None:
    """Slack's own signs, links and entities."""
    assert _readable(markup) == shown


@settings(max_examples=60)
@given(st.text())
def test_escaping_is_undone(text: str) -> None:
    """And nothing of it is markup."""
    assert unescaped(escaped(text)) == text
    assert _readable(escaped(text)) == text


def test_only_the_address_in_front_goes() -> None:
    """A bare mention stays, so that there is something to answer."""
    assert without_address(" <@UBOT>, <@UBOT|p>: hi <@UBOT>", "UBOT") == "hi <@UBOT>"
    assert without_address("<@UBOT>", "UBOT") == "<@UBOT>"
    assert mentioned("<@U1> <@U2|b> <#C1>") == ["U1", "U2"]


def test_messages_are_sorted_and_the_rest_keeps_its_place() -> None:
    """Only messages have a time of Slack's."""
    later, between, sooner = said(ts="1700000002.000000"), command("status"), said()
    assert _in_order([later, between, sooner]) == [sooner, between, later]


@given(st.integers(0, 10**16))
def test_positions_are_timestamps(position: int) -> None:
    """Without loss."""
    assert position_of(ts_of(position)) == position


@pytest.mark.parametrize("ts", [None, "", "5", "1.5", "a.000000", "command:x"])
def test_what_is_no_timestamp_has_no_position(ts: str | None) -> None:
    """Neither is it sorted nor reacted to."""
    assert position_of(ts) is None


def test_history_is_read_from_its_position_on() -> None:
    """Oldest first; a page of replies begins with the old parent."""
    parent, reply, last = (event(ts=ts_of(at)) for at in (5, 20, 30))
    assert newer_than([parent, last, reply, "junk"], 10) == [reply, last]


def test_a_mention_with_files_does_not_wait() -> None:
    """There is nothing to wait for."""
    assert is_bare_mention(IncomingPayload("events_api", {"event": {"type": "app_mention"}}))
    full = {"event": {"type": "app_mention", "files": []}}
    assert not is_bare_mention(IncomingPayload("events_api", full))
    assert not is_bare_mention(IncomingPayload("events_api", []))


async def heard(slack: SlackServer, intake: RecordingIntake, text: str = "hi") -> InboundMessage:
    """Return what Ann writes as it was stored."""
    count = len(intake.messages)
    slack.write(ANNS_DM, text)
    await intake.has(count + 1)
    return intake.messages[-1]


async def test_a_name_is_asked_once(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Of who writes and of who is named."""
    slack.write(GENERAL, f"<@{BOB}>?")
    await intake.has(1)
    await heard(slack, intake)
    first, second = intake.messages
    assert first.sender_name == second.sender_name != ANN
    assert BOB not in first.text
    assert len(slack.made("users.info")) == 2


async def test_a_refused_name_is_not_asked_again(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Without the scope the id has to do."""
    slack.fail("users.info", *[refused("missing_scope")] * 3)
    assert (await heard(slack, intake)).sender_name == ANN
    assert (await heard(slack, intake)).sender_name == ANN
    assert len(slack.made("users.info")) == 1


@pytest.mark.thorough
async def test_nobody_waits_long_for_a_name(
    slack: SlackServer,
    intake: RecordingIntake,
    live: SlackAdapter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is stored with the id, and those behind it do not wait either."""
    # Long enough for a busy machine to ask for the first one.
    monkeypatch.setattr("adapters.slack.inbound.WAIT_S", 2.0)
    slack.fail("users.info", slow(600))
    assert (await heard(slack, intake)).sender_name == ANN
    assert (await heard(slack, intake)).sender_name == ANN
    assert len(slack.made("users.info")) == 1
