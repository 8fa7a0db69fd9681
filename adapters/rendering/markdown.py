"""One Markdown parser for all platforms: CommonMark with tables, strikethrough and bare links.

Raw HTML is disabled. A bare `https://…` is one token, so its underscores and asterisks are kept.
"""

import re
from types import SimpleNamespace
from typing import Any

from markdown_it import MarkdownIt, helpers, rules_block, rules_inline
from markdown_it.common.utils import escapeHtml
from markdown_it.parser_inline import RuleFuncInlineType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

_SCHEME = re.compile(r"(?<![\w.+\\-])(?:https?|ftp)$", re.IGNORECASE | re.ASCII)
_LONGEST_SCHEME = len("https")
# No brackets, which may start a link's text; no full-width punctuation, which follows links; no
# characters that are escaped by name, except "&".
_REST = re.compile(
    r"://[^\W_](?:[^\s<>\[\]\\\"`|{}^&\u3000-\u303f\uff00-\uffef]|&(?:amp;|(?!#?\w{1,31};)))*"
)
# Source: https://github.github.com/gfm/#extended-autolink-path-validation
_TRAILING = "?!.,:;*_~'"
_MATH = re.compile(
    r"(?<!\\\])\\\((?:[^\\]|\\(?![()]))+\\\)"
    r"|(?<!\w)\\\[(?:[^\\]|\\(?![\[\]]))+\\\](?!\\?[(:])"
    r"|\$\$(?:[^$\\]|\\.|\$(?!\$))+\$\$"
    r"|\$(?![\s$])(?:[^$\\\n]|\\.)+(?<!\s)\$(?!\d)"
    r"|\\begin\{(\w{1,20}\*?)\}(?s:.{0,2000}?)\\end\{\1\}"
)
"""LaTeX. An amount of money has no closing `$`; escaped link brackets do not start a formula."""
_AFTER_MATH = re.compile(r"[.,;:]?[ \t]*(?:\n|$)")
_MOST_MATH_LINES = 100

MAX_MARKDOWN_CHARS = 100_000
"""Longer texts are shown as plain text: parsing hostile input takes more than linear time."""
MAX_SIGNS = 8_000
"""A text with more `SIGNS` is shown as plain text as well: each takes up to 0.1 ms. Recorded
answers have up to 840."""
SIGNS = ("*", "_", "[", "<", "|", "`", "\n", "\r", "- ", "> ")
MAX_EMPTY_CELLS = 2_000
"""Most missing cells in the rows of all tables of a text. The parser adds up to 65,536 per table:
12 KB of short rows below wide headings took 15 seconds."""

# The parser drops text below 20 levels; text nested more deeply is shown unformatted.
MAX_LEVEL = 16
MAX_BRACKETS = 6
"""Deepest nesting of brackets in which links are recognized, since each opening bracket takes this
many steps. `[![text [1]](picture)](target)` has three."""
MAX_PARENTHESES = 3
"""Nesting of parentheses in a link's target."""


def parse(text: str) -> list[Token]:
    """Parse Markdown into a flat list of block tokens; any text is valid Markdown."""
    return _PARSER.parse(text)


def is_parsable(text: str) -> bool:
    """Return whether the text is cheap enough to parse."""
    return len(text) <= MAX_MARKDOWN_CHARS and sum(map(text.count, SIGNS)) <= MAX_SIGNS


def to_html(text: str) -> str:
    """Return safe HTML, without raw HTML and with links only to harmless schemes.

    A text that is too slow to parse or nested too deeply is left unformatted.
    """
    tokens = parse(text) if is_parsable(text) else []
    levels = (each.level for token in tokens for each in (token, *(token.children or ())))
    if not tokens or any(level >= MAX_LEVEL for level in levels):
        return f"<p>{escapeHtml(text)}</p>".replace("\n", "<br>\n") if text.strip() else ""
    return str(_PARSER.renderer.render(tokens, _PARSER.options, {}))


def inline_text(line: str) -> str:
    """Return the visible text of a line in which only formats are unescaped."""
    return "".join(token.content for token in _COMMONMARK.parseInline(line)[0].children or ())


def _bare_link(state: StateInline, silent: bool) -> bool:  # noqa: FBT001  markdown-it calls it so
    """Parse an unmarked link; markdown-it's own rule takes quadratic time."""
    if state.linkLevel or state.src[state.pos] != ":":
        return False
    scheme = _SCHEME.search(state.src[max(0, state.pos - _LONGEST_SCHEME - 1) : state.pos])
    if not scheme or not (silent or state.pending.endswith(scheme.group())):
        return False
    found = _REST.match(state.src, state.pos, state.posMax)
    if not found:
        return False
    rest = _trimmed(found.group())
    if not silent:
        state.pending = state.pending.removesuffix(scheme.group())
        _push_link(state, scheme.group() + rest.replace("&amp;", "&"))
    state.pos += len(rest)
    return True


def _math(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
    """Keep inline LaTeX unchanged."""
    found = _MATH.match(state.src, state.pos, state.posMax)
    if not found:
        return False
    if not silent:
        state.pending += found.group()
    state.pos = found.end()
    return True


def _math_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:  # noqa: FBT001
    """Parse multi-line LaTeX as one paragraph, since its lines may start with `-` or `=`."""
    if state.is_code_block(start_line):
        return False
    last = min(end_line, start_line + _MOST_MATH_LINES)
    text = state.getLines(start_line, last, state.blkIndent, False)  # noqa: FBT003
    found = _MATH.match(text)
    after = _AFTER_MATH.match(text, found.end()) if found else None
    if not found or not after or "\n" not in found.group():
        return False
    if not silent:
        state.line = start_line + found.group().count("\n") + 1
        state.push("paragraph_open", "p", 1)
        content = state.push("inline", "", 0)
        content.content, content.children = text[: after.end()].rstrip(), []
        state.push("paragraph_close", "p", -1)
    return True


def _trimmed(rest: str) -> str:
    """Return a link without trailing sentence punctuation and unmatched brackets."""
    unmatched = rest.count(")") - rest.count("(")
    end = len(rest)
    while True:
        if rest[end - 1] in _TRAILING:
            end -= 1
        elif rest[end - 1] == ")" and unmatched > 0:
            end, unmatched = end - 1, unmatched - 1
        else:
            return rest[:end]


def _push_link(state: StateInline, url: str) -> None:
    opened = state.push("link_open", "a", 1)
    opened.attrs = {"href": state.md.normalizeLink(url)}
    opened.markup, opened.info = "linkify", "auto"
    state.push("text", "", 0).content = url
    closed = state.push("link_close", "a", -1)
    closed.markup, closed.info = "linkify", "auto"


def _inline(state: StateCore) -> None:
    """Parse the text of all blocks, with our own limit of nested brackets."""
    for token in state.tokens:
        if token.type == "inline":
            token.children = token.children or []
            _INLINE.inline.parse(token.content, _INLINE, state.env, token.children)


def _bounded_table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:  # noqa: FBT001
    """Parse a table, unless its rows lack too many cells.

    Tables after the first one that is too large become text: searching for each one's end would
    take quadratic time.
    """
    is_off = state.env.get("is_tables_off")
    if is_off or not rules_block.table(state, start_line, end_line, silent=True):
        return False
    if silent:
        return True
    state.env["empty_cells"] = state.env.get("empty_cells", 0) + _missing(state, start_line)
    if state.env["empty_cells"] > MAX_EMPTY_CELLS:
        state.env["is_tables_off"] = True
        return False
    return rules_block.table(state, start_line, end_line, silent=False)


def _missing(state: StateBlock, start_line: int) -> int:
    """Return the minimum number of cells missing in the rows up to the next empty line."""
    signs = _line(state, start_line).count("|")
    missing = 0
    for number in range(start_line + 2, state.lineMax):
        line = _line(state, number)
        if not line:
            break
        missing += max(0, signs - line.count("|"))
    return missing


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _closable(rule: RuleFuncInlineType) -> RuleFuncInlineType:
    """Try a link or image only if a later bracket can close it."""

    def rule_there(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
        return state.html_terminator_last("]") > state.pos and rule(state, silent)

    return rule_there


def _target(levels: int) -> re.Pattern[str]:
    r"""Build the pattern of a target's start: `<`, or text with brackets up to this depth."""
    plain = inside = r"[^\s()\\]|\\\S"
    for _ in range(levels):
        inside = rf"{plain}|\((?:{inside})*+\)"
    return re.compile(rf"<|(?:{inside})*+(?=[\s)]|$)", re.ASCII)


_TARGET = _target(MAX_PARENTHESES)


def _destination(text: str, begin: int, end: int) -> Any:
    """Parse a link's target; markdown-it would search 32 levels of brackets for its end."""
    is_target = _TARGET.match(text, begin, end)
    return helpers.parseLinkDestination(text, begin, end if is_target else begin)


def _parser(options: dict[str, Any] | None = None) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False} | (options or {}))
    parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
    parser.block.ruler.at("table", _bounded_table, {"alt": ["paragraph", "reference"]})
    parser.core.ruler.at("inline", _inline)
    bounded = vars(helpers) | {"parseLinkDestination": _destination}
    parser.helpers = SimpleNamespace(**bounded)  # type: ignore[assignment]
    alt = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "math", _math_block, {"alt": alt})
    parser.inline.ruler.before("escape", "math", _math)
    parser.inline.ruler.after("text", "bare_link", _bare_link)
    parser.inline.ruler.at("link", _closable(rules_inline.link))
    parser.inline.ruler.at("image", _closable(rules_inline.image))
    return parser


_PARSER = _parser()
_INLINE = _parser({"maxNesting": MAX_BRACKETS})
_COMMONMARK = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
for _each in (_PARSER, _INLINE, _COMMONMARK):
    # The first parse compiles the rules, which is not thread-safe.
    _each.parse("a")
