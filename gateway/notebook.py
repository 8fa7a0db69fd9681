"""`agent.tools.services.Notebook` of one turn (step 6): its list, and the notes of its scope."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent.errors import ToolError
from agent.settings import MemorySettings
from agent.threats import scan
from agent.tools.services import MemoryTarget, TodoItem
from gateway.storage import notebook
from gateway.storage.engine import Database
from gateway.storage.notebook import Change
from gateway.storage.turns import Turn

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TurnNotebook:
    """Reads and writes for one turn; every write is one fenced transaction.

    Attributes:
        scope: Whose notes these are (`gateway.storage.notebook.scope_of`).
        may_act: Whether everybody whose words the turn is about may act: else nobody's words may
            become notes, which others will read.
    """

    database: Database
    turn: Turn
    settings: MemorySettings
    scope: str
    may_act: bool

    async def todo(self) -> Sequence[TodoItem]:
        """Return the list."""
        first_seq = self.turn.session.plan.first_seq
        return await self.database.read(notebook.todo_of, self.turn.lease.conversation, first_seq)

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        """Replace the list."""
        await self.database.write(notebook.set_todo, self.turn, items)

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        """Return the notes."""
        return await self.database.read(notebook.notes_of, self.scope, target)

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        """Take out a note, put one in its place or behind the others.

        Raises:
            ToolError: The sender may not act, `add` is suspicious, no note or several hold
                `remove`, or there is no room.
        """
        if not self.may_act:
            raise ToolError("the notes cannot be changed: a sender here may only talk")
        self._require_harmless(add or "")
        limits = {"memory": self.settings.max_chars, "user": self.settings.profile_max_chars}
        change = Change(self.scope, target, remove, add, limits[target])
        notes = await self.database.write(notebook.change_notes, self.turn, change)
        log.info("notes_changed", target=target, notes=len(notes), chars=sum(map(len, notes)))
        return notes

    def _require_harmless(self, text: str) -> None:
        """Refuse what would instruct every later prompt that holds it."""
        if kinds := sorted(scan(text).counts):
            log.warning("note_refused", kinds=kinds)
            raise ToolError(f"the note is refused, it holds: {', '.join(kinds)}")
