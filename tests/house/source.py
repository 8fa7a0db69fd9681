"""The product's source, parsed once: its modules, what they import, what they define.

Files are found, never named, so that a moved file changes nothing here.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

PACKAGES = ("gateway", "agent", "adapters")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a module of our own.

    Attributes:
        target: The module that is imported.
        line: Where the statement stands.
        typing_only: Whether it stands in an `if TYPE_CHECKING` block.
    """

    target: str
    line: int
    typing_only: bool


class Module:
    """One file of the product.

    Attributes:
        path: Relative to the repository.
        name: As it is imported; that of the package for an `__init__.py`.
        lines: Its text by lines.
        tree: Its syntax tree.
    """

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root)
        parts = self.path.with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    @property
    def is_entrance(self) -> bool:
        """Whether this is an `__init__.py` or a `__main__.py`."""
        return self.path.stem in {"__init__", "__main__"}

    @property
    def is_program(self) -> bool:
        """Whether it has a `main`, which a process of its own may run."""
        return any(getattr(each, "name", "") == "main" for each in self.tree.body)

    @cached_property
    def _by_type(self) -> Mapping[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            found[type(node)].append(node)
        return found

    def nodes(self, *types: type[Node]) -> Iterator[Node]:
        """Yield the nodes of these exact types, breadth first for each."""
        for each in types:
            yield from self._by_type.get(each, ())  # type: ignore[misc]

    def functions(self) -> Iterator[Function]:
        """Yield all functions and methods, nested ones too."""
        yield from self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yield all classes, nested ones too."""
        yield from self.nodes(ast.ClassDef)

    @cached_property
    def typing_blocks(self) -> list[ast.If]:
        """The `if TYPE_CHECKING` blocks."""
        return [
            each for each in self.nodes(ast.If) if ast.unparse(each.test).endswith("TYPE_CHECKING")
        ]

    @cached_property
    def docstring_lines(self) -> frozenset[int]:
        """The lines of all docstrings, those below an attribute or a constant too."""
        found: set[int] = set()
        for each in self.nodes(ast.Expr):
            if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
        return frozenset(found)

    @cached_property
    def text_lines(self) -> frozenset[int]:
        """The lines on which a string that began on an earlier one goes on."""
        found: set[int] = set()
        for each in self.nodes(ast.Constant, ast.JoinedStr):
            if isinstance(each, ast.JoinedStr) or isinstance(each.value, str | bytes):
                found.update(range(each.lineno + 1, (each.end_lineno or each.lineno) + 1))
        return frozenset(found)

    @cached_property
    def comment_lines(self) -> frozenset[int]:
        """The lines that hold nothing but a comment."""
        return frozenset(
            number
            for number, line in enumerate(self.lines, 1)
            if line.lstrip().startswith("#") and number not in self.text_lines
        )

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """The lines that are no docstring, no comment and not empty."""
        return frozenset(
            number
            for number, line in enumerate(self.lines, 1)
            if line.strip()
            and number not in self.docstring_lines
            and number not in self.comment_lines
        )

    def code_in(self, node: ast.stmt) -> int:
        """Return how many lines of code a statement holds, nested ones too."""
        own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return sum(number in self.code_lines for number in own)


class Product:
    """All modules of the product, and who imports whom.

    Attributes:
        root: The repository.
        modules: By name, in the order of their paths.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        files = sorted(file for top in PACKAGES for file in (root / top).rglob("*.py"))
        self.modules = {each.name: each for each in (Module(root, file) for file in files)}

    @cached_property
    def imports(self) -> dict[str, list[Import]]:
        """What each module imports of ours, wherever the statement stands."""
        return {name: list(self._imports(module)) for name, module in self.modules.items()}

    def _imports(self, module: Module) -> Iterator[Import]:
        guarded = {id(each) for block in module.typing_blocks for each in ast.walk(block)}
        for each in module.nodes(ast.Import, ast.ImportFrom):
            for target in sorted(set(self._targets(each))):
                if target != module.name:
                    yield Import(target, each.lineno, id(each) in guarded)

    def _targets(self, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names if each.name in self.modules)
            return
        origin = statement.module or ""
        for each in statement.names:
            whole = f"{origin}.{each.name}"
            if whole in self.modules:
                yield whole
            elif origin in self.modules:
                yield origin

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Who imports each module."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for name, imports in self.imports.items():
            for each in imports:
                found[each.target].add(name)
        return found

    def own_name(self, text: str) -> str | None:
        """Return the module that a text names as "package.module" or "package.module:attribute"."""
        name = text.partition(":")[0]
        return name if "." in name and name in self.modules else None
