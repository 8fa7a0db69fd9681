"""What `parley sessions` prints: lists, messages and lineages, readably and without markup."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich.table import Column
from rich.text import Text

from agent.context_engine import Node
from agent.messages import ChatMessage, decode, is_ephemeral
from agent.safety.redaction import printable
from agent.tokens.estimate import IMAGE_PARTS
from agent.view import Summary, ViewPlan
from gateway.cli.console import table
from gateway.storage.conversation.compactions import CompactionRow
from gateway.storage.conversation.sessions import titled
from gateway.storage.reports.history import Overview, Recorded, Segment
from gateway.storage.schema import iso_time

if TYPE_CHECKING:
    from rich.console import Console

FIRST_LINES = 4
"""So much of a summary is shown where it is not asked for as a whole."""
_STYLES = {"user": "bold green", "assistant": "bold cyan", "tool": "bold yellow"}


def show_list(found: Sequence[Overview], console: "Console") -> None:
    """Print one line for each conversation; delegated children name their parents."""
    names = ("id", "platform", "chat", "thread", "sender", "title")
    headings = [Column(name, overflow="fold") for name in names]
    headings += [Column(name, justify="right") for name in ("segments", "messages")]
    headings += [
        Column("last activity", no_wrap=True),
        Column("tokens in view", justify="right"),
    ]
    console.print(table(headings, map(_cells, found)))


def _cells(row: Overview) -> tuple[str, ...]:
    return (
        str(row.id) if row.parent is None else f"{row.id} (of {row.parent})",
        row.platform,
        row.chat,
        row.thread or "-",
        row.sender or "-",
        title_of(row.title, row.number),
        f"{row.segments:,}",
        f"{row.messages:,}",
        iso_time(row.last_at),
        _tokens_in_view(row),
    )


def facts_of(here: Overview) -> dict[str, Any]:
    """Return what is known of a conversation, for JSON."""
    return asdict(here) | {"last_at": iso_time(here.last_at)}


def title_of(title: str, number: int) -> str:
    """Return a title on one line, as the segment of this number carries it."""
    return titled(" ".join(title.split()), number)


def _tokens_in_view(row: Overview) -> str:
    if row.reported_tokens is not None:
        return f"{row.reported_tokens:,}"
    return "-" if row.estimated_tokens is None else f"~{row.estimated_tokens:,}"


def show_messages(found: Sequence[Recorded], plan: ViewPlan, console: "Console") -> None:
    """Print messages in order, each with what the present plan makes of it."""
    for row in found:
        message = decode(row.body)
        head = Text.assemble(
            (f"{row.seq} ", "bold"),
            (speaker(message), _STYLES.get(message["role"], "")),
            (f"  {iso_time(row.at)}  session {row.session_id}  ", "dim"),
            (standing(plan, row.seq), "" if plan.shows(row.seq) else "dim"),
        )
        console.print(head, soft_wrap=True)
        for line in _lines_of(message):
            console.print(Text(printable(line)), soft_wrap=True)
        console.print()


def speaker(message: ChatMessage) -> str:
    """Return who speaks: the role, for a result its tool, and whether Parley itself wrote it."""
    if message["role"] == "tool":
        named = f"{message.get('name', '')} {message.get('tool_call_id', '')}"
        return printable(f"tool {named}".rstrip())
    if is_ephemeral(message):
        return f"{message['role']} (by Parley, context only)"
    return f"{message['role']} (by Parley)" if message.get("synthetic") else message["role"]


def standing(plan: ViewPlan, seq: int) -> str:
    """Return what a plan makes of a message, in a few words."""
    if plan.shows(seq):
        kinds = [edit.kind for edit in plan.edits if edit.seq == seq]
        return f"in view, shortened ({', '.join(kinds)})" if kinds else "in view"
    if any(summary.first_seq <= seq <= summary.last_seq for summary in plan.summaries):
        return "summarised"
    return "out of view"


def _lines_of(message: ChatMessage) -> Iterator[str]:
    if text := text_with_labels(message):
        yield text
    for call in message.get("tool_calls", ()):
        yield f"  -> {call['function']['name']} {call['id']} {call['function']['arguments']}"


def text_with_labels(message: ChatMessage) -> str:
    """Return the text of a message; what is no text stands in it as a label."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", _label(part.get("type", "part")))) for part in content)


def _label(kind: str) -> str:
    return "[image]" if kind in IMAGE_PARTS else f"[{kind}]"


def show_lineage(
    here: Overview,
    segments: Sequence[Segment],
    console: "Console",
    *,
    whole: bool,
    nodes: Sequence[Node] = (),
) -> None:
    """Print each lineage with its segments below it, in order, then the nodes.

    Args:
        here: Their conversation.
        segments: All of its segments, oldest first.
        console: Where to.
        whole: Print summaries as a whole, not only their first lines.
        nodes: All of its nodes.
    """
    for chain in lineages(segments):
        root = f"conversation {here.id}: {title_of(chain[0].title, 1)}"
        console.print(Text(printable(root), "bold"), soft_wrap=True)
        shown: tuple[Summary, ...] = ()
        for segment in chain:
            console.print(Text("  ") + _segment_line(segment), soft_wrap=True)
            details = "\n".join(_details(segment, shown, whole=whole))
            if details:
                console.print(Text(indent(printable(details), " " * 6)), soft_wrap=True)
            shown = segment.plan.summaries
    for line in node_lines(nodes, {summary.node for summary in segments[-1].plan.summaries}):
        console.print(Text(line), soft_wrap=True)


def node_lines(nodes: Sequence[Node], in_view: Collection[int]) -> Iterator[str]:
    """Yield the nodes as a tree, in order of their messages; each stands above what it condenses.

    Args:
        nodes: In any order.
        in_view: Numbers of those that the newest segment shows.
    """
    if nodes:
        yield f"nodes ({len(nodes)}):"
    by_number = {node.number: node for node in nodes}
    below = {child for node in nodes for child in node.children}
    roots = [node for node in nodes if node.number not in below]
    waiting = [(node, 1) for node in sorted(roots, key=_place, reverse=True)]
    while waiting:
        node, depth = waiting.pop()
        mark = "*" if node.number in in_view else "-"
        yield f"{'  ' * depth}{mark} {_of_node(node)}"
        children = [by_number[number] for number in node.children if number in by_number]
        waiting += [(child, depth + 1) for child in sorted(children, key=_place, reverse=True)]


def _place(node: Node) -> tuple[int, int]:
    return node.first_seq, node.number


def _of_node(node: Node) -> str:
    return (
        f"node {node.number}  level {node.level}  messages {node.first_seq} to {node.last_seq}"
        f"  {node.source_tokens:,} to {node.tokens:,} tokens  ({node.source})"
    )


def lineages(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return the segments by lineage, in their order; a root begins one."""
    chains: list[list[Segment]] = []
    of_segment: dict[int, list[Segment]] = {}
    for segment in segments:
        if segment.parent_session_id is None:
            chains.append([])
            of_segment[segment.id] = chains[-1]
        else:
            of_segment[segment.id] = of_segment[segment.parent_session_id]
        of_segment[segment.id].append(segment)
    return chains


def _segment_line(segment: Segment) -> Text:
    return Text.assemble(
        (f"session {segment.id}  ", "bold" if segment.ended_at is None else ""),
        (printable(title_of(segment.title, segment.number)), "cyan"),
        (f"  {span_of(segment)}", "dim"),
    )


def span_of(segment: Segment) -> str:
    """Return when and why a segment began and ended."""
    began = f"{iso_time(segment.started_at)} ({segment.start_reason})"
    if segment.ended_at is None:
        return f"{began}, active"
    return f"{began} to {iso_time(segment.ended_at)} ({segment.end_reason})"


def figures(row: CompactionRow) -> str:
    """Return what is on record about a compaction, in words."""
    reported = row.tokens_after_reported
    after = f"~{row.tokens_after:,}" + ("" if reported is None else f" ({reported:,} reported)")
    parts = [
        f"{row.trigger}, {row.engine}, level {row.level}",
        f"{row.tokens_before:,} to {after} tokens",
        f"{row.messages_before:,} to {row.messages_after:,} messages",
        f"{row.summary_model or 'no model'}, {row.duration_ms / 1000:.1f} s",
        f"{row.cache_tokens_lost:,} cached tokens lost",
    ]
    if row.retained_share is not None:
        parts.append(f"{row.retained_share:.0%} of the key facts kept")
    if row.failure is not None:
        parts.append(f"summary model failed: {row.failure}")
    return "; ".join(parts)


def _details(segment: Segment, shown: Sequence[Summary], *, whole: bool) -> Iterator[str]:
    """Yield what its compaction did, and the summaries that were not shown before."""
    if segment.compaction is not None:
        yield figures(segment.compaction)
    for summary in new_summaries(segment, shown):
        yield _excerpt(summary, whole=whole)


def new_summaries(segment: Segment, shown: Sequence[Summary]) -> list[Summary]:
    """Return the summaries that a segment has and the one before it had not."""
    return [summary for summary in segment.plan.summaries if summary not in shown]


def _excerpt(summary: Summary, *, whole: bool) -> str:
    lines = summary.text.splitlines()
    kept = lines if whole else lines[:FIRST_LINES]
    rest = [f"... ({len(lines)} lines; --summaries shows them)"] if len(kept) < len(lines) else []
    return "\n".join([f"{heading_of(summary)}:", *kept, *rest])


def heading_of(summary: Summary) -> str:
    """Return what a summary is of, and who wrote it."""
    return f"summary of messages {summary.first_seq} to {summary.last_seq} ({summary.source})"
