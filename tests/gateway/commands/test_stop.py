"""`/stop`: what it says it did."""

import pytest

from gateway.commands.stop import stop_text


@pytest.mark.parametrize(
    ("was_running", "dropped", "text"),
    [
        (False, 0, "There is nothing to stop."),
        (True, 0, "Stopped."),
        (True, 1, "Stopped. One queued message was dropped."),
        (True, 2, "Stopped. 2 queued messages were dropped."),
        (False, 1, "Nothing was running. One queued message was dropped."),
    ],
)
def test_stop_says_what_it_did(was_running: bool, dropped: int, text: str) -> None:
    """The running turn and what waited are told apart."""
    assert stop_text(was_running=was_running, dropped=dropped) == text
