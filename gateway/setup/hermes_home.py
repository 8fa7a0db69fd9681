"""Reads a Hermes Agent home without changing it: settings, files and sessions.

Everything is data: texts are never executed, followed as instructions or used in paths. A Hermes
compaction writes head, summary and tail again, in the same session or a child, so the newest copy
of a message is used. Source of the layout: hermes-agent 0.19.0 (`tools/memory_tool.py`,
`tools/skills_sync.py`, `hermes_state.py`); other versions have fewer or more columns.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.errors import ToolError
from agent.messages import ChatMessage, ToolCall, clean_text, storable, tool_message
from agent.models.wire import canonical_arguments
from agent.prompt.skills import FILE, SkillShelf, check_name, load_plain
from agent.safety.redaction import Redactor
from agent.safety.threats import scan
from gateway.errors import GatewayError
from gateway.settings.sources import parsed_yaml
from gateway.storage.conversation.transcript import ImportedMessage

DATABASE = "state.db"
ENTRY_MARK = "\n§\n"
"""Separator of notes in a memory file."""
MAX_FILE_BYTES = 1_000_000
"""Largest accepted text file."""
_VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")

Outcome = Literal["taken", "known", "left out"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report.

    Attributes:
        part: "settings", "files", "memory", "skills", "secrets" or "sessions".
        what: The item's name; never a secret or a message.
        note: The result, or the reason for skipping it.
        text: Text that would enter prompts, shown before the import; secrets are masked.
    """

    part: str
    what: str
    outcome: Outcome
    note: str = ""
    text: str = ""

    def but(self, outcome: Outcome, note: str) -> "Line":
        """Return the line with a different outcome."""
        return replace(self, outcome=outcome, note=note)


class HermesHome:
    """A Hermes home; symbolic links and unreadable files raise GatewayError."""

    def __init__(self, path: Path) -> None:
        """Open a home."""
        self.path = path.expanduser()
        if not any((self.path / name).exists() for name in (DATABASE, "config.yaml", "SOUL.md")):
            wanted = f"neither {DATABASE} nor config.yaml nor SOUL.md"
            raise GatewayError(f"{path} is not a home of Hermes: it has {wanted}")

    def settings(self) -> dict[str, Any]:
        """Return the settings of config.yaml in JSON types; dates become text."""
        found = parsed_yaml(self.text("config.yaml"), "config.yaml")
        plain = json.dumps(found, default=str, skipkeys=True, ensure_ascii=False)
        settings: dict[str, Any] = json.loads(storable(plain))
        return settings

    def variables(self) -> dict[str, str]:
        """Return the variables of `.env`; values may be quoted."""
        found: dict[str, str] = {}
        for line in self.text(".env").splitlines():
            if match := _VARIABLE.fullmatch(line.strip()):
                value = match[2].strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
                if value := value[1:-1] if quoted else value:
                    found[match[1]] = value
        return found

    def text(self, *names: str) -> str:
        """Return a text file, or "" if it does not exist."""
        path = self.path.joinpath(*names)
        _refuse_links(self.path, path)
        if not path.exists():
            return ""
        try:
            if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                raise GatewayError(
                    f"{path} is not a file, or has more than {MAX_FILE_BYTES:,} bytes"
                )
            return path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as exc:
            raise GatewayError(f"{path} cannot be read: {exc}") from exc

    def notes(self, name: str) -> list[str]:
        """Return the entries of a memory file ("MEMORY.md", "USER.md"), in order."""
        entries = self.text("memories", name).split(ENTRY_MARK)
        return [entry.strip() for entry in entries if entry.strip()]

    def skills(self) -> Iterator[tuple[Line, dict[str, bytes]]]:
        """Yield the user's own skills, with their files by relative path.

        Skills bundled with Hermes ("name:hash" lines in a list) are reported in one line.
        """
        root = self.path / "skills"
        manifest = self.text("skills", ".bundled_manifest")
        shipped = {line.partition(":")[0].strip() for line in manifest.splitlines()}
        found = (each.parent for each in sorted(root.glob(f"**/{FILE}")))
        # Hidden folders are Hermes' own copies.
        own = [each for each in found if "/." not in f"/{each.relative_to(root)}"]
        written = [each for each in own if each.name not in shipped]
        yield from map(_skill, written)
        if bundled := len(own) - len(written):
            what = f"{bundled} that Hermes brings"
            yield Line("skills", what, "left out", "copy those you use"), {}

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection | None]:
        """Open the database for reading; None if it does not exist."""
        path = self.path / DATABASE
        _refuse_links(self.path, path)
        if not path.is_file():
            yield None
            return
        try:
            # One snapshot for all reads, since Hermes may be running.
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as conn:
                conn.row_factory = sqlite3.Row
                conn.execute("BEGIN")
                yield conn
        except sqlite3.Error as exc:
            raise GatewayError(f"{path} cannot be read: {exc}") from exc


def _refuse_links(home: Path, path: Path) -> None:
    if path.resolve() != home.resolve() / path.relative_to(home):
        told = "what a link leads to is not Hermes'; copy the home with `cp -rL` if it is"
        raise GatewayError(f"{path} is behind a link: {told}")


def _skill(folder: Path) -> tuple[Line, dict[str, bytes]]:
    shelf = SkillShelf(folder.parent)
    try:
        text = shelf.read(folder.name, FILE)
        # Prefer the name in its front matter.
        values = load_plain(text.partition("---")[2].partition("\n---")[0])
        name = str(values.get("name", folder.name)) if isinstance(values, dict) else folder.name
        check_name(name)
        # Write the description last: without it a folder is not a skill.
        files = (*shelf.files(folder.name), FILE)
        contents = {each: (folder / each).read_bytes() for each in files}
    except (ToolError, yaml.YAMLError, OSError) as exc:
        return Line("skills", folder.name, "left out", str(exc)), {}
    threats = sorted(scan(text).counts)
    note = f"taken out when it is read: {', '.join(threats)}" if threats else ""
    return Line("skills", name, "taken", note, Redactor().text(text)), contents


JSON_CONTENT = "\x00json:"
"""Prefix of content that is a JSON list of parts."""
IMAGE = "[image]"
ROLES = frozenset({"user", "assistant", "tool"})
_OF_AGENTS = frozenset({"tool", "subagent", "delegate"})
_BEYOND = 2**53


class HermesSession:
    """A row of `sessions`."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        """Read a row; values of the wrong type count as missing."""
        origin, config = (_object(row.get(name)) for name in ("origin_json", "model_config"))
        # Older versions store the chat only in a key: `agent:main:telegram:dm:123`.
        key = (_id(row.get("session_key")) or "").split(":")
        keyed = dict(zip(("chat_type", "chat_id"), key[3:5], strict=False))

        def named(column: str) -> str | None:
            return _id(row.get(column)) or _id(origin.get(column)) or keyed.get(column)

        self.id, self.source = str(row["id"]), str(row["source"])
        self.parent, self.title = named("parent_session_id"), named("title")
        self.user, self.chat, self.chat_type = map(named, ("user_id", "chat_id", "chat_type"))
        self.thread, self.parent_chat = named("thread_id"), named("parent_chat_id")
        self.has_ended = row.get("ended_at") is not None
        self.is_compacted = row.get("end_reason") == "compression"
        self.is_delegate = "_delegate_from" in config or self.source in _OF_AGENTS
        self.is_own = self.is_delegate or "_branched_from" in config


def lineages(conn: sqlite3.Connection) -> list[list[HermesSession]]:
    """Group the sessions into lineages: each with its compactions, oldest first.

    The first child of a compaction continues it, also in later imports. Other children are separate
    lineages, like branches.
    """
    chains: list[list[HermesSession]] = []
    tips: dict[str, list[HermesSession]] = {}
    for row in conn.execute("SELECT * FROM sessions ORDER BY started_at, id"):
        session = HermesSession(dict(row))
        above = tips.get(session.parent or "")
        if above and above[-1].is_compacted and not session.is_own:
            above.append(session)
            del tips[above[-2].id]
        else:
            above = [session]
            chains.append(above)
        tips[session.id] = above
    return chains


def _id(value: Any) -> str | None:
    return storable(str(value)) if isinstance(value, str | int) and value != "" else None


def _object(value: Any) -> dict[str, Any]:
    """Return a mapping, parsed from JSON if needed; {} for anything else."""
    found = _json(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def messages_of(
    conn: sqlite3.Connection, chain: Sequence[HermesSession], after_row: int
) -> tuple[list[ImportedMessage], int, int]:
    """Return the messages of a lineage after a row, without retracted ones.

    Returns:
        The messages; how many at the end the model saw last; the newest row.
    """
    newest: dict[tuple[Any, ...], ImportedMessage] = {}
    first_rows: dict[tuple[Any, ...], float] = {}
    seen, last_row = set(), 0.0
    for session in chain:
        # Order by id, since timestamps may go backwards.
        query = "SELECT * FROM messages WHERE session_id = ? ORDER BY id"
        for row in map(dict, conn.execute(query, (session.id,))):
            last_row = max(last_row, _number(row["id"]))
            is_active = row.get("active") != 0
            # Compacted messages are inactive as well.
            if row["role"] not in ROLES or not (is_active or row.get("compacted")):
                continue
            copied = tuple(row.get(name) for name in _COPIED)
            first_rows.setdefault(copied, row["id"])
            newest.pop(copied, None)
            newest[copied] = ImportedMessage(_message(row), _number(row["timestamp"]))
            if is_active and session is chain[-1]:
                seen.add(copied)
    new = [copied for copied in newest if first_rows[copied] > after_row]
    return [newest[each] for each in new], sum(each in seen for each in new), int(last_row)


_COPIED = ("role", "content", "timestamp", "tool_call_id", "tool_calls")
"""Fields equal in a message and its copies. Source: Hermes' `_dedupe_display_generations`."""


def _number(value: Any) -> float:
    if isinstance(value, int | float) and 0 <= value < _BEYOND:
        return value
    raise GatewayError("state.db has a value that Hermes does not write where a number belongs")


def _message(row: Mapping[str, Any]) -> ChatMessage:
    text = _text(row["content"])
    if row["role"] == "user":
        return ChatMessage(role="user", content=clean_text(text))
    if row["role"] == "tool":
        call, name = _id(row.get("tool_call_id")), _id(row.get("tool_name"))
        return tool_message(call or "", name or "tool", text)
    message = ChatMessage(role="assistant", content=text)
    told = _json(str(row.get("tool_calls") or "[]"))
    calls = map(_object, told if isinstance(told, list) else ())
    if made := [_call(call, f"hermes_{row['id']}_{n}") for n, call in enumerate(calls) if call]:
        message["tool_calls"] = made
        message["content"] = text or None
    if thought := _id(row.get("reasoning_content")) or _id(row.get("reasoning")):
        message["reasoning"] = thought
    return message


def _text(content: Any) -> str:
    """Return a content's text; a picture becomes a label."""
    if isinstance(content, str) and content.startswith(JSON_CONTENT):
        content = _json(content.removeprefix(JSON_CONTENT))
    if isinstance(content, list):
        parts = (_object(part).get("text", IMAGE) for part in content)
        content = "\n".join(map(str, parts))
    return "" if content is None else storable(str(content))


def _call(call: Mapping[str, Any], otherwise: str) -> ToolCall:
    function = _object(call.get("function"))
    arguments = function.get("arguments") or "{}"
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": storable(str(call.get("id") or call.get("call_id") or otherwise)),
        "type": "function",
        "function": {
            "name": storable(str(function.get("name") or "tool")),
            "arguments": canonical_arguments(storable(written)),
        },
    }
