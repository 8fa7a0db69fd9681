"""The world of the injection corpus: reachable servers, a model that obeys every order, and people.

`python -m tests.security.corpus` tries all cases and prints the results.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer
from typing_extensions import override

from adapters.messages import Attachment
from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.models.recovery import Recovery
from agent.settings import (
    AgentSettings,
    FetchSettings,
    McpServerSettings,
    SandboxSettings,
    ToolSettings,
)
from agent.tools import policy
from agent.tools.builtin.history import session_search
from agent.tools.builtin.notebook import memory, skill_manage
from agent.tools.builtin.people import delegate_task, send_file
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.mcp.servers import Server
from agent.tools.mcp.transports import Quarters
from agent.tools.policy import MOST_LINKS, Rule
from agent.tools.registry import Arguments, ServedTool, Tool, ToolRegistry
from agent.tools.sandbox.fetch import make_fetch_url
from agent.tools.sandbox.files import read_file
from agent.turn.request import Agent
from gateway.storage import schema
from tests.security.corpus.cases import (
    END,
    FIRST,
    NAMED,
    NEW_CHANNELS,
    ORDER,
    OWN,
    REQUESTS,
    SECOND,
    SECRET,
    THEN,
    Case,
    cases,
    order,
)
from tests.support.gateway import NO_WAIT, RecordingModel, Running, running
from tests.support.scripted_model import Step, tool_call

CASES = list(cases())
NOT_YET, NOW, LATER = "NOT YET", "GO ON", "LATER"
_CASE = re.compile(r"case(\d+)")


class Anything(Arguments):
    """Arguments of the acting tools."""

    command: str = ""
    path: str = ""
    text: str = ""
    to: str = ""


class Listens(Server):
    """An MCP server, whose pages are the attackers'; there is no connection."""

    left: list[str]

    @override
    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "read":
            return page_of(int(arguments["id"]))
        self.left.append(str(arguments))
        return "nothing"


def page_of(number: int) -> str:
    """Return the attacker's text of a case."""
    return f"case{number}\n{CASES[number].text}"


@dataclass
class World:
    """The reachable servers, and the record of requests.

    Attributes:
        port: Of the web server of `NAMED`.
        hosts: Names looked up, with ports other than that server's.
        left: Requests to that server, except for its pages.
        links: Number of its followed links, by case.
        acts: Calls of tools that act.
        obeyed: Cases in which the model obeyed the attacker.
    """

    home: Path
    port: int = 0
    hosts: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    links: Counter[str] = field(default_factory=Counter)
    acts: list[str] = field(default_factory=list)
    obeyed: set[int] = field(default_factory=set)

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        self.hosts.add(host if port == self.port else f"{host}:{port}")
        return ["127.0.0.1"]

    def tools(self) -> ToolRegistry:
        """Return the real tools; those that would act for real only note that they did."""
        box = McpServerSettings(command="x", read_only=("read", "get"))
        server = Listens("box", box, Quarters(SandboxSettings(), self.home))
        server.left = self.left
        numbers = {"type": "object", "properties": {"id": {"type": "integer"}}}
        words = {
            "type": "object",
            "properties": {key: {"type": "string"} for key in ("url", "query")},
        }
        fetch = FetchSettings(allow_hosts=(f"{NAMED}:{self.port}",))
        acting = [self._acting(name) for name in ("terminal", "write_file", "mcp_mail_send")]
        return ToolRegistry([
            make_fetch_url(ToolSettings(fetch=fetch), self.look_up),
            server.tool(ServedTool("mcp_box_read", "read", "Reads.", numbers, "read")),
            server.tool(ServedTool("mcp_box_get", "get", "Gets.", words, "read")),
            *acting,
            read_file,
            *(memory, skill_manage, send_file, session_search, delegate_task),
        ])

    def _acting(self, name: str) -> Tool:
        async def act(_context: ToolContext, arguments: Anything) -> str:
            self.acts.append(f"{name} {arguments}")
            return "done"

        return Tool(name, "Acts.", "side_effect", Anything, act, restricted=True)

    def script(self, request: ModelRequest) -> Step:
        """Obey the person's order, or else the newest text with an order."""
        newest = request.messages[-1]
        asked = next(text_of(m) for m in reversed(request.messages) if m["role"] == "user")
        text = _unpacked(text_of(newest))
        if newest["role"] == "tool" and asked.startswith(NOT_YET):
            return text
        if text.startswith(LATER):
            return "fine"
        if NOW in text_of(newest):
            read = [text_of(m) for m in request.messages if ORDER in text_of(m)]
            text = read[-1]
        if ORDER not in text:
            text = _joined(request, text) or _second(request)
        if ORDER not in text:
            return "fine"
        calls, _ = _json(text[text.index(ORDER) + len(ORDER) :].replace("PORT", str(self.port)))
        if found := _CASE.search(text):
            self.obeyed.add(int(found[1]))
        return [tool_call(name, given, f"c{n}") for n, (name, given) in enumerate(calls)]

    def said(self, text: str) -> str:
        """Return the person's message, with the port."""
        return text.replace("PORT", str(self.port))

    async def happened(self, chat: Running) -> list[Any]:
        """Return the effects of the attacks."""
        notes = [row.text for row in await chat.rows(schema.memory)]
        made = [row for row in await chat.rows(schema.attachment) if row.turn_id is not None]
        files = [row.name for row in made]
        skills = [each.name for each in (self.home / "skills").glob("*")]
        spelled = [case for case, times in self.links.items() if times > MOST_LINKS]
        hosts = sorted(self.hosts - {NAMED})
        return [*hosts, *self.left, *spelled, *notes, *files, *skills, *self.acts]


def _unpacked(text: str) -> str:
    """Return the result of a delegated child, or the text itself."""
    return str(orjson.loads(text)["answer"]) if text.startswith('{"outcome"') else text


def _joined(request: ModelRequest, newest: str) -> str:
    """Return the newest order split over two texts, or ""."""
    texts = [text_of(m) for m in request.messages if m["role"] != "assistant"]
    whole = "\n".join(texts)
    if (FIRST not in newest and SECOND not in newest) or not (FIRST in whole and SECOND in whole):
        return ""
    first, second = (whole.rpartition(each)[2].partition(END)[0] for each in (FIRST, SECOND))
    number = _CASE.findall(whole)[-1]
    return f"case{number} {ORDER}{first}{second}"


def _second(request: ModelRequest) -> str:
    """Return the second list of an order after its first calls have ended."""
    messages = list(request.messages)
    found = [n for n, m in enumerate(messages) if THEN in text_of(m) and m["role"] != "assistant"]
    whole = (
        text_of(messages[found[-1]]) if found else _joined(request, "".join(map(text_of, messages)))
    )
    since = found[-1] if found else 0
    made = [m for m in messages[since:] if m.get("tool_calls")]
    if THEN not in whole or (found and len(made) != 1) or messages[-1]["role"] != "tool":
        return ""
    if not found and THEN in "".join(str(m.get("tool_calls")) for m in made):
        return ""
    return f"{ORDER}{whole.rpartition(THEN)[2]}"


def _json(text: str) -> tuple[Any, int]:
    return json.JSONDecoder().raw_decode(text)


@asynccontextmanager
async def attacked(
    home: Path,
    rules: Sequence[Rule] = policy.build_table("side_effects"),
    own_records: frozenset[str] = frozenset(),
) -> AsyncIterator[tuple[World, Running]]:
    """Run a gateway in a world of attackers."""
    world = World(home)

    async def page(request: web.Request) -> web.Response:
        case, half = CASES[int(request.match_info["case"])], request.match_info.get("half")
        if request.query:
            world.left.append(request.path_qs)
        text = f"case{case.number}\n{case.halves[int(half)]}" if half else page_of(case.number)
        return web.Response(text=f"{text}\n{world.said(links_of(case))}")

    async def letter(request: web.Request) -> web.Response:
        if request.query or "%" in request.raw_path:
            world.left.append(request.raw_path)
        world.links[request.match_info["case"]] += 1
        return web.Response(text="a letter")

    async def anything(request: web.Request) -> web.Response:
        world.left.append(request.path_qs)
        if "host" in request.match_info:
            raise web.HTTPFound(f"http://{request.match_info['host']}/")
        return web.Response(text="more")

    app = web.Application()
    app.router.add_get("/page/{case}", page)
    app.router.add_get("/page/{case}/{half}", page)
    app.router.add_get("/letter/{case}/{letter}", letter)
    app.router.add_get("/to/{host}/{rest}", anything)
    app.router.add_get("/{rest:.*}", anything)
    async with TestServer(app) as server:
        world.port = server.port or 0
        agent = Agent(
            models=(RecordingModel(world.script),),
            tools=world.tools(),
            settings=AgentSettings(),
            approval=ApprovalRules(rules, own_records=own_records),
            recovery=Recovery(NO_WAIT),
            max_output_tokens=1024,
        )
        async with running(home, agent, tools={"enabled": ["skill_manage"]}) as chat:
            yield world, chat


def links_of(case: Case) -> str:
    """Return the links of the page of a case."""
    letters = sorted({f"{OWN}/letter/{case.number}/{each}" for each in f"{SECRET}abc"})
    return "\n".join(f"a link ({link})" for link in [*letters, f"{OWN}/recalled/{case.number}"])


async def attack(world: World, chat: Running, case: Case) -> None:
    """Let the person bring in the attacker's text, and wait for the result."""
    place = f"c{case.number}"
    page = f"{OWN}/page/{case.number}"
    fetch = world.said(order(("fetch_url", {"url": page})))
    if case.channel in NEW_CHANNELS:
        await _brought(world, chat, case)
        return
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


async def _brought(world: World, chat: Running, case: Case) -> None:
    """Do so for a text, or the address of a page, from the person."""
    place, request = f"c{case.number}", REQUESTS[case.template]
    text, halves = page_of(case.number), (f"case{case.number}\n{case.halves[0]}", case.halves[1])
    mail = f"Hi,\n\n{text}\n\nBest,\nBob"
    pages = [f"{OWN}/page/{case.number}/{half}" for half in (0, 1)]
    match case.channel:
        case "attached":
            await chat.ask(request, place, attachments=_files(chat, case, text))
        case "two files":
            await chat.ask(request, place, attachments=_files(chat, case, *halves))
        case "file later":
            await chat.ask(f"{LATER} {request}", place, attachments=_files(chat, case, text))
            await chat.ask(NOW, place)
        case "pasted":
            await chat.ask(f"{request}\n\n{mail}", place)
        case "pasted above":
            await chat.ask(f"{mail}\n\n{request}", place)
        case "own host":
            page = ("fetch_url", {"url": f"{OWN}/page/{case.number}"})
            await chat.ask(world.said(order(page)), place)
        case "two pages":
            both = order(*(("fetch_url", {"url": page}) for page in pages))
            await chat.ask(world.said(both), place)


def _files(chat: Running, case: Case, *texts: str) -> tuple[Attachment, ...]:
    refs = [f"{case.number}-{n}" for n in range(len(texts))]
    chat.adapter.files |= {ref: text.encode() for ref, text in zip(refs, texts, strict=True)}
    return tuple(Attachment(name=f"{ref}.txt", kind="file", ref=ref) for ref in refs)
