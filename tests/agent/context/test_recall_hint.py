"""What a summary says about recalling more."""

from agent.context.recall_hint import WAYS, recall_text


def test_only_offered_tools_are_told() -> None:
    """In the same words, whatever the order."""
    told = recall_text(["calculate", "read_conversation", "session_search"])
    assert "session_search(query=" in told
    assert "read_conversation(from_seq=N)" in told
    assert "lcm_" not in told
    assert told == recall_text(["session_search", "read_conversation"])
    assert all(name in recall_text(WAYS) for name in WAYS)


def test_without_such_tools_nothing_is_said() -> None:
    """A model must not call what there is not."""
    assert recall_text(["calculate"]) == ""
