"""HistoryManager: appended once, shown in parts, never lost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import HistoryManager, estimate_tokens
from agent.engines.rounds import HEADING, PARTS
from agent.tokens import estimate
from tests.support.conversations import conversation_of, faults, plain

Messages = list[dict[str, Any]]


def turn(n: int) -> Messages:
    """Return a round with a call and its result."""
    call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"request {n}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n}: " + "x " * 50},
        {"role": "assistant", "content": f"answer {n}"},
    ]


def filled(rounds: int, **settings: Any) -> HistoryManager:
    """Return a history of so many rounds."""
    history = HistoryManager(**settings)
    for n in range(rounds):
        for message in turn(n):
            history.append(message)
    return history


def rounds_of(history: HistoryManager) -> list[Messages]:
    """Return the rounds of the view; what stands before the first one is in none."""
    shown, starts = history.get_history(), history.find_round_boundaries()
    return [shown[a:b] for a, b in zip(starts, [*starts[1:], len(shown)], strict=True)]


def test_a_history_is_what_was_appended() -> None:
    """The very dicts, in a list of its own each time."""
    history = filled(3)
    shown = history.get_history()
    assert shown == [message for n in range(3) for message in turn(n)] == history.originals()
    shown.clear()
    assert len(history.get_history()) == 12


def test_a_round_is_one_message_of_the_user_and_what_follows() -> None:
    """Its positions, its messages and their number."""
    history = filled(3)
    assert history.find_round_boundaries() == [0, 4, 8]
    assert history.estimate_rounds() == 3
    assert rounds_of(history) == [turn(n) for n in range(3)]


def test_what_stands_before_the_first_round_is_in_none() -> None:
    """The system message."""
    history = HistoryManager()
    history.append({"role": "system", "content": "Be kind."})
    for message in turn(1):
        history.append(message)
    assert rounds_of(history) == [turn(1)]


def test_a_cleared_history_begins_anew() -> None:
    """No message, no token."""
    history = filled(30, min_retain_rounds=2)
    history.compress()
    history.clear()
    assert (history.get_history(), history.originals(), history.estimate()) == ([], [], 0)


def test_the_estimate_is_that_of_the_view_without_counting_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message is counted once, when it is appended."""
    counted: list[int] = []
    real = estimate.message_tokens

    def counting(message: Any, *rest: Any) -> int:
        counted.append(id(message))
        return real(message, *rest)

    monkeypatch.setattr(estimate, "message_tokens", counting)
    history = filled(20)
    assert len(counted) == 80
    assert history.estimate() == history.estimate() > 0
    assert len(counted) == 80
    monkeypatch.undo()
    assert history.estimate() == estimate_tokens(history.get_history())


def test_it_wants_to_be_compressed_above_its_share_of_the_window() -> None:
    """0.8 of it, and not at it."""
    history = filled(10)
    tokens = history.estimate()
    at = filled(10, context_window=int(tokens / 0.8) + 1)
    above = filled(10, context_window=int(tokens / 0.8) - 2)
    assert (at.should_compress(), above.should_compress()) == (False, True)


def test_the_newest_rounds_stay_complete() -> None:
    """And the first request, as `rounds` says; what left is still on record."""
    history = filled(30, min_retain_rounds=4)
    before = history.estimate()
    result = history.compress()
    assert result.level == "extract"
    assert rounds_of(history)[1:] == [turn(n) for n in range(26, 30)]
    assert HEADING in str(history.get_history()[1]["content"])
    assert result.messages == history.get_history()
    assert history.estimate() == result.tokens_after < before == result.tokens_before
    assert len(history.originals()) == 120
    assert [history.originals()[n] for n in result.evicted[:3]] == turn(0)[1:]


def test_few_rounds_are_left_alone() -> None:
    """There is nothing to archive."""
    history = filled(4, min_retain_rounds=4)
    assert history.compress().level == "none"
    assert history.get_history() == history.originals()


def test_a_text_of_ones_own_stands_for_the_older_rounds() -> None:
    """HelloAgents' `compress(summary)`; a later one takes its place."""
    history = filled(6, min_retain_rounds=2)
    assert history.compress("Requests 0 to 3 are done.").summary == (
        f"{HEADING}\n\nRequests 0 to 3 are done."
    )
    for n in range(6, 9):
        for message in turn(n):
            history.append(message)
    result = history.compress(f"{HEADING}\n\nRequests 0 to 6 are done.")
    assert result.summary == f"{HEADING}\n\nRequests 0 to 6 are done."
    assert rounds_of(history)[1:] == [turn(7), turn(8)]
    assert faults(history.get_history()) == []  # type: ignore[arg-type]


def test_a_model_writes_the_five_parts() -> None:
    """With a function that asks one."""
    answer = "\n".join(f"### {part}\nNone." for part in PARTS)
    history = filled(6, min_retain_rounds=2, summarise=lambda _prompt, _most: answer)
    result = history.compress()
    assert (result.level, result.failure) == ("summary", None)
    assert all(part in str(result.summary) for part in PARTS)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"min_retain_rounds": 0}, "greater than or equal to 1"),
        ({"context_window": 0}, "must be positive"),
        ({"compression_threshold": 80}, "at most 1"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], complaint: str) -> None:
    """Not at the first compaction."""
    with pytest.raises(ValueError, match=complaint):
        HistoryManager(**settings)


def test_a_message_without_a_role_is_refused() -> None:
    """And nothing of it is kept."""
    history = filled(1)
    with pytest.raises(ValueError, match="no role"):
        history.append({"content": "who?"})
    assert len(history.originals()) == 4


@given(st.binary(max_size=60))
def test_whatever_is_appended_a_provider_takes_the_view(program: bytes) -> None:
    """Compressed at any moment; the originals are all there."""
    messages = plain(conversation_of(program))
    history = HistoryManager(min_retain_rounds=1, context_window=4_000)
    for message in messages:
        history.append(message)
        if history.should_compress():
            history.compress()
    assert history.originals() == messages
    assert faults(history.get_history()) == []  # type: ignore[arg-type]
