"""Writes set-up answers: a new commented parley.yaml, or changed lines of an existing one.

The file is replaced atomically if a start would accept it; otherwise the secrets stay unchanged,
too.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.registry import by_name
from gateway.errors import SettingsError
from gateway.settings.editing import set_values, written
from gateway.settings.loading import replace_closed
from gateway.settings.references import is_reference
from gateway.settings.sources import path_of, variable_of
from gateway.setup.questions import Answers, Target, is_secret, secrets_to_move
from gateway.supervision.home import prepare_home
from gateway.wiring import refuse_unusable

SECRETS = "secrets"
"""The folder in PARLEY_HOME with one file per secret."""
_HEAD = """\
# The settings of Parley, written by `parley setup`. Run that again to change something, or edit
# this file: `parley config show` tells what is in effect and where it comes from. All keys are in
# docs/configuration.md.
"""
_PLATFORMS = "\n# The platforms, each with its own page in docs/platforms.\nplatforms:\n"
_SECTIONS = {
    "model": "The model that answers (docs/models.md).",
    "access": "Who may write to the bot (docs/access.md). Without an owner here, whoever sends the"
    " code of a start becomes it.",
}
_OFFERED = """\

# What a day may cost at most, in US dollars. Without it there is no limit (docs/costs.md).
# budget:
#   daily_usd: 5
#   sender_daily_usd: 1
"""


@dataclass(frozen=True, slots=True)
class WrittenSettings:
    """The result of writing the answers.

    Attributes:
        secrets: The written secret files.
        variables: Environment variables required from now on, by dotted key.
        is_closed: Whether the file was readable by others and was closed.
    """

    file: Path
    secrets: tuple[Path, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False


def refuse_unwritable(target: Target) -> None:
    """Refuse an unwritable folder before the first question."""
    prepare_home(target.home)
    folder = target.file.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"{folder} cannot be written: choose another home with --home")


def write(target: Target, draft: Answers) -> WrittenSettings:
    """Write the answers unless a start would refuse them; call outside an event loop."""
    prepare_home(target.home)
    moved = secrets_to_move(target, draft)
    values: dict[str, Any] = {**moved, **draft.values}
    given = {name: str(value) for name, value in values.items() if value and is_secret(name)}
    # A reference already names where its secret is stored.
    secrets = {name: text for name, text in given.items() if not is_reference(text)}
    files: dict[Path, str] = {}
    variables: dict[str, str] = {}
    for name, secret in secrets.items():
        if draft.keeping == "files":
            file = target.home / SECRETS / name
            while name in moved and file.exists():
                # An existing file may belong to an account that had this number.
                file = file.with_name(f"{file.name}.next")
            files[file], values[name] = secret, f"file:{file}"
        elif draft.keeping == "env":
            variables[name] = variable_of(name)
            values[name] = f"env:{variables[name]}"
    before = {file: file.read_bytes() if file.exists() else None for file in files}
    try:
        for file, secret in files.items():
            _write_secret(file, f"{secret}\n".encode())
        outside = {name: given[name] for name in variables}
        is_closed = _write_settings(target, values, outside)
    except BaseException:
        for file, held in before.items():
            if held is None:
                file.unlink(missing_ok=True)
            elif file.read_bytes() != held:
                _write_secret(file, held)
        raise
    return WrittenSettings(target.file, tuple(files), variables, is_closed)


def _write_secret(file: Path, secret: bytes) -> None:
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        replace_closed(file, secret)
    except OSError as exc:
        raise SettingsError(f"{file} cannot be written: {exc.strerror}") from exc


def _write_settings(target: Target, values: Mapping[str, Any], outside: Mapping[str, str]) -> bool:
    """Write the file if a start with it and the secrets `outside` would succeed."""
    is_new = not target.file.exists() or not target.file.read_text("utf-8").strip()
    changes = {path_of(name): value for name, value in values.items()}

    def check(file: Path) -> None:
        refuse_unusable(Target(target.home, file, target.known).load(outside).settings)

    return set_values(target.file, changes, check, text=as_yaml(values) if is_new else None)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Return new settings as YAML with a comment for each part."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        node = tree
        *above, last = name.split(".")
        for step in above:
            node = node.setdefault(step, {})
        node[last] = value
    parts = [_HEAD]
    for section, inner in tree.items():
        if section == "platforms":
            parts.append(_PLATFORMS)
            parts += [_block(name, block, "  ", _platform(name)) for name, block in inner.items()]
        else:
            parts.append("\n" + _block(section, inner, "", _SECTIONS.get(section, "")))
    if "budget" not in tree:
        parts.append(_OFFERED)
    return "".join(parts)


def _platform(name: str) -> str:
    known = by_name().get(name)
    return f"{known.title}: docs/platforms/{name}.md" if known else ""


def _block(name: str, value: Any, indent: str, comment: str) -> str:
    head = f"{indent}# {comment}\n" if comment else ""
    if not isinstance(value, dict):
        return f"{head}{indent}{name}: {written(value)}\n"
    lines = "".join(_block(key, inner, indent + "  ", "") for key, inner in value.items())
    return f"{head}{indent}{name}:\n{lines}"
