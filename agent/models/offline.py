"""The embedded demo model: no key, no network, the same answer to the same request.

What it says stands in a table of rules from the newest user text to an answer. They are tried from
top to bottom; a rule may decline by returning None.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any
from zoneinfo import available_timezones

import orjson

from agent.messages import ChatMessage, ToolCall, assistant_message, text_of
from agent.models.base import Completion, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import ModelFacts
from agent.settings import ModelSettings
from agent.usage import FREE, CacheLayout

DEFAULT_CONTEXT_TOKENS = 200_000
NOTICE = (
    "\n\n---\n*I am Parley's built-in offline demo model, not a real language model. For real "
    "answers run `parley setup`, or restart Parley with `ANTHROPIC_API_KEY` or `OPENAI_API_KEY` "
    "set.*"
)
COUNT_LIMIT = 500
READ_CHARS = 2000
"""How much of a text the rules look at; bounds the time that their patterns take."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool the model wants to call."""

    name: str
    arguments: dict[str, Any]


Reply = str | tuple[ToolRequest, ...]


class OfflineModel:
    """Streams word by word, calls offered tools, and says in its first answer what it is.

    `max_output_tokens` is not enforced: every answer is short or of a known size.
    """

    provider = "offline"
    name = "parley-offline"
    label = name
    cache_layout: CacheLayout | None = None
    facts = ModelFacts(name, prices=FREE)

    def __init__(self, settings: ModelSettings, *, word_delay_s: float = 0.02) -> None:
        """Take the window's size from the settings; `word_delay_s` passes after each word."""
        self.context_length = settings.context_length or DEFAULT_CONTEXT_TOKENS
        self._word_delay_s = word_delay_s

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Answer, or call tools if they are offered and allowed. Never fails."""
        reply = reply_to(request)
        if isinstance(reply, str):
            await self._stream(reply, sink)
            answer = assistant_message(reply)
            return Completion(answer, "stop", estimate_usage(request, answer), self.name)
        answer = _with_calls(request, reply)
        return Completion(answer, "tool_calls", estimate_usage(request, answer), self.name)

    async def look_up(self) -> int | None:
        """Return None: there is nobody to ask."""
        return None

    async def close(self) -> None:
        """Nothing to give back."""

    async def _stream(self, text: str, sink: TextSink) -> None:
        for word in re.findall(r"\S+\s*|\s+", text):
            sink.push(word)
            # Slow enough that a person sees an answer grow, as with a real model.
            await asyncio.sleep(self._word_delay_s)


def _with_calls(request: ModelRequest, wanted: tuple[ToolRequest, ...]) -> ChatMessage:
    calls = [
        ToolCall(
            id=_call_id(request, number),
            type="function",
            function={"name": tool.name, "arguments": orjson.dumps(tool.arguments).decode()},
        )
        for number, tool in enumerate(wanted)
    ]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def _call_id(request: ModelRequest, number: int) -> str:
    """Return an id that differs from call to call within a view."""
    seed = f"{request.conversation}:{len(request.messages)}:{number}"
    return f"call_{hashlib.sha256(seed.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class TalkSoFar:
    """The conversation as the rules see it.

    Attributes:
        asked: The unanswered user text, several messages joined by newlines; at most READ_CHARS.
        earlier: User texts before that, oldest first.
        answers: How many texts the model has given so far.
        tools: Names of the tools that may be called now.
    """

    asked: str
    earlier: tuple[str, ...]
    answers: int
    tools: frozenset[str]

    @property
    def name(self) -> str | None:
        """What the user calls themself, the newest name if there are several."""
        found = [match[1] for text in (*self.earlier, self.asked) for match in _NAME.finditer(text)]
        return found[-1] if found else None


def reply_to(request: ModelRequest) -> Reply:
    """Return the answer to a request, or the tools to call first.

    The first text of a conversation ends with the notice that this is the demo model.
    """
    talk, steps = _read(request)
    reply = _reply(talk, steps, request)
    return reply if talk.answers or not isinstance(reply, str) else reply + NOTICE


def _reply(talk: TalkSoFar, steps: list[ChatMessage], request: ModelRequest) -> Reply:
    if steps and steps[-1]["role"] == "tool":
        return _phrase_results(steps)
    if steps and not request.allow_tools:
        return _wrap_up(steps)
    for pattern, answer in _RULES:
        match = pattern.search(talk.asked)
        if match and (reply := answer(match, talk)) is not None:
            return reply
    return _unknown(talk)


def _read(request: ModelRequest) -> tuple[TalkSoFar, list[ChatMessage]]:
    """Return the talk, and the messages since the newest user text."""
    view = [message for message in request.messages if message["role"] != "system"]
    real = [n for n, it in enumerate(view) if it["role"] == "user" and not it.get("synthetic")]
    end = real[-1] + 1 if real else 0
    start = end
    # Messages in a row are one question: nothing was answered between them.
    while start - 1 in real:
        start -= 1
    talk = TalkSoFar(
        asked="\n".join(text_of(message) for message in view[start:end])[:READ_CHARS],
        earlier=tuple(text_of(view[n]) for n in real if n < start),
        answers=sum(it["role"] == "assistant" and text_of(it) != "" for it in view),
        tools=frozenset(tool.name for tool in request.tools if request.allow_tools),
    )
    return talk, view[end:]


def _phrase_results(steps: list[ChatMessage]) -> str:
    """Return the answer made of the newest calls' results."""
    last_calls = next(n for n in reversed(range(len(steps))) if steps[n]["role"] == "assistant")
    results = {it["tool_call_id"]: text_of(it) for it in steps[last_calls + 1 :]}
    return "\n\n".join(
        _phrase_result(call["function"]["name"], call["function"]["arguments"], results[call["id"]])
        for call in steps[last_calls].get("tool_calls", [])
        if call["id"] in results
    )


def _phrase_result(name: str, arguments: str, result: str) -> str:
    if result.startswith("Error:"):
        problem = result.removeprefix("Error:").strip()
        return f"I tried the tool `{name}`, but it reported a problem: {problem}"
    if name == "current_time" and "; " in result:
        return f"It is {result.split('; ', maxsplit=1)[0]}."
    if name == "calculate" and re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", result):
        return f"`{orjson.loads(arguments)['expression']}` = **{result}**"
    if name == "read_conversation":
        return f"This is what I found in our conversation:\n\n{_quote(result)}"
    return f"The tool `{name}` answered:\n\n{_quote(result)}"


def _wrap_up(steps: list[ChatMessage]) -> str:
    used = Counter(it["name"] for it in steps if it["role"] == "tool")
    done = ", ".join(f"`{name}` ({count})" for name, count in used.items()) or "no tools"
    return f"I have to stop here. So far I used {done}; the rest of the request is left open."


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


Answer = Callable[[re.Match[str], TalkSoFar], Reply | None]
# "call me" alone also stands before a time, so there the name has to look like one.
_NAME = re.compile(
    r"(?:\bmy name(?: is|'s)|\bi am called|\bcall me(?= (?-i:[A-Z])))"
    r"\s+([^\W\d_][\w'-]*(?: (?-i:[A-Z])[\w'-]+)?)",
    re.IGNORECASE,
)


def _your_name(_match: re.Match[str], talk: TalkSoFar) -> str:
    if talk.name is None:
        return "You have not told me your name yet."
    return f"Your name is {talk.name}."


def _position(match: re.Match[str], talk: TalkSoFar) -> str:
    if not talk.earlier:
        return f"This is your first message: *{_short(talk.asked)}*"
    if match[1].lower() == "first":
        return f"Your first message was:\n\n{_quote(_short(talk.earlier[0], READ_CHARS))}"
    last = _short(talk.earlier[-1], READ_CHARS)
    return f"Your last message before this one was:\n\n{_quote(last)}"


def _topic(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).strip(" \"'?.!“”")


def _summary(_match: re.Match[str], talk: TalkSoFar) -> str:
    if not talk.earlier:
        return "We have only just begun, so there is nothing to summarise yet."
    lines = [f"{n}. {_short(text, 120)}" for n, text in enumerate(talk.earlier, 1)]
    told = "\n".join(line.replace("\n", " ") for line in lines)
    return f"So far you have told me, in this order:\n\n{told}\n\nI answered {talk.answers} times."


def _look_up(match: re.Match[str], talk: TalkSoFar) -> Reply:
    if "read_conversation" not in talk.tools:
        return "I cannot look that up: the tool `read_conversation` is not available to me."
    return (ToolRequest("read_conversation", {"contains": _topic(match)}),)


def _time(_match: re.Match[str], talk: TalkSoFar) -> Reply:
    if "current_time" not in talk.tools:
        return "I have no clock: the tool `current_time` is not available to me here."
    zones = list(dict.fromkeys(_zones(talk.asked)))
    return tuple(ToolRequest("current_time", {"timezone": zone}) for zone in zones) or (
        ToolRequest("current_time", {}),
    )


def _zones(text: str) -> Iterable[str]:
    """Return zone names and the cities of zones in the text; else the unknown place it asks for."""
    named = re.findall(r"\b[A-Z][A-Za-z_]+/[A-Z][A-Za-z_/]+", text)
    words, cities = re.findall(r"[\w-]+", text.lower()), _zones_by_city()
    places = (" ".join(words[n : n + size]) for n in range(len(words)) for size in (1, 2, 3))
    known = [cities[place] for place in places if place in cities]
    unknown = re.search(r"\bin ([A-Z][\w-]+(?: [A-Z][\w-]+)*)", text)
    return [*named, *known] or ([unknown[1]] if unknown else [])


@cache
def _zones_by_city() -> dict[str, str]:
    zones = [zone for zone in sorted(available_timezones()) if "/" in zone]
    return {zone.rpartition("/")[2].replace("_", " ").lower(): zone for zone in zones}


_SPOKEN = (
    # First of all: the rules below read numbers, and a comma would end one.
    (r"(?<=\d),(?=\d{3}\b)", ""),
    (r"(\d[\d.]*)\s*(?:%|percent) of\b", r"\1 / 100 *"),
    (r"\b(?:multiplied by|times)\b|(?<=[\d)])\s*x\s*(?=[\d(])", "*"),
    (r"\bplease\b", ""),
)


def _arithmetic(match: re.Match[str], talk: TalkSoFar) -> Reply | None:
    expression = _expression(match[1])
    if expression is None:
        return None
    if "calculate" not in talk.tools:
        return f"I cannot work out `{expression}`: the tool `calculate` is not available to me."
    return (ToolRequest("calculate", {"expression": expression}),)


_MATHEMATICS = frozenset({
    *("abs", "ceil", "cos", "e", "exp", "factorial", "floor", "log", "log10", "max", "min"),
    *("pi", "round", "sin", "sqrt", "tan", "tau"),
})
"""Words of `calculate` that a question may hold and still be arithmetic."""


def _expression(text: str) -> str | None:
    """Return what is asked as an expression; None if it is not arithmetic."""
    for spoken, written in _SPOKEN:
        text = re.sub(spoken, written, text, flags=re.IGNORECASE)
    text = text.strip(" .")
    words = {word.lower() for word in re.findall(r"[A-Za-z_]+", text)}
    looks_computable = re.search(r"[\w)]\s*[-+*/%^\u00d7\u00f7]+\s*[-\w(]|\w\(", text)
    # Days and months between hyphens or slashes would be subtracted or divided.
    is_date = re.fullmatch(r"\d+[-/.]\d+[-/.]\d+", text)
    return text if looks_computable and words <= _MATHEMATICS and not is_date else None


def _story(match: re.Match[str], _talk: TalkSoFar) -> str:
    about = f" about {match[1].strip(' ?.!')}" if match[1] else ""
    chapters = [
        f"## Chapter {number}\n\n" + " ".join(PARAGRAPHS[number - 1 :] + PARAGRAPHS[: number - 1])
        for number in range(1, len(PARAGRAPHS) + 1)
    ]
    return "\n\n".join([f"# A story{about}", *chapters, "*The end.*"])


def _count(match: re.Match[str], _talk: TalkSoFar) -> str:
    # Python reads no number of more than 4,300 digits, and any of nine is beyond the limit.
    wanted = int(match[1][:9])
    last = min(wanted, COUNT_LIMIT)
    numbers = [str(number) for number in range(1, last + 1)]
    lines = [", ".join(numbers[start : start + 10]) for start in range(0, last, 10)]
    limit = f"\n\nI stop at {COUNT_LIMIT}." if wanted > COUNT_LIMIT else ""
    return ",\n".join(lines) + limit if lines else "There is nothing to count."


def _name_told(_match: re.Match[str], talk: TalkSoFar) -> str:
    return f"Nice to meet you, {talk.name}! I will remember that for this conversation."


def _greeting(_match: re.Match[str], talk: TalkSoFar) -> str:
    return f"Hello{f', {talk.name}' if talk.name else ''}! What can I do for you?"


def _unknown(talk: TalkSoFar) -> str:
    return (
        "I am an offline demo model and have no real answer to that. You wrote:\n\n"
        f"{_quote(_short(talk.asked))}\n\nWhat I can do:\n\n{ABILITIES}"
    )


def _says(text: str) -> Answer:
    return lambda _match, _talk: text


ABILITIES = (
    "- tell the time: *What time is it in Tokyo?*\n"
    "- calculate: *What is 12 * 7?*\n"
    "- remember this conversation: *What was my first message?*, *Summarise our conversation*\n"
    "- look something up in it: *Look up Paris in our conversation*\n"
    "- stream a long answer: *Count to 100*, *Write a long story*\n"
    "- show formatting: *Show me a table*"
)
ABOUT = (
    "I am Parley's offline demo model: a small table of rules that runs inside the gateway, "
    "without a network. Ask me *what can you do?*"
)
SAMPLE = """\
## Formatting

**Bold**, *italic*, `code` and a [link](https://example.org).

| planet | moons | day in hours |
|---|---:|---:|
| Earth | 1 | 24 |
| Mars | 2 | 24.6 |
| Jupiter | 95 | 9.9 |

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"
```

> A quotation.

1. first
2. second"""
PARAGRAPHS = (
    "The message came in at dusk, when the lamps along the canal were being lit one by one.",
    "Nobody had asked for it, and yet everybody in the station had been waiting for it.",
    "The keeper wrote it down at once, because what is written down cannot be lost.",
    "Then the power failed, as it does on such evenings, and the room went dark.",
    "When the light came back the page was still there, with every word in its place.",
    "So the keeper read it again, answered it, and put the answer into the outgoing tray.",
)
_OUR = r"(?:our|the|this) (?:conversation|chat)"
# The first rule that matches and has an answer wins, so what is narrow stands above what is broad.
_TABLE: tuple[tuple[str, Answer], ...] = (
    (r"\bwhat(?:'s| is| was)? my name\b|\bwho am i\b|\bremember my name\b", _your_name),
    (r"\bmy (first|last|previous) (?:message|question|text)\b", _position),
    (r"\b(first|last) thing (?:that )?i (?:said|wrote|asked)\b", _position),
    (rf"\blook (?:up|for) (.+?) in {_OUR}|\bsearch {_OUR} for (.+)", _look_up),
    (r"\bsumm?ari[sz]e\b|\bsummary of\b|\brecap\b", _summary),
    (r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date)\b|\bwhat day is it\b", _time),
    (r"\b(?:current|local) (?:time|date)\b|\btoday'?s date\b", _time),
    (r"\btime is it\b|\btime in\b|\btell me the (?:time|date)\b", _time),
    (r"\bcount (?:from (?:1|one) )?(?:up )?to (\d+)", _count),
    (r"\b(?:what(?:'s| is)|calculate|compute|evaluate|how much is)\s+([^?!=\n]+)", _arithmetic),
    (r"^([^?!=\n]+)[?!= ]*$", _arithmetic),
    (r"\b(?:write|tell|give)\b.*\b(?:story|poem|essay|novel|article)\b(?: about (.+))?", _story),
    (
        r"\b(?:show|give|demo|sample|example|display)\b.*\b(?:markdown|table|code|formatting)\b",
        _says(SAMPLE),
    ),
    (_NAME.pattern, _name_told),
    (r"\b(?:who|what) are you\b|\byour name\b|\bintroduce yourself\b", _says(ABOUT)),
    (
        r"^\W*help\b|\bwhat can (?:you|i) (?:do|ask|say)\b|\bhow can you help\b",
        _says(f"I am a demo, but I can:\n\n{ABILITIES}"),
    ),
    (r"^\W*(?:hi|hello|hey|howdy|greetings|good (?:morning|afternoon|evening))\b", _greeting),
)
_RULES = tuple((re.compile(pattern, re.IGNORECASE), answer) for pattern, answer in _TABLE)
