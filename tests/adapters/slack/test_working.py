"""Beside the answers: status, reactions, titles, downloads; and two apps in one process."""

import asyncio

import pytest
from pydantic import SecretStr

from adapters.errors import AdapterRefused, FetchDelayed, FetchRejected
from adapters.messages import Address, Attachment, Reaction
from adapters.slack.adapter import SlackAdapter
from tests.adapters.slack.conftest import (
    DM,
    MENU,
    MakeAdapter,
    connected,
    outgoing,
    question,
    running,
    settings_of,
    thread_in,
)
from tests.support.recording_intake import FAST, RecordingIntake
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
from tests.support.slack.workspace import Identity

FAULTS = [CUT, DROP, JUNK, HTML_502, SERVER_ERROR, flood(0), refused("missing_scope")]


@pytest.fixture
def thread(slack: SlackServer) -> Address:
    """A conversation in a channel."""
    return thread_in(GENERAL, slack.write(GENERAL, "hello", mention=True, tell=False))


@pytest.mark.parametrize("agent", [True, False])
async def test_a_thread_shows_that_an_answer_is_made(
    slack: SlackServer, adapter: SlackAdapter, thread: Address, *, agent: bool
) -> None:
    """As an agent session, or by a status line; it ends with the answer."""
    slack.api.agent = agent
    await adapter.show_working(question(thread, thread.thread))
    assert list(slack.api.working) == [(GENERAL, thread.thread)]
    await adapter.send(outgoing("hi", thread))
    assert slack.api.working == {}


async def test_a_direct_chat_has_no_status(slack: SlackServer, adapter: SlackAdapter) -> None:
    """Slack shows one in threads only."""
    await adapter.show_working(question(DM, slack.write(ANNS_DM, "hello", tell=False)))
    assert slack.api.statuses == []


@pytest.mark.parametrize("agent", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_status_that_cannot_be_shown_costs_nothing(
    slack: SlackServer, adapter: SlackAdapter, thread: Address, fault: Fault, *, agent: bool
) -> None:
    """It is best effort, and taken away in the end all the same."""
    slack.api.agent = agent
    for method in ("assistant.threads.setStatus", "agents.sessions.setStatus"):
        slack.fail(method, fault)
    await adapter.show_working(question(thread, thread.thread))
    await adapter.send(outgoing("hi", thread))
    assert slack.shown(GENERAL, thread.thread) == ["hi"]
    assert slack.api.working == {}


async def test_a_message_is_marked_as_received_and_as_answered(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """One mark takes the place of the other."""
    ts = slack.write(ANNS_DM, "hello", tell=False)
    await adapter.acknowledge(question(DM, ts), "received")
    assert slack.reactions(ANNS_DM, ts) == ["eyes"]
    await adapter.acknowledge(question(DM, ts), "answered")
    assert slack.reactions(ANNS_DM, ts) == ["white_check_mark"]


async def test_a_new_process_replaces_the_mark_of_an_old_one(
    slack: SlackServer, make: MakeAdapter
) -> None:
    """Nothing has to be remembered for it, and the same mark twice does no harm."""
    ts = slack.write(ANNS_DM, "hello", tell=False)
    await make().acknowledge(question(DM, ts), "received")
    await make().acknowledge(question(DM, ts), "received")
    await make().acknowledge(question(DM, ts), "failed")
    assert slack.reactions(ANNS_DM, ts) == ["warning"]


async def test_reactions_can_be_switched_off(slack: SlackServer, make: MakeAdapter) -> None:
    """`reactions: false`."""
    ts = slack.write(ANNS_DM, "hello", tell=False)
    await make(reactions=False).acknowledge(question(DM, ts), "received")
    assert slack.reactions(ANNS_DM, ts) == []


@pytest.mark.parametrize("mark", ["received", "answered"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_mark_that_cannot_be_set_costs_nothing(
    slack: SlackServer, adapter: SlackAdapter, mark: Reaction, fault: Fault
) -> None:
    """The message may be gone, or the scope missing."""
    ts = slack.write(ANNS_DM, "hello", tell=False)
    slack.fail("reactions.add", fault)
    slack.fail("reactions.remove", fault)
    await adapter.acknowledge(question(DM, ts), mark)
    await adapter.send(outgoing("hi"))
    assert slack.shown(ANNS_DM) == ["hi"]


async def test_a_slash_command_gets_no_mark(slack: SlackServer, adapter: SlackAdapter) -> None:
    """There is no message that could bear it."""
    ref = f"command:{slack.api.root}/commands/T0TEAM/1/secret"
    await adapter.acknowledge(question(DM, ref), "received")
    await adapter.show_working(question(DM, ref))
    assert slack.made("reactions.add") == []


async def test_an_assistant_thread_is_named_after_its_first_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """The title stands in the list of the assistant container."""
    thread = slack.open_assistant()
    slack.write(ANNS_DM, "plan my trip", thread=thread)
    await slack.wait_for(lambda: slack.api.titles)
    assert slack.api.titles == [(ANNS_DM, thread, "plan my trip")]
    assert intake.texts == ["plan my trip"]


async def attached(slack: SlackServer, intake: RecordingIntake, content: bytes) -> Attachment:
    """Send a file to the running adapter; return what the intake got of it."""
    file = slack.add_file("data.bin", content, "application/octet-stream")
    slack.write(ANNS_DM, "file", files=[file])
    await intake.has(1)
    return intake.messages[0].attachments[0]


async def test_a_file_is_fetched_by_a_new_process(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, make: MakeAdapter
) -> None:
    """What was admitted says all that is needed, also hours later."""
    attachment = await attached(slack, intake, b"1234")
    assert await make().fetch(DM, attachment, 4) == b"1234"


async def test_a_file_that_is_too_large_is_rejected(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Slack's word on its size does not count."""
    attachment = await attached(slack, intake, b"12345")
    with pytest.raises(FetchRejected):
        await live.fetch(DM, attachment, 4)


async def test_a_login_page_is_no_file(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Without the scope Slack redirects to its login page instead of an error."""
    attachment = await attached(slack, intake, b"1234")
    slack.api.scopes.discard("files:read")
    with pytest.raises((FetchRejected, FetchDelayed)):
        await live.fetch(DM, attachment, 100)


async def test_a_deleted_file_is_rejected(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """It never comes back."""
    attachment = await attached(slack, intake, b"1234")
    for file in slack.workspace.files.values():
        file.gone = True
    with pytest.raises(FetchRejected):
        await live.fetch(DM, attachment, 100)


@pytest.mark.parametrize("method", ["files.info", "download"])
@pytest.mark.parametrize("fault", [DROP, CUT, SERVER_ERROR, HTML_502, flood(0)])
async def test_a_download_that_broke_off_is_tried_again(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, method: str, fault: Fault
) -> None:
    """Trouble on the way says nothing about the file."""
    attachment = await attached(slack, intake, b"1234")
    slack.fail(method, *[fault] * 3)
    with pytest.raises(FetchDelayed):
        await live.fetch(DM, attachment, 100)
    slack.recover()
    assert await live.fetch(DM, attachment, 100) == b"1234"


async def test_two_apps_in_one_process(slack: SlackServer, intake: RecordingIntake) -> None:
    """Each has its own connection and answers with its own token; one refused leaves the other."""
    second = Identity(bot_token="xoxb-2", app_token="xapp-2", team="T0TWO", user="U0TWO")
    async with SlackServer(second) as other:
        one = SlackAdapter(settings_of(slack), intake, MENU, limits=FAST)
        two = SlackAdapter(settings_of(other, name="two"), intake, MENU, limits=FAST)
        wrong = settings_of(other, name="three", bot_token=SecretStr("xoxb-wrong"))
        three = SlackAdapter(wrong, intake, MENU, limits=FAST)
        async with running(one), running(two), running(three) as refused_task:
            await connected(slack)
            await connected(other)
            await asyncio.wait([refused_task], timeout=30)
            assert isinstance(refused_task.exception(), AdapterRefused)
            slack.write(ANNS_DM, "to one")
            other.write(ANNS_DM, "to two")
            await intake.has(2)
            await two.send(outgoing("from two", Address("slack", "two", ANNS_DM)))
        found = {message.text: message.address.account for message in intake.messages}
        assert found == {"to one": "default", "to two": "two"}
        assert (slack.shown(ANNS_DM), other.shown(ANNS_DM)) == ([], ["from two"])
        for adapter in (one, two, three):
            await adapter.close()
        assert other.violations == []
