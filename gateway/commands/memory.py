"""`/memory`: what is remembered here, and its correction by a word or a button.

It shows all of one scope: what people asked for once and for all, what the agent has noted, and
facts with the day since which they hold no more. A number names a row for as long as the list is
what was shown; a button names it by its id. What is corrected leaves the prompt with the next
beginning or compaction; until then the next question tells the agent (`overheard.note`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from adapters.messages import CHOICE_LABEL_CHARS, Choice
from agent.messages import clean_text, quoted
from agent.safety.threats import scan
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult
from gateway.storage.people import notebook, remembered
from gateway.storage.people.remembered import MemoryRow
from gateway.storage.queue import overheard
from gateway.storage.schema import iso_time

SHOWN_FACTS = 10
MOST_BUTTONS = 8
"""Source: `adapters.messages.Outgoing.choices`."""
MOST_CHARS = 400
"""Of what a row is changed to."""
TITLES = (
    ("instruction", "Standing instructions"),
    ("user", "Notes about you"),
    ("memory", "Notes"),
    ("fact", "Facts you told me, newest first"),
)
EMPTY = (
    "I remember nothing here yet. I keep what you ask for once and for all (“from now on …”,"
    " “always …”, “call me …”), across compactions and `/new`."
)
HOW = (
    "`/memory forget 1` erases an entry, `/memory change 1 NEW WORDS` corrects it, `/memory forget"
    " all` erases everything."
)
NO_SUCH = "There is no such entry; `/memory` shows them with their numbers."
NOT_ALLOWED = "Only people who were let in may change what I remember here; nothing was changed."
SUSPICIOUS = (
    "I did not keep that: it looks like an attempt to give me instructions behind your back."
)
WHAT = (
    "Write what it is to say behind the number: `/memory change 2 NEW WORDS`,"
    f" {MOST_CHARS} characters at most."
)
_COMMAND = re.compile(r"(forget|change)\s+(all|#?\d{1,18})(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


@Command("memory", "show what I remember; forget or change an entry by its number", IMMEDIATE, 70)
def show_memory(context: CommandContext) -> CommandResult:
    """Show the memory, or correct it."""
    scope = notebook.scope_of(context.conn, context.conversation)
    rows = listed(remembered.of_scope(context.conn, scope))
    if not context.argument.strip():
        return _shown(rows)
    said = _COMMAND.fullmatch(context.argument.strip())
    if said is None:
        return CommandResult(HOW)
    if notebook.is_shared(scope) and not context.may_act:
        return CommandResult(NOT_ALLOWED)
    chosen = _named(rows, said[2].lower())
    if not chosen:
        return CommandResult(NO_SUCH)
    if said[1].lower() == "forget":
        return _forget(context, scope, chosen)
    return _change(context, scope, chosen, said[3] or "")


def listed(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Return the rows that are shown, in the order of their numbers, which begin with 1."""
    found: list[MemoryRow] = []
    for target, _ in TITLES:
        of_target = [row for row in rows if row.target == target]
        if target == "instruction":
            found += [row for row in of_target if row.ended_at is None]
        elif target == "fact":
            found += sorted(of_target, key=lambda row: -row.id)[:SHOWN_FACTS]
        else:
            found += of_target
    return found


def _shown(rows: Sequence[MemoryRow]) -> CommandResult:
    if not rows:
        return CommandResult(EMPTY)
    numbers, blocks = count(1), []
    for target, title in TITLES:
        lines = [f"{next(numbers)}. {line_of(row)}" for row in rows if row.target == target]
        # A list that does not begin with 1 is one only behind an empty line.
        blocks += [f"**{title}**", "\n".join(lines)] if lines else []
    standing = [(n, row) for n, row in enumerate(rows, start=1) if row.target == "instruction"]
    buttons = tuple(
        Choice(f"Forget {n}: {row.text}"[:CHOICE_LABEL_CHARS], f"/memory forget #{row.id}")
        for n, row in standing[-MOST_BUTTONS:]
    )
    return CommandResult("\n\n".join([*blocks, HOW]), choices=buttons)


def line_of(row: MemoryRow) -> str:
    """Return a row as the list shows it, with its day and what became of it."""
    day = iso_time(row.at)[:10]
    if row.ended_at is None:
        return f"{quoted(row.text)} ({day})"
    return f"{quoted(row.text)} ({day}, until {iso_time(row.ended_at)[:10]})"


def _named(rows: Sequence[MemoryRow], which: str) -> list[MemoryRow]:
    """Return the rows that "2", "#17" or "all" names."""
    if which == "all":
        return [*rows]
    if which.startswith("#"):
        return [row for row in rows if row.id == int(which[1:])]
    return [row for n, row in enumerate(rows, start=1) if n == int(which)]


def _forget(context: CommandContext, scope: str, rows: Sequence[MemoryRow]) -> CommandResult:
    for row in rows:
        remembered.remove(context.conn, row, scope, context.sender, context.conversation)
    _note(context, [f"no longer holds: {row.text}" for row in rows if _is_told(row)])
    if len(rows) == 1:
        return CommandResult(f"Forgotten: {quoted(rows[0].text)}.")
    return CommandResult(f"Forgotten: all {len(rows)} entries.")


def _change(
    context: CommandContext, scope: str, rows: Sequence[MemoryRow], text: str
) -> CommandResult:
    words = " ".join(clean_text(text).split())
    if not words or len(words) > MOST_CHARS or len(rows) > 1:
        return CommandResult(WHAT)
    if scan(words).findings:
        return CommandResult(SUSPICIOUS)
    row = rows[0]
    remembered.change(context.conn, row, scope, words, context.sender, context.conversation)
    if _is_told(row):
        _note(context, [f"no longer holds: {row.text}", f"holds instead: {words}"])
    return CommandResult(f"Changed: {quoted(row.text)} is now {quoted(words)}.")


def _is_told(row: MemoryRow) -> bool:
    """Whether the prompt may hold it: facts stand in none."""
    return row.target != "fact" and row.ended_at is None


def _note(context: CommandContext, lines: Sequence[str]) -> None:
    """Have the next question tell what was corrected: the prompt keeps its bytes until then."""
    if lines:
        # A key is one row's, and what the platform sent lies with the command.
        message = context.message
        told = replace(
            message,
            text="\n".join(lines),
            dedupe_key=f"{message.dedupe_key}#memory",
            raw="{}",
            message_ref=None,
        )
        overheard.note(context.conn, context.conversation, told, "correction")
