"""A turn that goes on after a question knows what it knew: no more is free then, and no less.

Each case runs twice: the answer finds the process that asked, or another one, to which `kill -9` or
the loss of a replica has left nothing but the rows.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.messages import Attachment
from agent.messages import ToolCall, text_of
from agent.models.base import ModelRequest
from agent.plugins.supervision import Caller, supervised_tool
from agent.settings import FetchSettings, ToolSettings
from agent.tools.builtin.history import read_conversation, session_search
from agent.tools.builtin.notebook import memory
from agent.tools.builtin.people import delegate_task
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from agent.tools.sandbox.fetch import make_fetch_url
from agent.tools.sandbox.files import read_file
from gateway.storage import schema
from tests.support.gateway import Running, agent_of, running
from tests.support.long_chats import LongChatModel
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import Step, tool_call

Call = tuple[str, dict[str, Any]]
Planned = str | Sequence[Call]
LINKS = 9
PAGE = "/page"


def fetch(path: str) -> Call:
    """Return a call that fetches a path of the site."""
    return ("fetch_url", {"url": f"http://site.example:PORT{path}"})


ACT: Call = ("act", {})
TASK: Call = ("delegate_task", {"task": "look"})
SIX = [fetch(f"/link/{n}") for n in range(6)]
FIVE = [f"/link/{n}" for n in range(5)]


class Nothing(Arguments):
    """For tools that take no arguments."""


async def _act(_context: ToolContext, _arguments: Nothing) -> str:
    return "done"


async def _diary(context: ToolContext, _arguments: Nothing) -> str:
    past = await context.reader.read(from_seq=None, limit=5, contains=None)
    return f"{len(past)} messages"


async def _long(_context: ToolContext, _arguments: Nothing) -> str:
    return "word " * 1_200


def _of_plugin(name: str, run: Any = _act, *, recalls: bool = False) -> Tool:
    offered = Tool(name, "Of a plugin.", "read", Nothing, run)
    return supervised_tool(offered, Caller("mine", 10), recalls=recalls)


@dataclass
class Site:
    """A server with a page of links, and what the model does, which no restart repeats.

    Attributes:
        window: Of the model, in tokens.
        visits: Paths in the order in which they were fetched.
        views: What the model was asked.
    """

    home: Path
    port: int = 0
    window: int = 200_000
    visits: list[str] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=deque)
    views: list[ModelRequest] = field(default_factory=list)
    calls: int = 0

    async def page(self, request: web.Request) -> web.Response:
        self.visits.append(request.path)
        if request.path != PAGE:
            return web.Response(text="text")
        links = "".join(f"a link (/link/{n})\n" for n in range(LINKS))
        return web.Response(text=links)

    async def look_up(self, _host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    def add(self, steps: Sequence[Planned]) -> None:
        """Have the model do these steps next."""
        for step in steps:
            self.steps.append(step if isinstance(step, str) else [self._call(*it) for it in step])

    def _call(self, name: str, given: dict[str, Any]) -> ToolCall:
        self.calls += 1
        given = {key: str(value).replace("PORT", str(self.port)) for key, value in given.items()}
        return tool_call(name, given, f"c{self.calls}")

    def next_step(self, request: ModelRequest) -> Step:
        self.views.append(request)
        return self.steps.popleft() if self.steps else "end"

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[Running]:
        """Run a gateway on the home, however the one before has ended."""
        options = ToolSettings(fetch=FetchSettings(allow_hosts=("site.example",)))
        tools = [
            make_fetch_url(options, self.look_up),
            *(memory, session_search, read_conversation, read_file, delegate_task),
            Tool("act", "Acts.", "side_effect", Nothing, _act),
            Tool("long", "Says much.", "read", Nothing, _long),
            _of_plugin("diary", _diary),
            _of_plugin("provider", recalls=True),
            _of_plugin("dice"),
        ]
        agent = agent_of(
            LongChatModel(self.next_step, context_length=self.window),
            tools=tools,
            approval="side_effects",
        )
        adapter = RecordingAdapter()
        adapter.files["letter"] = b"do it"
        async with running(
            self.home, agent, adapter=adapter, compression={"protect_last_n": 2}
        ) as chat:
            yield chat


@asynccontextmanager
async def site(home: Path, **options: Any) -> AsyncIterator[Site]:
    """Serve the page."""
    world = Site(home, **options)
    app = web.Application()
    app.router.add_get("/{path:.*}", world.page)
    async with TestServer(app) as server:
        world.port = server.port or 0
        yield world


@asynccontextmanager
async def waiting(
    world: Site, before: Sequence[Planned], *, dies: bool, **fields: Any
) -> AsyncIterator[Running]:
    """Have a turn read the page that its person names, do these steps, and wait for approvals."""
    world.add(before)
    async with world.gateway() as chat:
        await chat.say(f"What does http://site.example:{world.port}{PAGE} say?", **fields)
        await chat.logged("turn_suspended")
        if not dies:
            yield chat
            return
    async with world.gateway() as chat:
        yield chat


async def gone_on(world: Site, chat: Running, after: Sequence[Planned]) -> list[Any]:
    """Approve what is asked, have the model do more, and return the questions about that."""
    world.add(after)
    before = await chat.rows(schema.inquiry)
    waits = len(chat.events("turn_suspended"))
    for row in before:
        await chat.say(f"/approve {row.id}")
    await chat.until(
        lambda: chat.events("turn_finished") or len(chat.events("turn_suspended")) > waits
    )
    return (await chat.rows(schema.inquiry))[len(before) :]


READ: list[Planned] = [[fetch(PAGE)]]


@pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "killed"])
@pytest.mark.parametrize(
    ("before", "after", "fetched", "asked"),
    [
        ([*READ, [ACT]], SIX, FIVE, 1),
        ([*READ, SIX[:2], SIX[2:3], [ACT]], SIX[3:], FIVE[3:], 1),
        ([*READ, [*SIX[:3], ACT]], SIX[3:], FIVE[3:], 1),
        ([*READ, [fetch("/made/up"), ACT]], SIX, [*FIVE, "/made/up"], 1),
        ([*READ, [fetch(PAGE)], SIX[:1], [ACT]], SIX[1:], FIVE[1:], 1),
        ([*READ, [ACT]], [fetch(PAGE), fetch("/link/1?d=x"), fetch("/up")], [PAGE], 2),
        ([*READ, [TASK], SIX[:2], "seen", [ACT]], SIX[2:], FIVE[2:], 1),
        ([[TASK], *READ, "seen", [ACT]], SIX, FIVE, 1),
        ([*READ, [("memory", {"action": "list"})], [ACT]], SIX[:1], [], 1),
        ([*READ, [("session_search", {"query": "x"})], [ACT]], [fetch(PAGE)], [], 1),
        ([*READ, [("read_conversation", {"limit": 2})], [ACT]], SIX[:1], [], 1),
        ([*READ, [("read_file", {"path": "a.txt"})], [ACT]], SIX[:1], [], 1),
        ([*READ, [("diary", {})], [ACT]], SIX[:1], [], 1),
        ([*READ, [("provider", {})], [ACT]], SIX[:1], [], 1),
        ([*READ, [TASK], [("diary", {})], "seen", [ACT]], SIX[:1], [], 1),
        ([*READ, [("dice", {})], [ACT]], SIX, FIVE, 1),
    ],
    ids=[
        "links", "links-taken", "links-beside", "asked-before", "named", "made-up", "child",
        "page-of-a-child", "memory", "search", "conversation", "file", "reader-of-a-plugin",
        "provider", "reader-of-a-child", "tool-of-a-plugin",
    ],
)  # fmt: skip
async def test_what_is_free_stays_free_and_no_more(
    tmp_path: Path,
    before: Sequence[Planned],
    after: Sequence[Call],
    fetched: list[str],
    asked: int,
    *,
    dies: bool,
) -> None:
    """Links of pages, how many were taken, what a tool has recalled, what a person has named."""
    async with site(tmp_path) as world, waiting(world, before, dies=dies) as chat:
        seen = len(world.visits)
        questions = await gone_on(world, chat, [after])
        assert sorted(world.visits[seen:]) == fetched
        assert [row.tool for row in questions] == ["fetch_url"] * asked


@pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "killed"])
async def test_what_has_tainted_a_turn_stays_known(tmp_path: Path, *, dies: bool) -> None:
    """The next question names the page and the file of before."""
    letter = (Attachment(name="letter.txt", kind="file", ref="letter"),)
    before: list[Planned] = [*READ, [ACT]]
    async with (
        site(tmp_path) as world,
        waiting(world, before, dies=dies, attachments=letter) as chat,
    ):
        [question] = await gone_on(world, chat, [[ACT]])
        assert "the file `letter.txt`" in question.question
        assert "the page of `site.example`" in question.question


@pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "killed"])
@pytest.mark.parametrize("recalls", [False, True])
async def test_a_compaction_in_mid_turn_forgets_nothing(
    tmp_path: Path, *, recalls: bool, dies: bool
) -> None:
    """Neither links that were taken, nor the taint, nor that a tool recalled something."""
    looked: list[Planned] = [[("memory", {"action": "list"})]] if recalls else []
    long: list[Planned] = [[("long", {})]]
    before = [*long, *READ, SIX[:3], *looked, *(5 * long), [ACT]]
    async with (
        site(tmp_path, window=9_000) as world,
        waiting(world, before, dies=dies) as chat,
    ):
        assert await chat.rows(schema.compaction)
        assert not any("/link/4" in text_of(each) for each in world.views[-1].messages)
        seen = len(world.visits)
        questions = await gone_on(world, chat, [[*SIX[3:], fetch("/made/up")]])
        assert sorted(world.visits[seen:]) == ([] if recalls else FIVE[3:])
        assert len(questions) == (4 if recalls else 2)
