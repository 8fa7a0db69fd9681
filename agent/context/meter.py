"""The size of a view in tokens: a single meter for hygiene, preflight, loop and display.

The size is the provider's report of the newest call plus k times the estimate of newer messages; k
is learned from the reports. Without a report the size is k times the estimate of all messages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agent.messages import ChatMessage, ToolSchema, Usage, images_in
from agent.tokens import estimate_message, estimate_tools, rough_tokens
from agent.view.view import View

RATIO_MIN = 0.5
RATIO_MAX = 2.0
"""Bounds of k, so that one odd report does not distort the estimates."""
SMALLEST_SAMPLE_TOKENS = 200
"""Smaller growth says nothing about k: the overhead of messages and calls dominates it."""
INERTIA_TOKENS = 5000
"""A sample of this size moves k halfway; larger ones weigh more."""
ANSWER_SLACK_RATIO = 1.5
ANSWER_SLACK_TOKENS = 64
"""Output tokens beyond this factor and slack (per call, too) of the visible text are counted as
thoughts. Source: none of 849 billed answers of Claude 4.5 without thinking is as large."""
KNOWN_MESSAGES = 32_768
"""Number of messages with a cached estimate; about 6 MB, and the messages stay alive."""


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """A provider's report of a call.

    Attributes:
        prompt_tokens: Cached tokens included.
        output_tokens: Thoughts included.
        upto_seq: The newest message that both counts cover: the answer itself.
        model: Its name in the settings; None if unknown.
    """

    prompt_tokens: int
    output_tokens: int
    upto_seq: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of a view, and how it was determined."""

    tokens: int
    source: Literal["reported", "estimated"]


class TokenMeter:
    """The meter of one conversation and one model; not thread-safe.

    Attributes:
        ratio: k, the moving average of reported to estimated tokens, 0.5 to 2.0; stored with the
            conversation.
        report: The newest report; None before the first one and after `forget_report`.
    """

    def __init__(
        self,
        model: str,
        tools: Sequence[ToolSchema] = (),
        *,
        ratio: float = 1.0,
        report: ReportedUsage | None = None,
    ) -> None:
        """Start with the conversation's stored ratio and report for this model, if any."""
        self.ratio = _clamped(ratio)
        self.report = report
        self.model = model
        self._tools = tools
        self._known: dict[int, tuple[ChatMessage, int]] = {}

    def for_model(self, model: str) -> "TokenMeter":
        """Return the meter for another model: it keeps the report but not the ratio."""
        return TokenMeter(model, self._tools, report=self.report)

    def estimate(self, message: ChatMessage) -> int:
        """Estimate the tokens of a message on the wire, scaled like `measure`."""
        return math.ceil(self.ratio * self._raw(message))

    def fixed_tokens(self, system: ChatMessage) -> int:
        """Return the size of the part that no plan can change: system prompt and tools."""
        return math.ceil(self.ratio * (self._raw(system) + self._raw_tools))

    def measure(self, view: View) -> Measure:
        """Return the size of the view as a request would send it now.

        Only messages since the report are estimated; without a report, all are.
        """
        anchored = self._anchored(view)
        if anchored is None:
            return Measure(math.ceil(self.ratio * self._raw_view(view)), "estimated")
        tokens, added = anchored
        return Measure(tokens + math.ceil(self.ratio * sum(map(self._raw, added))), "reported")

    def note(self, usage: Usage, view: View, answer_seq: int) -> None:
        """Learn from the report of a call; ignore one without prompt tokens.

        Args:
            view: The call's view, before its answer is added.
            answer_seq: Position of the answer in the transcript.
        """
        if usage.prompt_tokens <= 0:
            return
        anchored = self._anchored(view)
        if self.report is not None and self.report.model not in {None, self.model}:
            # The difference between two tokenizers says nothing about either.
            anchored = None
        if anchored is None:
            if not any(map(images_in, view.messages)):
                self._learn(usage.prompt_tokens, self._raw_view(view))
        else:
            tokens, added = anchored
            # The flat cost of images would distort the ratio of text.
            if not any(map(images_in, added)):
                self._learn(usage.prompt_tokens - tokens, sum(map(self._raw, added)))
        self.report = ReportedUsage(
            usage.prompt_tokens, usage.output_tokens, answer_seq, self.model
        )

    def forget_report(self) -> None:
        """Forget the report, which measured the view under an earlier plan."""
        self.report = None
        self._known.clear()

    def _anchored(self, view: View) -> tuple[int, list[ChatMessage]] | None:
        """Return the reported tokens and the messages added since, if the report fits the view."""
        if self.report is None:
            return None
        start = len(view.entries)
        while start and view.entries[start - 1].seq > self.report.upto_seq:
            start -= 1
        covered, added = view.entries[start - 1] if start else None, view.entries[start:]
        if covered and covered.seq == self.report.upto_seq:
            answer_tokens = self._answer_tokens(self.report, covered.message)
        elif covered and not added:
            answer_tokens = self.report.output_tokens  # the answer is not added yet
        else:
            return None
        return self.report.prompt_tokens + answer_tokens, [entry.message for entry in added]

    def _answer_tokens(self, report: ReportedUsage, answer: ChatMessage) -> int:
        """Return the answer's tokens in the next prompt, without thoughts that are omitted."""
        if answer.get("opaque"):
            return report.output_tokens
        overheads = ANSWER_SLACK_TOKENS * (1 + len(answer.get("tool_calls", ())))
        most = ANSWER_SLACK_RATIO * self.ratio * self._raw(answer) + overheads
        return min(report.output_tokens, math.ceil(most))

    def _learn(self, reported: int, estimated: int) -> None:
        """Move k towards the sample, by more for a larger sample."""
        # No growth, or less: the report belongs to another view.
        if reported <= 0 or estimated < SMALLEST_SAMPLE_TOKENS:
            return
        weight = estimated / (estimated + INERTIA_TOKENS)
        self.ratio += weight * (_clamped(reported / estimated) - self.ratio)

    def _raw_view(self, view: View) -> int:
        return sum(map(self._raw, view.messages)) + self._raw_tools

    @cached_property
    def _raw_tools(self) -> int:
        return estimate_tools(self._tools, self.model)

    def _raw(self, message: ChatMessage) -> int:
        """Estimate a message before applying k; messages are never modified in place."""
        known = self._known.get(id(message))
        if known is not None:
            return known[1]
        tokens = estimate_message(message, self.model) + _replayed_thinking(message, self.model)
        if len(self._known) >= KNOWN_MESSAGES:
            self._known.clear()
        # Keep the message as well: its id is unique only while it exists.
        self._known[id(message)] = message, tokens
        return tokens


def _replayed_thinking(message: ChatMessage, model: str) -> int:
    """Count the thoughts that are sent back, encrypted ones as reported.

    Signed blocks go to Claude (agent/models/anthropic/wire.py), reasoning to OpenAI-like servers
    (agent/models/openai/wire.py).
    """
    opaque = message.get("opaque")
    if not opaque:
        return 0
    blocks, kept = opaque.get("anthropic", ()), opaque.get("openai", {})
    thoughts = [block.get("thinking") for block in blocks]
    for part in kept.get("reasoning_details", ()):
        thoughts += part.get("text"), part.get("summary")
    if "reasoning_field" in kept:
        thoughts.append(message.get("reasoning"))
    reported: int = kept.get("reasoning_tokens", 0)
    readable = (rough_tokens(each, model) for each in thoughts if isinstance(each, str))
    return reported + sum(readable)


def _clamped(ratio: float) -> float:
    return min(max(ratio, RATIO_MIN), RATIO_MAX)
