"""What keys the settings tree has: one entry for each section, list of blocks and value.

Derived from the pydantic models, so that the environment, the error messages, `parley config show`
and the check of docs/configuration.md cannot disagree with the tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

KeyPath = tuple[str | int, ...]
Kind = Literal["section", "blocks", "json", "value"]
INDEX = "*"


@dataclass(frozen=True, slots=True)
class Key:
    """One place in the tree.

    Attributes:
        pattern: Names from the root; `INDEX` stands for the position in a list of blocks.
        kind: section (has keys), blocks (a list of sections), json (a list or map), value.
        secret: The value must not be shown.
        default: None for a section.
        block: What the values of a map are, where they are sections.
    """

    pattern: tuple[str, ...]
    kind: Kind
    secret: bool
    default: Any
    block: type[BaseModel] | None = None

    @property
    def lone_block(self) -> bool:
        """Whether one block may stand where the list is expected."""
        return self.kind == "blocks" and bool(self.default)


class Keys:
    """All keys below a settings model."""

    def __init__(self, root: type[BaseModel]) -> None:
        self._keys = {key.pattern: key for key in _walk(root, ())}

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def find(self, path: KeyPath) -> Key | None:
        """Return the key at a path, None if there is none."""
        return self._keys.get(tuple(INDEX if isinstance(step, int) else step for step in path))

    def complete(self, path: KeyPath) -> tuple[KeyPath, KeyPath | None]:
        """Insert the position 0 that may be left out where there is one block.

        Returns:
            The full path, and the path of the list whose position was left out, if any.
        """
        for end in range(1, len(path)):
            key = self.find(path[:end])
            if key and key.lone_block and not isinstance(path[end], int):
                return (*path[:end], 0, *path[end:]), path[:end]
        return path, None

    def names(self) -> list[str]:
        """Return every key as people write it, without positions."""
        return [dotted(key.pattern) for key in self if key.pattern[-1] != INDEX]


def dotted(path: tuple[str | int, ...]) -> str:
    """Join a path with dots; positions that stand for any are left out."""
    return ".".join(str(step) for step in path if step != INDEX)


def flatten(model: BaseModel, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every key that holds a value, in the order of the tree."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from flatten(value, (*path, name))
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, block in enumerate(value):
                yield from flatten(block, (*path, name, index))
        else:
            yield (*path, name), value


def _walk(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        kind, inner = _classify(field.annotation)
        block = _block(field.annotation)
        secret = inner is SecretStr or (block is not None and has_secrets(block))
        if kind == "section":
            yield Key(here, "section", secret=False, default=None)
        else:
            yield Key(here, kind, secret, field.get_default(), block)
        if kind == "blocks":
            here = (*here, INDEX)
            yield Key(here, "section", secret=False, default=None)
        if inner and issubclass(inner, BaseModel):
            yield from _walk(inner, here)


def _block(annotation: Any) -> type[BaseModel] | None:
    """Return the section that each value of a map is, None for other values."""
    values = get_args(annotation)[-1:] if get_origin(annotation) in {dict, Mapping} else ()
    sections = (each for each in values if isinstance(each, type) and issubclass(each, BaseModel))
    return next(sections, None)


def has_secrets(block: type[BaseModel], *names: str) -> bool:
    """Whether a section holds secrets, in these fields or in any."""
    fields = [block.model_fields[name] for name in names or block.model_fields]
    return any(SecretStr in get_args(field.annotation) for field in fields)


def _classify(annotation: Any) -> tuple[Kind, type | None]:
    """Return the kind of a field, and the class of its section, blocks or secrets."""
    union = get_origin(annotation) in {Union, UnionType}
    options = [part for part in get_args(annotation) if part is not type(None)]
    main = options[0] if union else annotation
    origin = get_origin(main)
    if origin is tuple:
        element = get_args(main)[0]
        return ("blocks" if issubclass(element, BaseModel) else "json"), element
    if origin in {dict, Mapping}:
        return "json", None
    if not isinstance(main, type):
        return "value", None
    return ("section" if issubclass(main, BaseModel) else "value"), main
