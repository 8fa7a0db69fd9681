"""The text of HTML pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.sandbox.pages import text_of_page


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h2>A</h2><p>b  c\n d</p>", "## A\n\nb c d"),
        ("<ul><li>one<li>two</ul>", "- one\n- two"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("<table><tr><td>1<td>2</table>", "| 1 | 2"),
        ("a<style>x{}</style><template>y</template><svg><text>z</text></svg>b", "ab"),
        ("a</script></svg></pre></a>b<br>c", "a\nb\nc"),
        ("<a href='javascript:x()'>run</a> <a href='#top'>top</a>", "run top"),
        ("<img alt='a cat'><img src=x>&amp;&lt;", "[image: a cat]&<"),
        ("<head><title>T\nt</title><meta charset=x><p>no body", "Title: T t\n\nno body"),
        ("", ""),
    ],
)
def test_what_a_person_would_read(html: str, text: str) -> None:
    """Headings, items, links, cells; nothing that runs or is not shown."""
    assert text_of_page(html) == text


@given(st.lists(st.sampled_from(["<", ">", "a", "p", "/", "!--", "script", " ", "&", "'"])))
def test_broken_pages_have_some_text(parts: list[str]) -> None:
    """No page breaks the reader."""
    assert isinstance(text_of_page("".join(parts)), str)
