"""What sentences say: kinds, words and values, in several languages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.statements import (
    Value,
    content_words,
    is_courtesy,
    is_decision,
    is_noise,
    is_row_of_numbers,
    kinds_of,
    looks_like_code,
    quick_words,
    telling,
    values_of,
    words_of,
)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Always answer in metric units.", "instruction"),
        ("Von jetzt an: immer mit Beispiel antworten.", "instruction"),
        ("Réponds désormais en français.", "instruction"),
        ("Пиши всегда по-русски", "instruction"),
        ("以后每次都用简体中文回答", "instruction"),
        ("今後は敬語で答えてください", "instruction"),
        ("앞으로는 짧게 답해 줘", "instruction"),
        ("I'm allergic to peanuts", "preference"),
        ("Prefiero el tren por la mañana", "preference"),
        ("We agreed on the blue one", "decision"),
        ("Wir haben uns für Bonn entschieden", "decision"),
        ("The deadline is close", "plan"),
        ("It was moved to Friday", "change"),
        ("Der Termin wurde verschoben", "change"),
        ("会议改到周五了", "change"),
        ("We booked a table", "plan"),
        ("Thanks a lot", "courtesy"),
    ],
)
def test_kinds(sentence: str, kind: str) -> None:
    """Each is known by words of its language."""
    assert kind in kinds_of(sentence, quick_words(sentence))


@pytest.mark.parametrize(
    "sentence",
    [
        "On 3 May we approved the plan for Bonn.",
        "Before lunch I approved the budget.",
        "Once paid, I picked the hotel.",
        "When we met in May we chose the blue one.",
    ],
)
def test_what_is_decided_at_some_time_is_a_decision(sentence: str) -> None:
    """A month is no doubt, and what comes first is no condition."""
    assert is_decision(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Once approved, I'll need the address.",
        "They may have picked it twice.",
        "I recently booked a flight, and I need help.",
        "My seat is confirmed.",
        "Is it decided?",
        "It might not be approved before I have picked.",
    ],
)
def test_what_is_told_beside_is_no_decision(sentence: str) -> None:
    """A condition, a doubt, how things are; what was decided for good is one."""
    assert not is_decision(sentence)
    assert is_decision("When we met in May we chose the blue one, and I booked the flight.")


def test_words_within_others_are_no_cues() -> None:
    """A cue is a word or several, never a part of one."""
    text = "The aneverland altogether"
    assert kinds_of(text, quick_words(text)) == set()


def test_words() -> None:
    """What is joined by points or dashes is one; scripts without spaces are cut into pairs."""
    assert words_of("Pay 2,400 to J.P. well-known") == ["pay", "2,400", "to", "j.p", "well-known"]
    assert words_of("在北京x开") == ["在北", "北京", "x", "开"]
    assert content_words("The cat is on my Straße") == ["cat", "strasse"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Pay $2,400.50 now", [("$2,400.50", "usd")]),
        ("The rent is 950 euros", [("950 euros", "eur")]),
        ("at 9:40 am on March 29, 2024", [("9:40 am", "time"), ("March 29, 2024", "date")]),
        ("am 3. Mai um 14:30 Uhr", [("3. Mai", "date"), ("14:30", "time")]),
        ("el 5 de marzo de 2025", [("5 de marzo de 2025", "date")]),
        ("2026年3月4日 9时", [("2026年3月4日", "date"), ("9时", "time")]),
        ("Python 3.11.2 has 12% more", [("3.11.2", "version"), ("12%", "%")]),
        ("three of 25 kg", [("25 kg", "kg")]),
        ("lena_1905 and harbour12", []),
        ("no number at all", []),
    ],
)
def test_values(sentence: str, expected: list[tuple[str, str]]) -> None:
    """Amounts, dates and times with their units."""
    assert [(each.text, each.unit) for each in values_of(sentence)] == expected


def test_the_subject_of_a_value() -> None:
    """The content words beside it, no numbers."""
    assert values_of("The budget for Lisbon is 2,400 euros") == [
        Value("2,400 euros", "eur", frozenset({"budget", "lisbon", "euros"}))
    ]


def test_noise() -> None:
    """Encoded bytes, hashes and symbols are no words."""
    assert is_noise("iVBORw0KGgoAAAANSUhEUgAAAAUA")
    assert is_noise("{[(;;==//)]} ++")
    assert is_noise("x" * 400)
    assert is_noise('<html xmlns="http://www.w3.org/1999/xhtml">')
    assert not is_noise("\u6f22\u5b57" * 90)
    assert not is_noise("We pay 2,400 euros (in May).")


def test_rows_of_numbers_and_code() -> None:
    """They are told from what a person writes, who also names numbers, paths and commands."""
    assert is_row_of_numbers("100 669 0 652 100 17 7037 183 --:--:-- --:--:-- 7516")
    for each in ("It costs 3 x 20 = 60, and 5 more.", "Call 0151 23 45 67 89", "4 5 6"):
        assert not is_row_of_numbers(each), each
    assert looks_like_code("this.set({ level: [x], style: color(2) });")
    assert looks_like_code("<br />irc:x:39:39:ircd:/var/run/ircd:/usr/sbin/nologin")
    for each in ("Use `npm run check`, then docs/theme.md", "We (all 4 of us) pay $45.50 - or not"):
        assert not looks_like_code(each), each


def test_politeness() -> None:
    """Also in other languages; what says more than that is none."""
    polite = ("Talk soon.", "Take care!", "Oh, I'm sorry about that.", "Gute Nacht!")
    assert all(is_courtesy(each, quick_words(each)) for each in polite)
    for each in ("See you at 9:30", "Sorry about that, I never eat fish.", "My train leaves soon."):
        assert not is_courtesy(each, quick_words(each)), each


def test_what_tells_more() -> None:
    """Names and numbers before words, words before courtesies; noise tells nothing."""
    told = [
        telling(each)
        for each in ("Anna's train leaves at 9:40 from Bonn", "The train leaves", "Thanks", "")
    ]
    assert told == sorted(told, reverse=True)
    assert len(set(told)) == len(told)


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    """Whatever the characters, the same answer each time."""
    assert kinds_of(text, quick_words(text)) == kinds_of(text, quick_words(text))
    assert telling(text) >= 0
    assert all(value.text in text for value in values_of(text))
    assert all(word in text.casefold().replace("\u2019", "'") for word in words_of(text))
