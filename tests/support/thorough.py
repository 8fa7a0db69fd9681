"""How much is tried: a sample at the desk (`make test`), everything by `make test-all`.

`PARLEY_TEST_ALL=1` tries everything, `PARLEY_TEST_DEEP=1` still more of what is drawn at random,
and draws others in each run.
A test, or one value of its parameters, that waits for `make test-all` has the mark `thorough`.
"""

import os
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

DEEP = os.environ.get("PARLEY_TEST_DEEP") == "1"
ALL = DEEP or os.environ.get("PARLEY_TEST_ALL") == "1"
DESK_EXAMPLES = 15
"""Most examples of a property at the desk."""

WAIT_S = float(os.environ.get("PARLEY_TEST_WAIT_S", "120"))
"""Longest wait for what should happen at once, on the slowest machine. Tests of mutants wait less:
what they wait for does not come."""

T = TypeVar("T")


def amount(desk: int, everything: int, deep: int | None = None) -> int:
    """Return how much is tried in this run.

    Args:
        desk: By `make test`.
        everything: By `make test-all`.
        deep: By `make test-deep`; None for as much as `make test-all` does.
    """
    if DEEP and deep is not None:
        return deep
    return everything if ALL else desk


def thorough(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as pytest.param has it
    """Return values of parameters that only `make test-all` tries."""
    return pytest.param(*values, marks=pytest.mark.thorough, id=id)


def deep(*values: Any) -> list[Any]:
    """Return the values of parameters that only `make test-deep` tries: CI has no time for them."""
    return list(values) if DEEP else []


def sampled(values: Sequence[T], every: int, offset: int = 0) -> list[Any]:
    """Return the values of a parameter; of so many the desk tries one."""
    return [value if n % every == offset else thorough(value) for n, value in enumerate(values)]


def products(*axes: Sequence[Any]) -> list[Any]:
    """Return all products of some parameters; the desk tries each value of each once, or a few.

    It takes the diagonals: as many products as the longest axis has values.
    """
    longest = max(axes, key=len)
    found: list[Any] = []
    for places in product(*(range(len(axis)) for axis in axes)):
        row = places[axes.index(longest)]
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        is_diagonal = all(
            place == row % len(axis) for axis, place in zip(axes, places, strict=True)
        )
        found.append(pytest.param(*values) if is_diagonal else thorough(*values))
    return found


def try_fewer_examples(test: Callable[..., Any]) -> None:
    """Cap the examples of a property, whatever its own settings say."""
    own = test._hypothesis_internal_use_settings
    if own.max_examples > DESK_EXAMPLES:
        capped = settings(own, max_examples=DESK_EXAMPLES)
        test._hypothesis_internal_use_settings = capped


def run_machine(machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Run a state machine for so many examples of 30 steps; at the desk for fewer."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=amount(min(examples, DESK_EXAMPLES), examples),
            stateful_step_count=30,
            database=None,
            # Shrinking takes minutes; the steps of a failure are printed as they were found.
            phases=(Phase.generate,),
        ),
    )
