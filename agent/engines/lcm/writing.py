"""What a node says, in up to three steps; each is shorter and surer than the one before.

A model preserves details; asked again it writes bullets of half the length; without a usable answer
the extractor decides. What is no shorter than its source becomes a pointer. Used by
agent/engines/lcm/engine.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent.context.extract import extract, key_facts, merged, retained_share
from agent.context.phases.summary import Written, merge_summaries, write_summary
from agent.context.terms import words_of
from agent.context_engine import CompressionRequest, Level, NodeSource
from agent.errors import SummaryFailed, SummaryTooLong
from agent.messages import user_message
from agent.view.view import Entry, Summary

ByModel = Callable[[int, bool], Written]
"""Returns a model's text of at most so many tokens, in bullets alone where told so."""

POINTER = "(not summarised)"
"""Stands behind a node's number and range, with which it is opened."""
_HEADING = "[messages {} to {}]"
_HEADED = re.compile(r"^\[messages (\d+) to (\d+)\]\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeText:
    """The text of a node that was written now."""

    text: str
    source: NodeSource
    level: Level
    share: float = 1.0


@dataclass(slots=True)
class Scribe:
    """Writes the nodes of one compaction.

    Attributes:
        asks: Whether a model may still be asked: one that has failed is left alone.
        failure: Why a model's text was not used; None if every one was.
        told: What was written, in order.
    """

    request: CompressionRequest
    asks: bool = field(init=False)
    failure: str | None = None
    told: list[NodeText] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asks = self.request.summarise is not None

    def leaf(
        self, entries: Sequence[Entry], budget_tokens: int, beside: Sequence[str] = ()
    ) -> NodeText:
        """Return the text for messages; a pointer where nothing shorter can be said.

        Args:
            entries: The messages.
            budget_tokens: Most tokens of the text.
            beside: Texts of the other nodes in view: what they say is not listed again.
        """
        source_tokens = sum(self.request.estimate(entry.message) for entry in entries)
        facts = key_facts(entries, focus=self.request.focus) if self.asks else ()

        def by_model(tokens: int, brief: bool) -> Written:  # noqa: FBT001 - of `ByModel`
            return write_summary(entries, "", facts, tokens, self.request, brief=brief)

        def by_rule() -> NodeText:
            focus, known = self.request.focus, "\n".join(beside)
            found = extract(entries, "", budget_tokens, focus=focus, elsewhere=words_of(known))
            share = retained_share(found.facts, f"{found.text}\n{known}")
            return NodeText(found.text, "extract", "extract", share)

        return self._kept(self._escalated(by_model, by_rule, budget_tokens), source_tokens)

    def condensed(self, texts: Sequence[str], budget_tokens: int, extract_tokens: int) -> NodeText:
        """Return one text for the texts of consecutive nodes.

        Args:
            texts: Of the nodes, oldest first.
            budget_tokens: Most tokens of a model's text.
            extract_tokens: Most tokens of the extractor's, if more.
        """
        source_tokens = sum(map(self.tokens, texts))
        material = [Entry(1, user_message(text)) for text in texts]
        facts = key_facts(material, focus=self.request.focus)

        def by_model(tokens: int, brief: bool) -> Written:  # noqa: FBT001 - of `ByModel`
            return merge_summaries(texts, facts, tokens, self.request, brief=brief)

        def by_rule() -> NodeText:
            text = merged(texts, max(budget_tokens, extract_tokens))
            return NodeText(text, "extract", "extract", retained_share(facts, text))

        return self._kept(self._escalated(by_model, by_rule, budget_tokens), source_tokens)

    def tokens(self, text: str) -> int:
        """Return what a text takes, in the scale of the request."""
        return self.request.estimate(user_message(text))

    def _escalated(
        self, by_model: ByModel, by_rule: Callable[[], NodeText], budget_tokens: int
    ) -> NodeText:
        failure = None
        most = min(budget_tokens, self.request.limits.max_summary_tokens)
        steps: tuple[tuple[Level, int, bool], ...] = (
            ("summary", most, False),
            ("short_summary", most // 2, True),
        )
        for level, tokens, brief in steps:
            if not self.asks:
                break
            try:
                written = by_model(tokens, brief)
            except SummaryTooLong as exc:
                failure = str(exc)
            except SummaryFailed as exc:
                failure, self.asks = str(exc), False
            else:
                return NodeText(written.text, "model", level, written.retained_share)
        self.failure = failure or self.failure
        return by_rule()

    def _kept(self, told: NodeText, source_tokens: int) -> NodeText:
        """Return the text, or a pointer where it is no shorter than its source; notes it."""
        # A node that is no shorter than its source would make the view larger.
        if not told.text.strip() or self.tokens(told.text) >= source_tokens:
            told = NodeText(POINTER, "pointer", "extract", 0.0)
        self.told.append(told)
        return told


def joined(parts: Sequence[Summary]) -> Summary:
    """Return texts that were written ahead as one; `parted` takes it apart again."""
    text = parts[0].text
    if len(parts) > 1:
        text = "\n\n".join(f"{_HEADING.format(*span_of([part]))}\n{part.text}" for part in parts)
    first, last = span_of(parts)
    return Summary(text, first, last, source="model")


def parted(prepared: Summary | None) -> list[Summary]:
    """Split a text that was written ahead into its parts, each with its range."""
    if prepared is None:
        return []
    # With one capture group for each number: text, first, last, text, first, last, text.
    before, *found = _HEADED.split(prepared.text)
    if before.strip() or not found:
        return [prepared]
    return [
        replace(prepared, text=text.strip(), first_seq=int(first), last_seq=int(last))
        for first, last, text in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


def span_of(parts: Sequence[Summary]) -> tuple[int, int]:
    """Return the first and the last seq of neighbours."""
    return parts[0].first_seq, parts[-1].last_seq
