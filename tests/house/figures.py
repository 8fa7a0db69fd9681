"""What the product's source is measured by: one function for each figure of the table.

Each figure has, for whoever works at it, the places that it counts. Its bar stands in bars.py.
"""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.house.bars import ROOMS, Figure
from tests.house.parts import sizes_of_parts
from tests.house.prose import prose
from tests.house.source import PACKAGES, Function, Module, Product

ENTRIES = 25
FIELDS = 8
SHORT_LINES = 60

REGISTERED = ("*/commands/*.py", "*/platform.py", "*/errors.py")
"""One file for one thing by design, however short it is."""

KINDS = {".py", ".html", ".css", ".js", ".toml"}
"""Suffixes of the files that make up the product; libraries in a folder `vendor` are not ours."""

_BROAD = {"Exception", "BaseException"}
_LOOKED_UP = {"build", "renderer", "check", "main", "upgrade", "downgrade"}
"""Functions that are found by their name in a file of a certain name."""
_PLAIN = {"contextmanager", "asynccontextmanager", "cache", "overload", "override"}
"""Decorators that enter a function into no register."""
_LOADERS = {"import_module", "__import__", "find_spec", "resolve_name", "run_module"}
_COMMAND = re.compile(r"\w*app\.(command|callback)\(")
_PAGE = re.compile(r"[A-Za-z0-9_\-./]*[A-Za-z0-9_\-]\.md\b")


def measured(product: Product) -> list[Figure]:
    """Return all figures of a product's source."""
    return [figure for measure in MEASURES for figure in measure(product)]


def sizes(product: Product) -> Iterator[Figure]:
    """Files, their lines, and how they stand in folders."""
    modules = product.modules.values()
    beside = [str(each.path) for each in modules if each.path.parent == Path("gateway")]
    yield Figure("files side by side in gateway/", len(beside), beside)
    by_size = sorted(modules, key=lambda each: len(each.lines))
    lines = sum(len(each.lines) for each in modules)
    files = [f"{each.path}: {len(each.lines)} lines" for each in by_size]
    yield Figure("product files", len(by_size), [_per_folder(modules)])
    yield Figure("mean lines of a file", round(lines / len(by_size)), files[-10:])
    short = [
        text
        for each, text in zip(by_size, files, strict=True)
        if len(each.lines) < SHORT_LINES
        and not each.is_entrance
        and not any(fnmatch(str(each.path), pattern) for pattern in REGISTERED)
    ]
    yield Figure("files under 60 lines", len(short), short)
    crowded = [
        f"{folder}/: {len(entries)}"
        for folder, entries in _folders(product)
        if len(entries) > ENTRIES
    ]
    yield Figure("folders of more than 25 entries", len(crowded), crowded)
    yield Figure("product lines", lines, _lines_per_folder(modules))


def rooms(product: Product) -> Iterator[Figure]:
    """Lines of all kinds: the sum, and those of the rooms that have a ceiling."""
    count: Counter[str] = Counter()
    for top in (*PACKAGES, "migrations"):
        for path in sorted((product.root / top).rglob("*")):
            if path.suffix in KINDS and "vendor" not in path.parts:
                room = "/".join(path.relative_to(product.root).parts[:2])
                count[room] += len(path.read_text("utf-8").splitlines())
    places = [f"{room}: {lines:,}" for room, lines in count.most_common()]
    yield Figure("lines of all kinds", count.total(), places)
    for room in ROOMS:
        yield Figure(f"lines of {room}", sum(count[each] for each in room.split(" + ")))


def _per_folder(modules: Iterable[Module]) -> str:
    count = Counter(str(each.path.parent) for each in modules)
    return ", ".join(f"{folder} {files}" for folder, files in count.most_common())


def _lines_per_folder(modules: Iterable[Module]) -> list[str]:
    count: Counter[str] = Counter()
    for each in modules:
        count[str(each.path.parent)] += len(each.lines)
    return [f"{folder}/: {lines:,}" for folder, lines in count.most_common()]


def _folders(product: Product) -> Iterator[tuple[Path, list[Path]]]:
    for top in PACKAGES:
        for folder in (product.root / top, *sorted((product.root / top).rglob("*/"))):
            if "__pycache__" not in folder.parts:
                entries = [each for each in folder.iterdir() if each.name != "__pycache__"]
                yield folder.relative_to(product.root), entries


def importers(product: Product) -> Iterator[Figure]:
    """Who imports whom: files of one importer, lines of imports, cycles."""
    alone = [
        (len(module.lines), f"{module.path} ({len(module.lines)}) ← {_path(product, *users)}")
        for name, module in product.modules.items()
        if len(users := product.importers[name]) == 1 and not module.is_entrance
    ]
    pairs = [pair for _, pair in sorted(alone)]
    yield Figure("files that one other file alone imports", len(alone), pairs)
    share, worst = _import_lines(product)
    yield Figure("share of import lines", round(share * 100, 1), worst)
    cycles = [" ⇄ ".join(each) for each in _cycles(_graph(product))]
    yield Figure("import cycles of files", len(cycles), cycles)
    rooms = [" ⇄ ".join(each) for each in _cycles(_rooms(product))]
    yield Figure("import cycles of rooms", len(rooms), rooms)
    hidden = [
        f"{product.modules[name].path}:{each.line} {each.target}"
        for name, imports in product.imports.items()
        for each in imports
        if each.typing_only
    ]
    blocks = {place.partition(":")[0] for place in hidden}
    yield Figure("`if TYPE_CHECKING` blocks with own modules", len(blocks), hidden)


def _path(product: Product, name: str) -> Path:
    return product.modules[name].path


def _import_lines(product: Product) -> tuple[float, list[str]]:
    """Return the share of import lines, and the files that have most of them."""
    counts: dict[Module, int] = {}
    for module in product.modules.values():
        statements = module.nodes(ast.Import, ast.ImportFrom)
        counts[module] = sum((it.end_lineno or it.lineno) - it.lineno + 1 for it in statements)
    worst = sorted(counts.items(), key=lambda each: -each[1])[:25]
    total = sum(len(each.lines) for each in counts)
    return sum(counts.values()) / total, [
        f"{module.path}: {lines} of {len(module.lines)}" for module, lines in worst
    ]


def _graph(product: Product) -> dict[str, set[str]]:
    return {name: {each.target for each in found} for name, found in product.imports.items()}


def _rooms(product: Product) -> dict[str, set[str]]:
    """Return the graph of what stands at the top of a package, whose `__init__.py` is left out."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name, targets in _graph(product).items():
        room = _room(name)
        graph[room] |= {_room(each) for each in targets} - {room, *PACKAGES}
    return {room: targets for room, targets in graph.items() if room not in PACKAGES}


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of more than one node (Tarjan), the largest first."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


def names(product: Product) -> Iterator[Figure]:
    """Classes that share their name, as it is written."""
    homes: dict[str, list[str]] = defaultdict(list)
    bare: dict[str, list[str]] = defaultdict(list)
    for module in product.modules.values():
        for each in module.classes():
            place = f"{module.path}:{each.lineno}"
            homes[each.name].append(place)
            bare[each.name.lstrip("_")].append(place)
    share, lists = _shared(homes)
    yield Figure("classes that share their name", share, lists)
    twins = _Twins(product)
    one_each = {
        name: list({twins.kind_of(place): place for place in places}.values())
        for name, places in homes.items()
    }
    yield Figure("… but for the same part of different platforms", *_shared(one_each))
    yield Figure("… with a leading underscore left out", *_shared(bare))
    clashes = [
        f"{top} {name}: {', '.join(places)}"
        for name, found in sorted(homes.items())
        for top in PACKAGES
        if twins.clash(places := [each for each in found if each.startswith(f"{top}/")])
    ]
    yield Figure("class names twice within a package", len(clashes), clashes)


def functions_by_name(product: Product) -> Iterator[Figure]:
    """Names of functions at the top of modules that several files use for functions of their own.

    Left out is what others name: methods of ports, what a decorator enters into a register, and
    what a register or the interpreter looks up by its name.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    ports: set[str] = set(_LOOKED_UP)
    for module in product.modules.values():
        for each in module.classes():
            if any(ast.unparse(base).partition("[")[0].endswith("Protocol") for base in each.bases):
                ports |= {it.name for it in each.body if isinstance(it, Function)}
        public = {
            each.name: each.lineno
            for each in module.tree.body
            if isinstance(each, Function)
            and not each.name.startswith("_")
            and {ast.unparse(it).rpartition(".")[2] for it in each.decorator_list} <= _PLAIN
        }
        for name, line in public.items():
            homes[name].append(f"{module.path}:{line}")
    _, lists = _shared({name: places for name, places in homes.items() if name not in ports})
    yield Figure("public function names in more than one file", len(lists), lists)


def _shared(homes: dict[str, list[str]]) -> tuple[float, list[str]]:
    """Return how many percent of all classes share their name, and these names."""
    shared = [each for each in homes.items() if len(each[1]) > 1]
    shared.sort(key=lambda each: (-len(each[1]), each[0]))
    count, total = sum(len(places) for _, places in shared), sum(map(len, homes.values()))
    lists = [f"{name} ({len(places)}): {', '.join(places)}" for name, places in shared]
    return round(count / max(total, 1) * 100, 1), lists


class _Twins:
    """The folders of platforms, and those of providers of models, which hold the same parts."""

    _SIGNS = ("adapters/*/adapter.py", "agent/models/*/client.py")
    """Kinds of such folders, by the file that each of them has."""

    def __init__(self, product: Product) -> None:
        self._kinds = {
            f"{module.path.parent}/": sign
            for module in product.modules.values()
            for sign in self._SIGNS
            if module.path.match(sign)
        }

    def kind_of(self, place: str) -> str:
        """Return the same for all platforms, the same for all providers, else the place itself."""
        folder = self._folder_of(place)
        return place if folder is None else self._kinds[folder]

    def clash(self, places: Sequence[str]) -> bool:
        """Return whether classes of one name are more than one part of different platforms."""
        folders = [self._folder_of(each) for each in places]
        return len(places) > 1 and (None in folders or len(set(folders)) < len(folders))

    def _folder_of(self, place: str) -> str | None:
        return next((each for each in self._kinds if place.startswith(each)), None)


def walls(product: Product) -> Iterator[Figure]:
    """Contracts of import-linter inside gateway and agent; modules imported by a string."""
    contracts = {top: _layers(product, top) for top in ("gateway", "agent")}
    there = [top for top, found in contracts.items() if found]
    yield Figure("layers contracts inside gateway and agent", len(there), there)
    excepted = [
        line for found in contracts.values() for each in found for line in each["ignore_imports"]
    ]
    yield Figure("exceptions in these contracts", len(excepted), excepted)
    strings = list(_strings(product))
    files = {place.partition(":")[0] for place in strings}
    yield Figure("files that import own modules by a string", len(files), strings)


def _layers(product: Product, top: str) -> list[dict[str, Any]]:
    """Return the `layers` contracts whose layers all stand inside a top-level package."""
    text = (product.root / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return [
        {"ignore_imports": []} | each
        for each in contracts
        if each["type"] == "layers"
        and (
            each.get("containers") == [top]
            or all(layer.strip("( ").startswith(f"{top}.") for layer in each["layers"])
        )
    ]


def _strings(product: Product) -> Iterator[str]:
    """Yield where a module is named by a string; a program that a child process runs is none."""
    for module in product.modules.values():
        loaded = {
            id(each)
            for call in module.nodes(ast.Call)
            if _name_of(call) in _LOADERS
            for each in call.args
        }
        for each in module.nodes(ast.Constant):
            named = product.own_name(each.value) if isinstance(each.value, str) else None
            if named and (id(each) in loaded or not product.modules[named].is_program):
                yield f"{module.path}:{each.lineno} {each.value}"
        for call in module.nodes(ast.Call):
            if _name_of(call) in _LOADERS and call.args and _is_made_up(call.args[0]):
                yield f"{module.path}:{call.lineno} {ast.unparse(call)}"


def _is_made_up(argument: ast.expr) -> bool:
    """Return whether the name of one of our modules is put together here."""
    text = ast.unparse(argument)
    ours = any(f"{quote}{top}." in text for top in PACKAGES for quote in "'\"")
    if isinstance(argument, ast.Constant):
        return False
    return ours or "__name__" in text or "__package__" in text


def _name_of(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def functions(product: Product) -> Iterator[Figure]:
    """Lines of code of functions: without docstring, comments and empty lines."""
    lengths = sorted(
        (module.code_in(each), f"{module.path}:{each.lineno} {each.name}")
        for module in product.modules.values()
        for each in module.functions()
    )
    longest = [f"{place}: {lines}" for lines, place in reversed(lengths[-25:])]
    for percent in (50, 90, 99):
        yield Figure(f"function lines p{percent}", lengths[len(lengths) * percent // 100][0])
    yield Figure("longest function", lengths[-1][0], longest)


def failures(product: Product) -> Iterator[Figure]:
    """How errors are raised, and where they are lost."""
    modules = product.modules.values()
    raised = sum(len(list(each.nodes(ast.Raise))) for each in modules)
    handlers = [(module, each) for module in modules for each in module.nodes(ast.ExceptHandler)]
    yield Figure("raise : except", round(raised / len(handlers), 2))
    silent = [
        f"{module.path}:{each.lineno}"
        for module, each in handlers
        if _is_broad(each.type) and _is_silent(each)
    ] + [
        f"{module.path}:{call.lineno}"
        for module in modules
        for call in module.nodes(ast.Call)
        if _name_of(call) == "suppress" and any(map(_is_broad, call.args))
    ]
    yield Figure("silent broad excepts", len(silent), silent)


def _is_broad(caught: ast.expr | None) -> bool:
    """Return whether these exceptions are all there are."""
    named = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(each is None or ast.unparse(each) in _BROAD for each in named)


def _is_silent(handler: ast.ExceptHandler) -> bool:
    """Return whether nothing is raised, logged or told of the exception."""
    inside = [each for statement in handler.body for each in ast.walk(statement)]
    uses = any(isinstance(it, ast.Name) and it.id == handler.name for it in inside)
    raises = any(isinstance(it, ast.Raise) for it in inside)
    logs = any(
        isinstance(it, ast.Call) and ast.unparse(it.func).startswith(("log.", "self._log."))
        for it in inside
    )
    return not (uses or raises or logs)


def fields(product: Product) -> Iterator[Figure]:
    """What parts are made of: fields, and functions in place of parts."""
    large = [
        f"{place}: {count}"
        for count, place in sorted(sizes_of_parts(product), reverse=True)
        if count > FIELDS
    ]
    yield Figure("parts of more than 8 fields", len(large), large)
    calls = [
        f"{module.path}:{each.lineno} {ast.unparse(each)}"
        for module in product.modules.values()
        for each in module.nodes(ast.Subscript)
        if ast.unparse(each.value).endswith("Callable")
        and isinstance(each.slice, ast.Tuple)
        and isinstance(each.slice.elts[0], ast.List)
    ]
    yield Figure("`Callable[[` annotations", len(calls), calls)


def words(product: Product) -> Iterator[Figure]:
    """Comments, and pages that a reader does not have."""
    modules = product.modules.values()
    comments = sum(len(each.comment_lines) for each in modules)
    code = sum(len(each.code_lines) for each in modules)
    yield Figure("comment lines per code line", round(comments / code, 3))
    # SOUL.md and SKILL.md are no pages: the product itself reads files of these names.
    files = {
        each.value.rpartition("/")[2]
        for module in modules
        for each in module.nodes(ast.Constant)
        if isinstance(each.value, str) and each.value.endswith(".md")
    }
    strangers = [
        f"{module.path}:{number} {page}"
        for module in modules
        for number in sorted(module.docstring_lines | module.comment_lines)
        for page in _PAGE.findall(module.lines[number - 1])
        if page not in files and not _exists(product.root, page)
    ]
    yield Figure("pages cited that are not in this repository", len(strangers), strangers)


def _exists(root: Path, page: str) -> bool:
    return (root / page).is_file() or (root / "docs" / page).is_file()


def storage(product: Product) -> Iterator[Figure]:
    """SQLAlchemy outside of gateway/storage."""
    outside = [
        (module, each)
        for module in product.modules.values()
        for each in module.nodes(ast.Import, ast.ImportFrom)
        if not _is_storage(module) and _is_sqlalchemy(each)
    ]
    wrong = [
        f"{module.path}:{each.lineno} {', '.join(found)}"
        for module, each in outside
        if (found := [it.name for it in each.names if it.name != "Connection"])
    ]
    users = sorted({str(module.path) for module, _ in outside})
    yield Figure("files outside of storage that import SQLAlchemy", len(users), users)
    files = {place.partition(":")[0] for place in wrong}
    yield Figure("… that import more of it than `Connection`", len(files), wrong)
    rows = sorted(
        f"{module.path}:{each.lineno} {ast.unparse(each)}"
        for module in product.modules.values()
        for each in module.nodes(ast.Subscript)
        if ast.unparse(each.value) in {"Row", "sqlalchemy.Row"}
    )
    left = [place for place in rows if not place.startswith("gateway/storage/")]
    left += [
        f"{module.path}:{each.lineno} {each.name} returns {ast.unparse(each.returns)}"
        for module in product.modules.values()
        for each in module.functions()
        if _is_storage(module)
        and each.returns is not None
        and "Row[" in ast.unparse(each.returns)
        and not each.name.startswith("_")
    ]
    yield Figure("`Row[` annotations", len(rows), rows)
    yield Figure("… outside of storage, or that leave it", len(left), left)


def commands(product: Product) -> Iterator[Figure]:
    """What the command line offers: one function with a typer decorator for each command."""
    found = [
        f"{module.path}:{each.lineno} {each.name}"
        for module in product.modules.values()
        if module.path.is_relative_to("gateway/cli")
        for each in module.functions()
        if any(_COMMAND.match(ast.unparse(decorator)) for decorator in each.decorator_list)
    ]
    yield Figure("commands of the CLI", len(found), found)


def _is_storage(module: Module) -> bool:
    return module.path.is_relative_to("gateway/storage")


def _is_sqlalchemy(statement: ast.Import | ast.ImportFrom) -> bool:
    names = (
        [statement.module or ""]
        if isinstance(statement, ast.ImportFrom)
        else [each.name for each in statement.names]
    )
    return any(name.partition(".")[0] == "sqlalchemy" for name in names)


MEASURES: tuple[Callable[[Product], Iterator[Figure]], ...] = (
    sizes,
    rooms,
    importers,
    names,
    functions_by_name,
    walls,
    functions,
    failures,
    fields,
    words,
    storage,
    commands,
    prose,
)
