"""Markdown to styled text: what the pieces are before a platform writes them."""

import re
from html import unescape

import pytest

from adapters.rendering.markdown import MAX_MARKDOWN_CHARS, to_html
from adapters.rendering.styled import (
    BARE_LINK,
    BOLD,
    BULLET,
    CODE,
    INDENT,
    ITALIC,
    NO_STYLES,
    QUOTE,
    Conventions,
    Style,
    styled,
)

WAYS = Conventions("* ", re.compile(r"https://\S+"), re.compile("no"))


def pieces(markdown: str) -> list[tuple[str, set[str]]]:
    """Return the pieces with the types of their marks."""
    return [(text, {mark.type for mark in marks}) for text, marks in styled(markdown, WAYS).pieces]


def test_marks_say_what_a_text_is_in() -> None:
    """Blocks and inline formats are marks of the text; bullets and indentation are text."""
    assert styled("# H\n\n- a **b *c***\n  > `d`", WAYS).pieces == [
        ("H", {Style("heading", "1")}),
        ("\n\n", NO_STYLES),
        ("* ", {BULLET}),
        ("a ", NO_STYLES),
        ("b ", {BOLD}),
        ("c", {BOLD, ITALIC}),
        ("\n", NO_STYLES),
        ("  ", {INDENT}),
        ("d", {CODE, QUOTE}),
    ]


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("[a](https://e.org)", "a"),
        ("[a](page.md)", "a (page.md)"),
        ("[no](https://e.org)", "no (https://e.org)"),
        ("[a](https://e.org/" + "x" * 2000 + ")", "a (https://e.org/" + "x" * 2000 + ")"),
        ("[**a** ![b](c)](https://e.org)", "a b"),
        ("[<https://e.org/a>](https://e.org/b)", "https://e.org/a"),
        ("[](https://e.org)", "https://e.org"),
        ("<a@e.org> <https://e.org>", "a@e.org https://e.org"),
    ],
)
def test_targets_of_links(markdown: str, text: str) -> None:
    """A target that the platform does not take as one stands behind the text."""
    assert styled(markdown, WAYS).text == text


def test_a_bare_link_is_marked_but_where_it_is_the_text_of_another() -> None:
    """Inside of a link the outer target counts."""
    assert ("https://e.org/a", {BARE_LINK.type}) in pieces("x https://e.org/a")
    assert pieces("[<https://e.org/a>](https://e.org/b)") == [("https://e.org/a", {"link"})]


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("1) a\n2) b", "1) a\n2) b"),
        ("7. a\n\n8. b", "7. a\n\n8. b"),
        ("- ```\n  a\n  ```\n- \n- c", "* \na\n* \n* c"),
        ("- a\n  - b\n\n    c", "* a\n  * b\n\n    c"),
        ("> a\n> > b\n> > c", "a\n\n> b\n> c"),
        ("- > ```\n  > a\n  > ```", "* \na"),
    ],
)
def test_nested_blocks(markdown: str, text: str) -> None:
    """Lines inside of lists and inner quotes carry what shows where they belong."""
    assert styled(markdown, WAYS).text == text


def test_a_message_may_begin_at_blocks_but_not_behind_a_heading() -> None:
    """A heading stays with what it is about."""
    text = styled("a\n\n# b\n\nc\n\nd", WAYS)
    assert [text.text[start] for start in text.block_starts] == ["b", "d"]


@pytest.mark.parametrize(
    "source",
    [
        ">" * 17 + " deep",
        "- " * 12 + "deep",
        "*" * 40 + "deep" + "*" * 40,
        "[*_" * 10_001,
        "*a*" + " " * MAX_MARKDOWN_CHARS,
        "[a]: https://e.org",
        "```\n```",
    ],
)
def test_plain_text_is_the_last_resort(source: str) -> None:
    """What cannot be formatted, or would vanish, is shown as it is."""
    assert styled(source, WAYS).pieces == [(source, NO_STYLES)]


def test_characters_that_cannot_be_sent_are_replaced() -> None:
    """Lone surrogates and NUL would make a request invalid."""
    assert styled("a\x00b\ud83d", WAYS).text == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    "latex",
    [
        r"so \(a^2\) it is",
        r"\[ a_1 * b_2 * c \]",
        r"$a_1 + b_1$ and $x*y*z$",
        r"$$ a_1 \\ b_2 $$",
        "\\[\na\n= b\n\\]",
        "\\[\na\n=\n- b\n\n+ c\n\\].",
        "$$\n- a\n# b\n> c\n$$",
        "\\begin{align*}\na &= b \\\\\nc &= d_1 * e_1\n\\end{align*}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\(\frac{1}{2}\) and \(\{x \mid x > 0\}\)",
        r"$\$5$ and $\alpha_{i}^{*}$",
        r"\( [a](b) <https://e.org> `c` \)",
    ],
)
def test_latex_stays_as_it_is_written(latex: str) -> None:
    """Its signs are no markdown, in a line and over several, on each platform and in the page."""
    assert styled(latex, WAYS).text == latex
    assert unescape(re.sub("<[^>]*>", "", to_html(latex))).strip() == latex


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("$5 for *this* and $6 for that", "$5 for this and $6 for that"),
        ("from $5-$10 *net*", "from $5-$10 net"),
        (r"\*not bold\*", "*not bold*"),
        (r"\( open *end*", "( open end"),
        ("`$a$` *b*", "$a$ b"),
        ("say $ *a* $", "say $ a $"),
    ],
)
def test_what_only_looks_like_latex(markdown: str, text: str) -> None:
    """Money, and what has no end, is text with markdown."""
    assert styled(markdown, WAYS).text == text
