"""Changes one value of the settings file and not a byte beside it: comments and order stay.

Used by commands that write settings (gateway/cli/plugins.py). PyYAML tells where things stand; the
text is changed there, and read again before it takes the file's place.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from gateway.errors import SettingsError
from gateway.settings.sources import read_yaml


def set_value(path: Path, section: str, key: str, value: str) -> None:
    """Write `section: {key: value}` into a YAML file, which is created if it is not there.

    The file is replaced in one step and keeps its owner and mode.

    Raises:
        SettingsError: It cannot be read or written, or is written in a way (aliases, for one) that
            only a person can change.
    """
    path = path.resolve()
    before = read_yaml(path, str(path)) if path.exists() else {}
    inner = before.get(section) or {}
    draft = path.with_name(f".{path.name}.new")
    try:
        text = path.read_bytes().decode() if path.exists() else ""
        _write_draft(draft, path, changed(text, section, key, _scalar(value)))
        _verify(draft, {**before, section: {**inner, key: value}})
        draft.replace(path)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc
    except SettingsError as exc:
        by_hand = f"write `{section}: {{{key}: {value}}}` into it by hand"
        raise SettingsError(f"{path} cannot be changed ({exc}): {by_hand}") from exc
    finally:
        if draft.exists():
            draft.unlink()


def changed(text: str, section: str, key: str, value: str) -> str:
    """Return YAML text with `section: {key: value}` in it.

    Args:
        text: A map of sections, or nothing.
        section: A key of that map.
        key: A key of the section.
        value: As it is to be written.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    end = "\r\n" if "\r\n" in text else "\n"
    if not isinstance(root, yaml.MappingNode):
        return _appended(text, len(text), f"{section}:{end}  {key}: {value}{end}", end)
    found = _item(root, section)
    if found is None:
        return _with_section(text, root, f"{section}: {{{key}: {value}}}", end)
    name, block = found
    if not isinstance(block, yaml.MappingNode):
        return _with_value(text, block, f"{{{key}: {value}}}")
    if inner := _item(block, key):
        return _with_value(text, inner[1], value)
    if block.flow_style:
        return _with_first(text, block, f"{key}: {value}")
    line_end = text.index("\n", name.end_mark.index) + 1
    indent = " " * block.value[0][0].start_mark.column
    return f"{text[:line_end]}{indent}{key}: {value}{end}{text[line_end:]}"


def _verify(draft: Path, meant: dict[str, Any]) -> None:
    if read_yaml(draft, "the result") != meant:
        raise SettingsError("more than this value would change")


def _item(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next(((key, value) for key, value in node.value if key.value == name), None)


def _with_section(text: str, root: yaml.MappingNode, item: str, end: str) -> str:
    if root.flow_style:
        return _with_first(text, root, item)
    indent = " " * root.value[0][0].start_mark.column
    return _appended(text, root.end_mark.index, f"{indent}{item}{end}", end)


def _appended(text: str, position: int, lines: str, end: str) -> str:
    """Return the text with lines put in at a position, which becomes the start of a line."""
    before = text[:position]
    gap = end if before and not before.endswith("\n") else ""
    return f"{before}{gap}{lines}{text[position:]}"


def _with_first(text: str, node: yaml.MappingNode, item: str) -> str:
    """Return the text with an item at the front of a map in braces."""
    if not node.value:
        return _with_value(text, node, f"{{{item}}}")
    first: int = node.value[0][0].start_mark.index
    return f"{text[:first]}{item}, {text[first:]}"


def _with_value(text: str, node: yaml.Node, value: str) -> str:
    """Return the text with another value in place of a node's, which may be empty."""
    start, stop = node.start_mark.index, node.end_mark.index
    gap = " " if text[:start].endswith(":") else ""
    return f"{text[:start]}{gap}{value}{text[stop:]}"


def _scalar(value: str) -> str:
    """Return a text as YAML that is read as text: `on` and `123` need quotes."""
    return value if yaml.safe_load(value) == value else json.dumps(value)


def _write_draft(draft: Path, path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft.unlink(missing_ok=True)
    # For its owner alone before anything is in it: the file may hold tokens.
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_bytes(text.encode())
    if path.exists():
        of_file = path.stat()
        os.chown(draft, of_file.st_uid, of_file.st_gid)
        draft.chmod(stat.S_IMODE(of_file.st_mode))
