"""What of an unfinished answer is shown."""

import pytest

from adapters.rendering.chunks import beginning
from tests.support.renderers import DISCORD, PLATFORMS, SLACK, Platform

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
