"""The context engine `rounds`: HelloAgents' HistoryManager.

A round is one message of a person and everything that follows it. The newest rounds stay complete,
the older ones are archived as one summary; messages are never edited. What that cannot keep within
the window is left to the built-in compressor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from typing_extensions import override

from agent.context.extractor.extract import key_facts, retained_share
from agent.context.phases.assemble import assemble
from agent.context.phases.boundaries import Boundaries, first_said, leaving
from agent.context.phases.sizes import Sizes
from agent.context_compressor import ContextCompressor
from agent.context_engine import (
    Compressed,
    CompressionRequest,
    ContextEngine,
    Level,
    Limits,
    Trigger,
)
from agent.engines.archive import counted, is_ask, written
from agent.errors import SummaryFailed
from agent.settings import RoundsSettings
from agent.view import Entry

_MUST_SHRINK: frozenset[Trigger] = frozenset({"overflow", "hygiene", "manual"})


@dataclass(frozen=True, slots=True)
class Archive:
    """The text that stands for archived rounds, and where it comes from."""

    text: str
    source: Literal["model", "extract"]
    failure: str | None = None


class RoundsEngine(ContextEngine):
    """Keeps the newest complete rounds, and the first request; archives the rest."""

    name: ClassVar[str] = "rounds"

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Take the limits, and the settings under `context.rounds`."""
        super().__init__(limits, options)
        self._settings = RoundsSettings.model_validate(options)

    @override
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Tell whether the view is over its share of the window."""
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens > self._settings.threshold * self.limits.context_length

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Archive the older rounds; None where there are none and the view may stay as it is."""
        found = self._archived(request)
        tokens = request.tokens if found is None else found.tokens
        stuck = found is None and request.trigger in _MUST_SHRINK
        if not stuck and tokens <= request.limits.guard_tokens:
            return found
        own = ContextCompressor(request.limits, {}).compress(request)
        return replace(own, engine=ContextCompressor.name) if own else found

    def _archived(self, request: CompressionRequest) -> Compressed | None:
        cut = old_rounds(request, self._settings.min_retain_rounds)
        if cut is None:
            return None
        entries = leaving(request.entries, cut)
        archive = self._archive(entries, request)
        plan = assemble(request, cut, archive.text, archive.source)
        tokens = Sizes(request).view(plan)
        if tokens >= request.tokens:
            return None
        level: Level = "summary" if archive.source == "model" else "extract"
        share = retained_share(key_facts(entries), archive.text)
        return Compressed(plan, level, tokens, share, archive.failure)

    def _archive(self, entries: Sequence[Entry], request: CompressionRequest) -> Archive:
        earlier, failure = earlier_text(request), None
        if self._settings.summary == "llm" and request.summarise:
            try:
                return Archive(written(entries, earlier, request, request.summarise), "model")
            except SummaryFailed as exc:
                failure = str(exc)
        text = counted(entries, earlier, request.limits.max_summary_tokens)
        return Archive(text, "extract", failure)


def old_rounds(request: CompressionRequest, retained: int) -> Boundaries | None:
    """Return the cut before the newest rounds; None where there are no more than these.

    The first message of the conversation stays as the head and the summary answers it, so that
    roles alternate: a round, and so the tail, begins with a user message.
    """
    entries, plan = request.entries, request.plan
    starts = [n for n, entry in enumerate(entries) if entry.seq >= plan.tail_from and is_ask(entry)]
    if len(starts) <= retained or entries[0].message["role"] != "user":
        return None
    head_end = first_said(entries, 0) + 1
    if plan.tail_from and entries[0].seq > plan.head_upto:
        # Compacted before without a head: nothing can stand in front of that summary.
        return None
    cut = Boundaries(head_end=head_end, tail_start=starts[-retained], pinned=(), role="assistant")
    return cut if leaving(entries, cut) else None


def earlier_text(request: CompressionRequest) -> str:
    """Return what the plan in force says about rounds that were archived before."""
    return "\n\n".join(summary.text for summary in request.plan.summaries)
