"""Hermes' rows as transcripts: each message once, and what its newest compaction shows.

A compaction of Hermes writes head, summary and tail anew, in the same session or in a child. The
copies are recognised. What the newest compaction left out of its view is one transcript, which has
ended; what the model saw last, with the summary as a message, is another, which goes on. Pure
functions.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from agent.context.phases.sanitise import NO_RESULT
from agent.messages import ChatMessage, ToolCall, clean_text, storable, tool_message
from agent.models.arguments import canonical_arguments
from gateway.setup.hermes_home import HermesMessage

SUMMARY_MARKS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
"""What a summary of Hermes' begins with, in all versions; the first is a line of its own."""
SUMMARY_END = "--- END OF CONTEXT SUMMARY"
AROUND = ("[PRIOR CONTEXT", "[END OF PRIOR CONTEXT")
"""Lines around the text of a message that a summary was put into."""
MOST_HEAD = 12
"""As many messages of a head are looked for: Hermes keeps three, and the groups of their calls."""
IMAGE = "[image]"
ROLES = frozenset({"user", "assistant", "tool"})


class Told(NamedTuple):
    """A message, when it was said, and its row there; 0 for a summary or a result that was made."""

    message: ChatMessage
    at: float
    row: int


@dataclass(slots=True)
class Transcript:
    """What a lineage of Hermes' is here.

    Attributes:
        earlier: What its newest compaction left out of the view.
        told: What the model saw last.
        newest_row: Id of the newest row that was read; 0 for none.
        left_out: How many rows are not in it, by reason.
    """

    earlier: list[Told] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    newest_row: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def has_tools(self) -> bool:
        """Whether it holds results of tools, which nobody of the chat wrote."""
        return any(each.message["role"] == "tool" for each in (*self.earlier, *self.told))

    def behind(self, row: int) -> "Transcript":
        """Return what came after a row, in one: what is imported later."""
        newer = [each for each in (*self.earlier, *self.told) if each.row > row]
        return Transcript([], _whole(newer, {}), self.newest_row, self.left_out)


def transcript_of(rows: Iterable[HermesMessage]) -> Transcript:
    """Return a lineage's rows, in order, as a transcript."""
    found = Transcript()
    kept: list[HermesMessage] = []
    for row in rows:
        found.newest_row = max(found.newest_row, row.id)
        reason = "taken back" if row.taken_back else "no message" if row.role not in ROLES else ""
        if reason:
            found.left_out[reason] = found.left_out.get(reason, 0) + 1
        else:
            kept.append(row)
    earlier, own = _without_copies(kept)
    found.earlier = _whole(map(_told, earlier), found.left_out)
    found.told = _whole(map(_told, own), found.left_out)
    return found


def _without_copies(
    rows: Sequence[HermesMessage],
) -> tuple[list[HermesMessage], list[HermesMessage]]:
    """Return what the newest compaction left out, and what it shows with all that came later."""
    own: list[HermesMessage] = []
    shown: list[HermesMessage] = []
    head = tail = at = 0
    while at < len(rows):
        row = rows[at]
        summary, around = summary_in(row)
        if summary is None:
            own.append(row)
            at += 1
            continue
        head = _head_copies(own)
        del own[len(own) - head :]
        behind = [*([replace(row, content=around)] if around is not None else []), *rows[at + 1 :]]
        copies = _tail_copies(own[head:], behind)
        tail = len(own) - copies
        shown = [replace(row, id=0, content=f"{SUMMARY_MARKS[1]} {summary}", tool_calls=())]
        # A summary that was put into a message of the tail is that message's copy as well.
        at += 1 + max(0, copies - (around is not None))
    return own[head:tail], [*own[:head], *shown, *own[tail:]]


def summary_in(row: HermesMessage) -> tuple[str | None, str | None]:
    """Return a summary of Hermes' in a message, and the text that it was put into, if any.

    None where the message holds none.
    """
    text = _text(row.content) if row.role in {"user", "assistant"} else ""
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


def _head_copies(own: Sequence[HermesMessage]) -> int:
    """Return how many messages at the end are those at the beginning, written again."""
    for count in range(min(MOST_HEAD, len(own) // 2), 0, -1):
        pairs = zip(own[:count], own[len(own) - count :], strict=True)
        if all(_is_same(one, two) for one, two in pairs):
            return count
    return 0


def _tail_copies(own: Sequence[HermesMessage], behind: Sequence[HermesMessage]) -> int:
    """Return how many of the rows behind a summary are the messages at the end, written again."""
    for start in range(len(own)):
        count = len(own) - start
        if count <= len(behind) and all(map(_is_same, own[start:], behind[:count])):
            return count
    return 0


def _is_same(one: HermesMessage, two: HermesMessage) -> bool:
    """Whether two rows are the same message; a copy may be shortened, and have another time."""
    if one.role != two.role:
        return False
    if one.role == "tool":
        return bool(one.tool_call_id) and one.tool_call_id == two.tool_call_id
    if one.tool_calls or two.tool_calls:
        return _call_ids(one) == _call_ids(two)
    return _words(one) == _words(two)


def _call_ids(row: HermesMessage) -> list[str]:
    return [str(call.get("id") or call.get("call_id")) for call in row.tool_calls]


def _words(row: HermesMessage) -> str:
    return _text(row.content, str.strip).strip()


def _text(content: Any, cleaned: Callable[[str], str] = storable) -> str:
    """Return the text of a content; a picture is a label, since its bytes are not taken over."""
    if isinstance(content, str):
        return cleaned(content)
    if not isinstance(content, list):
        return "" if content is None else cleaned(str(content))
    return "\n".join(cleaned(_part(part)) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else IMAGE


def _told(row: HermesMessage) -> Told:
    return Told(_chat_message(row), row.at, row.id)


def _chat_message(row: HermesMessage) -> ChatMessage:
    if row.role == "tool":
        message = tool_message(row.tool_call_id or "", row.tool_name or "tool", _text(row.content))
    elif row.role == "user":
        message = ChatMessage(role="user", content=_text(row.content, clean_text))
    else:
        message = _answer(row)
    # What Hermes knew of it: never sent to a model, since no provider has this name.
    known: dict[str, Any] = {"id": row.id, "session": row.session}
    known |= {"message_id": row.platform_id} if row.platform_id else {}
    known |= {"reasoning_details": row.details} if row.details else {}
    known |= {"finish_reason": row.finish_reason} if row.finish_reason else {}
    message["opaque"] = {"hermes": known}
    return message


def _answer(row: HermesMessage) -> ChatMessage:
    text = _text(row.content)
    message = ChatMessage(role="assistant", content=text or None)
    if row.tool_calls:
        message["tool_calls"] = [_call(call, row.id, n) for n, call in enumerate(row.tool_calls)]
    elif not text:
        message["content"] = ""
    if row.reasoning:
        message["reasoning"] = storable(row.reasoning)
    return message


def _call(call: Mapping[str, Any], row: int, place: int) -> ToolCall:
    function = call.get("function")
    told: Mapping[str, Any] = function if isinstance(function, dict) else {}
    arguments = told.get("arguments") or "{}"
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return cast(
        "ToolCall",
        {
            "id": str(call.get("id") or call.get("call_id") or f"hermes_{row}_{place}"),
            "type": "function",
            "function": {
                "name": storable(str(told.get("name") or "tool")),
                "arguments": canonical_arguments(storable(written)),
            },
        },
    )


def _whole(told: Iterable[Told], left_out: dict[str, int]) -> list[Told]:
    """Return the messages with one result behind each call; `left_out` counts other results."""
    whole: list[Told] = []
    waiting: dict[str, ToolCall] = {}

    def settle() -> None:
        for each, call in waiting.items():
            result = tool_message(each, call["function"]["name"], NO_RESULT)
            whole.append(Told(result, whole[-1].at, 0))
        waiting.clear()

    for each in told:
        message = each.message
        if message["role"] != "tool":
            settle()
            waiting.update({call["id"]: call for call in message.get("tool_calls", ())})
            whole.append(each)
        elif waiting.pop(message["tool_call_id"], None) is not None:
            whole.append(each)
        else:
            left_out["result without a call"] = left_out.get("result without a call", 0) + 1
    settle()
    return whole
