"""The planner: every compaction of a view happens here.

The loop calls it before every model call (`keep_within`) and when a provider refuses a request as
too large (`shrink`); the gateway's hygiene and `/compress` call `compact`. All share one engine,
one meter and one state, which is committed with the compaction. `fit` adapts the view to a
fallback.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import ParamSpec, TypeVar

import structlog

from agent import spans
from agent.context.boundaries import newest_ask
from agent.context.meter import Measure, TokenMeter
from agent.context.summary_model import TRANSIENT_COOLDOWN_S, Summariser, SummaryCalls
from agent.context_engine import (
    Compressed,
    CompressionRequest,
    ContextEngine,
    Days,
    Limits,
    Trigger,
)
from agent.errors import SummaryFailed
from agent.messages import ChatMessage, Usage, chars_of
from agent.models.base import ChatModel, PrefixWatch
from agent.ports import Compaction, CompactionStore, PlannerState, Spending
from agent.processes.threads import in_daemon
from agent.view.view import Summary, View

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

MAX_PREFLIGHT_PASSES = 3
MAX_OVERFLOWS = 3
PRESSURE_SHARE = 0.85
"""Share of the threshold at which pressure is reported."""
AHEAD_SHARE = 0.80
"""Share of the threshold from which a summary is written ahead of need."""
POOR_SAVING = 0.10
POOR_SAVINGS_UNTIL_PAUSE = 2
RESUME_GROWTH = 1.10
"""Anti-thrash, see docs/context.md, 3: after two consecutive compactions that save less than 10 %,
the loop's own compactions pause until the view has grown by 10 %."""
MOST_COUNTED_CHARS = 100_000
"""More new text is counted in a thread: encoding this much takes 10 ms."""
LONGEST_COOLDOWN_S = 600.0
"""Longest cooldown of the summary model; a longer one was stored by a different clock."""
PAUSED = "not asked: the summary model failed a short time ago"
NO_BUDGET = "not asked: a budget is used up"
NO_TIME = "not asked: the time went by with waiting for a summary under way"


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The settings of a turn's compactions, and the models of their summaries.

    Attributes:
        enabled: `compression.enabled`; if False, the view is compacted only after a provider's
            refusal.
        summariser: None if no model writes summaries.
        recall: Hint in a new summary on how to recall more (`agent.view.view.recall_text`).
    """

    enabled: bool = True
    summariser: Summariser | None = None
    spending: Spending | None = None
    recall: str = ""


@dataclass(slots=True)
class Planner:
    """Keeps one turn's view within the window.

    Attributes:
        engine: Decides when and how to compact; belongs to this turn alone.
        watch: Notified when a compaction changes the sent prefix.
        overflows: Number of times the view was refused as too large.
    """

    engine: ContextEngine
    meter: TokenMeter
    store: CompactionStore
    session_id: str
    rules: CompactionRules = field(default_factory=CompactionRules)
    state: PlannerState = field(default_factory=PlannerState)
    watch: PrefixWatch = field(default_factory=PrefixWatch)
    calls: int = field(default=0, init=False)
    overflows: int = field(default=0, init=False)
    pressed: bool = field(default=False, init=False)

    async def measured(self, view: View) -> Measure:
        """Return the size of the view, including tool schemas.

        Without a report every message is counted, in a thread if the view is long.
        """
        known_upto = self.meter.report.upto_seq if self.meter.report else 0
        added = takewhile(lambda entry: entry.seq > known_upto, reversed(view.entries))
        if sum(chars_of(entry.message) for entry in added) > MOST_COUNTED_CHARS:
            return await _in_thread(self.meter.measure, view)
        return self.meter.measure(view)

    async def keep_within(self, view: View) -> None:
        """Compact the view if it has reached the engine's threshold; called before each call."""
        first, self.calls = self.calls == 0, self.calls + 1
        if not self.rules.enabled:
            return
        fires = self.engine.should_compress_preflight if first else self.engine.should_compress
        for _ in range(MAX_PREFLIGHT_PASSES):
            tokens = (await self.measured(view)).tokens
            if not fires(tokens) or self._held_back(tokens):
                break
            if await self.compact(view, "preflight" if first else "threshold") is None:
                # Compacting again before the next call cannot shrink it: wait until it grows.
                self.state = replace(self.state, paused_at_tokens=tokens)
                break
        self._look_ahead((await self.measured(view)).tokens)

    async def fit(self, view: View, model: ChatModel, *, compacts: bool = True) -> bool:
        """Adapt the view to a model; compact it first if the model's window is smaller.

        A fallback's view is compacted at the main model's threshold or at 85 % of its own window,
        whichever comes later: the compaction remains when the main model returns.

        Returns whether the window is smaller than the last and the view is under its threshold.
        """
        limits, window = self.engine.limits, model.context_length
        fallback = self.meter.model != model.name
        if fallback:
            self.meter = self.meter.for_model(model.name)
        if limits.context_length <= window:
            return False
        narrower = limits.within(window) if fallback else replace(limits, context_length=window)
        self.engine.update_model(narrower)
        if not self.engine.should_compress((await self.measured(view)).tokens):
            return True
        if compacts and self.rules.enabled:
            await self.compact(view, "fallback")
        return False

    async def repair(self, view: View) -> bool:
        """Remove the model's thoughts so far; return False if there are none.

        Signed thinking is bound to the exact conversation before it; providers refuse it elsewhere.
        """
        newest = view.entries[-1].seq
        thought = (entry for entry in view.entries if "opaque" in entry.message)
        if all(entry.seq < view.plan.thinking_from for entry in thought):
            return False
        plan = replace(view.plan, thinking_from=newest + 1)
        tokens = (await self.measured(view)).tokens
        after = View(view.system, plan, list(view.entries))
        compaction = Compaction(
            plan=plan,
            trigger="repair",
            engine="none",
            level="none",
            messages_before=len(view.messages),
            messages_after=len(view.messages),
            tokens_before=tokens,
            tokens_after=tokens,
            duration_ms=0,
            cache_tokens_lost=tokens,
        )
        await self._adopt(view, after, compaction, self.state)
        return True

    async def shrink(self, view: View, model: ChatModel) -> bool:
        """Compact after the provider refused the view as too large; return False if that is futile.

        A view below the threshold of the window named in the refusal stays unchanged: the assumed
        window or the answer's length was too large.
        """
        if await self.fit(view, model, compacts=False):
            return True
        self.overflows += 1
        if not self.rules.enabled or self.overflows > MAX_OVERFLOWS:
            return False
        return await self.compact(view, "overflow") is not None

    def note(self, usage: Usage, view: View) -> None:
        """Record the usage of a call on this view, before its answer is added."""
        self.meter.note(usage, view, view.entries[-1].seq + 1)
        self.engine.update_from_response(usage)

    async def compact(
        self,
        view: View,
        trigger: Trigger,
        *,
        focus: str | None = None,
        timeout_s: float | None = None,
    ) -> Compaction | None:
        """Have the engine shrink the view, commit the result, and apply the new plan to the view.

        Args:
            trigger: The summary model's cooldown applies only to the loop's own compactions.
            focus: Topic that gets most of the summary.
            timeout_s: Limit for the summary model, after which the extractor takes over.

        Returns:
            The compaction, or None if nothing could be removed.
        """
        with spans.span("compaction", trigger=trigger) as here:
            done = await self._compacted(view, trigger, focus, timeout_s)
            if done is None:
                here.note(outcome="nothing")
            else:
                here.note(outcome="done", level=done.level, engine=done.engine)
                here.note(tokens_before=done.tokens_before, tokens_after=done.tokens_after)
        return done

    async def _compacted(
        self, view: View, trigger: Trigger, focus: str | None, timeout_s: float | None
    ) -> Compaction | None:
        started = time.monotonic()
        prepared, unasked = await self._prepared(trigger, timeout_s)
        if timeout_s is not None:
            timeout_s -= time.monotonic() - started
        calls = None
        # Besides the prepared parts, others still have to be written.
        if unasked is None and (prepared is None or self.engine.prepares_parts):
            calls, unasked = await self._summary_calls(trigger, timeout_s)
        try:
            request = await self._request(view, trigger, focus, calls)
            request = replace(request, prepared=prepared)
            found = await _in_thread(self.engine.compress, request)
        finally:
            if calls is not None:
                # Also after a failure: the provider bills the input.
                calls.close()
                await self.store.book(calls.spent)
        if found is None or not request.gains(found.tokens):
            await self._tell_floor(_floor(request))
            return None
        # Rendering thousands of edits would block the event loop.
        after = await _in_thread(View, view.system, found.plan, list(view.entries))
        fresh = [each for each in found.plan.summaries if each not in request.plan.summaries]
        writer = calls.model if calls else None
        models = [each.model or writer for each in fresh if each.source == "model"]
        extracts = [each for each in fresh if each.source == "extract"]
        is_extract = found.retained_share is not None and bool(extracts)
        compaction = Compaction(
            plan=found.plan,
            trigger=trigger,
            engine=found.engine or self.engine.name,
            level=found.level,
            messages_before=len(view.messages),
            messages_after=len(after.messages),
            tokens_before=request.tokens,
            tokens_after=found.tokens,
            duration_ms=round((time.monotonic() - started) * 1000),
            cache_tokens_lost=_behind_first_change(request, view.messages, after.messages),
            summary_model=models[0] if models else None,
            retained_share=found.retained_share,
            failure=found.failure or (unasked if is_extract else None),
            nodes=found.nodes,
        )
        await self._adopt(view, after, compaction, self._state_after(request, found, calls))
        if calls is not None and calls.has_parts and compaction.summary_model:
            await self.store.parts().forget()
        if compaction.level == "clip_newest":
            await self.store.tell("clipped")
        await self._tell_floor(compaction.tokens_after)
        return compaction

    async def _adopt(
        self, view: View, after: View, compaction: Compaction, state: PlannerState
    ) -> None:
        segment = await self.store.commit(compaction, state)
        self.engine.on_session_end(self.session_id)
        self.session_id, self.state = segment.id, state
        self.engine.on_session_start(segment.id)
        view.take(after)
        if segment.system is not None:
            view.begin_with(segment.system)
        self.meter.forget_report()
        # Before the next request: an unannounced prefix change is reported as a bug.
        self.watch.expect_move(f"compaction:{compaction.trigger}")
        log.info(
            "context_compressed",
            trigger=compaction.trigger,
            engine=compaction.engine,
            rung=compaction.level,
            messages_before=compaction.messages_before,
            messages_after=compaction.messages_after,
            tokens_before=compaction.tokens_before,
            tokens_after=compaction.tokens_after,
            summary_model=compaction.summary_model,
            retained_share=compaction.retained_share,
            cache_tokens_lost=compaction.cache_tokens_lost,
            duration_ms=compaction.duration_ms,
            failure=compaction.failure,
        )

    def close(self) -> None:
        """Notify the engine that its turn has ended."""
        self.engine.on_session_end(self.session_id)

    async def _tell_floor(self, tokens: int) -> None:
        if self.engine.should_compress(tokens):
            log.warning("context_floor_reached", tokens=tokens)
            await self.store.tell("floor")

    def _held_back(self, tokens: int) -> bool:
        """Return whether anti-thrash pauses the loop's compactions; never close to the window."""
        if tokens >= self.engine.limits.guard_tokens:
            return False
        return tokens < self.state.paused_at_tokens * RESUME_GROWTH

    def _look_ahead(self, tokens: int) -> None:
        """Report pressure, and start writing a summary ahead of need."""
        threshold = self.engine.limits.threshold_tokens
        if tokens >= PRESSURE_SHARE * threshold and not self.pressed:
            self.pressed = True
            log.info("context_pressure", tokens=tokens, threshold_tokens=threshold)
        wanted = self.engine.prepares and self._may_ask_model()
        if wanted and tokens >= AHEAD_SHARE * threshold:
            self.store.prepare()

    async def _prepared(
        self, trigger: Trigger, timeout_s: float | None
    ) -> tuple[Summary | None, str | None]:
        """Return the prepared summary, or the reason not to pay for another one now."""
        # It was written without the topic of `/compress`.
        if trigger == "manual":
            return None, None
        try:
            async with asyncio.timeout(timeout_s):
                return await self.store.prepared(), None
        except TimeoutError:
            return None, NO_TIME
        except SummaryFailed as exc:
            not_before = max(self.state.summary_not_before, time.time() + exc.cooldown_s)
            self.state = replace(self.state, summary_not_before=not_before)
            return None, str(exc)

    async def _summary_calls(
        self, trigger: Trigger, timeout_s: float | None
    ) -> tuple[SummaryCalls | None, str | None]:
        """Return the calls for a summary, or the reason not to ask; neither without a model."""
        if self.rules.summariser is None:
            return None, None
        if not (trigger in {"hygiene", "manual"} or self._may_ask_model()):
            return None, PAUSED
        if self.rules.spending is not None and await self.rules.spending.exhausted():
            return None, NO_BUDGET
        if timeout_s is not None and timeout_s <= 0:
            return None, NO_TIME
        return self.rules.summariser.calls(timeout_s, self.store.parts()), None

    def _may_ask_model(self) -> bool:
        left_s = self.state.summary_not_before - time.time()
        # A clock that was set back must not prolong a cooldown.
        return self.rules.summariser is not None and not 0 < left_s <= LONGEST_COOLDOWN_S

    async def _request(
        self, view: View, trigger: Trigger, focus: str | None, calls: SummaryCalls | None
    ) -> CompressionRequest:
        measure, asked = await self.measured(view), calls or self.rules.summariser
        scale = await _in_thread(_scale, self.meter, measure, view)
        seqs = [entry.seq for entry in view.entries] or [0]
        return replace(
            _request(view, self.meter, self.engine.limits, trigger, measure.tokens, scale),
            focus=focus,
            summarise=calls,
            summary_window=asked.window_tokens if asked else 0,
            recall=self.rules.recall,
            days=await self.store.days(seqs[0], seqs[-1]),
        )

    def _state_after(
        self, request: CompressionRequest, found: Compressed, calls: SummaryCalls | None
    ) -> PlannerState:
        saved = request.tokens - found.tokens
        compressible = request.tokens - _floor(request)
        poor = self.state.poor_savings + 1 if saved < POOR_SAVING * compressible else 0
        not_before = self.state.summary_not_before
        if calls is not None and calls.failure is not None:
            not_before = time.time() + calls.failure.cooldown_s
        elif calls is not None and found.failure is not None:
            not_before = time.time() + TRANSIENT_COOLDOWN_S
        return PlannerState(
            poor_savings=poor,
            paused_at_tokens=found.tokens if poor >= POOR_SAVINGS_UNTIL_PAUSE else 0,
            summary_not_before=not_before,
        )


async def write_ahead(
    view: View,
    meter: TokenMeter,
    limits: Limits,
    calls: SummaryCalls,
    write: Callable[[CompressionRequest], Summary | None],
    days: Days = (),
) -> Summary | None:
    """Write the summary of a later compaction of this view; return None if nothing would be cut.

    Args:
        calls: Closed when this returns.
        write: The engine's `prepare`.

    Raises:
        SummaryFailed: The summary model returned nothing usable.
    """

    def written() -> Summary | None:
        tokens = meter.measure(view).tokens
        request = _request(view, meter, before_growth(limits, tokens), "prepare", tokens)
        window = calls.window_tokens
        return write(replace(request, summarise=calls, summary_window=window, days=days))

    try:
        # Writing may take minutes, and a pool thread would delay the exit of the process.
        summary = await asyncio.wrap_future(in_daemon(written))
    finally:
        calls.close()
    return summary and replace(summary, model=calls.model or "")


def _request(
    view: View, meter: TokenMeter, limits: Limits, trigger: Trigger, tokens: int, scale: float = 1.0
) -> CompressionRequest:
    return CompressionRequest(
        plan=view.plan,
        entries=tuple(view.entries),
        tokens=tokens,
        fixed_tokens=math.ceil(scale * meter.fixed_tokens(view.messages[0])),
        limits=limits,
        estimate=lambda message: math.ceil(scale * meter.estimate(message)),
        trigger=trigger,
        today=datetime.now(UTC).date().isoformat(),
    )


def before_growth(limits: Limits, tokens: int) -> Limits:
    """Return the limits for a tail that will have grown when the view reaches its threshold.

    At least half of the tail is kept, since the growth may not happen.
    """
    growth = min(max(0, limits.threshold_tokens - tokens), limits.tail_tokens // 2)
    left = (limits.tail_tokens - growth) / max(1, limits.threshold_tokens)
    return replace(limits, target_ratio=left)


async def _in_thread(fn: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run a pure function in its own thread: a waiting one must not starve the others."""
    return await asyncio.wrap_future(in_daemon(partial(fn, *args, **named)))


def _scale(meter: TokenMeter, measure: Measure, view: View) -> float:
    if measure.source == "estimated":
        return 1.0
    estimated = meter.fixed_tokens(view.messages[0]) + sum(map(meter.estimate, view.messages[1:]))
    # Bounds of the meter's k: one odd report must not distort every size.
    return min(2.0, max(0.5, measure.tokens / estimated))


def _behind_first_change(
    request: CompressionRequest, before: list[ChatMessage], after: list[ChatMessage]
) -> int:
    """Count the tokens after the first changed message."""
    kept = 0
    for one, two in zip(before, after, strict=False):
        if one is not two and one != two:
            break
        kept += request.estimate(one)
    return max(0, request.tokens - kept)


def _floor(request: CompressionRequest) -> int:
    """Return the smallest possible size: system prompt, tools and the newest user message."""
    newest = newest_ask(request.entries)
    return request.fixed_tokens + (request.estimate(newest.message) if newest else 0)
