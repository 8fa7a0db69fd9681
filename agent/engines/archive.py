"""The texts of archived rounds: counted, or written by the summary model in five short parts.

Used by agent/engines/rounds.py. Pure but for the call of the summary model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from agent.context.phases.summary_parts import Piece, new_piece, split, weigh
from agent.context.phases.summary_prompts import FENCE, unused_mark
from agent.context_engine import CompressionRequest, Summarise
from agent.errors import SummaryFailed
from agent.messages import text_of
from agent.safety.redaction import Redactor
from agent.tokens.estimate import estimate_tokens
from agent.view import Entry

HEADING = "## Archived Session Summary"
"""Source: HelloAgents' HistoryManager."""
PARTS = ("Task Goal", "Key Decisions", "Finished Work", "Open Items", "Important Findings")
"""Source: the prompt of HelloAgents."""
PART_LINES = 3
MAX_ANSWER_TOKENS = 2_000
QUOTED_CHARS = 200

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


def counted(entries: Sequence[Entry], earlier: str, most_tokens: int) -> str:
    """Return a summary that counts: messages, rounds, tools, and the first and last request.

    Args:
        entries: What is archived now, in order.
        earlier: The summary of what was archived before; it is kept in front.
        most_tokens: A longer text loses its middle.
    """
    text = "\n\n".join(part for part in (without_heading(earlier), _statistics(entries)) if part)
    return f"{HEADING}\n\n{_shortened(Redactor().text(text), most_tokens)}"


def written(
    entries: Sequence[Entry], earlier: str, request: CompressionRequest, summarise: Summarise
) -> str:
    """Return the summary model's text in five parts of at most three lines.

    What does not fit into one prompt is gone through part by part, each updating the summary.

    Raises:
        SummaryFailed: The model gave nothing usable.
    """
    text = without_heading(earlier)
    most_tokens = min(MAX_ANSWER_TOKENS, request.limits.max_summary_tokens)
    overhead = weigh(_TASK + FENCE + _CLOSING) + max(most_tokens, weigh(text)) + most_tokens
    for part in split(entries, max(request.summary_window - overhead, 0)):
        answer = summarise(_prompt(text, part.pieces), most_tokens)
        text = _five_parts(Redactor().text(answer))
    return f"{HEADING}\n\n{_shortened(text, request.limits.max_summary_tokens)}"


def is_ask(entry: Entry) -> bool:
    """Tell whether a message is a person's: with it a round begins."""
    return entry.message["role"] == "user" and not entry.message.get("synthetic")


def without_heading(text: str) -> str:
    """Return a summary's text without our heading; any other text as it is."""
    return text.removeprefix(HEADING).strip()


def _statistics(entries: Sequence[Entry]) -> str:
    roles: Counter[str] = Counter(entry.message["role"] for entry in entries)
    asks = [text_of(entry.message) for entry in entries if is_ask(entry)]
    lines = [
        f"Messages {entries[0].seq} to {entries[-1].seq}:",
        f"- Rounds: {len(asks)}",
        f"- Messages: {len(entries)} ({_counts(roles)})",
    ]
    if tools := Counter(_tools(entries)):
        lines.append(f"- Tools used: {_counts(tools)}")
    if asks:
        lines.append(f"- First request: {_quoted(asks[0])}")
    if len(asks) > 1:
        lines.append(f"- Last request: {_quoted(asks[-1])}")
    return "\n".join(lines)


def _tools(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        for call in entry.message.get("tool_calls", ()):
            yield call["function"]["name"]


def _counts(counter: Counter[str]) -> str:
    ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered)


def _quoted(text: str) -> str:
    words = " ".join(text[: 4 * QUOTED_CHARS].split())
    return f'"{words}"' if len(words) <= QUOTED_CHARS else f'"{words[:QUOTED_CHARS]}…"'


def _prompt(earlier: str, pieces: Sequence[Piece]) -> str:
    before = [new_piece("earlier summary", earlier)] if earlier else []
    material = [*before, *pieces]
    mark = unused_mark(material)
    fenced = [f"<<{mark} {piece.label}>>\n{piece.body}" for piece in material]
    shown = "\n".join([f"<<{mark} BEGIN>>", *fenced, f"<<{mark} END>>"])
    return "\n\n".join((_TASK, FENCE.format(mark=mark), shown, _CLOSING))


def _five_parts(answer: str) -> str:
    """Return the five parts of an answer, each with its first three lines.

    Raises:
        SummaryFailed: One is missing.
    """
    found: dict[str, list[str]] = {}
    for line in answer.splitlines():
        title = line.strip().strip("#*: ")
        if line.lstrip().startswith(("#", "*")) and title in PARTS:
            found[title] = []
        elif line.strip() and found:
            found[next(reversed(found))].append(line.rstrip())
    if missing := [part for part in PARTS if not found.get(part)]:
        raise SummaryFailed(f"the summary lacks {', '.join(missing)}")
    parts = ("\n".join([f"### {part}", *found[part][:PART_LINES]]) for part in PARTS)
    return "\n\n".join(parts)


def _shortened(text: str, most_tokens: int) -> str:
    """Return both ends of a text that is too long."""
    most_tokens = max(most_tokens, _LEAST_TOKENS)
    while (tokens := estimate_tokens(text)) > most_tokens:
        half = int(len(text) * most_tokens / tokens * 0.9) // 2 - len(_CUT)
        text = f"{text[:half]}{_CUT}{text[len(text) - half :]}" if half > 0 else _CUT.strip()
    return text
