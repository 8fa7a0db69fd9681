"""Settings that went: each is reported at the start with what applies instead, and stops nothing.

They are taken out of the tree after all layers are laid over each other (`load_settings`), so that
they may be in a file, an option or a variable.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.settings.tree import INDEX, KeyPath, Keys

FORMER: Mapping[str, str] = {
    "alerts.per_hour": "it is 10",
    "commands.unknown": "the nearest known command is suggested",
    "plugins.timeout_s": "it is 5 seconds",
}
"""What applies instead of each key that went. `*` stands for a position in a list of blocks."""


def former_key(path: KeyPath) -> str | None:
    """Return what applies instead of the former key at a path; None if it is not one."""
    return FORMER.get(".".join(_pattern(path)))


def is_former(path: KeyPath) -> bool:
    """Whether a path is a former key or a section that had some."""
    return any(each[: len(path)] == _pattern(path) for each in _PATTERNS)


def taken_out(tree: dict[str, Any], keys: Keys) -> Iterator[tuple[KeyPath, str]]:
    """Take the former keys out of the tree; yield each path with what applies instead."""
    for key, instead in FORMER.items():
        for path, _value in list(_found(tree, tuple(key.split(".")), ())):
            _take_out(tree, path, keys)
            yield path, instead


def _found(node: Any, pattern: tuple[str, ...], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not pattern:
        yield path, node
    elif pattern[0] == INDEX:
        for number, block in enumerate(node if isinstance(node, list) else ()):
            yield from _found(block, pattern[1:], (*path, number))
    elif isinstance(node, dict) and pattern[0] in node:
        yield from _found(node[pattern[0]], pattern[1:], (*path, pattern[0]))


def _take_out(tree: dict[str, Any], path: KeyPath, keys: Keys) -> None:
    """Take a key out, and a section that is not one any more once it is empty."""
    node: Any = tree
    for step in path[:-1]:
        node = node[step]
    del node[path[-1]]
    if not node and len(path) > 1 and keys.find(path[:-1]) is None:
        _take_out(tree, path[:-1], keys)


def _pattern(path: KeyPath) -> tuple[str, ...]:
    return tuple(INDEX if isinstance(step, int) else step for step in path)


_PATTERNS = [tuple(key.split(".")) for key in FORMER]
