"""Has libraries imported without the packages that they can do without, and Parley has no use for.

Several libraries import packages that are optional for them wherever these are installed, and here
they are, for others: structlog takes rich for tracebacks that Parley does not print, httpx takes
click for a command of its own, python-telegram-bot takes cryptography for passports. Each costs
megabytes for as long as the gateway runs. Such a library asks for them in `try … except
ImportError`; while it is imported, they count as not installed: for the thread that imports it, and
for nobody else. Who imports one of them by itself gets it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import local
from types import ModuleType

from typing_extensions import override


def leave_out(library: str, *packages: str) -> None:
    """From now on, import a library as if these packages were not installed.

    Where it is imported already, nothing changes.

    Args:
        library: A top-level package, or the module of one that asks for them.
        packages: Top-level packages, or submodules.
    """
    _finder.left_out[library] = packages
    if _finder not in sys.meta_path:
        # The first one: those behind it would find what is to be left out.
        sys.meta_path.insert(0, _finder)


class _Hidden(local):
    """What counts as not installed in a thread."""

    packages: tuple[str, ...] = ()


class _Finder:
    def __init__(self) -> None:
        self.left_out: dict[str, tuple[str, ...]] = {}
        self.hidden = _Hidden()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what is to be imported in another way than usual; else None, and others find it."""
        if fullname in self.hidden.packages:
            raise ModuleNotFoundError(f"{fullname} is left out here", name=fullname)
        packages = self.left_out.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if packages else None
        if spec is None or packages is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _Without(spec.loader, packages, self.hidden)
        return spec


class _Without(SourceFileLoader):
    """The loader of a library, which hides some packages while it runs the library's code."""

    def __init__(self, own: SourceFileLoader, packages: Sequence[str], hidden: _Hidden) -> None:
        super().__init__(own.name, own.path)
        self._packages, self._hidden = packages, hidden

    @override
    def exec_module(self, module: ModuleType) -> None:
        before = self._hidden.packages
        self._hidden.packages = (*before, *self._packages)
        try:
            super().exec_module(module)
        finally:
            self._hidden.packages = before


_finder = _Finder()
