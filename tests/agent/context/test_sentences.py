"""Sentences of texts in any language: none is torn, and each stands in its text as it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.context import sentences as module
from agent.context.sentences import GAP, MAX_CHARS, Unit, sentences, shortened, units
from agent.tokens.estimate import estimate_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rained. We stayed! Why? Hm…", ["It rained.", "We stayed!", "Why?", "Hm…"]),
        ("I saw Dr. Smith, e.g. today. He left.", ["I saw Dr. Smith, e.g. today.", "He left."]),
        ("J. R. Tolkien wrote it. So I read.", ["J. R. Tolkien wrote it.", "So I read."]),
        ("Ask the U.S. Army at 9 a.m. Then call.", ["Ask the U.S. Army at 9 a.m.", "Then call."]),
        ("It costs $2,400.50. See v2.3.1.", ["It costs $2,400.50.", "See v2.3.1."]),
        ("Go to https://a.b/c?d=1. Look at src/x.py. Done.", 3),
        ('"Really?" she said. "Yes." He left.', ['"Really?" she said.', '"Yes."', "He left."]),
        ("Wait... what? No… not that.", ["Wait... what?", "No… not that."]),
        ("It failed.I'll look into it.Now asyncio.Queue and `call!Instead` are in a.The b.", 3),
        ("no capitals. approx. five. fine", ["no capitals.", "approx. five.", "fine"]),
        ("Am 3. Mai z.B. in Bonn. Der 2. Versuch. Nr. 5 lebt.", 3),
        ("El Sr. Pérez llegó. ¿Cuándo? ¡Hoy!", ["El Sr. Pérez llegó.", "¿Cuándo?", "¡Hoy!"]),
        ("Он живёт на ул. Ленина. Позвони ему.", ["Он живёт на ул. Ленина.", "Позвони ему."]),
        ("我们明天开会。你来吗？好的！", ["我们明天开会。", "你来吗？", "好的！"]),  # noqa: RUF001 - Chinese
        ("「はい。」と言った。次へ", ["「はい。」と言った。", "次へ"]),
        ("हम कल मिलेंगे। ठीक है॥", ["हम कल मिलेंगे।", "ठीक है॥"]),
        ("كيف حالك؟ أنا بخير. شكرا", ["كيف حالك؟", "أنا بخير.", "شكرا"]),
        ("One … two · three", ["One", "two", "three"]),
        ("", []),
        ("--- !!! ***", []),
    ],
)  # fmt: skip
def test_where_sentences_end(text: str, expected: list[str] | int) -> None:
    """In several languages: abbreviations, numbers, quotes and addresses end none."""
    found = sentences(text)
    assert (len(found) if isinstance(expected, int) else found) == expected


def test_wrapped_lines_are_one_sentence() -> None:
    """Mail programs break lines where they are full; people break short ones."""
    wrapped = "The parcel was left at the neighbour's house, which is the\nblue one on the corner."
    assert sentences(f"{wrapped}\nCall me\nbye") == [wrapped, "Call me", "bye"]


def test_lists_headings_tables_and_code() -> None:
    """Each line for itself, without the mark in front; rules between rows are left out."""
    text = "# Plan\nSteps:\n- first. More\n1. Second thing\n| a | b |\n|---|---|\n> said"
    text += "\n```py\nx = 1\n```"
    assert units(text) == [
        Unit("Plan", "heading"),
        Unit("Steps:", "heading"),
        Unit("first.", "item"),
        Unit("More", "item"),
        Unit("1. Second thing", "item"),
        Unit("| a | b |", "row"),
        Unit("said", "prose"),
        Unit("x = 1", "code"),
    ]
    assert "x = 1" not in sentences(text)


def test_a_fence_that_is_never_closed() -> None:
    """What follows it is code."""
    assert [unit.form for unit in units("Look:\n~~~\na b\n\nc. D")] == ["heading", "code", "code"]


@pytest.mark.parametrize(
    "text", ["word " * 400, "a, " * 400, "b; c " * 300, "x" * 3000, "漢字" * 900]
)
def test_what_has_no_end_is_cut(text: str) -> None:
    """No unit is longer than a sentence may be, and nothing is lost."""
    found = sentences(text)
    assert all(len(each) <= MAX_CHARS for each in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_words_are_not_broken_while_there_is_a_blank() -> None:
    """Also where the only one stands early."""
    assert sentences(f"Here it is: {'x' * 900}")[0] == "Here it is:"


def test_an_accent_stays_with_its_letter() -> None:
    """Where even letters have to be parted."""
    found = sentences("e\u0301" * 500)
    assert not any(each.startswith("\u0301") for each in found)


NOTES = """\
## Active Task
Book a room. It is for 12 people.
### Done
1. read a.py
2. ran the tests:
   - test_a failed
3. deployed
## Critical Context
- port 5433
```sh
make all
make test
```
- user anna"""


def test_the_longest_sections_give_way_first() -> None:
    """In each the last points; of a large point its end, code as a whole. A short text stays."""
    assert shortened(NOTES, 10_000) == NOTES
    assert shortened(NOTES, 80).splitlines() == [
        *("## Active Task", "Book a room. It is for 12 people."),
        *("### Done", "1. read a.py", f"2. ran the tests: {GAP}", "3. deployed"),
        *("## Critical Context", "- port 5433", GAP),
    ]


def test_of_what_was_done_the_oldest_goes_first() -> None:
    """What came last is what is gone on from."""
    done = "\n".join(["### Done", *(f"{n}. read file{n}.py" for n in range(1, 31))])
    first, gap, *kept, last = shortened(done, 60).splitlines()
    assert (first, gap, last) == ("### Done", GAP, "30. read file30.py")
    assert 3 < len(kept) < 15


def test_a_heading_that_comes_again_goes_on() -> None:
    """As where a model puts summaries one behind the other instead of merging them."""
    text = "## Goal\nMove.\n### Done\n1. a\n## Goal\nShip.\n### Done\n2. b"
    expected = ["## Goal", "Move.", "Ship.", "### Done", "1. a", "2. b"]
    assert shortened(text, 1_000).splitlines() == expected


def test_a_point_of_thousands_of_sentences_is_weighed_some_hundred_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each of them took seconds of a processor."""
    weighed = list[int]()

    def weigh(text: str) -> int:
        weighed.append(len(text))
        return estimate_tokens(text)

    monkeypatch.setattr(module, "estimate_tokens", weigh)
    text = shortened("It is so. And more of it. " * 2_000, 1_000)
    assert 900 < estimate_tokens(text) <= 1_000
    assert sum(weighed) < 100 * 52_000


def test_every_section_keeps_a_sentence() -> None:
    """Also where that is more than there is room for."""
    assert shortened(NOTES, 1).splitlines() == [
        *("## Active Task", f"Book a room. {GAP}", "### Done", GAP, "3. deployed"),
        *("## Critical Context", "- port 5433", GAP),
    ]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(NOTES.splitlines()), max_size=30), st.integers(1, 300))
def test_nothing_is_added_but_the_sign_of_a_gap(lines: list[str], most: int) -> None:
    """What is there stood there; where nothing has to go, all of it is there."""
    cut = shortened("\n".join(lines), most).replace(f" {GAP}", "").splitlines()
    assert all(any(line in each for each in [*lines, GAP]) for line in cut)
    assert sum(map(estimate_tokens, lines)) + len(lines) > most or {*cut} == {*lines}


texts = st.one_of(
    st.text(max_size=400),
    st.text("aB1.!?…。 \n-*#|`>\"'(),;:éя漢", max_size=600),
    st.lists(
        st.sampled_from(["Dr.", "it", "Was.", "3.", "…", "\n", "- ", "```", "好。"]), max_size=40
    ).map(" ".join),
)


@settings(max_examples=400)
@given(texts)
def test_each_stands_in_its_text(text: str) -> None:
    """In order, up to white space, and cut again each is one unit."""
    plain, at = " ".join(text.split()), 0
    for unit in units(text):
        shown = " ".join(unit.text.split())
        at = plain.index(shown, at) + len(shown)
        assert 0 < len(unit.text) <= MAX_CHARS
        assert any(map(str.isalnum, unit.text))
