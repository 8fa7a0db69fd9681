"""The context engine `rounds`: HelloAgents' HistoryManager.

A round is one message of a person and everything that follows it. The newest rounds stay complete,
the older ones are archived in one summary; messages are never edited. The summary counts messages,
rounds and tools, or is the summary model's text in five short parts. If that does not keep the view
within the window, the built-in compressor takes over.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from agent.context.boundaries import Boundaries, assemble, first_lasting, is_ask, leaving
from agent.context.extract import key_sentences, retained_share
from agent.context.summary import FENCE, fenced, in_parts_that_fit
from agent.context.summary_parts import new_piece, split
from agent.context_compressor import ContextCompressor
from agent.context_engine import (
    Compressed,
    CompressionRequest,
    ContextEngine,
    Level,
    Limits,
    Sizes,
    Summarise,
    Trigger,
)
from agent.errors import SummaryFailed
from agent.messages import text_of
from agent.safety.redaction import Redactor
from agent.settings import RoundsSettings
from agent.tokens import estimate_tokens
from agent.view.view import Entry

_MUST_SHRINK: frozenset[Trigger] = frozenset({"overflow", "hygiene", "manual"})
"""Triggers that the built-in compressor handles if no round can be archived."""
HEADING = "## Archived Session Summary"
"""Source: HelloAgents' HistoryManager."""
PARTS = ("Task Goal", "Key Decisions", "Finished Work", "Open Items", "Important Findings")
"""Source: the prompt of HelloAgents."""
PART_LINES = 3
"""Most lines of each part of a summary; further lines are dropped."""
MAX_ANSWER_TOKENS = 2_000
"""Output limit of the model."""
QUOTED_CHARS = 200
"""Longest quotation of a request if rounds are only counted."""
_CUT = "\n[… shortened …]\n"
_LEAST_TOKENS = 50
_TASK = f"""\
Compress the conversation below into a structured summary that keeps what matters:

### {PARTS[0]}
What does the user want to reach?
### {PARTS[1]}
Which important decisions were made?
### {PARTS[2]}
Which tasks are done? (a list)
### {PARTS[3]}
What is still to be done?
### {PARTS[4]}
Which key facts or problems came up?

Use exactly these headings, in this order, in English; what stands below them is in the language
of the user, concise, at most {PART_LINES} lines each, "None." where there is nothing to say. Copy
names, paths, numbers and error messages exactly; write ******** in place of passwords, keys and
tokens. An earlier summary, if there is one, is updated: keep what still holds. Answer with the
summary alone."""
_CLOSING = "Write the summary of the material above now, under the five headings given before it."


class RoundsEngine(ContextEngine):
    """Keeps the newest complete rounds and archives the older ones in a summary."""

    name: ClassVar[str] = "rounds"

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Read the limits and the settings under `context.rounds`."""
        super().__init__(limits, options)
        self._settings = RoundsSettings.model_validate(options)

    @override
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self.prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens > self._settings.threshold * self.limits.context_length

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Archive the older rounds; return None if there are none and the view may stay."""
        found = self._archived(request)
        tokens = found.tokens if found and request.pays(found.tokens) else request.tokens
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
        # Checked before paying a model for the summary.
        archived = sum(request.estimate(each.message) for each in entries)
        if not request.pays(request.tokens - archived):
            return None
        text, level, failure = self._archive(entries, request)
        plan = assemble(request, cut, text, "model" if level == "summary" else "extract")
        tokens = Sizes(request).view(plan)
        # A summary may be longer than a few short rounds.
        if tokens >= request.tokens:
            return None
        share = retained_share(key_sentences(entries), text)
        return Compressed(plan, level, tokens, share, failure)

    def _archive(
        self, entries: Sequence[Entry], request: CompressionRequest
    ) -> tuple[str, Level, str | None]:
        """Return the text for rounds, its level, and the reason why no model wrote it."""
        earlier, failure = "\n\n".join(each.text for each in request.plan.summaries), None
        if self._settings.summary == "llm" and request.summarise:
            try:
                return write_parts(entries, earlier, request, request.summarise), "summary", None
            except SummaryFailed as exc:
                failure = str(exc)
        text = count_rounds(entries, earlier, request.limits.max_summary_tokens)
        return text, "extract", failure


def old_rounds(request: CompressionRequest, retained: int) -> Boundaries | None:
    """Return the cut before the newest rounds, or None without older ones.

    The first message of the conversation stays as the head and the summary answers it, so that
    roles alternate: a round, and therefore the tail, starts with a user message.
    """
    entries, plan = request.entries, request.plan
    starts = [n for n, entry in enumerate(entries) if entry.seq >= plan.tail_from and is_ask(entry)]
    if len(starts) <= retained or entries[0].message["role"] != "user":
        return None
    head_end = first_lasting(entries, 0) + 1
    if plan.tail_from and entries[0].seq > plan.head_upto:
        # Previously compacted without a head: nothing can precede that summary.
        return None
    cut = Boundaries(head_end=head_end, tail_start=starts[-retained], pinned=(), role="assistant")
    return cut if leaving(entries, cut) else None


def count_rounds(entries: Sequence[Entry], earlier: str, most_tokens: int) -> str:
    """Count messages, rounds and tools, and quote the first and last request.

    The earlier summary stays in front; a text above `most_tokens` loses its middle.
    """
    text = "\n\n".join(part for part in (without_heading(earlier), _statistics(entries)) if part)
    return f"{HEADING}\n\n{_shortened(Redactor().text(text), most_tokens)}"


def write_parts(
    entries: Sequence[Entry], earlier: str, request: CompressionRequest, summarise: Summarise
) -> str:
    """Have the summary model write five parts of at most three lines each.

    If the material exceeds one prompt, it updates the summary part by part.

    Raises:
        SummaryFailed: The model returned nothing usable.
    """
    text = in_parts_that_fit(request, lambda fitted: _updated(entries, earlier, fitted, summarise))
    return f"{HEADING}\n\n{_shortened(text, request.limits.max_summary_tokens)}"


def _updated(
    entries: Sequence[Entry], earlier: str, request: CompressionRequest, summarise: Summarise
) -> str:
    text = without_heading(earlier)
    most_tokens = min(MAX_ANSWER_TOKENS, request.limits.max_summary_tokens)
    orders = estimate_tokens(_TASK + FENCE + _CLOSING)
    overhead = orders + max(most_tokens, estimate_tokens(text)) + most_tokens
    for part in split(entries, max(request.summary_window - overhead, 0)):
        before = [new_piece("earlier summary", text)] if text else []
        answer = summarise(fenced((_TASK,), [*before, *part], _CLOSING), most_tokens)
        text = _five_parts(Redactor().text(answer))
    return text


def without_heading(text: str) -> str:
    """Strip `HEADING` from a summary's text."""
    return text.removeprefix(HEADING).strip()


def _statistics(entries: Sequence[Entry]) -> str:
    roles: Counter[str] = Counter(entry.message["role"] for entry in entries)
    asks = [text_of(entry.message) for entry in entries if is_ask(entry)]
    lines = [
        f"Messages {entries[0].seq} to {entries[-1].seq}:",
        f"- Rounds: {len(asks)}",
        f"- Messages: {len(entries)} ({_counts(roles)})",
    ]
    calls = (call for each in entries for call in each.message.get("tool_calls", ()))
    if tools := Counter(call["function"]["name"] for call in calls):
        lines.append(f"- Tools used: {_counts(tools)}")
    if asks:
        lines.append(f"- First request: {_quoted(asks[0])}")
    if len(asks) > 1:
        lines.append(f"- Last request: {_quoted(asks[-1])}")
    return "\n".join(lines)


def _counts(counter: Counter[str]) -> str:
    # Also by name, so that the same rounds give the same bytes after a restart.
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


def _quoted(text: str) -> str:
    # Cut before splitting: a request may be a file of several megabytes.
    words = " ".join(text[: 4 * QUOTED_CHARS].split())
    return f'"{words}"' if len(words) <= QUOTED_CHARS else f'"{words[:QUOTED_CHARS]}…"'


def _five_parts(answer: str) -> str:
    """Return the five parts of an answer, each with its first three lines."""
    found: dict[str, list[str]] = {}
    for line in answer.splitlines():
        title = line.strip().strip("#*: ")
        # Models also write headings in bold and add colons.
        if line.lstrip().startswith(("#", "*")) and title in PARTS:
            found[title] = []
        elif line.strip() and found:
            found[next(reversed(found))].append(line.rstrip())
    if missing := [part for part in PARTS if not found.get(part)]:
        raise SummaryFailed(f"the summary lacks {', '.join(missing)}")
    parts = ("\n".join([f"### {part}", *found[part][:PART_LINES]]) for part in PARTS)
    return "\n\n".join(parts)


def _shortened(text: str, most_tokens: int) -> str:
    most_tokens = max(most_tokens, _LEAST_TOKENS)
    while (tokens := estimate_tokens(text)) > most_tokens:
        # Ten percent less, since tokens are spread unevenly over a text.
        half = int(len(text) * most_tokens / tokens * 0.9) // 2 - len(_CUT)
        text = f"{text[:half]}{_CUT}{text[len(text) - half :]}" if half > 0 else _CUT.strip()
    return text
