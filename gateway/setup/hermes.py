"""Takes a home of Hermes Agent over: settings, files, notes, skills and sessions.

`survey` tells what would be done and changes nothing; `take_over` does it. Each conversation is one
transaction, each file is written in one step: what was interrupted is done by the next run, and
what is there already is left as it is.
"""

import asyncio
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
from gateway.setup.hermes_home import (
    HermesHome,
    HermesSession,
    HermesSkill,
    Line,
    lineages,
    messages_of,
    number_of,
    sessions_in,
)
from gateway.setup.hermes_transcripts import Transcript, transcript_of
from gateway.storage.conversation import imported
from gateway.storage.conversation.imported import (
    ImportedLineage,
    ImportedMessage,
    ImportPlace,
)
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


@dataclass(slots=True)
class ChatFound:
    """The lineages of one conversation, oldest first, with the last session of each."""

    place: ImportPlace
    lineages: list[list[HermesSession]] = field(default_factory=list)


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


def survey(task: Import, before: Before) -> list[Line]:
    """Return what an import would do; nothing is changed."""
    lines = [line for line, _, _ in _files(task)]
    lines += [line for line, _, _ in _notes(task, before)]
    with task.home.database() as conn:
        if conn is not None:
            conversations, left_out = _conversations(conn, task)
            lines += [line for each in conversations for line in _session_lines(conn, each, before)]
            lines += left_out
    return lines


async def take_over(task: Import, database: Database) -> list[Line]:
    """Take over what there is; returns what became of each thing.

    Raises:
        GatewayError: A file cannot be written.
        StorageError: The database cannot be.
    """
    before = await database.read(before_of, task)
    lines = await asyncio.to_thread(survey, task, before)
    await asyncio.to_thread(_take_files, task)
    refused = [*await _take_notes(task, before, database)]
    refused += await _take_sessions(task, before, database)
    await Indexer(database).feed_all()
    instead = {(line.part, line.what): line for line in refused}
    return [instead.get((line.part, line.what), line) for line in lines]


def _take_files(task: Import) -> None:
    for line, path, content in _files(task):
        if line.outcome == "taken" and line.part != "settings":
            _write(path, content)


def _write(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, in one step."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as exc:
        raise GatewayError(f"{path} cannot be written: {exc.strerror}") from exc


def _known(line: Line) -> Line:
    if line.outcome != "taken":
        return line
    return Line(line.part, line.what, "known", "it is there already", line.text)


def _files(task: Import) -> Iterator[tuple[Line, Path, bytes]]:
    """Yield what becomes of settings, SOUL.md and skills: the file of each, and its bytes."""
    home = task.settings.home
    yield from _settings(task)
    yield from ((line, home, b"") for line in task.home.unread())
    soul = task.home.text("SOUL.md")
    if soul is not None and soul.strip():
        long = f"longer than {IDENTITY_CHARS:,} characters: its end is not read"
        note = long if len(soul) > IDENTITY_CHARS else ""
        line = _file_line(home / "SOUL.md", soul.encode(), "files", "SOUL.md", note)
        line = replace(line, text=Redactor().text(soul[:IDENTITY_CHARS]))
        if soul.startswith(DEFAULT_SOUL):
            line = Line("files", "SOUL.md", "left out", "Hermes' own words")
        yield line, home / "SOUL.md", soul.encode()
    for skill in task.home.skills():
        if isinstance(skill, Line):
            yield skill, home, b""
        else:
            yield from _skill_files(skill, home / "skills" / skill.name)


def _settings(task: Import) -> Iterator[tuple[Line, Path, bytes]]:
    found, path = hermes_settings.found_in(task.home), task.settings.home / SETTINGS
    content = hermes_settings.as_yaml(found.tree).encode()
    file = _file_line(path, content, "files", SETTINGS, "no gateway reads it: see what is in it")
    for line in found.lines:
        yield line if file.outcome == "taken" else _known(line), path, b""
    yield file, path, content


def _skill_files(skill: HermesSkill, target: Path) -> Iterator[tuple[Line, Path, bytes]]:
    threats = sorted(scan(_bytes(skill.folder / FILE).decode("utf-8", "replace")).counts)
    note = f"taken out when it is read: {', '.join(threats)}" if threats else ""
    # The description last: until it is there nobody takes the folder for a skill.
    for name in sorted(skill.files, key=lambda name: name == FILE):
        content = _bytes(skill.folder / name)
        what = skill.name if name == FILE else f"{skill.name}/{name}"
        line = _file_line(target / name, content, "skills", what, note if name == FILE else "")
        if name == FILE:
            line = replace(line, text=Redactor().text(content.decode("utf-8", "replace")))
        yield line, target / name, content


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise GatewayError(f"{path} cannot be read: {exc.strerror}") from exc


def _file_line(path: Path, content: bytes, part: str, what: str, note: str) -> Line:
    if not path.exists():
        return Line(part, what, "taken", note)
    if path.is_file() and path.read_bytes() == content:
        return Line(part, what, "known", "it is there already")
    return Line(part, what, "left out", f"{path} is there and is another one")


def _notes(task: Import, before: Before) -> Iterator[tuple[Line, MemoryTarget, str]]:
    """Yield the notes of the memory files; what would instruct a prompt is refused, as ever."""
    person = ":".join(task.owner)
    for target, name in NOTES.items():
        for number, note in enumerate(task.home.notes(name), start=1):
            line = Line("memory", f"{name}, note {number}", "taken", f"a note about {person}")
            line = replace(line, text=Redactor().text(note))
            if kinds := sorted(scan(note).counts):
                why = f"it holds: {', '.join(kinds)}"
                line = replace(line, outcome="left out", note=why, text="")
            yield (_known(line) if (target, note) in before.notes else line), target, note


async def _take_notes(task: Import, before: Before, database: Database) -> list[Line]:
    """Enter the notes; returns a line for each that has no room."""
    memory = task.settings.tools.memory
    limits = {"memory": memory.max_chars, "user": memory.profile_max_chars}
    scope = ":".join(task.owner)
    refused = []
    for line, target, note in _notes(task, before):
        if line.outcome == "taken":
            args = (scope, target, note, limits[target])
            if await database.write(notebook.take_note, *args) is None:
                why = f"no room: {limits[target]:,} characters"
                refused.append(replace(line, outcome="left out", note=why, text=""))
    return refused


async def _take_sessions(task: Import, before: Before, database: Database) -> list[Line]:
    """Enter the sessions, each conversation at once; returns a line for each that is busy."""
    refused = []
    with task.home.database() as conn:
        for each in [] if conn is None else _conversations(conn, task)[0]:
            if conn is None or not (found := _lineages(conn, each, before)):
                continue
            done = await database.write(imported.enter, each.place, found)
            if done.into == "busy":
                line = next(_session_lines(conn, each, before))
                why = "a turn goes on there: again later"
                refused.append(replace(line, outcome="left out", note=why))
    return refused


def _session_lines(conn: sqlite3.Connection, each: ChatFound, before: Before) -> Iterator[Line]:
    new = sum(_is_new(conn, chain, before) for chain in each.lineages)
    key, old = each.place.session_key, len(each.lineages) - new
    if new:
        yield Line("sessions", f"{new} sessions of {key}", "taken")
    if old:
        yield Line("sessions", f"{old} of {key}", "known", "nothing new in them")


def _conversations(conn: sqlite3.Connection, task: Import) -> tuple[list[ChatFound], list[Line]]:
    """Return the lineages by conversation, and a line for those that belong nowhere."""
    found: dict[str, ChatFound] = {}
    nowhere: Counter[str] = Counter()
    for chain in lineages(sessions_in(conn)):
        place = place_of(chain[0], task)
        if isinstance(place, str):
            nowhere[place] += 1
        else:
            found.setdefault(place.session_key, ChatFound(place)).lineages.append(chain)
    lines = [
        Line("sessions", f"{count} sessions", "left out", why) for why, count in nowhere.items()
    ]
    return list(found.values()), lines


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


def _is_new(conn: sqlite3.Connection, chain: Sequence[HermesSession], before: Before) -> bool:
    """Whether a lineage has messages that were not imported yet."""
    query = "SELECT coalesce(max(id), 0) FROM messages WHERE session_id = ?"
    newest = (number_of(conn.execute(query, (each.id,)).fetchone()[0]) for each in chain)
    return max(newest) > before.positions.get(SOURCE + chain[0].id, 0)


def _lineages(conn: sqlite3.Connection, each: ChatFound, before: Before) -> list[ImportedLineage]:
    """Return what of a conversation was not imported yet."""
    found: list[ImportedLineage] = []
    for chain in each.lineages:
        if not _is_new(conn, chain, before):
            continue
        rows = (row for session in chain for row in messages_of(conn, session.id))
        transcript = transcript_of(rows)
        if position := before.positions.get(SOURCE + chain[0].id):
            transcript = transcript.behind(position)
        found += _lineage(chain, transcript, each.place)
    return found


def _lineage(
    chain: Sequence[HermesSession], transcript: Transcript, place: ImportPlace
) -> Iterator[ImportedLineage]:
    """Yield what the newest compaction left out of the view, if any, and what goes on."""
    tip, told = chain[-1], transcript.told
    first = next((text_of(each.message) for each in told if each.message["role"] == "user"), "")
    newest = told[-1].at if told else tip.started_at
    # Nobody writes in what was said on this machine: it is a record, and does not go on.
    ended_at = tip.ended_at if tip.source in account_types() else tip.ended_at or newest
    goes_on = ImportedLineage(
        source=SOURCE + chain[0].id,
        position=transcript.newest_row,
        title=tip.title or chain[0].title or first,
        messages=[ImportedMessage(each.message, each.at) for each in told],
        ended_at=ended_at,
        origins=tuple(_origins(transcript, place)),
    )
    if earlier := [ImportedMessage(each.message, each.at) for each in transcript.earlier]:
        yield replace(goes_on, messages=earlier, ended_at=earlier[-1].at)
    yield goes_on


def _origins(transcript: Transcript, place: ImportPlace) -> Iterator[Origin]:
    """Yield whose words a lineage holds that are not its people's: nobody knows who wrote them."""
    if transcript.has_tools:
        yield Origin("tool", "hermes")
    if place.user is None:
        # Hermes has not kept who said what in a group.
        yield Origin("quoted", "?:?")
