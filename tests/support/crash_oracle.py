"""The oracle of the crash tests: what must be true after any number of crashes.

`violations` is the specification. It looks only at what lasts: the platform's chats, the database
of the stopped gateway, and the log of effects and model calls that the children wrote.
"""

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from agent.messages import ChatMessage, decode, open_calls, text_of
from agent.turn.loop import OUTCOME_UNKNOWN
from gateway.findings.telling import WITH_AN_END
from gateway.pipeline import notices
from tests.support.crash_script import (
    PAYLOADS,
    RESENT,
    UNFINISHED,
    answer,
    asks,
    calls_for,
    ids_of,
    previous_answer,
)

_ANSWER = re.compile(r"m\d+(,m\d+)* [0-9a-f]{40}")
_LETTERS = (
    "SELECT DISTINCT 'message-dead' AS kind FROM turn WHERE state = 'dead'"
    " UNION SELECT DISTINCT 'answer-dead' FROM outbox WHERE state = 'dead'"
)
_ALERT = re.compile(r"(\(re-sent\) )?\W*(Trouble|Over):")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left when all gateways have ended.

    Attributes:
        sent: (chat, text) that people wrote and the platform was told were received, in order.
        shown: chat → final texts, in the order in which they stand in the chat.
        previews: Texts of previews that no answer took the place of.
        explained: How many of these an answer has named.
        rejected: Texts that the platform refused for good.
        resends: Whether the platform cannot tell a repeated send from a new one.
        events: What the children noted: model calls, beginnings and ends of effects, boots.
        database: The SQLite file, or the URL of a database on PostgreSQL.
        disturbed: Processes that may have worked on with a lease that somebody else had by then:
            until they noticed they could not know.
        late: (chat, text) of what these have shown.
        conflicts: Pairs of processes that asked the platform for updates at the same time, and of
            which neither was disturbed.
        troubles: Kinds of the alerts that the disturbances are to raise, beside dead letters.
    """

    sent: Sequence[tuple[str, str]]
    shown: dict[str, list[str]]
    previews: Sequence[str]
    rejected: Sequence[str]
    resends: bool
    events: Sequence[dict[str, Any]]
    database: Path | str
    explained: int = 0
    disturbed: frozenset[int] = frozenset()
    late: frozenset[tuple[str, str]] = frozenset()
    conflicts: Sequence[tuple[int, int]] = ()
    troubles: Sequence[str] = ()


def violations(evidence: Evidence) -> list[str]:
    """Return every broken promise in words; empty when all of them were kept."""
    with opened(evidence.database) as ask:
        books = Books(ask)
        return [
            *database_is_sound(evidence, books),
            *every_acknowledged_message_is_stored_once_in_order(evidence, books),
            *every_message_ends_in_a_final_state(books),
            *every_message_is_answered_by_one_turn(books),
            *the_transcript_is_an_unbroken_chain(books),
            *the_lineage_is_one_line(books),
            *answers_are_shown_once_in_order(evidence, books),
            *side_effects_happen_once_or_are_reported(evidence, books),
            *finished_turns_are_never_run_again(evidence),
            *one_process_asks_for_updates(evidence),
            *each_trouble_is_told_once(evidence, ask),
        ]


Row = dict[str, Any]
Ask = Callable[[str], list[Row]]
"""Returns what a query finds, each row by the names of its columns."""


@contextmanager
def opened(database: Path | str) -> Iterator[Ask]:
    """Open a database to be read: a file of SQLite's, or one on PostgreSQL by its URL."""
    if isinstance(database, str):
        with psycopg.connect(database, autocommit=True, row_factory=dict_row) as driver:
            yield lambda query: driver.execute(query.encode()).fetchall()
        return
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as raw:
        raw.row_factory = sqlite3.Row
        yield lambda query: [dict(row) for row in raw.execute(query)]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn as the transcript has it: what was asked, what came of it."""

    id: int
    chat: str
    state: str
    asked: str
    own: list[ChatMessage]
    said: str

    @property
    def results(self) -> list[ChatMessage]:
        """Its tool results."""
        return [message for message in self.own if message["role"] == "tool"]


class Books:
    """The rows of the database, by conversation."""

    def __init__(self, ask: Ask) -> None:
        self.rows = ask
        self.chats = {row["id"]: row["chat"] for row in self.rows("SELECT * FROM conversation")}
        asking = "SELECT * FROM turn WHERE id IN (SELECT turn_id FROM message) ORDER BY id"
        self.turns = [self._turn(row) for row in self.rows(asking)]

    def inbox(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield each chat and its inbox in order."""
        rows = self.rows("SELECT * FROM inbox ORDER BY conversation, seq")
        for conversation, chat in self.chats.items():
            yield chat, [row for row in rows if row["conversation"] == conversation]

    def messages(self, conversation: int) -> list[Row]:
        """Return the transcript of a conversation in order."""
        rows = self.rows("SELECT * FROM message ORDER BY conversation, seq")
        return [row for row in rows if row["conversation"] == conversation]

    def _turn(self, row: Row) -> TurnRecord:
        messages = [
            decode(each["body"])
            for each in self.messages(row["conversation"])
            if each["turn_id"] == row["id"]
        ]
        return TurnRecord(
            id=row["id"],
            chat=self.chats[row["conversation"]],
            state=row["state"],
            asked=text_of(messages[0]),
            own=messages[1:],
            said=previous_answer(messages),
        )


def database_is_sound(evidence: Evidence, books: Books) -> Iterator[str]:
    """The database finds nothing wrong, and no reference leads nowhere."""
    if isinstance(evidence.database, str):
        # Each reference is held by a constraint; what those hold back is not there to be found.
        for row in books.rows("SELECT conname FROM pg_constraint WHERE NOT convalidated"):
            yield f"a constraint that nobody holds: {row}"
        return
    for row in books.rows("PRAGMA integrity_check"):
        if row["integrity_check"] != "ok":
            yield f"integrity: {row}"
    for row in books.rows("PRAGMA foreign_key_check"):
        yield f"foreign key: {row}"


def every_acknowledged_message_is_stored_once_in_order(
    evidence: Evidence, books: Books
) -> Iterator[str]:
    """The inbox of a chat holds exactly what the platform was told was received, in order."""
    sent = defaultdict(list)
    for chat, text in evidence.sent:
        sent[chat].append(text)
    stored = {chat: [row["text"] for row in rows] for chat, rows in books.inbox()}
    for chat, texts in sent.items():
        if stored.get(chat, []) != texts:
            yield f"chat {chat}: acknowledged {texts}, stored {stored.get(chat, [])}"


def every_message_ends_in_a_final_state(books: Books) -> Iterator[str]:
    """Nothing is half done: inbox, turns, outbox and leases are at rest."""
    for row in books.rows("SELECT * FROM inbox WHERE state IN ('queued', 'taken')"):
        yield f"inbox: {row['text']} is {row['state']}"
    for row in books.rows("SELECT * FROM turn WHERE state = 'running'"):
        yield f"turn {row['id']} is still running"
    for row in books.rows("SELECT * FROM outbox WHERE state IN ('pending', 'sending', 'unknown')"):
        yield f"outbox: {row['payload']} is {row['state']}"
    for row in books.rows("SELECT * FROM conversation WHERE owner IS NOT NULL"):
        yield f"conversation {row['id']} still has an owner"


def is_asked_and_dead(row: Row) -> bool:
    """Whether a turn was given up after it had begun."""
    return row["state"] == "dead" and not asks(row["text"], "stuck")


def every_message_is_answered_by_one_turn(books: Books) -> Iterator[str]:
    """The turns of a chat, one after another, asked exactly what its inbox holds, once."""
    for chat, rows in books.inbox():
        admitted = [
            row["text"]
            for row in rows
            if row["kind"] == "message"
            and (row["state"] in {"done", "cancelled"} or is_asked_and_dead(row))
        ]
        turns = [turn for turn in books.turns if turn.chat == chat]
        asked = list(chain.from_iterable(turn.asked.splitlines() for turn in turns))
        if asked != admitted:
            yield f"chat {chat}: the inbox has {admitted}, the turns asked {asked}"


def the_transcript_is_an_unbroken_chain(books: Books) -> Iterator[str]:
    """Each answer continues the hash of the one before; groups are complete; seqs have no gap."""
    for conversation, chat in books.chats.items():
        rows = books.messages(conversation)
        if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)):
            yield f"chat {chat}: the transcript's seqs have gaps"
        if (turn_ids := [row["turn_id"] for row in rows]) != sorted(turn_ids):
            yield f"chat {chat}: turns are interleaved in the transcript"
        previous = ""
        for turn in (turn for turn in books.turns if turn.chat == chat):
            yield from _turn_is_complete(turn, previous)
            previous = turn.said or previous


def _turn_is_complete(turn: TurnRecord, previous: str) -> Iterator[str]:
    calls = [call for message in turn.own for call in message.get("tool_calls", [])]
    if open_calls(turn.own):
        yield f"turn {turn.asked!r}: a tool group is open"
    result_ids = sorted(result["tool_call_id"] for result in turn.results)
    if result_ids != sorted(call["id"] for call in calls):
        yield f"turn {turn.asked!r}: the results {result_ids} are not those of its calls"
    if turn.state != "done":
        return
    if calls != calls_for(turn.asked):
        yield f"turn {turn.asked!r}: called {[call['id'] for call in calls]}"
    if turn.said != answer(previous, turn.asked, turn.results):
        yield f"turn {turn.asked!r}: the chain is broken: {turn.said!r} after {previous!r}"
    roles = [message["role"] for message in turn.own]
    if roles != [*(["assistant"] if calls else []), *["tool"] * len(calls), "assistant"]:
        yield f"turn {turn.asked!r}: recorded as {roles}"


def the_lineage_is_one_line(books: Books) -> Iterator[str]:
    """One segment lives in each conversation; each compaction made one segment, once."""
    rows = books.rows("SELECT * FROM session ORDER BY id")
    active = {
        row["id"]: row["active_session_id"] for row in books.rows("SELECT * FROM conversation")
    }
    for conversation, chat in books.chats.items():
        live = [
            row["id"]
            for row in rows
            if row["conversation"] == conversation and row["ended_at"] is None
        ]
        if live != [active[conversation]]:
            yield f"chat {chat}: the segments {live} live, {active[conversation]} is active"
    made = [
        (row["parent_session_id"], row["id"])
        for row in rows
        if row["start_reason"] == "compression"
    ]
    noted = [
        (row["parent_session_id"], row["child_session_id"])
        for row in books.rows("SELECT * FROM compaction ORDER BY id")
    ]
    # Each by its own numbers: two processes may have got theirs in another order.
    if sorted(made) != sorted(noted):
        yield f"compactions {noted} made the segments {made}"
    ended = "FROM summary_candidate JOIN session ON id = session_id WHERE ended_at IS NOT NULL"
    for row in books.rows(f"SELECT session_id {ended}"):
        yield f"a summary is kept for segment {row['session_id']}, which has ended"


def answers_are_shown_once_in_order(evidence: Evidence, books: Books) -> Iterator[str]:
    """People see each answer once, in order; a second time only where it is marked as re-sent.

    What a process was sending when it fell asleep may come, without a mark, behind the copy with
    one that another process has sent in its stead: no platform of that kind can hold it back.
    """
    for text in evidence.previews:
        if not text.endswith(UNFINISHED):
            yield f"a preview looks like an answer: {text!r}"
    if len(evidence.previews) > evidence.explained:
        yield f"half answers that nobody explains: {evidence.previews}"
    for chat in sorted({*evidence.shown, *books.chats.values()}):
        done = [turn for turn in books.turns if turn.chat == chat and turn.state == "done"]
        dead = {row["payload"] for row in books.rows("SELECT * FROM outbox WHERE state = 'dead'")}
        wanted = [
            text
            for text in chain.from_iterable(turn.said.split(PAYLOADS) for turn in done)
            if text not in dead or text not in evidence.rejected
        ]
        shown = [text for text in evidence.shown.get(chat, []) if is_answer(text)]
        late = {text for place, text in evidence.late if place == chat}
        yield from _shown_once(chat, wanted, shown, late, resends=evidence.resends)


def _shown_once(
    chat: str, wanted: list[str], shown: list[str], late: set[str], *, resends: bool
) -> Iterator[str]:
    at = 0
    marked = {text.removeprefix(RESENT) for text in shown if text.startswith(RESENT)}
    for text in shown:
        bare = text.removeprefix(RESENT)
        if text != bare and not resends:
            yield f"chat {chat}: marked although the platform can tell: {text!r}"
        if at < len(wanted) and bare == wanted[at]:
            at += 1
        elif text == bare and text in marked & late & {*wanted[:at]}:
            marked.remove(text)
        elif text == bare or at == 0 or bare != wanted[at - 1]:
            yield f"chat {chat}: shown twice or out of order: {text!r}"
    for text in wanted[at:]:
        yield f"chat {chat}: never shown: {text!r}"


def is_answer(text: str) -> bool:
    """Whether a text is an answer of the scripted model, not a notice of the gateway."""
    bare = text.removeprefix(RESENT)
    return bool(_ANSWER.match(bare)) and notices.STOPPED not in bare


def side_effects_happen_once_or_are_reported(evidence: Evidence, books: Books) -> Iterator[str]:
    """No side effect happens twice; one of unknown outcome is told to the model; all are noted."""
    begun = Counter(event["call"] for event in evidence.events if event["what"] == "effect begins")
    ended = Counter(event["call"] for event in evidence.events if event["what"] == "effect ends")
    steps = {row["call_id"]: row for row in books.rows("SELECT * FROM step WHERE kind = 'tool'")}
    results = {
        result["tool_call_id"]: text_of(result) for turn in books.turns for result in turn.results
    }
    for call, times in begun.items():
        if call not in steps:
            yield f"{call}: an effect without an entry in the journal"
        elif steps[call]["effect"] == "side_effect" and times > 1:
            yield f"{call}: the side effect happened {times} times"
    for call, row in steps.items():
        result = results.get(call)
        if row["state"] != "done" and result is None:
            yield f"{call}: started and never closed"
        if row["effect"] == "side_effect" and result != OUTCOME_UNKNOWN and not ended[call]:
            yield f"{call}: reported as {result!r}, but its effect never ended"
        if row["effect"] != "side_effect" and result == OUTCOME_UNKNOWN:
            yield f"{call}: may be repeated, but was reported as unknown"


def finished_turns_are_never_run_again(evidence: Evidence) -> Iterator[str]:
    """After its commit, or its user's /stop, no process asks the model for a turn again."""
    finished: set[str] = set()
    for event in evidence.events:
        if event["what"] == "boot":
            finished |= set(event["finished"])
        elif (
            event["what"] == "model"
            and not finished.isdisjoint(ids_of(event["text"]))
            and event["pid"] not in evidence.disturbed
        ):
            yield f"{event['text']!r} had ended, and the model was asked again"


def one_process_asks_for_updates(evidence: Evidence) -> Iterator[str]:
    """The platform has met two at once only where one of them could not know of the other."""
    for pair in evidence.conflicts:
        yield f"the processes {pair} asked for updates at the same time"


def each_trouble_is_told_once(evidence: Evidence, ask: Ask) -> Iterator[str]:
    """What was disturbed has raised the right alerts and no other one: one row for each trouble.

    People read of each that it is there, and then that it is over, where that is told of its kind.
    Whatever was killed and restarted meanwhile.
    """
    rows = ask("SELECT * FROM alert ORDER BY id")
    letters = [row["kind"] for row in ask(_LETTERS)]
    raised, expected = sorted(row["kind"] for row in rows), sorted([*evidence.troubles, *letters])
    if raised != expected:
        yield f"alerts: raised {raised}, not {expected}"
    stages, words = defaultdict(list), defaultdict(list)
    telling = (
        "SELECT source_key, chat FROM outbox JOIN conversation AS c ON c.id = conversation"
        " WHERE source_key LIKE 'alert:%' ORDER BY conversation, outbox.seq"
    )
    for row in ask(telling):
        _, alert, stage, *_ = row["source_key"].split(":")
        stages[alert].append(stage)
        words[row["chat"]].append({"begin": "Trouble", "end": "Over"}.get(stage, stage))
    for row in rows:
        told, ends = stages.pop(str(row["id"]), []), row["kind"] in WITH_AN_END
        if told != ["begin", "end"][: 1 + ends]:
            yield f"alert {row['kind']}: told as {told}"
        if ends and row["over_at"] is None:
            yield f"alert {row['kind']}: never over"
    if stages:
        yield f"told of what is no trouble: {dict(stages)}"
    for chat in sorted({*words, *evidence.shown}):
        shown, late = _told_in(evidence.shown.get(chat, ())), evidence.late
        late_here = {*_told_in([text for place, text in late if place == chat])}
        yield from _shown_once(chat, words[chat], shown, late_here, resends=evidence.resends)


def _told_in(texts: Iterable[str]) -> list[str]:
    """Return "Trouble" or "Over" for each text that tells of an alert, with its mark if re-sent."""
    return ["".join(found.groups("")) for text in texts if (found := _ALERT.match(text))]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return what children noted, in order; a line that is being written is left for later."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def finished_ids(database: Path | str) -> list[str]:
    """Return the ids of all messages that a process finds answered or stopped at its boot."""
    if isinstance(database, Path) and not database.exists():
        return []
    with opened(database) as ask:
        rows = ask(
            "SELECT inbox.text FROM inbox JOIN conversation ON id = conversation"
            " WHERE state IN ('done', 'cancelled', 'dead') OR seq <= cancel_upto_seq"
        )
        return [row["text"].split()[0] for row in rows]
