"""Takes a home of Hermes Agent over: settings, files, notes, skills and sessions.

`survey` tells what would be done and changes nothing; `take_over` does it. Each conversation is one
transaction, each file is written in one step: what was interrupted is done by the next run, and
what is there already is left as it is.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Connection

from adapters.door import FIRST_OWNER
from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT, account_types
from agent.messages import text_of
from agent.ports import Origin
from agent.prompt.skills import FILE
from agent.safety.redaction import Redactor
from agent.safety.threats import scan
from agent.tools.context import MemoryTarget
from gateway.agent_ports.search import Indexer
from gateway.context.prompts import IDENTITY_CHARS
from gateway.errors import GatewayError
from gateway.session_keys import address_key, member_key
from gateway.settings.tree import Settings
from gateway.setup import hermes_settings
from gateway.setup.hermes_home import HermesHome, HermesSkill, Line
from gateway.setup.hermes_transcripts import HermesSession, lineages, newest_row, transcript_of
from gateway.storage.conversation import imported
from gateway.storage.conversation.imported import ImportedLineage, ImportPlace
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import arrivals

SOURCE = "import:hermes:"
"""What the cursors of Hermes' sessions begin with."""
SETTINGS = "parley.hermes.yaml"
"""Where settings go, for the operator to read and put in place."""
DEFAULT_SOUL = "You are Hermes Agent, an intelligent AI assistant created by Nous Research."
NOTES: Mapping[MemoryTarget, str] = {"memory": "MEMORY.md", "user": "USER.md"}


@dataclass(frozen=True, slots=True)
class Import:
    """What is taken over, and for whom.

    Attributes:
        home: Hermes'.
        settings: Parley's, as they are.
        person: "platform:id" of whoever used Hermes on this machine: notes and sessions without a
            chat are theirs. None: the first owner, or the web chat's.
    """

    home: HermesHome
    settings: Settings
    person: str | None = None

    @property
    def owner(self) -> tuple[str, str]:
        """Platform and id of that person.

        Raises:
            GatewayError: It is no "platform:id".
        """
        named = self.person or next(iter(self.settings.access.owners), f"{BUILT_IN}:{FIRST_OWNER}")
        platform, colon, who = named.partition(":")
        if not (colon and who and platform in {BUILT_IN, *account_types()}):
            raise GatewayError(f"{named!r} is no person: platform:id, such as telegram:123456")
        return platform, who


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier import has taken: positions by the names of sources, and notes."""

    positions: Mapping[str, int] = field(default_factory=dict)
    notes: frozenset[tuple[MemoryTarget, str]] = frozenset()


def before_of(conn: Connection, task: Import) -> Before:
    """Return what an earlier import has taken."""
    scope = ":".join(task.owner)
    notes = ((each, note) for each in NOTES for note in notebook.notes_of(conn, scope, each))
    return Before(arrivals.positions(conn, SOURCE), frozenset(notes))


async def survey(task: Import, before: Before) -> list[Line]:
    """Return what an import would do; nothing is changed."""
    return await _import(task, before, None)


async def take_over(task: Import, database: Database) -> list[Line]:
    """Take over what there is; returns what became of each thing.

    Raises:
        GatewayError: A file cannot be written.
        StorageError: The database cannot be.
    """
    lines = await _import(task, await database.read(before_of, task), database)
    await Indexer(database).feed_all()
    return lines


async def _import(task: Import, before: Before, into: Database | None) -> list[Line]:
    """Return a line for each thing, which is taken where there is a database for it."""
    lines = [_written(*file, takes=into is not None) for file in _files(task)]
    for line, target, note in _notes(task, before):
        lines.append(await _noted(task, into, line, target, note))
    with task.home.database() as conn:
        if conn is not None:
            lines += await _sessions(task, conn, before, into)
    return lines


def _written(line: Line, path: Path | None, content: bytes, *, takes: bool) -> Line:
    """Write a file for its owner alone, in one step."""
    if path is None or not takes or line.outcome != "taken":
        return line
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as exc:
        raise GatewayError(f"{path} cannot be written: {exc.strerror}") from exc
    return line


def _known(line: Line) -> Line:
    if line.outcome != "taken":
        return line
    return replace(line, outcome="known", note="it is there already")


def _files(task: Import) -> Iterator[tuple[Line, Path | None, bytes]]:
    """Yield what becomes of settings, SOUL.md and skills: the file of each, and its bytes."""
    home = task.settings.home
    found = hermes_settings.found_in(task.home)
    content = hermes_settings.as_yaml(found.tree).encode()
    note = "no gateway reads it: see what is in it"
    file = _file_line(home / SETTINGS, content, Line("files", SETTINGS, "taken", note))
    yield from (
        (each if file.outcome == "taken" else _known(each), None, b"") for each in found.lines
    )
    yield file, home / SETTINGS, content
    yield from ((line, None, b"") for line in task.home.unread())
    soul = task.home.text("SOUL.md")
    if soul is not None and soul.strip():
        long = f"longer than {IDENTITY_CHARS:,} characters: its end is not read"
        text = Redactor().text(soul[:IDENTITY_CHARS])
        line = Line("files", "SOUL.md", "taken", long if len(soul) > IDENTITY_CHARS else "", text)
        if soul.startswith(DEFAULT_SOUL):
            line = replace(line, outcome="left out", note="Hermes' own words")
        yield _file_line(home / "SOUL.md", soul.encode(), line), home / "SOUL.md", soul.encode()
    for skill in task.home.skills():
        if isinstance(skill, Line):
            yield skill, None, b""
        else:
            yield from _skill_files(skill, home / "skills" / skill.name)


def _skill_files(skill: HermesSkill, target: Path) -> Iterator[tuple[Line, Path, bytes]]:
    for name in skill.files:
        try:
            content = (skill.folder / name).read_bytes()
        except OSError as exc:
            raise GatewayError(f"{skill.folder / name} cannot be read: {exc.strerror}") from exc
        line = Line("skills", f"{skill.name}/{name}", "taken")
        if name == FILE:
            text = content.decode("utf-8", "replace")
            threats = sorted(scan(text).counts)
            note = f"taken out when it is read: {', '.join(threats)}" if threats else ""
            line = Line("skills", skill.name, "taken", note, Redactor().text(text))
        yield _file_line(target / name, content, line), target / name, content


def _file_line(path: Path, content: bytes, line: Line) -> Line:
    """Return the line of a file; what is there already stays."""
    if line.outcome != "taken" or not path.exists():
        return line
    if path.is_file() and path.read_bytes() == content:
        return _known(line)
    return replace(line, outcome="left out", note=f"{path} is there and is another one")


def _notes(task: Import, before: Before) -> Iterator[tuple[Line, MemoryTarget, str]]:
    """Yield the notes of the memory files; what would instruct a prompt is refused, as ever."""
    person = ":".join(task.owner)
    for target, name in NOTES.items():
        for number, note in enumerate(task.home.notes(name), start=1):
            line = Line("memory", f"{name}, note {number}", "taken", f"a note about {person}")
            line = replace(line, text=Redactor().text(note))
            if kinds := sorted(scan(note).counts):
                line = replace(line, outcome="left out", note=f"it holds: {', '.join(kinds)}")
            yield (_known(line) if (target, note) in before.notes else line), target, note


async def _noted(
    task: Import, into: Database | None, line: Line, target: MemoryTarget, note: str
) -> Line:
    """Enter a note, unless there is no room for it."""
    memory = task.settings.tools.memory
    limit = memory.max_chars if target == "memory" else memory.profile_max_chars
    if into is None or line.outcome != "taken":
        return line
    args = (":".join(task.owner), target, note, limit)
    if await into.write(notebook.take_note, *args) is not None:
        return line
    return replace(line, outcome="left out", note=f"no room: {limit:,} characters")


async def _sessions(
    task: Import, conn: sqlite3.Connection, before: Before, into: Database | None
) -> list[Line]:
    """Enter the sessions, each conversation at once; those of a busy one are for a later run."""
    found: dict[ImportPlace, list[list[HermesSession]]] = {}
    nowhere: Counter[str] = Counter()
    for chain in lineages(conn):
        place = place_of(chain[0], task)
        if isinstance(place, str):
            nowhere[place] += 1
        else:
            found.setdefault(place, []).append(chain)
    lines = []
    for place, chains in found.items():
        new = [each for each in chains if newest_row(conn, each) > _position(each, before)]
        if new:
            line = Line("sessions", f"{len(new)} sessions of {place.session_key}", "taken")
            told = (
                []
                if into is None
                else [each for c in new for each in _lineage(conn, c, place, before)]
            )
            if into is not None and not await into.write(imported.enter, place, told):
                line = replace(line, outcome="left out", note="a turn goes on there: again later")
            lines.append(line)
        if old := len(chains) - len(new):
            note = "nothing new in them"
            lines.append(Line("sessions", f"{old} of {place.session_key}", "known", note))
    for why, count in nowhere.items():
        lines.append(Line("sessions", f"{count} sessions", "left out", why))
    return lines


def _position(chain: Sequence[HermesSession], before: Before) -> int:
    """Return the row up to which an earlier import has read a lineage."""
    return before.positions.get(SOURCE + chain[0].id, 0)


def _lineage(
    conn: sqlite3.Connection, chain: Sequence[HermesSession], place: ImportPlace, before: Before
) -> Iterator[ImportedLineage]:
    """Yield what the newest compaction left out of the view, if any, and what goes on."""
    transcript = transcript_of(conn, chain)
    if position := _position(chain, before):
        transcript = transcript.behind(position)
    tip, told = chain[-1], transcript.told
    first = next((text_of(each.message) for each in told if each.message["role"] == "user"), "")
    # Nobody writes in what was said on this machine: it is a record, and does not go on.
    newest = told[-1].at if told and tip.source not in account_types() else None
    # Nobody knows who wrote what tools brought, and who said what in a group.
    tools = [Origin("tool", "hermes")] if transcript.has_tools else []
    group = [Origin("quoted", "?:?")] if place.user is None else []
    goes_on = ImportedLineage(
        source=SOURCE + chain[0].id,
        position=transcript.newest_row,
        title=tip.title or chain[0].title or first,
        messages=told,
        ended_at=tip.ended_at or newest,
        origins=(*tools, *group),
    )
    if earlier := transcript.earlier:
        yield replace(goes_on, messages=earlier, ended_at=earlier[-1].at)
    yield goes_on


def place_of(session: HermesSession, task: Import) -> ImportPlace | str:
    """Return the conversation that a session belongs to, or why there is none."""
    if session.is_delegate:
        return "of delegated agents: their results stand in the sessions that asked them"
    if session.source not in account_types():
        if session.user is None and session.chat is None:
            return _of_this_machine(session, task)
        return f"of {session.source}, which Parley does not speak with"
    chat = session.chat
    if chat is None and session.source == "telegram" and session.chat_type in {None, "dm"}:
        # There the id of a direct chat is that of the person.
        chat = session.user
    if chat is None:
        return f"of {session.source}, without a chat on record"
    if session.chat_type in {None, "dm"}:
        return _direct(session, chat)
    return _group(session, chat, task)


def _of_this_machine(session: HermesSession, task: Import) -> ImportPlace:
    platform, who = task.owner
    address = Address(platform, DEFAULT_ACCOUNT, f"hermes-{session.source}")
    return ImportPlace(address_key(address), address, who)


def _direct(session: HermesSession, chat: str) -> ImportPlace | str:
    user = session.user or (chat if session.source == "telegram" else None)
    if user is None:
        return f"of {session.source}, without a person on record"
    address = Address(session.source, DEFAULT_ACCOUNT, chat, session.thread)
    return ImportPlace(address_key(address), address, user)


def _group(session: HermesSession, chat: str, task: Import) -> ImportPlace | str:
    source, thread = session.source, session.thread
    if source == "discord" and session.chat_type == "thread":
        # A thread is a channel there; Parley names it by the channel that it is in.
        if session.parent_chat is None:
            return "of Discord's threads, without a channel on record"
        chat, thread = session.parent_chat, chat
    address = Address(source, DEFAULT_ACCOUNT, chat, thread)
    alone = task.settings.sessions.groups == "per_user" and thread is None
    if alone and session.user is not None:
        return ImportPlace(member_key(address, session.user), address, session.user)
    return ImportPlace(address_key(address), address, None)
