"""The messages of a request, in the form that a server takes: pure functions of messages as wired.

A message goes on looking as it did once it stands in a request, whatever comes behind it; only the
last one may grow at its end. So a request begins with what the one before it was, and a prompt
cache that goes by the text finds it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2s
from typing import Any

from agent.models.openai.mode import Quirk, Quirks

Wired = dict[str, Any]

NOT_ANSWERED = "[No answer was given to this.]"
"""Stands where a question follows the results of tools, as after `/stop`."""
BEFORE = "[The conversation begins with an answer.]"
"""Stands in front of what the assistant is shown to have said first."""
SIGNED_BY_NOBODY = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Gemini takes for the signature of a call that another model made.

Source: https://ai.google.dev/gemini-api/docs/thought-signatures
"""
SHORT_ID_CHARS = 9
_GAP = "\n\n"
_SHORT_ID = re.compile(rf"[a-zA-Z0-9]{{{SHORT_ID_CHARS}}}")


def shaped(messages: list[Wired], quirks: Quirks, *, join: bool) -> list[Wired]:
    """Return the messages in the form that a server takes; the same list where that is so already.

    Args:
        messages: As they are wired for a server that takes everything; not changed.
        join: Whether neighbours of one role become one message: the templates of many models take
            no two questions in a row, and lose one of them without a word.
    """
    for quirk, form in _FORMS:
        if quirk in quirks:
            messages = form(messages)
    return joined(messages) if join or "strict_roles" in quirks else messages


def joined(messages: list[Wired]) -> list[Wired]:
    """Return the messages with neighbours of one role made one; the same list without any."""
    if not any(map(_are_neighbours, messages, messages[1:])):
        return messages
    found: list[Wired] = []
    for message in messages:
        if found and _are_neighbours(found[-1], message):
            found[-1] = _together(found[-1], message)
        else:
            found.append(message)
    return found


def _are_neighbours(one: Wired, other: Wired) -> bool:
    """Whether two messages can be one; the results of tools are apart, each with its id."""
    role = one["role"]
    return role == other["role"] and role != "tool" and "tool_calls" not in one


def _together(one: Wired, other: Wired) -> Wired:
    """Return one message with all that two of one role hold."""
    return {**one, **other, "content": _both(one.get("content"), other.get("content"))}


def _both(one: Any, other: Any) -> Any:
    """Return two contents as one: a text where both are, else parts.

    The texts of parts that follow one another are what the one text would be.
    """
    if not one or not other:
        return one or other
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}{_GAP}{other}"
    first, *more = _parts(other)
    if first["type"] == "text":
        first = {**first, "text": f"{_GAP}{first['text']}"}
    return [*_parts(one), first, *more]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def without_system(messages: list[Wired]) -> list[Wired]:
    """Return the messages with the text of the system prompt in front of the first question."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *others = messages
    told = {**system, "role": "user"}
    if others and others[0]["role"] == "user":
        return [_together(told, others[0]), *others[1:]]
    return [told, *others]


def by_turns(messages: list[Wired]) -> list[Wired]:
    """Return the messages with user and assistant by turns, the user first.

    Where a question follows the results of tools a line stands for the answer that was not given.
    """
    found: list[Wired] = []
    for message in joined(messages):
        before = found[-1]["role"] if found else "system"
        if before == "tool" and message["role"] == "user":
            found.append({"role": "assistant", "content": NOT_ANSWERED})
        elif before == "system" and message["role"] in {"assistant", "tool"}:
            found.append({"role": "user", "content": BEFORE})
        found.append(message)
    return found


def with_single_calls(messages: list[Wired]) -> list[Wired]:
    """Return the messages with each call in a message of its own, its result behind it."""
    found: list[Wired] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            found.append(message)
            continue
        results: dict[str, Wired] = {}
        while place < len(messages) and messages[place]["role"] == "tool":
            results[messages[place]["tool_call_id"]] = messages[place]
            place += 1
        found += _one_by_one(message, results)
    return found


def _one_by_one(message: Wired, results: dict[str, Wired]) -> Iterator[Wired]:
    for number, call in enumerate(message["tool_calls"]):
        # What was said belongs to all of the calls: it comes once.
        said = {} if number == 0 else {"content": None}
        yield {**message, **said, "tool_calls": [call]}
        if (result := results.get(call["id"])) is not None:
            yield result


def without_tools(messages: list[Wired]) -> list[Wired]:
    """Return the messages with calls and their results as text: who called what, what it gave."""
    found: list[Wired] = []
    names: dict[str, str] = {}
    for message in messages:
        if calls := message.get("tool_calls"):
            names = {call["id"]: call["function"]["name"] for call in calls}
            written = (call["function"] for call in calls)
            lines = [f"[called {each['name']}({each['arguments']})]" for each in written]
            said = _both(message.get("content"), "\n".join(lines))
            found.append({"role": "assistant", "content": said})
        elif message["role"] == "tool":
            name = names.get(message["tool_call_id"], "a tool")
            told = _both(f"[result of {name}]", message["content"])
            found.append({"role": "user", "content": told})
        else:
            found.append(message)
    # Several results are several messages of the user in a row.
    return joined(found)


def short_id(call_id: str) -> str:
    """Return the id if it is a short one, else one that follows from it."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2s(call_id.encode()).hexdigest()[:SHORT_ID_CHARS]


def with_short_ids(message: Wired) -> Wired:
    """Return a message with ids of nine letters and digits; what was apart stays apart."""
    if message["role"] == "tool":
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": short_id(call["id"])} for call in calls]}
    return message


def with_signature(message: Wired) -> Wired:
    """Return a message with a signature on its first call, if none of its calls has one."""
    calls = message.get("tool_calls")
    if not calls or any("extra_content" in call for call in calls):
        return message
    # Of parallel calls Gemini signs the first one alone.
    first, *others = calls
    signed = {**first, "extra_content": SIGNED_BY_NOBODY}
    return {**message, "tool_calls": [signed, *others]}


def without_null(message: Wired) -> Wired:
    """Return a message with an empty text where there is none."""
    return {**message, "content": ""} if message.get("content") is None else message


def with_reasoning(message: Wired, text: str) -> Wired:
    """Return an answer that has no reasoning with this one; another message as it is."""
    if message["role"] != "assistant" or message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": text}


def _each(form: Callable[[Wired], Wired]) -> "_Form":
    return lambda messages: [form(message) for message in messages]


_Form = Callable[[list[Wired]], list[Wired]]
# In order: what makes messages of one role comes before what wants the roles by turns.
_FORMS: Iterable[tuple[Quirk, _Form]] = (
    ("no_tools", without_tools),
    ("one_call", with_single_calls),
    ("signed_calls", _each(with_signature)),
    ("short_ids", _each(with_short_ids)),
    ("no_system", without_system),
    ("strict_roles", by_turns),
    ("no_null", _each(without_null)),
    ("reasoned", _each(lambda message: with_reasoning(message, ""))),
    ("blank_reasoning", _each(lambda message: with_reasoning(message, "…"))),
)
