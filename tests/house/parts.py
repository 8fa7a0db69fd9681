"""Which classes are parts of the program, and which are values; how many fields a part has.

A value is a frozen dataclass, a named tuple, a settings model, a typed dict or an enum whose fields
are values too; so is an exception. All other classes are parts: they hold state, or other parts.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.house.source import Module, Product

_VALUES = {"NamedTuple", "TypedDict", "BaseModel", "BaseSettings", "Enum", "StrEnum", "IntEnum"}
_STATE = {"Callable", "Awaitable", "Coroutine", "Lock", "Event", "Task", "TaskGroup", "Future"}
"""What a value does not hold."""
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(eq=False, slots=True)
class _Class:
    """One class of ours.

    Attributes:
        module: Where it stands.
        name: Of the class.
        line: Where it begins.
        bases: Names of its bases, without their modules.
        frozen: Whether it is a frozen dataclass.
        fields: Name → annotation of what it is built from.
    """

    module: Module
    name: str
    line: int
    bases: tuple[str, ...]
    frozen: bool
    fields: Mapping[str, str]


def sizes_of_parts(product: Product) -> Iterator[tuple[int, str]]:
    """Yield the number of fields of each part, and where it stands."""
    classes = [
        _read(module, each) for module in product.modules.values() for each in module.classes()
    ]
    parts = _parts(_Names(classes))
    for each in classes:
        if each in parts:
            yield len(each.fields), f"{each.module.path}:{each.line} {each.name}"


def _read(module: Module, node: ast.ClassDef) -> _Class:
    return _Class(
        module=module,
        name=node.name,
        line=node.lineno,
        bases=tuple(ast.unparse(each).partition("[")[0].split(".")[-1] for each in node.bases),
        frozen=any("frozen=True" in ast.unparse(each) for each in node.decorator_list),
        fields=dict(_fields(node)),
    )


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the parameters of the constructor, or the fields of a dataclass."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            arguments = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
            yield from ((it.arg, _text(it.annotation)) for it in arguments[1:])
            return
    if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        yield from (
            (each.target.id, _text(each.annotation))
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in _text(each.annotation)
            and "init=False" not in _text(each.value)
        )


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


class _Names:
    """Finds the class that a name means where it is used."""

    def __init__(self, classes: Sequence[_Class]) -> None:
        self.classes = classes
        self._here = {(each.module.name, each.name): each for each in classes}
        self._imported = {
            each.module.name: {
                it.asname or it.name: f"{statement.module}"
                for statement in each.module.nodes(ast.ImportFrom)
                for it in statement.names
            }
            for each in classes
        }

    def meant_by(self, text: str, user: Module) -> Iterator[_Class]:
        """Yield the classes of ours that an annotation names."""
        for name in _NAME.findall(text):
            *module, last = name.split(".")
            origin = self._imported.get(user.name, {}).get(module[0] if module else last)
            home = user.name if origin is None else ".".join([origin, *module])
            if found := self._here.get((home, last)):
                yield found


def _parts(names: _Names) -> set[_Class]:
    """Return the classes that are parts: not made like values, or holding what is none."""
    parts = set(names.classes) - _value_shaped(names.classes)
    while True:
        more = {
            each
            for each in names.classes
            if each not in parts
            and any(
                _STATE & set(_NAME.findall(text))
                or not parts.isdisjoint(names.meant_by(text, each.module))
                for text in each.fields.values()
            )
        }
        if not more:
            return parts
        parts |= more


def _value_shaped(classes: Sequence[_Class]) -> set[_Class]:
    """Return the classes that are made like values, whatever they hold."""
    names, before = set(_VALUES), 0
    while len(names) > before:
        before = len(names)
        names |= {each.name for each in classes if _is_shaped(each, names)}
    return {each for each in classes if _is_shaped(each, names)}


def _is_shaped(each: _Class, values: set[str]) -> bool:
    errors = ("Error", "Exception", "Warning")
    return each.frozen or any(base in values or base.endswith(errors) for base in each.bases)
