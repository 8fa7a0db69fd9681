"""The helper process of `fetch_url`: extracts text and links from an HTML page; JSON in and out.

It runs no scripts and may be killed at any moment. It imports only the standard library and
`agent/processes/`.
"""

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from agent.processes.descent import serve

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method: object) -> object:
        """Replace the decorator that the standard library lacks."""
        return method


MAX_MEMORY_BYTES = 1_000_000_000
MAX_LINK_CHARS = 300
_UNSEEN = {"script", "style", "template", "noscript", "svg", "iframe", "object", "canvas"}
_EMPTY = {
    *("br", "hr", "img", "input", "meta", "link", "source", "wbr", "area", "base", "col", "embed")
}
_BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "form"),
    *("ul", "ol", "dl", "dt", "dd", "table", "tr", "pre", "blockquote", "figure", "br", "hr"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "li", "title", "option"),
}
_HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0]+")
_MANY_BREAKS = re.compile(r" *\n(?: *\n)+")
_ONE_BLANK = re.compile(r"^ (?=\S)", re.MULTILINE)


def main() -> None:
    """Serve one request."""
    serve(lambda request: text_of_page(request["html"]), MAX_MEMORY_BYTES)


def text_of_page(html: str) -> str:
    """Return title and text: headings marked with #, items with -, links after their words."""
    reader = PageReader()
    reader.feed(html)
    reader.close()
    text = _MANY_BREAKS.sub("\n\n", "".join(reader.parts))
    text = _ONE_BLANK.sub("", "\n".join(line.rstrip() for line in text.split("\n"))).strip()
    title = _BLANKS.sub(" ", "".join(reader.title)).strip()
    return f"Title: {title}\n\n{text}" if title else text


class PageReader(HTMLParser):
    """Collects the visible text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self._unseen = 0
        self._in_title = False
        self._verbatim = 0
        self._links: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Process an opening tag."""
        if tag == "title":
            self._in_title = True
        if tag in _UNSEEN:
            self._unseen += 1
        elif not self._unseen:
            self._begin(tag, dict(attrs))

    def _begin(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag in _BLOCKS:
            self.parts.append("\n\n" if tag in _HEADINGS or tag == "p" else "\n")
        self.parts.append(_HEADINGS.get(tag, "- " if tag == "li" else ""))
        self._verbatim += tag == "pre"
        if tag == "a":
            self._links.append(attributes.get("href") or "")
        if tag == "img" and (label := attributes.get("alt")):
            self.parts.append(f"[image: {label}]")
        if tag in {"td", "th"}:
            self.parts.append(" | ")

    @override
    def handle_endtag(self, tag: str) -> None:
        """Process a closing tag."""
        if tag == "title":
            self._in_title = False
        if tag in _UNSEEN:
            # Pages also close elements that were never opened.
            self._unseen = max(0, self._unseen - 1)
        elif not self._unseen:
            self._end(tag)

    def _end(self, tag: str) -> None:
        if tag == "a" and self._links:
            address = self._links.pop()
            # Skip scripts and links within the page.
            if address.startswith(("http://", "https://", "/")) and len(address) <= MAX_LINK_CHARS:
                self.parts.append(f" ({address})")
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if tag in _BLOCKS and tag not in _EMPTY:
            self.parts.append("\n")

    @override
    def handle_data(self, data: str) -> None:
        """Process text."""
        if self._in_title:
            self.title.append(data.replace("\n", " "))
        elif not self._unseen:
            self.parts.append(data if self._verbatim else _BLANKS.sub(" ", data.replace("\n", " ")))
