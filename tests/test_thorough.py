"""The desk tries a sample of everything, and nothing is left out of both runs."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.thorough import ALL, DESK_EXAMPLES, products, sampled, try_fewer_examples

ROOT = Path(__file__).resolve().parents[1]


def marks(params: list[object]) -> list[bool]:
    """Return of each value whether it waits for `make test-all`."""
    return [bool(getattr(param, "marks", ())) for param in params]


def values(params: list[object], *, at_the_desk: bool) -> list[tuple[object, ...]]:
    """Return the products that the desk tries, or all."""
    pairs = zip(params, marks(params), strict=True)
    return [param.values for param, waits in pairs if not (waits and at_the_desk)]


def test_all_products_are_tried_and_each_value_at_the_desk() -> None:
    """The diagonals have each value of each parameter."""
    tried = products("abc", (1, 2))
    assert len(set(values(tried, at_the_desk=False))) == len(tried) == 6
    assert values(tried, at_the_desk=True) == [("a", 1), ("b", 2), ("c", 1)]


def test_a_sample_leaves_the_others_to_the_other_run() -> None:
    """None of them is gone."""
    assert marks(sampled("abcde", 2)) == [False, True, False, True, False]


def test_a_property_is_tried_with_few_examples_at_the_desk() -> None:
    """Also one that asks for many."""
    tried = []

    @settings(max_examples=300, database=None)
    @given(st.integers())
    def check(number: int) -> None:
        tried.append(number)

    try_fewer_examples(check)
    check()
    assert len(tried) == DESK_EXAMPLES


def test_ci_runs_both() -> None:
    """What the desk leaves out is run where it counts: all of the tests, with their coverage."""
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make (\S+)$", ci, re.MULTILINE) == ["test", "test-all"]
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-all:")[2].partition("\n\n")[0]
    assert "PARLEY_TEST_ALL=1" in recipe
    assert re.search(r" --cov .* tests$", recipe, re.MULTILINE)


@pytest.mark.thorough
def test_what_is_thorough_runs_in_test_all_alone() -> None:
    """The desk deselects it, and tells how many there are of its kind."""
    assert ALL
