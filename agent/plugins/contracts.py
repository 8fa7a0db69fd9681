"""The contract of plugins (docs/plugins.md), and checks of the values they return.

Plugins get copies of plain data. Personal data has a scope: "platform:sender id" for all direct
chats of a person, "conversation:id" for any other conversation. The checks are pure functions and
trust neither a plugin's objects nor its numbers.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from agent.context.boundaries import newest_ask
from agent.context_engine import Compressed, CompressionRequest, Sizes
from agent.errors import AgentError
from agent.ports import Effect
from agent.tools.registry import Tool, parameter_schema
from agent.view.view import Entry, ViewPlan, summary_messages

NAME = re.compile(r"[a-z0-9_-]{1,64}")
"""Valid names of plugins and engines: not special to file systems or Python's import."""
NAME_RULE = "only a-z, 0-9, _ and - are allowed"
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names accepted by every provider. Source: the function names of OpenAI's and Anthropic's APIs."""
MAX_TIMEOUT_S = 600.0
"""Longest `timeout_s` of a plugin's tool."""
HookName = Literal["pre_tool_call", "post_tool_call", "turn_finished"]
HOOKS: tuple[HookName, ...] = get_args(HookName)
Hook = Callable[[dict[str, Any]], Any]
"""Sync or async; receives one dict (docs/plugins.md). `pre_tool_call` returns the reason to block
the call, or None; other hooks' results are ignored."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question that the model is about to answer; people wrote its `text`.

    Use only memories of `scope`: everyone in the conversation can read the answer.
    """

    text: str
    scope: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer, after both were committed."""

    question: str
    answer: str
    scope: str
    conversation: str
    turn: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """Memories recalled by a provider, with their exchanges (`Exchange.turn` of each).

    A turn that reads them inherits the taints of those exchanges; without exchanges, it counts as
    having read a web page.
    """

    text: str
    turns: Sequence[str] = ()


class MemoryProvider(ABC):
    """A memory outside Parley. One object serves all turns; its methods may run concurrently.

    Async methods run on Parley's event loop and must not block; others run in separate threads.
    """

    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Initialize with a copy of the plugin's options (`plugins.options.<plugin>`)."""
        self.options = options

    def prompt(self) -> str:
        """Return the provider's text for every system prompt; called once at start-up."""
        return ""

    @abstractmethod
    async def prefetch(self, query: Query) -> str | Recalled:
        """Return memories relevant to the question; empty if there are none.

        Called once before a turn, which waits at most `HOOK_S` for it. Return only what was stored
        under `query.scope`. A plain text counts as drawn from everything ever read or said in that
        scope.
        """

    async def store(self, exchange: Exchange) -> None:  # noqa: B027 - not all remember by themselves
        """Remember an exchange; called at most once, after the answer is committed.

        Not called for turns in which a guest took part.
        """

    def tools(self) -> Sequence[Tool]:
        """Return tools for the model; called once at start-up. They may use `ToolContext.scope`."""
        return ()


class ResultRefused(AgentError):
    """An engine's result violates the contract; the text lists the violations."""


def tool_problem(tool: Any) -> str | None:
    """Return the reason why a plugin's tool cannot be offered to a model, or None."""
    is_tool = isinstance(tool, Tool)
    return next(_tool_problems(tool), None) if is_tool else "it is no agent.tools.registry.Tool"


def _tool_problems(tool: Any) -> Iterator[str]:
    # Its author may have ignored the type annotations.
    if not (isinstance(tool.name, str) and TOOL_NAME.fullmatch(tool.name)):
        yield "in its name only letters, digits, _ and - are allowed, at most 64"
    if not (isinstance(tool.description, str) and tool.description.strip()):
        yield "it has no description"
    if tool.effect not in get_args(Effect):
        yield f"its effect is {tool.effect!r}, not one of {', '.join(get_args(Effect))}"
    if not callable(tool.run):
        yield "its run is not a function"
    if not (isinstance(tool.timeout_s, int | float) and 0 < tool.timeout_s <= MAX_TIMEOUT_S):
        yield f"its timeout_s is {tool.timeout_s!r}, not between 0 and {MAX_TIMEOUT_S:g}"
    if not (isinstance(tool.arguments, type) and issubclass(tool.arguments, BaseModel)):
        yield "its arguments are no class derived from pydantic's BaseModel"
    try:
        parameter_schema(tool.arguments)
    except Exception as exc:  # noqa: BLE001 - supervision of plugins
        yield f"its arguments have no JSON schema: {type(exc).__name__}: {exc}"


def check_result(returned: object, request: CompressionRequest) -> Compressed:
    """Return an engine's result with the measured size of its view.

    It is rebuilt from plain values, so that no object of a plugin gets further. The model's
    thoughts in the remaining messages are dropped, since their signatures are only valid for the
    previous history. Nodes are dropped too: only the built-in engine `lcm` may create them.

    Args:
        request: The original request, not the copy given to the plugin.

    Raises:
        ResultRefused: The result is not a plan, or its plan has `find_problems`.
    """
    found = _retyped(returned)
    is_same = found.plan.summaries == request.plan.summaries
    recall = request.plan.recall if is_same else request.recall
    plan = replace(found.plan, thinking_from=_newest_seq(request) + 1, recall=recall)
    if broken := find_problems(plan, request):
        raise ResultRefused("; ".join(broken))
    return replace(found, plan=plan, tokens=Sizes(request).view(plan), nodes=())


def find_problems(plan: ViewPlan, request: CompressionRequest) -> list[str]:
    """List a plan's contract violations; a plan without any may be shown."""
    found = [
        *_ranges(plan, request),
        *_newly_shown(plan, request),
        *_newest_message(plan, request),
        *_groups(plan, request.entries),
        *_edits(plan, request),
    ]
    # Only a valid plan can be rendered and measured.
    return found or [*_seams(plan, request), *_size(plan, request)]


def _newest_seq(request: CompressionRequest) -> int:
    return request.entries[-1].seq if request.entries else 0


@cache
def _results() -> TypeAdapter[Compressed]:
    return TypeAdapter(Compressed)


def _retyped(returned: object) -> Compressed:
    if not isinstance(returned, Compressed):
        raise ResultRefused(f"it returned {type(returned).__name__}, not Compressed or None")
    try:
        # Through JSON, which strips a plugin's subclasses and properties.
        text = orjson.dumps(asdict(returned))
        return _results().validate_json(text, strict=True)
    except ValidationError as exc:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in exc.errors())
        raise ResultRefused("; ".join(wrong)) from exc
    except TypeError as exc:
        raise ResultRefused(f"its values are not plain: {exc}") from exc


def _ranges(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    newest = _newest_seq(request)
    middle = range(plan.head_upto + 1, plan.tail_from)
    if plan.head_upto < 0 or plan.head_upto > newest or not 0 <= plan.tail_from <= newest + 1:
        yield f"head_upto {plan.head_upto} and tail_from {plan.tail_from} are not 0 to {newest}"
    if plan.tail_from and plan.head_upto >= plan.tail_from:
        yield f"the head (to {plan.head_upto}) reaches into the tail (from {plan.tail_from})"
    if any(each.first_seq <= plan.head_upto for each in plan.summaries[:1]):
        yield f"the head (to {plan.head_upto}) reaches into what is summarised"
    if plan.summaries and not plan.tail_from:
        yield "it has a summary and no tail_from"
    for summary in plan.summaries:
        if not (1 <= summary.first_seq <= summary.last_seq <= newest and summary.text.strip()):
            yield f"its summary of {summary.first_seq} to {summary.last_seq} has no range or text"
    if any(one >= two for one, two in pairwise(plan.pinned)):
        yield "pinned is not in order"
    if wrong := [seq for seq in plan.pinned if seq not in middle or not plan.shows(seq)]:
        yield f"pinned {wrong} are not between head and tail"
    if wrong_ranges := [each for each in plan.hidden if each[1] > newest]:
        yield f"it hides messages that are still to come: {wrong_ranges}"


def _newly_shown(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    old = request.plan
    seqs = range(1, _newest_seq(request) + 1)
    if shown := [seq for seq in seqs if not old.shows(seq) and plan.shows(seq)]:
        yield f"it shows what was out of view: {len(shown)} messages from {shown[0]} on"


def _newest_message(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    entries = request.entries
    if entries and not plan.shows(entries[-1].seq):
        yield f"it does not show the newest message, {entries[-1].seq}"
    asked = newest_ask(entries)
    if asked and not plan.shows(asked.seq):
        yield f"it does not show the newest user message, {asked.seq}"


def _groups(plan: ViewPlan, entries: Sequence[Entry]) -> Iterator[str]:
    call: Entry | None = None
    for entry in entries:
        if entry.message["role"] != "tool":
            call = entry if entry.message.get("tool_calls") else None
        elif call and plan.shows(call.seq) != plan.shows(entry.seq):
            yield f"it cuts the tool calls of message {call.seq} from their results"
            call = None


def _edits(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    entries = request.entries
    shown = {entry.seq for entry in entries if plan.shows(entry.seq)}
    if wrong := sorted({edit.seq for edit in plan.edits} - shown):
        yield f"it edits messages that it does not show: {wrong}"
    if any(one.seq > two.seq for one, two in pairwise(plan.edits)):
        yield "its edits are not in order of seq"
    if len({(edit.seq, edit.kind) for edit in plan.edits}) < len(plan.edits):
        yield "it edits a message twice in the same way"
    if any(edit.limit < 0 for edit in plan.edits):
        yield "an edit has a negative limit"
    asked = newest_ask(entries)
    fresh = {edit.seq for edit in {*plan.edits} - {*request.plan.edits}}
    if asked and asked.seq in fresh:
        yield "it changes the newest user message"


def _sequence(plan: ViewPlan, entries: Sequence[Entry]) -> list[tuple[int, str]]:
    """Return seq (0 for a summary) and role of each message of a view, in order."""
    shown: list[tuple[int, str]] = [
        (seq, message["role"]) for seq, message in entries if plan.shows(seq)
    ]
    head = sum(seq <= plan.head_upto for seq, _ in shown)
    shown[head:head] = [(0, message["role"]) for message in summary_messages(plan)]
    return shown


def _seams(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    """Yield the new places at which adjacent roles do not alternate."""
    before, after = (_sequence(each, request.entries) for each in (request.plan, plan))
    if after and after[0][1] != "user" and after[:1] != before[:1]:
        yield f"the view starts with a message of role {after[0][1]}, not user"
    # People's messages may already have put equal roles next to each other; the engine is only
    # responsible for new places.
    known = set(pairwise(before))
    for one, two in pairwise(after):
        if (one, two) not in known and two[1] in {"tool", one[1]}:
            yield f"{_name(*two)} follows {_name(*one)}"


def _name(seq: int, role: str) -> str:
    return f"message {seq} of role {role}" if seq else f"a summary of role {role}"


def _size(plan: ViewPlan, request: CompressionRequest) -> Iterator[str]:
    sizes = Sizes(request)
    before, after = sizes.view(request.plan), sizes.view(plan)
    if after >= before:
        yield f"it makes the view no smaller: {before} tokens before, {after} after"
