"""The engine `lcm` in a running gateway: its compactions, its tools, restarts, other engines."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from agent.messages import text_of
from agent.models.base import ModelRequest
from agent.view.view import ViewPlan, load_plan
from gateway.agent_ports.journal import ConversationArchive
from gateway.cli.sessions import node_lines
from gateway.storage import schema
from gateway.storage.conversation.compactions import nodes_of
from gateway.storage.conversation.transcript import END
from tests.support.gateway import RecordingModel, Running, running
from tests.support.long_chats import (
    LongChatModel,
    chatted,
    compactions,
    reply,
    sent,
    until_compacted,
    until_prepared,
)
from tests.support.scripted_model import Step, tool_call

LCM: dict[str, Any] = {"context": {"engine": "lcm"}, "compression": {"protect_last_n": 2}}


async def plan_of(chat: Running) -> ViewPlan:
    return load_plan((await chat.rows(schema.view_plan))[-1].body)


async def test_a_long_chat_grows_a_tree(tmp_path: Path) -> None:
    """Every view is valid; every node that was made is on record, and covers what it says."""
    model = LongChatModel()
    async with running(tmp_path, model, **LCM) as chat:
        await until_compacted(chat, count=6)
        stored = await chat.gateway.database.read(nodes_of, 1)
        plan, rows = await plan_of(chat), await compactions(chat)
    assert model.wrong == []
    assert {row.engine for row in rows} == {"lcm"}
    reached = {each.node for each in plan.summaries}
    reached |= {child for node in stored for child in node.children}
    assert reached == {node.number for node in stored}
    ends = [plan.head_upto, *(each.last_seq for each in plan.summaries)]
    starts = [*(each.first_seq for each in plan.summaries), plan.tail_from]
    assert [end + 1 for end in ends] == starts
    lines = list(node_lines(stored, {each.node for each in plan.summaries}))
    assert len(lines) == len(stored) + 1
    assert sum("* node" in line for line in lines) == len(plan.summaries)


async def test_a_leaf_is_written_ahead(tmp_path: Path) -> None:
    """And committed without a call."""
    model = LongChatModel(context_length=24_000)
    async with running(tmp_path, model, **LCM) as chat:
        n = await until_prepared(chat)
        # Its row is gone where the threshold came in the same turn.
        ahead, calls = await chat.logged("summary_prepared"), len(model.prompts)
        model.writing.clear()
        await until_compacted(chat, n)
        leaves = await chat.gateway.database.read(nodes_of, 1)
    assert {leaf.source for leaf in leaves} == {"model"}
    assert len(model.prompts) == calls
    assert (leaves[0].first_seq, leaves[-1].last_seq) == (ahead["first_seq"], ahead["last_seq"])


async def test_the_tree_survives_restart_new_and_other_engines(tmp_path: Path) -> None:
    """Numbers go on; what another engine has summarised stands above the nodes that it took."""
    async with running(tmp_path, LongChatModel(), **LCM) as chat:
        n = await until_compacted(chat, count=2)
        before = await plan_of(chat)
        await chat.gateway.delivery.wait_idle()
    async with running(tmp_path, LongChatModel(), compression={"protect_last_n": 2}) as chat:
        n = await until_compacted(chat, n)
    model = LongChatModel()
    async with running(tmp_path, model, **LCM) as chat:
        n = await until_compacted(chat, n)
        stored = await chat.gateway.database.read(nodes_of, 1)
        assert any({each.node for each in before.summaries} <= set(it.children) for it in stored)
        await chat.ask("/new")
        await chatted(chat, n, n)
        assert "node" not in str(sent(model.views[-1])[1])
        await until_compacted(chat, n + 1, count=2)
        later = await chat.gateway.database.read(nodes_of, 1)
    assert later[: len(stored)] == stored
    assert [node.number for node in later] == [*range(1, len(later) + 1)]
    assert all(one.number < two.number for one, two in pairwise(later))
    assert model.wrong == []


async def test_the_model_finds_and_opens_what_is_out_of_view(tmp_path: Path) -> None:
    """A word leads to its message, a node to its originals, byte for byte."""
    asked: list[str] = []

    def script(request: ModelRequest) -> Step:
        if "look up" not in text_of(request.messages[-1]) and not asked:
            return reply(request)
        asked.append(text_of(request.messages[-1]))
        if len(asked) == 1:
            return [tool_call("lcm_grep", {"query": "ORD-7037"}, "call_1")]
        if len(asked) == 2:
            return [tool_call("lcm_expand", {"node": 1}, "call_2")]
        return "found"

    async with running(tmp_path, LongChatModel(script), **LCM) as chat:
        await until_compacted(chat, count=3)
        assert await chat.ask("please look up") == "found"
        [leaf, *_] = await chat.gateway.database.read(nodes_of, 1)
        rows = await chat.rows(schema.message)
        base = (await chat.rows(schema.prompt_base))[-1]
        texts = {text.id: text.body for text in await chat.rows(schema.prompt_text)}
    assert "* #1 user: Question 1: where is order ORD-7037" in asked[1]
    within = [row.body for row in rows if leaf.first_seq <= row.seq <= leaf.last_seq]
    assert asked[2].partition("\n")[2] == "".join(f"{body}\n" for body in within)
    assert {"lcm_grep", "lcm_describe", "lcm_expand"} <= {
        item["name"] if "name" in item else item["function"]["name"]
        for item in orjson.loads(texts[base.tools_id])
    }


async def test_a_search_finds_neither_its_question_nor_itself(tmp_path: Path) -> None:
    """By words or by a pattern: the running turn is in view; earlier calls are records."""

    def script(request: ModelRequest) -> Step:
        asked = text_of(request.messages[-1])
        if request.messages[-1]["role"] == "tool":
            return asked
        if "zebra?" not in asked:
            return "noted"
        way = "pattern" if "pattern" in asked else "query"
        return [tool_call("lcm_grep", {way: "zebra"}, f"c{len(request.messages)}")]

    async with running(tmp_path, RecordingModel(script, context_length=64_000), **LCM) as chat:
        await chat.ask("I saw a zebra")
        for question, begins_at in (("where was the zebra?", 3), ("zebra? by a pattern", 7)):
            found = await chat.ask(question)
            seqs = [int(seq) for seq in re.findall(r"^\* #(\d+) ", found, re.MULTILINE)]
            assert seqs[0] == 1
            assert max(seqs) < begins_at


async def test_an_archive_serves_one_conversation_and_no_other(tmp_path: Path) -> None:
    """And never on the loop's own thread, which it would block for ever."""
    async with running(tmp_path) as chat:
        await chat.ask("where is the teapot?")
        database, loop = chat.gateway.database, asyncio.get_running_loop()
        own, other = ConversationArchive(database, 1, loop), ConversationArchive(database, 2, loop)
        assert await asyncio.to_thread(own.find, "teapot", 5, END) == [1, 2]
        assert await asyncio.to_thread(own.find, "teapot", 5, 2) == [1]
        assert await asyncio.to_thread(other.find, "teapot", 5, END) == []
        assert len(await asyncio.to_thread(own.bodies, 1, 9, 5)) == 2
        assert await asyncio.to_thread(other.bodies, 1, 9, 5) == []
        refused = await asyncio.gather(_on_the_loop(own), return_exceptions=True)
    assert isinstance(refused[0], RuntimeError)


async def _on_the_loop(archive: ConversationArchive) -> None:
    archive.nodes()


async def test_a_summary_names_what_is_offered(tmp_path: Path) -> None:
    """The tools of this agent, no others; the stored plan keeps the words."""
    model = LongChatModel()
    async with running(tmp_path, model, **LCM) as chat:
        await until_compacted(chat)
        plan = await plan_of(chat)
    assert "lcm_expand(node=N)" in plan.recall
    assert "session_search" not in plan.recall
    shown = [text_of(message) for message in model.views[-1].messages]
    assert any(plan.recall in text for text in shown)
