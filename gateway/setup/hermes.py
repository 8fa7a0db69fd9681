"""Imports a Hermes Agent home: settings, files, notes, skills and sessions.

Each conversation is imported in one transaction and each file written in one step, so a later run
continues an interrupted one and keeps existing data.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters.door import FIRST_OWNER
from adapters.messages import Address
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT, account_types
from agent.messages import text_of
from agent.ports import MemoryTarget, Origin
from agent.safety.redaction import Redactor
from agent.safety.threats import scan
from gateway.agent_ports.search import Indexer
from gateway.context.prompts import IDENTITY_CHARS
from gateway.errors import GatewayError
from gateway.session_keys import address_key, member_key
from gateway.settings.loading import replace_closed
from gateway.settings.tree import Settings
from gateway.setup.hermes_home import HermesHome, HermesSession, Line, lineages, messages_of
from gateway.setup.hermes_settings import SettingsFound, found_in
from gateway.storage.conversation import transcript
from gateway.storage.conversation.transcript import ImportedSession, ImportPlace
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import inbox

SOURCE = "import:hermes:"
"""Prefix of the cursors of Hermes sessions."""
SETTINGS = "parley.hermes.yaml"
"""File for imported settings, which the operator reviews and puts in place."""
DEFAULT_SOUL = "You are Hermes Agent, an intelligent AI assistant created by Nous Research."
NOTES: Mapping[str, MemoryTarget] = {"MEMORY.md": "memory", "USER.md": "user"}


@dataclass(frozen=True, slots=True)
class Import:
    """The scope of an import.

    Attributes:
        home: The Hermes home.
        settings: Parley's settings.
        person: "platform:id" of the local Hermes user, who gets notes and sessions without a chat.
            None for the first owner or the web chat's.
    """

    home: HermesHome
    settings: Settings
    person: str | None = None

    @property
    def owner(self) -> tuple[str, str]:
        """Platform and id of the person."""
        named = self.person or next(iter(self.settings.access.owners), f"{BUILT_IN}:{FIRST_OWNER}")
        platform, colon, who = named.partition(":")
        if not (colon and who and platform in {BUILT_IN, *account_types()}):
            raise GatewayError(f"{named!r} is not a person: platform:id, such as telegram:123456")
        return platform, who


async def take_over(task: Import, into: Database | None) -> list[Line]:
    """Import the home and return the report.

    Args:
        into: The database; None only reports what a first import would do.
    """
    found, lines = found_in(task.home), []
    for line, files in _files(task, found):
        lines.append(line)
        if into is not None and line.outcome == "taken":
            _write(files)
    file = lines[0].outcome
    lines += [it.but(file, it.note) if it.outcome == "taken" else it for it in found.lines]
    lines += await _notes(task, into)
    with task.home.database() as conn:
        if conn is not None:
            lines += await _sessions(task, conn, into)
    if into is not None:
        await Indexer(into).feed_all()
    return lines


def _write(files: Mapping[Path, bytes]) -> None:
    try:
        for path in (each for each in files if not each.exists()):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_closed(path, files[path])
    except OSError as exc:
        raise GatewayError(f"{exc.filename} cannot be written: {exc.strerror}") from exc


def _files(task: Import, found: SettingsFound) -> Iterator[tuple[Line, dict[Path, bytes]]]:
    """Yield the lines of settings, SOUL.md and skills, with the files of each."""
    home = task.settings.home
    line = Line("files", SETTINGS, "taken", "no gateway reads it: see what is in it")
    yield _unless_there(line, {home / SETTINGS: found.as_yaml().encode()})
    if soul := task.home.text("SOUL.md").strip():
        long = f"longer than {IDENTITY_CHARS:,} characters: its end is not read"
        text = Redactor().text(soul[:IDENTITY_CHARS])
        line = Line("files", "SOUL.md", "taken", long if len(soul) > IDENTITY_CHARS else "", text)
        if soul.startswith(DEFAULT_SOUL):
            line = line.but("left out", "Hermes' own words")
        yield _unless_there(line, {home / "SOUL.md": f"{soul}\n".encode()})
    for line, contents in task.home.skills():
        folder = home / "skills" / line.what
        yield _unless_there(line, {folder / name: each for name, each in contents.items()})


def _unless_there(line: Line, files: dict[Path, bytes]) -> tuple[Line, dict[Path, bytes]]:
    """Skip files if the last one exists with different content."""
    path = next(reversed(files), None)
    if line.outcome == "taken" and path is not None and path.exists():
        if not path.is_file() or path.read_bytes() != files[path]:
            line = line.but("left out", f"{path} is there and is another one")
        elif all(each.exists() for each in files):
            line = line.but("known", "it is there already")
    return line, files


async def _notes(task: Import, into: Database | None) -> list[Line]:
    """Store the notes of the memory files, except those that contain prompt instructions."""
    lines, person = [], ":".join(task.owner)
    notes = [(name, note) for name in NOTES for note in task.home.notes(name)]
    for name, note in notes:
        target, shown = NOTES[name], Redactor().text(note)
        line = Line("memory", f"a note of {name}", "taken", f"about {person}", shown)
        if kinds := sorted(scan(note).counts):
            line = line.but("left out", f"it holds: {', '.join(kinds)}")
        elif into is not None:
            is_new = await into.write(
                notebook.take_note, person, target, note, notebook.MOST_CHARS[target]
            )
            if is_new is None:
                line = line.but("left out", f"no room: {notebook.MOST_CHARS[target]:,} characters")
            elif not is_new:
                line = line.but("known", "it is there already")
        lines.append(line)
    return lines


async def _sessions(task: Import, conn: sqlite3.Connection, into: Database | None) -> list[Line]:
    """Store the sessions, one transaction per conversation; skip busy ones until later."""
    found: dict[ImportPlace, list[list[HermesSession]]] = {}
    nowhere: Counter[str] = Counter()
    for chain in lineages(conn):
        place = place_of(chain[0], task)
        if isinstance(place, str):
            nowhere[place] += 1
        else:
            found.setdefault(place, []).append(chain)
    before = {} if into is None else await into.read(inbox.positions, SOURCE)
    lines = [Line("sessions", f"{n} sessions", "left out", why) for why, n in nowhere.items()]
    for place, chains in found.items():
        told = [
            _session(conn, chain, place, before.get(SOURCE + chain[0].id, 0)) for chain in chains
        ]
        new = [each for each in told if each.messages]
        line = Line("sessions", f"{len(new)} sessions of {place.session_key}", "taken")
        if not new:
            line = line.but("known", "nothing new in them")
        elif into is not None and not await into.write(transcript.enter_imported, place, new):
            line = line.but("left out", "a turn goes on there: again later")
        lines.append(line)
    return lines


def _session(
    conn: sqlite3.Connection, chain: Sequence[HermesSession], place: ImportPlace, after_row: int
) -> ImportedSession:
    tip, (told, seen, newest) = chain[-1], messages_of(conn, chain, after_row)
    first = next((text_of(each.message) for each in told if each.message["role"] == "user"), "")
    # The authors of tool results and the speakers in a group are unknown.
    has_tools = any(each.message["role"] == "tool" for each in told)
    tools = [Origin("tool", "hermes")] if has_tools else []
    group = [Origin("quoted", "?:?")] if place.user is None else []
    # A local session is only a record; it cannot continue in a chat.
    goes_on = not tip.has_ended and tip.source in account_types()
    return ImportedSession(
        source=SOURCE + chain[0].id,
        position=newest,
        title=tip.title or chain[0].title or first,
        messages=told,
        shown=seen if goes_on else 0,
        is_rest=after_row > 0,
        origins=(*tools, *group),
    )


def place_of(session: HermesSession, task: Import) -> ImportPlace | str:
    """Return the conversation for a session, or the reason why it has none."""
    source, user = session.source, session.user
    if session.is_delegate:
        return "of delegated agents: their results are in the sessions that asked them"
    is_direct, chat, thread = session.chat_type in {None, "dm"}, session.chat, session.thread
    if source not in account_types():
        if user is not None or chat is not None:
            return f"of {source}, which Parley does not speak with"
        (source, user), chat = task.owner, f"hermes-{source}"
    if is_direct and source == "telegram":
        # On this platform a direct chat has the person's id.
        chat, user = chat or user, user or chat
    if source == "discord" and session.chat_type == "thread":
        # Discord threads are channels; Parley addresses them by their parent channel.
        chat, thread = session.parent_chat, chat
    if chat is None or (is_direct and user is None):
        return f"of {source}, without a chat or a person on record"
    address = Address(source, DEFAULT_ACCOUNT, chat, thread)
    if is_direct:
        return ImportPlace(address_key(address), address, user)
    if user is not None and thread is None and task.settings.sessions.groups == "per_user":
        return ImportPlace(member_key(address, user), address, user)
    return ImportPlace(address_key(address), address, None)
