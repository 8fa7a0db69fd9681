"""Outlines of large texts by what kind they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import text_of, user_message
from agent.view.edits import LEAST_OUTLINED_CHARS, outlined
from agent.view.outline import outline

KINDS = {
    "JSON": ('{"name": "Ada", "orders": [{"id": 1}], "at": {"x": 1}}', "orders[0]: 1 keys"),
    "code": (
        "import os\ndef one():\n    pass\nclass Two:\n    def three(self): ...",
        "line 2: def one",
    ),
    "Markdown": ("# One\ntext\n## Two\ntext\n## Three", "line 3: ## Two"),
    "text": ("Once upon a time.\n\nThe end, at last.", "line 3: The end"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_outline(kind: str) -> None:
    """What it is, how it is built, how it begins and ends."""
    text, line = KINDS[kind]
    told = outline(text)
    assert told.startswith(f"{kind}, {len(text):,} characters")
    assert line in told
    assert f"It begins: {text[:10]}" in told


def test_what_only_looks_like_json_is_text() -> None:
    """An unclosed bracket."""
    assert outline("[not json, is it").startswith("text, ")


@given(st.text())
def test_an_outline_is_bounded_and_the_same_every_time(text: str) -> None:
    """Of whatever text."""
    told = outline(text * 50)
    assert len(told) < LEAST_OUTLINED_CHARS
    assert told == outline(text * 50)


def test_only_long_messages_are_outlined() -> None:
    """The original is named; what is short stays as it is."""
    short, long = user_message("hi"), user_message("many words " * 1_000)
    assert outlined(short, 3) is short
    told = text_of(outlined(long, 3))
    assert "message 3 of the transcript: read_conversation(from_seq=3, limit=1)" in told
    assert outlined(outlined(long, 3), 3) == outlined(long, 3)
