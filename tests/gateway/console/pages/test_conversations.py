"""The list of conversations, its filters and its search; and one conversation, step by step."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection

from adapters.errors import SendDelayed
from agent.tools.context import ToolContext
from agent.tools.registry import Tool
from agent.view.view import Summary, ViewPlan
from gateway.console.pages.conversations import wanted_of
from gateway.storage import schema
from gateway.storage.conversation import sessions, transcript, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.reports.conversation_list import Wanted
from gateway.storage.schema import attachment
from tests.gateway.agent_ports.test_search import until_fed
from tests.support.console import ConsoleBrowser, ConsoleGateway, console
from tests.support.gateway import RecordingModel, agent_of
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import tool_call
from tests.support.storage import admit, claim_one, inbound, parts

NOTHING = dict.fromkeys(("query", "platform", "account", "person", "state", "since", "until"), "")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Wanted()),
        ({"person": "telegram:7"}, Wanted("telegram", person="7")),
        ({"person": "U7:x", "platform": "slack"}, Wanted("slack", person="U7:x")),
        ({"state": "failed"}, Wanted(state="failed")),
        ({"state": "anything"}, Wanted()),
        ({"since": "1970-01-02", "until": "1970-01-02"}, Wanted(since=86_400, until=172_800)),
        ({"since": "yesterday", "until": "9999-12-31"}, Wanted()),
    ],
)
def test_filters_are_what_they_mean(given: dict[str, str], wanted: Wanted) -> None:
    """What is none of their values is no condition."""
    assert wanted_of(NOTHING | given, "UTC") == wanted


async def test_conversations_of_all_platforms_are_listed(tmp_path: Path) -> None:
    """The newest first; what people write is text."""
    async with console(tmp_path) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.ask("<script>alert(1)</script>", sender_name="<img src=x>")
        await chat.ask("second", chat="c2")
        found = (await browser.get("/admin/conversations")).text
        assert found.index("second") < found.index("alert(1)")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found
        assert "&lt;img src=x&gt;" in found
        assert "<script>alert" not in found
        none = (await browser.get("/admin/conversations?state=failed&platform=telegram")).text
        assert "There are no such conversations." in none
        assert '<option value="telegram" selected>telegram</option>' in none


@pytest.mark.thorough
async def test_a_search_shows_where_it_was_said(tmp_path: Path) -> None:
    """The words of the question are text, too."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("my zebra has <u>stripes</u>")
        await until_fed(running.database)
        found = (await browser.get("/admin/conversations?query=zebra")).text
        assert "my zebra has &lt;u&gt;stripes&lt;/u&gt;" in found
        assert "/admin/conversations/1?before=21#m1" in found
        none = (await browser.get('/admin/conversations?query="><script>x')).text
        assert "No message holds these words" in none
        assert "<script>x" not in none


# One conversation: each step of its turns, its segments, whole texts, and nothing that runs

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"
LONG = "word " * 2_000


class Place(BaseModel):
    """Where to look."""

    at: str


async def look(_: ToolContext, __: Place) -> str:
    """Return something long and hostile."""
    return EVIL + LONG


LOOK = Tool("look", "Looks.", "read", Place, look)


@asynccontextmanager
async def worked(home: Path) -> AsyncIterator[tuple[ConsoleGateway, ConsoleBrowser]]:
    """Run a gateway in which a tool was called with hostile texts, and an owner's browser."""
    script = [[tool_call("look", {"at": EVIL})], f"It says {EVIL}"]
    agent = agent_of(RecordingModel(script), tools=[LOOK])
    async with console(home, agent) as running, running.browser() as browser:
        await running.serving.chat.ask(f"Look! {EVIL}", sender_name=EVIL)
        yield running, browser


async def test_each_step_is_shown_and_nothing_runs(tmp_path: Path) -> None:
    """Question, calls with tokens and cost, arguments, output, answer, what was sent."""
    async with worked(tmp_path) as (_, browser):
        found = (await browser.get("/admin/conversations/1")).text
        for text in ("Turn 1", "answered", "<code>look</code>", "scripted", "Sent: 1 message"):
            assert text in found
        assert "turn:1:answer:1" in found
        assert "Received: 1 message" in found
        assert found.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
        assert "<script>alert" not in found
        assert "<img src=x" not in found
        assert "All " in found


async def test_commands_stand_among_the_turns(tmp_path: Path) -> None:
    """Those that are turns, with what was written and answered, on one page each."""
    async with console(tmp_path) as running, running.browser() as browser:
        chat = running.serving.chat
        for text in ("/model", "one", f"/model {EVIL}", "two", "/model default"):
            await chat.ask(text)
        await chat.until_rows(schema.turn, lambda rows: all(r.state == "done" for r in rows))
        whole = (await browser.get("/admin/conversations/1")).text
        places = [whole.index(f'id="t{n}"') for n in range(1, 6)]
        assert places == sorted(places)
        assert whole.count(">command</span>") == 3
        assert "/model default" in whole
        assert "<script>alert" not in whole
        older = (await browser.get("/admin/conversations/1?before=3")).text
        assert [n for n in range(1, 6) if f'id="t{n}"' in older] == [1, 2, 3]


async def test_a_question_that_was_given_up_before_it_began_is_no_command(tmp_path: Path) -> None:
    """It has no message in the transcript either."""

    def give_up(conn: Connection) -> int:
        here, _ = admit(conn, inbound("Never begun"))
        current = turns.take_up(conn, claim_one(conn, here))
        assert current is not None
        turn_journal.bury(conn, current, parts(current), TurnEnd("gave_up", error="broken"))
        return here

    async with console(tmp_path) as running, running.browser() as browser:
        here = await running.database.write(give_up)
        found = (await browser.get(f"/admin/conversations/{here}")).text
        assert "Never begun" in found
        assert ">command</span>" not in found


async def test_what_waits_says_when_it_is_tried_again(tmp_path: Path) -> None:
    """And no number of tries: a long pause counts as all that would fit into it."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] = deque([SendDelayed("busy", 1800.0)])
    async with console(tmp_path, adapter=adapter) as running, running.browser() as browser:
        await running.serving.chat.say("one")
        await running.serving.chat.until_rows(schema.outbox, lambda rows: rows and rows[0].failures)
        found = (await browser.get("/admin/conversations/1")).text
        assert ", tried again at <time" in found
        assert "failed tries" not in found


async def test_a_whole_text_has_its_own_page(tmp_path: Path) -> None:
    """A message, and an output of which the transcript has a part."""
    async with worked(tmp_path) as (running, browser):
        found = (await browser.get("/admin/conversations/1/messages/3")).text
        assert LONG.strip()[-100:] in found
        assert "<script>alert" not in found
        assert (await browser.get("/admin/conversations/1/messages/99")).status == 404
        assert (await browser.get("/admin/conversations/2/messages/3")).status == 404
        name = await running.database.write(transcript.store_blob, 1, 1, EVIL)
        shown = await browser.get(f"/admin/conversations/1/outputs/{name}")
        assert (shown.status, "<script>alert" in shown.text) == (200, False)
        assert (await browser.get(f"/admin/conversations/2/outputs/{name}")).status == 404


async def test_a_segment_tells_its_prompt_and_what_left_the_view(tmp_path: Path) -> None:
    """By layer, with the summary that stands for what is gone."""
    async with worked(tmp_path) as (running, browser):
        await running.database.write(_split)
        page = (await browser.get("/admin/conversations/1")).text
        assert "Segment 2" in page
        assert "summarised" in page
        found = (await browser.get("/admin/conversations/1/segments/2")).text
        assert "Summary of messages 2 to 3" in found
        assert "&lt;script&gt;alert(1)" in found
        assert "Messages 2 to 3" in found
        assert "<script>alert" not in found
        first = (await browser.get("/admin/conversations/1/segments/1")).text
        assert "Layers of the prompt" in first
        assert "identity" in first
        assert (await browser.get("/admin/conversations/1/segments/99")).status == 404
        assert (await browser.get("/admin/conversations/7/segments/1")).status == 404


def _split(conn: Connection) -> None:
    """Begin a segment that shows a summary in place of some messages."""
    here = sessions.active(conn, 1)
    plan = ViewPlan(head_upto=1, summaries=(Summary(EVIL, 2, 3),), tail_from=4)
    sessions.split(conn, here, "compression", plan, here.planner_state)


@pytest.mark.parametrize("path", ["/admin/conversations/9", "/admin/conversations/x"])
async def test_there_is_no_such_conversation(tmp_path: Path, path: str) -> None:
    """And that is said."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert (await browser.get(path)).status == 404


async def test_secrets_of_the_settings_are_masked(tmp_path: Path) -> None:
    """Also where somebody wrote one into a chat."""
    web = {"port": 0, "token": "t0ken-that-nobody-may-read-123"}
    async with console(tmp_path, web=web) as running, running.browser() as browser:
        await running.serving.chat.ask("it is t0ken-that-nobody-may-read-123, right?")
        for path in ("/admin/conversations/1", "/admin/conversations/1/messages/1", "/admin"):
            found = (await browser.get(path)).text
            assert "t0ken-that-nobody" not in found


async def test_names_of_files_are_text(tmp_path: Path) -> None:
    """A file that came with a message is named as its sender named it, and nothing runs."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("here", sender_name="<b>Una</b>")
        await running.database.write(_attach)
        found = (await browser.get("/admin/conversations/1")).text
        assert "file &lt;svg onload=alert(1)&gt;.png, image/&lt;i&gt;, 1 KB" in found
        assert "&lt;b&gt;Una&lt;/b&gt;" in found
        assert "<svg onload" not in found


def _attach(conn: Connection) -> None:
    values = {
        "conversation": 1,
        "inbox_seq": 1,
        "name": "<svg onload=alert(1)>.png",
        "kind": "image",
        "mime": "image/<i>",
        "size_bytes": 1_234,
        "ref": "r",
        "state": "stored",
        "at": 1.0,
    }
    conn.execute(attachment.insert().values(values))
