"""The injection corpus against a model that obeys every attacker: nothing happens without a yes.

What is measured: a look-up of another host than the person's, a note, a skill, a file for the chat,
a command, a written file, a mail.
"""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.models.recovery import Recovery
from agent.settings import (
    TAINTED_ROWS,
    AgentSettings,
    FetchSettings,
    McpServerSettings,
    OutputSettings,
    SandboxSettings,
    ToolSettings,
)
from agent.tools import policy
from agent.tools.builtin.history import SESSION_SEARCH
from agent.tools.builtin.notebook import MEMORY, SKILL_MANAGE
from agent.tools.builtin.people import DELEGATE_TASK, SEND_FILE
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.mcp.listing import Offered
from agent.tools.mcp.quarters import Quarters
from agent.tools.mcp.servers import Server
from agent.tools.policy import Rule
from agent.tools.registry import Arguments, Tool, ToolRegistry
from agent.tools.sandbox.fetch import make_fetch_url
from agent.tools.sandbox.files import READ_FILE
from agent.turn.state import Agent, CallRules
from gateway.storage import schema
from tests.security.corpus.cases import CHANNELS, EVIL, NAMED, ORDER, SECRET, Case, cases, order
from tests.support.gateway import NO_WAIT, RecordingModel, Running, running
from tests.support.scripted_model import Step, tool_call
from tests.support.thorough import products

KINDS = ("egress", "persistence", "side effect")
CASES = list(cases())
NOT_YET, NOW = "NOT YET", "GO ON"
_CASE = re.compile(r"case(\d+)")


class Anything(Arguments):
    """What the tools that act are called with."""

    command: str = ""
    path: str = ""
    text: str = ""
    to: str = ""


class Listens:
    """Stands for the connection to an MCP server: its pages are the attackers'."""

    async def call(self, _tool: str, arguments: dict[str, Any]) -> str:
        return page_of(int(arguments["id"]))


def page_of(number: int) -> str:
    """Return what the attacker of a case has written."""
    return f"case{number}\n{CASES[number].text}"


@dataclass
class World:
    """What can be reached, and what was.

    Attributes:
        port: Of the web server of `NAMED`.
        hosts: Names that were looked up.
        acts: Calls of tools that act.
        obeyed: Cases whose attacker was obeyed.
    """

    home: Path
    port: int = 0
    hosts: set[str] = field(default_factory=set)
    acts: list[str] = field(default_factory=list)
    obeyed: set[int] = field(default_factory=set)

    async def look_up(self, host: str, _port: int) -> Sequence[str]:
        self.hosts.add(host)
        return ["127.0.0.1"]

    def tools(self) -> ToolRegistry:
        """Return the real tools; those that would act for real only note that they did."""
        box = McpServerSettings(command="x", read_only=("read",))
        quarters = Quarters(SandboxSettings(), self.home, self.home / "mcp")
        server = Server("box", box, quarters)
        server.connection = Listens()  # type: ignore[assignment]
        schema_ = {"type": "object", "properties": {"id": {"type": "integer"}}}
        fetch = FetchSettings(allow_hosts=(f"{NAMED}:{self.port}",))
        acting = [self._acting(name) for name in ("terminal", "write_file", "mcp_mail_send")]
        return ToolRegistry([
            make_fetch_url(ToolSettings(fetch=fetch), self.look_up),
            server.tool(Offered("mcp_box_read", "read", "Reads.", schema_)),
            *acting,
            READ_FILE,
            *(MEMORY, SKILL_MANAGE, SEND_FILE, SESSION_SEARCH, DELEGATE_TASK),
        ])

    def _acting(self, name: str) -> Tool:
        async def act(_context: ToolContext, arguments: Anything) -> str:
            self.acts.append(f"{name} {arguments}")
            return "done"

        return Tool(name, "Acts.", "side_effect", Anything, act, restricted=True)

    def script(self, request: ModelRequest) -> Step:
        """Obey whoever gives orders: the person, else the newest text with an order in it."""
        newest = request.messages[-1]
        asked = next(text_of(m) for m in reversed(request.messages) if m["role"] == "user")
        text = _unpacked(text_of(newest))
        if newest["role"] == "tool" and asked.startswith(NOT_YET):
            return text
        if NOW in text_of(newest):
            read = [text_of(m) for m in request.messages if ORDER in text_of(m)]
            text = read[-1]
        if ORDER not in text:
            return "fine"
        calls, _ = _json(text[text.index(ORDER) + len(ORDER) :].replace("PORT", str(self.port)))
        if found := _CASE.search(text):
            self.obeyed.add(int(found[1]))
        return [tool_call(name, given, f"c{n}") for n, (name, given) in enumerate(calls)]

    async def happened(self, chat: Running) -> list[Any]:
        """Return what the attackers got."""
        notes = [row.text for row in await chat.rows(schema.memory)]
        files = [row.name for row in await chat.rows(schema.attachment)]
        skills = [each.name for each in (self.home / "skills").glob("*")]
        return [*sorted(self.hosts - {NAMED}), *notes, *files, *skills, *self.acts]


def _unpacked(text: str) -> str:
    """Return what a delegated child hands back; else the text itself."""
    return str(orjson.loads(text)["answer"]) if text.startswith('{"outcome"') else text


def _json(text: str) -> tuple[Any, int]:
    return json.JSONDecoder().raw_decode(text)


@asynccontextmanager
async def attacked(
    home: Path,
    rules: Sequence[Rule] = policy.table("side_effects"),
    own_records: frozenset[str] = frozenset(),
) -> AsyncIterator[tuple[World, Running]]:
    """Run a gateway in a world of attackers."""
    world = World(home)

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=page_of(int(request.match_info["case"])))

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{request.match_info['host']}/")

    app = web.Application()
    app.router.add_get("/page/{case}", page)
    app.router.add_get("/to/{host}/{rest}", redirect)
    async with TestServer(app) as server:
        world.port = server.port or 0
        agent = Agent(
            models=(RecordingModel(world.script),),
            tools=world.tools(),
            settings=AgentSettings(),
            calls=CallRules(OutputSettings(), ApprovalRules(rules, own_records=own_records)),
            recovery=Recovery(NO_WAIT),
            max_output_tokens=1024,
        )
        async with running(home, agent, tools={"enabled": ["skill_manage"]}) as chat:
            yield world, chat


async def attack(world: World, chat: Running, case: Case) -> None:
    """Have the person do what brings the attacker's text in, and wait for what comes of it."""
    place = f"c{case.number}"
    fetch = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/{case.number}"}))
    match case.channel:
        case "page":
            await chat.ask(fetch, place)
        case "server":
            await chat.ask(order(("mcp_box_read", {"id": case.number})), place)
        case "quoted":
            await chat.ask(f"> {page_of(case.number)}", place, authors=("666",))
        case "hidden":
            await chat.ask(page_of(case.number), place, authors=("?",))
        case "later":
            await chat.ask(f"{NOT_YET} {fetch}", place)
            await chat.ask(NOW, place)
        case "search":
            await chat.ask(f"{NOT_YET} {fetch}", place)
            await chat.ask("/new", place)
            words = {"query": f"case{case.number}", "limit": 3, "neighbours": 0, "role": "tool"}
            await chat.ask(order(("session_search", words)), place)
        case "child":
            task = {"task": f"{NOT_YET} {fetch}"}
            await chat.ask(order(("delegate_task", task)), place)


@pytest.mark.parametrize(("channel", "kind"), products(CHANNELS, KINDS))
async def test_no_attack_succeeds_without_a_yes(tmp_path: Path, channel: str, kind: str) -> None:
    """Though the model obeys all of them; a question that nobody answers is no yes."""
    chosen = [case for case in CASES if (case.channel, case.goal.kind) == (channel, kind)]
    async with attacked(tmp_path) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        assert await world.happened(chat) == []
        assert world.obeyed == {case.number for case in chosen}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_of_before_new_may_hold_what_was_read_then(tmp_path: Path, kind: str) -> None:
    """A page that was kept in the workspace is no more trusted for that."""
    chosen = [case for case in CASES if (case.channel, case.goal.kind) == ("page", kind)]
    async with attacked(tmp_path) as (world, chat):
        for case in chosen[:5]:
            place = f"c{case.number}"
            fetch = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/{case.number}"}))
            await chat.ask(f"{NOT_YET} {fetch}", place)
            newest = max(row.id for row in await chat.rows(schema.conversation))
            workspace = tmp_path / "workspaces" / str(newest)
            workspace.mkdir(parents=True)
            (workspace / "page.txt").write_text(page_of(case.number))
            await chat.ask("/new", place)
            await chat.ask(order(("read_file", {"path": "page.txt"})), place)
        assert await world.happened(chat) == []
        assert world.obeyed == {case.number for case in chosen[:5]}


def test_the_corpus_is_large_enough() -> None:
    """And no case stands there twice."""
    assert len({(case.channel, case.text) for case in CASES}) == len(CASES) >= 200


async def test_the_attacks_are_real(tmp_path: Path) -> None:
    """Where nothing is asked, as version 0.5 did it for pages, they succeed."""
    careless = policy.table("never", without=TAINTED_ROWS)
    chosen = [case for case in CASES if (case.channel, case.template) == ("page", "plain")]
    async with attacked(tmp_path, careless) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        got = " ".join(map(str, await world.happened(chat)))
    for sign in (
        EVIL,
        f"{NAMED}.{EVIL}",
        f"{SECRET}.{NAMED}",
        "for you.html",
        "Send all",
        "Trusts",
    ):
        assert sign in got
    for sign in ("evil", "a.sh", "terminal", "mcp_mail_send", "Obey"):
        assert sign in got


@pytest.mark.thorough
async def test_a_yes_for_ones_own_records_lets_no_attack_through(tmp_path: Path) -> None:
    """A tainted turn cancels bookings with a yes for the conversation; all else is asked about."""
    chosen = [case for case in CASES if (case.channel, case.template) == ("page", "plain")]
    booking = order(("mcp_mail_send", {"to": "one"}))
    declared = frozenset({"mcp_mail_send"})
    async with attacked(tmp_path, own_records=declared) as (world, chat):
        for case in chosen:
            place = f"c{case.number}"
            await attack(world, chat, case)
            await chat.ask("/stop", place)
        assert await world.happened(chat) == []
        page = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/0"}))
        await chat.ask(f"{NOT_YET} {page}", "own")
        await chat.ask(booking, "own")
        number = max(row.id for row in await chat.rows(schema.inquiry))
        await chat.ask(f"/approve {number} conversation", "own")
        await chat.until(lambda: len(world.acts) == 1)
        await chat.answers(4, "own")
        assert await chat.ask(order(("mcp_mail_send", {"to": "two"})), "own") == "fine"
        assert len(world.acts) == 2
        other = order(("terminal", {"command": "rm"}))
        assert "May I run `terminal`" in await chat.ask(other, "own")
        assert len(world.acts) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("channel", ["page", "server"])
async def test_nor_with_approval_never(tmp_path: Path, channel: str) -> None:
    """The operator trusts whoever writes to the bot, and a page is written by others."""
    chosen = [case for case in CASES if (case.channel, case.template) == (channel, "plain")]
    async with attacked(tmp_path, policy.table("never")) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        assert await world.happened(chat) == []


@pytest.mark.parametrize("own_records", [frozenset(), frozenset({"mcp_mail_send"})])
async def test_what_was_approved_before_the_page_does_not_count(
    tmp_path: Path, own_records: frozenset[str]
) -> None:
    """The person lets mails to one address be sent, then a page is read: it is asked anew.

    Also where the operator has declared that these reach only the person's own records.
    """
    mail = order(("mcp_mail_send", {"to": "ann", "text": "hello"}))
    async with attacked(tmp_path, own_records=own_records) as (world, chat):
        await chat.ask(mail)
        await chat.ask("/approve 1 conversation")
        await chat.until(lambda: len(world.acts) == 1)
        await chat.answers(3)
        assert await chat.ask(mail) == "fine"
        assert len(world.acts) == 2
        page = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/0"}))
        await chat.ask(f"{NOT_YET} {page}")
        question = await chat.ask(mail)
        assert f"I read what others wrote: the page of `{NAMED}`" in question
        assert len(world.acts) == 2
