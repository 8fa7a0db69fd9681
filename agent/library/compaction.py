"""Compaction as a library: a list of a caller's messages in and out, no database, no network."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import structlog

from agent.context.phases.sanitise import sanitise
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Level, Limits
from agent.errors import SummaryFailed
from agent.messages import ChatMessage, text_of
from agent.plugins.engines import engine_for
from agent.tokens.estimate import estimate_message, estimate_messages
from agent.view.view import NOTE, REFERENCE, Entry, Summary, ViewPlan, render

log = structlog.get_logger()

Message = dict[str, Any]
Summarise = Callable[[str, int], str]
"""A caller's function: gets a prompt and the most tokens to answer with."""


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
        summary: What stands for what is not in `messages`; None where nothing is left out.
    """

    messages: list[dict[str, Any]]
    level: Level
    tokens_before: int
    tokens_after: int
    evicted: list[int]
    failure: str | None = None
    summary: str | None = None


def compact_messages(  # noqa: PLR0913 - the customer's signature
    messages: Sequence[Mapping[str, Any]],
    *,
    context_length: int,
    threshold: float = 0.5,
    target_ratio: float = 0.2,
    protect_last_n: int = 20,
    focus: str | None = None,
    summarise: Summarise | None = None,
    model: str | None = None,
    engine: str | type[ContextEngine] = ContextCompressor.name,
    options: Mapping[str, Any] | None = None,
) -> CompactionResult:
    """Return the messages, compacted to at most 60 % of `threshold` of the window.

    What is below that comes back unchanged, so a second call on a result changes nothing. A list
    that was compacted before is recognised by its summary message, which is then updated. Another
    engine than the default one has its own rule for what it leaves alone (docs/engines.md).

    Args:
        messages: In OpenAI's shape, a system message first if there is one. Not changed.
        context_length: The model's window in tokens.
        threshold: Share of the window at which one would compact.
        target_ratio: Share of the threshold that stays verbatim at the end.
        protect_last_n: Newest messages that stay in any case (clipped if they must).
        summarise: Called with a prompt and the most tokens to answer with; None: the extractor
            writes the summary, without any model. It does so too where this raises anything.
        model: Name of the model for whose tokenizer is estimated; None: the largest estimate.
        engine: Who decides: "compressor", "rounds", "lcm", the name of a registered engine, or a
            class. What is not built in is supervised: where it fails the compressor takes over.
        options: The engine's own settings, such as `{"min_retain_rounds": 5}` for "rounds".

    Raises:
        ValueError: A number is out of its range (`context_length` and `protect_last_n` from 1,
            the two shares above 0 and up to 1), a message has no role or is of Anthropic's shape,
            no engine has this name, or an option is none of the engine's.
    """
    limits = limits_of(context_length, threshold, target_ratio, protect_last_n)
    chosen = engine_for(engine, limits, options or {})
    asking = Asking(limits, model, focus, summarise)
    result, _ = compacted(messages, chosen.compress, asking)
    return result


def limits_of(
    context_length: int, threshold: float, target_ratio: float = 0.2, protect_last_n: int = 20
) -> Limits:
    """Return the limits that an engine works with.

    Raises:
        ValueError: A number is out of its range.
    """
    for name, number in (("context_length", context_length), ("protect_last_n", protect_last_n)):
        if number < 1:
            raise ValueError(f"{name} must be positive, not {number}")
    for name, share in (("threshold", threshold), ("target_ratio", target_ratio)):
        if not 0 < share <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {share}")
    return Limits(context_length, threshold, target_ratio, protect_last_n)


def guarded(summarise: Summarise) -> Summarise:
    """Return the caller's function with every failure of it as SummaryFailed."""

    def ask(prompt: str, max_tokens: int) -> str:
        try:
            text = summarise(prompt, max_tokens)
        except SummaryFailed:
            raise
        # The caller's function may raise anything; the extractor writes the summary then.
        except Exception as exc:
            # Without the traceback: by default its frames are printed, and they hold the prompt.
            log.warning("summary_call_failed", error=type(exc).__name__)
            raise SummaryFailed(f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(text, str):
            raise SummaryFailed(f"the summary is no text but {type(text).__name__}")
        return text

    return ask


@dataclass(frozen=True, slots=True)
class Asking:
    """How an engine is asked; see `compact_messages`."""

    limits: Limits
    model: str | None = None
    focus: str | None = None
    summarise: Summarise | None = None


def compacted(
    messages: Iterable[Mapping[str, Any]],
    decide: Callable[[CompressionRequest], Compressed | None],
    asking: Asking,
) -> tuple[CompactionResult, list[ChatMessage]]:
    """Have messages compacted as `decide` says; an earlier summary in them becomes a part of it.

    Returns:
        What became of them, and the messages of the view before they are made ready for a request.

    Raises:
        ValueError: A message has no role, or is of Anthropic's shape.
    """
    given = [owned(message, place) for place, message in enumerate(messages)]
    entries = [Entry(seq, message) for seq, message in enumerate(given, 1)]
    has_system = bool(given) and given[0]["role"] == "system"
    system, said = (given[0], entries[1:]) if has_system else (None, entries)
    plan = ViewPlan()
    if earlier := next((each for each in said if _is_summary(each.message)), None):
        plan = _resumed(earlier)
        said = [each for each in said if each is not earlier]
    before = estimate_messages(given, asking.model)
    found = decide(_request(plan, said, given, before, asking))
    if found is None:
        summary = plan.summaries[0].text if plan.summaries else None
        return CompactionResult(sendable(given), "none", before, before, [], None, summary), given
    shown = _shown(system, found.plan, said)
    kept = {entry.seq for entry in found.plan.select(said)} | ({1} if system else set())
    result = CompactionResult(
        messages=sendable(shown),
        level=found.level,
        tokens_before=before,
        tokens_after=estimate_messages(sanitise(shown), asking.model),
        evicted=[n for n in range(len(given)) if n + 1 not in kept],
        failure=found.failure,
        summary="\n\n".join(each.text for each in found.plan.summaries) or None,
    )
    return result, shown


def owned(message: Mapping[str, Any], place: int) -> ChatMessage:
    """Return a caller's message as it is, the very dict.

    Raises:
        ValueError: It has no role, or is of Anthropic's shape.
    """
    content = message.get("content")
    if "role" not in message:
        raise ValueError(f"message {place} has no role")
    if isinstance(content, list) and any(map(_is_anthropic, content)):
        raise ValueError(f"message {place} has blocks of Anthropic's shape, not OpenAI's")
    return cast("ChatMessage", message if isinstance(message, dict) else dict(message))


def sendable(shown: Sequence[ChatMessage]) -> list[Message]:
    """Return what a provider takes, without Parley's own key."""
    fixed = cast("list[Message]", sanitise([*shown]))
    return [
        {key: value for key, value in message.items() if key != "synthetic"}
        if "synthetic" in message
        else message
        for message in fixed
    ]


def _shown(system: ChatMessage | None, plan: ViewPlan, said: Sequence[Entry]) -> list[ChatMessage]:
    """Return the messages under a plan, the system message with its note."""
    front = [] if system is None else [_with_note(system) if plan.compacted else system]
    return [*front, *render(plan, said)]


def _request(
    plan: ViewPlan, said: Sequence[Entry], shown: list[ChatMessage], tokens: int, asking: Asking
) -> CompressionRequest:
    """Return what an engine is asked for what is shown, which takes so many tokens."""
    fixed, model = sanitise(shown), asking.model
    # What fixing adds ("the conversation goes on") is there whatever the plan.
    added = 0 if fixed is shown else max(0, estimate_messages(fixed, model) - tokens)
    is_system = bool(shown) and shown[0]["role"] == "system"
    return CompressionRequest(
        plan=plan,
        entries=plan.select(said),
        tokens=tokens + added,
        fixed_tokens=added + (estimate_message(shown[0], model) if is_system else 0),
        limits=asking.limits,
        estimate=lambda message: estimate_message(message, model),
        trigger="threshold",
        focus=asking.focus,
        summarise=guarded(asking.summarise) if asking.summarise else None,
        summary_window=asking.limits.context_length,
        today=datetime.now(UTC).date().isoformat(),
    )


def _resumed(earlier: Entry) -> ViewPlan:
    """Return the plan of a list that was compacted before."""
    summary = Summary(
        text=text_of(earlier.message).partition("\n\n")[2],
        first_seq=earlier.seq,
        last_seq=earlier.seq,
        role="assistant" if earlier.message["role"] == "assistant" else "user",
    )
    return ViewPlan(head_upto=earlier.seq - 1, summaries=(summary,), tail_from=earlier.seq + 1)


def _with_note(system: ChatMessage) -> ChatMessage:
    """Return the system message with the note of the first compaction, once."""
    content = system.get("content")
    if text_of(system).endswith(NOTE):
        return system
    noted = [*content, {"type": "text", "text": NOTE}] if isinstance(content, list) else None
    return cast("ChatMessage", {**system, "content": noted or f"{content or ''}{NOTE}"})


def _is_summary(message: ChatMessage) -> bool:
    """Whether a message was written by `compact_messages`; a quotation of its start is none."""
    content = message.get("content")
    spoken = message["role"] in {"user", "assistant"}
    return spoken and isinstance(content, str) and _SUMMARY.match(content) is not None


def _is_anthropic(part: object) -> bool:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return kind in {"tool_use", "tool_result", "thinking", "redacted_thinking"}


_SUMMARY = re.compile(re.escape(REFERENCE) + r" \(messages \d+ to \d+\)\n\n")
