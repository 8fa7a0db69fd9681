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
    """First the desk's run as on a bare machine, with coverage; then the remaining tests."""
    ci = (ROOT / ".ci" / "run").read_text()
    runs = re.findall(r"^(.*)make (test\S*)$", ci, re.MULTILINE)
    assert [command for _, command in runs] == ["test", "test-all"]
    assert "PARLEY_TEST_BARE=1" in runs[0][0]
    assert ci.index("make test") < ci.index("apt-get")
    makefile = (ROOT / "Makefile").read_text()
    recipes = {
        name: makefile.partition(f"\n{name}: setup")[2].partition("\n\n")[0]
        for name in ("test", "test-all")
    }
    assert "$(if $(CI),$(COVERED) $(ASSERTED))" in recipes["test"]
    assert "PARLEY_TEST_ALL=1" in recipes["test-all"]
    assert "$(if $(CI),,$(COVERED)) $(ASSERTED)" in recipes["test-all"]


@pytest.mark.thorough
def test_what_is_thorough_runs_in_test_all_alone() -> None:
    """The desk deselects it, and tells how many there are of its kind."""
    assert ALL
