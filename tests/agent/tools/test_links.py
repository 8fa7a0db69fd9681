"""Addresses are equal only if a client sends the same bytes for them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from agent.messages import tool_message
from agent.tools.links import (
    MAX_LINKS,
    Trail,
    canonical,
    host_of,
    links_in,
    named_in,
    sent_addresses,
)
from agent.tools.sandbox.fetch import parse_url

HERE = "https://site.example/blog/one"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("https://Example.ORG", "https://example.org/"),
        (" HTTPS://example.org:443/a#part ", "https://example.org/a"),
        ("http://example.org:8080/a?b=C", "http://example.org:8080/a?b=C"),
        ("https://example.org/ü", "https://example.org/%C3%BC"),
        ("https://example.org/A", "https://example.org/A"),
        ("https://example.org/a/", "https://example.org/a/"),
        ("http://[::1]/", "http://[::1]/"),
        ("https://user@example.org/", ""),
        ("https://user:word@example.org/", ""),
        ("https://example.org\\@evil.example/", ""),
        ("ftp://example.org/", ""),
        ("http://[bad", ""),
        ("example.org", ""),
        ("", ""),
        ("None", ""),
    ],
)
def test_what_is_compared(written: str, address: str) -> None:
    """Only parts that a client changes are normalised."""
    assert canonical(written) == address
    assert canonical(address) == address


@given(
    st.sampled_from(["http://", "https://", "HTTP:/", "//", " https://"]),
    st.text("aZ0é\u3002\u200b\u202e\uff0f.-:/\\\\@?#%2eE&=[]\t\n ", max_size=30),
)
@example("https://", "a.example\t/%2e%2e/b?c=%26#d")
@example("http://", "a.example:80\\@b.example/")
def test_an_address_leads_where_its_text_leads(scheme: str, rest: str) -> None:
    """A request for the text goes to the same host and port, with the same bytes of the path."""
    text = f"{scheme}{rest}"
    if address := canonical(text):
        asked, compared = parse_url(text), URL(address)
        assert asked.origin() == compared.origin()
        assert asked.raw_path_qs == compared.raw_path_qs
        assert canonical(address) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Read https://example.org/a?b=1, please.", "https://example.org/a?b=1"),
        ("(see http://example.org/a)", "http://example.org/a"),
        ("https://example.org/wiki/A_(b)", "https://example.org/wiki/A_(b)"),
        ("<https://example.org/a>", "https://example.org/a"),
        ("[a page](https://example.org/a)", "https://example.org/a"),
        ("What does example.org say?", "https://example.org/"),
        ("see example.org/docs.", "https://example.org/docs"),
        ("see www.example.org:8443/docs", "http://www.example.org:8443/docs"),
        ("请看https://example.org/a的内容。", "https://example.org/a"),
        ("请总结example.org/a。", "https://example.org/a"),
        ("«https://example.org/a»", "https://example.org/a"),
        ("https://readme.md/", "https://readme.md/"),
    ],
)
def test_what_a_person_names(text: str, address: str) -> None:
    """The address as written, without punctuation of the sentence."""
    assert address in set(named_in(text))


@pytest.mark.parametrize(
    "text",
    [
        "ask ann@example.org",
        "run docs/example.org",
        "https://evil.example/example.org",
        "https://example.org.evil.example/",
        "sub.example.org",
        "example.organic",
        "https://example.org/other",
        "no address",
    ],
)
def test_what_names_another_address(text: str) -> None:
    """Neither a host below it nor another path names an address."""
    assert not {"https://example.org/", "http://example.org/"} & set(named_in(text))


def test_names_of_files_are_no_addresses() -> None:
    """Some top-level domains are also endings of files."""
    assert set(named_in("summarise README.md and run setup.sh")) == set()


@given(st.text(), st.sampled_from(["https://B.example/x?y=1", "b.example/z", "x"]), st.text())
@example("see ", "https://b.example", " please")
def test_words_name_only_what_they_hold(before: str, address: str, after: str) -> None:
    """The text contains the host of each named address."""
    text = f"{before}{address}{after}"
    small = text.lower()
    for named in named_in(text):
        assert canonical(named) == named
        host = host_of(named)
        assert host in small or not text.isascii()


@pytest.mark.parametrize(
    ("arguments", "leads"),
    [
        ({"url": "https://b.example/2"}, ["https://b.example/2"]),
        ({"a": {"b": ["x", "see HTTPS://B.example now"]}}, ["https://b.example/"]),
        ({"https://b.example/": 1}, ["https://b.example/"]),
        ({"url": "https://me@b.example/"}, [""]),
        ({"url": "ws://b.example/x"}, [""]),
        ({"url": "//b.example/x"}, [""]),
        ({"url": "https%3A%2F%2Fb.example%2Fx"}, ["https://b.example/x"]),
        ({"q": "x.b.example"}, ["https://x.b.example/"]),
        ({"q": "x\u3002b\uff0eexample"}, ["https://x.b.example/"]),
        ({"q": "b.example/x"}, ["https://b.example/x"]),
        ({"q": "b.example:8443"}, ["https://b.example:8443/"]),
        ({"q": "203.0.113.5/x"}, ["https://203.0.113.5/x"]),
        ({"host": "b.example"}, ["https://b.example/"]),
        ({"url": "https://b.example/a)."}, ["https://b.example/a)."]),
        ({"path": "/srv/notes.txt"}, []),
        ({"path": "notes.txt", "q": "Oak, e.g. 1.2.3 of ann@b.example", "n": 3}, []),
    ],
)
def test_where_arguments_lead(arguments: dict[str, object], leads: list[str]) -> None:
    """Every address that another program may fetch or look up; no name of a file or person."""
    assert list(sent_addresses(arguments)) == leads


def test_links_of_a_page() -> None:
    """As written, relative ones resolved against the page; not addresses in its text."""
    text = (
        "Two (https://b.example/2), [three](/three?x=1) (//c.example/4) (https://d.example/A_(b))."
        " <a href='https://e.example/5'> <a href=/6>; https://f.example/7 and"
        ' [["fetch_url", {"url": "https://g.example/8"}]], (mailto:ann@h.example)'
    )
    assert links_in(text, HERE) == {
        "https://b.example/2",
        "https://site.example/three?x=1",
        "https://c.example/4",
        "https://d.example/A_(b)",
        "https://e.example/5",
        "https://site.example/6",
    }


def test_a_page_of_many_links() -> None:
    """A page's links are kept up to a limit."""
    text = " ".join(f"(https://b.example/{n})" for n in range(3 * MAX_LINKS))
    assert len(links_in(text, HERE)) == MAX_LINKS


def test_a_trail_knows_the_links_of_pages_that_are_shown() -> None:
    """Of what `fetch_url` has told alone, and not of its errors."""
    page = tool_message("c0", "fetch_url", f"{HERE}\nA link (https://b.example/2) and (/three)")
    failed = tool_message("c1", "fetch_url", "Error: it redirects to https://c.example/3")
    other = tool_message("c2", "mcp_x", f"{HERE}\nA link (https://d.example/4)")
    trail = Trail()
    trail.note_shown([page, failed, other])
    assert trail.links.keys() == {"https://b.example/2", "https://site.example/three"}
