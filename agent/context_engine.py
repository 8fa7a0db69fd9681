"""The contract of context engines, which select what the model sees when a view grows too large.

An engine receives a view and returns a plan (agent/view/view.py); it never modifies or stores
messages. Parley's planner (agent/context/planner.py) measures, asks the engine, checks its plan and
commits it. The default is agent/context_compressor.py; docs/engines.md explains how to write one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from agent.errors import ToolError
from agent.messages import ChatMessage, ToolSchema, Usage
from agent.view.view import (
    NOTE,
    Entry,
    Summary,
    SummarySource,
    ViewPlan,
    rewrite,
    summary_messages,
)


@dataclass(frozen=True, slots=True)
class Node:
    """A lossless engine's (agent/engines/lcm) summary of a range of a transcript.

    Leaves replace messages, higher nodes replace nodes. A node is stored with the compaction that
    created it and never changes; the plan lists the nodes in view.

    Attributes:
        number: Numbers the nodes of its conversation from 1.
        level: 0 for a leaf, otherwise one more than its highest child.
        first_seq: Start of its range, which has no gap and includes `last_seq`.
        source_tokens: Estimated size of the messages or children that it summarises.
        children: Numbers of the nodes that it condenses, in order; their ranges lie within its own.
    """

    number: int
    level: int
    first_seq: int
    last_seq: int
    text: str
    source: SummarySource
    tokens: int
    source_tokens: int
    children: tuple[int, ...] = ()


Trigger = Literal[
    "threshold", "preflight", "overflow", "hygiene", "manual", "prepare", "fallback", "repair"
]
"""The reason for a compaction.

threshold: after a step of the loop; preflight: before the first call of a turn; overflow: the
provider refused the request as too large; hygiene: before the turn, at 85 %; manual: `/compress`;
prepare: in the background, ahead of need; fallback: another model with a smaller window takes over;
repair: a provider rejects the request as malformed, so thoughts are removed (no engine is asked).
"""

Level = Literal["none", "prune", "summary", "short_summary", "extract", "clip_tail", "clip_newest"]
"""The lowest rung of the convergence ladder that a compaction needed; see docs/context.md, 5."""

Summarise = Callable[[str, int], str]
"""Returns a model's answer of at most the given number of tokens to a prompt; may block.

Raises:
    SummaryOverflow: The prompt is larger than the window; the error contains the size.
    SummaryFailed: No usable answer was returned.
"""

GUARD_SHARE = 0.85
"""Share of the window from which a compaction is never delayed."""
LEAST_GAIN = 0.05
"""The loop rejects a plan that saves less than this share of the savable tokens: it would
invalidate the cached prefix for almost nothing. A view that must shrink accepts any plan."""
LOOP_TRIGGERS: frozenset[Trigger] = frozenset({"threshold", "preflight"})
"""Triggers of the loop itself, which may wait until a compaction gains more."""
EstimateMessage = Callable[[ChatMessage], int]
"""Estimates the tokens of a message on the wire."""
Days = Sequence[tuple[int, str]]
"""(seq of a day's first message, ISO 8601 date), in order."""


@runtime_checkable
class Parts(Protocol):
    """A `Summarise` that stores summaries of parts until the whole is written; may block."""

    def find(self, key: str) -> str | None:
        """Return the text stored under a key, or None."""

    def keep(self, key: str, text: str) -> None:
        """Store a text durably before returning."""

    def note_cut(self, tokens: int, kept_tokens: int) -> None:
        """Record how many tokens of the newest answer are used."""


class Archive(Protocol):
    """Blocking read access to a turn's conversation, for engines, which run in threads."""

    @property
    def turn_begins_at(self) -> int:
        """Seq of the turn's first message; from there on everything uncompacted is in view."""

    def bodies(self, first_seq: int, last_seq: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return (seq, stored message) of an inclusive range, in order."""

    def nodes(self) -> Sequence[Node]:
        """Return all nodes, in order of number."""

    def find(self, words: str, limit: int, before_seq: int) -> Sequence[int]:
        """Search for words before `before_seq`; return the seqs of messages, best first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A model's window in tokens, and the shares of it that an engine uses."""

    context_length: int
    threshold: float = 0.50
    target_ratio: float = 0.20
    protect_last_n: int = 20

    def within(self, context_length: int) -> "Limits":
        """Return the limits for a fallback model with a smaller window.

        The view is compacted at the same size as before, or at 85 % of the new window.
        """
        most = min(self.threshold_tokens, int(context_length * GUARD_SHARE))
        return replace(self, context_length=context_length, threshold=most / context_length)

    @property
    def threshold_tokens(self) -> int:
        """Size of the view at which the loop starts a compaction."""
        return int(self.context_length * self.threshold)

    @property
    def tail_tokens(self) -> int:
        """Size of the newest messages that stay verbatim."""
        return int(self.threshold_tokens * self.target_ratio)

    @property
    def target_tokens(self) -> int:
        """Size that a compaction must reach: 60 % of the threshold."""
        return int(self.threshold_tokens * 0.6)

    @property
    def guard_tokens(self) -> int:
        """Size from which a compaction is never delayed: 85 % of the window."""
        return int(self.context_length * GUARD_SHARE)

    @property
    def max_summary_tokens(self) -> int:
        """Largest summary: 5 % of the window, at most 12,000."""
        return min(int(self.context_length * 0.05), 12_000)


@dataclass(frozen=True, slots=True)
class CompressionRequest:
    """The view to compact, and the resources that an engine may use.

    Attributes:
        entries: The originals shown by the plan, in order of seq.
        tokens: Measured size of the view, including tool schemas and system prompt.
        fixed_tokens: The part that no plan can change: system prompt and tool schemas.
        estimate: On the same scale as `tokens`.
        focus: Topic that gets most of the summary; None to weigh all topics equally.
        summarise: The summary model; None if there is none or it must not be asked now.
        prepared: A summary written ahead for this view.
        today: ISO 8601 date to note in a summary.
        recall: Becomes `ViewPlan.recall` of a new summary.
        days: Dates of the messages, if known.
    """

    plan: ViewPlan
    entries: Sequence[Entry]
    tokens: int
    fixed_tokens: int
    limits: Limits
    estimate: EstimateMessage
    trigger: Trigger
    focus: str | None = None
    summarise: Summarise | None = None
    summary_window: int = 200_000
    prepared: Summary | None = None
    today: str = ""
    recall: str = ""
    days: Days = ()

    def gains(self, tokens_after: int) -> bool:
        """Return whether reaching this size justifies a compaction; see `LEAST_GAIN`."""
        must_shrink = self.tokens >= self.limits.guard_tokens
        return must_shrink or self.pays(tokens_after)

    def pays(self, tokens_after: int) -> bool:
        """Return whether this size justifies a prefix change; always true outside the loop."""
        if self.trigger not in LOOP_TRIGGERS:
            return True
        return self.tokens - tokens_after >= LEAST_GAIN * (self.tokens - self.fixed_tokens)


@dataclass(frozen=True, slots=True)
class Compressed:
    """A plan that shrinks the view.

    Attributes:
        level: The rung of the ladder that was needed.
        tokens: Estimated size of the view under this plan, on the request's scale.
        retained_share: Share of the extractor's key facts that the summary contains, 0 to 1; None
            without a new summary or if it was written ahead.
        failure: Reason why the summary model's text was not used; None if it was used or not asked
            for.
        engine: The engine that made the plan, if not the requested one.
        nodes: New nodes to store with the plan; only the engine `lcm` creates any.
    """

    plan: ViewPlan
    level: Level
    tokens: int
    retained_share: float | None = None
    failure: str | None = None
    engine: str = ""
    nodes: tuple[Node, ...] = ()


class Sizes:
    """Token sizes of one request's view under different plans; each original is counted once."""

    def __init__(self, request: CompressionRequest) -> None:
        self._request = request
        # Keyed by identity: unedited messages are the stored objects. Keeping them prevents id
        # reuse.
        self._originals = {id(entry.message): entry.message for entry in request.entries}
        self._counted: dict[int, int] = {}
        self._note_tokens = request.estimate(ChatMessage(role="system", content=NOTE))

    def message(self, message: ChatMessage) -> int:
        """Return the tokens of a message."""
        key = id(message)
        if key not in self._originals:
            return self._request.estimate(message)
        if key not in self._counted:
            self._counted[key] = self._request.estimate(message)
        return self._counted[key]

    def view(self, plan: ViewPlan) -> int:
        """Return the size of the whole view under a plan, including its fixed part."""
        return self.fixed(plan) + sum(self.shown(plan).values()) + self.summaries(plan)

    def fixed(self, plan: ViewPlan) -> int:
        """Return the size of the fixed part; the first compaction adds its note."""
        noted = plan.compacted and not self._request.plan.compacted
        return self._request.fixed_tokens + (self._note_tokens if noted else 0)

    def shown(self, plan: ViewPlan) -> dict[int, int]:
        """Return the size of each message that the plan shows, by seq."""
        shown = plan.select(self._request.entries)
        pairs = zip(shown, rewrite(plan, shown), strict=True)
        return {entry.seq: self.message(message) for entry, message in pairs}

    def summaries(self, plan: ViewPlan) -> int:
        """Return the size of the messages that contain the summaries."""
        return sum(map(self._request.estimate, summary_messages(plan)))


class ContextEngine(ABC):
    """One conversation's engine during one turn.

    Instances are cheap: each turn creates its own. State that must outlive the turn belongs in the
        plan.
    Methods are never called concurrently; `compress` and `handle_tool_call` run outside the event
    loop
    and may block.
    """

    name: ClassVar[str]
    """Its name in `context.engine`."""
    prepares: ClassVar[bool] = False
    """Whether it uses summaries written ahead (`CompressionRequest.prepared`)."""
    prepares_parts: ClassVar[bool] = False
    """Whether such a summary covers only the oldest messages not yet summarised in the plan."""

    def __init__(self, limits: Limits | None = None, options: Mapping[str, Any] = {}) -> None:
        """Initialize with the model's limits and the engine's options.

        A built-in engine's options come from its block under `context:`, a plugin's from
        `plugins.options`. Hermes creates its engines without any.
        """
        self.limits = limits or Limits(0)
        self.options = options
        self.prompt_tokens = 0

    def update_from_response(self, usage: Usage) -> None:
        """Receive the usage that the model reported for the newest call."""
        self.prompt_tokens = usage.prompt_tokens

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Return whether a view of this size, or of the last reported one, needs a compaction."""
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens >= self.limits.threshold_tokens

    def should_compress_preflight(self, prompt_tokens: int) -> bool:
        """The same before a turn's first call; like `should_compress` by default."""
        return self.should_compress(prompt_tokens)

    @abstractmethod
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Return a plan that shrinks the view, or None if nothing can be removed.

        The plan must show the newest user message, must not split a group of tool calls and their
        results, and must not show messages that the current plan omits. An engine that breaks these
        rules, raises or takes too long is replaced by the built-in compressor, with a warning.
        """

    def prepare(self, request: CompressionRequest) -> Summary | None:  # noqa: ARG002 - optional
        """Write a summary ahead of need if `prepares`; return None if it is not needed yet.

        Raises:
            SummaryFailed: The summary model returned nothing usable.
        """
        return None

    def attach(self, archive: Archive) -> None:  # noqa: B027 - optional
        """Receive blocking access to the conversation's records, for `compress` and the tools."""

    def on_session_start(self, session_id: str) -> None:  # noqa: B027 - optional
        """Receive the segment in which the turn begins; called before any other method."""

    def on_session_end(self, session_id: str) -> None:  # noqa: B027 - optional
        """Called when a compaction has ended the segment, or the turn is over."""

    def on_session_reset(self) -> None:  # noqa: B027 - optional
        """Called when the conversation was restarted (`/new`, a daily or idle reset)."""

    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the tools that this engine offers to the model; always the same."""
        return ()

    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: ARG002 - optional
        """Run one of these tools and return its result; raise `ToolError` for the model."""
        raise ToolError(f"the engine {self.name} offers no tool {name!r}")

    def get_status(self) -> Mapping[str, Any]:
        """Return JSON values for `/status` and `parley engines list`."""
        return {"threshold_tokens": self.limits.threshold_tokens}

    def update_model(self, limits: Limits) -> None:
        """Receive the limits of another model (a fallback with another window)."""
        self.limits = limits
