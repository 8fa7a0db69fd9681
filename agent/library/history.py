"""HelloAgents' HistoryManager: messages are appended, and the older rounds leave the view.

Nothing that was appended is ever changed or lost: `get_history` returns a view of it, which a
compaction replaces. The engine `rounds` decides (agent/engines/rounds.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from agent.context.phases.boundaries import assemble
from agent.context.phases.sanitise import OPENING
from agent.context_engine import Compressed, CompressionRequest, Sizes
from agent.engines.rounds import HEADING, RoundsEngine, old_rounds, without_heading
from agent.library.compaction import (
    Asking,
    CompactionResult,
    Message,
    Summarise,
    compacted,
    limits_of,
    owned,
    sendable,
)
from agent.messages import ChatMessage
from agent.tokens.estimate import estimate_message, estimate_messages
from agent.view.view import MARKER

CONTEXT_WINDOW = 128_000
"""Tokens. Source: HelloAgents' default."""


class HistoryManager:
    """The messages of one conversation, and what is shown of them.

    Not for several threads at a time.
    """

    def __init__(
        self,
        min_retain_rounds: int = 10,
        compression_threshold: float = 0.8,
        *,
        context_window: int = CONTEXT_WINDOW,
        model: str | None = None,
        summarise: Summarise | None = None,
    ) -> None:
        """Begin with no messages.

        Args:
            min_retain_rounds: The newest rounds that a compaction leaves complete. A round is one
                message of the user and all that follows it.
            compression_threshold: Share of the window above which `should_compress` says yes.
            context_window: The model's window in tokens.
            model: Name of the model for whose tokenizer is estimated; None: the largest estimate.
            summarise: Writes the summary in five parts; None: the rounds are counted.

        Raises:
            ValueError: See `compact_messages`.
        """
        self.min_retain_rounds = min_retain_rounds
        limits = limits_of(context_window, compression_threshold)
        told = "llm" if summarise else "simple"
        own = {"threshold": compression_threshold, "min_retain_rounds": min_retain_rounds}
        self._engine = RoundsEngine(limits, {**own, "summary": told})
        self._asking = Asking(limits, model, summarise=summarise)
        self.clear()

    def append(self, message: Mapping[str, Any]) -> None:
        """Add the newest message, in OpenAI's shape; it is counted once.

        It must not be changed afterwards.

        Raises:
            ValueError: It has no role, or is of Anthropic's shape.
        """
        own = owned(message, len(self._originals))
        self._originals.append(own)
        self._view.append(own)
        self._tokens += estimate_message(own, self._asking.model)

    def get_history(self) -> list[Message]:
        """Return the view, ready for a request: a new list; unchanged messages are your dicts.

        A call without a result gets a stub, so that every provider takes it.
        """
        return sendable(self._view)

    def originals(self) -> list[Message]:
        """Return every message that was appended, whatever is shown of it."""
        return [*cast("list[Message]", self._originals)]

    def clear(self) -> None:
        """Forget all messages."""
        self._originals: list[ChatMessage] = []
        self._view: list[ChatMessage] = []
        self._tokens = 0

    def estimate(self) -> int:
        """Return about how many tokens the view has. Costs nothing: appended messages are added."""
        return self._tokens

    def rounds(self) -> list[list[Message]]:
        """Return the rounds of the view; what stands before the first one is in none."""
        history, starts = self.get_history(), self.find_round_boundaries()
        return [
            history[start:end]
            for start, end in zip(starts, [*starts[1:], len(history)], strict=True)
        ]

    def estimate_rounds(self) -> int:
        """Return how many rounds the view has."""
        return len(self.find_round_boundaries())

    def find_round_boundaries(self) -> list[int]:
        """Return the positions in `get_history()` at which a round begins, in order."""
        return [n for n, message in enumerate(self.get_history()) if _asks(message)]

    def should_compress(self) -> bool:
        """Whether the view is over its share of the window."""
        return self._engine.should_compress(self._tokens)

    def compress(self, summary: str | None = None, *, focus: str | None = None) -> CompactionResult:
        """Make the view smaller, if there is anything to leave out; level "none" where not.

        Args:
            summary: Stands for the older rounds from now on, and for what an earlier one stood for.
                None: the engine writes one.
            focus: What the engine's summary is to dwell on.
        """
        asking = replace(self._asking, focus=focus)

        def decide(request: CompressionRequest) -> Compressed | None:
            if summary is None:
                return self._engine.compress(request)
            return _archived(request, summary, self.min_retain_rounds)

        result, self._view = compacted(self._view, decide, asking)
        self._tokens = estimate_messages(self._view, asking.model)
        return result


def _asks(message: Message) -> bool:
    """Whether a message as it is sent is a person's: with it a round begins."""
    content = str(message.get("content"))
    return message["role"] == "user" and content != OPENING and not content.startswith(MARKER)


def _archived(request: CompressionRequest, summary: str, retained: int) -> Compressed | None:
    """Return a plan in which a text stands for the older rounds; None where there are none."""
    if (cut := old_rounds(request, retained)) is None:
        return None
    text = f"{HEADING}\n\n{without_heading(summary)}"
    plan = assemble(request, cut, text, "model")
    return Compressed(plan, "summary", Sizes(request).view(plan))
