"""`/memory`: shows and corrects the notes of a chat.

It lists the notebook of one scope: notes that prompts contain, and notes that wait for consent. A
plain number means a position in the newest list; a button, `#17` and `undo 17` use the row's id. A
removed note leaves the prompts at once, and the next question informs the agent (`overheard.note`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from adapters.messages import CHOICE_LABEL_CHARS, Choice
from agent.messages import clean_text, quoted
from agent.safety.threats import scan
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult
from gateway.storage.people import notebook
from gateway.storage.people.notebook import Note
from gateway.storage.queue import overheard

MOST_BUTTONS = 8
"""Source: `adapters.messages.Outgoing.choices`."""
MOST_CHARS = 400
"""Longest new text of a note."""
TITLES = (
    ("user", "Notes about you"),
    ("memory", "Notes"),
    ("", "Waiting for your yes, not used until then"),
)
EMPTY = (
    "I remember nothing here yet. I note what will matter later (“I prefer …”, “from now on …”),"
    " and show you each note."
)
HOW = (
    "`/memory forget 1` erases an entry, `/memory change 1 NEW WORDS` corrects it, `/memory forget"
    " all` erases everything."
)
HOW_WAITING = (
    "`/memory keep 1` keeps an entry that waits, `/memory keep all` all of them, `/memory forget"
    " waiting` erases them."
)
NO_SUCH = "There is no such entry; `/memory` shows them with their numbers."
UNDONE_BEFORE = "That note is gone already; `/memory` shows what I remember."
NOT_ALLOWED = "Only people who were let in may change what I remember here; nothing was changed."
NO_ROOM = "There is no room for {left} of them: forget something first, then keep the rest."
SUSPICIOUS = (
    "I did not keep that: it looks like an attempt to give me instructions behind your back."
)
WHAT = (
    "Write the new text after the number: `/memory change 2 NEW WORDS`,"
    f" {MOST_CHARS} characters at most."
)
_COMMAND = re.compile(
    r"(forget|change|keep|undo)\s+(all|waiting|#?\d{1,18})(?:\s+(.*))?", re.DOTALL | re.IGNORECASE
)


@Command("memory", "show what I remember; keep, forget or change an entry", IMMEDIATE, 70)
def show_memory(context: CommandContext) -> CommandResult:
    """Show or correct the notebook."""
    scope = notebook.scope_of(context.conn, context.conversation)
    rows = listed(notebook.of_scope(context.conn, scope))
    if not context.argument.strip():
        return _shown(rows)
    said = _COMMAND.fullmatch(context.argument.strip())
    if said is None:
        return CommandResult(f"{HOW} {HOW_WAITING}")
    if notebook.is_shared(scope) and not context.may_act:
        return CommandResult(NOT_ALLOWED)
    return _corrected(context, rows, said)


def _corrected(context: CommandContext, rows: Sequence[Note], said: re.Match[str]) -> CommandResult:
    verb, which = said[1].lower(), said[2].lower()
    if verb == "undo":
        return _undo(context, [row for row in rows if str(row.id) == which.removeprefix("#")])
    chosen = _named(rows, which)
    if not chosen:
        return CommandResult(NO_SUCH)
    if verb == "keep":
        return _keep(context, [row for row in chosen if row.waits])
    if verb == "change":
        return _change(context, chosen, said[3] or "")
    notebook.remove(context.conn, chosen, context.sender, context.conversation)
    _note(context, [f"no longer holds: {row.text}" for row in chosen if not row.waits])
    what = f"all {len(chosen)} entries" if len(chosen) > 1 else quoted(chosen[0].text)
    return CommandResult(f"Forgotten: {what}.")


def listed(rows: Sequence[Note]) -> list[Note]:
    """Return the rows in the order of their list numbers, starting at 1."""
    return [row for target, _ in TITLES for row in rows if _title_of(row) == target]


def _title_of(row: Note) -> str:
    return "" if row.waits else row.target


def _shown(rows: Sequence[Note]) -> CommandResult:
    if not rows:
        return CommandResult(EMPTY)
    numbers, blocks = count(1), []
    for target, title in TITLES:
        lines = [f"{next(numbers)}. {line_of(row)}" for row in rows if _title_of(row) == target]
        # In Markdown a list that does not start at 1 needs an empty line before it.
        blocks += [f"**{title}**", "\n".join(lines)] if lines else []
    waiting = any(row.waits for row in rows)
    blocks.append(f"{HOW} {HOW_WAITING}" if waiting else HOW)
    return CommandResult("\n\n".join(blocks), choices=_buttons(rows))


def _buttons(rows: Sequence[Note]) -> tuple[Choice, ...]:
    """Return buttons that keep waiting notes, or without any, buttons that forget the newest."""
    numbered = list(enumerate(rows, start=1))
    if waiting := [(n, row) for n, row in numbered if row.waits]:
        named = [_button("Keep", n, row) for n, row in waiting[: MOST_BUTTONS - 2]]
        of_all = Choice("Keep all", "/memory keep all"), Choice("None", "/memory forget waiting")
        return (*named, *of_all)
    return tuple(_button("Forget", n, row) for n, row in numbered[-MOST_BUTTONS:])


def _button(verb: str, number: int, row: Note) -> Choice:
    label = f"{verb} {number}: {row.text}"[:CHOICE_LABEL_CHARS]
    return Choice(label, f"/memory {verb.lower()} #{row.id}")


def line_of(row: Note) -> str:
    """Format a row for the list, with its date."""
    return f"{quoted(row.text)} ({row.at[:10]})"


def _named(rows: Sequence[Note], which: str) -> list[Note]:
    """Return the rows named by "2", "#17", "waiting" or "all"."""
    if which == "all":
        return [*rows]
    if which == "waiting":
        return [row for row in rows if row.waits]
    if which.startswith("#"):
        return [row for row in rows if row.id == int(which[1:])]
    return [row for n, row in enumerate(rows, start=1) if n == int(which)]


def _undo(context: CommandContext, rows: Sequence[Note]) -> CommandResult:
    if not rows:
        return CommandResult(UNDONE_BEFORE)
    [row] = rows
    notebook.undo(context.conn, row, context.sender, context.conversation)
    lines = [f"no longer holds: {row.text}"]
    if row.before:
        lines.append(f"holds again: {row.before}")
    _note(context, lines)
    again = f" I remember again: {quoted(row.before)}." if row.before else ""
    return CommandResult(f"Undone, not remembered: {quoted(row.text)}.{again}")


def _keep(context: CommandContext, rows: Sequence[Note]) -> CommandResult:
    if not rows:
        return CommandResult(NO_SUCH)
    by, place = context.sender, context.conversation
    kept = [row for row in rows if notebook.confirm(context.conn, row, by, place)]
    _note(context, [f"holds from now on: {row.text}" for row in kept])
    left = len(rows) - len(kept)
    told = f"Remembered: {', '.join(quoted(row.text) for row in kept)}." if kept else ""
    return CommandResult(f"{told} {NO_ROOM.format(left=left) if left else ''}".strip())


def _change(context: CommandContext, rows: Sequence[Note], text: str) -> CommandResult:
    words = " ".join(clean_text(text).split())
    if not words or len(words) > MOST_CHARS or len(rows) > 1:
        return CommandResult(WHAT)
    if scan(words).findings:
        return CommandResult(SUSPICIOUS)
    row = rows[0]
    notebook.reword(context.conn, row, words, context.sender, context.conversation)
    before = [] if row.waits else [f"no longer holds: {row.text}"]
    _note(context, [*before, f"holds instead: {words}"])
    return CommandResult(f"Changed: {quoted(row.text)} is now {quoted(words)}.")


def _note(context: CommandContext, lines: Sequence[str]) -> None:
    """Add a correction to the next question, since the agent's view may contain the note."""
    if lines:
        # The platform's key belongs to the command's own row.
        message = context.message
        told = replace(
            message,
            text="\n".join(lines),
            dedupe_key=f"{message.dedupe_key}#memory",
            raw="{}",
            message_ref=None,
        )
        overheard.note(context.conn, context.conversation, told, "correction")
