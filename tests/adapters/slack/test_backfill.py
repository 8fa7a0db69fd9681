"""What was said while nobody listened: nothing is lost, nothing comes twice."""

import pytest

from tests.adapters.slack.conftest import Clock, MakeAdapter, connected, running, supervised
from tests.support.recording_intake import RecordingIntake
from tests.support.slack.faults import CUT, DROP, HTML_502, JUNK, SERVER_ERROR, Fault, flood
from tests.support.slack.people import ANNS_DM, BOB, GENERAL
from tests.support.slack.server import SlackServer


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


@pytest.mark.parametrize("forward", [False, True])
async def test_a_long_gap_is_fetched_page_by_page(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter, *, forward: bool
) -> None:
    """Whatever the size and order of Slack's pages, everything comes in the order it was said."""
    slack.api.history_limit, slack.api.page_forward = 15, forward
    async with supervised(make()):
        await connected(slack)
        slack.write(ANNS_DM, "0")
        await intake.has(1)
    for number in range(1, 41):
        slack.write(ANNS_DM, str(number), tell=False)
    async with supervised(make()):
        await intake.has(41)
    assert intake.texts == [str(number) for number in range(41)]


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
