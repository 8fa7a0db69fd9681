"""What the figures count, on products of a few lines."""

from pathlib import Path

import pytest

from tests.house.bars import BARS, Figure
from tests.house.figures import measured
from tests.house.source import Product

CONTRACTS = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["gateway", "agent | adapters"]
[[tool.importlinter.contracts]]
type = "layers"
layers = ["gateway.app", "gateway.b"]
ignore_imports = ["gateway.b -> gateway.app"]
[[tool.importlinter.contracts]]
type = "layers"
containers = ["agent"]
layers = ["loop", "view"]
"""


def figures_of(root: Path, files: dict[str, str], contracts: str = CONTRACTS) -> dict[str, Figure]:
    """Write a product and return its figures by name."""
    (root / "pyproject.toml").write_text(contracts)
    for top in ("gateway", "agent", "adapters"):
        (root / top).mkdir()
        (root / top / "__init__.py").touch()
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    least = "def _f():\n    try:\n        raise ValueError\n    except ValueError:\n        raise\n"
    (root / "adapters" / "least.py").write_text(f"{least}class Least: ...\n")
    return {each.name: each for each in measured(Product(root))}


IMPORTS = {
    "gateway/a.py": "from gateway import b\nfrom agent.x import X\n",
    "gateway/b.py": "def f():\n    from gateway.a import z\n",
    "gateway/c.py": "if TYPE_CHECKING:\n    from agent.y import (\n        Y,\n        Z,\n    )\n",
    "agent/x.py": "import os\n",
    "agent/y.py": "from agent.x import X\n",
}
NAMES = {
    "adapters/tea/adapter.py": "class Client: ...\nclass Part: ...\n",
    "adapters/pot/adapter.py": "class Client: ...\n",
    "adapters/rendering/text.py": "class Part: ...\nclass _Own: ...\n",
    "agent/x.py": "class Entry: ...\n",
    "agent/y.py": "class Entry: ...\nclass Own: ...\n",
    "gateway/x.py": "class Entry: ...\n",
}
FUNCTIONS = {
    "gateway/a.py": "def told(): ...\ndef main(): ...\n@command\ndef run(): ...\n",
    "gateway/b.py": "def told(): ...\ndef main(): ...\ndef run(): ...\ndef send(): ...\n",
    "agent/a.py": "class Port(Protocol):\n    def send(self): ...\n",
    "agent/b.py": "@cache\ndef told(): ...\ndef send(): ...\ndef _own(): ...\n",
    "agent/c.py": "class A:\n    def told(self): ...\n    def own(self): ...\ndef _own(): ...\n",
}
STRINGS = {
    "gateway/a.py": 'X = "agent.x:Y"\n"""As in agent.x, too."""\nrun("agent.program")\n',
    "gateway/b.py": 'import_module(f"adapters.{name}.adapter")\nimport_module(name)\n',
    "gateway/c.py": 'import_module("agent.program")\nlog("agent.nothing")\n',
    "agent/x.py": "Y = 1\n",
    "agent/program.py": "def main(): ...\n",
}
EXCEPTS = """
try:
    a()
except Exception:
    pass
try:
    a()
except (ValueError, Exception) as exc:
    tell(exc)
try:
    a()
except BaseException:
    raise
with suppress(Exception):
    a()
try:
    a()
except Exception:
    log.exception("a_failed")
"""
PARTS = """
@dataclass(frozen=True)
class Value:
    a: int; b: int; c: int; d: int; e: int; f: int; g: int; h: int; i: str = ""
@dataclass(frozen=True)
class Tools:
    a: Value; b: int; c: int; d: int; e: int; f: int; g: int; h: int; i: "Store"
class Store:
    def __init__(self, path: str) -> None: ...
class Runner:
    def __init__(self, a, b, c, d, e, f, g, *, h: Callable[[int], str], i: int) -> None: ...
"""
STORAGE = {
    "gateway/storage/rows.py": "from sqlalchemy import Row, select\n"
    "def find(conn) -> Row[Any]: ...\ndef _find(conn) -> Row[Any]: ...\n",
    "gateway/a.py": "from sqlalchemy import Connection\n",
    "gateway/b.py": "from sqlalchemy import Row, Connection\nx: Row[Any]\n",
}
WORDS = {
    "agent/x.py": '"""As PAGE.md and docs/here.md say; reads SOUL.md."""\n'
    '# Why.\nx = 1  # no line of its own\ny = "SOUL.md"\nz = """\n# text\n"""\n',
    "docs/here.md": "",
}

PHRASES = {
    "agent/x.py": '"""Return what is told."""\n# Who stands beside it.\nx = 1\n'
    'y = typer.Option(help="What there is.")\n"""A `nobody` in code is not counted."""\n',
    "docs/here.md": "# A page\n\n- as far as I know\n- a second item\n",
    "docs/decisions/001-use-rows.md": "# Use rows\n",
    "tests/support/double.py": "x = 1\n",
}


@pytest.mark.parametrize(
    ("files", "name", "places"),
    [
        (IMPORTS, "files that one other file alone imports", 3),
        (IMPORTS, "import cycles of files", 1),
        (IMPORTS, "import cycles of rooms", 1),
        (IMPORTS, "`if TYPE_CHECKING` blocks with own modules", 1),
        (IMPORTS, "files side by side in gateway/", 4),
        (NAMES, "classes that share their name", 3),
        (NAMES, "… but for the same part of different platforms", 2),
        (NAMES, "… with a leading underscore left out", 4),
        (NAMES, "class names twice within a package", 2),
        (FUNCTIONS, "public function names in more than one file", 1),
        (STRINGS, "files that import own modules by a string", 3),
        ({}, "layers contracts inside gateway and agent", 2),
        ({}, "exceptions in these contracts", 1),
        ({"agent/a.py": EXCEPTS}, "silent broad excepts", 2),
        ({"agent/a.py": PARTS}, "parts of more than 8 fields", 2),
        ({"agent/a.py": PARTS}, "`Callable[[` annotations", 1),
        (STORAGE, "files outside of storage that import SQLAlchemy", 2),
        (STORAGE, "… that import more of it than `Connection`", 1),
        (STORAGE, "`Row[` annotations", 3),
        (STORAGE, "… outside of storage, or that leave it", 2),
        (WORDS, "pages cited that are not in this repository", 1),
        (PHRASES, "docstrings that read like a translation", 2),
        (PHRASES, "comments that read like a translation", 3),
        (PHRASES, "help texts that read like a translation", 1),
        (PHRASES, "pages that read like a translation", 1),
        (PHRASES, "words of all pages", 2),
        (PHRASES, "decisions", 1),
        (PHRASES, "lines of tests/support", 1),
    ],
)
def test_places(files: dict[str, str], name: str, places: int, tmp_path: Path) -> None:
    """What is listed behind a figure is what it counts."""
    found = figures_of(tmp_path, files)[name].places
    assert len(found) == places, found


def test_shares(tmp_path: Path) -> None:
    """Comments in texts and behind code are not comment lines; an import counts all its lines."""
    found = figures_of(tmp_path, WORDS | {"gateway/c.py": IMPORTS["gateway/c.py"]})
    # Code: 5 of agent/x.py, 5 of gateway/c.py, 6 of adapters/least.py.
    assert found["comment lines per code line"].value == round(1 / 16, 3)
    assert found["share of import lines"].value == round(4 / 18 * 100, 1)
    assert found["product lines"].value == 18


def test_rooms_are_measured_by_files_of_all_kinds(tmp_path: Path) -> None:
    """Libraries of others do not count."""
    files = {"adapters/slack/a.py": "X = 1\n", "adapters/slack/page/a.css": "a {\n}\n"}
    others = {"adapters/slack/vendor/b.js": "x\n", "adapters/slack/notes.txt": "x\n"}
    found = figures_of(tmp_path, files | others)
    assert found["lines of adapters/slack"].value == 3
    assert found["lines of all kinds"].value == 9


def test_functions_are_measured_by_their_code(tmp_path: Path) -> None:
    """Docstring, comments and empty lines do not count."""
    text = 'def f():\n    """Two\n    lines."""\n\n    # Why.\n    return (\n        1\n    )\n'
    assert figures_of(tmp_path, {"agent/a.py": text})["longest function"].value == 5
    assert BARS["longest function"].allows(80, 80)
    assert not BARS["raise : except"].allows(1.4, 1.5)
