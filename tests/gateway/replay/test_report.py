"""What a replay shows on the terminal."""

from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gateway.replay.costs import Tariff
from gateway.replay.report import MOST_SHOWN, Replayed, show, summarised_by
from tests.gateway.replays import (
    FACTS,
    TARIFF,
    bill,
    billed,
    replayed,
    shrinking,
    timeline_of,
)


def shown(results: Iterable[Replayed], tariff: Tariff = TARIFF) -> list[str]:
    """Return what is printed, by line."""
    written = StringIO()
    show([*results], tariff, Console(file=written, width=400))
    return written.getvalue().splitlines()


def cells_of(lines: list[str], name: str) -> list[list[str]]:
    """Return the cells of the lines that begin with a name."""
    return [line.split()[1:] for line in lines if line.startswith(name)]


def test_a_conversation_is_one_line() -> None:
    """With what it took, and what went wrong."""
    found = cells_of(shown([replayed(problem="something else")]), "talk")[0]
    assert found == ["6", "2", "1", "300", "20", "0", "1.2", "something", "else"]


def test_compactions_are_listed() -> None:
    """Each with its tokens, in the line of its conversation and in a table of their own."""
    compacted = [shrinking(1, 9_500, 101_000), shrinking(2, tokens_after_reported=120)]
    result = replayed(timeline=timeline_of(100, 200, 300, compactions=compacted))
    line, *listed = cells_of(shown([result]), "talk")[:3]
    assert line[5:8] == ["2:", "9.5k→101k,", "500→120"]
    assert listed[0][:5] == ["2", "9,500", "101,000", "-", "30"]
    assert listed[1] == [
        *["3", "500", "100", "120", "30", "→", "12", "7", "threshold", "extract", "extractor"]
    ]


def test_the_bills_stand_side_by_side() -> None:
    """Both placings of the breakpoints, what was played first; tokens, shares and money."""
    bills = (bill("anchored", cache_read_tokens=900, input_tokens=100), bill("system_and_3"))
    _, first, second = cells_of(shown([replayed(billed=billed(bills=bills))]), "talk")
    assert first == [
        *[
            "anchored",
            "2",
            "1,000",
            "900",
            "0",
            "100",
            "0.900",
            "1.900",
            "~$0.00019",
            "~$0",
            "~$0.00019",
        ]
    ]
    assert second[0] == "system_and_3"


def test_bills_are_summed_over_conversations() -> None:
    """The sum stands below them; alone where they are many."""
    results = [
        replayed(f"talk{n}", billed=billed(bills=[bill(cache_read_tokens=100)]))
        for n in range(MOST_SHOWN + 1)
    ]
    few, many = shown(results[:2]), shown(results)
    assert cells_of(few, "all conversations")[0][3] == "200"
    assert len(cells_of(few, "talk0 ")) == 2
    assert cells_of(many, "all conversations")[0][3] == "2,100"
    assert len(cells_of(many, "talk0 ")) == 1


def test_unknown_prices_are_told() -> None:
    """Never as 0."""
    lines = shown([replayed()], replace(TARIFF, facts=replace(FACTS, prices=None)))
    assert "claude-x: unknown price" in lines
    assert cells_of(lines, "talk")[1][-2:] == ["unknown", "price"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"summary_model": "m1"}, "m1"),
        ({}, "extractor"),
        ({"failure": "timeout"}, "extractor (timeout)"),
        ({"retained_share": None}, "-"),
    ],
)
def test_the_writer_of_a_summary_is_told(fields: dict[str, Any], told: str) -> None:
    """And why it was not the model that was asked; a mere prune has no summary."""
    assert summarised_by(shrinking(1, **fields).row) == told
