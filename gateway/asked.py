"""What a turn asks (step 5): which messages it answers, and what the model reads of them."""

from collections.abc import Sequence

from gateway.settings import QueueSettings
from gateway.storage.inbox import Entry

MAX_NOTE_CHARS = 2000
"""Longest text of one message that is told as context."""
MAX_NOTES_CHARS = 20_000
"""Longest context of one turn; what is oldest is left out."""


def burst(waiting: Sequence[Entry], queue: QueueSettings) -> list[Entry]:
    """Return the entries that form one turn: the first, and what `queue.mode` merges with it.

    collect and interrupt take everything up to the next command; followup only what was written
    within `queue.debounce_ms` of the entry before.
    """
    taken = [waiting[0]]
    for entry in waiting[1:]:
        pause_ms = (entry.at - taken[-1].at) * 1000
        if entry.kind != "message" or (queue.mode == "followup" and pause_ms >= queue.debounce_ms):
            break
        taken.append(entry)
    return taken


def merged_text(entries: Sequence[Entry], *, named: bool) -> str:
    """Return the texts of a burst as one; with their senders where several people share a chat."""
    if not named:
        return "\n".join(entry.text for entry in entries)
    return "\n".join(f"{entry.sender_name}: {entry.text}" for entry in entries)


def with_notes(text: str, notes: Sequence[Entry]) -> str:
    """Return a question behind what its people said meanwhile.

    Args:
        text: The question.
        notes: What was said to others in the group, and messages that were changed after they had
            been answered; in order.
    """
    overheard = _listed([note for note in notes if note.kind == "overheard"])
    changed = _listed([note for note in notes if note.kind == "edit"])
    blocks = []
    if overheard:
        blocks.append(f"[Said here since your last answer, not to you:]\n{overheard}")
    if changed:
        blocks.append(f"[Changed since; the message now reads:]\n{changed}")
    return "\n\n".join([*blocks, f"[To you:]\n{text}"]) if blocks else text


def _listed(notes: Sequence[Entry]) -> str:
    """Return quoted lines for each note, oldest first, within the limits.

    Quoted, since anybody may have written them: none of them can be taken for the frame.
    """
    lines: list[str] = []
    left = MAX_NOTES_CHARS
    for note in reversed(notes):
        line = _quoted(f"{note.sender_name}: {_shortened(note.text)}")
        left -= len(line)
        if left < 0:
            lines.append("…")
            break
        lines.append(line)
    return "\n".join(reversed(lines))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _shortened(text: str) -> str:
    text = text.strip() or "(no text any more)"
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"
