"""Reads a home of Hermes Agent: its settings and files. Nothing in it is changed.

All of it is data: a text from there is never run, never followed, and never part of a path. Source
of the layout: hermes-agent 0.19.0 (`tools/memory_tool.py`, `tools/skills_sync.py`).
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.errors import ToolError
from agent.messages import storable
from agent.prompt.skills import FILE, SkillShelf, check_name, load_plain
from gateway.errors import GatewayError
from gateway.settings.sources import parsed_yaml

DATABASE = "state.db"
ENTRY_MARK = "\n§\n"
"""Between the notes of a memory file."""
MAX_FILE_BYTES = 1_000_000
"""A text file of Hermes' is never larger; what is, is left out."""
_VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")

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
    """A skill: its name, the folder it lies in, and its files by their paths there.

    Its description is the last file: until it is there nobody takes a folder for a skill.
    """

    name: str
    folder: Path
    files: tuple[str, ...]


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
        settings = parsed_yaml(_text_of(home, "config.yaml") or "", "config.yaml")
        return cls(home, _plain(settings), _variables(home))

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

        What Hermes itself brings ("name:hash" in each line of a list) is one line.
        """
        root = self.path / "skills"
        manifest = self.text("skills", ".bundled_manifest") or ""
        shipped = {line.partition(":")[0].strip() for line in manifest.splitlines()}
        found = [] if _leads_away(self.path, root) else sorted(root.glob(f"**/{FILE}"))
        own = [path for path in found if not _is_hidden(path.relative_to(root))]
        written = [path for path in own if path.parent.name not in shipped]
        yield from (_skill(path.parent) for path in written)
        if bundled := len(own) - len(written):
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


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _skill(folder: Path) -> HermesSkill | Line:
    shelf = SkillShelf(folder.parent)
    try:
        name = _name_in(shelf.read(folder.name, FILE)) or folder.name
        check_name(name)
    except ToolError as exc:
        return Line("skills", folder.name, "left out", str(exc))
    return HermesSkill(name, folder, (*shelf.files(folder.name), FILE))


def _name_in(text: str) -> str | None:
    """Return the name in the front matter of a skill."""
    _, _, rest = text.partition("---")
    try:
        values = load_plain(rest.partition("\n---")[0])
    except yaml.YAMLError:
        return None
    name = values.get("name") if isinstance(values, dict) else None
    return name if isinstance(name, str) else None
