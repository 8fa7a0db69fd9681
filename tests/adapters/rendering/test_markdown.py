"""The parser all platforms share: bare links, and otherwise plain CommonMark."""

import pytest
from hypothesis import given, settings
from markdown_it.token import Token

from adapters.rendering.markdown import parse, to_html
from tests.support.renderers import HOSTILE, LONG
from tests.support.shown_text import COMMONMARK


def links(markdown: str) -> list[str]:
    """Return the text and target of each link, or one of them where they are the same."""
    found = []
    for block in parse(markdown):
        inside = block.children or []
        for place, token in enumerate(inside):
            if token.type == "link_open":
                label, target = inside[place + 1].content, str(token.attrs["href"])
                found.append(label if label == target else f"{label} {target}")
    return found


@pytest.mark.parametrize(
    ("markdown", "found"),
    [
        ("see https://e.org/a_b_c*d*e now", ["https://e.org/a_b_c*d*e"]),
        ("HTTP://e.org and ftp://e.org/x", ["HTTP://e.org", "ftp://e.org/x"]),
        ("(https://e.org/a_(b)).", ["https://e.org/a_(b)"]),
        ("https://e.org/?a=1&amp;b=2&lt;", ["https://e.org/?a=1&b=2"]),
        ("**https://e.org/** *https://e.org/_x_*", ["https://e.org/", "https://e.org/_x"]),
        ("https://e.org, https://e.org/x!?'", ["https://e.org", "https://e.org/x"]),
        ("见https://e.org/路。然后", ["https://e.org/路 https://e.org/%E8%B7%AF"]),
        ("[https://e.org/a](https://e.org/b)", ["https://e.org/a https://e.org/b"]),
        ("![https://e.org/a](https://e.org/b)", []),
        ("<https://e.org/a_b>", ["https://e.org/a_b"]),
        ("`https://e.org` xhttps://e.org a.http://e.org http:// http://_x mailto:a@e.org", []),
        ("\\https://e.org e.org a@e.org", []),
    ],
)
def test_bare_links(markdown: str, found: list[str]) -> None:
    """A link ends where its sentence goes on, and keeps its underscores and asterisks."""
    assert links(markdown) == found


@settings(max_examples=150)
@given(HOSTILE | LONG)
def test_all_else_is_plain_commonmark(markdown: str) -> None:
    """What makes the parser quicker does not change what it finds."""
    markdown = markdown.replace("://", ":/")
    assert plain(parse(markdown)) == plain(COMMONMARK.parse(markdown))


def plain(tokens: list[Token]) -> list[dict[str, object]]:
    return [dict(token.as_dict()) for token in tokens]


def test_html_is_safe_and_has_links() -> None:
    """Raw HTML is text, bare links can be clicked, and other schemes than harmless ones cannot."""
    assert to_html("<b>x</b> https://e.org/_a_b") == (
        '<p>&lt;b&gt;x&lt;/b&gt; <a href="https://e.org/_a_b">https://e.org/_a_b</a></p>\n'
    )
    assert "href" not in to_html("[x](javascript:alert(1))")


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("[![text [1]](p)](t)", '<a href="t"><img src="p" alt="text [1]" /></a>'),
        ("[[[[a]]](b)", '[<a href="b">[[a]]</a>'),
        ("[a `]` b](c)", '<a href="c">a <code>]</code> b</a>'),
        ("[0, 1) " * 9 + "[a](b)", "[0, 1) " * 9 + '<a href="b">a</a>'),
        ("[a](b(c(d(e))))", '<a href="b(c(d(e)))">a</a>'),
        (r"[a](b\(c)", '<a href="b(c">a</a>'),
        ("[a](<b c> 'x')", '<a href="b%20c" title="x">a</a>'),
        ("[x]\n\n[x]: y(z)", '<a href="y(z)">x</a>'),
    ],
)
def test_brackets_in_brackets_are_links(text: str, page: str) -> None:
    """As deep as people nest them."""
    assert to_html(text).strip() == f"<p>{page}</p>"


@pytest.mark.parametrize(
    "text", ["[" * 8 + "a" + "]" * 8 + "(b)", "[a](" + "b(" * 5 + ")" * 6, "![" * 50, "[a](b"]
)
def test_more_brackets_in_brackets_are_text(text: str) -> None:
    """The whole text is shown."""
    assert to_html(text).strip() == f"<p>{text}</p>"
