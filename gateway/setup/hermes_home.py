"""Reads a home of Hermes Agent: its settings and files. Nothing in it is changed.

All of it is data: a text from there is never run, never followed, and never part of a path. Source
of the layout: hermes-agent 0.19.0 (`tools/memory_tool.py`, `tools/skills_sync.py`).
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.errors import ToolError
from agent.messages import storable
from agent.prompt.skills import FILE, SkillShelf, check_name, load_plain
from agent.safety.redaction import Redactor
from agent.safety.threats import scan
from gateway.errors import GatewayError
from gateway.settings.sources import parsed_yaml

DATABASE = "state.db"
ENTRY_MARK = "\n§\n"
"""Between the notes of a memory file."""
MAX_FILE_BYTES = 1_000_000
"""A text file of Hermes' is never larger."""
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

    def but(self, outcome: Outcome, note: str) -> "Line":
        """Return the line with another outcome, and why."""
        return replace(self, outcome=outcome, note=note)


class HermesHome:
    """A home of Hermes.

    Each way to read it raises GatewayError where something is a link, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Find a home.

        Raises:
            GatewayError: It is no home of Hermes.
        """
        self.path = path.expanduser()
        if not any((self.path / name).exists() for name in (DATABASE, "config.yaml", "SOUL.md")):
            wanted = f"neither {DATABASE} nor config.yaml nor SOUL.md"
            raise GatewayError(f"{path} is no home of Hermes: it has {wanted}")

    def settings(self) -> dict[str, Any]:
        """Return what config.yaml says, with the types of JSON: a date, for one, becomes text."""
        found = parsed_yaml(self.text("config.yaml"), "config.yaml")
        plain = json.dumps(found, default=str, skipkeys=True, ensure_ascii=False)
        settings: dict[str, Any] = json.loads(storable(plain))
        return settings

    def variables(self) -> dict[str, str]:
        """Return what `.env` sets; a value may stand in quotes."""
        found: dict[str, str] = {}
        for line in self.text(".env").splitlines():
            if match := _VARIABLE.fullmatch(line.strip()):
                value = match[2].strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
                if value := value[1:-1] if quoted else value:
                    found[match[1]] = value
        return found

    def text(self, *names: str) -> str:
        """Return a text file; "" where there is none."""
        path = self.path.joinpath(*names)
        _refuse_links(self.path, path)
        if not path.exists():
            return ""
        try:
            if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                raise GatewayError(f"{path} is no file, or has more than {MAX_FILE_BYTES:,} bytes")
            return path.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as exc:
            raise GatewayError(f"{path} cannot be read: {exc}") from exc

    def notes(self, name: str) -> list[str]:
        """Return the entries of a memory file ("MEMORY.md", "USER.md"), in order."""
        entries = self.text("memories", name).split(ENTRY_MARK)
        return [entry.strip() for entry in entries if entry.strip()]

    def skills(self) -> Iterator[tuple[Line, dict[str, bytes]]]:
        """Yield the skills that somebody wrote, with their files by their paths in the folder.

        What Hermes itself brings ("name:hash" in each line of a list) is one line.
        """
        root = self.path / "skills"
        manifest = self.text("skills", ".bundled_manifest")
        shipped = {line.partition(":")[0].strip() for line in manifest.splitlines()}
        found = (each.parent for each in sorted(root.glob(f"**/{FILE}")))
        # What begins with a dot is hidden: Hermes' own copies.
        own = [each for each in found if "/." not in f"/{each.relative_to(root)}"]
        written = [each for each in own if each.name not in shipped]
        yield from map(_skill, written)
        if bundled := len(own) - len(written):
            what = f"{bundled} that Hermes brings"
            yield Line("skills", what, "left out", "copy those you use"), {}

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection | None]:
        """Open the database for reading; None where there is none."""
        path = self.path / DATABASE
        _refuse_links(self.path, path)
        if not path.is_file():
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


def _refuse_links(home: Path, path: Path) -> None:
    if path.resolve() != home.resolve() / path.relative_to(home):
        told = "what a link leads to is not Hermes'; copy the home with `cp -rL` if it is"
        raise GatewayError(f"{path} is behind a link: {told}")


def _skill(folder: Path) -> tuple[Line, dict[str, bytes]]:
    shelf = SkillShelf(folder.parent)
    try:
        text = shelf.read(folder.name, FILE)
        # By the name in its front matter, where it has one.
        values = load_plain(text.partition("---")[2].partition("\n---")[0])
        name = str(values.get("name", folder.name)) if isinstance(values, dict) else folder.name
        check_name(name)
        # The description is the last one: until it is there nobody takes a folder for a skill.
        files = (*shelf.files(folder.name), FILE)
        contents = {each: (folder / each).read_bytes() for each in files}
    except (ToolError, yaml.YAMLError, OSError) as exc:
        return Line("skills", folder.name, "left out", str(exc)), {}
    threats = sorted(scan(text).counts)
    note = f"taken out when it is read: {', '.join(threats)}" if threats else ""
    return Line("skills", name, "taken", note, Redactor().text(text)), contents
