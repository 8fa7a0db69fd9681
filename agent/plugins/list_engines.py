"""Engines that take a list of messages and return a shorter one, as Hermes' do.

Parley's engines return plans: which messages are shown, and what stands for the rest. What such an
engine returns is compared with what it was given, and becomes a plan, which is checked like any
other (agent/plugins/checks.py). Nothing that it returns is stored but the text that it added.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, ClassVar, Literal, cast

from typing_extensions import override

from agent.context.phases.boundaries import group_start
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Level, Limits
from agent.errors import AgentError
from agent.messages import ChatMessage, ToolSchema, text_of
from agent.usage import Usage
from agent.view.view import Edit, Summary, ViewPlan, rewrite, summary_messages

Message = dict[str, Any]
SummaryRole = Literal["user", "assistant"]
Added = tuple[str, SummaryRole]
"""A text that an engine has added, and whose it is to be."""

GIVEN = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What an engine sees of a message: what OpenAI's API knows."""
LEAST_MERGED_CHARS = 12
"""A shorter text that stands in a longer one may be there by chance."""
MOST_NEIGHBOURS = 4
"""So many messages more are shown, at most, so that roles alternate."""
SHORT_ARGUMENTS_CHARS = 200
LEAST_CLIP_CHARS = 100
"""Of an edit `clip`; see agent/view/edits.py."""
STATE = {
    **dict.fromkeys(("last_prompt_tokens", "last_completion_tokens", "last_total_tokens"), 0),
    "compression_count": 0,
    "protect_first_n": 3,
    "protect_last_n": 6,
}
"""What Hermes' base class gives its engines, before anything is known."""


class ListRefused(AgentError):
    """What an engine returned is no list of messages that a plan could show; the text says why."""


def takes_lists(offered: Any) -> bool:
    """Whether what is offered is such an engine, or its class: by the name of its argument."""
    try:
        names = list(inspect.signature(offered.compress).parameters)
    except (AttributeError, TypeError, ValueError):
        return False
    return next((name for name in names if name != "self"), "") == "messages"


def adapted(offered: Any, name: str) -> type[ContextEngine]:
    """Return an engine of this name that runs the one that is offered.

    Args:
        offered: A class, which is made for each turn; or an object, of which each turn gets a copy:
            turns of different people run at the same time.
    """
    members = {"name": name, "offered": staticmethod(lambda: offered), "__doc__": offered.__doc__}
    return cast("type[ContextEngine]", type(f"Adapted{name.title()}", (ListEngine,), members))


class ListEngine(ContextEngine):
    """Runs an engine of lists during one turn; `offered` returns it or its class."""

    name: ClassVar[str] = "lists"
    offered: ClassVar[Callable[[], Any]]

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Make the engine: options are its arguments, as far as it takes them."""
        super().__init__(limits, options)
        self._inner = _made(type(self).offered(), limits, options)
        for name, value in {**STATE, "threshold_percent": limits.threshold}.items():
            if not hasattr(self._inner, name):
                setattr(self._inner, name, value)
        self.update_model(limits)

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return what the engine's list shows as a plan; None where it is the same list.

        Raises:
            ListRefused: It is none that a plan could show.
        """
        view = ListedView.of(request)
        returned = _called(
            self._inner.compress,
            [dict(each) for each in view.messages],
            current_tokens=request.tokens,
            focus_topic=request.focus,
            force=request.trigger in {"manual", "overflow"},
            memory_context="",
            summarise=request.summarise,
        )
        return view.plan_of(returned, self.name)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Tell the engine what the model reported, in the words of Hermes."""
        super().update_from_response(usage)
        told = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
        }
        self._told("update_from_response", told)

    @override
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        wants = self._own("should_compress")
        return bool(wants(tokens)) if wants else super().should_compress(tokens)

    @override
    def on_session_start(self, session_id: str) -> None:
        self._told("on_session_start", session_id)

    @override
    def on_session_reset(self) -> None:
        self._told("on_session_reset")

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the engine's tools; they may stand in OpenAI's envelope."""
        offered = self._told("get_tool_schemas") or ()
        schemas = [each.get("function", each) for each in offered]
        return tuple(
            ToolSchema(each["name"], each.get("description", ""), each.get("parameters", {}))
            for each in schemas
        )

    @override
    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return str(self._inner.handle_tool_call(name, dict(arguments)))

    @override
    def get_status(self) -> Mapping[str, Any]:
        fires_at = {"threshold_tokens": self._inner.threshold_tokens}
        return {**fires_at, **(self._told("get_status") or {})}

    @override
    def update_model(self, limits: Limits) -> None:
        """Set the numbers that engines of this kind keep: window and threshold."""
        super().update_model(limits)
        for name in ("context_length", "threshold_tokens"):
            # An engine may compute its own.
            if not isinstance(getattr(type(self._inner), name, None), property):
                setattr(self._inner, name, getattr(limits, name))

    def _told(self, method: str, *arguments: Any) -> Any:
        found = self._own(method)
        return None if found is None else found(*arguments)

    def _own(self, method: str) -> Callable[..., Any] | None:
        """Return a method that the engine does not have from our class, which keeps limits."""
        found = getattr(self._inner, method, None)
        inherited = getattr(ContextEngine, method)
        return None if getattr(found, "__func__", None) is inherited else found


def _made(offered: Any, limits: Limits, options: Mapping[str, Any]) -> Any:
    if not isinstance(offered, type):
        return copy.deepcopy(offered)
    # Hermes' base class has no constructor; who derives from ours without one has ours.
    if offered.__init__ is ContextEngine.__init__:  # type: ignore[misc]
        return offered(limits, options)
    return _called(offered, **options)


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function with those of the named arguments that it takes."""
    known = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    return function(*arguments, **{k: v for k, v in named.items() if takes_all or k in known})


@dataclass(frozen=True, slots=True)
class ListedView:
    """A view as a list: for each message its seq, 0 for a summary's."""

    request: CompressionRequest
    messages: list[Message]
    seqs: list[int]

    @classmethod
    def of(cls, request: CompressionRequest) -> "ListedView":
        """Return the view of a request, as the model sees it, the system prompt left out."""
        plan = request.plan
        shown = plan.select(request.entries)
        pairs = [
            (entry.seq, message) for entry, message in zip(shown, rewrite(plan, shown), strict=True)
        ]
        head = sum(seq <= plan.head_upto for seq, _ in pairs)
        summaries = [(0, message) for message in summary_messages(plan)]
        ordered = [*pairs[:head], *summaries, *pairs[head:]]
        messages = [
            {key: value for key, value in message.items() if key in GIVEN} for _, message in ordered
        ]
        return cls(request, messages, [seq for seq, _ in ordered])

    def plan_of(self, returned: object, engine: str) -> Compressed | None:
        """Return the plan that shows what was returned; None where that is what was given.

        Raises:
            ListRefused: No plan could.
        """
        pairs, added = self._matched(_list_of(returned))
        edits = list(self._edits(pairs))
        kept = {self.seqs[n] for n, _ in pairs} - {0}
        shown = [entry.seq for entry in self.request.entries]
        dropped = [seq for seq in shown if seq not in kept]
        if not dropped and not added:
            plan = self._edited(self.request.plan, edits)
            return None if plan == self.request.plan else Compressed(plan, "prune", 0)
        earlier = [self._summary_text(n) for n, _ in pairs if self.seqs[n] == 0]
        text = "\n\n".join([*earlier, *(each for each, _ in added)])
        if not text.strip():
            text = f"(left out by the engine {engine}, without a summary)"
        level: Level = "summary" if added else "extract"
        role: SummaryRole = next((role for _, role in added), "user")
        plan = self._cut(kept, text, role, is_told=bool(added or earlier))
        return Compressed(self._edited(plan, edits), level, 0)

    def _matched(self, returned: list[Message]) -> tuple[list[tuple[int, Message]], list[Added]]:
        """Return which of the given messages came back, and the texts that are new.

        The end is compared first, then the beginning: there stands what stayed.
        """
        given = self.messages
        tail = _agreeing(reversed(given), reversed(returned))
        if tail < min(len(given), len(returned)) and _merged(given[-tail - 1], returned[-tail - 1]):
            # Hermes puts its summary into the first message that stays, where no role is right.
            tail += 1
        rest = min(len(given), len(returned)) - tail
        head = min(rest, _agreeing(iter(given), iter(returned)))
        pairs = [(n, returned[n]) for n in range(head)]
        added: list[Added] = []
        at = head
        for message in returned[head : len(returned) - tail]:
            middle = range(at, len(given) - tail)
            found = next((n for n in middle if _is_same(given[n], message)), None)
            if found is not None:
                pairs.append((found, message))
                at = found + 1
            elif message.get("role") != "system":
                added.append(_new_text(message))
        ends = range(len(given) - tail, len(given))
        pairs += [(n, returned[n - len(given)]) for n in ends]
        added += [
            (extra, cast("SummaryRole", given[n]["role"]))
            for n, message in pairs
            if (extra := _merged(given[n], message))
        ]
        return pairs, added

    def _edits(self, pairs: Sequence[tuple[int, Message]]) -> Iterator[Edit]:
        """Yield what makes messages about as short as the engine made them."""
        for n, message in pairs:
            given, seq = self.messages[n], self.seqs[n]
            old, new = _text(given), _text(message)
            if seq and given["role"] == "tool" and new != old:
                # A part of the text stays a part of it; any other line stands for all of it.
                third = len(new) // 3
                is_part = len(new) >= LEAST_CLIP_CHARS and new[:third] == old[:third]
                yield Edit(seq, "clip", len(new)) if is_part else Edit(seq, "prune")
            elif seq and new != old and not _merged(given, message):
                yield Edit(seq, "clip", max(LEAST_CLIP_CHARS, len(new)))
            if seq and given.get("tool_calls") != message.get("tool_calls"):
                yield Edit(seq, "arguments", SHORT_ARGUMENTS_CHARS)

    def _edited(self, plan: ViewPlan, edits: Sequence[Edit]) -> ViewPlan:
        known = {(edit.seq, edit.kind) for edit in edits}
        old = [each for each in plan.edits if (each.seq, each.kind) not in known]
        kept = [edit for edit in (*old, *edits) if plan.shows(edit.seq)]
        return replace(plan, edits=tuple(sorted(kept, key=lambda edit: (edit.seq, edit.kind))))

    def _summary_text(self, place: int) -> str:
        texts = [summary.text for summary in self.request.plan.summaries]
        told = _text(self.messages[place])
        return "\n\n".join(text for text in texts if text in told)

    def _cut(self, kept: set[int], text: str, role: SummaryRole, *, is_told: bool) -> ViewPlan:
        """Return the plan with a head, a summary, what is pinned, and a tail."""
        shown = [entry.seq for entry in self.request.entries]
        head = list(takewhile(kept.__contains__, shown))
        if len(head) == len(shown):
            # Nothing was left out, and a text was added: it stands where the view was cut before.
            head = [seq for seq in shown if seq <= self.request.plan.head_upto]
        behind = self._fitting(len(head), kept)
        tail = list(takewhile(behind.__contains__, reversed(shown)))[::-1]
        earlier = self.request.plan.summaries
        dropped = [seq for seq in shown[len(head) :] if seq not in behind]
        tail_from = tail[0] if tail else shown[-1] + 1
        first = min([*dropped, *(each.first_seq for each in earlier)], default=tail_from)
        last = max([*dropped, *(each.last_seq for each in earlier)], default=first)
        before = self._role(len(head) - 1) if head else None
        after = (
            self._role(next(n for n, seq in enumerate(shown) if seq in behind)) if behind else None
        )
        summary = Summary(
            text,
            first,
            last,
            role=_role_between(before, after, role) or role,
            source="model" if is_told else "pointer",
        )
        return replace(
            self.request.plan,
            head_upto=head[-1] if head else 0,
            summaries=(summary,),
            pinned=tuple(seq for seq in shown if seq in behind and seq not in tail),
            tail_from=tail_from,
        )

    def _role(self, place: int) -> str:
        return self.request.entries[place].message["role"]

    def _fitting(self, head: int, kept: set[int]) -> set[int]:
        """Return what is shown behind a head so that roles fit: a neighbour more where they do not.

        An engine may put its text into a message of the user where no role is right. Here that
        message stays as it was said, and the one before it stays, too.
        """
        entries = self.request.entries
        behind = [n for n in range(head, len(entries)) if entries[n].seq in kept]
        for _ in range(MOST_NEIGHBOURS):
            clash = self._clash(head, behind)
            if clash is None or clash <= head:
                break
            start = group_start(entries, clash - 1)
            behind = sorted({*behind, *range(max(start, head), clash)})
        return {entries[n].seq for n in behind}

    def _clash(self, head: int, behind: Sequence[int]) -> int | None:
        """Return the first place behind a gap whose role does not fit; None where all do."""
        if not behind:
            return None
        before = self._role(head - 1) if head else None
        if _role_between(before, self._role(behind[0]), "user") is None:
            return behind[0]
        gaps = ((one, two) for one, two in pairwise(behind) if two > one + 1)
        return next((two for one, two in gaps if self._role(one) == self._role(two)), None)


def _role_between(before: str | None, after: str | None, wanted: SummaryRole) -> SummaryRole | None:
    """Return a role that neither neighbour has, the wanted one first; None where there is none."""
    options: tuple[SummaryRole, ...] = (wanted, "user", "assistant")
    fitting = (role for role in options if role not in {before, after})
    # In front of everything only a message of the user may stand.
    return next((role for role in fitting if before or role == "user"), None)


def _list_of(returned: object) -> list[Message]:
    if not isinstance(returned, list) or not returned:
        raise ListRefused(f"it returned {type(returned).__name__}, not a list of messages")
    for message in returned:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ListRefused("it returned a list with something that is no message")
        if not isinstance(message.get("content"), str | list | None):
            raise ListRefused("it returned a message whose content is neither text nor parts")
    return returned


def _agreeing(given: Iterable[Message], returned: Iterable[Message]) -> int:
    """Return how many messages are the same, from the first ones on."""
    pairs = zip(given, returned, strict=False)
    return sum(1 for _ in takewhile(lambda pair: _is_same(*pair), pairs))


def _is_same(given: Message, message: Message) -> bool:
    """Whether a message came back; a result and a call may be shortened."""
    if given["role"] != message["role"]:
        return False
    if given["role"] == "tool":
        return bool(given.get("tool_call_id") == message.get("tool_call_id"))
    if given.get("tool_calls") or message.get("tool_calls"):
        return _call_ids(given) == _call_ids(message)
    return _text(given) == _text(message)


def _call_ids(message: Message) -> list[Any]:
    return [call.get("id") for call in message.get("tool_calls") or ()]


def _merged(given: Message, message: Message) -> str:
    """Return what was written around a message's text; empty where nothing was."""
    old, new = _text(given), _text(message)
    if given["role"] == "tool" or given["role"] != message["role"] or new == old:
        return ""
    # Calls tell that it is the same message; a text does where it is no chance.
    is_known = bool(given.get("tool_calls")) or len(old) >= LEAST_MERGED_CHARS
    if not is_known or old not in new:
        return ""
    return new.replace(old, "", 1).strip()


def _text(message: Message) -> str:
    return text_of(cast("ChatMessage", message))


def _new_text(message: Message) -> Added:
    if message["role"] not in {"user", "assistant"} or message.get("tool_calls"):
        raise ListRefused(f"it returned a message of role {message['role']} that was not there")
    return _text(message), cast("SummaryRole", message["role"])
