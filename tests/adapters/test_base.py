"""What adapters are built with."""

from adapters.base import Recent


def test_the_oldest_entry_goes() -> None:
    """What is noted again is new again."""
    recent: Recent[str, int] = Recent(2)
    for key in ("a", "b", "a", "c"):
        recent[key] = len(recent)
    assert list(recent) == ["a", "c"]
