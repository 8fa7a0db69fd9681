"""Markdown to Discord's dialect, read back with the rules of its client."""

import pytest

from adapters.discord.render import render
from tests.support.discord_markdown import read


def only(markdown: str) -> str:
    (message,) = render(markdown)
    return message


@pytest.mark.parametrize(
    ("markdown", "message"),
    [
        ("**b** *i* _j_ ~~s~~ `c`", "**b** *i* *j* ~~s~~ `c`"),
        ("***x*** **a *b* c**", "***x*** **a *b* c**"),
        ("# One\n\n### Three\n\n#### Four", "# One\n\n### Three\n\n**Four**"),
        ("# About C\\#", "# About C#\u200b"),
        ("- a\n- b\n  1. c\n  2. d", "- a\n- b\n  1. c\n  2. d"),
        ("7) a", "7. a"),
        ("- # a *b*", "- **a *b***"),
        ("> q\n> r\n>\n> s", "> q\n> r\n> \n> s"),
        ("> a\n>> b", "> a\n> \n> \\> b"),
        ("> > - a", "> \\> • a"),
        ("- > a\n- b", "> - a\n- b"),
        ("> ```\n> p\n> ```", "> ```\n> p\n> ```"),
        ("```py title\nx\n```", "```py\nx\n```"),
        ("```имя\nx\n```", "```\nx\n```"),
        ("````\na ``` b\n````", "```\na ``\u200b` b\n```"),
        ("``a`b`` `` `c` ``", "``a`b`` `` `c` ``"),
        ("```` a`b``c```d ````", "``a`b`\u200b`c`\u200b`\u200b`d``"),
        ("`` a `` `a`**`b`**", "`a` `a`**\u200b`b`**"),
        ("`  a  ` b", "`  a  ` b"),
        ("- ```\n  p\n  ```\n- b", "- \n```\np\n```\n- b"),
        ("1. a\n   - b\n     ```\n     p\n     ```\n     - c\n   - d\n2. e",
         "1. a\n   - b\n```\np\n```\n\n- c\n- d\n2. e"),
        ("[t](https://e.org/(x)*~)", "[t](https://e.org/%28x%29%2A%7E)"),
        ("[**t** u](https://e.org)!", "[**t** u](https://e.org)!"),
        ("**a [t](https://e.org)**[t](https://e.org)",
         "**a [t](https://e.org)**[t](https://e.org)"),
        ("[t](page.md) [u](mailto:a@e.org)", "t (page.md) u (mailto:a@e.org)"),
        ("[a\\[0\\]](https://e.org)", "a\\[0] (https://e.org)"),
        ("[https://e.org](https://x.org)", "https\\://e.org (https://x.org)"),
        ("wow\\![t](https://e.org)", "wow\\![t](https://e.org)"),
        ("https://e.org/a_b*c* x", "<https://e.org/a_b*c>\\* x"),
        ("https://e.org/a_b, **https://e.org**", "https://e.org/a_b, https://e.org"),
        ("https://e.org/a`b`", "<https://e.org/a>`b`"),
        ("a\n\n---\n\nb", "a\n\n──────────\n\nb"),
        ("| a | b |\n|---|---|\n| 中 | **x** |", "```\na  │ b\n───┼──\n中 │ x\n```"),
    ],
)  # fmt: skip
def test_formatting(markdown: str, message: str) -> None:
    """Each construct of markdown has its form."""
    assert only(markdown) == message


@pytest.mark.parametrize(
    "text",
    [
        "* a", "- a", "+ a", "1. a", "12) a", "# a", "### a", "-# a", "> a", ">>> a", "~~b~~",
        "**b** __u__ _i_ snake_case_ name_", "||spoiler||", "`c` ``` d", "[t](https://e.org)",
        "](x)", "<https://e.org>", "<:smile:12>", "<a:smile:12>", "<t:17:R>", "</run:12>", "<id:a>",
        "@everyone @here", "<@12> <@!12> <@&12> <#12>", "\\* \\", "ahttps://e.org/_",
    ],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    """No sign in a text becomes a format, a mention or a link."""
    source = "".join(f"\\{char}" if char in "\\`*_[]<>#+-.!|~@:()" else char for char in text)
    shown = read(only(f"x {source}\n\n{source}"))
    assert shown.mentions == []
    assert shown.formats in ([], ["url https://e.org/"])
    assert shown.text.replace("\u200b", "") == f"x {text}\n\n{text}".replace("\u200b", "")


def test_nobody_is_called_from_code() -> None:
    """In code there are no escapes, so that mentions get an invisible character."""
    message = only("`@everyone <@12>`\n\n```\n@here <@&12> <#12>\n```")
    shown = read(message)
    assert shown.mentions == []
    assert "@everyone" not in message
    assert [form.replace("\u200b", "") for form in shown.formats] == [
        "code @everyone <@12>",
        "pre  @here <@&12> <#12>",
    ]


@pytest.mark.parametrize(
    ("markdown", "message"),
    [
        ("*a***b**", "*a*b"),
        ("a**b**c **(x)**y", "a**b**c \\*\\*(x)\\*\\*y"),
        ("**a `*` b**", "**a** `*` **b**"),
        ("~~a ~ b~~", "a \\~ b"),
        ("**a https://e.org/x*y b**", "**a** https://e.org/x*y **b**"),
    ],
)
def test_a_format_that_cannot_be_written_is_left_out(markdown: str, message: str) -> None:
    """Signs that Discord would show as text are not written."""
    assert only(markdown) == message


def test_formats_begin_again_with_each_line() -> None:
    """Quotes and lists cannot break what goes over several lines."""
    assert only("**a\nb**\n\n> *c\n> d*") == "**a**\n**b**\n\n> *c*\n> *d*"


def test_a_long_code_block_is_closed_and_opened_again() -> None:
    """Every part is code of its language, within the limit, and all lines are there."""
    lines = [f"value_{number} = `{number}`" for number in range(400)]
    messages = render("Look:\n\n```py\n" + "\n".join(lines) + "\n```")
    assert len(messages) > 3
    assert all(message.endswith("\n```") and len(message) <= 2000 for message in messages)
    assert all("```py\n" in message for message in messages)
    shown = [read(message).formats[-1].removeprefix("pre py ") for message in messages]
    assert "\n".join(shown).splitlines() == lines


def test_a_long_table_is_cut_between_rows() -> None:
    """No part of a table begins or ends inside of a row."""
    rows = "".join(f"| {number} | some text |\n" for number in range(300))
    for message in render("| n | t |\n|---|---|\n" + rows):
        table = message.removeprefix("```\n").removesuffix("\n```").splitlines()
        assert all(" │ " in line or "┼" in line for line in table)
        assert table[-1].endswith("text")


def test_escapes_count() -> None:
    """A text that doubles in length by its escapes is split accordingly."""
    messages = render("\\*" * 3000)
    assert all(1900 < len(message) <= 2000 for message in messages[:-1])
    assert "".join(messages).count("*") == 3000


def test_an_empty_answer_shows_something() -> None:
    """Discord refuses empty messages."""
    assert render("") == ["…"]
    assert render("\u200b \n") == ["…"]
