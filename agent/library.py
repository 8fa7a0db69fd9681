"""Compaction as a library: lists of OpenAI chat messages in and out, no database, no network."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import structlog

from agent.context.phases.sanitise import sanitise
from agent.context_compressor import ContextCompressor
from agent.context_engine import CompressionRequest, Level, Limits
from agent.errors import SummaryFailed
from agent.messages import ChatMessage, text_of
from agent.prompt_caching import apply_cache_control
from agent.tokens.estimate import estimate_message, estimate_messages, estimate_tokens
from agent.view.view import NOTE, REFERENCE, Entry, Summary, ViewPlan, render

__all__ = [
    "CompactionResult",
    "SummaryFailed",
    "apply_cache_control",
    "compact_messages",
    "estimate_tokens",
]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What became of a list of messages.

    Attributes:
        messages: Ready for a request; the input's own dicts where a message is unchanged.
        level: "none" if nothing had to be done, else how far the compaction had to go.
        tokens_before: Estimate for the input.
        tokens_after: Estimate for `messages`.
        evicted: Positions of the input that are not in `messages`, in order.
        failure: Why the text of `summarise` was not used; None if it was, or was not asked for.
    """

    messages: list[dict[str, Any]]
    level: Level
    tokens_before: int
    tokens_after: int
    evicted: list[int]
    failure: str | None = None


def compact_messages(  # noqa: PLR0913 - the customer's signature
    messages: Sequence[dict[str, Any]],
    *,
    context_length: int,
    threshold: float = 0.5,
    target_ratio: float = 0.2,
    protect_last_n: int = 20,
    focus: str | None = None,
    summarise: Callable[[str, int], str] | None = None,
    model: str | None = None,
) -> CompactionResult:
    """Return the messages, compacted to at most 60 % of `threshold` of the window.

    What is below that comes back unchanged, so a second call on a result changes nothing. A list
    that was compacted before is recognised by its summary message, which is then updated.

    Args:
        messages: OpenAI chat messages, a system message first if there is one. Not changed.
        context_length: The model's window in tokens.
        threshold: Share of the window at which one would compact.
        target_ratio: Share of the threshold that stays verbatim at the end.
        protect_last_n: Newest messages that stay in any case (clipped if they must).
        focus: What the summary is to dwell on.
        summarise: Called with a prompt and the most tokens to answer with; None: the extractor
            writes the summary, without any model. It does so too where this raises anything.
        model: Name of the model for whose tokenizer is estimated; None: the largest estimate.

    Raises:
        ValueError: A number is out of its range (`context_length` and `protect_last_n` from 1,
            the two shares above 0 and up to 1), or a message has no role.
    """
    _check(context_length, threshold, target_ratio, protect_last_n)
    if nameless := [n for n, message in enumerate(messages) if "role" not in message]:
        raise ValueError(f"messages without a role: {nameless[:5]}")
    taken = ParsedMessages.of(cast("Sequence[ChatMessage]", messages))
    before = estimate_messages(taken.all, model)
    mended = sanitise(taken.all)
    # What mending adds ("the conversation goes on") is there whatever the plan.
    added = 0 if mended is taken.all else max(0, estimate_messages(mended, model) - before)
    request = CompressionRequest(
        plan=taken.plan,
        entries=taken.entries,
        tokens=before + added,
        fixed_tokens=added + (estimate_message(taken.system, model) if taken.system else 0),
        limits=Limits(context_length, threshold, target_ratio, protect_last_n),
        estimate=lambda message: estimate_message(message, model),
        trigger="threshold",
        focus=focus,
        summarise=_guarded(summarise) if summarise else None,
        summary_window=context_length,
        today=datetime.now(UTC).date().isoformat(),
    )
    found = ContextCompressor(request.limits, {}).compress(request)
    if found is None:
        return CompactionResult(_sendable(taken.all), "none", before, before, [])
    shown = _sendable(taken.render(found.plan))
    return CompactionResult(
        messages=shown,
        level=found.level,
        tokens_before=before,
        tokens_after=estimate_messages(cast("list[ChatMessage]", shown), model),
        evicted=taken.evicted(found.plan),
        failure=found.failure,
    )


def _guarded(summarise: Callable[[str, int], str]) -> Callable[[str, int], str]:
    """Return the caller's function with every failure of it as SummaryFailed."""

    def ask(prompt: str, max_tokens: int) -> str:
        try:
            text = summarise(prompt, max_tokens)
        except SummaryFailed:
            raise
        # The caller's function may raise anything; the extractor writes the summary then.
        except Exception as exc:
            log.warning("summary_call_failed", error=type(exc).__name__, exc_info=exc)
            raise SummaryFailed(f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(text, str):
            raise SummaryFailed(f"the summary is no text but {type(text).__name__}")
        return text

    return ask


def _check(context_length: int, threshold: float, target_ratio: float, protect_last_n: int) -> None:
    for name, number in (("context_length", context_length), ("protect_last_n", protect_last_n)):
        if number < 1:
            raise ValueError(f"{name} must be positive, not {number}")
    for name, share in (("threshold", threshold), ("target_ratio", target_ratio)):
        if not 0 < share <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {share}")


@dataclass(frozen=True, slots=True)
class ParsedMessages:
    """A list of messages as system prompt, plan and entries; `seq` is the position plus one."""

    all: list[ChatMessage]
    system: ChatMessage | None
    entries: list[Entry]
    plan: ViewPlan

    @classmethod
    def of(cls, messages: Sequence[ChatMessage]) -> "ParsedMessages":
        """Take a list apart; an earlier summary becomes part of the plan."""
        every = list(messages)
        system = every[0] if every and every[0]["role"] == "system" else None
        numbered = list(map(Entry, range(1, len(every) + 1), every))
        entries = numbered[1:] if system else numbered
        earlier = next((entry for entry in entries if _is_summary(entry.message)), None)
        if earlier is None:
            return cls(every, system, entries, ViewPlan())
        summary = Summary(
            text=text_of(earlier.message).partition("\n\n")[2],
            first_seq=earlier.seq,
            last_seq=earlier.seq,
            role="assistant" if earlier.message["role"] == "assistant" else "user",
        )
        plan = ViewPlan(head_upto=earlier.seq - 1, summaries=(summary,), tail_from=earlier.seq + 1)
        return cls(every, system, [entry for entry in entries if entry is not earlier], plan)

    def render(self, plan: ViewPlan) -> list[ChatMessage]:
        """Return the messages under another plan; the system message with its note."""
        shown = render(plan, self.entries)
        if self.system is None:
            return shown
        return [_with_note(self.system) if plan.compacted else self.system, *shown]

    def evicted(self, plan: ViewPlan) -> list[int]:
        """Return the positions that a plan does not show; an earlier summary is replaced."""
        first = 1 if self.system else 0
        shown = {entry.seq for entry in plan.select(self.entries)}
        return [n for n in range(first, len(self.all)) if n + 1 not in shown]


def _with_note(system: ChatMessage) -> ChatMessage:
    """Return the system message with the note of the first compaction, once."""
    content = system.get("content")
    if text_of(system).endswith(NOTE):
        return system
    noted = [*content, {"type": "text", "text": NOTE}] if isinstance(content, list) else None
    return cast("ChatMessage", {**system, "content": noted or f"{content or ''}{NOTE}"})


def _sendable(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return what a provider takes: mended, and without Parley's own key."""
    return [_plain(message) for message in sanitise(messages)]


def _plain(message: ChatMessage) -> dict[str, Any]:
    plain = cast("dict[str, Any]", message)
    if "synthetic" not in message:
        return plain
    return {key: value for key, value in plain.items() if key != "synthetic"}


def _is_summary(message: ChatMessage) -> bool:
    """Whether a message was written by `compact_messages`; a quotation of its start is none."""
    content = message.get("content")
    spoken = message["role"] in {"user", "assistant"}
    return spoken and isinstance(content, str) and _SUMMARY.match(content) is not None


_SUMMARY = re.compile(re.escape(REFERENCE) + r" \(messages \d+ to \d+\)\n\n")
