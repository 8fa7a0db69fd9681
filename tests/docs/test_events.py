"""docs/logging.md and the code name the same events, with the same levels and fields."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "logging.md"
PACKAGES = ("gateway", "agent", "adapters")

# Method of a logger → level; `log.log` takes the level as its first argument.
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "log": "any",
}
ROW = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
FIELD = re.compile(r"`(\w+)(\??)`")


@dataclass(frozen=True)
class Documented:
    """A row of the table; fields with a question mark may be absent from a line."""

    levels: frozenset[str]
    fields: frozenset[str]
    optional: frozenset[str]


@dataclass(frozen=True)
class Emitted:
    """One call of a logger; the name is None if it is not a literal."""

    place: str
    name: str | None
    level: str
    fields: frozenset[str]


def documented_events(page: str) -> dict[str, Documented]:
    """Read the table of events: `| `name` | levels | `field`, `field?` | meaning |`."""
    found = {}
    for name, levels, fields, _ in ROW.findall(page):
        named = FIELD.findall(fields)
        found[name] = Documented(
            frozenset(levels.split(", ")),
            frozenset(field for field, mark in named if not mark),
            frozenset(field for field, mark in named if mark),
        )
    return found


def emitted_events(source: str, file: str) -> Iterator[Emitted]:
    """Find every `log.<level>("event", field=…)`; `log.bind(field=…)` in between counts."""
    for node in ast.walk(ast.parse(source if "log" in source else "")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            bound = bound_fields(node.func.value)
            level = LEVELS.get(node.func.attr)
            if level is not None and bound is not None:
                yield emitted(node, level, bound, f"{file}:{node.lineno}")


def emitted(call: ast.Call, level: str, bound: frozenset[str], place: str) -> Emitted:
    """Describe one call; `exc_info` and `log.exception` become the field `exception`."""
    names = call.args[1:2] if level == "any" else call.args[:1]
    name = names[0].value if names and isinstance(names[0], ast.Constant) else None
    fields = {keyword.arg or "**" for keyword in call.keywords} | bound
    if "exc_info" in fields or getattr(call.func, "attr", "") == "exception":
        fields = fields - {"exc_info"} | {"exception"}
    return Emitted(place, name if isinstance(name, str) else None, level, frozenset(fields))


def bound_fields(node: ast.expr) -> frozenset[str] | None:
    """Return what `log.bind(…)` adds to `log`; None if the expression is not our logger."""
    if isinstance(node, ast.Name):
        return frozenset() if node.id == "log" else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = bound_fields(node.func.value) if node.func.attr == "bind" else None
        return None if inner is None else inner | {word.arg or "**" for word in node.keywords}
    return None


def oddly_named_loggers(source: str, file: str) -> Iterator[str]:
    """Find structlog loggers that are not called `log`: their events would not be found."""
    # Most files make none, and need not be parsed.
    for node in ast.walk(ast.parse(source if "get_logger" in source else "")):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_logger = "structlog.get_logger" in ast.unparse(node.value)
            if is_logger and [ast.unparse(target) for target in targets] != ["log"]:
                yield f"{file}:{node.lineno}: a structlog logger must have the name `log`"


def differences(documented: dict[str, Documented], calls: Iterable[Emitted]) -> list[str]:
    """Compare the table with the code; one line for each disagreement."""
    problems = []
    by_name: dict[str, list[Emitted]] = {}
    for call in calls:
        if call.name is None or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", call.name):
            problems.append(f"{call.place}: the event must be a snake_case literal: {call.name}")
        elif call.name not in documented:
            problems.append(f"{call.place}: {call.name} is not documented: {row(call)}")
        else:
            by_name.setdefault(call.name, []).append(call)
    for name, event in documented.items():
        problems += [f"{name}: {text}" for text in disagreements(event, by_name.get(name, []))]
    return problems


def disagreements(event: Documented, calls: list[Emitted]) -> Iterator[str]:
    """Compare one row with all calls that emit its event."""
    if not calls:
        yield "is documented, but nothing emits it"
        return
    emitted_fields = frozenset[str]().union(*(call.fields for call in calls))
    levels = frozenset(call.level for call in calls)
    if undocumented := emitted_fields - event.fields - event.optional:
        yield f"fields that are not documented: {sorted(undocumented)}"
    if unknown := event.fields - emitted_fields:
        yield f"documented fields that nothing emits: {sorted(unknown)}"
    if levels != event.levels:
        yield f"documented as {sorted(event.levels)}, emitted as {sorted(levels)}"


def row(call: Emitted) -> str:
    """Return the row that would document a call."""
    fields = ", ".join(f"`{field}`" for field in sorted(call.fields)) or "none"
    return f"| `{call.name}` | {call.level} | {fields} | … |"


def source_files() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every module of the product."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def test_the_page_and_the_code_agree() -> None:
    """Every event is documented with its level and fields, and every row is emitted somewhere."""
    calls = [call for file, text in source_files() for call in emitted_events(text, file)]
    assert differences(documented_events(PAGE.read_text("utf-8")), calls) == []


def test_every_row_of_the_table_is_well_formed() -> None:
    """A row that the pattern does not read would not be checked."""
    rows = re.findall(r"^\| `.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(documented_events(PAGE.read_text("utf-8")))


def test_every_logger_has_the_name_that_is_looked_for() -> None:
    """Events of a logger with another name would escape the comparison."""
    found = [text for file, source in source_files() for text in oddly_named_loggers(source, file)]
    assert found == []


TABLE = """
| event | level | fields | meaning |
|---|---|---|---|
| `turn_finished` | info, error | `tokens`, `outcome?` | A turn is over. |
| `bare_event` | debug | none | Nothing more to say. |
"""
AGREEING = """
log.info("turn_finished", tokens=1)
log.bind(tokens=1).error("turn_finished", outcome="x")
log.debug("bare_event")
other.info("not ours")
"""


def found_in(source: str, table: str = TABLE) -> list[str]:
    """Compare a source text with a table."""
    return differences(documented_events(table), emitted_events(source, "a.py"))


def test_agreement_is_silent() -> None:
    """Optional fields may be there or not, and other objects are not loggers."""
    assert found_in(AGREEING) == []


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (
            'log.info("new_event", a=1)',
            "a.py:6: new_event is not documented: | `new_event` | info | `a` | … |",
        ),
        ("log.info(name)", "a.py:6: the event must be a snake_case literal: None"),
        ("log.info()", "a.py:6: the event must be a snake_case literal: None"),
        ('log.info("NewEvent")', "a.py:6: the event must be a snake_case literal: NewEvent"),
        ('log.log(level, f"{x}_y")', "a.py:6: the event must be a snake_case literal: None"),
        ('log.debug("bare_event", a=1)', "bare_event: fields that are not documented: ['a']"),
        ('log.debug("bare_event", **a)', "bare_event: fields that are not documented: ['**']"),
        (
            'log.debug("bare_event", exc_info=True)',
            "bare_event: fields that are not documented: ['exception']",
        ),
        (
            'log.info("bare_event")',
            "bare_event: documented as ['debug'], emitted as ['debug', 'info']",
        ),
    ],
)
def test_a_disagreement_of_the_code_is_caught(call: str, problem: str) -> None:
    """Each kind of mistake in a call is one line."""
    assert found_in(AGREEING + call) == [problem]


@pytest.mark.parametrize(
    ("row_text", "problem"),
    [
        ("| `old_event` | info | none | Gone. |", "old_event: is documented, but nothing emits it"),
        (
            "| `bare_event` | debug | `a` | More. |",
            "bare_event: documented fields that nothing emits: ['a']",
        ),
    ],
)
def test_a_disagreement_of_the_page_is_caught(row_text: str, problem: str) -> None:
    """Each kind of mistake in a row is one line."""
    assert found_in(AGREEING, TABLE + row_text + "\n") == [problem]


def test_an_exception_and_a_chosen_level_are_understood() -> None:
    """`log.exception` has the field exception; `log.log` has any level."""
    table = (
        "| `turn_failed` | error | `exception` | x |\n| `library_logged` | any | `logger` | x |\n"
    )
    source = 'log.exception("turn_failed")\nlog.log(level, "library_logged", logger="x")'
    assert found_in(source, table) == []


@pytest.mark.parametrize(
    "source", ["logger = structlog.get_logger()", "a.log = structlog.get_logger()"]
)
def test_a_logger_with_another_name_is_caught(source: str) -> None:
    """Only the module's `log` is followed."""
    assert len(list(oddly_named_loggers(source, "a.py"))) == 1
