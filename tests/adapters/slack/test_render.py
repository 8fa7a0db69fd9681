"""Markdown to Slack's dialect, read back with a plain CommonMark parser."""

import pytest

from adapters.slack.render import render
from tests.support.shown_text import COMMONMARK, slack_text


def only(markdown: str) -> str:
    (message,) = render(markdown)
    return message


@pytest.mark.parametrize(
    ("markdown", "message"),
    [
        ("**b** *i* _j_ ~~s~~ `c`", "**b** *i* *j* ~~s~~ `c`"),
        ("# One\n\n###### Six *x*", "# One\n\n###### Six *x*"),
        ("# About C\\# #", "# About C#\u200b"),
        ("- a\n- b\n  1. c\n  2. d", "- a\n- b\n  1. c\n  2. d"),
        ("7) a\n8) b", "7) a\n8) b"),
        ("> q\n> r\n>\n> s", "> q\n> r\n> \n> s"),
        ("```py title\nx < 1 & y\n```", "```py\nx < 1 & y\n```"),
        ("````\na ``` b\n````", "````\na ``` b\n````"),
        ("~~~\n" + "`" * 12 + "\n~~~", "`" * 10 + "\n" + "`" * 9 + "\u200b```\n" + "`" * 10),
        ("[t](https://e.org/?a=1&b=2)", "[t](https://e.org/?a=1&b=2)"),
        ("[t](mailto:a@e.org) [u](page.md)", "[t](mailto:a@e.org) u (page.md)"),
        ("wow![t](https://e.org)", "wow[t](https://e.org)"),
        ("wow!\\![t](https://e.org)", "wow!\\![t](https://e.org)"),
        ("wow\\![t](https://e.org)", "wow\\![t](https://e.org)"),
        ("[a\\]b](https://e.org)", "[a\\]b](https://e.org)"),
        ("https://e.org/a_b?x=1&y=2, x", "https://e.org/a_b?x=1&y=2, x"),
        ("https://e.org/_a_/b*c", "<https://e.org/_a_/b*c>"),
        ("<https://e.org/a|b>", "https://e.org/a|b"),
        (
            "a < b && c > d &lt;",
            "a &lt; b &amp;&amp; c &gt; d &amp;lt;".replace("&amp;lt;", "&lt;"),
        ),
        ("&amp;lt;", "&amp;lt;"),
        ("| a | b |\n|---|---|\n| 中 | **x** |", "```\na  │ b\n───┼──\n中 │ x\n```"),
    ],
)
def test_formatting(markdown: str, message: str) -> None:
    """Each construct of markdown has its form."""
    assert only(markdown) == message


@pytest.mark.parametrize(
    "text",
    [
        "* a", "- a", "+ a", "-", "1. a", "12) a", "# a", "###### a", "#", "> a", "===", "---",
        "- - -", "~~~", "```", "`c`", "**b** __u__ _i_ snake_case", "~~s~~", "[t](https://e.org)",
        "![p](q)",
        "<b>", "<https://e.org|t>", "a | b\n--- | ---\nc | d", "| :-: |", "\\* \\", "&amp; &lt;",
        "[t]: u",
        "<!channel> <!here> <!everyone> <!subteam^S12> <@U12> <#C12>",
    ],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    """No sign in a text becomes a format, a mention or a link."""
    source = "".join(f"\\{char}" if char in "\\`*_[]<>#+-.!|~@:()=&" else char for char in text)
    message = only(f"x {source}\n\n{source}")
    assert "<" not in message
    tokens = COMMONMARK.parse(message)
    assert {token.type for token in tokens} == {"paragraph_open", "inline", "paragraph_close"}
    inline = {part.type for token in tokens for part in token.children or ()}
    assert inline <= {"text", "softbreak"}
    assert slack_text(message) == f"x {text}\n{text}\n"


def test_nobody_is_called_from_code() -> None:
    """In code there are no escapes, so that Slack's signs get an invisible character."""
    code = "<!here> <!subteam^S1> <@U12> <#C12|x>"
    message = only(f"`{code}`\n\n```\n{code}\n<!DOCTYPE html> List<@NonNull String>\n```")
    assert message.count("\u200b") == 8
    assert message.replace("\u200b", "").count(code) == 2
    assert "<!DOCTYPE html> List<@NonNull String>" in message


def test_white_space_never_makes_code_of_a_text() -> None:
    """Where a plain text is indented it stays a text."""
    deep = "x\n\n    a * b\n\n" + ">" * 20
    assert only(deep) == "x\n\n\u00a0\u00a0\u00a0\u00a0a \\* b\n\n" + "&gt;" * 20


def test_a_message_that_begins_inside_of_a_list_begins_at_the_margin() -> None:
    """Lines that are indented by four would be code without the list around them."""
    items = "".join(f"    - item {number} {'word ' * 40}\n" for number in range(150))
    first, second, *_ = render(f"- a\n  - b\n{items}")
    assert first.startswith("- a\n  - b\n    - item 0")
    assert second.startswith("- item")
    assert "code" not in {token.type for token in COMMONMARK.parse(second)}


def test_a_long_code_block_is_closed_and_opened_again() -> None:
    """Every part is code of its language, within the limit, and all lines are there."""
    lines = [f"value_{number} = {number}" for number in range(2000)]
    messages = render("```py\n" + "\n".join(lines) + "\n```")
    assert len(messages) >= 3
    tokens = [COMMONMARK.parse(message) for message in messages]
    assert all([token.type for token in part] == ["fence"] for part in tokens)
    assert all(part[0].info == "py" for part in tokens)
    assert "".join(part[0].content for part in tokens).splitlines() == lines
    assert all(len(message) <= 11_500 for message in messages)


def test_an_empty_answer_shows_something() -> None:
    """Slack refuses empty messages."""
    assert render(" ") == ["…"]
