"""The house keeps its figures: each is held to its bar, or to what it has reached so far."""

from pathlib import Path

import pytest

from tests.house.bars import BARS, CALLS, HELLO
from tests.house.figures import Figure, measured
from tests.house.hello import hello
from tests.house.path import PATH, calls, path
from tests.house.source import Product
from tests.house.start import STARTED, imported

RUN = [HELLO, *STARTED, *PATH, CALLS]
"""What is measured by running the product."""
ROOT = Path(__file__).resolve().parents[2]


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


async def test_a_hello_enters_few_files(tmp_path: Path) -> None:
    """From the update to the receipt, in a gateway that has answered before."""
    _check(await hello(tmp_path))


def test_a_start_imports_few_modules() -> None:
    """What a command or a part alone needs is imported when it runs; nor does it until ready."""
    for figure in imported():
        _check(figure)


async def test_a_message_asks_little_of_the_database_and_of_threads(tmp_path: Path) -> None:
    """On each way through the gateway, and so does a start; the statements are listed."""
    for figure in await path(tmp_path):
        _check(figure)


async def test_a_message_takes_few_steps(tmp_path: Path) -> None:
    """What nobody notices in one change is 1.4 times the processor time after a hundred."""
    _check(await calls(tmp_path))


def _check(figure: Figure) -> None:
    bar, places = BARS[figure.name], "\n".join(figure.places[:200])
    assert bar.allows(figure.value, bar.limit), f"{figure.value}, limit {bar.limit}\n{places}"
