"""Where a long answer is cut, and what of an unfinished one is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from adapters.rendering.chunks import Splitter, beginning, is_blank
from adapters.rendering.styled import BOLD, NO_STYLES, StyledText
from tests.support.renderers import DISCORD, PLATFORMS, SLACK, Platform


class Tens(Splitter):
    """Messages of ten characters; capital letters count double."""

    @override
    def window(self, start: int) -> int:
        return min(start + 10, len(self._text))

    @override
    def payload(self, start: int, end: int) -> str:
        return "".join(text for text, _ in self.pieces_between(start, end))

    @override
    def shortened(self, payload: str, start: int, end: int) -> int | None:
        size = len(payload) + sum(map(str.isupper, payload))
        return None if size <= 10 else end - 1


def cut(*blocks: str) -> list[str]:
    """Return the messages of an answer; each block is a piece."""
    text = StyledText()
    for number, block in enumerate(blocks):
        if number:
            text.write("\n\n", NO_STYLES)
            text.block_starts.append(text.length)
        text.write(block, frozenset({BOLD} if number % 2 else ()))
    return list(Tens(text).payloads())


@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        (("all of it",), ["all of it"]),
        (("one", "two", "three"), ["one\n\ntwo", "three"]),
        (("aa", "line\nline\nline"), ["aa\n\nline", "line\nline"]),
        (("some words stay whole",), ["some", "words", "stay whole"]),
        (("a", "nine char"), ["a", "nine char"]),
        (("0123456789abc",), ["0123456789", "abc"]),
        (("123456789e\u0301x",), ["123456789", "e\u0301x"]),
        (("1234567👩\u200d👩\u200d👧",), ["1234567", "👩\u200d👩\u200d👧"]),
        (("123456789👍🏽",), ["123456789", "👍🏽"]),
        (("e" + "\u0301" * 40,), ["e" + "\u0301" * 9] + ["\u0301" * 10] * 3 + ["\u0301"]),
        (("ABCDEF",), ["ABCDE", "F"]),
        (("\n\n  a\n\n\n\n",), ["  a"]),
        (("\u200b" * 12 + "a",), ["\u200b\u200ba"]),
        (("\u200b \n ",), []),
    ],
)
def test_cuts(blocks: tuple[str, ...], messages: list[str]) -> None:
    """Between blocks, else lines, else words, else characters; blank messages are left out."""
    assert cut(*blocks) == messages


@given(st.lists(st.text("ab AB\n\u200be\u0301👍🏽\u200d", min_size=1, max_size=40), max_size=5))
def test_nothing_is_lost(blocks: list[str]) -> None:
    """Messages keep the limit and together are the text."""
    messages = cut(*blocks)
    assert all(len(message) <= 10 and not is_blank(message) for message in messages)
    assert visible("".join(messages)) == visible("".join(blocks))


def visible(text: str) -> str:
    return "".join(char for char in text if not is_blank(char))


every_platform = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda it: it.name)


@pytest.mark.parametrize(
    ("markdown", "part"),
    [
        ("a\n```py", "a\n"),
        ("a\n``", "a\n"),
        ("```\na\n```", "```\na\n"),
        ("> ~~~", None),
        ("a `b` ```c", "a `b` ```c"),
        ("``` x ``` y", "``` x ``` y"),
        (" \n", None),
        ("x" * 9000, "x" * 8192),
        ("x\n" * 4000 + "```", "x\n" * 4000),
        ("x\n" * 4095 + "```" + "y" * 9000, "x\n" * 4095 + "``"),
    ],
)
def test_the_beginning_of_an_answer(markdown: str, part: str | None) -> None:
    """Long answers are cut, and a fence with nothing behind it is left out."""
    assert beginning(markdown, 4096) == part


@every_platform
def test_a_preview_is_visibly_unfinished(platform: Platform) -> None:
    """It ends with an ellipsis, also behind code that is still open."""
    shown = platform.preview_text("**Hello** wor")
    assert shown in {"Hello wor …", "**Hello** wor …"}
    assert (platform.preview_text("a\n\n```py\nx = 1") or "").endswith(" …")
    assert platform.preview_text("```py") is None


def test_code_that_is_still_open_is_closed() -> None:
    """Nothing stands behind the fence on its line, or it would not close the code."""
    assert DISCORD.preview_text("```py\nx = 1") == "```py\nx = 1\n```\n …"
    assert SLACK.preview_text("```py\nx = 1") == "```py\nx = 1\n```\n …"


@every_platform
@pytest.mark.parametrize("source", ["word " * 5000, "😀" * 9000, "字" * 9000, "\\*" * 4500])
def test_a_preview_is_one_message(platform: Platform, source: str) -> None:
    """A long answer is previewed by its beginning, which Slack measures in bytes."""
    shown = platform.preview_text(source) or ""
    size = len(shown) if platform is DISCORD else len(shown.encode("utf-16-le")) // 2
    assert size <= platform.limit
    assert len(shown) > 900
    if platform is SLACK:
        assert len(shown.encode()) <= 4000
