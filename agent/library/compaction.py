"""Compaction as a library: a list of a caller's messages in and out, no database, no network."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import structlog

from agent.context.phases.sanitise import sanitise
from agent.context_compressor import ContextCompressor
from agent.context_engine import Compressed, CompressionRequest, ContextEngine, Level, Limits
from agent.errors import SummaryFailed
from agent.library.shapes import ShapedMessages
from agent.messages import ChatMessage, text_of
from agent.tokens.estimate import estimate_message, estimate_messages
from agent.view.view import NOTE, REFERENCE, Entry, Summary, ViewPlan, render

log = structlog.get_logger()

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
        summary: What stands for what is not in `messages`; None where nothing is left out. Hand it
            to the next call as `previous_summary` if you keep it apart from the messages.
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
    previous_summary: str | None = None,
) -> CompactionResult:
    """Return the messages, compacted to at most 60 % of `threshold` of the window.

    What is below that comes back unchanged, so a second call on a result changes nothing. A list
    that was compacted before is recognised by its summary message, which is then updated. Another
    engine than the default one has its own rule for what it leaves alone (docs/engines.md).

    Args:
        messages: In OpenAI's shape, a system message first if there is one; or in Anthropic's,
            whose system prompt stands elsewhere. Not changed; the result has the same shape.
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
        previous_summary: What stands for what was said before these messages; it is shown in front
            of them, and updated by the next compaction.

    Raises:
        ValueError: A number is out of its range (`context_length` and `protect_last_n` from 1,
            the two shares above 0 and up to 1), a message has no role, no engine has this name, or
            an option is none of the engine's.
    """
    limits = limits_of(context_length, threshold, target_ratio, protect_last_n)
    if engine == ContextCompressor.name and not options:
        chosen: ContextEngine = ContextCompressor(limits, {})
    else:
        # With plugins and settings: 150 modules that the default does not need.
        from agent.plugins.engines import engine_for  # noqa: PLC0415

        chosen = engine_for(engine, limits, options or {})
    view = CallersView.of(messages, previous_summary)
    before = estimate_messages(view.shown, model)
    request = view.request(limits, before, model=model, summarise=summarise, focus=focus)
    return view.result(chosen.compress(request), before, model)


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


@dataclass(slots=True)
class CallersView:
    """A caller's messages, and what is shown of them.

    Attributes:
        plan: Which are shown, and what stands for the rest.
        shown: The messages under that plan, the system message first if there is one; not fixed.
        replaced: Seq of a summary message that became a part of the plan; 0 for none.
    """

    shaped: ShapedMessages = field(default_factory=ShapedMessages)
    plan: ViewPlan = field(default_factory=ViewPlan)
    shown: list[ChatMessage] = field(default_factory=list)
    replaced: int = 0

    @classmethod
    def of(
        cls, messages: Iterable[Mapping[str, Any]], previous_summary: str | None = None
    ) -> "CallersView":
        """Take a list apart; an earlier summary becomes part of the plan.

        Raises:
            ValueError: A message has no role.
        """
        # What was said before has the number 1.
        view = cls(ShapedMessages(first_seq=2 if previous_summary else 1))
        view.shaped.extend(messages)
        view.shown = [entry.message for entry in view.shaped.entries]
        earlier = next((each for each in view.entries() if _is_summary(each.message)), None)
        if earlier is not None:
            view.plan = _resumed(earlier, previous_summary)
            view.replaced = earlier.seq
        elif previous_summary:
            view.plan = _continued(previous_summary, view.entries())
        if previous_summary:
            view.shown = view.rendered()
        return view

    @property
    def system(self) -> Entry | None:
        """The system message, where there is one in front."""
        first = self.shaped.entries[:1]
        return first[0] if first and first[0].message["role"] == "system" else None

    def entries(self) -> list[Entry]:
        """Return what was said: all but the system message, and a summary that the plan holds."""
        said = self.shaped.entries[1 if self.system else 0 :]
        return [each for each in said if each.seq != self.replaced] if self.replaced else said

    def append(self, message: Mapping[str, Any]) -> list[ChatMessage]:
        """Take one more message, which is shown; returns what it became.

        Raises:
            ValueError: It has no role.
        """
        fresh = [entry.message for entry in self.shaped.append(message)]
        self.shown += fresh
        return fresh

    def rendered(self) -> list[ChatMessage]:
        """Return the messages under the plan; the system message with its note."""
        shown = render(self.plan, self.entries())
        if (system := self.system) is None:
            return shown
        return [_with_note(system.message) if self.plan.compacted else system.message, *shown]

    def sendable(self) -> list[dict[str, Any]]:
        """Return what a provider takes, in the caller's shape."""
        return self.shaped.shown(sanitise(self.shown))

    def request(
        self,
        limits: Limits,
        tokens: int,
        *,
        model: str | None,
        summarise: Summarise | None = None,
        focus: str | None = None,
    ) -> CompressionRequest:
        """Return what an engine is asked for what is shown, which takes so many tokens."""
        fixed = sanitise(self.shown)
        # What fixing adds ("the conversation goes on") is there whatever the plan.
        is_sound = fixed is self.shown
        added = 0 if is_sound else max(0, estimate_messages(fixed, model) - tokens)
        return CompressionRequest(
            plan=self.plan,
            entries=self.plan.select(self.entries()),
            tokens=tokens + added,
            fixed_tokens=added + (estimate_message(self.shown[0], model) if self.system else 0),
            limits=limits,
            estimate=lambda message: estimate_message(message, model),
            trigger="threshold",
            focus=focus,
            summarise=guarded(summarise) if summarise else None,
            summary_window=limits.context_length,
            today=datetime.now(UTC).date().isoformat(),
        )

    def result(self, found: Compressed | None, before: int, model: str | None) -> CompactionResult:
        """Return what became of the messages; a plan that was found is in force from now on.

        Args:
            before: The estimate for what was shown.
            model: For whose tokenizer is estimated.
        """
        told = self.plan.summaries if found is None else found.plan.summaries
        summary = "\n\n".join(each.text for each in told) or None
        if found is None:
            return CompactionResult(self.sendable(), "none", before, before, [], summary=summary)
        self.plan = found.plan
        self.shown = self.rendered()
        return CompactionResult(
            messages=self.sendable(),
            level=found.level,
            tokens_before=before,
            tokens_after=estimate_messages(sanitise(self.shown), model),
            evicted=self._evicted(),
            failure=found.failure,
            summary=summary,
        )

    def _evicted(self) -> list[int]:
        """Return the positions that the plan does not show; an earlier summary is replaced."""
        shown = [entry.seq for entry in self.plan.select(self.entries())]
        return self.shaped.hidden([*shown, self.system.seq] if self.system else shown)


def _resumed(earlier: Entry, previous: str | None) -> ViewPlan:
    """Return the plan of a list that was compacted before."""
    text = text_of(earlier.message).partition("\n\n")[2]
    summary = Summary(
        text=text if previous is None or previous in text else f"{previous}\n\n{text}",
        first_seq=earlier.seq,
        last_seq=earlier.seq,
        role="assistant" if earlier.message["role"] == "assistant" else "user",
    )
    return ViewPlan(head_upto=earlier.seq - 1, summaries=(summary,), tail_from=earlier.seq + 1)


def _continued(previous: str, entries: Sequence[Entry]) -> ViewPlan:
    """Return the plan of a list before which more was said."""
    opens = entries[0].message["role"] if entries else "user"
    # Two messages of one role are refused by some servers; `sanitise` puts one of the user in front
    # of an assistant's.
    summary = Summary(
        previous, first_seq=1, last_seq=1, role="assistant" if opens == "user" else "user"
    )
    return ViewPlan(summaries=(summary,), tail_from=2)


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
    # In Anthropic's shape it is a list of one text.
    alone = isinstance(content, str) or (isinstance(content, list) and len(content) == 1)
    return spoken and alone and _SUMMARY.match(text_of(message)) is not None


_SUMMARY = re.compile(re.escape(REFERENCE) + r" \(messages \d+ to \d+\)\n\n")
