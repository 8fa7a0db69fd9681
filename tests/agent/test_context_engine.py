"""The numbers that every context engine works with."""

import pytest

from agent.context_engine import Limits


def test_all_limits_are_shares_of_the_window() -> None:
    """Compaction at half of it, a fifth of that stays verbatim, three fifths are aimed at."""
    limits = Limits(200_000)
    assert limits.threshold_tokens == 100_000
    assert limits.tail_tokens == 20_000
    assert limits.target_tokens == 60_000
    assert limits.guard_tokens == 170_000
    assert limits.max_summary_tokens == 10_000


def test_a_summary_has_a_most_however_large_the_window_is() -> None:
    """Nobody reads more of it."""
    assert Limits(1_000_000).max_summary_tokens == 12_000


@pytest.mark.parametrize(("window", "threshold"), [(150_000, 100_000), (100_000, 85_000)])
def test_a_fallback_is_compacted_for_at_the_same_size(window: int, threshold: int) -> None:
    """Or at 85 % of its window, where that is less."""
    within = Limits(200_000).within(window)
    assert within.context_length == window
    assert within.threshold_tokens == pytest.approx(threshold, abs=1)
