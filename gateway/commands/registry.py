"""The slash commands: what they are, and what they answer.

`/stop`, `/status`, `/usage`, `/insights`, `/help` and answers to a turn that waits (`/approve`,
`/deny`, `/answer`: gateway/commands/approvals.py) bypass the queue; `/new`, `/retry`, `/compress`
and `/model` keep their place in it. What `/usage` and `/insights` answer:
gateway/commands/usage.py; what `/model` answers: gateway/commands/model.py. `/pair` is for owners
alone: for everybody else there is no such command (gateway/access/pairing.py). What looks like a
command and is none of these is answered with the nearest one, unless `commands.unknown` lets it
through.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent.context import planner
from agent.context_engine import Level
from agent.messages import count, listed, quoted
from agent.ports import Compaction
from gateway.storage.reports.history import Status
from gateway.storage.reports.usage import ContextFill

Name = Literal[
    "new",
    "stop",
    "approve",
    "deny",
    "answer",
    "status",
    "usage",
    "insights",
    "compress",
    "model",
    "help",
    "retry",
]

DESCRIPTIONS: dict[Name, str] = {
    "new": "start afresh; the old conversation stays on record",
    "stop": "stop the answer in progress and drop what waits",
    "approve": "say yes to what I may not do alone; with its number, once or for the conversation",
    "deny": "say no to it",
    "answer": "answer my question with words or the number of a choice",
    "status": "show how this conversation stands",
    "usage": "show what this conversation took and cost so far",
    "insights": "show how this conversation fared in the last 30 days",
    "compress": "condense what was said so far; name a topic to dwell on it",
    "model": "show the models, or name the one that is to answer here",
    "retry": "ask the last question again",
    "help": "show this list",
}
ANSWERING: frozenset[Name] = frozenset({"approve", "deny", "answer"})
"""Answers to what a turn asks while it waits (gateway/commands/approvals.py)."""
BYPASSING: frozenset[Name] = ANSWERING | {"stop", "status", "usage", "insights", "help"}
URGENT: frozenset[Name] = frozenset({"stop", "status"})
"""These pass whatever `access.rate_per_min` says; they have a wide limit of their own."""
HOUSEKEEPING: frozenset[Name] = frozenset({"compress", "model"})
"""These take a turn of their own, in which the agent answers nobody."""
ALIASES: dict[str, Name] = {"start": "help", "compact": "compress"}
"""Telegram sends `/start` by itself when a chat is opened."""

TOPIC_CHARS = 500
"""Longest topic that `/compress` takes; the rest is cut off."""

_COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


def parse(text: str) -> Name | None:
    """Return the command that a text is; None for a message to the agent.

    A word that is no command of ours ("/usr/bin") is a message.
    """
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    word = match[1].lower()
    return next((name for name in DESCRIPTIONS if name == ALIASES.get(word, word)), None)


_LOOKS_LIKE = re.compile(r"/([a-z][a-z0-9_-]{0,31})(?:\s.*)?", re.DOTALL | re.IGNORECASE)
_FOR_ANOTHER = re.compile(r"/\w+@\w+(?:\s.*)?", re.DOTALL)
"""The platform takes the bot's own name out of a command (adapters/telegram/inbound.py)."""
ALIKE = 0.6
"""How alike two words are of which one is a slip of the other: difflib's own default."""


def unknown(text: str) -> str | None:
    """Return the word of what looks like a command and is none; None for anything else.

    "/usr/bin" and "/" before what is no single word are messages.
    """
    match = _LOOKS_LIKE.fullmatch(text.strip())
    return match[1] if match and parse(text) is None else None


def nearest(word: str) -> str | None:
    """Return the command that somebody may have meant."""
    found = difflib.get_close_matches(word.lower(), [*DESCRIPTIONS, *ALIASES], n=1, cutoff=ALIKE)
    return found[0] if found else None


def unknown_text(word: str) -> str:
    """Return the answer to a command that there is not."""
    near = nearest(word)
    meant = f" Did you mean `/{near}`?" if near else ""
    return (
        f"I know no command {quoted('/' + word)}.{meant} `/help` lists them all. If it was meant as"
        " a message, put a word in front of it."
    )


def is_for_another(text: str) -> bool:
    """Whether a command names another bot ("/status@other_bot")."""
    return _FOR_ANOTHER.fullmatch(text.strip()) is not None


def argument(text: str) -> str:
    """Return what stands behind a command: `/new` takes it as the first message."""
    match = _COMMAND.fullmatch(text.strip())
    return (match[2] or "") if match else ""


def topic(text: str) -> str:
    """Return the topic behind `/compress`, on one line; empty for none."""
    return " ".join(argument(text).split())[:TOPIC_CHARS].rstrip()


def pair_argument(text: str) -> str | None:
    """Return what stands behind `/pair`; None for any other text."""
    match = _COMMAND.fullmatch(text.strip())
    return (match[2] or "").strip() if match and match[1].lower() == "pair" else None


def help_text(*, to_owner: bool = False) -> str:
    """Return the answer to `/help`; an owner reads of `/pair` as well."""
    lines = [f"- `/{name}`: {what}" for name, what in DESCRIPTIONS.items()]
    if to_owner:
        lines.append("- `/pair`: say who may write to me")
    return "Write to me in plain words. I also know these commands:\n\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What `/status` and `/usage` say about the model and its context engine, as it is now.

    Attributes:
        window_tokens: Of the main model; a provider may turn out to give the account less of it.
        threshold_tokens: Where compression fires; None where it is switched off, or the engine
            does not tell.
        engine: Name of the context engine.
        fixed_tokens: Estimate of system prompt and tool schemas.
        chosen: Whether it was chosen for the conversation, with `/model`.
        gone: What was chosen and is no longer configured; empty for nothing.
        compresses: Whether the view is compacted at all (`compression.enabled`).
    """

    name: str
    window_tokens: int
    threshold_tokens: int | None
    engine: str
    fixed_tokens: int
    chosen: bool = False
    gone: str = ""
    compresses: bool = True


def status_text(
    status: Status, standing: ContextFill, model: StatusFacts, asked: Sequence[str] = ()
) -> str:
    """Return the answer to `/status`.

    Args:
        status: Of the conversation.
        standing: Its use of the model.
        model: The model.
        asked: What the turn waits for, in words; nothing where it does not wait.
    """
    work = "working on an answer" if status.turn_running else "idle"
    if asked:
        work = f"waiting for an answer: {', '.join(asked)}"
    compactions = count(standing.compactions, "compaction")
    lines = {
        "Conversation": f"{status.conversation}, session {status.session_id}",
        "Title": quoted(standing.title) if standing.title else "",
        "Model": _model_text(standing, model),
        "Context": context_text(standing, model),
        "Prompt and tools": crowding_text(model) or "",
        "Compression": f"{firing_text(model)}; {compactions} so far",
        "Messages": f"{status.messages:,} so far",
        "State": f"{work}, {count(status.waiting, 'message')} queued",
    }
    lines = {name: value for name, value in lines.items() if value}
    if status.last_outcome and not status.turn_running:
        lines["Last turn"] = status.last_outcome.replace("_", " ")
    return listed(lines)


def _model_text(standing: ContextFill, model: StatusFacts) -> str:
    """Return the model, whether it was chosen here, and who answered last if another one did."""
    last = standing.answered_by
    notes = ["chosen here"] if model.chosen else []
    notes += [f"the chosen {quoted(model.gone)} is no longer configured"] if model.gone else []
    notes += [f"last answer by {last}"] if last and last != model.name else []
    return f"{model.name} ({'; '.join(notes)})" if notes else model.name


def context_text(standing: ContextFill, model: StatusFacts) -> str:
    """Return how full the window is."""
    tokens, source = standing.context.tokens, standing.context.source
    share = tokens / model.window_tokens
    return f"{tokens:,} of {model.window_tokens:,} tokens ({share:.0%}), {source}"


def crowding_text(model: StatusFacts) -> str | None:
    """Say that what every request begins with leaves little room; None where it leaves enough."""
    room_tokens = model.threshold_tokens or model.window_tokens
    if model.fixed_tokens * 2 <= room_tokens:
        return None
    return f"{model.fixed_tokens:,} of {room_tokens:,} tokens, which leaves little room"


def firing_text(model: StatusFacts) -> str:
    """Return from where on the view is compacted."""
    if not model.compresses:
        return f"switched off (engine {model.engine})"
    if model.threshold_tokens is None:
        return f"when the engine {model.engine} asks for it"
    return f"from {model.threshold_tokens:,} tokens on (engine {model.engine})"


def stop_text(*, was_running: bool, dropped: int) -> str:
    """Return the answer to `/stop`."""
    if not was_running and not dropped:
        return "There is nothing to stop."
    text = "Stopped." if was_running else "Nothing was running."
    if dropped == 1:
        text += " One waiting message was dropped."
    elif dropped:
        text += f" {dropped} waiting messages were dropped."
    return text


def compress_text(compaction: Compaction | None, topic: str = "") -> str:
    """Return the answer to `/compress`.

    Args:
        compaction: What was done; None where nothing could be left out.
        topic: What the summary was to dwell on; empty for none.
    """
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
    """Say who wrote the new summary, if there is one; nothing that a provider said is shown."""
    if compaction.retained_share is None or not compaction.plan.summaries:
        return []
    if compaction.plan.summaries[-1].source == "model":
        author = compaction.summary_model or "the summary model"
        return [f"The earlier turns are now a summary by {author}."]
    why = _WHY_EXTRACT.get(compaction.failure, SUMMARY_FAILED)
    return [f"The earlier turns are now a summary without a model, since {why}."]


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

NEW_TEXT = "A new conversation begins here. What was said before stays on record."
NOTHING_TO_RETRY = "There is nothing to ask again."
NOTHING_TO_COMPRESS = "There is nothing to compress: all that is in view is needed as it is."
SUMMARY_FAILED = "the summary model gave nothing usable (the log says why)"
