"""Conversations: a list with filters and search, and for each its turns, segments and texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import groupby
from typing import Any, get_args
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Connection

from adapters.registry import by_name
from agent.messages import ChatMessage, decode
from agent.view.view import ViewPlan
from gateway.agent_ports.budgets import day_of
from gateway.commands.registry import StatusFacts
from gateway.console import presentation, register
from gateway.console.presentation import short
from gateway.console.register import HOME, Ask, Missing, Result, Shown, listed, page, pages
from gateway.storage.conversation import conversations, questions, sessions, transcript, turns
from gateway.storage.conversation.attachments import StoredFile
from gateway.storage.conversation.questions import Question
from gateway.storage.conversation.turns import Step
from gateway.storage.queue.inbox import InboxEntry
from gateway.storage.reports import conversation_list, history, spending, steps, usage
from gateway.storage.reports.conversation_list import State, Wanted
from gateway.storage.reports.history import Recorded, Segment, speaker, standing, text_with_labels
from gateway.storage.reports.spending import Call, Spent
from gateway.storage.reports.steps import Sent, TurnRow

LIST = f"{HOME}/conversations"
SHOWN_CHARS = 280
"""Longest excerpt of a message in search results."""
STATES: Mapping[State, str] = {
    "running": "a turn runs",
    "waiting": "messages wait",
    "asking": "waits for a person",
    "unsent": "answers unsent",
    "failed": "a turn was given up",
}
FILTERS = ("query", "platform", "account", "person", "state", "since", "until")
MESSAGES = 60
"""Messages per page of a transcript."""
AROUND = 20
"""Messages after a link's target on the same page."""
SEGMENTS = 40
"""Number of newest segments to show."""
LEFT_SHOWN = 200
"""Most compacted messages to show on a compaction's page."""
WHOLE = f"{LIST}/{{id}}"


@page(LIST, "Conversations", "Chats")
async def every_conversation(ask: Ask) -> Result:
    """Show the conversations with the newest turns, or the results of a search."""
    given = {name: ask.query(name) for name in FILTERS}
    wanted = wanted_of(given, ask.inside.settings.sessions.timezone)
    database, after = ask.inside.database, ask.pair("after")
    values = {
        "given": given,
        "states": STATES,
        "platforms": sorted(by_name()),
        "accounts": sorted({name for _, name in ask.inside.health.accounts}),
        "found": None,
        "chars": SHOWN_CHARS,
    }
    if given["query"]:
        values["found"] = await database.search(conversation_list.said, wanted, given["query"])
        return Shown("conversations.html", values)
    rows = await database.search(conversation_list.listed, wanted, register.PAGE + 1, after)
    around = pages(LIST, rows, lambda row: f"{row.turn_id}.{row.overview.id}", after, given)
    return Shown("conversations.html", values | {"listed": listed(rows), **around})


def wanted_of(given: Mapping[str, str], timezone: str) -> Wanted:
    """Parse the form's filters, ignoring invalid ones."""
    platform, colon, person = given["person"].partition(":")
    if not colon or platform not in by_name():
        platform, person = "", given["person"]
    state = given["state"]
    zone = ZoneInfo(timezone)
    return Wanted(
        platform=given["platform"] or platform,
        account=given["account"],
        person=person,
        state=next((each for each in get_args(State) if each == state), None),
        since=_begin(given["since"], zone),
        # Include the last day.
        until=_begin(given["until"], zone, behind=1),
    )


def _begin(text: str, zone: ZoneInfo, *, behind: int = 0) -> float | None:
    """Return the start of a day, or of a day `behind` days later; None for an invalid date."""
    try:
        day = date.fromisoformat(text) + timedelta(days=behind)
        return day_of(day, zone).start.timestamp()
    except (ValueError, OverflowError):
        return None


@dataclass(slots=True)
class ToolShown:
    """A tool call with its step, question and result."""

    name: str
    arguments: str
    call_id: str
    step: Step | None = None
    asked: Question | None = None
    result: "MessageShown | None" = None


@dataclass(slots=True)
class MessageShown:
    """A message of the transcript; `standing` is its state in the current view."""

    row: Recorded
    role: str
    who: str
    text: str
    standing: str
    thought: str = ""
    call: Call | None = None
    tools: list[ToolShown] = field(default_factory=list)


@dataclass(slots=True)
class TurnShown:
    """A turn with its steps in order; `head` is None for messages outside turns.

    Attributes:
        messages: Its transcript messages; a command's turn has none.
        apart: Model calls without a message: summaries, lost calls.
        waits_for: The kind of the open question, if any.
    """

    head: TurnRow | None
    messages: list[MessageShown]
    received: list[InboxEntry] = field(default_factory=list)
    files: list[StoredFile] = field(default_factory=list)
    apart: list[Call] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    waits_for: str = ""


@page(WHOLE, "Conversation")
async def conversation(ask: Ask) -> Result:
    """Show a conversation: the newest messages, or those before a given one."""
    number, before = ask.number("id"), ask.position("before")
    database = ask.inside.database
    chosen = await database.read(_chosen_model, number)
    facts = ask.inside.facts(chosen)
    values = await database.search(_read, number, before, facts)
    title = values["it"].overview.title or f"Conversation {number}"
    return Shown("conversation.html", values, title=title)


def _chosen_model(conn: Connection, number: int) -> str | None:
    if not conversations.exists(conn, number):
        raise Missing(f"There is no conversation {number}.")
    return conversations.chosen_model(conn, number)


def _read(conn: Connection, number: int, before: int | None, facts: StatusFacts) -> dict[str, Any]:
    it = conversation_list.one(conn, number)
    rows = history.recorded(conn, number, before=before or transcript.END, limit=MESSAGES)
    plan = sessions.active(conn, number).plan
    fill = usage.standing(conn, number, facts.fixed_tokens)
    report = usage.report(conn, number, fill.session_id)
    lineage = history.segments_of(conn, number)[-SEGMENTS:]
    here = f"{HOME}/conversations/{number}"
    has_older = bool(rows) and rows[0].seq > 1
    return {
        "it": it,
        "turns": turns_of(
            conn, number, rows, plan, steps.turns_of_commands(conn, number, rows, before)
        ),
        "fill": fill,
        "facts": facts,
        "took": report.whole,
        "gauge": _gauge(spending.recent_answers(conn, number), lineage, facts),
        "lineage": lineage,
        "older": f"{here}?before={rows[0].seq}#transcript" if has_older else "",
        "first": f"{here}#transcript" if before is not None else "",
    }


def _gauge(
    answers: Sequence[Call], lineage: Sequence[Segment], facts: StatusFacts
) -> presentation.LineChart | None:
    """Chart the prompt sizes; None without a report."""
    if not answers:
        return None
    times = [each.at for each in answers]
    made = [row.compaction for row in lineage if row.compaction is not None]
    marks = [
        (
            sum(at < row.at for at in times),
            f"Compaction: {short(row.tokens_before)} to {short(row.tokens_after)}",
        )
        for row in made
        if row.at >= times[0]
    ]
    levels = [("window", float(facts.window_tokens), f"window {short(facts.window_tokens)}")]
    if facts.threshold_tokens is not None:
        level = float(facts.threshold_tokens)
        levels.append(("threshold", level, f"threshold {short(level)}"))
    sizes = [float(each.usage.prompt_tokens) for each in answers]
    # A much larger window would flatten the line.
    seen = [level for level in levels if level[1] <= 4 * max(sizes)]
    return presentation.steps("Size of the prompt, call by call", sizes, seen, marks, short)


def turns_of(
    conn: Connection,
    number: int,
    rows: Sequence[Recorded],
    plan: ViewPlan,
    commands: Sequence[TurnRow],
) -> list[TurnShown]:
    """Group messages and commands by turn, with the turns' steps."""
    ids = sorted({row.turn for row in rows if row.turn is not None})
    heads = {head.id: head for head in steps.turns(conn, ids)}
    shown = [
        TurnShown(heads.get(turn_id or 0), [_message(row, plan) for row in group])
        for turn_id, group in groupby(rows, key=lambda row: row.turn)
    ]
    for head in commands:
        behind = (n for n, each in enumerate(shown) if each.head and each.head.id > head.id)
        shown.insert(next(behind, len(shown)), TurnShown(head, []))
    ids += [head.id for head in commands]
    by_turn = {each.head.id: each for each in shown if each.head is not None}
    journal = _by_turn(turns.steps_of(conn, ids))
    billed = _by_turn(spending.calls_of_turns(conn, number, ids))
    asked = _by_turn(questions.of_turns(conn, ids))
    sent = _by_turn(steps.sends_of(conn, ids))
    received, files = steps.received(conn, number, ids)
    for turn_id, each in by_turn.items():
        done = journal.get(turn_id, [])
        each.apart = _with_calls(each, done, billed.get(turn_id, []))
        _with_tools(each, done, asked.get(turn_id, []))
        waiting = (one.kind for one in asked.get(turn_id, []) if one.state == "pending")
        each.waits_for = next(waiting, "")
        each.sent = sent.get(turn_id, [])
        each.received = [row for row in received if row.turn_id == turn_id]
        came = {row.seq for row in each.received}
        each.files = [row for row in files if row.turn_id == turn_id or row.inbox_seq in came]
        each.spent = sum((call.spent for call in billed.get(turn_id, [])), Spent())
    return shown


def _by_turn(rows: Sequence[Any]) -> Mapping[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.turn_id, []).append(row)
    return found


def _message(row: Recorded, plan: ViewPlan) -> MessageShown:
    message = decode(row.body)
    return MessageShown(
        row,
        message["role"],
        speaker(message),
        text_with_labels(message),
        standing(plan, row.seq),
        thought=message.get("reasoning", ""),
        tools=_tools(message),
    )


def _tools(message: ChatMessage) -> list[ToolShown]:
    return [
        ToolShown(call["function"]["name"], _pretty(call["function"]["arguments"]), call["id"])
        for call in message.get("tool_calls") or ()
    ]


def _pretty(arguments: str) -> str:
    """Indent arguments if they are JSON."""
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_INDENT_2).decode()
    except (orjson.JSONDecodeError, TypeError):
        return arguments


def _with_calls(turn: TurnShown, done: Sequence[Step], billed: Sequence[Call]) -> list[Call]:
    """Assign model calls to their messages; return the other calls.

    The n-th call in a turn's journal made its n-th message. Match from the end, since the page may
    start in the middle of a turn.
    """
    by_id = {call.call_id: call for call in billed if call.call_id is not None}
    made = [by_id.get(step.call_id or "") for step in done if step.kind == "model"]
    answers = [message for message in turn.messages if message.role == "assistant"]
    for message, call in zip(reversed(answers), reversed(made), strict=False):
        message.call = call
    used = {id(call) for call in made}
    return [call for call in billed if id(call) not in used]


def _with_tools(turn: TurnShown, done: Sequence[Step], asked: Sequence[Question]) -> None:
    """Assign journal entries, questions and results to tool calls."""
    journal = {step.call_id: step for step in done if step.kind == "tool"}
    questions = {each.call_id: each for each in asked}
    calls = {tool.call_id: tool for message in turn.messages for tool in message.tools}
    for tool in calls.values():
        tool.step = journal.get(tool.call_id)
        tool.asked = questions.get(tool.call_id)
    kept = []
    for message in turn.messages:
        tool_of = calls.get(message.who.rpartition(" ")[2]) if message.role == "tool" else None
        if tool_of is None:
            kept.append(message)
        else:
            tool_of.result = message
    turn.messages = kept


@page(WHOLE + "/messages/{seq}", "Message")
async def message(ask: Ask) -> Result:
    """Show a whole message and its stored form."""
    number, seq = ask.number("id"), ask.number("seq")
    found = await ask.inside.database.read(_one, number, seq)
    decoded = decode(found.body)
    text = text_with_labels(decoded)
    calls = [(f"Call of {tool.name}", tool.arguments) for tool in _tools(decoded)]
    return Shown(
        "message.html",
        {
            "conversation": number,
            "back": f"{HOME}/conversations/{number}?before={seq + AROUND}#m{seq}",
            "told": [speaker(decoded), f"session {found.session_id}"],
            "at": found.at,
            "turn": found.turn,
            "texts": [("Text", text)] * bool(text) + calls,
            "stored": orjson.dumps(decoded, option=orjson.OPT_INDENT_2).decode(),
        },
        title=f"Message {seq} of conversation {number}",
    )


def _one(conn: Connection, number: int, seq: int) -> Recorded:
    found = history.recorded(conn, number, from_seq=seq, limit=1)
    if not found or found[0].seq != seq:
        raise Missing(f"Conversation {number} has no message {seq}.")
    return found[0]


@page(WHOLE + "/outputs/{output}", "Output")
async def output(ask: Ask) -> Result:
    """Show the full output of a tool, of which the transcript has a part."""
    number, name = ask.number("id"), ask.names["output"]
    text = await ask.inside.database.read(transcript.read_blob, number, name)
    if text is None:
        raise Missing(f"Conversation {number} has no output {name}.")
    shown = {
        "conversation": number,
        "back": f"{HOME}/conversations/{number}",
        "told": [],
        "at": None,
        "turn": None,
        "texts": [("Text", text)],
        "stored": "",
    }
    return Shown("message.html", shown, title=f"Output {name} of conversation {number}")


@page(WHOLE + "/segments/{session}", "Segment")
async def segment(ask: Ask) -> Result:
    """Show the start of a segment's requests, and its compaction."""
    number, session_id = ask.number("id"), ask.number("session")
    values = await ask.inside.database.search(_segment, number, session_id)
    return Shown("segment.html", values, title=f"Segment {values['here'].number}")


def _segment(conn: Connection, number: int, session_id: int) -> dict[str, Any]:
    row = next((each for each in history.segments_of(conn, number) if each.id == session_id), None)
    if row is None:
        raise Missing(f"Conversation {number} has no session {session_id}.")
    here = sessions.get(conn, session_id)
    gone: list[tuple[int, int]] = []
    known: frozenset[Any] = frozenset()
    left: list[MessageShown] = []
    if row.parent_session_id is not None:
        before = sessions.get(conn, row.parent_session_id).plan
        gone, known = steps.left_view(before, here.plan), frozenset(before.summaries)
        found = steps.messages_within(conn, number, gone, LEFT_SHOWN)
        left = [_message(each, here.plan) for each in found]
    return {
        "conversation": number,
        "here": here,
        "row": row,
        "layers": here.prompt.parts() or [("prompt", here.prompt.text)],
        "tools": orjson.loads(here.tools or "[]"),
        "inputs": here.prompt_inputs or {},
        "summaries": here.plan.summaries,
        "known": known,
        "gone": gone,
        "left": left,
        "edits": here.plan.edits,
    }
