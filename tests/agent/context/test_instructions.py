"""Standing instructions: what the rules find, by sentences that a reader has marked."""

import pytest

from agent.context.instructions import (
    EDGE_CHARS,
    MOST_CHARS,
    MOST_OF_ONE,
    are_alike,
    instructions_in,
    subject_of,
)
from tests.bench.standing import MarkedSentence, marked, messages, scored, scored_messages

PROBES = marked()
LANGUAGES = sorted({each.language for each in PROBES})


def found(text: str) -> list[str]:
    """Return the sentences that the rules find in a message."""
    return [each.text for each in instructions_in(text)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_a_reader_marks_is_found(language: str) -> None:
    """Nine of ten, and of what is found nine of ten were marked."""
    of_it = [each for each in PROBES if each.language == language]
    score = scored(of_it)
    assert score.precision >= 0.9, score.wrong
    assert score.recall >= 0.9, score.missed


def test_there_are_enough_probes_of_both_kinds() -> None:
    """In seven languages at least."""
    assert len(PROBES) >= 150
    assert {"en", "de", "fr", "es", "ru", "zh", "ja"} <= set(LANGUAGES)
    assert 0.3 < sum(each.stands for each in PROBES) / len(PROBES) < 0.7


def test_what_a_reader_marks_in_whole_messages() -> None:
    """Among what else people write."""
    score = scored_messages(messages())
    assert score.precision >= 0.9, score.wrong
    assert score.recall >= 0.9, score.missed


def test_sentences_are_found_among_others() -> None:
    """With the words as they were written, on one line, in order, each once."""
    text = "Hi! I am new. Always answer in French.\n- never use emojis\n\n- never use emojis"
    assert found(text) == ["Always answer in French.", "never use emojis"]


@pytest.mark.parametrize(
    "text",
    [
        "> Always answer in French.",
        "```\nAlways answer in French.\n```",
        "She wrote: “From now on, always answer in French.”",
        "What does `always answer in French` do?",
        "",
        "…",
    ],
)
def test_words_of_others_instruct_nobody(text: str) -> None:
    """Quotes, code, and what is no sentence."""
    assert found(text) == []


def test_a_long_text_is_read_at_both_ends() -> None:
    """Between them stands what was pasted."""
    order, filler = "Always answer in French.", "Lorem ipsum dolor sit amet. " * 300
    assert len(filler) > MOST_CHARS
    assert found(f"{order}\n{filler}") == [order]
    assert found(f"{filler}\n{order}") == [order]
    middle = f"{filler[:EDGE_CHARS]}{filler}\n{order}\n{filler}"
    assert found(middle) == []


def test_a_document_of_orders_is_cut() -> None:
    """Nobody asks for so much at once."""
    orders = "\n".join(f"- Always use tool number {n}." for n in range(30))
    assert len(found(orders)) == MOST_OF_ONE


@pytest.mark.parametrize(
    ("sentence", "subject"),
    [
        ("Call me Jo.", "name"),
        ("Nenn mich bitte Jo.", "name"),
        ("Answer in German from now on.", "language"),
        ("Antworte ab jetzt auf Englisch.", "language"),
        ("以后请用中文回答。", "language"),
        ("No emojis, please.", "emoji"),
        ("When I write in French, answer in French.", ""),
        ("Always format code with comments.", ""),
    ],
)
def test_what_an_instruction_is_about(sentence: str, subject: str) -> None:
    """A newer one about it ends it; what holds in some cases alone ends nothing."""
    assert subject_of(sentence) == subject


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Always use tabs.", "always use tabs, please", True),
        ("Always use tabs.", "Always cite your sources.", False),
        ("请总是注明来源。", "请总是注明来源", True),
        ("", "", False),
    ],
)
def test_the_same_said_again(one: str, other: str, *, alike: bool) -> None:
    """By the share of their common words."""
    assert are_alike(one, other) is alike


def test_a_sentence_is_marked_alike_wherever_it_stands() -> None:
    """The probe, between two sentences that say nothing."""
    lost = [each for each in PROBES if each.stands and not _is_found_between(each)]
    assert len(lost) <= len(PROBES) // 50, lost


def _is_found_between(probe: MarkedSentence) -> bool:
    return bool(found(f"Hello there.\n{probe.text}\nThanks."))
