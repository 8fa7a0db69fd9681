"""Reads a home of Hermes Agent: its settings, files and database. Nothing in it is changed.

All of it is data: a text from there is never run, never followed, and never part of a path. Source
of the layout: hermes-agent 0.19.0 (`hermes_state.py`, `tools/memory_tool.py`,
`tools/skills_sync.py`); older databases lack columns, newer ones have more.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.messages import storable
from agent.prompt.skills import FILE, MAX_DEPTH, MAX_SKILL_BYTES, load_plain
from gateway.errors import GatewayError
from gateway.settings.sources import parsed_yaml

DATABASE = "state.db"
ENTRY_MARK = "\n§\n"
"""Between the notes of a memory file."""
MAX_FILE_BYTES = 1_000_000
"""A text file of Hermes' is never larger; what is, is left out."""
JSON_CONTENT = "\x00json:"
"""Before a content that is a list of parts."""
_VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
_SKILL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

Outcome = Literal["taken", "known", "left out"]


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one thing, for the report.

    Attributes:
        part: settings, files, memory, skills, secrets or sessions.
        what: Names it; never a secret, never what somebody said.
        note: What it became, or why it is left out.
        text: Text that would enter prompts, shown before it is taken; secrets are masked.
    """

    part: str
    what: str
    outcome: Outcome
    note: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class HermesSkill:
    """A skill: its name, the folder it lies in, and its files by their paths there."""

    name: str
    folder: Path
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HermesSession:
    """A row of `sessions`; times are seconds since the epoch."""

    id: str
    source: str
    parent: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    title: str | None
    user: str | None
    chat: str | None
    chat_type: str | None
    thread: str | None
    parent_chat: str | None
    is_branch: bool
    is_delegate: bool

    @property
    def is_compacted(self) -> bool:
        """Whether a compaction ended it: it goes on in a child."""
        return self.end_reason == "compression"


@dataclass(frozen=True, slots=True)
class HermesMessage:
    """A row of `messages`, decoded."""

    id: int
    session: str
    role: str
    content: Any
    at: float
    tool_call_id: str | None = None
    tool_name: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    reasoning: str | None = None
    details: Any = None
    platform_id: str | None = None
    finish_reason: str | None = None
    taken_back: bool = False


@dataclass(frozen=True, slots=True)
class HermesHome:
    """A home of Hermes: its folder, and what stands in its texts."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> "HermesHome":
        """Read settings and variables.

        Raises:
            GatewayError: It is no home of Hermes, or its settings cannot be read.
        """
        home = path.expanduser()
        if not any((home / name).exists() for name in (DATABASE, "config.yaml", "SOUL.md")):
            wanted = f"neither {DATABASE} nor config.yaml nor SOUL.md"
            raise GatewayError(f"{path} is no home of Hermes: it has {wanted}")
        return cls(home, _settings(home), _variables(home))

    def text(self, *names: str) -> str | None:
        """Return a text file; None where it is not there, is no text, or is far too large."""
        return _text_of(self.path, *names)

    def unread(self) -> Iterator[Line]:
        """Yield a line for each file that is there and is not read."""
        for name in ("config.yaml", ".env", "SOUL.md", "memories/MEMORY.md", "memories/USER.md"):
            if os.path.lexists(self.path / name) and self.text(name) is None:
                yield Line("files", name, "left out", "a link, no text, or too large")
        for name in (DATABASE, "skills"):
            if _leads_away(self.path, self.path / name):
                yield Line("files", name, "left out", "a link: what it leads to is not Hermes'")

    def notes(self, name: str) -> list[str]:
        """Return the entries of a memory file ("MEMORY.md", "USER.md"), in order."""
        text = self.text("memories", name) or ""
        return [entry.strip() for entry in text.split(ENTRY_MARK) if entry.strip()]

    def skills(self) -> Iterator[HermesSkill | Line]:
        """Yield the skills that somebody wrote; a line for each that cannot be taken.

        What Hermes itself brings is left out without a line for each.
        """
        root = self.path / "skills"
        shipped = _shipped(self.text("skills", ".bundled_manifest") or "")
        found = [] if _leads_away(self.path, root) else sorted(root.glob(f"**/{FILE}"))
        own = [path for path in found if not _is_hidden(path.relative_to(root))]
        bundled = 0
        for path in own:
            if path.parent.name in shipped:
                bundled += 1
            else:
                yield _skill(self.path, path)
        if bundled:
            yield Line("skills", f"{bundled} that Hermes brings", "left out", "copy those you use")

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection | None]:
        """Open the database for reading; None where there is none.

        Raises:
            GatewayError: It cannot be read.
        """
        path = self.path / DATABASE
        if not path.is_file() or _leads_away(self.path, path):
            yield None
            return
        try:
            # All reads of a snapshot: Hermes may be running.
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as conn:
                conn.row_factory = sqlite3.Row
                conn.execute("BEGIN")
                yield conn
        except sqlite3.Error as exc:
            raise GatewayError(f"{path} cannot be read: {exc}") from exc


def _settings(home: Path) -> dict[str, Any]:
    text = _text_of(home, "config.yaml")
    found: dict[str, Any] = {} if text is None else _plain(parsed_yaml(text, "config.yaml"))
    return found


def _plain(value: Any) -> Any:
    """Convert values of YAML to types of JSON; values of other types become text."""
    match value:
        case dict():
            return {storable(str(key)): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return storable(str(value))


def _variables(home: Path) -> dict[str, str]:
    """Return what `.env` sets; a value may stand in quotes."""
    found: dict[str, str] = {}
    for line in (_text_of(home, ".env") or "").splitlines():
        if match := _VARIABLE.fullmatch(line.strip()):
            value = match[2].strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            if value := value[1:-1] if quoted else value:
                found[match[1]] = value
    return found


def _leads_away(home: Path, path: Path) -> bool:
    """Whether a link is on the way from a home to a path: what it leads to is not Hermes'."""
    way = (path, *path.parents)
    return any(each.is_symlink() for each in way[: len(path.parts) - len(home.parts)])


def _text_of(home: Path, *names: str) -> str | None:
    path = home.joinpath(*names)
    try:
        if _leads_away(home, path) or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def _shipped(manifest: str) -> set[str]:
    """Return the names of the skills that Hermes brings ("name:hash" in each line)."""
    return {line.partition(":")[0].strip() for line in manifest.splitlines() if line.strip()}


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _skill(home: Path, path: Path) -> HermesSkill | Line:
    folder, text = path.parent, _text_of(home, *path.relative_to(home).parts)
    if text is None or len(text.encode()) > MAX_SKILL_BYTES:
        return Line("skills", folder.name, "left out", f"its {FILE} cannot be read or is too large")
    name = _name_in(text) or folder.name
    if not _SKILL_NAME.fullmatch(name):
        wanted = "a name has small letters, digits and hyphens"
        return Line("skills", folder.name, "left out", wanted)
    return HermesSkill(name, folder, tuple(_files_in(folder)))


def _name_in(text: str) -> str | None:
    """Return the name in the front matter of a skill."""
    _, _, rest = text.partition("---")
    try:
        values = load_plain(rest.partition("\n---")[0])
    except yaml.YAMLError:
        return None
    name = values.get("name") if isinstance(values, dict) else None
    return name if isinstance(name, str) else None


def _files_in(folder: Path, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Yield the plain files below a folder that are texts of a usual size; no link is followed."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir() and depth > 1:
            yield from (f"{path.name}/{each}" for each in _files_in(path, depth - 1))
        elif path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
            yield path.name


def sessions_in(conn: sqlite3.Connection) -> dict[str, HermesSession]:
    """Return all sessions by id, oldest first."""
    rows = conn.execute("SELECT * FROM sessions ORDER BY started_at, id")
    found = [_session(dict(row)) for row in rows]
    return {each.id: each for each in found}


def _session(row: Mapping[str, Any]) -> HermesSession:
    origin, config = _object(row.get("origin_json")), _object(row.get("model_config"))
    keyed = _in_key(_id(row.get("session_key")))
    return HermesSession(
        id=str(row["id"]),
        source=str(row["source"]),
        parent=_id(row.get("parent_session_id")),
        started_at=number_of(row["started_at"]),
        ended_at=None if row.get("ended_at") is None else number_of(row["ended_at"]),
        end_reason=_id(row.get("end_reason")),
        title=_id(row.get("title")),
        user=_id(row.get("user_id")) or _id(origin.get("user_id")),
        chat=_id(row.get("chat_id")) or _id(origin.get("chat_id")) or keyed[1],
        chat_type=_id(row.get("chat_type")) or _id(origin.get("chat_type")) or keyed[0],
        thread=_id(row.get("thread_id")) or _id(origin.get("thread_id")),
        parent_chat=_id(origin.get("parent_chat_id")),
        is_branch=config.get("_branched_from") is not None,
        is_delegate=config.get("_delegate_from") is not None or str(row["source"]) in _OF_AGENTS,
    )


_OF_AGENTS = frozenset({"tool", "subagent", "delegate"})
_KEY_PARTS = 5


def _in_key(key: str | None) -> tuple[str | None, str | None]:
    """Return the kind and the id of a chat in a key: `agent:main:telegram:dm:123`."""
    parts = (key or "").split(":")
    return (parts[3], parts[4]) if len(parts) >= _KEY_PARTS else (None, None)


def _id(value: Any) -> str | None:
    return storable(str(value)) if isinstance(value, str | int) and value != "" else None


def number_of(value: Any) -> float:
    """Return a number of the database.

    Raises:
        GatewayError: It is none, or beyond all times and ids that Hermes writes.
    """
    if isinstance(value, int | float) and 0 <= value < _BEYOND:
        return value
    raise GatewayError(f"{DATABASE} has a value that Hermes does not write where a number belongs")


_BEYOND = 2**53


def _object(text: Any) -> dict[str, Any]:
    found = _json(text)
    return found if isinstance(found, dict) else {}


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


def messages_of(conn: sqlite3.Connection, session: str) -> Iterator[HermesMessage]:
    """Yield the messages of a session in the order in which they were written."""
    # By id: their times may go back.
    for row in conn.execute("SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session,)):
        yield _message(dict(row))


def _message(row: Mapping[str, Any]) -> HermesMessage:
    content = row["content"]
    if isinstance(content, str) and content.startswith(JSON_CONTENT):
        content = _json(content.removeprefix(JSON_CONTENT))
    calls = _json(row.get("tool_calls"))
    return HermesMessage(
        id=int(number_of(row["id"])),
        session=str(row["session_id"]),
        role=str(row["role"]),
        content=content,
        at=number_of(row["timestamp"]),
        tool_call_id=_id(row.get("tool_call_id")),
        tool_name=_id(row.get("tool_name")),
        tool_calls=[call for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else (),
        reasoning=_id(row.get("reasoning_content")) or _id(row.get("reasoning")),
        details=_json(row.get("reasoning_details")),
        platform_id=_id(row.get("platform_message_id")),
        finish_reason=_id(row.get("finish_reason")),
        # What a compaction has left behind is there still; what a person took back is not meant.
        taken_back=row.get("active") == 0 and not row.get("compacted"),
    )


def lineages(sessions: Mapping[str, HermesSession]) -> list[list[HermesSession]]:
    """Return the sessions in lineages: each with what its compactions made of it, oldest first.

    Of several children of a compaction the one goes on that was compacted itself or has not ended;
    the others are lineages of their own, as branches are.
    """
    goes_on: dict[str, HermesSession] = {}
    for session in sessions.values():
        parent = sessions.get(session.parent or "")
        if parent is None or not parent.is_compacted or session.is_branch or session.is_delegate:
            continue
        known = goes_on.get(parent.id)
        if known is None or _rank(session) >= _rank(known):
            goes_on[parent.id] = session
    inner = {session.id for session in goes_on.values()}
    return [
        list(_chain(session, goes_on)) for session in sessions.values() if session.id not in inner
    ]


def _rank(session: HermesSession) -> tuple[int, float]:
    return 2 if session.is_compacted else 1 if session.ended_at is None else 0, session.started_at


def _chain(first: HermesSession, goes_on: Mapping[str, HermesSession]) -> Iterator[HermesSession]:
    seen: set[str] = set()
    session: HermesSession | None = first
    while session is not None and session.id not in seen:
        seen.add(session.id)
        yield session
        session = goes_on.get(session.id)
