"""Conversations in Hermes' database: its sessions as lineages, and the messages of each, once.

A compaction of Hermes writes head, summary and tail again, in the same session or in a child. The
copies are recognised. What the newest compaction left out of its view is one transcript, which has
ended; what the model saw last, with the summary as a message, is another, which goes on. Source of
the layout: hermes-agent 0.19.0 (`hermes_state.py`); older databases lack columns, newer have more.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from agent.context.phases.sanitise import NO_RESULT
from agent.messages import ChatMessage, ToolCall, clean_text, storable, text_of, tool_message
from agent.models.arguments import canonical_arguments
from gateway.errors import GatewayError
from gateway.storage.conversation.imported import ImportedMessage

JSON_CONTENT = "\x00json:"
"""Before a content that is a list of parts."""
SUMMARY_MARKS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
"""What a summary of Hermes' begins with, in all versions; the first is a line of its own."""
SUMMARY_END = "--- END OF CONTEXT SUMMARY"
AROUND = ("[PRIOR CONTEXT", "[END OF PRIOR CONTEXT")
"""Lines around the text of a message that a summary was put into."""
MOST_HEAD = 12
"""As many messages of a head are looked for: Hermes keeps three, and the groups of their calls."""
IMAGE = "[image]"
_OF_AGENTS = frozenset({"tool", "subagent", "delegate"})
_KEY_PARTS = 5
_BEYOND = 2**53


@dataclass(frozen=True, slots=True)
class HermesSession:
    """A row of `sessions`; times are seconds since the epoch."""

    id: str
    source: str
    parent: str | None
    ended_at: float | None
    is_compacted: bool
    is_branch: bool
    is_delegate: bool
    title: str | None
    user: str | None
    chat: str | None
    chat_type: str | None
    thread: str | None
    parent_chat: str | None


class Transcript(NamedTuple):
    """A lineage of Hermes'.

    Attributes:
        earlier: What its newest compaction left out of the view.
        told: What the model saw last.
        newest_row: Id of the newest row that was read; 0 for none.
    """

    earlier: list[ImportedMessage]
    told: list[ImportedMessage]
    newest_row: int

    @property
    def has_tools(self) -> bool:
        """Whether it holds results of tools, which nobody of the chat wrote."""
        return any(each.message["role"] == "tool" for each in (*self.earlier, *self.told))

    def behind(self, row: int) -> "Transcript":
        """Return what came after a row, in one: what is imported later."""
        newer = [each for each in (*self.earlier, *self.told) if each.row > row]
        return Transcript([], _whole(newer), self.newest_row)


def lineages(conn: sqlite3.Connection) -> list[list[HermesSession]]:
    """Return the sessions in lineages: each with what its compactions made of it, oldest first.

    Of several children of a compaction the one goes on that was compacted itself or has not ended,
    the newest of these: a later import must not find that another one does. The others are lineages
    of their own, as branches are.
    """
    rows = conn.execute("SELECT * FROM sessions ORDER BY started_at, id")
    sessions = {each.id: each for each in (_session(dict(row)) for row in rows)}
    goes_on: dict[str, HermesSession] = {}
    for session in sessions.values():
        parent = sessions.get(session.parent or "")
        if parent is None or not parent.is_compacted or session.is_branch or session.is_delegate:
            continue
        known = goes_on.get(parent.id)
        if known is None or _rank(session) >= _rank(known):
            goes_on[parent.id] = session
    inner = {session.id for session in goes_on.values()}
    return [list(_chain(each, goes_on)) for each in sessions.values() if each.id not in inner]


def _rank(session: HermesSession) -> int:
    return 2 if session.is_compacted else 1 if session.ended_at is None else 0


def _chain(
    session: HermesSession | None, goes_on: Mapping[str, HermesSession]
) -> Iterator[HermesSession]:
    while session is not None:
        yield session
        session = goes_on.get(session.id)


def _session(row: Mapping[str, Any]) -> HermesSession:
    origin, config = (_object(row.get(name)) for name in ("origin_json", "model_config"))
    # Older versions have the chat in a key alone: `agent:main:telegram:dm:123`.
    key = (_id(row.get("session_key")) or "").split(":")
    keyed = dict(zip(("chat_type", "chat_id"), key[3:5], strict=False))
    keyed = keyed if len(key) >= _KEY_PARTS else {}

    def named(column: str) -> str | None:
        return _id(row.get(column)) or _id(origin.get(column)) or keyed.get(column)

    return HermesSession(
        id=str(row["id"]),
        source=str(row["source"]),
        parent=named("parent_session_id"),
        ended_at=None if row.get("ended_at") is None else number_of(row["ended_at"]),
        is_compacted=row.get("end_reason") == "compression",
        is_branch=config.get("_branched_from") is not None,
        is_delegate=config.get("_delegate_from") is not None or row["source"] in _OF_AGENTS,
        title=named("title"),
        user=named("user_id"),
        chat=named("chat_id"),
        chat_type=named("chat_type"),
        thread=named("thread_id"),
        parent_chat=named("parent_chat_id"),
    )


def _id(value: Any) -> str | None:
    return storable(str(value)) if isinstance(value, str | int) and value != "" else None


def number_of(value: Any) -> float:
    """Return a number of the database.

    Raises:
        GatewayError: It is none, or beyond all times and ids that Hermes writes.
    """
    if isinstance(value, int | float) and 0 <= value < _BEYOND:
        return value
    raise GatewayError("state.db has a value that Hermes does not write where a number belongs")


def _object(text: Any) -> dict[str, Any]:
    found = _json(text)
    return found if isinstance(found, dict) else {}


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


def newest_row(conn: sqlite3.Connection, chain: Sequence[HermesSession]) -> int:
    """Return the id of a lineage's newest message; 0 for none."""
    query = "SELECT coalesce(max(id), 0) FROM messages WHERE session_id = ?"
    newest = (conn.execute(query, (each.id,)).fetchone()[0] for each in chain)
    return int(max(map(number_of, newest)))


def transcript_of(conn: sqlite3.Connection, chain: Sequence[HermesSession]) -> Transcript:
    """Return what was said in a lineage; what a person took back is left out."""
    kept: list[ImportedMessage] = []
    for session in chain:
        # By id: their times may go back.
        query = "SELECT * FROM messages WHERE session_id = ? ORDER BY id"
        for row in map(dict, conn.execute(query, (session.id,))):
            # What a compaction has left behind is not active either.
            is_meant = row.get("active") != 0 or row.get("compacted")
            if is_meant and row["role"] in _MESSAGES:
                number, at = int(number_of(row["id"])), number_of(row["timestamp"])
                kept.append(ImportedMessage(_MESSAGES[row["role"]](row), at, number))
    earlier, told = _without_copies(kept)
    return Transcript(_whole(earlier), _whole(told), newest_row(conn, chain))


def _without_copies(
    said: Sequence[ImportedMessage],
) -> tuple[list[ImportedMessage], list[ImportedMessage]]:
    """Return what the newest compaction left out, and what it shows with all that came later."""
    own: list[ImportedMessage] = []
    shown: list[ImportedMessage] = []
    head = tail = at = 0
    while at < len(said):
        each = said[at]
        summary, around = summary_in(each.message)
        if summary is None:
            own.append(each)
            at += 1
            continue
        head = _head_copies(own)
        del own[len(own) - head :]
        merged = [] if around is None else [_around(each, around)]
        copies = _tail_copies(own[head:], [*merged, *said[at + 1 :]])
        tail = len(own) - copies
        told = ChatMessage(role=each.message["role"], content=f"{SUMMARY_MARKS[1]} {summary}")
        shown = [ImportedMessage(told, each.at)]
        # A summary that was put into a message of the tail is that message's copy as well.
        at += 1 + max(0, copies - len(merged))
    return own[head:tail], [*own[:head], *shown, *own[tail:]]


def _around(each: ImportedMessage, text: str) -> ImportedMessage:
    return each._replace(message=cast("ChatMessage", {**each.message, "content": text}))


def summary_in(message: ChatMessage) -> tuple[str | None, str | None]:
    """Return a summary of Hermes' in a message, and the text that it was put into, if any.

    None where the message holds none.
    """
    text = "" if message["role"] == "tool" else text_of(message)
    place = min((at for mark in SUMMARY_MARKS if (at := text.find(mark)) >= 0), default=-1)
    # What only quotes one has other words in front.
    if place < 0 or (place and not text.startswith(AROUND)):
        return None, None
    legacy = text.startswith(SUMMARY_MARKS[1], place)
    _, _, body = text[place:].partition(SUMMARY_MARKS[1] if legacy else "\n")
    told = body.partition(SUMMARY_END)[0].strip() or "(an empty summary)"
    if place == 0:
        return told, None
    lines = text[:place].splitlines()
    return told, "\n".join(line for line in lines if not line.startswith(AROUND)).strip()


def _head_copies(own: Sequence[ImportedMessage]) -> int:
    """Return how many messages at the end are those at the beginning, written again."""
    for count in range(min(MOST_HEAD, len(own) // 2), 0, -1):
        if all(map(_is_same, own[:count], own[len(own) - count :])):
            return count
    return 0


def _tail_copies(own: Sequence[ImportedMessage], behind: Sequence[ImportedMessage]) -> int:
    """Return how many of the rows behind a summary are the messages at the end, written again."""
    for start in range(max(0, len(own) - len(behind)), len(own)):
        if all(map(_is_same, own[start:], behind)):
            return len(own) - start
    return 0


def _is_same(one: ImportedMessage, two: ImportedMessage) -> bool:
    """Whether two rows are the same message; a copy may be shortened, and have another time."""
    return _identity(one.message) == _identity(two.message)


def _identity(message: ChatMessage) -> tuple[str, Any]:
    match message:
        case {"role": "tool", "tool_call_id": call} if call:
            return "tool", call
        case {"tool_calls": calls}:
            return "calls", [call["id"] for call in calls]
        case _:
            return message["role"], text_of(message).split()


def _asked(row: Mapping[str, Any]) -> ChatMessage:
    return ChatMessage(role="user", content=clean_text(_text(row["content"])))


def _result(row: Mapping[str, Any]) -> ChatMessage:
    call, name = _id(row.get("tool_call_id")), _id(row.get("tool_name"))
    return tool_message(call or "", name or "tool", _text(row["content"]))


def _answer(row: Mapping[str, Any]) -> ChatMessage:
    message = ChatMessage(role="assistant", content=_text(row["content"]))
    told = _json(row.get("tool_calls"))
    calls = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    if calls:
        message["tool_calls"] = [
            _call(each, f"hermes_{row['id']}_{n}") for n, each in enumerate(calls)
        ]
        message["content"] = message["content"] or None
    if thought := _id(row.get("reasoning_content")) or _id(row.get("reasoning")):
        message["reasoning"] = thought
    return message


_MESSAGES: Mapping[str, Callable[[Mapping[str, Any]], ChatMessage]] = {
    "user": _asked,
    "assistant": _answer,
    "tool": _result,
}


def _text(content: Any) -> str:
    """Return the text of a content; a picture is a label, since its bytes are not taken over."""
    if isinstance(content, str) and content.startswith(JSON_CONTENT):
        content = _json(content.removeprefix(JSON_CONTENT))
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    return "" if content is None else storable(str(content))


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else IMAGE


def _call(call: Mapping[str, Any], otherwise: str) -> ToolCall:
    function = call.get("function")
    told: Mapping[str, Any] = function if isinstance(function, dict) else {}
    arguments = told.get("arguments") or "{}"
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": storable(str(call.get("id") or call.get("call_id") or otherwise)),
        "type": "function",
        "function": {
            "name": storable(str(told.get("name") or "tool")),
            "arguments": canonical_arguments(storable(written)),
        },
    }


def _whole(told: Iterable[ImportedMessage]) -> list[ImportedMessage]:
    """Return the messages with one result behind each call, and none without a call."""
    whole: list[ImportedMessage] = []
    waiting: dict[str, ToolCall] = {}

    def settle() -> None:
        for each, call in waiting.items():
            result = tool_message(each, call["function"]["name"], NO_RESULT)
            whole.append(ImportedMessage(result, whole[-1].at))
        waiting.clear()

    for each in told:
        message = each.message
        if message["role"] != "tool":
            settle()
            waiting.update({call["id"]: call for call in message.get("tool_calls", ())})
            whole.append(each)
        elif waiting.pop(message["tool_call_id"], None) is not None:
            whole.append(each)
    settle()
    return whole
