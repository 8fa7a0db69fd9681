"""The renderers of all platforms, each with what its payloads must keep, and texts to try."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap

import orjson
from hypothesis import strategies as st
from markdown_it.token import Token

from adapters.discord import render as discord
from adapters.rendering.markdown import parse
from adapters.slack import render as slack
from adapters.telegram import render as telegram
from tests.support.discord_markdown import discord_text, read
from tests.support.shown_text import ShowsTarget, bare, markdown_text, slack_text, telegram_text


@dataclass(frozen=True)
class Platform:
    """One platform: its renderer and how its payloads are read.

    Attributes:
        size: Length of a payload in the platform's unit, at most `limit`.
        faults: What the platform would refuse or show wrongly in a payload.
        number_sign: What stands behind the numbers of lists; None for what was written.
        table_columns: Wider tables are lists of records; None where every table is one.
    """

    name: str
    render: Callable[[str], list[str]]
    preview_text: Callable[[str], str | None]
    size: Callable[[str], int]
    limit: int
    read: Callable[[str], str]
    faults: Callable[[str], list[str]]
    shows_target: ShowsTarget
    number_sign: str | None = None
    table_columns: int | None = None

    def shown(self, payloads: list[str]) -> str:
        """Return what a reader sees of all payloads, comparable with `expected`."""
        return bare("".join(map(self.read, payloads)))

    def expected(self, markdown: str) -> str:
        """Return the text of the markdown tree, comparable with `shown`."""
        return self.text_of(parse(markdown))

    def text_of(self, tokens: Sequence[Token]) -> str:
        """Return the text of parsed markdown, comparable with `shown`."""
        return bare(
            markdown_text(tokens, self.shows_any_target, self.number_sign, self.table_columns)
        )

    def shows_any_target(self, label: str, target: str) -> bool:
        """Whether the target of a link is part of the text; very long ones always are."""
        return len(target) > 1500 or self.shows_target(label, target)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _telegram_faults(payload: str) -> list[str]:
    part = orjson.loads(payload)
    size, entities = _units(part["text"]), part["entities"]
    faults = ["too many entities"] if len(entities) > 100 else []
    faults += [
        f"entity out of bounds: {entity}"
        for entity in entities
        if not 0 <= entity["offset"] < entity["offset"] + entity["length"] <= size
    ]
    spans = [(entity["offset"], entity["offset"] + entity["length"]) for entity in entities]
    crossing = ((a, b) for a in spans for b in spans if a[0] < b[0] < a[1] < b[1])
    return faults + list(starmap("entities cross: {} {}".format, crossing))


def _discord_faults(payload: str) -> list[str]:
    """Return mentions, whatever formats are around them, and code blocks that stay open."""
    shown = read(payload)
    faults = [f"mention {mention}" for mention in shown.mentions]
    faults += re.findall(r"@everyone|@here|<(?:@[!&]?|#)\d+>", payload)
    blocks = sum(entry.startswith("pre ") for entry in shown.formats)
    fences = len(re.findall(r"^(?:> )?```", payload, re.MULTILINE))
    return faults + (["open code block"] if fences != 2 * blocks else [])


def _slack_faults(payload: str) -> list[str]:
    """Return signs that Slack takes for mentions, and code blocks that stay open."""
    faults = re.findall(r"<!(?:channel|here|everyone|subteam)|<[@#][A-Z0-9]+[>|]", payload)
    fences: list[str] = []
    for fence in re.findall(r"^(?:> )?(`{3,})", payload, re.MULTILINE):
        if fences and len(fence) >= len(fences[-1]):
            fences.pop()
        elif not fences:
            fences.append(fence)
    return faults + ["open code block" for _ in fences]


TELEGRAM = Platform(
    "telegram",
    telegram.render,
    telegram.preview_text,
    size=lambda payload: _units(telegram_text(payload)),
    limit=4096,
    read=telegram_text,
    faults=_telegram_faults,
    shows_target=lambda label, target: not re.fullmatch(r"(?i)(https?|ftp|tg|ton)://\S+", target),
    table_columns=40,
)
DISCORD = Platform(
    "discord",
    discord.render,
    discord.preview_text,
    size=len,
    limit=2000,
    read=discord_text,
    faults=_discord_faults,
    shows_target=lambda label, target: (
        not re.fullmatch(r"(?i)https?://\S+", target) or bool(re.search(r"[\[\]]|://", label))
    ),
    number_sign=".",
)
SLACK = Platform(
    "slack",
    slack.render,
    slack.preview_text,
    size=_units,
    limit=11_500,
    read=slack_text,
    faults=_slack_faults,
    shows_target=lambda label, target: not re.fullmatch(r"(?i)(https?://|mailto:)\S+", target),
)
PLATFORMS = (TELEGRAM, DISCORD, SLACK)

_PARTS = [
    "word ", "a", "b ", "**b**", "**", "*i*", "*", "_", "__", "_x_", "snake_case_name", " ", "`c`",
    "`", "``", "`a``b`", "```", "\n", "\n\n", "> ", ">", "- ", "+ ", "1. ", "7) ", "  ", "    ",
    "# ", "## x#", "😀", "👩‍👩‍👧", "中", "é", "שלום", "```\n", "````\n", "```py\n", "~~~\n", "|",
    "| a | b |\n|---|---|\n| c | **d** |\n\n", "|---|\n", "[t](https://e.org)", "[t](x.md)", "$",
    "![p](https://e.org/p_q_)", "[**t**](https://e.org)", "https://e.org/a_b_", "~~", "~", "||",
    "https://e.org/x*y*z", "http://a.b", "[", "](", "]", ")", "(", "![", "!", "<b>", "<", "&",
    "&lt;", "\\", "\\*", "\u200d", "\u3000", "---\n", "===\n", "\t", "@everyone", "@here", "<@12>",
    "<@&1>", "<#12>", "<!channel>", "<!here>", "<@U12>", "<#C12>", "<!subteam^S1>", ":", "-# s",
    '"', "'", "&#32;", "&#9;", "[x]: https://e.org\n\nword", "<https://e.org/a>", "<a@b.c>",
]  # fmt: skip
_LONG_PARTS = [
    "x" * 700, "😀" * 600, "long line " * 90, "**bold `code` [link](https://e.org)** " * 30,
    "\\*" * 300,
    "```\n" + "let x = 1;\n" * 300 + "```\n", "> quoted @everyone\n" * 80, "- item\n" * 120,
    "| n | text |\n|---|---|\n" + "| 1 | some words |\n" * 90 + "\n", "`" * 400,
    "\n\n| module | what it is **for** | |\n|---|---|---|\n"
    + "| `cli/args.py` | [reads](https://e.org) arguments of 中 | |\n| | |\n| c |\n" * 9 + "\n",
    "<!here> & " * 90,
    "👩‍👩‍👧" * 300, "e\u0301" * 900, "1. a\n   - b\n     - c\n" * 60,
    "![a](https://e.org/_x_) " * 60, "https://e.org/" + "x_*y" * 900,
    "[t](https://e.org/" + "_x" * 1200 + ")",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(_PARTS), max_size=25).map("".join)
"""Short texts with every sign of every dialect in any order."""
LONG = st.lists(st.sampled_from([*_PARTS, *_LONG_PARTS]), max_size=16).map("".join)
"""Texts of up to 20,000 characters that have to be split."""
SLOW = {
    "stars": "*" * 100_000,
    "brackets": "[" * 100_000,
    "open brackets": "[aa" * 30_000,
    "signs": "*a_a" * 15_000 + "a" * 40_000,
    "lines": "a\n" * 50_000,
    "backticks": " ".join("`" * length for length in range(1, 446)),
    "schemes": "https://" * 12_500,
    "links": "[a](https://e.org) " * 5_263,
    "emphasis": "**a* _b_ ~~c " * 7_692,
    "quotes": "".join(">" * (level % 15) + " a\n" for level in range(11_000)),
    "short rows": ("|" + "a|" * 128 + "\n|" + "-|" * 128 + "\n" + "b\n" * 510 + "\n") * 65,
    "table": "| a | b |\n|---|---|\n" + "| c | d |\n" * 9_998,
    "pictures": "![" * 50_000,
    "closed pictures": "![" * 33_000 + "]" * 34_000,
    "pictures and words": "**a**![}" * 12_500,
    "pictures in brackets": "[!" * 49_995 + "][a]---",
    "links in links": "[a" * 28_500 + "](b)" * 10_750,
    "targets": "![a](" * 20_000,
    "long targets": ("[a](" + "b" * 300) * 328,
    "closing targets": "![a](b()" * 12_500,
    "references": "[a]: b\n\n" + "[a][a" * 19_998,
    "definitions": "[a]: b\n![]" * 10_000,
    "titles": "[a](b 'x [a](b \"x " * 5_263,
    "autolinks": "<a@b.c>" * 14_285,
    "addresses": "http://é.x " * 9_090,
    "lists in lists": "- - - - - - - - a\n" * 5_555,
    "returns": "](a)\r[][#" * 11_111,
    "short emphasis": "*a*" * 33_333,
    "wide emphasis": "_👩" * 50_000,
    "wide stars": "👩***" * 25_000,
    "growing runs": "".join("*=" * times + "_" for times in range(315)),
    "code and stars": "`a`*" * 25_000,
    "struck": "~~a~~" * 20_000,
    "names": "&amp;&a;&" * 11_111,
    "escapes": "\\*_" * 33_333,
}
"""100,000 characters each that have made parsers slow; some were found by a search."""
