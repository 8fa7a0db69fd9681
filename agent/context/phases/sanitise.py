"""The last step before a request: what every provider refuses is fixed, whatever came before.

Runs before every call of a model, so a list that is in order costs a look at what is new in it, and
comes back itself.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from agent.messages import ChatMessage, ToolCall, text_of, tool_message, user_message
from agent.view.folds import Fold, Folds

NO_RESULT = "[No result: none is on record for this call]"
SYSTEM_NOTE = "[System note] "
OPENING = "[The conversation goes on.]"

_INSTRUCTING = frozenset({"system", "developer"})


def sanitise(messages: Sequence[ChatMessage], folds: Folds | None = None) -> list[ChatMessage]:
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
        folds: What is known of them; None for nothing.
    """
    # Before nearly every request nothing is wrong, and no message is copied.
    order = _ORDER.of(messages, folds)
    if not order.kept or order.waiting:
        return _opened_by_user(_grouped(_known(messages)))
    return messages if isinstance(messages, list) else list(messages)


class _Order(NamedTuple):
    """What has been seen of messages.

    Attributes:
        kept: Whether nothing of them has to be fixed.
        asked: Whether one of the user was among them.
        waiting: Calls that have no result yet.
    """

    kept: bool = True
    asked: bool = False
    waiting: frozenset[str] = frozenset()


def _with_newer(order: _Order, messages: Sequence[ChatMessage], first: int) -> _Order:
    """Return the order of messages, `order` being that of those before a place."""
    kept, asked, before = order
    waiting = set(before)
    for place in range(first, len(messages)) if kept else ():
        message = messages[place]
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id", "")
            if call_id not in waiting:
                return _MENDED
            # A second result for the same call is one too many.
            waiting.remove(call_id)
        elif waiting:
            return _MENDED
        elif role == "assistant" and asked:
            calls = message.get("tool_calls")
            if calls and len(waiting := _ids(calls)) < len(calls):
                return _MENDED
        elif role == "user":
            asked = True
        elif role != "system" or place:
            return _MENDED
    return _Order(kept, asked, frozenset(waiting))


_MENDED = _Order(kept=False)
_ORDER = Fold("order", _Order(), _with_newer)


def _ids(calls: Iterable[ToolCall]) -> set[str]:
    return {call_id for call in calls if (call_id := call.get("id"))}


def _known(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages of known roles; a system message is the first one or a note."""
    known: list[ChatMessage] = []
    for message in messages:
        role = message.get("role")
        if role in _INSTRUCTING:
            first = cast("ChatMessage", {**message, "role": "system"})
            known.append(_note(message) if known else first)
        elif role in {"user", "assistant", "tool"}:
            known.append(message)
    return known


def _note(message: ChatMessage) -> ChatMessage:
    return user_message(SYSTEM_NOTE + text_of(message), synthetic=True)


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
