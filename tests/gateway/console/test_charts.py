"""Where the bars, lines and boxes of charts stand."""

from gateway.console import charts
from gateway.console.wording import number


def test_parts_of_a_bar_stand_upon_each_other() -> None:
    """The highest bar fills the plane; nothing is drawn for nothing."""
    drawn = charts.bars("Turns", ["answered", "failed"], [("a", [6, 2]), ("b", [0, 4])], number)
    low, high, other = drawn.boxes
    assert (low.y, low.height, high.y, high.height) == (30.0, 90.0, 0.0, 30.0)
    assert (other.y, other.height, other.kind, other.text) == (60.0, 60.0, 1, "b: 4 failed")
    assert (drawn.top, drawn.rows) == ("8", [("a", ["6", "2"]), ("b", ["0", "4"])])
    assert drawn.summary == "2 bars, together 12; the highest is 8."


def test_a_chart_of_nothing_is_empty() -> None:
    """Without a division by zero."""
    assert charts.bars("Turns", ["n"], [("a", [0])], number).boxes == []
    assert charts.bars("Turns", [], [], number).rows == []


def test_small_series_are_one() -> None:
    """The largest first; what is left is the rest of the sum."""
    names, rows = charts.stacked([("d", {"a": 1, "b": 5, "c": 2, "e": 3, "f": 0.5})])
    assert (names, rows) == (["b", "e", "c", "other"], [("d", [5, 3, 2, 1.5])])
    assert charts.stacked([("d", {"a": 1})]) == (["a"], [("d", [1])])
    # In the order that is given a name has the same colour in every chart.
    assert charts.stacked([("d", {"a": 1, "b": 5})], ["a", "z"])[0] == ["a", "b"]


def test_a_line_holds_its_value_until_the_next_one() -> None:
    """With its levels, and marks before values."""
    drawn = charts.steps("Prompt", [10, 20], [("window", 40.0, "window 40")], [(1, "cut")], number)
    assert drawn.line == "M0.0 90.0H300.0V60.0H600.0"
    assert [(level.y, level.kind) for level in drawn.levels] == [(0.0, "window")]
    assert [(mark.x, mark.text) for mark in drawn.marks] == [(300.0, "cut")]
