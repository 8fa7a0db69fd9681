"""Markdown to payloads: formatting, limits, and that nothing is lost."""

from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.rendering.chunks import is_blank
from adapters.rendering.markdown import MAX_MARKDOWN_CHARS
from adapters.rendering.styled import styled
from adapters.telegram.render import CONVENTIONS, MAX_ENTITIES, MAX_TEXT_UNITS, preview_text, render


def parts(markdown: str) -> list[dict[str, Any]]:
    return [orjson.loads(payload) for payload in render(markdown)]


def only(markdown: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of the one payload and its entities as (type, covered text)."""
    (part,) = parts(markdown)
    return part["text"], [(e["type"], covered(part["text"], e)) for e in part["entities"]]


def covered(text: str, entity: dict[str, Any]) -> str:
    units = text.encode("utf-16-le")
    start = 2 * entity["offset"]
    return units[start : start + 2 * entity["length"]].decode("utf-16-le")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("plain", "plain", []),
        ("**b** *i* ~~s~~ `c`", "b i s c", ["bold b", "italic i", "strikethrough s", "code c"]),
        ("# Head *x*", "Head x", ["bold Head x", "italic x"]),
        ("a\nb  \nc", "a\nb\nc", []),
        ("one\n\ntwo", "one\n\ntwo", []),
        ("```py\nx = 1\n```", "x = 1", ["pre x = 1"]),
        ("    indented", "indented", ["pre indented"]),
        ("> q\n> r", "q\nr", ["blockquote q\nr"]),
        ("> a\n>> b", "a\n\n> b", ["blockquote a\n\n> b"]),
        ("> `c`\n>\n> ```\n> p\n> ```", "c\n\np", ["blockquote c\n\np", "code c", "pre p"]),
        ("- a\n- b\n  - c", "• a\n• b\n  • c", []),
        ("3. x\n4. y\n   z", "3. x\n4. y\n   z", []),
        ("- a\n\n- b", "• a\n\n• b", []),
        ("- ```\n  p\n  ```", "• \np", ["pre p"]),
        ("- a\n\n  b", "• a\n\n  b", []),
        ("a\n\n---\n\nb", "a\n\n──────────\n\nb", []),
        ("[t](https://e.org)", "t", ["text_link t"]),
        ("[`c` **b**](https://e.org)", "c b", ["text_link c b", "bold b"]),
        ("[t](page.md)", "t (page.md)", []),
        ("[](https://e.org)", "https://e.org", []),
        ("<https://e.org>", "https://e.org", []),
        ("<a@e.org>", "a@e.org", []),
        ("![alt](https://e.org/p.png)", "alt", ["text_link alt"]),
        ("[![](https://e.org/p.png)](https://e.org)", "https://e.org", []),
        ("**a `c` b**", "a c b", ["bold a ", "code c", "bold  b"]),
        ("<b>x</b> &amp; \\*", "<b>x</b> & *", []),
        ("😀 **b**", "😀 b", ["bold b"]),
    ],
)
def test_formatting(markdown: str, text: str, entities: list[str]) -> None:
    """Each construct of markdown has its text and its entities."""
    shown, marks = only(markdown)
    assert shown == text
    assert [f"{kind} {span}" for kind, span in marks] == entities


def test_a_code_block_keeps_its_language() -> None:
    """The fence's first word becomes the language of the pre entity."""
    (part,) = parts("```c++ title=x\nx\n```")
    assert part["entities"] == [{"type": "pre", "offset": 0, "length": 1, "language": "c++"}]


@pytest.mark.parametrize("target", ["tg://user?id=7", "tg://resolve?domain=x", "ton://x"])
def test_a_link_mentions_nobody(target: str) -> None:
    """Telegram makes a mention of a link to a person."""
    assert only(f"[Ann]({target})")[1] == []


def test_a_link_keeps_its_target() -> None:
    """The target of a link is in its entity."""
    (part,) = parts("😀 [t](https://e.org/a_b)")
    entity = {"type": "text_link", "offset": 3, "length": 1, "url": "https://e.org/a_b"}
    assert part["entities"] == [entity]


def test_a_table_is_an_aligned_block() -> None:
    """Columns line up, wide characters counted double; links are spelt out."""
    text, entities = only("| a | b |\n|---|---|\n| 中 | x |\n| long | [t](https://e.org) |")
    assert text.splitlines() == [
        "a    │ b",
        "─────┼──────────────────",
        "中   │ x",
        "long │ t (https://e.org)",
    ]
    assert entities == [("pre", text)]


def test_a_very_wide_cell_does_not_blow_up_the_others() -> None:
    """Padding stops at 40 columns."""
    text, _ = only("| a | b |\n|---|---|\n" + "| x | y |\n" * 5 + f"| {'w' * 300} | z |")
    assert len(text) < 900


HEADINGS = "| Name | Where it is | What it costs |\n|---|---|---|\n"


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (
            "| Hotel A | in the old town | 120 EUR a night |",
            "• Name: Hotel A\n  Where it is: in the old town\n  What it costs: 120 EUR a night",
        ),
        ("| Hotel A | | 120 EUR |", "Name "),
        (
            "| | by the sea | |\n| B | far from all I know | 2 |",
            "• Where it is: by the sea\n•",
        ),
        ("| 中中中中 | 中中中中中中中中 | x |", "• Name: 中中中中\n"),
        (
            "| a | [t](https://example.org) | 1 |",
            "• Name: a\n  Where it is: t (https://example.org)",
        ),
        ("| a | b |", "Name "),
        (f"| {'w' * 200} | b | c |", f"• Name: {'w' * 200}\n"),
        ("| a | `x` **bold, long words** | 1 |", "• Name: a\n  Where it is: x bold, long"),
        ("| a | \\| and more of these words | 1 |", "• Name: a\n  Where it is: | and more of"),
        ("", "Name "),
    ],
)
def test_a_wide_table_is_a_list_of_records(rows: str, shown: str) -> None:
    """Beyond 40 columns; no value and no heading is lost."""
    text, entities = only(HEADINGS + rows)
    assert text.startswith(shown)
    assert ("pre" in dict(entities)) == (not text.startswith("•"))


def test_records_are_cut_between_rows() -> None:
    """A message begins with a record."""
    row = f"| {'name ' * 9} | {'place ' * 9} | {'cost ' * 9} |\n"
    first, *more = parts(HEADINGS + row * 60)
    assert more
    assert all(part["text"].startswith("• Name") for part in (first, *more))


@pytest.mark.parametrize("blank", ["", "  \n ", "\u200b", "\u2800", "\x00"[:0]])
def test_an_empty_answer_shows_something(blank: str) -> None:
    """Telegram refuses empty texts, so there is always something visible."""
    assert only(blank) == ("…", [])


@pytest.mark.parametrize(
    "source",
    ["[a]: https://e.org", "```\n\n```", ">" * 40 + " deep", "*" * 3000 + "x" + "*" * 3000],
)
def test_what_markdown_would_swallow_is_shown_as_it_is(source: str) -> None:
    """Where nothing would be left, or the parser gives up, the plain text is the answer."""
    assert "".join(part["text"] for part in parts(source)) == source


def test_a_huge_answer_is_split_as_plain_text() -> None:
    """A million characters are cut quickly and completely."""
    source = "**word** " * (MAX_MARKDOWN_CHARS // 8)
    shown = parts(source)
    assert squeezed("".join(part["text"] for part in shown)) == squeezed(source)


def test_blocks_that_fit_a_message_are_not_cut() -> None:
    """A code block that would straddle the limit begins a new message."""
    code = "\n".join(f"line {number}" for number in range(200))
    first, second = parts(f"{'intro ' * 500}\n\n```\n{code}\n```")
    assert first["text"] == ("intro " * 500).strip()
    assert second["text"] == code


def test_a_long_code_block_goes_on_as_code() -> None:
    """A block larger than a message is cut between lines, and each part is code."""
    lines = [f"value_{number} = {number}" for number in range(600)]
    shown = parts("```py\n" + "\n".join(lines) + "\n```")
    assert len(shown) == 3
    assert "\n".join(part["text"] for part in shown).splitlines() == lines
    for part in shown:
        whole = {"type": "pre", "offset": 0, "length": len(part["text"]), "language": "py"}
        assert part["entities"] == [whole]


def test_a_long_table_is_cut_between_rows() -> None:
    """No part of a table begins or ends inside of a row."""
    rows = "".join(f"| {number} | some text |\n" for number in range(600))
    for part in parts("| n | t |\n|---|---|\n" + rows):
        assert all(" │ " in line or "┼" in line for line in part["text"].splitlines())
        assert part["text"].endswith("text")


def test_a_long_paragraph_is_cut_between_words() -> None:
    """Words stay whole."""
    shown = parts("wonderful " * 900)
    assert {word for part in shown for word in part["text"].split()} == {"wonderful"}


def test_five_thousand_emoji() -> None:
    """Emoji count two units each and are never cut in half."""
    shown = parts("😀" * 5000)
    assert [units(part["text"]) for part in shown] == [4086, 4086, 1828]
    assert "".join(part["text"] for part in shown) == "😀" * 5000


def test_formatting_beyond_a_hundred_entities_goes_into_the_next_message() -> None:
    """Telegram ignores the 101st entity; it is not sent."""
    shown = parts(" ".join(f"**b{number}** x" for number in range(250)))
    assert [len(part["entities"]) for part in shown] == [100, 100, 50]


def test_bold_over_a_cut_stays_bold() -> None:
    """A format that is cut goes on in the next message."""
    shown = parts(f"**{'bold ' * 1000}end**")
    assert [part["entities"][0]["type"] for part in shown] == ["bold", "bold"]


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "word ", "**b** ", "*i*", "`c`", "\n", "\n\n", "> ", "- ", "1. ", "  ", "# ", "😀",
            "```\n", "```py\n", "| a | b |\n|---|---|\n| c | d |\n", "[t](https://e.org)", "~~",
            "*", "_", "[", "](", ")", "![", "x" * 700, "😀" * 600, "long line " * 90, "<b>", "&",
            "\\", "\u200d", "\u3000", "---\n", "\t", "**b `c` [l](https://e.org)** " * 30,
        ]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@settings(max_examples=150)
@given(MARKDOWN | st.text())
@example("\ud83d lone \x00")
@example("a\n\n" + "\u200b" * 5000)
def test_every_text_becomes_valid_payloads(markdown: str) -> None:
    """Limits hold, entities are in bounds, and joined texts are the unsplit text."""
    shown = parts(markdown)
    for part in shown:
        check(part)
    whole = styled(markdown, CONVENTIONS).text
    joined = "".join(part["text"] for part in shown)
    assert joined == "…" if is_blank(whole) else visible(joined) == visible(whole)


def check(part: dict[str, Any]) -> None:
    assert 0 < units(part["text"]) <= MAX_TEXT_UNITS
    assert not is_blank(part["text"])
    assert len(part["entities"]) <= MAX_ENTITIES
    for entity in part["entities"]:
        assert entity["length"] > 0
        assert 0 <= entity["offset"] <= units(part["text"]) - entity["length"]
        assert covered(part["text"], entity)


def visible(text: str) -> str:
    return "".join(char for char in text if not is_blank(char))


def test_a_preview_is_visibly_unfinished() -> None:
    """A preview is the plain text so far with an ellipsis."""
    assert preview_text("**Hello** wor") == "Hello wor …"


def test_a_preview_is_cut_to_one_message() -> None:
    """A long answer is previewed by its beginning."""
    shown = preview_text("word " * 5000)
    assert shown is not None
    assert 4000 < units(shown) <= MAX_TEXT_UNITS


@pytest.mark.parametrize("blank", ["", "  \n"])
def test_there_is_no_preview_of_nothing(blank: str) -> None:
    """As long as nothing is visible there is no preview."""
    assert preview_text(blank) is None
