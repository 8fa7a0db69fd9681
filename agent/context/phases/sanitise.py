"""The last step before a request: what every provider refuses is fixed, whatever came before.

Runs before every call of a model; a list that is in order comes back itself.
"""

from collections.abc import Iterable, Sequence
from typing import cast

from agent.messages import ChatMessage, ToolCall, text_of, tool_message, user_message

NO_RESULT = "[No result: none is on record for this call]"
SYSTEM_NOTE = "[System note] "
OPENING = "[The conversation goes on.]"

_INSTRUCTING = frozenset({"system", "developer"})


def sanitise(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages that a provider takes: the very list that came in if nothing is wrong.

    - ORPHANED results are removed: without a call in the group before them, or the second one for
      the same call. A result that only a message of the user or the system parts from its group
      moves back to it.
    - DANGLING calls get a stub result behind the others of their group. Calls without an id get
      one, calls that repeat an id of their group are removed. Ids may come again in later groups.
    - A system message that is not first becomes a note of the user, with its text.
    - Messages of unknown roles are removed, since every provider refuses them.
    - Before a first message that is not the user's there is a synthetic one that is.

    Call arguments are not parsed: that would cost more than all else, and the models' wire code
    fixes them.

    Args:
        messages: In order, the system message first if there is one. Not changed, nor are they.
    """
    # Before nearly every request nothing is wrong, and no message is copied.
    if not _is_in_order(messages):
        return _opened_by_user(_grouped(_known(messages)))
    return messages if isinstance(messages, list) else list(messages)


def _is_in_order(messages: Sequence[ChatMessage]) -> bool:
    """Return whether a provider takes the messages as they are."""
    asked, waiting = False, set[str]()
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id", "")
            if call_id not in waiting:
                return False
            # A second result for the same call is one too many.
            waiting.remove(call_id)
        elif waiting:
            return False
        elif role == "assistant" and asked:
            calls = message.get("tool_calls") or ()
            waiting = {call_id for call in calls if (call_id := call.get("id"))}
            if len(waiting) < len(calls):
                return False
        elif role == "user":
            asked = True
        elif role != "system" or place:
            return False
    return not waiting


def _known(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages of known roles; a system message is the first one or a note."""
    known: list[ChatMessage] = []
    for message in messages:
        role = message.get("role")
        if role in _INSTRUCTING:
            first = cast("ChatMessage", {**message, "role": "system"})
            note = user_message(SYSTEM_NOTE + text_of(message), synthetic=True)
            known.append(note if known else first)
        elif role in {"user", "assistant", "tool"}:
            known.append(message)
    return known


def _grouped(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with each call's one result in the group of its message."""
    grouped: list[ChatMessage] = []
    waiting: dict[str, ToolCall] = {}
    behind: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "tool":
            if waiting.pop(message.get("tool_call_id", ""), None):
                grouped.append(message)
        elif message["role"] == "assistant":
            # Providers want results directly behind their calls: what came between goes after.
            grouped += [*_stubs(waiting), *behind]
            behind = []
            asking, waiting = _with_own_ids(message)
            grouped.append(asking)
        else:
            behind.append(message)
    return [*grouped, *_stubs(waiting), *behind]


def _with_own_ids(message: ChatMessage) -> tuple[ChatMessage, dict[str, ToolCall]]:
    """Return a message whose calls have ids of their own, and these calls by id."""
    calls = message.get("tool_calls") or []
    own: dict[str, ToolCall] = {}
    for place, call in enumerate(calls):
        call_id = call.get("id") or f"call_without_id_{place}"
        # Two calls with one id could not be told apart by their results.
        own.setdefault(call_id, cast("ToolCall", {**call, "id": call_id}))
    if list(own.values()) == calls:
        return message, own
    return cast("ChatMessage", {**message, "tool_calls": list(own.values())}), own


def _stubs(waiting: dict[str, ToolCall]) -> list[ChatMessage]:
    return [
        tool_message(call_id, call["function"]["name"], NO_RESULT)
        for call_id, call in waiting.items()
    ]


def _opened_by_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with one of the user before all but the system's."""
    first = 1 if messages and messages[0]["role"] == "system" else 0
    if len(messages) == first or messages[first]["role"] == "user":
        return messages
    opening = user_message(OPENING, synthetic=True)
    return [*messages[:first], opening, *messages[first:]]
