"""One markdown tree for all platforms: CommonMark with tables and strikethrough, raw HTML off."""

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def parse(text: str) -> SyntaxTreeNode:
    """Return the syntax tree of a markdown text; any text is valid markdown."""
    return SyntaxTreeNode(_PARSER.parse(text))


def to_html(text: str) -> str:
    """Return safe HTML: no raw HTML passes, links only with harmless schemes."""
    return str(_PARSER.render(text))
