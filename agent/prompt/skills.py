"""Skills: folders with a SKILL.md that explains how to do a kind of task.

`SkillShelf` is a directory of skills. The system prompt lists their names and descriptions; the
tools `skill_view` and `skill_manage` read and write them here. All methods block: call them in a
thread.
"""

import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from agent.errors import ToolError
from agent.processes.workspace import FileMissing, Workspace, clear, walk
from agent.safety.threats import Threat, scan

FILE = "SKILL.md"
MAX_SKILL_BYTES = 100_000
MAX_FRONT_MATTER_CHARS = 8_000
MAX_DESCRIPTION_CHARS = 1_024
MAX_LISTED_FILES = 100
MAX_DEPTH = 4

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_FRONT_MATTER = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill after the threat scan; `text` has the instructions after the front matter."""

    name: str
    description: str
    text: str
    findings: tuple[Threat, ...] = ()


@dataclass(frozen=True, slots=True)
class SkillShelf:
    """A directory of skills, which may be missing."""

    root: Path

    @property
    def _workspace(self) -> Workspace:
        # The shelf itself may be a link created by the operator.
        return Workspace(Path(os.path.realpath(self.root)), makes=False)

    def names(self) -> list[str]:
        """Return the sorted names of all folders, without hidden ones."""
        try:
            with os.scandir(self.root) as found:
                folders = (each for each in found if each.is_symlink() or each.is_dir())
                return sorted(each.name for each in folders if not each.name.startswith("."))
        except FileNotFoundError:
            return []

    def stamp(self, name: str) -> tuple[int, int]:
        """Return modification time and size of a skill's SKILL.md; zeros if it is missing."""
        try:
            found = os.lstat(self.root / name / FILE)
        except OSError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_size)

    def load(self, name: str) -> Skill:
        """Return a skill; raise `ToolError` if it is missing or unusable."""
        return parse_skill(self.read(name, FILE), name)

    def read(self, name: str, file: str) -> str:
        """Return a file from a skill's folder.

        Raises:
            ToolError: The file is missing, not text, too large, or outside the folder.
        """
        check_name(name)
        try:
            with self._workspace.file(f"{name}/{file}") as opened:
                content = os.read(opened, MAX_SKILL_BYTES + 1)
        except ToolError as exc:
            raise ToolError(f"{name}/{file} cannot be read: {exc}") from exc
        if len(content) > MAX_SKILL_BYTES:
            raise ToolError(f"{file} has more than {MAX_SKILL_BYTES:,} bytes")
        try:
            return content.decode()
        except UnicodeDecodeError as exc:
            raise ToolError(f"{file} is not a text") from exc

    def files(self, name: str) -> list[str]:
        """Return the paths of the other files in a skill's folder, at most 100.

        Links and hidden files are omitted.
        """
        check_name(name)
        with suppress(FileMissing), clear(name), self._workspace.directory((name,)) as folder:
            found = (
                "/".join((*way, file))
                for way, here, files in walk(folder)
                for file in files
                if len(way) <= MAX_DEPTH
                and not any(step.startswith(".") for step in (*way, file))
                and stat.S_ISREG(os.stat(file, dir_fd=here, follow_symlinks=False).st_mode)
            )
            return sorted(islice((path for path in found if path != FILE), MAX_LISTED_FILES))
        return []

    def write(self, name: str, text: str, *, new: bool) -> Skill:
        """Write the SKILL.md of a `new` or an existing skill; return the skill.

        Raises:
            ToolError: It is unusable, or the threat scan finds an attack.
        """
        check_name(name)
        if len(text.encode()) > MAX_SKILL_BYTES:
            raise ToolError(f"the text has more than {MAX_SKILL_BYTES:,} bytes")
        skill = parse_skill(text, name)
        if skill.findings:
            # Later conversations read what the model writes: an attack must not persist there.
            raise ToolError(f"the text was refused: {describe_findings(skill.findings)}")
        if new == self._is_there(name):
            told = f"a skill {name!r} already; edit it" if new else f"no skill {name!r}; create it"
            raise ToolError(f"there is {told}")
        self._workspace.write(f"{name}/{FILE}", text.encode())
        return skill

    def remove(self, name: str) -> str:
        """Remove a skill from the shelf; its folder is kept under the returned, hidden name."""
        check_name(name)
        if not self._is_there(name):
            raise ToolError(f"there is no skill {name!r}")
        # The operator may have written it without a backup: a model's call must not destroy it.
        kept = f".removed-{name}-{secrets.token_hex(4)}"
        (self.root / name).rename(self.root / kept)
        return kept

    def _is_there(self, name: str) -> bool:
        folder = self.root / name
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ToolError(f"{name!r} is not a folder of the shelf")
        return (folder / FILE).exists()


def check_name(name: str) -> None:
    """Raise `ToolError` if the text is not a valid skill name."""
    if not _NAME.fullmatch(name):
        raise ToolError(f"{name!r} is not a skill name: use lower-case letters, digits and hyphens")


def parse_skill(text: str, name: str) -> Skill:
    """Parse a SKILL.md; raise `ToolError` if it is unusable."""
    found = _FRONT_MATTER.match(text)
    if found is None:
        raise ToolError("it does not begin with front matter between lines of ---")
    values = _front_matter(found.group(1))
    if values.get("name") != name:
        raise ToolError(f"the name in its front matter is not that of its folder, {name!r}")
    description = values.get("description")
    if not isinstance(description, str) or not description.strip():
        raise ToolError("its front matter has no description")
    if len(description) > MAX_DESCRIPTION_CHARS:
        raise ToolError(f"its description is longer than {MAX_DESCRIPTION_CHARS:,} characters")
    body = text[found.end() :].strip()
    if not body:
        raise ToolError("it has no instructions below its front matter")
    told, how = scan(" ".join(description.split())), scan(body)
    return Skill(name, told.text, how.text, (*told.findings, *how.findings))


def _front_matter(text: str) -> dict[str, object]:
    if len(text) > MAX_FRONT_MATTER_CHARS:
        raise ToolError("its front matter is too long")
    try:
        values = load_plain(text)
    except yaml.YAMLError as exc:
        raise ToolError("its front matter is not YAML") from exc
    return values if isinstance(values, dict) else {}


def describe_findings(findings: Sequence[Threat]) -> str:
    """Describe the findings of a scan."""
    return ", ".join(f"{each.kind} ({each.chars} characters)" for each in findings)


def load_plain(text: str) -> Any:
    """Load a YAML document without aliases, of which a few can make a short text huge.

    Raises:
        yaml.YAMLError: It is not YAML, is nested too deeply, or has aliases.
    """
    try:
        # S506: this safe loader accepts even less than the standard one.
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506
    except (ValueError, LookupError, AttributeError, RecursionError) as exc:
        # Raised by a value that does not match its tag's type.
        raise yaml.YAMLError(f"a value in it is none: {type(exc).__name__}") from exc


class _PlainLoader(yaml.SafeLoader):
    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)
