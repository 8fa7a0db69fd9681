"""Takes a home of Hermes Agent over: settings, files, notes, skills and sessions.

`survey` tells what would be done and changes nothing; `take_over` does it. Each conversation is one
transaction, each file is written in one step: what was interrupted is done by the next run, and
what is there already is left as it is.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from gateway.settings.loading import CONFIG_NAME
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
from gateway.setup.hermes_settings import SettingsFound
from gateway.setup.hermes_transcripts import Transcript, transcript_of
from gateway.storage.conversation import imported
from gateway.storage.conversation.imported import (
    ImportedLineage,
    ImportedMessage,
    ImportedSegment,
    ImportPlace,
)
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import arrivals

SOURCE = "import:hermes:"
"""What the cursors of Hermes' sessions begin with."""
BESIDE = "parley.hermes.yaml"
"""Where settings go if there are some already."""
SECRETS = "secrets"
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
        takes_secrets: Whether somebody has said yes to that.
        accepted: Names of the people, addresses and programs that the operator accepted.
    """

    home: HermesHome
    settings: Settings
    person: str | None = None
    takes_secrets: bool = False
    accepted: frozenset[str] = frozenset()

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


def survey(
    task: Import, known: Mapping[str, int], notes: Collection[tuple[MemoryTarget, str]]
) -> list[Line]:
    """Return what an import would do; nothing is changed.

    Args:
        known: How far each source was imported, by its cursor's name.
        notes: Those that the person has already.
    """
    lines = _settings_lines(hermes_settings.found_in(task.home, task.accepted), task)
    lines += [line for line, _, _ in _files(task)]
    lines += [
        _known(line) if (target, note) in notes else line
        for target in NOTES
        for line, note in _notes(task, target)
    ]
    with task.home.database() as conn:
        if conn is not None:
            lines += _session_lines(conn, task, known)
    return lines


def notes_of(conn: Connection, task: Import) -> set[tuple[MemoryTarget, str]]:
    """Return the notes that the person has already."""
    scope = ":".join(task.owner)
    return {(each, note) for each in NOTES for note in notebook.notes_of(conn, scope, each)}


async def take_over(task: Import, database: Database) -> list[Line]:
    """Take over what there is; returns what became of each thing.

    Raises:
        GatewayError: A file cannot be written.
        StorageError: The database cannot be.
    """
    lines = await asyncio.to_thread(_take_files, task)
    for target in NOTES:
        for line, note in _notes(task, target):
            lines.append(await _take_note(task, target, line, note, database))
    lines += await _take_sessions(task, database)
    await Indexer(database).feed_all()
    return lines


def _take_files(task: Import) -> list[Line]:
    found = hermes_settings.found_in(task.home, task.accepted)
    text, secrets = _settings_text(found, task)
    # Told before anything is written: then all of it is known.
    before = _settings_lines(found, task)
    line = _settings_line(task, found)
    if line.outcome == "taken":
        _write(task.settings.home / line.what, text)
    for path, value in secrets.items():
        _write(path, value)
    lines = before
    for line, path, content in _files(task):
        if line.outcome == "taken":
            _write(path, content)
        lines.append(line)
    return lines


def _write(path: Path, content: str | bytes) -> None:
    """Write a file for its owner alone, in one step."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_bytes(content if isinstance(content, bytes) else content.encode())
        draft.replace(path)
    except OSError as exc:
        raise GatewayError(f"{path} cannot be written: {exc.strerror}") from exc


def _settings_text(found: SettingsFound, task: Import) -> tuple[str, dict[Path, str]]:
    """Return parley.yaml, and the files of the secrets to which it refers."""
    if not task.takes_secrets:
        return hermes_settings.as_yaml(found.tree), {}
    tree, files = hermes_settings.with_secrets(found, task.settings.home / SECRETS)
    return hermes_settings.as_yaml(tree), files


def _settings_lines(found: SettingsFound, task: Import) -> list[Line]:
    """Return what becomes of settings and secrets; known is what a file says already."""
    file = _settings_line(task, found)
    told = found.lines if file.outcome == "taken" else map(_known, found.lines)
    return [*told, *_secret_lines(found, task), file]


def _known(line: Line) -> Line:
    if line.outcome != "taken":
        return line
    return Line(line.part, line.what, "known", "it is there already", line.text)


def _settings_line(task: Import, found: SettingsFound) -> Line:
    """Return where the settings go: into parley.yaml, or beside one that is there."""
    folder = task.settings.home / SECRETS
    with_secrets = hermes_settings.as_yaml(hermes_settings.with_secrets(found, folder)[0])
    # What an earlier import has written with secrets says all that one without would.
    known = {_settings_text(found, task)[0], with_secrets}
    for name in (CONFIG_NAME, BESIDE):
        path = task.settings.home / name
        if path.is_file() and path.read_text("utf-8") in known:
            return Line("files", name, "known", "it is there already")
    if not (task.settings.home / CONFIG_NAME).exists():
        return Line("files", CONFIG_NAME, "taken")
    note = f"{CONFIG_NAME} is there and stays as it is: copy what you want"
    return Line("files", BESIDE, "taken", note)


def _secret_lines(found: SettingsFound, task: Import) -> Iterator[Line]:
    for path, (name, _) in found.secrets.items():
        key = ".".join(path)
        if task.takes_secrets:
            yield Line("secrets", name, "taken", f"{key}, in {SECRETS}/{name}")
        else:
            yield Line("secrets", name, "left out", f"{key}; taken with --take-secrets alone")


def _files(task: Import) -> Iterator[tuple[Line, Path, bytes]]:
    """Yield SOUL.md and the files of skills: what becomes of each, where, and its bytes."""
    home = task.settings.home
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


def _notes(task: Import, target: MemoryTarget) -> Iterator[tuple[Line, str]]:
    """Yield the notes of a memory file; what would instruct a prompt is refused, as ever."""
    name, (platform, who) = NOTES[target], task.owner
    for number, note in enumerate(task.home.notes(name), start=1):
        what = f"{name}, note {number}"
        if kinds := sorted(scan(note).counts):
            yield Line("memory", what, "left out", f"it holds: {', '.join(kinds)}"), note
        else:
            text = Redactor().text(note)
            yield Line("memory", what, "taken", f"a note about {platform}:{who}", text), note


async def _take_note(
    task: Import, target: MemoryTarget, line: Line, note: str, database: Database
) -> Line:
    if line.outcome != "taken":
        return line
    memory = task.settings.tools.memory
    limits = {"memory": memory.max_chars, "user": memory.profile_max_chars}
    scope = ":".join(task.owner)
    is_new = await database.write(notebook.take_note, scope, target, note, limits[target])
    if is_new is None:
        return Line("memory", line.what, "left out", f"no room: {limits[target]:,} characters")
    return line if is_new else _known(line)


async def _take_sessions(task: Import, database: Database) -> list[Line]:
    known = await database.read(arrivals.positions, SOURCE)
    counts: Counter[str] = Counter()
    lines: list[Line] = []
    with task.home.database() as conn:
        if conn is None:
            return []
        conversations, left_out = _conversations(conn, task)
        for each in conversations:
            found = _lineages(conn, each, known)
            counts["known"] += len(each.lineages) - len(found)
            if not found:
                continue
            done = await database.write(imported.enter, each.place, found)
            if done.into == "busy":
                what = f"{len(found)} of {each.place.session_key}"
                lines.append(
                    Line("sessions", what, "left out", "a turn goes on there: again later")
                )
                continue
            counts[done.into] += done.lineages
            counts["messages"] += done.messages
    return [*lines, *_counted(counts), *left_out]


def _counted(counts: Mapping[str, int]) -> Iterator[Line]:
    if counts["new"]:
        yield Line("sessions", f"{counts['new']} sessions", "taken", "they go on where they ended")
    if counts["used"]:
        note = "out of view, since people talk there already; a search finds them"
        yield Line("sessions", f"{counts['used']} sessions", "taken", note)
    if counts["messages"]:
        yield Line("sessions", f"{counts['messages']:,} messages", "taken")
    if counts["known"]:
        yield Line("sessions", f"{counts['known']} sessions", "known", "nothing new in them")


def _session_lines(
    conn: sqlite3.Connection, task: Import, known: Mapping[str, int]
) -> Iterator[Line]:
    conversations, left_out = _conversations(conn, task)
    for each in conversations:
        new = [chain for chain in each.lineages if _newest(conn, chain) > _imported(chain, known)]
        if new:
            what = f"{len(new)} sessions of {each.place.session_key}"
            yield Line("sessions", what, "taken")
        if len(new) < len(each.lineages):
            count = len(each.lineages) - len(new)
            yield Line("sessions", f"{count} of {each.place.session_key}", "known")
    yield from left_out


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


def _newest(conn: sqlite3.Connection, chain: Sequence[HermesSession]) -> int:
    newest = 0
    for session in chain:
        (found,) = conn.execute(
            "SELECT coalesce(max(id), 0) FROM messages WHERE session_id = ?", (session.id,)
        ).fetchone()
        newest = max(newest, int(number_of(found)))
    return newest


def _imported(chain: Sequence[HermesSession], known: Mapping[str, int]) -> int:
    """Return how far a lineage was imported; an empty one never has anything new."""
    return known.get(SOURCE + chain[0].id, 0)


def _lineages(
    conn: sqlite3.Connection, each: ChatFound, known: Mapping[str, int]
) -> list[ImportedLineage]:
    """Return what of a conversation was not imported yet."""
    found = []
    for chain in each.lineages:
        before = _imported(chain, known)
        if _newest(conn, chain) <= before:
            continue
        rows = (row for session in chain for row in messages_of(conn, session.id))
        transcript = transcript_of(rows)
        if before:
            transcript = transcript.behind(before)
        found.append(_lineage(chain, transcript, each.place))
    return found


def _lineage(
    chain: Sequence[HermesSession], transcript: Transcript, place: ImportPlace
) -> ImportedLineage:
    tip, told = chain[-1], transcript.told
    first = next((text_of(each.message) for each in told if each.message["role"] == "user"), "")
    newest = told[-1].at if told else tip.started_at
    # Nobody writes in what was said on this machine: it is a record, and does not go on.
    ended_at = tip.ended_at if tip.source in account_types() else tip.ended_at or newest
    return ImportedLineage(
        source=SOURCE + chain[0].id,
        position=transcript.newest_row,
        title=tip.title or chain[0].title or first,
        messages=[ImportedMessage(each.message, each.at) for each in told],
        segments=[ImportedSegment(cut.start, cut.plan(1), cut.at) for cut in transcript.cuts],
        ended_at=ended_at,
        origins=tuple(_origins(transcript, place)),
    )


def _origins(transcript: Transcript, place: ImportPlace) -> Iterator[Origin]:
    """Yield whose words a lineage holds that are not its people's: nobody knows who wrote them."""
    if transcript.has_tools:
        yield Origin("tool", "hermes")
    if place.user is None:
        # Hermes has not kept who said what in a group.
        yield Origin("quoted", "?:?")
