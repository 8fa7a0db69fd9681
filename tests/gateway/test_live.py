"""The live preview: shown while the answer grows, replaced by it, never in its way."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from adapters.messages import Address, Question
from agent.messages import assistant_message
from agent.models.base import Completion
from agent.models.scripted import tool_call
from agent.ports import Effect
from agent.tools.registry import Arguments, Tool, ToolContext
from gateway.live import LiveAnswer
from gateway.preview import PreviewMessage, PreviewRows
from gateway.progress import ToolLines
from gateway.storage import models
from tests.support.gateway import HeldModel, RecordingModel, agent_of, running
from tests.support.recording_adapter import RecordingAdapter

HERE = Question(Address("telegram", "default", "c1"))


async def all_sent() -> bool:
    """Nothing stands before this answer."""
    return True


async def forget(_value: str) -> None:
    """Store nothing."""


async def no_others() -> frozenset[str]:
    """Nothing else was shown."""
    return frozenset()


def message_on(adapter: RecordingAdapter) -> PreviewMessage:
    """Return a preview that nothing is stored about."""
    return PreviewMessage(adapter, HERE, PreviewRows(forget, forget, no_others))


async def test_the_preview_is_edited_into_the_answer(tmp_path: Path) -> None:
    """The answer's row carries the preview's id, and no preview comes after it."""
    model = HeldModel(begun="Once")
    gate = model.hold("a story")
    async with running(tmp_path, model) as chat:
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        gate.set()
        await chat.answers(1)
        [sent] = chat.adapter.shown
        assert sent.preview_ref == "p1"
        assert chat.adapter.previews[0] == ("c1", "Once", None)
        assert chat.adapter.order[-1] == ("sent", "re: a story")


async def test_later_previews_name_the_first(tmp_path: Path) -> None:
    """There is one preview message, edited as the answer grows."""
    model = HeldModel(lambda _: "x" * 4000, begun="Once")
    gate = model.hold("a story")
    async with running(tmp_path, model, adapter=RecordingAdapter(preview_interval_s=0)) as chat:
        await chat.say("a story")
        await chat.until_rows(models.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
        gate.set()
        await chat.answers(1)
        assert len(chat.adapter.previews) > 2
        assert {preview.ref for preview in chat.adapter.previews[1:]} == {"p1"}


async def test_the_preview_is_known_after_a_crash(tmp_path: Path) -> None:
    """The resumed turn edits the message that is already there."""
    model = HeldModel(begun="Once")
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.until_rows(models.turn, lambda rows: rows[0].preview_ref == "p1")
    async with running(tmp_path) as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].preview_ref == "p1"
        assert all(preview.ref == "p1" for preview in chat.adapter.previews)


async def test_only_the_first_part_replaces_the_preview(tmp_path: Path) -> None:
    """A long answer needs several messages; one was there."""
    model = HeldModel(begun="Once")
    gate = model.hold("abcdefghijkl")
    async with running(tmp_path, model, adapter=RecordingAdapter(chunk_chars=6)) as chat:
        await chat.say("abcdefghijkl", message_ref="m7")
        await chat.until(lambda: chat.adapter.previews)
        gate.set()
        assert await chat.answers(3) == ["re: ab", "cdefgh", "ijkl"]
        assert [sent.preview_ref for sent in chat.adapter.shown] == ["p1", None, None]
        assert [sent.reply_to for sent in chat.adapter.shown] == ["m7", None, None]


async def test_an_answer_waits_for_the_preview_on_its_way(tmp_path: Path) -> None:
    """Its id must be known, and it must not overtake the answer."""
    adapter = RecordingAdapter(preview_interval_s=0)
    adapter.held_previews = asyncio.Event()
    async with running(tmp_path, adapter=adapter) as chat:
        await chat.say("one " * 1000)
        await chat.until(lambda: adapter.previews)
        assert await chat.ask("/status", "b")
        assert chat.texts() == []
        adapter.held_previews.set()
        await chat.answers(1)
        shown = [kind for kind, text in adapter.order if not text.startswith("- **")]
        assert shown[-1] == "sent"
        assert adapter.shown[-1].preview_ref == "p1"


async def test_a_preview_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is worth more than its preview."""
    monkeypatch.setattr("gateway.live.LAST_PREVIEW_S", 0.05)
    adapter = RecordingAdapter(preview_interval_s=0)
    adapter.held_previews = asyncio.Event()
    async with running(tmp_path, ["long " * 1000], adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.previews)
        assert await chat.answers(1) == ["long " * 1000]
        assert adapter.shown[0].preview_ref is None


async def test_a_platform_without_previews_gets_the_answer(tmp_path: Path) -> None:
    """There is nothing to replace."""
    async with running(tmp_path, adapter=RecordingAdapter(previews=False)) as chat:
        await chat.ask("one")
        assert chat.adapter.shown[0].preview_ref is None


async def test_a_stop_after_a_tool_step_replaces_the_preview(tmp_path: Path) -> None:
    """The preview of a step that was not the answer does not stay as if it were one."""
    step = Completion(
        {**assistant_message("Let me see."), "tool_calls": [tool_call("nothing", {})]}, "tool_calls"
    )
    model = HeldModel([step])
    gate = model.hold("look")
    model.hold("Error: there is no tool 'nothing'. Known tools: ")
    async with running(tmp_path, model, adapter=RecordingAdapter(preview_interval_s=0)) as chat:
        await chat.say("look")
        gate.set()
        await chat.until(lambda: len(model.waiting) == 2)
        await chat.until(lambda: chat.adapter.previews)
        await chat.say("/stop")
        assert "*[stopped]*" in (await chat.answers(2))


async def test_the_end_of_an_answer_waits_for_nothing_else() -> None:
    """Whatever the moment: the end of a turn is noticed at once and not after five seconds."""
    for pauses in range(6):
        adapter = RecordingAdapter(preview_interval_s=0)
        live = LiveAnswer(adapter, HERE, message_on(adapter), all_sent)
        async with asyncio.timeout(4), live.shown():
            live.push("text")
            for _ in range(pauses):
                await asyncio.sleep(0)


async def test_restart_forgets_the_text_and_keeps_the_message() -> None:
    """A further attempt shows its text in the same preview."""
    adapter = RecordingAdapter(preview_interval_s=0)
    live = LiveAnswer(adapter, HERE, message_on(adapter), all_sent)
    async with live.shown():
        live.push("first")
        await adapter.watch.until(lambda: len(adapter.previews) == 1)
        live.restart()
        live.push("second")
        await adapter.watch.until(lambda: len(adapter.previews) == 2)
    assert [(p.text, p.ref) for p in adapter.previews[:2]] == [("first", None), ("second", "p1")]


async def test_an_error_comes_out_as_itself() -> None:
    """The caller tells errors apart by their class."""
    adapter = RecordingAdapter()
    live = LiveAnswer(adapter, HERE, message_on(adapter), all_sent)
    with pytest.raises(LookupError, match="as it is"):
        async with live.shown():
            raise LookupError("as it is")


class BrokenPreviews(RecordingAdapter):
    """Raises from `preview` and `show_working` what no adapter should raise."""

    @override
    async def preview(self, *_: object, **__: object) -> str | None:
        raise LookupError("bug")

    @override
    async def show_working(self, _question: Question) -> None:
        raise LookupError("bug")


async def test_a_broken_preview_costs_no_answer(tmp_path: Path) -> None:
    """Best effort: an adapter's bug must not bury turns."""
    async with running(tmp_path, adapter=BrokenPreviews()) as chat:
        assert await chat.ask("one") == "re: one"


class Command(Arguments):
    """What the tool runs."""

    command: str


class HeldTool:
    """A tool that runs until the test lets it end."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    def tool(self, effect: Effect = "idempotent") -> Tool:
        """Return the tool."""
        return Tool("terminal", "Runs a command.", effect, Command, self._run)

    async def _run(self, _context: ToolContext, _arguments: Command) -> str:
        await self.gate.wait()
        return "done"


def runs_tests() -> RecordingModel:
    """Return a model that runs the tests and tells how it went."""
    return RecordingModel([[tool_call("terminal", {"command": "pytest -q"})], "All green."])


RUNNING = "\N{WRENCH} terminal: `pytest -q`"


async def test_tools_show_in_the_preview_that_becomes_the_answer(tmp_path: Path) -> None:
    """One message from the first call on; the answer takes its place."""
    held, adapter = HeldTool(), RecordingAdapter(preview_interval_s=0)
    agent = agent_of(runs_tests(), tools=[held.tool()])
    async with running(tmp_path, agent, adapter=adapter) as chat:
        await chat.say("test it")
        await chat.until(lambda: adapter.previews)
        assert adapter.previews[0] == ("c1", RUNNING, None)
        held.gate.set()
        assert await chat.answers(1) == ["All green."]
        assert adapter.shown[0].preview_ref == "p1"
        assert {preview.ref for preview in adapter.previews[1:]} <= {"p1"}


async def test_tools_can_be_kept_out_of_the_preview(tmp_path: Path) -> None:
    """`agent.progress` decides."""
    held, adapter = HeldTool(), RecordingAdapter(preview_interval_s=0)
    held.gate.set()
    agent = agent_of(runs_tests(), tools=[held.tool()])
    async with running(tmp_path, agent, adapter=adapter, agent={"progress": "off"}) as chat:
        assert await chat.ask("test it") == "All green."
        assert not any("terminal" in preview.text for preview in adapter.previews)


async def test_a_resumed_turn_shows_its_tools_in_the_same_message(tmp_path: Path) -> None:
    """The id of the preview is on record before the gateway is killed."""
    first = agent_of(runs_tests(), tools=[HeldTool().tool()])
    async with running(tmp_path, first, adapter=RecordingAdapter(preview_interval_s=0)) as chat:
        await chat.say("test it")
        await chat.until_rows(models.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
    held, adapter = HeldTool(), RecordingAdapter(preview_interval_s=0)
    second = agent_of(RecordingModel(["All green."]), tools=[held.tool()])
    async with running(tmp_path, second, adapter=adapter) as chat:
        await chat.until(lambda: adapter.previews)
        held.gate.set()
        await chat.answers(1)
        assert adapter.previews[0] == ("c1", RUNNING, "p1")
        assert adapter.shown[0].preview_ref == "p1"


async def test_a_stop_takes_the_place_of_the_tools(tmp_path: Path) -> None:
    """No line stays that says a tool still runs."""
    adapter = RecordingAdapter(preview_interval_s=0)
    agent = agent_of(runs_tests(), tools=[HeldTool().tool()])
    async with running(tmp_path, agent, adapter=adapter) as chat:
        await chat.say("test it")
        await chat.until_rows(models.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
        await chat.say("/stop")
        await chat.answers(2)
        [stopped] = [sent for sent in adapter.shown if sent.preview_ref]
        assert (stopped.preview_ref, stopped.payload) == ("p1", "*[stopped]*")


async def test_what_waits_for_a_person_says_so(tmp_path: Path) -> None:
    """The message stays above the question; the answer comes below it."""
    adapter = RecordingAdapter(preview_interval_s=0)
    look, run = tool_call("look", {}, "c1"), tool_call("terminal", {"command": "ls"}, "c2")
    looks, held = HeldTool(), HeldTool()
    held.gate.set()
    looking = replace(looks.tool(), name="look", arguments=Arguments)
    model = RecordingModel([[look], [run], "There it is."])
    agent = agent_of(model, tools=[looking, held.tool("side_effect")], approval="side_effects")
    async with running(tmp_path, agent, adapter=adapter) as chat:
        await chat.say("test it")
        await chat.until_rows(models.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
        looks.gate.set()
        await chat.until(lambda: any(sent.preview_ref for sent in adapter.shown))
        [status] = [sent for sent in adapter.shown if sent.preview_ref]
        assert status.payload.splitlines() == [
            "\N{CHECK MARK} look  ",
            "\N{DOUBLE VERTICAL BAR} terminal: `ls` (waiting for approval)",
        ]


async def test_what_tools_do_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform passes over what comes too early, and nothing else may come for minutes."""
    monkeypatch.setattr("gateway.live.SHOW_AGAIN_S", 0.01)
    adapter = RecordingAdapter(preview_interval_s=0)
    lines = ToolLines(str)
    live = LiveAnswer(adapter, HERE, message_on(adapter), all_sent, lines=lines)
    async with live.shown():
        live.working(tool_call("terminal", {"command": "pytest -q"}))
        await adapter.watch.until(lambda: len(adapter.previews) == 3)
    assert {preview.text for preview in adapter.previews} == {RUNNING}


async def test_the_answer_grows_below_the_tools() -> None:
    """What was said before a call does not stay."""
    adapter = RecordingAdapter(preview_interval_s=0)
    live = LiveAnswer(adapter, HERE, message_on(adapter), all_sent, lines=ToolLines(str))
    call = tool_call("terminal", {"command": "pytest -q"})
    async with live.shown():
        live.push("Let me see.")
        live.restart()
        live.working(call)
        live.worked(call, "ok")
        live.push("All")
        await adapter.watch.until(lambda: adapter.previews)
    assert adapter.previews[-1].text == "\N{CHECK MARK} terminal: `pytest -q`\n\nAll"
