"""Changes one value of the settings file and not a byte beside it: comments and order stay.

Used by commands that write settings (gateway/cli/config.py). PyYAML tells
where things stand; the text is changed there, and read again before it takes the file's place.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from agent.safety.redaction import MASK
from gateway.errors import SettingsError
from gateway.settings.references import is_reference
from gateway.settings.sources import read_yaml
from gateway.settings.tree import KeyPath, all_keys

OWNER_ONLY = "may hold a secret now, so only its owner can read it from now on"
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
"""Texts that need no quotes wherever they stand, if YAML reads them as text."""


def set_values(
    path: Path,
    values: Mapping[KeyPath, Any],
    check: Callable[[Path], object] = lambda _: None,
    text: str | None = None,
) -> bool:
    """Write the values of some keys into a YAML file, which is created if it is not there.

    The file is replaced in one step and keeps its owner and mode; but one that every user of the
    machine may read becomes its owner's alone where a secret is written.

    Args:
        values: By names from the root, where a number stands for a block of a list; as JSON could
            hold them.
        check: Raises SettingsError where the file must not become this one.
        text: What the new file is to be; None for the old one with its changes.

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
        old = path.read_bytes().decode() if path.exists() else ""
        _draft_with(draft, path, values, text=old if text is None else text, before=before)
        check(draft)
        is_closed = _is_to_close(path, values)
        draft.replace(path)
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc
    finally:
        if draft.exists():
            draft.unlink()
    return is_closed


def _is_to_close(path: Path, values: Mapping[KeyPath, Any]) -> bool:
    """Tell whether a file that everybody may read is to hold a secret."""
    is_open = path.exists() and bool(path.stat().st_mode & stat.S_IRWXO)
    return is_open and any(_holds_secret(*each) for each in values.items())


def _holds_secret(key: KeyPath, value: Any) -> bool:
    """Tell whether a secret itself may be written, not only where it is kept."""
    keys = all_keys()
    path, _ = keys.complete(key)
    known = next(filter(None, (keys.find(path[:end]) for end in range(len(path), 0, -1))), None)
    if known is None or known.kind in {"section", "blocks"}:
        return any(_holds_secret((*key, step), inner) for step, inner in _inside(value))
    return known.secret and any(not is_reference(text) for text in _texts(value))


def _inside(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for _, inner in _inside(value):
            yield from _texts(inner)
    elif value:
        yield str(value)


def _draft_with(
    draft: Path, path: Path, values: Mapping[KeyPath, Any], *, text: str, before: dict[str, Any]
) -> None:
    meant = _copied(before)
    try:
        for key, value in values.items():
            text = changed(text, key, written(value))
            meant = _with(meant, key, value)
        _write_draft(draft, path, text, is_to_close=_is_to_close(path, values))
        _verify(draft, meant)
    except SettingsError as exc:
        wanted = (
            f"`{key[0]}: {_nested(key[1:], told(key, value))}`" for key, value in values.items()
        )
        by_hand = f"write {', '.join(wanted)} into it by hand"
        raise SettingsError(f"{path} cannot be changed ({exc}): {by_hand}") from exc


def told(key: KeyPath, value: Any) -> str:
    """Return a value as a message may show it."""
    known = all_keys().find(all_keys().complete(key)[0])
    is_hidden = known is None or known.secret or _holds_secret(key, value)
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


def _copied(value: Any) -> Any:
    """Return a copy in which nothing stands twice, as what an alias repeats does."""
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _with(tree: dict[str, Any], key: KeyPath, value: Any) -> dict[str, Any]:
    """Return what the changed file is to hold."""
    node: Any = tree
    for step, after in zip(key, (*key[1:], None), strict=True):
        if isinstance(node, list) and isinstance(step, str):
            node = node[0]
        if isinstance(node, dict) and isinstance(step, int):
            # A lone block stands where the list is expected.
            continue
        if after is None:
            node[step] = value
        elif isinstance(node, list) or isinstance(node.get(step), dict | list):
            node = node[step]
        else:
            node[step] = {}
            node = node[step]
    return tree


def _verify(draft: Path, meant: dict[str, Any]) -> None:
    if read_yaml(draft, "the result") != meant:
        raise SettingsError("more than this value would change")


def _item(node: yaml.Node, step: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    """Return the name and the value that stand at a step; None where nothing does.

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


def _write_draft(draft: Path, path: Path, text: str, *, is_to_close: bool) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft.unlink(missing_ok=True)
    # For its owner alone before anything is in it: the file may hold tokens.
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_bytes(text.encode())
    if path.exists():
        of_file = path.stat()
        os.chown(draft, of_file.st_uid, of_file.st_gid)
        mode = stat.S_IMODE(of_file.st_mode)
        draft.chmod(mode & stat.S_IRWXU if is_to_close else mode)
