"""The embedded demo model: no key, no network, identical answers to identical requests.

A table of rules maps the newest user text to an answer.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from agent.messages import ChatMessage, ToolCall, assistant_message, text_of
from agent.models.base import Completion, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import FREE, ModelFacts
from agent.prompt_caching import CacheLayout
from agent.settings import ModelSettings

DEFAULT_CONTEXT_TOKENS = 200_000
NOTICE = (
    "\n\n---\n*I am Parley's built-in offline demo model, not a real language model. For real "
    "answers run `parley setup`, or restart Parley with `ANTHROPIC_API_KEY` or `OPENAI_API_KEY` "
    "set.*"
)
COUNT_LIMIT = 500
READ_CHARS = 2000
"""Most characters that the rules read; limits the running time of their patterns."""

Reply = str | tuple[str, dict[str, Any]]
"""A text, or the name and arguments of a tool to call."""


class DemoTalk(NamedTuple):
    """The conversation as the rules see it.

    Attributes:
        asked: The unanswered user text, multiple messages joined by newlines; at most READ_CHARS.
        first: The first user text of the conversation; "" if it is still unanswered.
        is_new: Whether the model has not produced any text yet.
    """

    asked: str
    first: str
    is_new: bool
    tools: set[str]


class OfflineModel:
    """Streams word by word, calls offered tools, and introduces itself in its first answer."""

    provider = "offline"
    name = "parley-offline"
    label = name
    cache_layout: CacheLayout | None = None
    facts = ModelFacts(name, prices=FREE)

    def __init__(self, settings: ModelSettings, *, word_delay_s: float = 0.02) -> None:
        """Read the window size from the settings; pause `word_delay_s` after each word."""
        self.context_length = settings.context_length or DEFAULT_CONTEXT_TOKENS
        self._word_delay_s = word_delay_s

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Answer, or call tools if offered and allowed. Never fails."""
        reply = reply_to(request)
        if isinstance(reply, str):
            for word in re.findall(r"\S+\s*|\s+", reply):
                sink.push(word)
                await asyncio.sleep(self._word_delay_s)
            answer = assistant_message(reply)
            return Completion(answer, "stop", estimate_usage(request, answer), self.name)
        answer = ChatMessage(role="assistant", content=None, tool_calls=[_call(request, *reply)])
        return Completion(answer, "tool_calls", estimate_usage(request, answer), self.name)

    async def look_up(self) -> int | None:
        """Return None: the demo model has no provider."""
        return None

    async def close(self) -> None:
        """Do nothing."""


def _call(request: ModelRequest, name: str, arguments: dict[str, Any]) -> ToolCall:
    # Ids are unique within a view.
    seed = f"{request.conversation}:{len(request.messages)}"
    return ToolCall(
        id=f"call_{hashlib.sha256(seed.encode()).hexdigest()[:16]}",
        type="function",
        function={"name": name, "arguments": orjson.dumps(arguments).decode()},
    )


def reply_to(request: ModelRequest) -> Reply:
    """Return the answer to a request, or the tool to call first.

    The first answer of a conversation ends with the notice that this is the demo model.
    """
    talk = _read(request)
    reply = _reply(talk, request.messages[-1])
    return reply + NOTICE if talk.is_new and isinstance(reply, str) else reply


def _reply(talk: DemoTalk, newest: ChatMessage) -> Reply:
    if newest["role"] == "tool":
        return f"The tool `{newest['name']}` answered:\n\n{_quote(text_of(newest))}"
    for pattern, answer in _RULES:
        if match := pattern.search(talk.asked):
            return answer(match, talk)
    return (
        "I am an offline demo model and have no real answer to that. You wrote:\n\n"
        f"{_quote(talk.asked, 300)}\n\nWhat I can do:\n\n{ABILITIES}"
    )


def _read(request: ModelRequest) -> DemoTalk:
    view = [message for message in request.messages if message["role"] != "system"]
    real = [n for n, it in enumerate(view) if it["role"] == "user" and not it.get("synthetic")]
    end = real[-1] + 1 if real else 0
    start = end
    # Consecutive messages form one question: none of them was answered.
    while start - 1 in real:
        start -= 1
    return DemoTalk(
        asked="\n".join(text_of(message) for message in view[start:end])[:READ_CHARS],
        first=text_of(view[real[0]]) if real and real[0] < start else "",
        is_new=not any(it["role"] == "assistant" and text_of(it) for it in view),
        tools={tool.name for tool in request.tools if request.allow_tools},
    )


def _quote(text: str, limit: int = READ_CHARS) -> str:
    shown = text if len(text) <= limit else f"{text[:limit]}…"
    return "\n".join(f"> {line}" for line in shown.splitlines())


def _first(_match: re.Match[str], talk: DemoTalk) -> str:
    if not talk.first:
        return f"This is your first message:\n\n{_quote(talk.asked, 300)}"
    return f"Your first message was:\n\n{_quote(talk.first)}"


def _time(_match: re.Match[str], talk: DemoTalk) -> Reply:
    if "current_time" not in talk.tools:
        return "I have no clock: the tool `current_time` is not available to me here."
    zone = re.search(r"\bin ([A-Z][\w/+-]*)", talk.asked)
    return "current_time", {"timezone": zone[1]} if zone else {}


def _arithmetic(match: re.Match[str], talk: DemoTalk) -> Reply:
    if "calculate" not in talk.tools:
        return "I cannot work that out: the tool `calculate` is not available to me here."
    return "calculate", {"expression": match[1].strip()}


def _count(match: re.Match[str], _talk: DemoTalk) -> str:
    # Python refuses integers of more than 4,300 digits, and nine digits already exceed the limit.
    numbers = [str(number) for number in range(1, min(int(match[1][:9]), COUNT_LIMIT) + 1)]
    lines = [", ".join(numbers[start : start + 10]) for start in range(0, len(numbers), 10)]
    return ",\n".join(lines) or "There is nothing to count."


ABILITIES = (
    "- tell the time: *What time is it in Asia/Tokyo?*\n"
    "- calculate: *What is 12 * 7?*\n"
    "- remember this conversation: *What was my first message?*\n"
    "- stream a long answer: *Count to 500*\n"
    "- show formatting: *Show me a table*"
)
SAMPLE = """\
## Formatting

**Bold**, *italic*, `code` and a [link](https://example.org).

| planet | moons | day in hours |
|---|---:|---:|
| Earth | 1 | 24 |
| Mars | 2 | 24.6 |

```python
print("Hello!")
```"""
# The first matching rule answers: narrow rules come before broad ones.
_TABLE: tuple[tuple[str, Callable[[re.Match[str], DemoTalk], Reply]], ...] = (
    (r"\bmy first (?:message|question|text)\b", _first),
    (r"\btime is it\b|\b(?:current|local|the) (?:time|date)\b", _time),
    (r"\bcount (?:from (?:1|one) )?(?:up )?to (\d+)", _count),
    (r"\b(?:what is|calculate)\s+([\d(-][\d\s.()+*/%^-]*)(?=[?!=]|$)", _arithmetic),
    (r"\b(?:show|give)\b.*\b(?:markdown|table|code|formatting)\b", lambda *_: SAMPLE),
)
_RULES = tuple((re.compile(pattern, re.IGNORECASE), answer) for pattern, answer in _TABLE)
