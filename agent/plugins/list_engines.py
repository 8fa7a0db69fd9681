"""Runs engines that take a list of messages and return a shorter one, as Hermes' do.

What agrees with the given list at its beginning and end is head and tail of a plan, what stands
between is the text of its summary. The plan is checked like any other (agent/plugins/checks.py).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict
from itertools import takewhile
from typing import Any, ClassVar

from typing_extensions import override

from agent.context.phases.boundaries import assemble, fitting, starts_before
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Limits
from agent.messages import ChatMessage, ToolSchema, text_of
from agent.plugins.checks import ResultRefused
from agent.usage import Usage
from agent.view.view import render

GIVEN = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What an engine sees of a message: what OpenAI's API knows."""
STATE = dict.fromkeys(
    ("last_prompt_tokens", "last_completion_tokens", "last_total_tokens", "compression_count"), 0
) | {"protect_first_n": 3, "protect_last_n": 6}
"""What Hermes' base class gives its engines, before anything is known."""
LEFT_OUT = "(left out by the engine, without a summary)"


class ListEngine(ContextEngine):
    """Runs an engine of lists during one turn; `offered` returns it or its class."""

    offered: ClassVar[Callable[[], Any]]

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Make the engine with those of the options that its constructor takes."""
        super().__init__(limits, options)
        made = type(self).offered()
        self._inner = _called(made, **options) if isinstance(made, type) else deepcopy(made)
        for name, value in {**STATE, "threshold_percent": limits.threshold}.items():
            if not hasattr(self._inner, name):
                setattr(self._inner, name, value)
        for name in ("should_compress", "on_session_start", "on_session_reset", "handle_tool_call"):
            setattr(self, name, self._own(name, getattr(self, name)))
        self.update_model(limits)

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return the plan that shows the engine's list, or None if it left nothing out."""
        shown = render(request.plan, request.entries)
        given: list[Any] = [{k: v for k, v in each.items() if k in GIVEN} for each in shown]
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
            raise ResultRefused(f"it returned {type(returned).__name__}, not a list of messages")
        if not all(map(_is_message, returned)):
            raise ResultRefused("it returned a list with something that is no message")
        return _compressed(request, given, returned)

    @override
    def update_from_response(self, usage: Usage) -> None:
        """Report the usage in the words of Hermes."""
        super().update_from_response(usage)
        told = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
        told["total_tokens"] = sum(told.values())
        self._own("update_from_response", bool)(asdict(usage) | told)

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the engine's tools, bare or in OpenAI's envelope."""
        offered = [each.get("function", each) for each in self._own("get_tool_schemas", list)()]
        return tuple(
            ToolSchema(each["name"], each.get("description", ""), each.get("parameters", {}))
            for each in offered
        )

    @override
    def get_status(self) -> Mapping[str, Any]:
        return {"threshold_tokens": self._inner.threshold_tokens, **self._own("get_status", dict)()}

    @override
    def update_model(self, limits: Limits) -> None:
        """Set window and threshold, unless the engine computes its own."""
        super().update_model(limits)
        if isinstance(self._inner, ContextEngine):
            self._inner.limits, self._inner.options = limits, self.options
        for name in ("context_length", "threshold_tokens"):
            if not isinstance(getattr(type(self._inner), name, None), property):
                setattr(self._inner, name, getattr(limits, name))

    def _own(self, method: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the engine; the default for none, or for ours with other state."""
        found = getattr(self._inner, method, default)
        is_ours = getattr(found, "__func__", None) is getattr(ContextEngine, method)
        return default if is_ours else found


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function with those of the named arguments that it takes."""
    known = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    return function(*arguments, **{k: v for k, v in named.items() if takes_all or k in known})


def _is_message(message: Any) -> bool:
    is_map = isinstance(message, dict) and isinstance(message.get("role"), str)
    return is_map and isinstance(message.get("content"), str | list | None)


def _compressed(
    request: CompressionRequest, given: list[ChatMessage], returned: list[ChatMessage]
) -> Compressed | None:
    """Make a plan of head and tail that came back, and a summary of what stands between."""
    plan, entries = request.plan, request.entries
    cut, earlier = sum(e.seq <= plan.head_upto for e in entries), len(given) - len(entries)
    # A summary parts head and tail: what was cut before stays cut.
    tail = _agreeing(given[cut + earlier if earlier else 0 :][::-1], returned[::-1])
    head = _agreeing(given[: cut if earlier else len(given) - tail], returned[: -tail or None])
    between = returned[head : len(returned) - tail]
    # More is kept where no role of a summary fits.
    starts = starts_before(entries, len(entries) - tail)
    found = next(fitting(entries, ((head, start, ()) for start in starts)), None)
    if found is None:
        return None
    old = given[cut : cut + earlier]
    texts = [one.text for one in plan.summaries if any(message in old for message in between)]
    texts += [text_of(message).strip() for message in between if message not in old]
    if text := "\n\n".join(filter(None, texts)):
        return Compressed(assemble(request, found, text, "model"), "summary", 0)
    return Compressed(assemble(request, found, LEFT_OUT, "pointer"), "extract", 0)


def _agreeing(given: Iterable[ChatMessage], returned: Iterable[ChatMessage]) -> int:
    """Count the messages that are the same, from the first ones on; a result may be shortened."""
    pairs = zip(map(_key, given), map(_key, returned), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _key(message: ChatMessage) -> tuple[Any, ...]:
    calls = [call.get("id") for call in message.get("tool_calls") or ()]
    return message["role"], message.get("tool_call_id") or calls or text_of(message)
