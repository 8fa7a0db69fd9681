"""The slash commands: what they are, and what they answer.

`/stop`, `/status` and `/help` bypass the queue; `/new` and `/retry` keep their place in it.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gateway.storage.history import Status

Name = Literal["new", "stop", "status", "help", "retry"]

DESCRIPTIONS: dict[Name, str] = {
    "new": "start afresh; the old conversation stays on record",
    "stop": "stop the answer in progress and drop what waits",
    "status": "show how this conversation stands",
    "retry": "ask the last question again",
    "help": "show this list",
}
BYPASSING: frozenset[Name] = frozenset({"stop", "status", "help"})

_COMMAND = re.compile(r"/([a-z]+)(?:@\w+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


def parse(text: str) -> Name | None:
    """Return the command that a text is; None for a message to the agent.

    A word that is no command of ours ("/usr/bin") is a message. `/start`, which Telegram sends by
    itself when a chat is opened, is `help`.
    """
    match = _COMMAND.fullmatch(text.strip())
    if match is None:
        return None
    word = "help" if match[1].lower() == "start" else match[1].lower()
    return next((name for name in DESCRIPTIONS if name == word), None)


def argument(text: str) -> str:
    """Return what stands behind a command: `/new` takes it as the first message."""
    match = _COMMAND.fullmatch(text.strip())
    return (match[2] or "") if match else ""


def help_text() -> str:
    """Return the answer to `/help`."""
    lines = [f"- `/{name}`: {what}" for name, what in DESCRIPTIONS.items()]
    return "Write to me in plain words. I also know these commands:\n\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What `/status` says about the model."""

    name: str
    window_tokens: int


def status_text(status: Status, model: ModelFacts) -> str:
    """Return the answer to `/status`."""
    if status.prompt_tokens is None:
        context = f"unknown until the next answer, of {model.window_tokens:,} tokens"
    else:
        share = status.prompt_tokens / model.window_tokens
        context = f"{status.prompt_tokens:,} of {model.window_tokens:,} tokens ({share:.0%})"
    work = "working on an answer" if status.turn_running else "idle"
    lines = {
        "Conversation": f"{status.conversation}, session {status.session_id}",
        "Model": model.name,
        "Context": context,
        "Messages": f"{status.messages:,} on record",
        "State": f"{work}, {status.waiting} waiting",
    }
    if status.last_outcome and not status.turn_running:
        lines["Last turn"] = status.last_outcome.replace("_", " ")
    return "\n".join(f"- **{name}**: {value}" for name, value in lines.items())


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


NEW_TEXT = "A new conversation begins here. What was said before stays on record."
NOTHING_TO_RETRY = "There is nothing to ask again."
