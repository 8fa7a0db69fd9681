"""Answers: posted once, in their thread, or not at all; what each of Slack's faults means."""

import time
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest

from adapters.base import FENCE
from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, Choice, OutgoingFile, Withdrawal
from adapters.pacing import PaceLimits
from adapters.slack.adapter import SlackAdapter
from tests.adapters.slack.conftest import (
    DM,
    MENU,
    NONCE,
    MakeAdapter,
    connected,
    outgoing,
    running,
    settings_of,
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
    UNAVAILABLE,
    Fault,
    flood,
    refused,
)
from tests.support.slack.people import ANN, ANNS_DM, GENERAL
from tests.support.slack.server import SlackServer
from tests.support.virtual_time import run_virtually

CSV = OutgoingFile("list.csv", "text/csv", b"a,b\n1,2\n")


@pytest.fixture
def parent(slack: SlackServer) -> str:
    """A message in the channel below which the conversation takes place."""
    return slack.write(GENERAL, "hello", mention=True, tell=False)


async def test_an_answer_stands_in_its_thread_and_nowhere_else(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """It carries the row's id, by which it is found again; no connection for events is needed."""
    receipt = await adapter.send(outgoing("**hi**", thread_in(GENERAL, parent)))
    (message,) = [m for m in slack.messages(GENERAL, parent) if m.bot]
    assert (message.shown, message.ts) == ("**hi**", receipt.platform_ref)
    assert not receipt.resent
    assert message.metadata is not None
    assert NONCE in message.metadata["event_payload"].values()
    assert slack.shown(GENERAL) == []


async def test_an_answer_in_a_direct_chat(slack: SlackServer, adapter: SlackAdapter) -> None:
    """Without a thread it is a message of the chat."""
    await adapter.send(outgoing("hi", reply_to="1700000000.000001"))
    assert slack.shown(ANNS_DM) == ["hi"]


async def test_the_longest_payload_is_taken(slack: SlackServer, adapter: SlackAdapter) -> None:
    """What `render` makes of a long answer fits into Slack's limits, all of it is shown."""
    words = [f"word{number}" for number in range(4_000)]
    parts = adapter.render(" ".join(words))
    for number, part in enumerate(parts):
        await adapter.send(outgoing(part, nonce=f"{number:024x}"))
    assert " ".join(slack.shown(ANNS_DM)).split() == words
    assert len(parts) > 1


async def test_mentions_of_everybody_stay_silent(slack: SlackServer, adapter: SlackAdapter) -> None:
    """The server notes any text that rings a bell; here are the ways to write one."""
    text = (
        "<!channel> <!here|x> <!everyone> <!subteam^S1> <@U0ANN> `<!here>`\n\n```\n<!channel>\n```"
    )
    for number, part in enumerate(adapter.render(text)):
        await adapter.send(outgoing(part, nonce=f"{number:024x}"))
    assert slack.shown(ANNS_DM)


@pytest.mark.parametrize("fault", [CUT, JUNK])
async def test_a_lost_reply_shows_the_answer_once(
    slack: SlackServer, adapter: SlackAdapter, parent: str, fault: Fault
) -> None:
    """The outcome is unknown; the next attempt finds the message by its metadata."""
    row = outgoing("hi", thread_in(GENERAL, parent))
    slack.fail("chat.postMessage", fault)
    with pytest.raises(SendUnknown):
        await adapter.send(row)
    receipt = await adapter.send(outgoing("hi", thread_in(GENERAL, parent), outcome_unknown=True))
    assert slack.shown(GENERAL, parent) == ["hi"]
    assert receipt.platform_ref == slack.messages(GENERAL, parent)[-1].ts
    assert len(slack.made("chat.postMessage")) == 1


async def test_a_lost_reply_in_a_direct_chat_shows_the_answer_once(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Where there is no thread the channel's history tells, page by page."""
    slack.fail("chat.postMessage", CUT)
    with pytest.raises(SendUnknown):
        await adapter.send(outgoing("hi"))
    for number in range(30):
        slack.write(ANNS_DM, str(number), tell=False)
    slack.api.history_limit = 15
    await adapter.send(outgoing("hi", outcome_unknown=True, age_s=5.0))
    assert slack.shown(ANNS_DM) == ["hi"]


@pytest.mark.parametrize("fault", [DROP, SERVER_ERROR, UNAVAILABLE, HTML_502])
async def test_an_answer_that_was_not_taken_is_posted(
    slack: SlackServer, adapter: SlackAdapter, parent: str, fault: Fault
) -> None:
    """An error of the server may mean that it was shown: looked up, not found, posted."""
    row = outgoing("hi", thread_in(GENERAL, parent))
    slack.fail("chat.postMessage", fault)
    with pytest.raises((SendUnknown, SendDelayed)):
        await adapter.send(row)
    await adapter.send(outgoing("hi", thread_in(GENERAL, parent), outcome_unknown=True))
    assert slack.shown(GENERAL, parent) == ["hi"]


async def test_a_failed_look_up_keeps_the_outcome_unknown(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """As long as nobody knows whether it is shown, it is not posted again."""
    slack.fail("conversations.replies", SERVER_ERROR)
    with pytest.raises((SendUnknown, SendDelayed)):
        await adapter.send(outgoing("hi", thread_in(GENERAL, parent), outcome_unknown=True))
    assert slack.shown(GENERAL, parent) == []


async def test_other_answers_are_not_taken_for_this_one(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """The same words in another row are another message."""
    await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))
    row = outgoing("hi", thread_in(GENERAL, parent), nonce="f" * 24, outcome_unknown=True)
    await adapter.send(row)
    assert slack.shown(GENERAL, parent) == ["hi", "hi"]


@pytest.mark.parametrize("fault", [flood(7), refused("ratelimited")])
async def test_a_flood_wait_delays_the_row(
    slack: SlackServer, adapter: SlackAdapter, fault: Fault
) -> None:
    """Slack's word on how long to wait is the row's; the adapter does not try by itself."""
    slack.fail("chat.postMessage", fault)
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(outgoing("hi"))
    assert caught.value.retry_after_s == (7 if fault.kind == "limited" else None)
    assert len(slack.made("chat.postMessage")) == 1


@pytest.mark.parametrize(
    "error",
    [
        "restricted_action_read_only_channel",
        "restricted_action_thread_locked",
        "messages_tab_disabled",
        "cannot_reply_to_message",
    ],
)
async def test_what_will_never_be_shown_ends_the_row(
    slack: SlackServer, adapter: SlackAdapter, error: str
) -> None:
    """The row is buried with Slack's reason."""
    slack.fail("chat.postMessage", refused(error))
    with pytest.raises(SendRejected, match=error):
        await adapter.send(outgoing("hi"))


async def test_an_archived_channel_ends_the_row(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """Nothing can be said there any more."""
    slack.workspace.channels[GENERAL].archived = True
    with pytest.raises(SendRejected, match="is_archived"):
        await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))


async def test_a_channel_that_threw_the_bot_out_ends_the_row(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """`not_in_channel` is no matter of time."""
    slack.workspace.channels[GENERAL].member = False
    with pytest.raises(SendRejected, match="not_in_channel"):
        await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))


@pytest.mark.parametrize("lost", ["unthread", "refuse"])
async def test_an_answer_to_a_deleted_message_does_not_land_in_the_channel(
    slack: SlackServer, adapter: SlackAdapter, parent: str, lost: str
) -> None:
    """Slack un-threads such a reply without a word; it must not stay there."""
    slack.api.lost_threads = lost
    slack.delete(GENERAL, parent, tell=False)
    with pytest.raises(SendRejected):
        await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))
    assert slack.shown(GENERAL) == []


async def test_a_file_for_a_deleted_message_does_not_land_in_the_channel(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """A shared file is un-threaded just as a text is, and Slack's answer does not tell."""
    slack.delete(GENERAL, parent, tell=False)
    with pytest.raises(SendRejected):
        await adapter.send(outgoing("", thread_in(GENERAL, parent), file=CSV))
    assert slack.shown(GENERAL) == []


async def test_a_thread_goes_on_without_its_first_message(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """With replies below it a deleted message leaves a tombstone, and the thread stays."""
    slack.write(GENERAL, "a reply", thread=parent, tell=False)
    slack.delete(GENERAL, parent, tell=False)
    await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))
    assert slack.shown(GENERAL, parent) == ["hi"]


async def test_without_the_scope_to_look_it_up_an_answer_is_marked(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """Better twice and marked than never."""
    slack.api.scopes.discard("channels:history")
    row = outgoing("hi", thread_in(GENERAL, parent), outcome_unknown=True)
    receipt = await adapter.send(row)
    assert receipt.resent
    assert slack.shown(GENERAL, parent)[0].startswith("(re-sent)")


@pytest.mark.parametrize("error", ["invalid_auth", "token_revoked", "account_inactive"])
async def test_a_revoked_token_buries_nothing(
    slack: SlackServer, adapter: SlackAdapter, error: str
) -> None:
    """A credential can be fixed; the rows wait for it."""
    slack.revoked = error
    with pytest.raises(SendDelayed):
        await adapter.send(outgoing("hi"))


async def test_buttons_stand_below_their_message(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """A press is an inbound message; the buttons go, and what was chosen is noted."""
    choices = (Choice("Yes", "/approve 1"), Choice("No", "/deny 1"))
    receipt = await live.send(outgoing("Delete it?", choices=choices))
    message = slack.messages(ANNS_DM)[-1]
    assert (message.shown, message.buttons) == ("Delete it?", ["Yes", "No"])
    pressed = slack.press(ANNS_DM, receipt.platform_ref, "No")
    await intake.has(1)
    (inbound,) = intake.messages
    assert (inbound.text, inbound.sender, inbound.address) == ("/deny 1", ANN, DM)
    await slack.wait_for(lambda: pressed.acked and not slack.messages(ANNS_DM)[-1].buttons)
    shown = slack.messages(ANNS_DM)[-1].shown
    assert "Delete it?" in shown
    assert "No" in shown


@pytest.mark.parametrize(
    ("outcome", "verdict", "told"),
    [
        ("denied", {}, "This button is not for you."),
        ("command", {"answer": "refused", "told": "Not yours."}, "Not yours."),
    ],
)
async def test_a_press_of_somebody_who_may_not(
    slack: SlackServer,
    intake: RecordingIntake,
    live: SlackAdapter,
    outcome: str,
    verdict: dict[str, Any],
    told: str,
) -> None:
    """They alone are told, and the buttons stay."""
    receipt = await live.send(outgoing("Sure?", choices=(Choice("Yes", "/approve 1"),)))
    intake.outcome, intake.verdict = outcome, verdict
    slack.press(ANNS_DM, receipt.platform_ref, "Yes")
    await slack.wait_for(lambda: slack.api.ephemeral == [(ANNS_DM, ANN, told)])
    assert slack.messages(ANNS_DM)[-1].buttons == ["Yes"]


async def test_a_press_on_a_question_that_is_over(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Its buttons go, and below it stands how it ended."""
    receipt = await live.send(outgoing("Sure?", choices=(Choice("Yes", "/approve 1"),)))
    intake.verdict = {"answer": "over", "told": "Too late.", "over": "stopped"}
    slack.press(ANNS_DM, receipt.platform_ref, "Yes")
    await slack.wait_for(lambda: not slack.messages(ANNS_DM)[-1].buttons)
    assert "stopped" in slack.messages(ANNS_DM)[-1].shown
    assert "Yes" not in slack.messages(ANNS_DM)[-1].shown


async def test_the_buttons_of_a_question_that_is_over_go(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Below its text stands how it ended; a pause or a refusal is passed on, nothing is posted."""
    receipt = await adapter.send(outgoing("**Sure**?", choices=(Choice("Yes", "/approve 1"),)))
    over = Withdrawal(
        address=DM, message_ref=receipt.platform_ref, payload="**Sure**?", note="stopped"
    )
    slack.fail("chat.update", flood(0))
    with pytest.raises(SendDelayed):
        await adapter.withdraw(over)
    with pytest.raises(SendRejected):
        await adapter.withdraw(replace(over, message_ref="1700000000.000001"))
    for _ in range(2):
        await adapter.withdraw(over)
    (message,) = [each for each in slack.messages(ANNS_DM) if each.bot]
    assert message.shown.split() == ["**Sure**?", "stopped"]
    assert not message.buttons


async def test_a_press_that_was_not_stored_keeps_its_buttons(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """Who pressed sees an error and can press again."""
    async with supervised(make()) as adapter:
        await connected(slack)
        receipt = await adapter.send(outgoing("Sure?", choices=(Choice("Yes", "yes"),)))
        intake.broken = 1
        first = slack.press(ANNS_DM, receipt.platform_ref, "Yes")
        await connected(slack, 2)
        assert slack.messages(ANNS_DM)[-1].buttons == ["Yes"]
        assert not first.acked
        second = slack.press(ANNS_DM, receipt.platform_ref, "Yes")
        await slack.wait_for(lambda: second.acked)
    assert intake.texts == ["yes"]


async def test_a_button_in_a_thread_belongs_to_its_conversation(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter, parent: str
) -> None:
    """Whoever presses speaks in the thread where the button stands."""
    row = outgoing("Sure?", thread_in(GENERAL, parent), choices=(Choice("Yes", "yes"),))
    receipt = await live.send(row)
    slack.press(GENERAL, receipt.platform_ref, "Yes")
    await intake.has(1)
    assert intake.messages[0].address == thread_in(GENERAL, parent)
    await slack.wait_for(lambda: not slack.messages(GENERAL, parent)[-1].buttons)


async def test_a_slash_command_is_answered_where_it_was_given(
    slack: SlackServer, intake: RecordingIntake, live: SlackAdapter
) -> None:
    """Where the bot can write, everybody there sees the answer."""
    slack.slash(ANNS_DM, "status")
    await intake.has(1)
    (message,) = intake.messages
    await live.send(outgoing("All is well", message.address, reply_to=message.message_ref))
    assert slack.shown(ANNS_DM) == ["All is well"]
    assert slack.responses == []


async def test_a_slash_command_where_the_bot_is_not_is_answered_to_who_gave_it(
    slack: SlackServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The command brought its own address, which a new process knows too; nobody else sees it."""
    slack.add_channel("C0ELSE").member = False
    async with running(make()):
        await connected(slack)
        slack.slash("C0ELSE", "status")
        await intake.has(1)
    (message,) = intake.messages
    row = outgoing("All is well", message.address, reply_to=message.message_ref)
    await make().send(row)
    (response,) = slack.responses
    assert "All is well" in str(response.body)
    assert response.body["response_type"] == "ephemeral"
    assert slack.workspace.in_channel("C0ELSE") == []


async def test_a_slash_command_cannot_be_answered_for_ever(
    slack: SlackServer, make: MakeAdapter
) -> None:
    """Slack takes five answers in half an hour; after that the row ends."""
    slack.add_channel("C0ELSE").member = False
    adapter, where = make(), Address("slack", "default", "C0ELSE")
    ref = f"command:{slack.api.root}/commands/T0TEAM/1/secret"
    for number in range(5):
        await adapter.send(outgoing("hi", where, nonce=f"{number:024x}", reply_to=ref))
    with pytest.raises(SendRejected):
        await adapter.send(outgoing("hi", where, nonce="f" * 24, reply_to=ref))


async def test_a_file_is_uploaded_into_the_thread(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """A row with a file shows the file, with its caption."""
    receipt = await adapter.send(outgoing("here", thread_in(GENERAL, parent), file=CSV))
    (message,) = [m for m in slack.messages(GENERAL, parent) if m.bot]
    (file,) = message.files
    assert (file.name, file.content, message.text) == ("list.csv", CSV.content, "here")
    assert receipt.platform_ref
    assert slack.shown(GENERAL) == []


@pytest.mark.parametrize("method", ["files.getUploadURLExternal", "upload"])
@pytest.mark.parametrize("fault", [DROP, SERVER_ERROR, CUT])
async def test_an_upload_that_broke_off_is_done_again(
    slack: SlackServer, adapter: SlackAdapter, parent: str, method: str, fault: Fault
) -> None:
    """Until the upload is completed nothing is shown, so there is no doubt."""
    slack.fail(method, fault)
    with pytest.raises(SendDelayed):
        await adapter.send(outgoing("", thread_in(GENERAL, parent), file=CSV))
    await adapter.send(outgoing("", thread_in(GENERAL, parent), file=CSV))
    assert len([m for m in slack.messages(GENERAL, parent) if m.files]) == 1


async def test_a_file_whose_reply_was_lost_is_shown_once(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """A file carries no metadata; it is found all the same."""
    slack.fail("files.completeUploadExternal", CUT)
    with pytest.raises(SendUnknown):
        await adapter.send(outgoing("", thread_in(GENERAL, parent), file=CSV))
    row = outgoing("", thread_in(GENERAL, parent), file=CSV, outcome_unknown=True, age_s=1.0)
    await adapter.send(row)
    assert len([m for m in slack.messages(GENERAL, parent) if m.files]) == 1


def test_posts_keep_to_one_per_second_and_channel() -> None:
    """The server's recorder: three answers in one channel take two seconds."""

    async def posted() -> list[float]:
        async with SlackServer() as server:
            server.api.post_burst = 1
            limits = PaceLimits(per_s=50, chat_interval_s=1.0, group_per_min=60)
            settings, intake = settings_of(server), RecordingIntake()
            adapter = SlackAdapter(settings, intake, MENU, limits=limits, clock=time.monotonic)
            for number in range(3):
                await adapter.send(outgoing(str(number), nonce=f"{number:024x}"))
            await adapter.close()
            assert server.violations == []
            return server.rate_stamps(ANNS_DM)

    first, second, third = run_virtually(posted())
    assert (second - first, third - second) == pytest.approx((1.0, 1.0))


async def test_a_channel_over_its_budget_delays_the_row(
    slack: SlackServer, make: MakeAdapter
) -> None:
    """A row is not held inside of a send for longer than `max_wait_s`."""
    limits = PaceLimits(per_s=50, chat_interval_s=30.0, group_per_min=60, max_wait_s=0.1)
    adapter = make(limits=limits, clock=lambda: 1000.0)
    await adapter.send(outgoing("one"))
    with pytest.raises(SendDelayed) as caught:
        await adapter.send(outgoing("two", nonce="f" * 24))
    assert caught.value.retry_after_s == 30


async def test_a_flood_wait_holds_the_channel_but_no_other(
    slack: SlackServer, adapter: SlackAdapter
) -> None:
    """Slack's limit is that of the channel."""
    slack.fail("chat.postMessage", flood(600))
    with pytest.raises(SendDelayed):
        await adapter.send(outgoing("one"))
    with pytest.raises(SendDelayed):
        await adapter.send(outgoing("two", nonce="e" * 24))
    root = slack.write(GENERAL, "hello", tell=False)
    await adapter.send(outgoing("three", thread_in(GENERAL, root), nonce="f" * 24))
    assert slack.shown(GENERAL, root) == ["three"]
    assert len(slack.made("chat.postMessage")) == 2


def hold_for(requests: int) -> None:
    """Hold the lease for so many requests."""
    held = chain([True] * requests, repeat(False))
    FENCE.set(lambda: next(held))


@pytest.mark.parametrize(("file", "requests"), [(None, 0), (CSV, 0), (CSV, 1), (CSV, 2)])
async def test_a_process_that_stood_still_shows_nothing(
    slack: SlackServer, adapter: SlackAdapter, file: OutgoingFile | None, requests: int
) -> None:
    """Its lease ended before the request that shows: nothing leaves, and nothing is in doubt."""
    hold_for(requests)
    with pytest.raises(SendDelayed):
        await adapter.send(replace(outgoing("hi", DM), file=file))
    assert slack.shown(ANNS_DM) == []


async def test_what_was_shown_before_a_process_stood_still_has_its_receipt(
    slack: SlackServer, adapter: SlackAdapter, parent: str
) -> None:
    """What is looked at behind the post changes nothing about it."""
    hold_for(1)
    receipt = await adapter.send(outgoing("hi", thread_in(GENERAL, parent)))
    (message,) = [m for m in slack.messages(GENERAL, parent) if m.bot]
    assert (receipt.platform_ref, receipt.resent) == (message.ts, False)
