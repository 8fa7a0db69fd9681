"""What people do in Slack, as the intake gets it through the real client."""

import pytest

from adapters.messages import Address, Choice
from adapters.slack.adapter import SlackAdapter
from adapters.slack.ingest import MOST_EMPTY_PAGES
from tests.adapters.slack.conftest import (
    DM,
    Clock,
    MakeAdapter,
    connected,
    outgoing,
    running,
    supervised,
    thread_in,
)
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.faults import (
    CUT,
    DROP,
    HTML_502,
    JUNK,
    SERVER_ERROR,
    Fault,
    flood,
    refused,
    slow,
)
from tests.support.slack.people import ANN, ANNS_DM, BOB, GENERAL, OTHER_BOT
from tests.support.slack.server import SlackServer
from tests.support.slack.workspace import Person
from tests.support.thorough import WAIT_S


async def test_a_direct_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A direct chat is one conversation; the message's timestamp is its name."""
    ts = slack.write(ANNS_DM, "hello &amp; <https://a.example|there>")
    await intake.has(1)
    (message,) = intake.messages
    assert (message.address, message.chat_kind, message.addressed) == (DM, "dm", "direct")
    assert (message.sender, message.message_ref, message.kind) == (ANN, ts, "message")
    assert message.text == "hello & there (https://a.example)"


async def test_a_thread_in_a_direct_chat_is_its_own(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A thread inside a direct chat is another conversation, still direct."""
    parent = slack.write(ANNS_DM, "one")
    slack.write(ANNS_DM, "two", thread=parent)
    await intake.has(2)
    inside = next(m for m in intake.messages if m.text == "two")
    assert inside.address == thread_in(ANNS_DM, parent)
    assert (inside.chat_kind, inside.addressed) == ("dm", "direct")


async def test_a_mention_opens_a_thread_that_goes_on_without(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The conversation is the thread below the mention; replies there need no mention."""
    parent = slack.write(GENERAL, "what is up?", mention=True)
    await intake.has(1)
    slack.write(GENERAL, "and now?", BOB, thread=parent)
    await intake.has(2)
    first, second = intake.messages
    assert first.address == second.address == thread_in(GENERAL, parent)
    assert (first.chat_kind, first.addressed, first.text) == ("thread", "direct", "what is up?")
    assert (second.chat_kind, second.addressed, second.sender) == ("thread", "thread", BOB)


@pytest.mark.parametrize("first", ["message", "app_mention"])
async def test_both_events_of_a_mention_are_one_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, first: str
) -> None:
    """`message` and `app_mention` have the same key and say the same, in either order."""
    slack.write(GENERAL, "hi", mention=True, first=first)  # type: ignore[arg-type]
    await intake.was_offered(2)
    assert len({message.dedupe_key for message in intake.offered}) == 1
    assert len({(m.address, m.addressed, m.text) for m in intake.offered}) == 1
    assert intake.texts == ["hi"]


async def test_both_events_at_once_in_one_thread(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A mention inside of a thread belongs to that thread."""
    parent = slack.write(GENERAL, "a talk")
    async with slack.held() as deliveries:
        slack.write(GENERAL, "help us", BOB, thread=parent, mention=True)
        deliveries.reverse()
    await intake.was_offered(3)
    mention = next(m for m in intake.messages if m.text == "help us")
    assert mention.address == thread_in(GENERAL, parent)
    assert mention.addressed == "direct"


async def test_talk_of_others_is_handed_over_as_overheard(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The gateway decides what becomes of what was not said to the bot."""
    slack.write(GENERAL, "lunch?", BOB)
    await intake.has(1)
    (message,) = intake.messages
    assert (message.chat_kind, message.addressed) == ("group", "overheard")
    assert message.address == Address("slack", "default", GENERAL)


async def test_edits_are_new_versions_and_unfurls_are_not(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Each edit is noted once; the preview of a link that Slack adds is no edit."""
    ts = slack.write(ANNS_DM, "see https://a.example")
    slack.unfurl(ANNS_DM, ts)
    slack.edit(ANNS_DM, ts, "see https://b.example")
    slack.unfurl(ANNS_DM, ts)
    slack.edit(ANNS_DM, ts, "see https://c.example")
    slack.write(ANNS_DM, "last")
    await intake.has(4)
    edits = [m for m in intake.messages if m.kind == "edit"]
    assert sorted(m.text for m in edits) == ["see https://b.example", "see https://c.example"]
    assert {m.message_ref for m in edits} == {ts}
    assert len(intake.offered) == 4


async def test_bots_and_notices_are_dropped(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Neither another bot, nor the bot's own posts, nor "has joined" are anybody's message."""
    slack.write(GENERAL, "beep", OTHER_BOT, mention=True)
    slack.write(GENERAL, "<@U0BOB> has joined the channel", BOB, subtype="channel_join")
    await live.send(outgoing("an answer"))
    slack.write(ANNS_DM, "last")
    await slack.wait_for(lambda: all(each.acked for each in slack.delivering.deliveries))
    assert intake.texts == ["last"]


async def test_a_bot_that_is_allowed_is_heard(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """`allow_bots` takes the id of a bot's user."""
    async with running(make(allow_bots=(OTHER_BOT,))):
        await connected(slack)
        slack.write(GENERAL, "beep", OTHER_BOT, mention=True)
        await intake.has(1)
    assert intake.texts == ["beep"]


async def test_files_come_with_their_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The admission holds what is known of a file; its bytes are fetched with the bot's token."""
    file = slack.add_file("cat.png", b"\x89PNG", "image/png")
    slack.write(ANNS_DM, "look", files=[file])
    await intake.has(1)
    (attachment,) = intake.messages[0].attachments
    assert (attachment.name, attachment.kind, attachment.mime) == ("cat.png", "image", "image/png")
    assert attachment.size_bytes == 4
    assert await live.fetch(DM, attachment, 100) == b"\x89PNG"


async def test_a_file_of_another_workspace_is_looked_up(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Slack Connect tells only the id; the rest is in files.info."""
    file = slack.add_file("notes.txt", b"text", "text/plain", stub=True)
    slack.write(ANNS_DM, "read this", files=[file])
    await intake.has(1)
    (attachment,) = intake.messages[0].attachments
    assert await live.fetch(DM, attachment, 100) == b"text"


async def test_a_slash_command_is_a_command(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """`/parley status` is "/status"; it is acknowledged after it was stored."""
    command = slack.slash(GENERAL, "status")
    await intake.has(1)
    (message,) = intake.messages
    assert (message.text, message.sender, message.addressed) == ("/status", ANN, "direct")
    await slack.wait_for(lambda: command.acked)


async def test_what_follows_a_slash_command_can_be_a_question(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """`/parley how are you` asks, `/parley` alone shows the help."""
    slack.slash(ANNS_DM, "how are you")
    slack.slash(ANNS_DM, "")
    await intake.has(2)
    assert sorted(intake.texts) == ["/help", "how are you"]


async def test_the_same_command_twice_is_two_commands(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The key is that of the interaction, not of its words."""
    slack.slash(ANNS_DM, "status")
    slack.slash(ANNS_DM, "status")
    await intake.has(2)
    assert intake.texts == ["/status", "/status"]


async def test_a_command_in_a_thread_begins_with_an_exclamation_mark(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Slack has no slash commands in threads; other words with "!" stay as they are."""
    parent = slack.write(GENERAL, "!status", mention=True)
    slack.write(GENERAL, "!new", thread=parent)
    slack.write(GENERAL, "!important", thread=parent)
    await intake.has(3)
    assert sorted(intake.texts) == ["!important", "/new", "/status"]
    assert {m.address for m in intake.messages} == {thread_in(GENERAL, parent)}


async def test_the_assistant_container(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """What is written in an assistant thread belongs to that thread of the direct chat."""
    thread = slack.open_assistant()
    slack.write(ANNS_DM, "hello", thread=thread)
    await intake.has(1)
    assert intake.messages[0].address == thread_in(ANNS_DM, thread)
    await slack.wait_for(lambda: all(each.acked for each in slack.delivering.deliveries))


async def test_a_group_of_people_is_a_group(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """In a direct message of several people the bot answers to mentions, in a thread."""
    slack.add_channel("G0SEVERAL", "mpim")
    slack.write("G0SEVERAL", "among us", BOB)
    ts = slack.write("G0SEVERAL", "and you?", mention=True)
    await intake.has(2)
    found = {m.text: (m.chat_kind, m.addressed, m.address.thread) for m in intake.messages}
    assert found == {
        "among us": ("group", "overheard", None),
        "and you?": ("thread", "direct", ts),
    }


async def test_slacks_own_stop_button(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A click on it is the command "/stop" in that thread."""
    parent = slack.write(GENERAL, "go", mention=True)
    event = {"type": "agent_session_stopped", "channel": GENERAL, "thread_ts": parent}
    slack.tell(event | {"user": ANN, "event_ts": "1700000000.000001"})
    await intake.has(2)
    stop = next(m for m in intake.messages if m.text == "/stop")
    assert (stop.address, stop.sender) == (thread_in(GENERAL, parent), ANN)


async def test_what_is_stored_lets_nobody_act_for_the_app(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Raw updates are kept for weeks: neither tokens nor addresses for answers are in them."""
    receipt = await live.send(outgoing("Sure?", choices=(Choice("Yes", "yes"),)))
    slack.press(ANNS_DM, receipt.platform_ref, "Yes")
    slack.slash(ANNS_DM, "status")
    slack.write(ANNS_DM, "hello")
    await intake.has(3)
    for message in intake.messages:
        assert "verification-token" not in message.raw
        assert "/secret" not in message.raw


async def test_a_burst_is_admitted_completely(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """300 messages of 50 chats, in any order: none lost, each acknowledged the first time."""
    slack.delivering.ack_s = WAIT_S
    people = [Person(f"U{number}", f"p{number}") for number in range(50)]
    for person in people:
        slack.workspace.add_person(person)
        slack.add_channel(f"D{person.id}", "im", user=person.id)
    async with slack.held() as deliveries:
        for number in range(300):
            person = people[number % 50]
            slack.write(f"D{person.id}", str(number), person.id)
        deliveries.reverse()
    await intake.has(300)
    await slack.wait_for(lambda: all(d.acked for d in slack.delivering.deliveries))
    assert {d.attempts for d in slack.delivering.deliveries} == {1}
    assert sorted(map(int, intake.texts)) == list(range(300))


async def test_what_was_said_in_a_gap_is_fetched(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Channels, their threads and direct chats: no gap, and nothing twice."""
    async with supervised(make()):
        await connected(slack)
        parent = slack.write(GENERAL, "hello", mention=True)
        slack.write(ANNS_DM, "mine")
        await intake.has(2)
    slack.write(GENERAL, "in the thread", thread=parent, tell=False)
    slack.write(ANNS_DM, "in the direct chat", tell=False)
    slack.write(GENERAL, "a new one", mention=True, tell=False)
    async with supervised(make()):
        await intake.has(5)
        slack.write(ANNS_DM, "live again")
        await intake.has(6)
    said = ["a new one", "hello", "in the direct chat", "in the thread", "live again", "mine"]
    assert sorted(intake.texts) == said
    fetched = next(m for m in intake.messages if m.text == "in the thread")
    assert (fetched.address.thread, fetched.addressed) == (parent, "thread")
    opened = next(m for m in intake.messages if m.text == "a new one")
    assert (opened.address.thread, opened.addressed) == (opened.message_ref, "direct")


async def miss(
    slack: SlackServer,
    intake: RecordingIntake,
    make: MakeAdapter,
    messages: int,
    *,
    in_thread: bool = False,
) -> None:
    """Have the adapter hear "0" and go away; then "1" and so many more are said."""
    channel = GENERAL if in_thread else ANNS_DM
    async with supervised(make()):
        await connected(slack)
        first = slack.write(channel, "0", mention=in_thread)
        await intake.has(1)
    for number in range(1, messages + 1):
        slack.write(channel, str(number), thread=first if in_thread else None, tell=False)


async def come_back(intake: RecordingIntake, make: MakeAdapter, messages: int) -> None:
    """Have the adapter run again until it has read the gap: all is there, in its order."""
    async with supervised(make()):
        await intake.has(messages + 1)
    assert intake.texts == [str(number) for number in range(messages + 1)]


@pytest.mark.parametrize("forward", [False, True])
async def test_a_long_gap_is_fetched_page_by_page(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, *, forward: bool
) -> None:
    """Whatever the size and order of Slack's pages, everything comes in the order it was said."""
    slack.api.history_limit, slack.api.page_forward = 15, forward
    await miss(slack, intake, make, 100)
    await come_back(intake, make, 100)
    moved = [each.position for each in intake.cursors]
    assert moved == sorted(moved)


async def test_a_long_thread_is_fetched_page_by_page(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Replies come oldest first, each page with the parent above it."""
    slack.api.history_limit = 15
    await miss(slack, intake, make, 70, in_thread=True)
    await come_back(intake, make, 70)


async def test_a_long_gap_is_read_again_where_reading_was_interrupted(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Live messages come in meanwhile, and the place to read from stays."""
    slack.api.history_limit = 15
    await miss(slack, intake, make, 100)
    slack.fail("conversations.history", *[slow(0)] * 4, *[SERVER_ERROR] * 20)
    async with supervised(make()):
        await slack.wait_for(lambda: len(slack.made("conversations.history")) >= 5)
        slack.write(ANNS_DM, "live")
        await intake.has(2)
    assert intake.texts == ["0", "live"]
    slack.recover()
    async with supervised(make()):
        await intake.has(102)
    assert [text for text in intake.texts if text != "live"] == [str(n) for n in range(101)]
    assert [each.text for each in intake.offered if each.text != "live"] == [
        str(number) for number in range(101)
    ]


async def test_a_history_that_never_ends_is_left(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None
) -> None:
    """Pages without messages, each with a next one: the place to read from stays."""
    cursor = {"next_cursor": "bmV4dDo=0"}
    empty = refused("", ok=True, messages=[], has_more=True, response_metadata=cursor)
    slack.fail("conversations.history", *[empty] * (MOST_EMPTY_PAGES + 1))
    async with supervised(make()):
        await slack.wait_for(lambda: len(slack.made("conversations.history")) > MOST_EMPTY_PAGES)
    async with supervised(make()):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_threads_for_which_the_time_did_not_suffice_come_first(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """However many there are and however short a connection is, each has its turn."""
    adapter = make()
    async with supervised(adapter):
        await connected(slack)
        older = slack.write(GENERAL, "one", mention=True)
        newer = slack.write(GENERAL, "two", mention=True)
        await intake.has(2)
    slack.write(GENERAL, "three", thread=newer, tell=False)
    intake.gate.clear()
    async with running(adapter):
        await intake.was_tried(intake.attempts + 1)
    intake.gate.set()
    async with running(adapter):
        await slack.wait_for(lambda: len(slack.made("conversations.replies")) == 3)
    asked = [call.params["ts"] for call in slack.made("conversations.replies")]
    assert asked == [newer, older, newer]


async def test_a_first_start_fetches_nothing(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """What was said before the bot was there is not for it."""
    slack.write(ANNS_DM, "long ago", tell=False)
    slack.write(GENERAL, "long ago", mention=True, tell=False)
    async with running(make()):
        await connected(slack)
        slack.write(ANNS_DM, "now")
        await intake.has(1)
    assert intake.texts == ["now"]


async def test_edits_and_answers_of_the_bot_are_no_gap(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """History also shows the bot's own messages; they are not taken for a person's."""
    async with supervised(make()):
        await connected(slack)
        slack.write(ANNS_DM, "one")
        await intake.has(1)
    slack.bot_writes(ANNS_DM, "an answer")
    slack.write(ANNS_DM, "two", tell=False)
    async with supervised(make()):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


@pytest.fixture
async def absent(slack: SlackServer, intake: RecordingIntake, make: MakeAdapter) -> None:
    """The adapter was there, heard "one", and went away; then "two" was said."""
    async with supervised(make()):
        await connected(slack)
        slack.write(ANNS_DM, "one")
        await intake.has(1)
    slack.write(ANNS_DM, "two", tell=False)


async def test_a_gap_within_one_run_is_fetched(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, clock: Clock
) -> None:
    """A refreshed connection, too, may have missed something."""
    async with running(make(clock=clock)):
        await connected(slack)
        slack.write(ANNS_DM, "one")
        await intake.has(1)
        slack.write(ANNS_DM, "two", tell=False)
        clock.now += 3600
        await slack.delivering.disconnect()
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_live_messages_do_not_hide_the_gap(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None
) -> None:
    """While the gap cannot be read, new messages come in and the place to read from stays."""
    slack.fail("conversations.history", *[SERVER_ERROR] * 20)
    async with supervised(make()):
        await connected(slack, 2)
        await slack.wait_for(lambda: slack.made("conversations.history"))
        slack.write(ANNS_DM, "three")
        await intake.has(2)
    slack.recover()
    async with supervised(make()):
        await intake.has(3)
    assert sorted(intake.texts) == ["one", "three", "two"]


@pytest.mark.parametrize("fault", [CUT, DROP, HTML_502, JUNK])
async def test_trouble_while_reading_a_gap_loses_nothing(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None, fault: Fault
) -> None:
    """The next connection begins where the last one could not."""
    slack.fail("conversations.history", *[fault] * 2)
    async with supervised(make()):
        await connected(slack, 2)
        await slack.wait_for(lambda: slack.made("conversations.history"))
    slack.recover()
    async with supervised(make()):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


@pytest.mark.thorough
async def test_a_flood_wait_while_reading_a_gap_is_waited_out(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None
) -> None:
    """The server notes whoever comes back too early."""
    slack.fail("conversations.history", flood(1))
    async with supervised(make()):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_a_gap_that_could_not_be_stored_is_read_again(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None
) -> None:
    """The cursor moves in the transaction of the messages."""
    intake.broken = 1
    async with supervised(make()):
        await intake.has(2)
    assert intake.texts == ["one", "two"]


async def test_a_channel_that_is_gone_does_not_stop_the_others(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The bot was thrown out of one channel while it was away."""
    async with supervised(make()):
        await connected(slack)
        slack.write(GENERAL, "one", mention=True)
        slack.write(ANNS_DM, "two")
        await intake.has(2)
    slack.workspace.channels[GENERAL].member = False
    slack.write(ANNS_DM, "three", tell=False)
    async with supervised(make()):
        await intake.has(3)
    assert sorted(intake.texts) == ["one", "three", "two"]


async def test_a_thread_that_began_in_the_gap_is_read_whole(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A mention in the gap, and what was said below it."""
    async with supervised(make()):
        await connected(slack)
        slack.write(GENERAL, "first", mention=True)
        await intake.has(1)
    parent = slack.write(GENERAL, "second", mention=True, tell=False)
    slack.write(GENERAL, "more", BOB, thread=parent, tell=False)
    async with supervised(make()):
        await intake.has(3)
    more = next(m for m in intake.messages if m.text == "more")
    assert (more.address.thread, more.addressed) == (parent, "thread")


async def test_a_mention_in_a_foreign_thread_comes_by_redelivery(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A channel's history shows no replies, so a short absence is Slack's own retries' affair."""
    old = slack.write(GENERAL, "people talk", BOB, tell=False)
    async with supervised(make()):
        await connected(slack)
        slack.write(GENERAL, "hello", mention=True)
        await intake.has(1)
    slack.write(GENERAL, "what do you think?", thread=old, mention=True)
    async with supervised(make()):
        await intake.has(2)
    assert sorted(intake.texts) == ["hello", "what do you think?"]


async def test_messages_of_the_gap_and_live_ones_are_each_stored_once(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, absent: None
) -> None:
    """Slack delivers again what the history shows as well."""
    slack.write(ANNS_DM, "three")
    async with supervised(make()):
        await intake.has(3)
        await slack.wait_for(lambda: slack.delivering.deliveries[-1].acked)
        slack.write(ANNS_DM, "four")
        await intake.has(4)
    assert sorted(intake.texts) == ["four", "one", "three", "two"]
