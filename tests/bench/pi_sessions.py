"""The recorded sessions of the pi client as a list of model calls with what each was billed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from agent.messages import ChatMessage, Usage
from tests.bench.estimates import Step, segments


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the recorded client.

    Attributes:
        segment: Which list of messages it was about; `messages` of them were sent.
        usage: As billed; None where the client cut it off before it had heard.
        at_s: When it started, in seconds since the epoch; it took `took_s`.
        thinking: The level in force: the one that was chosen before the newest message of a person.
        asked: Whether its newest message is a person's, not a tool's.
    """

    segment: int
    messages: int
    usage: Usage | None
    at_s: float
    took_s: float
    thinking: str
    asked: bool

    @property
    def prompt_tokens(self) -> int:
        """Size of the whole prompt; 0 where nothing was reported."""
        return self.usage.prompt_tokens if self.usage else 0

    @property
    def marked_tokens(self) -> int:
        """Size of the prompt up to the last breakpoint; 0 where nothing was reported."""
        return self.usage.prompt_tokens - self.usage.input_tokens if self.usage else 0


@dataclass(slots=True)
class Session:
    """A whole recording; `segments` are the lists of messages between its compactions."""

    model: str
    segments: list[list[ChatMessage]]
    calls: list[Call] = field(default_factory=list)

    @property
    def reported(self) -> list[Call]:
        """The calls whose bill is known."""
        return [call for call in self.calls if call.usage is not None]


def load_session(path: Path) -> Session:
    """Return a session; calls that failed before they were billed are left out."""
    steps = segments(path)
    session = Session("", [[step.message for step in part] for part in steps])
    unread = (step for part in steps for step in part)
    segment = sent = 0
    chosen = thinking = "off"
    for item in _lines(path):
        match item["type"]:
            case "compaction":
                segment, sent = segment + 1, 0
            case "thinking_level_change":
                chosen = item["thinkingLevel"]
            case "message":
                message = item["message"]
                thinking = chosen if message["role"] == "user" else thinking
                if message["role"] == "assistant" and message["provider"] == "anthropic":
                    session.model = message["model"]
                    before = session.segments[segment][:sent]
                    session.calls += _call(item, segment, before, thinking)
                sent += _is_next(message, unread)
    return session


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").split("\n"):
        if line:
            yield orjson.loads(line)


def _call(
    item: dict[str, Any], segment: int, before: list[ChatMessage], thinking: str
) -> Iterator[Call]:
    message = item["message"]
    billed = message["usage"]
    usage = Usage(billed["input"], billed["output"], billed["cacheRead"], billed["cacheWrite"])
    if message["stopReason"] == "error" and not usage.prompt_tokens:
        return
    at_s = message["timestamp"] / 1000
    ended_s = datetime.fromisoformat(item["timestamp"]).timestamp()
    yield Call(
        segment=segment,
        messages=len(before),
        usage=usage if usage.prompt_tokens else None,
        at_s=at_s,
        took_s=ended_s - at_s,
        thinking=thinking,
        asked=before[-1]["role"] == "user",
    )


def _is_next(message: dict[str, Any], unread: Iterator[Step]) -> int:
    """Return 1 for a message that was sent from then on, and 0 for an answer that was cut off."""
    if message["role"] == "assistant" and message["stopReason"] not in {"stop", "toolUse"}:
        return 0
    next(unread)
    return 1
