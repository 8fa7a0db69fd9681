"""Changes one value of the settings file and no other byte: comments and order stay.

PyYAML finds the places; the text is changed there, and read again before it replaces the file.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from operator import ne
from pathlib import Path
from typing import Any

import yaml

from agent.safety.redaction import MASK
from gateway.errors import SettingsError
from gateway.settings.references import is_reference
from gateway.settings.sources import parsed_yaml, read_yaml
from gateway.settings.tree import KeyPath, all_keys

OWNER_ONLY = "may hold a secret now, so only its owner can read it from now on"
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
"""Texts that never need quotes, if YAML reads them as text."""


def set_values(
    path: Path,
    values: Mapping[KeyPath, Any],
    check: Callable[[Path], object] = lambda _: None,
    text: str | None = None,
) -> bool:
    """Write the values of some keys into a YAML file, which is created if it is not there.

    The file is replaced in one step and keeps its owner and mode; but one that every user of the
    machine may read becomes its owner's alone if a secret is written.

    Args:
        values: By names from the root, where a number stands for a block of a list; as JSON data.
        check: Raises SettingsError if the file must not become this one.
        text: Of the new file; None for the old one with its changes.

    Returns:
        Whether others could read the file, and cannot any more.

    Raises:
        SettingsError: It cannot be read or written, is refused by `check`, or is written in a way
            (aliases, for one) that only a person can change.
    """
    path = path.resolve()
    before = read_yaml(path, str(path)) if path.exists() else {}
    draft = path.with_name(f".{path.name}.new")
    try:
        there = path.stat() if path.exists() else None
        old = path.read_bytes().decode() if there else ""
        new = _edited(path, values, before, old if text is None else text)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        # For its owner alone before anything is in it: the file may hold tokens.
        draft.touch(mode=0o600, exist_ok=False)
        draft.write_bytes(new.encode())
        check(draft)
        mode = there.st_mode if there else 0
        is_closed = bool(mode & stat.S_IRWXO) and any(starmap(holds_secret, values.items()))
        if there:
            os.chown(draft, there.st_uid, there.st_gid)
            draft.chmod(mode & stat.S_IRWXU if is_closed else stat.S_IMODE(mode))
        draft.replace(path)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc
    finally:
        if draft.exists():
            draft.unlink()
    return is_closed


def _edited(path: Path, values: Mapping[KeyPath, Any], before: dict[str, Any], text: str) -> str:
    """Return the text with its changes.

    Raises:
        SettingsError: It is written in a way that only a person can change.
    """
    try:
        return _changed_alone(values, before, text)
    except SettingsError as exc:
        wanted = [f"`{key[0]}: {_nested(key[1:], told(key, new))}`" for key, new in values.items()]
        by_hand = f"write {', '.join(wanted)} into it by hand"
        raise SettingsError(f"{path} cannot be changed ({exc}): {by_hand}") from exc


def _changed_alone(values: Mapping[KeyPath, Any], before: dict[str, Any], text: str) -> str:
    meant = dict(_flat(before))
    for key, value in values.items():
        text = changed(text, key, written(value))
        place = _unnumbered(key)
        # Without what is around the key or in it.
        meant = {at: old for at, old in meant.items() if any(map(ne, at, place))}
        meant |= _flat(value, key)
    if dict(_flat(parsed_yaml(text, "the result"))) != meant:
        raise SettingsError("more than this value would change")
    return text


def _flat(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what maps and lists hold, by its place; a lone block has the place of the first one."""
    for at, leaf in _leaves(value, path):
        yield _unnumbered(at), leaf


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    inner = enumerate(value) if isinstance(value, list) else ()
    for step, item in value.items() if isinstance(value, dict) else inner:
        yield from _leaves(item, (*path, step))
    if not isinstance(value, dict | list) or not value:
        yield path, value


def _unnumbered(path: KeyPath) -> KeyPath:
    return tuple(step for step in path if step != 0)


def holds_secret(key: KeyPath, value: Any) -> bool:
    """Whether a value contains a secret itself, not only a reference to it."""
    keys = all_keys()
    texts = ((at, str(leaf)) for at, leaf in _leaves(value, key) if leaf)
    return any(keys.is_secret(at) and not is_reference(text) for at, text in texts)


def told(key: KeyPath, value: Any) -> str:
    """Return a value as a message may show it."""
    is_hidden = all_keys().is_secret(key) or holds_secret(key, value)
    return MASK if is_hidden else written(value)


def changed(text: str, key: KeyPath, value: str) -> str:
    """Return YAML text with another value of a key.

    Args:
        text: A map of sections, or nothing.
        key: Names from the root.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    end = "\r\n" if "\r\n" in text else "\n"
    if not isinstance(root, yaml.MappingNode):
        inner = f"{end}  {key[1]}: {_nested(key[2:], value)}" if key[1:] else f" {value}"
        return _appended(text, len(text), f"{key[0]}:{inner}{end}", end)
    node: yaml.Node = root
    name: yaml.Node | None = None
    for depth, step in enumerate(key):
        found = _item(node, step)
        if found is None:
            return _with_item(text, node, name, f"{step}: {_nested(key[depth + 1 :], value)}")
        name, node = found
        if not isinstance(node, yaml.CollectionNode):
            return _with_value(text, node, _nested(key[depth + 1 :], value))
    return _with_value(text, node, value)


def written(value: Any) -> str:
    """Return a value as YAML on one line: `on` and `123` need quotes to be text."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _nested(key: KeyPath, value: str) -> str:
    """Return a value inside maps of these names; a lone block needs no number."""
    for step in reversed(key):
        value = f"{{{step}: {value}}}" if isinstance(step, str) else value
    return value


def _item(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    """Return the name and the value at a step; None if there is nothing.

    Raises:
        SettingsError: There are several blocks, or not so many.
    """
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


def _with_item(text: str, node: yaml.Node, name: yaml.Node | None, item: str) -> str:
    """Return the text with one more item in a map, whose name is None for the root or a block."""
    end = "\r\n" if "\r\n" in text else "\n"
    if isinstance(node, yaml.SequenceNode):
        node = node.value[0]
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError("there is no map to put it into")
    if node.flow_style or not node.value:
        return _with_first(text, node, item)
    first: int = node.value[0][0].start_mark.index
    indent = " " * node.value[0][0].start_mark.column
    if name is not None and name.start_mark.line < node.start_mark.line:
        line_end = text.index("\n", name.end_mark.index) + 1
        return f"{text[:line_end]}{indent}{item}{end}{text[line_end:]}"
    if not text[:first].rpartition("\n")[2].strip("\ufeff "):
        return _appended(text, node.end_mark.index, f"{indent}{item}{end}", end)
    return f"{text[:first]}{item}{end}{indent}{text[first:]}"


def _appended(text: str, position: int, lines: str, end: str) -> str:
    """Return the text with lines put in at a position, which becomes the start of a line."""
    before = text[:position]
    gap = end if before and not before.endswith("\n") else ""
    return f"{before}{gap}{lines}{text[position:]}"


def _with_first(text: str, node: yaml.Node, item: str) -> str:
    """Return the text with an item at the front of a map in braces."""
    if not node.value:
        return _with_value(text, node, f"{{{item}}}")
    first: int = node.value[0][0].start_mark.index
    return f"{text[:first]}{item}, {text[first:]}"


def _with_value(text: str, node: yaml.Node, value: str) -> str:
    """Return the text with another value in place of a node's, which may be empty."""
    start = node.start_mark.index
    gap = " " if text[:start].endswith(":") else ""
    return f"{text[:start]}{gap}{value}{text[_end(text, node) :]}"


def _end(text: str, node: yaml.Node) -> int:
    """Return where a value ends; a block ends with its last item, before comments behind it."""
    end: int = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}:
        start = node.start_mark.index
        return start + len(text[start:end].rstrip())
    return end
