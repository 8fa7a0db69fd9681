"""The context features as a library: lists of messages in and out, without a gateway.

`compact_messages` works with any engine; `HistoryManager` is HelloAgents': messages are appended,
and older rounds leave the view as the engine `rounds` decides. docs/library.md shows both.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import structlog

from agent.context.boundaries import assemble
from agent.context_compressor import ContextCompressor
from agent.context_engine import (
    Compressed,
    CompressionRequest,
    ContextEngine,
    Level,
    Limits,
    Sizes,
    Summarise,
)
from agent.engines.rounds import HEADING, RoundsEngine, old_rounds, without_heading
from agent.errors import SummaryFailed
from agent.messages import ChatMessage, sanitise, text_of
from agent.plugins.engines import engine_for
from agent.tokens import estimate_message, estimate_messages
from agent.view.view import NOTE, REFERENCE, Entry, Summary, ViewPlan, render

log = structlog.get_logger()

CONTEXT_WINDOW = 128_000
"""In tokens. Source: HelloAgents' default."""
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of compacting a list of messages.

    Attributes:
        messages: Ready for a request; an unchanged message is the input dict itself.
        level: "none" if nothing was done, otherwise the lowest rung of the ladder used.
        tokens_before: Estimate for the input.
        tokens_after: Estimate for `messages`.
        evicted: Input positions that are not in `messages`, in order.
        failure: Reason why the text of `summarise` was not used; None if it was used or not
            requested.
        summary: Text for the evicted messages; None if nothing was removed.
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
    """Compact messages to at most 60 % of `threshold` of the window.

    A smaller list is returned unchanged, so a second call on a result changes nothing. A previously
    compacted list is recognised by its summary message, which is then updated. Other engines have
    their own rules for lists that they leave unchanged (docs/engines.md).

    Args:
        messages: In OpenAI's format, with an optional system message first. Not modified.
        context_length: The model's window in tokens.
        threshold: Share of the window at which to compact.
        target_ratio: Share of the threshold that stays verbatim at the end.
        protect_last_n: Newest messages that always stay (clipped if necessary).
        summarise: Called with a prompt and the maximum number of answer tokens. If None, or if it
            raises, the extractor writes the summary without a model.
        model: Name of the model whose tokenizer estimates; None for the largest estimate.
        engine: "compressor", "rounds", "lcm", the name of a registered engine, or a class. An
            engine that is not built in is supervised: if it fails, the compressor takes over.
        options: The engine's own settings, such as `{"min_retain_rounds": 5}` for "rounds".

    Raises:
        ValueError: A number is out of range (`context_length` and `protect_last_n` from 1, the two
            shares above 0 and up to 1), a message has no role or is in Anthropic's format, or the
            engine does not exist or lacks the option.
    """
    limits = _checked(Limits(context_length, threshold, target_ratio, protect_last_n))
    chosen = engine_for(engine, limits, options or {})
    return _compacted(messages, chosen.compress, limits, model, focus, summarise)[0]


class HistoryManager:
    """The messages of one conversation, and their view; not thread-safe."""

    def __init__(
        self,
        min_retain_rounds: int = 10,
        compression_threshold: float = 0.8,
        *,
        context_window: int = CONTEXT_WINDOW,
        model: str | None = None,
        summarise: Summarise | None = None,
    ) -> None:
        """Start without messages.

        Args:
            min_retain_rounds: Number of newest rounds that a compaction keeps complete. A round is
                one user message and everything that follows it.
            compression_threshold: Share of the window above which `should_compress` returns True.
            context_window: The model's window in tokens.
            model: Name of the model whose tokenizer estimates; None for the largest estimate.
            summarise: Writes the summary in five parts; None to count the rounds instead.

        Raises:
            ValueError: See `compact_messages`.
        """
        self.min_retain_rounds = min_retain_rounds
        limits = _checked(Limits(context_window, compression_threshold))
        told = "llm" if summarise else "simple"
        own = {"threshold": compression_threshold, "min_retain_rounds": min_retain_rounds}
        self._engine = RoundsEngine(limits, {**own, "summary": told})
        self._model, self._summarise = model, summarise
        self.clear()

    def append(self, message: Mapping[str, Any]) -> None:
        """Append a message in OpenAI's format; it is counted once.

        It must not be modified afterwards.

        Raises:
            ValueError: It has no role, or is in Anthropic's format.
        """
        own = _owned(message, len(self._originals))
        self._originals.append(own)
        self._view.append(own)
        self._tokens += estimate_message(own, self._model)

    def get_history(self) -> list[Message]:
        """Return the view, ready for a request, as a new list; unchanged messages are your dicts.

        A call without a result gets a stub, so that every provider accepts it.
        """
        return _sendable(self._view)

    def originals(self) -> list[Message]:
        """Return every appended message, in view or not."""
        return [*cast("list[Message]", self._originals)]

    def clear(self) -> None:
        """Forget all messages."""
        self._originals: list[ChatMessage] = []
        self._view: list[ChatMessage] = []
        self._tokens = 0

    def estimate(self) -> int:
        """Return the estimated tokens of the view, from the sum that `append` maintains."""
        return self._tokens

    def estimate_rounds(self) -> int:
        """Count the rounds of the view."""
        return len(self.find_round_boundaries())

    def find_round_boundaries(self) -> list[int]:
        """Return the positions in `get_history()` at which rounds start."""
        sent = enumerate(sanitise(self._view))
        return [n for n, each in sent if each["role"] == "user" and not each.get("synthetic")]

    def should_compress(self) -> bool:
        """Return whether the view exceeds its share of the window."""
        return self._engine.should_compress(self._tokens)

    def compress(self, summary: str | None = None, *, focus: str | None = None) -> CompactionResult:
        """Shrink the view; return level "none" if nothing can be removed.

        Args:
            summary: Replaces the older rounds and an earlier summary; None to have the engine write
                one.
            focus: Topic that gets most of the engine's summary.
        """
        own = None if summary is None else partial(_archived, summary, self.min_retain_rounds)
        asked = (self._engine.limits, self._model, focus, self._summarise)
        result, self._view = _compacted(self._view, own or self._engine.compress, *asked)
        self._tokens = estimate_messages(self._view, self._model)
        return result


def _archived(summary: str, retained: int, request: CompressionRequest) -> Compressed | None:
    if (cut := old_rounds(request, retained)) is None:
        return None
    text = f"{HEADING}\n\n{without_heading(summary)}"
    plan = assemble(request, cut, text, "model")
    return Compressed(plan, "summary", Sizes(request).view(plan))


def _checked(limits: Limits) -> Limits:
    for name in ("context_length", "protect_last_n"):
        if (number := getattr(limits, name)) < 1:
            raise ValueError(f"{name} must be positive, not {number}")
    for name in ("threshold", "target_ratio"):
        if not 0 < (share := getattr(limits, name)) <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {share}")
    return limits


def _guarded(summarise: Summarise) -> Summarise:
    """Convert every failure of the caller's function to SummaryFailed."""

    def ask(prompt: str, max_tokens: int) -> str:
        try:
            text = summarise(prompt, max_tokens)
        except SummaryFailed:
            raise
        # The caller's function may raise anything; then the extractor writes the summary.
        except Exception as exc:
            # Without the traceback, whose frames contain the prompt.
            log.warning("summary_call_failed", error=type(exc).__name__)
            raise SummaryFailed(f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(text, str):
            raise SummaryFailed(f"the summary is not text but {type(text).__name__}")
        return text

    return ask


def _compacted(
    messages: Iterable[Mapping[str, Any]],
    decide: Callable[[CompressionRequest], Compressed | None],
    limits: Limits,
    model: str | None,
    focus: str | None,
    summarise: Summarise | None,
) -> tuple[CompactionResult, list[ChatMessage]]:
    """Compact messages; return the result, and the view before it is prepared for a request."""
    given = [_owned(message, place) for place, message in enumerate(messages)]
    entries = [Entry(seq, message) for seq, message in enumerate(given, 1)]
    system = given[0] if given and given[0]["role"] == "system" else None
    said = entries if system is None else entries[1:]
    plan = ViewPlan()
    if earlier := next((each for each in said if _is_summary(each.message)), None):
        plan = _resumed(earlier)
        said = [each for each in said if each is not earlier]
    before = estimate_messages(given, model)
    # Every view contains the message that repairing adds ("the conversation goes on").
    fixed = sanitise(given)
    added = 0 if fixed is given else max(0, estimate_messages(fixed, model) - before)
    request = CompressionRequest(
        plan=plan,
        entries=plan.select(said),
        tokens=before + added,
        fixed_tokens=added + (estimate_message(system, model) if system else 0),
        limits=limits,
        estimate=partial(estimate_message, model=model),
        trigger="threshold",
        focus=focus,
        summarise=_guarded(summarise) if summarise else None,
        summary_window=limits.context_length,
        today=datetime.now(UTC).date().isoformat(),
    )
    found = decide(request)
    if found is None:
        summary = plan.summaries[0].text if plan.summaries else None
        return CompactionResult(_sendable(given), "none", before, before, [], None, summary), given
    front = [] if system is None else [_with_note(system) if found.plan.compacted else system]
    shown = [*front, *render(found.plan, said)]
    kept = {entry.seq for entry in found.plan.select(said)} | ({1} if system else set())
    return CompactionResult(
        messages=_sendable(shown),
        level=found.level,
        tokens_before=before,
        tokens_after=estimate_messages(sanitise(shown), model),
        evicted=[n for n in range(len(given)) if n + 1 not in kept],
        failure=found.failure,
        summary="\n\n".join(each.text for each in found.plan.summaries) or None,
    ), shown


def _owned(message: Mapping[str, Any], place: int) -> ChatMessage:
    """Check a caller's message; return the same dict."""
    content = message.get("content")
    if "role" not in message:
        raise ValueError(f"message {place} has no role")
    parts = content if isinstance(content, list) else ()
    if any(isinstance(part, dict) and part.get("type") in _ANTHROPIC for part in parts):
        raise ValueError(f"message {place} has blocks of Anthropic's shape, not OpenAI's")
    return cast("ChatMessage", message if isinstance(message, dict) else dict(message))


def _sendable(shown: Sequence[ChatMessage]) -> list[Message]:
    """Repair messages for a provider, and remove Parley's own key."""
    fixed = cast("list[Message]", sanitise([*shown]))
    return [
        {k: v for k, v in each.items() if k != "synthetic"} if "synthetic" in each else each
        for each in fixed
    ]


def _resumed(earlier: Entry) -> ViewPlan:
    text = text_of(earlier.message).partition("\n\n")[2]
    is_ours = earlier.message["role"] == "assistant"
    summary = Summary(text, earlier.seq, earlier.seq, "assistant" if is_ours else "user")
    return ViewPlan(head_upto=earlier.seq - 1, summaries=(summary,), tail_from=earlier.seq + 1)


def _with_note(system: ChatMessage) -> ChatMessage:
    """Add the note of the first compaction to the system message, once."""
    content = system.get("content")
    if text_of(system).endswith(NOTE):
        return system
    noted = [*content, {"type": "text", "text": NOTE}] if isinstance(content, list) else None
    return cast("ChatMessage", {**system, "content": noted or f"{content or ''}{NOTE}"})


def _is_summary(message: ChatMessage) -> bool:
    """Return whether `compact_messages` wrote a message; quoting its start does not count."""
    is_said = message["role"] in {"user", "assistant"} and isinstance(message.get("content"), str)
    return is_said and _SUMMARY.match(text_of(message)) is not None


_ANTHROPIC = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_SUMMARY = re.compile(re.escape(REFERENCE) + r" \(messages \d+ to \d+\)\n\n")
