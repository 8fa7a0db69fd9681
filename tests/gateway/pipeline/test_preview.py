"""The live preview: shown while the answer grows, replaced by it, never in its way.

A preview whose id was not stored: found again, or named by what is said last.

What people see of the tools while a turn runs: short, plain, nothing secret.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update
from typing_extensions import override

from adapters.base import UNANNOUNCED, PreviewIntent
from adapters.discord.render import preview_text as on_discord
from adapters.errors import SendDelayed, SendRejected
from adapters.messages import Address, MessageRef
from adapters.telegram.render import preview_text as on_telegram
from agent.errors import ModelRefused
from agent.messages import ToolCall, assistant_message
from agent.models.base import Completion, ModelRequest, TextSink
from agent.ports import Effect
from agent.safety.redaction import Redactor
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool
from gateway.pipeline import notices
from gateway.pipeline.preview import (
    MAX_LINES,
    LiveAnswer,
    PreviewMessage,
    PreviewRows,
    ToolLines,
    label,
)
from gateway.storage import schema
from tests.support.gateway import HeldModel, RecordingModel, Running, agent_of, echo, running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.scripted_model import Script, tool_call

HERE = MessageRef(Address("telegram", "default", "c1"))


class NoRows:
    """`PreviewRows` of a chat in which nothing else was shown; what it is told is forgotten."""

    async def announce(self, _nonce: str) -> None:
        """Store nothing."""

    async def remember(self, _ref: str) -> None:
        """Store nothing."""

    async def others(self) -> frozenset[str]:
        """Nothing else was shown."""
        return frozenset()

    async def all_sent(self) -> bool:
        """Nothing stands before this answer."""
        return True


def message_on(adapter: RecordingAdapter) -> PreviewMessage:
    """Return a preview that nothing is stored about."""
    return PreviewMessage(adapter, HERE, cast("PreviewRows", NoRows()))


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


class PatientModel(RecordingModel):
    """Says the next word only when the adapter was told to show those before it."""

    def __init__(self, adapter: RecordingAdapter, words: str) -> None:
        super().__init__()
        self._adapter = adapter
        self._words = words.split()

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        for number, word in enumerate(self._words, 1):
            sink.push(f"{word} ")
            await self.watch.until(partial(self._are_shown, number))
        sink.restart()
        return await super().complete(request, sink)

    def _are_shown(self, number: int) -> bool:
        shown = self._adapter.previews
        return bool(shown) and len(shown[-1].text.split()) == number


async def test_later_previews_name_the_first(tmp_path: Path) -> None:
    """There is one preview message, edited as the answer grows."""
    adapter = RecordingAdapter(preview_interval_s=0)
    model = PatientModel(adapter, "Once upon a time")
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("a story")
        await chat.answers(1)
        first, *later = adapter.previews
        assert first.ref is None
        assert len(later) >= 3
        assert {preview.ref for preview in later} == {"p1"}


async def test_the_preview_is_known_after_a_crash(tmp_path: Path) -> None:
    """The resumed turn edits the message that is already there."""
    model = HeldModel(begun="Once")
    async with running(tmp_path, model) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: chat.adapter.previews)
        await chat.until_rows(schema.turn, lambda rows: rows[0].preview_ref == "p1")
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
    monkeypatch.setattr("gateway.pipeline.preview.LAST_PREVIEW_S", 0.05)
    adapter = RecordingAdapter(preview_interval_s=0)
    adapter.held_previews = asyncio.Event()
    model = HeldModel(begun="long ")
    gate = model.hold("one")
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("one")
        await chat.until(lambda: adapter.previews)
        gate.set()
        assert await chat.answers(1) == ["re: one"]
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
        live = LiveAnswer(adapter, HERE, message_on(adapter), ToolLines(str))
        async with asyncio.timeout(4), live.shown():
            live.push("text")
            for _ in range(pauses):
                await asyncio.sleep(0)
        assert [preview.text for preview in adapter.previews] in ([], ["text"])


async def test_restart_forgets_the_text_and_keeps_the_message() -> None:
    """A further attempt shows its text in the same preview."""
    adapter = RecordingAdapter(preview_interval_s=0)
    live = LiveAnswer(adapter, HERE, message_on(adapter), ToolLines(str))
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
    live = LiveAnswer(adapter, HERE, message_on(adapter), ToolLines(str))
    with pytest.raises(LookupError, match="as it is"):
        async with live.shown():
            raise LookupError("as it is")


class BrokenPreviews(RecordingAdapter):
    """Raises from `preview` and `show_working` what no adapter should raise."""

    @override
    async def preview(self, *_: object, **__: object) -> str | None:
        raise LookupError("bug")

    @override
    async def show_working(self, _question: MessageRef) -> None:
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


async def test_a_resumed_turn_shows_its_tools_in_the_same_message(tmp_path: Path) -> None:
    """The id of the preview is on record before the gateway is killed."""
    first = agent_of(runs_tests(), tools=[HeldTool().tool()])
    async with running(tmp_path, first, adapter=RecordingAdapter(preview_interval_s=0)) as chat:
        await chat.say("test it")
        await chat.until_rows(schema.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
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
        await chat.until_rows(schema.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
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
        await chat.until_rows(schema.turn, lambda rows: bool(rows and rows[0].preview_ref == "p1"))
        looks.gate.set()
        await chat.until(lambda: any(sent.preview_ref for sent in adapter.shown))
        [status] = [sent for sent in adapter.shown if sent.preview_ref]
        assert status.payload.splitlines() == [
            "\N{CHECK MARK} look  ",
            "\N{DOUBLE VERTICAL BAR} terminal: `ls` (waiting for approval)",
        ]


async def test_what_tools_do_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform passes over what comes too early, and nothing else may come for minutes."""
    monkeypatch.setattr("gateway.pipeline.preview.SHOW_AGAIN_S", 0.01)
    adapter = RecordingAdapter(preview_interval_s=0)
    lines = ToolLines(str)
    live = LiveAnswer(adapter, HERE, message_on(adapter), lines)
    async with live.shown():
        live.working(tool_call("terminal", {"command": "pytest -q"}))
        await adapter.watch.until(lambda: len(adapter.previews) == 3)
    assert {preview.text for preview in adapter.previews} == {RUNNING}


async def test_the_answer_grows_below_the_tools() -> None:
    """What was said before a call does not stay."""
    adapter = RecordingAdapter(preview_interval_s=0)
    live = LiveAnswer(adapter, HERE, message_on(adapter), ToolLines(str))
    call = tool_call("terminal", {"command": "pytest -q"})
    async with live.shown():
        live.push("Let me see.")
        live.restart()
        live.working(call)
        live.worked(call, "ok")
        live.push("All")
        await adapter.watch.until(lambda: adapter.previews)
    assert adapter.previews[-1].text == "\N{CHECK MARK} terminal: `pytest -q`\n\nAll"


NAMED = f"{notices.REPLACES}\n\n"
SILENT = SendRejected("this platform has no look-up")


@pytest.fixture
def no_last_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway that is ended wait for no preview: it would, for one that is held."""
    monkeypatch.setattr("gateway.pipeline.preview.LAST_PREVIEW_S", 0.0)


async def killed_while_shown(home: Path) -> None:
    """Leave a turn whose preview was announced, and whose id was never stored."""
    adapter = RecordingAdapter()
    adapter.held_previews = asyncio.Event()
    model = HeldModel(begun="Once")
    async with running(home, model, adapter=adapter) as chat:
        model.hold("a story")
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        [row] = await chat.rows(schema.turn)
        assert row.preview_ref.startswith("?")


@asynccontextmanager
async def resumed(
    home: Path, *findings: str | Exception, answers: Script = echo
) -> AsyncIterator[Running]:
    """Run a gateway on what the first one left; look-ups end as given."""
    await killed_while_shown(home)
    adapter = RecordingAdapter()
    adapter.findings.extend(findings)
    async with running(home, answers, adapter=adapter) as chat:
        yield chat


@pytest.mark.usefixtures("no_last_wait")
async def test_a_preview_is_found_and_becomes_the_answer(tmp_path: Path) -> None:
    """Nothing is said about it."""
    async with resumed(tmp_path, "m77") as chat:
        assert await chat.answers(1) == ["re: a story"]
        assert chat.adapter.shown[0].preview_ref == "m77"
        assert len(chat.adapter.looked_up) == 1


@pytest.mark.usefixtures("no_last_wait")
async def test_a_preview_that_was_never_shown_is_not_named(tmp_path: Path) -> None:
    """The platform says that there is none."""
    async with resumed(tmp_path) as chat:
        assert await chat.answers(1) == ["re: a story"]
        assert chat.adapter.shown[0].preview_ref is None


@pytest.mark.usefixtures("no_last_wait")
async def test_a_preview_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    """The answer says so, and is no edit of anything."""
    async with resumed(tmp_path, SILENT) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]
        assert chat.adapter.shown[0].preview_ref is None
        assert (await chat.logged("preview_lost"))["reason"] == str(SILENT)


@pytest.mark.usefixtures("no_last_wait")
async def test_what_the_transcript_says_names_no_preview(tmp_path: Path) -> None:
    """The model does not read what its chat was told about messages."""
    async with resumed(tmp_path, SILENT) as chat:
        await chat.answers(1)
        assert (await chat.transcript())[-1]["content"] == "re: a story"


@pytest.mark.usefixtures("no_last_wait")
async def test_there_is_no_second_preview_below_a_lost_one(tmp_path: Path) -> None:
    """At most one message of a turn can be left behind."""
    await killed_while_shown(tmp_path)
    model = HeldModel(begun="Once more")
    gate = model.hold("a story")
    adapter = RecordingAdapter()
    adapter.findings.append(SILENT)
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.logged("preview_lost")
        gate.set()
        await chat.answers(1)
        assert adapter.previews == []


@pytest.mark.usefixtures("no_last_wait")
async def test_a_platform_that_cannot_say_it_now_is_asked_again(tmp_path: Path) -> None:
    """It may not be connected yet."""
    async with resumed(tmp_path, SendDelayed("not connected", 0.01), "m77") as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].preview_ref == "m77"


@pytest.mark.usefixtures("no_last_wait")
async def test_nobody_waits_long_for_a_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the answer names what may stand there."""
    monkeypatch.setattr("gateway.pipeline.preview.LOOK_UP_S", 0.0)
    async with resumed(tmp_path, *[SendDelayed("busy", 60.0)] * 9) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]


@pytest.mark.usefixtures("no_last_wait")
async def test_a_flaw_of_a_look_up_costs_no_answer(tmp_path: Path) -> None:
    """A turn that failed by it would ask the model again, and could not even be given up."""
    async with resumed(tmp_path, KeyError("bug")) as chat:
        assert await chat.answers(1) == [f"{NAMED}re: a story"]
        assert (await chat.logged("preview_lost"))["reason"] == "KeyError('bug')"


class Undecided(RecordingAdapter):
    """Takes a preview back while its look-up waits for what is known of other messages."""

    intent: PreviewIntent = UNANNOUNCED

    @override
    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        await super().preview(question, text, ref, grows=grows, intent=intent)
        self.intent = intent
        return None


@pytest.mark.usefixtures("no_last_wait")
async def test_what_is_taken_back_meanwhile_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a nonce a look-up could take another message for it."""
    adapter = Undecided()
    model = HeldModel(begun="Once")
    gate = model.hold("a story")

    def taken_back(*_: object) -> frozenset[str]:
        adapter.intent.undo()
        return frozenset()

    monkeypatch.setattr("gateway.storage.queue.outbox.newest_refs", taken_back)
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        gate.set()
        assert await chat.answers(1) == ["re: a story"]
        assert adapter.looked_up == []


def refuses(_: ModelRequest) -> str:
    """Answer nothing; a script."""
    raise ModelRefused("never")


@pytest.mark.usefixtures("no_last_wait")
async def test_a_failed_turn_names_what_stands_there(tmp_path: Path) -> None:
    """The notice has the place of the answer."""
    async with resumed(tmp_path, SILENT, answers=refuses) as chat:
        assert await chat.answers(1) == [f"{NAMED}{notices.REFUSED}"]


@pytest.mark.usefixtures("no_last_wait")
async def test_a_failed_turn_takes_the_place_of_what_is_found(tmp_path: Path) -> None:
    """The notice replaces it."""
    async with resumed(tmp_path, "m77", answers=refuses) as chat:
        await chat.answers(1)
        assert chat.adapter.shown[0].preview_ref == "m77"


@pytest.mark.usefixtures("no_last_wait")
@pytest.mark.parametrize("finding", [SILENT, "m77"])
async def test_giving_up_deals_with_it(tmp_path: Path, finding: str | Exception) -> None:
    """The notice names it, or takes its place."""
    await killed_while_shown(tmp_path)
    adapter = RecordingAdapter()
    adapter.findings.append(finding)
    async with running(tmp_path, at_work=False) as chat:
        await chat.execute(update(schema.turn).values(attempt=99))
    async with running(tmp_path, adapter=adapter) as chat:
        told = NAMED * (finding is SILENT) + notices.GAVE_UP
        assert await chat.answers(1) == [told]
        assert adapter.shown[0].preview_ref == (None if finding is SILENT else finding)


@pytest.mark.usefixtures("no_last_wait")
async def test_a_turn_that_cannot_begin_again_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can be asked at that point."""
    await killed_while_shown(tmp_path)

    def failing(*_: object) -> None:
        raise LookupError("bug")

    monkeypatch.setattr("gateway.storage.conversation.turns.count_attempt", failing)
    monkeypatch.setattr("gateway.pipeline.worker.RETRY_AFTER_S", 0.0)
    async with running(tmp_path) as chat:
        assert await chat.answers(1) == [NAMED + notices.NEVER_BEGAN]


class Forgetful(RecordingAdapter):
    """Shows a preview, or refuses it, and returns no id."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__()
        self._refused = refused

    @override
    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        await super().preview(question, text, ref, grows=grows, intent=intent)
        if self._refused:
            intent.undo()
        return None


@pytest.mark.usefixtures("no_last_wait")
@pytest.mark.parametrize("refused", [True, False])
async def test_a_lost_reply_is_dealt_with_in_the_same_process(
    tmp_path: Path, *, refused: bool
) -> None:
    """The answer looks for the preview, unless the platform has refused to show one."""
    adapter = Forgetful(refused=refused)
    adapter.findings.extend([] if refused else ["m77"])
    model = HeldModel(begun="Once")
    gate = model.hold("a story")
    async with running(tmp_path, model, adapter=adapter) as chat:
        await chat.say("a story")
        await chat.until(lambda: adapter.previews)
        gate.set()
        await chat.answers(1)
        assert adapter.shown[0].preview_ref == (None if refused else "m77")
        assert len(adapter.looked_up) == (0 if refused else 1)


@pytest.mark.usefixtures("no_last_wait")
async def test_a_turn_without_a_preview_announces_none(tmp_path: Path) -> None:
    """It ends before the first one could be shown."""
    async with running(tmp_path, adapter=RecordingAdapter(preview_interval_s=60)) as chat:
        await chat.ask("hello")
        [row] = await chat.rows(schema.turn)
        assert row.preview_ref is None


SECRET = "hunter2-hunter2"
redact = Redactor([SECRET]).text


def call(name: str, call_id: str = "c1", **arguments: object) -> ToolCall:
    """Return a call."""
    text = orjson.dumps(arguments).decode()
    return ToolCall(id=call_id, type="function", function={"name": name, "arguments": text})


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (call("terminal", command="pytest -q\n tests"), "terminal: `pytest -q tests`"),
        (call("read_file", path="a/b.py", limit=3), r"read\_file: `a/b.py`"),
        (call("todo", items=[]), "todo"),
        (call("write_file", content="All of it.", path=""), r"write\_file"),
        (call("terminal", command=["ls"]), "terminal"),
        (call("terminal", command="x" * 70), f"terminal: `{'x' * 59}…`"),
        (call("", command="ls"), "?: `ls`"),
    ],
)
def test_a_call_is_named_by_what_it_is_about(made: ToolCall, shown: str) -> None:
    """Its command, path or question; not what it writes."""
    assert label(made, redact) == shown


@pytest.mark.parametrize(
    "command", [f"login {SECRET}", "export TOKEN=abcd1234efgh", f"{'x ' * 20}sk-ant-{'a1' * 20}"]
)
def test_no_secret_is_shown(command: str) -> None:
    """Configured or by its shape; masked before the text is cut."""
    shown = label(call("terminal", command=command), redact)
    assert "********" in shown
    assert not any(each in shown for each in (SECRET, "abcd1234", "sk-ant-a"))


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"command": "' + "x" * 200_000 + '"}'])
def test_odd_arguments_show_the_name_alone(arguments: str) -> None:
    """They may be anything, and of any size."""
    odd = ToolCall(id="c", type="function", function={"name": "terminal", "arguments": arguments})
    assert label(odd, redact) == "terminal"


@given(st.text(max_size=80), st.text(max_size=30))
def test_formatting_is_shown_as_text(command: str, name: str) -> None:
    """One line, and nothing in it is a link, a mention or bold."""
    lines = ToolLines(redact)
    lines.set(call(name, command=f"[x](https://x.org) **b** @everyone ` {command}"), "running")
    [shown] = (on_telegram(lines.text) or "").splitlines()
    assert "[x](https://x.org) **b** @everyone" in shown
    assert (on_discord(lines.text) or "").count("`") == 2


def test_each_call_has_a_line_that_tells_how_it_stands() -> None:
    """In the order in which they began."""
    lines = ToolLines(redact)
    for name, state in (
        ("terminal", "ok"),
        ("fetch", "error"),
        ("recall", "partial"),
        ("delegate", "running"),
        ("clarify", "waiting"),
    ):
        lines.set(call(name, name), "running")
        lines.set(call(name, name), state)
    assert lines.text.splitlines() == [
        "✓ terminal  ",
        "⚠️ fetch  ",
        "✓ recall  ",
        "🔧 delegate  ",
        "⏸ clarify (waiting for an answer)",
    ]


def test_the_newest_are_shown() -> None:
    """How many there were before is told."""
    lines = ToolLines(redact)
    assert lines.text == ""
    for n in range(8):
        lines.set(call("echo", f"c{n}", query=str(n)), "ok")
    shown = [line.rstrip() for line in lines.text.splitlines()]
    assert shown == ["+3 earlier", *(f"✓ echo: `{n}`" for n in range(3, 3 + MAX_LINES))]


def test_an_id_that_is_used_again_is_another_call() -> None:
    """Some servers begin to count anew in each step."""
    lines = ToolLines(redact)
    lines.set(call("echo", "call_0", query="first"), "ok")
    lines.set(call("echo", "call_0", query="second"), "running")
    assert lines.text.splitlines() == ["✓ echo: `first`  ", "🔧 echo: `second`"]


def test_a_refused_call_waits_for_nothing() -> None:
    """What did not run is marked as such."""
    lines = ToolLines(redact)
    lines.set(tool_call("terminal", {"command": "ls"}), "denied")
    assert lines.text == "⚠️ terminal: `ls`"
