"""Edits values in the settings file without changing other bytes, and locates mistakes.

PyYAML finds the positions; the changed text is parsed again before it replaces the file.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import yaml

from agent.safety.redaction import MASK
from gateway.errors import SettingsError
from gateway.settings.loading import replace_closed
from gateway.settings.references import is_reference
from gateway.settings.sources import Sources, parsed_yaml, path_of, read_yaml
from gateway.settings.tree import KeyPath, all_keys, at_step

OWNER_ONLY = "may hold a secret now, so only its owner can read it from now on"
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
"""Strings that never need quotes, if YAML reads them as strings."""

_KEEPS = re.compile(r"[|>]\d?\+")
"""Header of a block scalar that keeps the blank lines below it."""


def set_values(
    path: Path,
    values: Mapping[KeyPath, Any],
    check: Callable[[Path], object] = lambda _: None,
    text: str | None = None,
) -> bool:
    """Write values into a YAML file, creating it if needed.

    The file is replaced atomically and keeps owner and mode. If all users may read it and a secret
    is written, it is closed: only its owner can read it afterwards.

    Args:
        values: JSON data by paths from the root.
        check: Raises SettingsError to refuse the draft.
        text: The new file's text; None to change the existing file.

    Returns:
        Whether the file was closed.

    Raises:
        SettingsError: Nothing was written; files with aliases must be edited by hand.
    """
    path = path.resolve()
    before = read_yaml(path, str(path)) if path.exists() else {}
    try:
        there = path.stat() if path.exists() else None
        mode = there.st_mode if there else 0
        is_closed = bool(mode & stat.S_IRWXO) and any(starmap(holds_secret, values.items()))
        old = path.read_bytes().decode() if there else ""
        new = _edited(path, values, before, old if text is None else text)

        def ready(draft: Path) -> None:
            check(draft)
            if there:
                os.chown(draft, there.st_uid, there.st_gid)
                draft.chmod(mode & stat.S_IRWXU if is_closed else stat.S_IMODE(mode))

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_closed(path, new.encode(), ready)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc
    return is_closed


def _edited(path: Path, values: Mapping[KeyPath, Any], before: dict[str, Any], text: str) -> str:
    try:
        return _changed_alone(values, before, text)
    except SettingsError as exc:
        wanted = [f"`{key[0]}: {_nested(key[1:], told(key, new))}`" for key, new in values.items()]
        by_hand = f"write {', '.join(wanted)} into it by hand"
        raise SettingsError(f"{path} cannot be changed ({exc}): {by_hand}") from exc


def _changed_alone(values: Mapping[KeyPath, Any], before: dict[str, Any], text: str) -> str:
    meant, found = Sources(), Sources()
    meant.add((), before, "")
    for key, value in values.items():
        text = changed(text, key, written(value))
        place = all_keys().complete(key)[0]
        _drop(meant.tree, place)
        meant.add(place, value, "")
    found.add((), parsed_yaml(text, "the result"), "")
    if found.tree != meant.tree:
        raise SettingsError("more than this value would change")
    return text


def _drop(node: Any, path: KeyPath) -> None:
    """Remove the value at a path, and sections left empty."""
    step, inner = path[0], at_step(node, path[0])
    if path[1:]:
        _drop(inner, path[1:])
    if isinstance(node, dict) and (not path[1:] or inner == {}):
        node.pop(step, None)
    elif isinstance(node, list) and not path[1:] and inner is not None:
        node[int(step)] = {}


def holds_secret(key: KeyPath, value: Any) -> bool:
    """Whether a value contains a secret rather than a reference to one."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return any(holds_secret((*key, step), item) for step, item in inner)
    return bool(value) and all_keys().is_secret(key) and not is_reference(str(value))


def told(key: KeyPath, value: Any) -> str:
    """Format a value for a message, masking secrets."""
    is_hidden = all_keys().is_secret(key) or holds_secret(key, value)
    return MASK if is_hidden else written(value)


def changed(text: str, key: KeyPath, value: str) -> str:
    """Return a YAML text with a new value for a key."""
    node = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        inner = (
            f"{_line_end(text)}  {key[1]}: {_nested(key[2:], value)}" if key[1:] else f" {value}"
        )
        return _inserted(text, len(text), f"{key[0]}:{inner}")
    for depth, step in enumerate(key):
        found = _item(node, step)
        if found is None:
            return _with_item(text, node, f"{step}: {_nested(key[depth + 1 :], value)}")
        node = found[1]
        if not isinstance(node, yaml.CollectionNode):
            return _placed(text, node, _nested(key[depth + 1 :], value))
    return _placed(text, node, value)


def written(value: Any) -> str:
    """Format a value as one line of YAML; strings like `on` and `123` need quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _nested(key: KeyPath, value: str) -> str:
    """Wrap a value in nested maps; a single block needs no number."""
    for step in reversed(key):
        value = f"{{{step}: {value}}}" if isinstance(step, str) else value
    return value


def _item(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    """Return the key and value nodes at a step, or None."""
    if isinstance(node, yaml.MappingNode):
        if isinstance(step, int):
            return None, node
        return next(((key, value) for key, value in node.value if key.value == step), None)
    blocks: list[yaml.Node] = node.value
    if isinstance(step, int) and step < len(blocks):
        return None, blocks[step]
    if len(blocks) != 1 or isinstance(step, int):
        raise SettingsError(f"there are {len(blocks)} blocks; name one by its number, from 0 on")
    return _item(blocks[0], step)


def _with_item(text: str, node: yaml.Node, item: str) -> str:
    """Add an item to a map: first in a flow map, last in a block map."""
    if isinstance(node, yaml.SequenceNode):
        node = node.value[0]
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError("there is no map to put it into")
    if not node.value:
        return _placed(text, node, f"{{{item}}}")
    first = node.value[0][0].start_mark
    if node.flow_style:
        return f"{text[: first.index]}{item}, {text[first.index :]}"
    # Below the last value's line, which may have a comment.
    line_end = text.find("\n", _end(text, node)) + 1 or len(text)
    return _inserted(text, line_end, " " * first.column + item)


def _inserted(text: str, position: int, lines: str) -> str:
    """Insert lines at a position, starting on a new line."""
    before, end = text[:position], _line_end(text)
    gap = end if before and not before.endswith("\n") else ""
    return f"{before}{gap}{lines}{end}{text[position:]}"


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _placed(text: str, node: yaml.Node, value: str) -> str:
    """Replace a node's value, which may be empty."""
    start = node.start_mark.index
    gap = " " if text[:start].endswith(":") else ""
    return f"{text[:start]}{gap}{value}{text[_end(text, node) :]}"


def _end(text: str, node: yaml.Node) -> int:
    """Return the end of a value; a block ends with its last item, before comments.

    Blank lines below a string belong to it only with a keep indicator (`|+`).
    """
    end: int = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}:
        block = text[node.start_mark.index : end]
        kept = block.removesuffix("\n").removesuffix("\r")
        keeps = _KEEPS.search(block.partition("\n")[0])
        return node.start_mark.index + len(kept if keeps else block.rstrip())
    return end


def located(problem: SettingsError, file: Path) -> list[str]:
    """Add the line numbers of the keys to each line of an error; blocking."""
    try:
        root = yaml.compose(file.read_text("utf-8-sig"), yaml.SafeLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        root = None
    lines = [(line, _line_of(line.partition(": ")[0], root)) for line in str(problem).splitlines()]
    return [f"line {number}: {line}" if number else line for line, number in lines]


def _line_of(name: str, node: yaml.Node | None) -> int | None:
    """Return the line of a key or of the nearest enclosing section."""
    number = None
    with suppress(SettingsError):
        for step in path_of(name):
            found = _item(node, step) if isinstance(node, yaml.CollectionNode) else None
            if found is None:
                break
            node = found[1]
            number = (found[0] or node).start_mark.line + 1
    return number
