"""The tool context of one turn: its notebook, a folder for its files, its rights.

The rights depend on everyone whose words the turn reads, not only on the sender: an order that a
guest wrote an hour ago is still in view when a member says "go on". A new note is shown below the
answer with *Undo*.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import Connection
from typing_extensions import override

from adapters.base import Renderer
from adapters.messages import Choice
from agent.context_engine import ContextEngine
from agent.errors import ToolError
from agent.messages import quoted
from agent.ports import MemoryTarget, Origin, Past, TodoItem
from agent.processes.workspace import erase
from agent.prompt.skills import SkillShelf
from agent.safety.threats import scan
from agent.settings import McpServerSettings, WorkspaceSettings
from agent.tools.context import Hooks, Provenance, ToolContext, ToolServices, TurnRights
from agent.tools.gate import reads_elsewhere
from agent.tools.links import FETCH_URL, RECALLING, Trail, named_in
from agent.tools.registry import ToolRegistry
from gateway.access.policy import Access
from gateway.agent_ports.files import Attachments
from gateway.agent_ports.journal import Reader
from gateway.agent_ports.questions import Inquiries
from gateway.agent_ports.search import ConversationSearcher, Indexer
from gateway.errors import SettingsError, StorageUnavailable
from gateway.settings.tree import Settings
from gateway.storage.conversation import sessions, turn_journal, turns
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.people import mcp, notebook
from gateway.storage.people.notebook import Change, Note
from gateway.storage.queue.outbox import OutboxPart, parts_of

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TurnNotebook:
    """The notebook of one turn; every write is one fenced transaction.

    Attributes:
        may_act: Whether all people of the turn may act; otherwise no text may become a note, which
            others will read.
    """

    database: Database
    turn: Turn
    scope: str
    may_act: bool
    render: Renderer

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
        """Remove, replace or append a note.

        Raises:
            ToolError: The sender may not act, `add` is suspicious, `remove` matches no note or
                several, or the notebook is full.
        """
        if not self.may_act:
            raise ToolError("the notes cannot be changed: a sender here may only talk")
        # It would inject instructions into every later prompt.
        if kinds := sorted(scan(add or "").counts):
            log.warning("note_refused", kinds=kinds)
            raise ToolError(f"the note is refused, it holds: {', '.join(kinds)}")
        change = Change(self.scope, target, remove, add, notebook.MOST_CHARS[target])
        notes = await self.database.write(self._change, change)
        log.info("notes_changed", target=target, notes=len(notes), chars=sum(map(len, notes)))
        return notes

    def _change(self, conn: Connection, change: Change) -> list[str]:
        """Change the notes; report a removal at once, a new note at the turn's end."""
        notes, removed = notebook.change_notes(conn, self.turn, change)
        if removed is not None and change.add is None:
            turn_journal.notify(conn, self.turn, removal_of(self.render, removed))
        return notes


def lines_of(render: Renderer, notes: Iterable[Note]) -> list[OutboxPart]:
    """Return an outbox row for each new note: a line with buttons."""
    return [part for note in notes for part in _line(render, note)]


def _line(render: Renderer, note: Note) -> Sequence[OutboxPart]:
    key, text = f"note:{note.id}:kept", quoted(note.text)
    if note.waits:
        asked = (
            f"Shall I remember: {text}? `/memory keep #{note.id}` or `/memory forget #{note.id}`"
        )
        choices = (
            Choice("Keep", f"/memory keep #{note.id}"),
            Choice("No", f"/memory forget #{note.id}"),
        )
        return parts_of(render, key, asked, choices=choices)
    instead = f" instead of {quoted(note.before)}" if note.before else ""
    told = f"Remembered: {text}{instead}. `/memory undo {note.id}`"
    return parts_of(render, key, told, choices=(Choice("Undo", f"/memory undo {note.id}"),))


def removal_of(render: Renderer, note: Note) -> list[OutboxPart]:
    """Return the outbox row that reports a note removed by the agent."""
    told = f"No longer remembered: {quoted(note.text)}."
    return parts_of(render, f"note:{note.id}:removed", told)


FOLDER = "workspaces"


class Workspaces:
    """The directories of all conversations, below `root` by conversation id."""

    def __init__(self, settings: WorkspaceSettings, home: Path) -> None:
        try:
            self.root = (settings.root or home / FOLDER).expanduser().absolute()
        except RuntimeError as exc:
            text = f"tools.workspace.root: {str(settings.root)!r} names a user that does not exist"
            raise SettingsError(text) from exc

    def path_for(self, conversation_id: int) -> Path:
        """Return a conversation's directory, which may not exist yet."""
        return self.root / str(conversation_id)

    def forget(self, conversation_id: int) -> None:
        """Delete a conversation's directory; blocking."""
        folder = self.path_for(conversation_id)
        try:
            erase(folder)
        except OSError as exc:
            raise StorageUnavailable(f"the files in {folder} are not all deleted: {exc}") from exc


def rights_of_turn(conn: Connection, access: Access, turn: Turn) -> TurnRights:
    """Return the current rights of a turn.

    Everyone counts whose words are in the conversation since its last `/new`: in a direct chat the
    sender and the authors of quoted and forwarded texts.
    """
    scope = notebook.scope_of(conn, turn.lease.conversation)
    # The weakest decides: the model cannot tell people's orders apart (decision 029).
    everybody = set(turn.senders)
    origins = turn.session.origins
    everybody |= {origin.which for origin in origins if origin.kind == "quoted"}
    if everybody and notebook.is_shared(scope):
        everybody |= sessions.speakers(conn, turn.lease.conversation, turn.session.id)
    standings = access.standings(conn, everybody)
    address = turn.lease.address
    return TurnRights(
        scope,
        # A stranger whose words are here counts as a guest.
        roles=frozenset("guest" if each == "stranger" else each for each in standings or {"guest"}),
        group=f"{address.platform}:{address.chat}" if notebook.is_shared(scope) else "",
        read=Provenance({*origins, *tainting(conn, access, origins)}),
    )


def trail_of(conn: Connection, turn: Turn) -> Trail:
    """Return the addresses named by people, and the turn's earlier use of them.

    Text next to a paste may belong to it, so an address there counts as a link.
    """
    said = turns.own_words_in(conn, turn.lease.conversation, turn.session.id)
    done = turns.tool_steps(conn, turn)
    trail = Trail(
        named=frozenset(
            address for text, beside_paste in said if not beside_paste for address in named_in(text)
        ),
        links={
            address: "" for text, beside_paste in said if beside_paste for address in named_in(text)
        },
        # A fetch without marks may have followed a link.
        followed=sum(
            each.name == FETCH_URL if each.marks is None else "linked" in each.marks
            for each in done
        ),
        recalled=any("recalled" in (each.marks or ()) or each.name in RECALLING for each in done),
    )
    trail.note_shown(turns.results_of_children(conn, turn))
    return trail


def tainting(conn: Connection, access: Access, origins: Collection[Origin]) -> set[Origin]:
    """Filter the tainting origins; people taint only if they may not act now."""
    people = {origin.which for origin in origins if origin.kind == "quoted"}
    found = {origin for origin in origins if origin.kind != "quoted"}
    # One read for all, since usually all may act.
    if people and not access.may_act(conn, people):
        found |= {Origin("person", who) for who in people if not access.may_act(conn, [who])}
    return found


@dataclass(frozen=True, slots=True)
class ConversationPast(Past):
    """The past of one turn's conversation."""

    database: Database
    access: Access
    conversation: int

    @override
    async def taints_of(self, read: Collection[Origin]) -> Collection[Origin]:
        return await self.database.read(tainting, self.access, read)

    @override
    async def taints(self, *, of_scope: bool = False) -> Collection[Origin]:
        return await self.database.read(self._all_taints, of_scope=of_scope)

    def _all_taints(self, conn: Connection, *, of_scope: bool) -> set[Origin]:
        own = self.conversation
        here = notebook.sharing(conn, own) if of_scope else [own]
        return tainting(conn, self.access, sessions.held_in(conn, here))


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Builds the tool contexts of turns."""

    database: Database
    access: Access
    files: Attachments
    inquiries: Inquiries
    indexer: Indexer
    hooks: Hooks | None
    folders: tuple[SkillShelf, Workspaces]

    async def for_turn(self, turn: Turn, engine: ContextEngine, tools: ToolRegistry) -> ToolContext:
        """Return the tool context of a turn, with the current rights of its people."""
        conversation, (skills, workspaces) = turn.lease.conversation, self.folders
        # Only these tools need the addresses named by people.
        leads_out = any(reads_elsewhere(schema.name, tools) for schema in tools.schemas)
        rights = await self.database.read(self._rights, turn, leads_out=leads_out)
        rights.read.past = ConversationPast(self.database, self.access, conversation)
        render = self.inquiries.renderer(turn)
        book = TurnNotebook(self.database, turn, rights.scope, rights.may_act, render)
        return ToolContext(
            conversation=str(conversation),
            reader=Reader(self.database, conversation),
            clock=partial(datetime.now, UTC),
            files=self.files.files(turn),
            workspace=workspaces.path_for(conversation),
            rights=rights,
            services=ToolServices(
                engine=engine,
                people=self.inquiries.people(turn),
                notebook=book,
                searcher=ConversationSearcher(
                    self.database, self.indexer, conversation, turn.begins_at
                ),
                skills=skills,
                hooks=self.hooks,
            ),
        )

    def _rights(self, conn: Connection, turn: Turn, *, leads_out: bool) -> TurnRights:
        rights = rights_of_turn(conn, self.access, turn)
        if leads_out:
            rights.read.trail = trail_of(conn, turn)
        return rights


def with_walls(settings: Settings, confined: Collection[str]) -> dict[str, McpServerSettings]:
    """Return the MCP servers with `confined` resolved: by their settings, else by this record."""
    return {
        name: server.with_walls(was_here=name in confined or mcp.EVERY in confined)
        for name, server in settings.tools.mcp.items()
    }


def unconfined_in(settings: Settings, confined: Collection[str]) -> list[str]:
    """List the enabled MCP servers whose programs run unconfined; see `with_walls`."""
    are_there_walls = settings.tools.sandbox.backend != "none"
    return sorted(
        name
        for name, each in with_walls(settings, confined).items()
        if each.enabled and each.command and not (each.confined and are_there_walls)
    )
