"""Private names of the platforms' SDKs that the product uses have a row in docs/adapters.md."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import discord

from tests.house.source import Module, Product

ROOT = Path(__file__).parents[2]
SDKS = {"aiohttp", "discord", "slack_bolt", "slack_sdk", "telegram"}
# Public in spite of the underscore.
OF_NAMED_TUPLES = {"_asdict", "_fields", "_replace"}


class Peeking(discord.Client):
    """Uses a private name of the SDK's, and one of its own."""

    def _own(self) -> object:
        return self._connection


def is_of_sdk(module: str | None) -> bool:
    return (module or "").partition(".")[0] in SDKS


def private(names: set[str]) -> set[str]:
    return {name for name in names if re.match(r"_(?!_)", name)} - OF_NAMED_TUPLES


def imported(tree: ast.AST) -> set[str]:
    """Return all parts of the names that are imported from an SDK."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names if is_of_sdk(each.name))
        elif isinstance(node, ast.ImportFrom) and is_of_sdk(node.module):
            names.update(f"{node.module}.{each.name}" for each in node.names)
    return {part for name in names for part in name.split(".")}


def reached_for(tree: ast.AST) -> set[str]:
    """Return the private names of other objects than `self`."""
    return private({
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in {"self", "cls"}
    })


def named_in(cls: type) -> set[str]:
    """Return the private attributes that a class uses, and its private methods."""
    nodes = list(ast.walk(ast.parse(dedent(inspect.getsource(cls)))))
    methods = {
        each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return private(methods | {each.attr for each in nodes if isinstance(each, ast.Attribute)})


def shared_with_sdk(cls: type) -> set[str]:
    """Return the private names that a class uses and the SDK's classes below it, too."""
    bases = [each for each in cls.__mro__ if is_of_sdk(each.__module__)]
    return named_in(cls) & {name for base in bases for name in named_in(base)} if bases else set()


def private_names(module: Module) -> set[str]:
    """Return the private names of SDKs that a module uses; empty if it imports no SDK."""
    if not (names := imported(module.tree)):
        return set()
    loaded = vars(import_module(module.name))
    classes = [loaded[node.name] for node in module.tree.body if isinstance(node, ast.ClassDef)]
    inherited = {name for each in classes for name in shared_with_sdk(each)}
    return private(names) | reached_for(module.tree) | inherited


def test_each_private_name_of_an_sdk_has_a_row() -> None:
    """It names the promise that needs it; a row whose name is gone goes, too."""
    page = (ROOT / "docs/adapters.md").read_text()
    rows = page.partition("## Where Parley bypasses an SDK")[2].partition("\n## ")[0]
    used = {name for each in Product(ROOT).modules.values() for name in private_names(each)}
    assert used == set(re.findall(r"`(_\w+)`", rows))


def test_a_private_name_is_found() -> None:
    """The check can fail."""
    assert shared_with_sdk(Peeking) == {"_connection"}
    tree = ast.parse("from telegram._bot import Bot\nbot._post(self._own)")
    assert private(imported(tree)) | reached_for(tree) == {"_bot", "_post"}
