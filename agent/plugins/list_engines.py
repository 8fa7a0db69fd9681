"""Runs engines that take a list of messages and return a shorter one, as Hermes' do.

What agrees with the given list at its beginning and end is head and tail of a plan, what stands
between is the text of its summary. The plan is checked like any other (agent/plugins/checks.py).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Any, ClassVar, Literal, cast

from typing_extensions import override

from agent.context.phases.boundaries import group_start
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.errors import AgentError
from agent.messages import ChatMessage, ToolSchema, text_of
from agent.usage import Usage
from agent.view.view import Entry, Summary, render

ROLES: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")
GIVEN = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What an engine sees of a message: what OpenAI's API knows."""
COUNTED = ("prompt_tokens", "input_tokens", "output_tokens", "cache_read_tokens")
STATE = dict.fromkeys(
    ("last_prompt_tokens", "last_completion_tokens", "last_total_tokens", "compression_count"), 0
) | {"protect_first_n": 3, "protect_last_n": 6}
"""What Hermes' base class gives its engines, before anything is known."""


class ListRefused(AgentError):
    """What an engine returned is not a list of messages."""


def takes_lists(offered: Any) -> bool:
    """Whether an engine, or its class, takes lists: its first argument is called `messages`."""
    try:
        names = [name for name in inspect.signature(offered.compress).parameters if name != "self"]
    except (AttributeError, TypeError, ValueError):
        return False
    return names[:1] == ["messages"]


def adapted(offered: Any, name: str) -> type[ContextEngine]:
    """Make an engine class of this name that runs the one that is offered.

    Args:
        offered: A class, which is made for each turn; or an object, of which each turn gets a copy:
            turns of different people run at the same time.
    """
    members = {"name": name, "offered": staticmethod(lambda: offered), "__doc__": offered.__doc__}
    return cast("type[ContextEngine]", type(f"Adapted{name.title()}", (ListEngine,), members))


class ListEngine(ContextEngine):
    """Runs an engine of lists during one turn; `offered` returns it or its class."""

    offered: ClassVar[Callable[[], Any]]

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Make the engine with those of the options that its constructor takes."""
        super().__init__(limits, options)
        made = type(self).offered()
        if not isinstance(made, type):
            self._inner = deepcopy(made)
        elif made.__init__ is ContextEngine.__init__:  # type: ignore[misc]
            self._inner = made(limits, options)
        else:
            self._inner = _called(made, **options)
        for name, value in {**STATE, "threshold_percent": limits.threshold}.items():
            if not hasattr(self._inner, name):
                setattr(self._inner, name, value)
        for method in (
            "should_compress",
            "on_session_start",
            "on_session_reset",
            "handle_tool_call",
        ):
            if own := self._own(method):
                setattr(self, method, own)
        self.update_model(limits)

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return the plan that shows the engine's list, or None if it left nothing out.

        Raises:
            ListRefused: It returned no list of messages.
        """
        given = [
            cast("ChatMessage", {key: it for key, it in message.items() if key in GIVEN})
            for message in render(request.plan, request.entries)
        ]
        returned = _called(
            self._inner.compress,
            [dict(message) for message in given],
            current_tokens=request.tokens,
            focus_topic=request.focus,
            force=request.trigger in {"manual", "overflow"},
            memory_context="",
            summarise=request.summarise,
        )
        if not isinstance(returned, list) or not returned:
            raise ListRefused(f"it returned {type(returned).__name__}, not a list of messages")
        if not all(map(_is_message, returned)):
            raise ListRefused("it returned a list with something that is no message")
        return _compressed(request, given, returned)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Report the usage in the words of Hermes."""
        super().update_from_response(usage)
        told = {name: getattr(usage, name) for name in COUNTED}
        total = usage.prompt_tokens + usage.output_tokens
        told |= {"completion_tokens": usage.output_tokens, "total_tokens": total}
        if own := self._own("update_from_response"):
            own(told)

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the engine's tools, bare or in OpenAI's envelope."""
        own = self._own("get_tool_schemas")
        return tuple(
            ToolSchema(each["name"], each.get("description", ""), each.get("parameters", {}))
            for each in (offered.get("function", offered) for offered in (own() if own else ()))
        )

    @override
    def get_status(self) -> Mapping[str, Any]:
        own = self._own("get_status")
        return {"threshold_tokens": self._inner.threshold_tokens, **(own() if own else {})}

    @override
    def update_model(self, limits: Limits) -> None:
        """Set window and threshold, unless the engine computes its own."""
        super().update_model(limits)
        for name in ("context_length", "threshold_tokens"):
            if not isinstance(getattr(type(self._inner), name, None), property):
                setattr(self._inner, name, getattr(limits, name))

    def _own(self, method: str) -> Callable[..., Any] | None:
        """Return a method of the engine; None if it has none or ours, which keeps other state."""
        found = getattr(self._inner, method, None)
        return None if getattr(found, "__func__", None) is getattr(ContextEngine, method) else found


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function with those of the named arguments that it takes."""
    known = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    return function(*arguments, **{k: v for k, v in named.items() if takes_all or k in known})


def _is_message(message: object) -> bool:
    if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
        return False
    return isinstance(message.get("content"), str | list | None)


def _compressed(
    request: CompressionRequest, given: list[ChatMessage], returned: list[ChatMessage]
) -> Compressed | None:
    """Make a plan of head and tail that came back, and a summary of what stands between."""
    plan, shown = request.plan, request.plan.select(request.entries)
    earlier = len(given) - len(shown)
    cut = sum(entry.seq <= plan.head_upto for entry in shown)
    # A summary parts head and tail: what was cut before stays cut.
    tail = _agreeing(given[cut + earlier if earlier else 0 :][::-1], returned[::-1])
    head_end = cut if earlier else len(given) - tail
    head = _agreeing(given[:head_end], returned[: len(returned) - tail])
    between = returned[head : len(returned) - tail]
    role, behind = _seam(shown, head, len(shown) - tail)
    left_out = [(entry.seq, entry.seq) for entry in shown[head:behind]]
    left_out += [(one.first_seq, one.last_seq) for one in plan.summaries]
    if between == given[head : len(given) - tail] or not left_out:
        return None
    old = given[cut : cut + earlier]
    texts = [one.text for one in plan.summaries if any(message in old for message in between)]
    texts += [text_of(message).strip() for message in between if message not in old]
    text = "\n\n".join(filter(None, texts))
    seqs = [entry.seq for entry in shown[behind:]]
    plan = replace(
        plan,
        head_upto=shown[head - 1].seq if head else 0,
        summaries=(
            Summary(
                text or "(left out by the engine, without a summary)",
                min(left_out)[0],
                max(last for _, last in left_out),
                role=role,
                source="model" if text else "pointer",
            ),
        ),
        pinned=tuple(seq for seq in seqs if seq in plan.pinned),
        tail_from=next((seq for seq in seqs if seq not in plan.pinned), shown[-1].seq + 1),
    )
    edits = tuple(edit for edit in plan.edits if plan.shows(edit.seq))
    return Compressed(replace(plan, edits=edits), "summary" if text else "extract", 0)


def _seam(
    shown: Sequence[Entry], head: int, behind: int
) -> tuple[Literal["user", "assistant"], int]:
    """Choose the summary's role, and where the tail begins: earlier, if no role would fit."""
    while True:
        neighbours = {shown[head - 1].message["role"] if head else "assistant"}
        neighbours |= {entry.message["role"] for entry in shown[behind : behind + 1]}
        fitting = [role for role in ROLES if role not in neighbours]
        if fitting or behind <= head:
            return (fitting or ROLES)[0], behind
        behind = max(head, group_start(shown, behind - 1))


def _agreeing(given: Iterable[ChatMessage], returned: Iterable[ChatMessage]) -> int:
    """Count the messages that are the same, from the first ones on; a result may be shortened."""
    pairs = zip(map(_key, given), map(_key, returned), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _key(message: ChatMessage) -> tuple[Any, ...]:
    calls = [call.get("id") for call in message.get("tool_calls") or ()]
    known_by = message.get("tool_call_id") or calls or text_of(message)
    return message["role"], known_by
