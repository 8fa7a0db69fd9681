"""`/compress`: condenses the conversation, in a turn of its own.

The planner does the work; a turn resumed after a crash finds its compaction.
"""

from contextlib import closing

from agent.context import planner
from agent.context_engine import Level
from agent.messages import quoted
from agent.ports import Compaction
from gateway.commands.registry import TURN, Command, TurnContext
from gateway.storage.conversation import compactions
from gateway.storage.conversation.turn_journal import TurnEnd

TOPIC_CHARS = 500
"""Longest topic of `/compress`; the rest is cut."""
NOTHING_TO_COMPRESS = "There is nothing to condense: everything in view is needed as it is."
SUMMARY_FAILED = "the summary model gave nothing usable (the log says why)"


@Command(
    "compress",
    "condense the conversation so far; name a topic to keep more of it",
    TURN,
    90,
    aliases=("compact",),
)
async def compress(context: TurnContext) -> tuple[str, TurnEnd]:
    """Compact the view regardless of its size."""
    turn = context.journal.turn
    agent = context.parts.mind.agent.preferring(turn.model)
    view, opened = await context.parts.mind.context.opened(agent, context.journal)
    topic = topic_of(context.argument)
    # Before a crash the turn may have compacted already.
    done = await context.journal.database.read(compactions.made_by, turn)
    if done is None:
        with closing(opened):
            done = await opened.compact(view, "manual", focus=topic or None)
    end = TurnEnd("nothing_to_compress") if done is None else TurnEnd("compressed")
    return compress_text(done, topic), end


def topic_of(argument: str) -> str:
    """Return the topic after `/compress` on one line; empty without one."""
    return " ".join(argument.split())[:TOPIC_CHARS].rstrip()


def compress_text(compaction: Compaction | None, topic: str = "") -> str:
    """Return the answer to `/compress`; `compaction` is None if nothing could be compacted."""
    if compaction is None:
        return NOTHING_TO_COMPRESS
    figures = (
        f"{compaction.messages_before:,} → {compaction.messages_after:,} messages,"
        f" {compaction.tokens_before:,} → {compaction.tokens_after:,} tokens (estimated)"
    )
    summary = _summary_text(compaction)
    steps = [f"Condensed: {figures}.", *summary, *_LEVELS[compaction.level]]
    if topic and summary:
        steps.append(f"Topic: {quoted(topic)}.")
    return " ".join(steps) + " Every message stays on record."


def _summary_text(compaction: Compaction) -> list[str]:
    """Name the author of the new summary, if any, without quoting a provider."""
    if compaction.retained_share is None or not compaction.plan.summaries:
        return []
    if compaction.plan.summaries[-1].source == "model":
        author = compaction.summary_model or "the summary model"
        return [f"The earlier turns are now a summary by {author}."]
    why = _WHY_EXTRACT.get(compaction.failure, SUMMARY_FAILED)
    return [f"The earlier turns are now a summary made without a model, because {why}."]


_WHY_EXTRACT = {
    None: "no model writes summaries",
    planner.PAUSED: "the summary model failed a short time ago",
    planner.NO_BUDGET: "a budget is used up",
}
_LEVELS: dict[Level, tuple[str, ...]] = {
    "none": (),
    "prune": ("Old tool results are shortened.",),
    "summary": (),
    "short_summary": ("It had to be a short one.",),
    "extract": (),
    "clip_tail": ("Long messages are cut to their beginning and end.",),
    "clip_newest": ("Even your newest message is cut to its beginning and end.",),
}
