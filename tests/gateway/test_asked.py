"""What a turn asks: its messages, and what was said or changed meanwhile."""

from typing import Any

from gateway.asked import MAX_NOTE_CHARS, MAX_NOTES_CHARS, with_notes
from gateway.storage.inbox import Entry


def note(seq: int, text: str, kind: Any = "overheard", name: str = "Una") -> Entry:
    return Entry(1, seq, kind, "u1", name, text, None, float(seq))


def test_a_question_alone_stays_as_it_is() -> None:
    """There is no frame around what nothing precedes."""
    assert with_notes("Well?", []) == "Well?"


def test_what_was_said_to_others_comes_first() -> None:
    """In order, with names, and apart from what is asked."""
    notes = [note(1, "We meet at 8."), note(2, "At 9!", name="Bo")]
    said = "[Said here since your last answer, not to you:]\nUna: We meet at 8.\nBo: At 9!"
    assert with_notes("When?", notes) == f"{said}\n\n[To you:]\nWhen?"


def test_a_changed_message_is_told_as_it_reads_now() -> None:
    """Also beside what was overheard."""
    notes = [note(1, "hm"), note(2, "Berlin, not Bonn", kind="edit")]
    assert with_notes("So?", notes) == (
        "[Said here since your last answer, not to you:]\nUna: hm\n\n"
        "[Changed since; the message now reads:]\nUna: Berlin, not Bonn\n\n[To you:]\nSo?"
    )


def test_a_long_note_is_shortened() -> None:
    """Its beginning is what is told."""
    told = with_notes("So?", [note(1, "x" * 10_000)])
    assert "x" * (MAX_NOTE_CHARS - 1) + "…" in told
    assert "x" * MAX_NOTE_CHARS not in told


def test_of_too_many_notes_the_newest_are_told() -> None:
    """A mark stands for what is left out."""
    told = with_notes("So?", [note(n, f"{n} " + "x" * 1000) for n in range(100)])
    assert len(told) < MAX_NOTES_CHARS + 200
    assert "Una: 99 x" in told
    assert "Una: 0 x" not in told
    assert "]\n…\nUna: " in told
