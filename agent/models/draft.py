"""Assemble an assistant message from the deltas of a stream, for every provider.

An unreadable stream ends the call like a cut stream.

Servers without a reasoning field, or with its parser disabled, leave the reasoning in the text
between model-specific marks; `ReasoningFilter` separates it.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2s
from typing import Any

from agent.errors import ModelUnreachable
from agent.messages import ChatMessage, FunctionCall, ToolCall, Usage
from agent.models.base import Completion, StopReason, TextSink
from agent.models.wire import canonical_arguments, parse_object, read_arguments

PART_CHARS = 100
"""Characters added per call or block: a stream of empty ones must hit the limit, too."""

_HIGH_SURROGATE_END = re.compile("[\ud800-\udbff]\\Z")


@dataclass(slots=True)
class CallDraft:
    """A tool call under construction; `opaque` is a value that its provider wants back with it."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    opaque: Any = None


class AnswerDraft:
    """Collects deltas and pushes the visible ones, without thoughts contained in the text.

    `max_chars` limits text, thoughts, calls and opaque fields together; `before` holds the messages
    of the request.

    Attributes:
        opaque_calls: Provider-specific fields of finished calls, by call id.
    """

    def __init__(
        self, sink: TextSink, before: Sequence[ChatMessage], max_chars: int, *, opened: bool = False
    ) -> None:
        self.calls: list[CallDraft] = []
        self.opaque_calls: dict[str, Any] = {}
        self._sink = sink
        self.filter = ReasoningFilter(opened=opened)
        self._before = before
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._half = ""
        self._room = max_chars

    @property
    def is_full(self) -> bool:
        """Whether `max_chars` is exceeded and the stream must be abandoned."""
        return self._room < 0

    @property
    def may_be_whole(self) -> bool:
        """Whether every call is complete, so the answer may end if the server says so."""
        return all(read_arguments("".join(call.arguments)) is not None for call in self.calls)

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    @property
    def streamed(self) -> str:
        """Everything received so far: thoughts, text and calls."""
        calls = (part for call in self.calls for part in (call.name, *call.arguments))
        return "".join((*self._thoughts, *self._text, self.filter.held_back, *calls))

    def count(self, chars: int = 0) -> None:
        """Count one call or block, or `chars` characters of another field, towards the limit."""
        self._room -= PART_CHARS + chars

    def begin_call(self) -> CallDraft:
        """Start a tool call."""
        self.count()
        self.calls.append(CallDraft())
        return self.calls[-1]

    def grow(self, call: CallDraft, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """Set the id and name of a call once, or append a piece of its arguments."""
        self._room -= len(name)
        call.id = call.id or call_id
        call.name = call.name or name
        if arguments := self._fitting(arguments):
            call.arguments.append(arguments)

    def say(self, delta: str) -> None:
        """Append a text delta."""
        self._show(self.filter.feed(self._fitting(delta)))

    def _fitting(self, delta: str) -> str:
        """Count a delta and return the part that still fits."""
        fitting = delta[: max(self._room, 0)]
        self._room -= len(delta)
        return fitting

    def end_text(self, *, cut: bool = False) -> None:
        """End a section of the text; `cut`: the model was interrupted."""
        self._show(self.filter.close(cut=cut))

    def _show(self, delta: str) -> None:
        if self.filter.takes_back:
            self._text.clear()
            self._half = ""
            self._sink.restart()
        delta = self._half + delta
        cut = _HIGH_SURROGATE_END.search(delta)
        self._half = cut[0] if cut else ""
        visible = join_surrogates(delta.removesuffix(self._half))
        # The sink shows its text at once: half a surrogate pair would be a broken character.
        if visible:
            self._text.append(visible)
            self._sink.push(visible)

    def think(self, delta: str) -> None:
        """Append a reasoning delta."""
        if delta := self._fitting(delta):
            self._thoughts.append(delta)

    def completion(self, stop: StopReason, usage: Usage | None, model: str) -> Completion:
        """Return the finished message.

        Calls override the stop reason: some servers say "stop" for an answer that ends in tool
        calls. A call cut by the output limit is dropped; an answer cut by Parley keeps no calls,
        since the model's intention is unknown.
        """
        self.end_text(cut=stop == "length")
        if not self._thoughts:
            self._thoughts.append(self.filter.reasoning)
        if self.is_full:
            stop = "endless"
        calls = self._finished_calls(stop)
        text = self.text
        # In OpenAI's format the content is null if the message consists of calls only.
        message = ChatMessage(role="assistant", content=text or (None if calls else ""))
        if calls:
            message["tool_calls"] = calls
        if thoughts := join_surrogates("".join(self._thoughts)):
            message["reasoning"] = thoughts
        if calls or stop == "tool_calls":
            stop = "tool_calls" if calls else "stop"
        return Completion(message, stop, usage, model)

    def _finished_calls(self, stop: StopReason) -> list[ToolCall]:
        if stop in {"refused", "endless"}:
            return []
        calls: list[ToolCall] = []
        # Ids must be unique: Anthropic refuses duplicate call ids in a request, and a result must
        # match its call; some servers restart their numbering with each message.
        before = self._before if self.calls else ()
        taken = {call["id"] for each in before for call in each.get("tool_calls") or ()}
        for index, draft in enumerate(self.calls):
            arguments = join_surrogates("".join(draft.arguments))
            # Only the newest call can be cut by the limit; the others are complete even if not
            # JSON.
            if stop == "length" and draft is self.calls[-1] and parse_object(arguments) is None:
                continue
            call = self._finish(draft, index, arguments, taken)
            calls.append(call)
            taken.add(call["id"])
            if draft.opaque is not None:
                self.opaque_calls[call["id"]] = draft.opaque
        return calls

    def _finish(self, draft: CallDraft, index: int, arguments: str, taken: set[str]) -> ToolCall:
        arguments = canonical_arguments(arguments)
        call_id = draft.id
        if not call_id or call_id in taken:
            # Derived from the content, not random: a replayed answer gets the same id.
            digest = blake2s(f"{draft.name}\n{arguments}".encode(), digest_size=4).hexdigest()
            call_id = f"call_{len(self._before)}_{index}_{digest}"
        while call_id in taken:
            # After a compaction the conversation may be as short as before an identical earlier
            # call.
            call_id += "_"
        function = FunctionCall(name=draft.name, arguments=arguments)
        return ToolCall(id=call_id, type="function", function=function)


def join_surrogates(text: str) -> str:
    """Join surrogate pairs in a text; a lone surrogate becomes U+FFFD.

    They come from servers that split an emoji's JSON escape across two deltas.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@contextmanager
def readable() -> Iterator[None]:
    """Treat an unreadable stream like a cut one: raise ModelUnreachable."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ModelUnreachable("malformed stream") from exc


_TAGS = (
    *("think", "thinking", "thought", "thoughts", "antthinking", "reason", "reasoning"),
    *("reasoning_scratchpad", "scratchpad", "inner_monologue", "reflection"),
)
_FINALS = ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>")
CLOSERS: dict[str, tuple[str, ...]] = {
    **{f"<{tag}>": (f"</{tag}>",) for tag in (*_TAGS, "seed:think", "longcat_think")},
    **{f"<|{tag}|>": (f"<|/{tag}|>", f"</{tag}>") for tag in ("think", "thinking")},
    "[think]": ("[/think]",),  # Magistral
    "◁think▷": ("◁/think▷",),  # Kimi
    "<|begin_of_thought|>": ("<|end_of_thought|>",),  # OpenThinker
    "<|start_thinking|>": ("<|end_thinking|>",),  # Command A
    "<|channel>thought": ("<channel|>",),  # Gemma
    "<unused94>thought": ("<unused95>",),  # MedGemma
    "<|channel|>analysis": ("<|end|>", *_FINALS),  # gpt-oss (harmony)
    "<|channel|>commentary": ("<|end|>", "<|call|>", *_FINALS),
}
"""Opening marks of thoughts in lower case, each with the marks that may close it."""
_NOISE = (
    *("<|start|>assistant", "<|end|>", "<|return|>", "<|call|>"),
    *("<|begin_of_solution|>", "<|end_of_solution|>"),
)
"""Tokens that Harmony and OpenThinker put around messages; always hidden."""
_LONE = tuple({mark for marks in CLOSERS.values() for mark in marks if mark not in _NOISE})
_ATTRIBUTE_CHARS = 60
_LONGEST = max(map(len, (*CLOSERS, *_LONE, *_NOISE))) + _ATTRIBUTE_CHARS
_TAG = re.compile(r"<\s*(/?)\s*([\w:]*)(\s[^<>\n]*)?(>?)")
_PAIR_IN_PASSING = re.compile(r" \S{1,9} ")
"""The text between two tags in a sentence that merely mentions them: "<think> and </think>"."""
_SPOKEN_HARMONY = re.compile(r"analysis(?=\S)(.+?)assistantfinal", re.DOTALL)
"""Harmony's marks after a server has removed their special tokens."""
_CJK = "\u2e80"


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    more = rf"(?:\s+[\w:-]+\s*=[^<>\n]{{0,{_ATTRIBUTE_CHARS}}})?\s{{0,9}}"
    longest_first = (
        rf"<\s{{0,9}}{tag[1]}\s{{0,9}}{tag[2]}{more}>"
        if (tag := _TAG.fullmatch(mark))
        else re.escape(mark)
        for mark in sorted(marks, key=len, reverse=True)
    )
    return re.compile("|".join(longest_first), re.IGNORECASE | re.ASCII)


def _plain(mark: str) -> str:
    """Normalize a mark, or its beginning, to the table's form, without blanks and attributes."""
    tag = _TAG.fullmatch(mark)
    if tag is None:
        return mark
    slash, name, more, end = tag.groups()
    return f"<{slash}{name}{'>' if more or end else ''}"


_MARK = _any_of((*CLOSERS, *_LONE, *_NOISE))
_OPENING = _any_of(tuple(CLOSERS))


def _is_around(char: str) -> bool:
    """Return whether a character can be one of a pair of quotes or brackets."""
    return char != "" and (char in "\"'" or unicodedata.category(char) in {"Ps", "Pe", "Pi", "Pf"})


def _is_in_code(text: str, line: str) -> bool:
    """Return whether the next tag is inside code, as a mention; `line` is the end of `text`."""
    fenced = text.count("```") % 2 or text.count("~~~") % 2
    # An indented line of a thought may end with a closing mark.
    is_first = not line.strip() or _OPENING.search(line)
    indented = is_first and line.expandtabs().startswith(" " * 4) and text.strip() != line.strip()
    return bool(fenced or line.count("`") % 2 or line.endswith("``") or indented)


def _may_end(line: str) -> bool:
    """Return whether a sentence may end here: at its punctuation, or cut without a space."""
    if line[-1].isalnum() and line[-1] < _CJK:
        return True
    last = line.rstrip()[-1]
    kind = unicodedata.category(last)
    return last != "," and kind[0] in "PS" and kind not in {"Pd", "Ps", "Pi"}


class ReasoningFilter:
    """Separates thoughts from text; the result does not depend on how the stream is split.

    A mark inside a code span, a code fence or quotes is text. A block that never ends is reasoning
    if nothing visible came before it (the model was cut), otherwise text that mentions the mark.
    Some templates put the opening mark into the prompt: a lone closing mark turns all visible text
    before it into a thought, unless it is in the middle of a sentence.

    Attributes:
        takes_back: Whether the text visible before the last call turned out to be a thought.
        began_inside: Whether the text began with a thought without an opening mark. The argument
            `opened` is this value for the model's last answer.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.takes_back = False
        self._pending = ""
        self._visible: list[str] = []
        self._new: list[str] = []
        self._opener = ""
        self._is_in_passing = False
        self._closers = _LONE if opened else ()
        self._block: list[str] = []
        self._thoughts: list[str] = []
        self._trim = False
        self._is_over = False
        self.began_inside = opened

    @property
    def reasoning(self) -> str:
        """The blocks found so far, stripped and joined by newlines."""
        return "\n".join(thought for thought in self._thoughts if thought)

    @property
    def held_back(self) -> str:
        """Text not shown: the blocks, and text that may still become part of one."""
        block = self._block if self._closers else []
        return "".join([*self._thoughts, *block, self._pending])

    def feed(self, delta: str) -> str:
        """Process the next piece of text; return the text now known to be visible."""
        self.takes_back = False
        self._new = []
        self._pending += delta
        while self._end_block() if self._closers else self._find_mark():
            pass
        return "".join(self._new)

    def close(self, *, cut: bool = False) -> str:
        """End the text or a section of it; return the remaining visible text.

        `cut`: the model was interrupted, so a thought may not be closed.
        """
        self._is_over = True
        self.feed("")
        block = "".join([*self._block, self._pending])
        if not self._closers:
            self._show(self._pending)
        elif self._said_nothing() and (self._opener or cut or not block.strip()):
            # A model may close a block with a different mark than the one that opened it.
            ends = [] if cut else [each.span() for each in _any_of(_LONE).finditer(block)]
            start, end = ends[-1] if ends else (len(block), len(block))
            self._end_thought(block[:start])
            self._show(block[end:])
        else:
            self.began_inside = self.began_inside and bool(self._opener)
            self._show(self._opener + block)
        self._closers, self._pending, self._is_over = (), "", False
        text = "".join(self._visible)
        if spoken := _SPOKEN_HARMONY.match(text):
            self._take_back(spoken[1])
            self._show(text[spoken.end() :])
        return "".join(self._new)

    def _find_mark(self) -> bool:
        """Show the text before the next mark; return whether more can be processed."""
        match = _MARK.search(self._pending)
        if match is None:
            self._show_settled()
            return False
        self._show(self._pending[: match.start()])
        self._pending = self._pending[match.start() :]
        mark, after = _plain(match[0].lower()), self._pending[len(match[0]) :]
        meaning = self._is_meant(mark, after)
        if meaning is None:
            return False
        self._pending = after
        if not meaning:
            self._show(match[0])
        elif mark in CLOSERS:
            line = "".join(self._visible).rpartition("\n")[2]
            self._is_in_passing = bool(line.strip()) and not _may_end(line)
            self._opener, self._closers, self._block = match[0], CLOSERS[mark], []
        elif mark in _NOISE:
            self._trim = self._said_nothing()
        else:
            self.began_inside = self.began_inside or not self._said_nothing()
            self._take_back("".join(self._visible))
        return True

    def _is_meant(self, mark: str, after: str) -> bool | None:
        """Return whether a mark is used rather than mentioned; None if more text is needed."""
        text = "".join(self._visible)
        line = text.rpartition("\n")[2]
        if _is_in_code(text, line):
            return False
        if _is_around(line[-1:]):
            if not (after or self._is_over):
                return None
            if _is_around(after[:1]):
                return False
        if mark not in _LONE or not line.strip() or _may_end(line):
            return True
        rest = after.lstrip(" \t")
        return rest[0] in "\r\n" if rest else (False if self._is_over else None)

    def _take_back(self, thought: str) -> None:
        self.takes_back = self.takes_back or bool(self._visible)
        self._visible.clear()
        self._new.clear()
        self._end_thought(thought)

    def _end_block(self) -> bool:
        """Collect the block up to its closing mark; return whether the mark was found."""
        match = _any_of(self._closers).search(self._pending)
        if match is None:
            keep = _LONGEST - 1
            self._block.append(self._pending[:-keep])
            self._pending = self._pending[-keep:]
            return False
        block = "".join([*self._block, self._pending[: match.start()]])
        self._pending = self._pending[match.end() :]
        self._closers = ()
        if self._is_in_passing and _PAIR_IN_PASSING.fullmatch(block):
            self._show(f"{self._opener}{block}{match[0]}")
        else:
            self._end_thought(block)
        return True

    def _end_thought(self, thought: str) -> None:
        # A thought expected without an opening mark may have one after all.
        opening = _OPENING.match(thought)
        thought = thought[opening.end() :] if opening else thought
        self._thoughts.append(thought.removeprefix("<|message|>").strip())
        self._trim = self._said_nothing()

    def _show_settled(self) -> None:
        """Show everything but an ending that may become a mark."""
        tail = self._pending[1 - _LONGEST :].lower()
        starts = (n for n, char in enumerate(tail) if char in "<[◁")
        marks = (*CLOSERS, *_LONE, *_NOISE)
        found = (n for n in starts if any(mark.startswith(_plain(tail[n:])) for mark in marks))
        keep = len(tail) - next(found, len(tail))
        end = len(self._pending) - keep
        self._show(self._pending[:end])
        self._pending = self._pending[end:]

    def _show(self, text: str) -> None:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if text:
            self._visible.append(text)
            self._new.append(text)

    def _said_nothing(self) -> bool:
        return not "".join(self._visible).strip()
