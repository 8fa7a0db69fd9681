"""The house keeps its figures: each is held to its bar, or to what it has reached so far."""

import ast
from pathlib import Path

import pytest

from tests.house.bars import BARS, HELLO, Figure
from tests.house.figures import measured
from tests.house.hello import hello
from tests.house.path import PATH, path
from tests.house.source import Product

RUN = [HELLO, *PATH]
"""What is measured by running the product."""
ROOT = Path(__file__).resolve().parents[2]


NAMES_CLASSES = {
    *("agent/library.py", "agent/plugins/registry.py", "agent/plugins/contracts.py"),
    *("agent/plugins/registry.py", "agent/plugins/loading.py"),
    *("agent/plugins/supervision.py", "gateway/context/memory.py"),  # to whoever wrote the plugin
    *("agent/prompt/skills.py", "agent/tools/registry.py"),  # to the model, or the skill's author
    *("agent/context/summary_model.py", "agent/processes/threads.py"),  # logs
    *("gateway/findings/webhook.py", "gateway/supervision/crash_journal.py"),
    *("gateway/supervision/credentials.py", "agent/spans.py"),
    "gateway/pipeline/delegation.py",
}
"""Files that use the name of an exception's class outside of a call that logs, and why."""


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    """All figures of the source, by name; each file is parsed once for them."""
    return {each.name: each for each in measured(Product(ROOT))}


def test_each_figure_has_its_bar(figures: dict[str, Figure]) -> None:
    """The table of bars names what is measured, and nothing else."""
    assert [*figures, *RUN] == list(BARS)


@pytest.mark.parametrize(
    "name",
    [name for name, bar in BARS.items() if bar.limit is not None and name not in RUN],
)
def test_a_figure_is_as_good_as_its_limit(name: str, figures: dict[str, Figure]) -> None:
    """`python -m tests.house -v` prints the places behind each."""
    _check(figures[name])


def test_a_person_reads_no_name_of_a_class() -> None:
    """`agent.network.in_words` says it in English; the log has the name."""
    found = set()
    for module in Product(ROOT).modules.values():
        calls_ = module.nodes(ast.Call)
        logs = [each for each in calls_ if ast.unparse(each.func).startswith("log.")]
        logged = {id(inner) for each in logs for inner in ast.walk(each)}
        for node in module.nodes(ast.Attribute):
            is_name = node.attr == "__name__" and ast.unparse(node.value).startswith("type(")
            if is_name and id(node) not in logged:
                found.add(str(module.path))
    assert found <= NAMES_CLASSES


async def test_a_hello_enters_few_files(tmp_path: Path) -> None:
    """From the update to the receipt, in a gateway that has answered before."""
    _check(await hello(tmp_path))


async def test_a_message_asks_little_of_the_database(tmp_path: Path) -> None:
    """The statements are listed where it asks for more."""
    for figure in await path(tmp_path):
        _check(figure)


def _check(figure: Figure) -> None:
    bar, places = BARS[figure.name], "\n".join(figure.places[:200])
    assert bar.allows(figure.value, bar.limit), f"{figure.value}, limit {bar.limit}\n{places}"
