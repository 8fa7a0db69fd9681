"""What a replay shows on the terminal."""

from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from agent.models.catalog import ModelFacts
from gateway.replay.player import MOST_SHOWN, Replayed, prices_text, show
from tests.gateway.replays import FACTS, bill, compaction, replayed

UNPRICED = replace(FACTS, prices=None)


def shown(results: Iterable[Replayed], facts: ModelFacts = FACTS) -> list[str]:
    """Return what is printed, by line."""
    written = StringIO()
    show([*results], facts, Console(file=written, width=400))
    return written.getvalue().splitlines()


def cells_of(lines: list[str], name: str) -> list[list[str]]:
    """Return the cells of the lines that begin with a name."""
    return [line.split()[1:] for line in lines if line.startswith(name)]


def test_a_conversation_is_one_line() -> None:
    """With what it took, and what went wrong."""
    found = cells_of(shown([replayed(problem="something else")]), "talk")[0]
    assert found == ["6", "2", "1", "300", "20", "0", "1.2", "something", "else"]


def test_compactions_are_listed() -> None:
    """Counted in the line of their conversation, and each in a table of their own."""
    rows = [compaction(9_500, 101_000), compaction(tokens_after_reported=120)]
    line, *listed = cells_of(shown([replayed(compactions=rows)]), "talk")[:3]
    assert line[5] == "2"
    assert listed[0][:4] == ["9,500", "101,000", "-", "30"]
    told = ["500", "100", "120", "30", "→", "12", "7", "threshold", "extract", "extractor"]
    assert listed[1] == told


def test_a_bill_tells_tokens_shares_and_money() -> None:
    """Both kinds of writes are counted together; the price tells them apart."""
    one = bill(cache_read_tokens=900, input_tokens=100)
    assert cells_of(shown([replayed(bill=one)]), "talk")[1] == [
        *["2", "1,000", "900", "0", "100", "0.900", "1.900", "~$0.00019"]
    ]
    hour = bill(cache_write_1h_tokens=1_000_000, cache_write_5m_tokens=1_000_000)
    cells = cells_of(shown([replayed(bill=hour)]), "talk")[1]
    assert (cells[3], cells[-2:]) == ("2,000,000", ["16.250", "~$3.25"])


def test_bills_are_summed_over_conversations() -> None:
    """The sum stands below them; alone where they are many."""
    results = [replayed(f"talk{n}") for n in range(MOST_SHOWN + 1)]
    few, many = shown(results[:2]), shown(results)
    assert cells_of(few, "all conversations")[0][2] == "200"
    assert len(cells_of(few, "talk0 ")) == 2
    assert cells_of(many, "all conversations")[0][2] == "2,100"
    assert len(cells_of(many, "talk0 ")) == 1


def test_unknown_prices_are_told() -> None:
    """Never as 0; the usual ratios of prices hold."""
    lines = shown([replayed(bill=bill(cache_write_5m_tokens=100))], UNPRICED)
    assert "claude-x: unknown price" in lines
    assert cells_of(lines, "talk")[1][-3:] == ["12.500", "unknown", "price"]


def test_prices_are_told_with_their_source() -> None:
    """And when that was read."""
    assert prices_text(FACTS) == (
        "claude-x, $ per million tokens: input 1, cache write 5m 1.25, cache write 1h 2,"
        " cache read 0.1, output 5; source: a price list (2026)"
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"summary_model": "m1"}, "m1"), ({}, "extractor"), ({"retained_share": None}, "-")],
)
def test_the_writer_of_a_summary_is_told(fields: dict[str, Any], told: str) -> None:
    """A mere prune has no summary."""
    lines = shown([replayed(compactions=[compaction(**fields)])])
    assert cells_of(lines, "talk")[1][-1] == told
