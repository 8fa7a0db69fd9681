"""`lcm_grep`, `lcm_describe` and `lcm_expand` on records in memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.extract import extract
from agent.context_engine import Node
from agent.engines.lcm import tools
from agent.errors import ToolError
from agent.messages import assistant_message, encode, user_message
from agent.view.view import Entry
from tests.agent.tools.doubles import MemoryArchive
from tests.support.effort import effort

LEAF = Node(1, 0, 2, 4, "Goal: tea.", "extract", 4, 90)
OTHER = Node(2, 0, 5, 6, "Goal: cake.", "model", 4, 80)
ROOT = Node(3, 1, 2, 6, "Tea, cake.", "model", 3, 8, children=(1, 2))


def archive(count: int = 8) -> MemoryArchive:
    rows = {
        seq: encode(user_message(f"message {seq} about tea{seq}")) for seq in range(1, count + 1)
    }
    return MemoryArchive(rows, [LEAF, OTHER, ROOT])


def ask(name: str, records: MemoryArchive | None = None, **arguments: Any) -> str:
    return tools.answer(f"lcm_{name}", arguments, records or archive())


def test_words_are_found_under_their_node() -> None:
    """The lowest one that covers them; with neighbours, the hit marked."""
    told = ask("grep", query="tea4", neighbours=1)
    assert told.splitlines() == [
        "in node 1 (messages 2 to 4):",
        "  #3 user: message 3 about tea3",
        "* #4 user: message 4 about tea4",
        "  #5 user: message 5 about tea5",
    ]
    assert ask("grep", query="tea8").startswith("in no node yet:")


def test_results_come_in_pages() -> None:
    """The pages together are all of it, none twice."""
    pages = [ask("grep", query="message", limit=3, page=page) for page in (1, 2, 3)]
    assert [page.count("* #") for page in pages] == [3, 3, 2]
    assert "page=2" in pages[0]
    assert "page=" not in pages[2]
    assert ask("grep", query="coffee") == "No message of this conversation matches."


def test_a_pattern_is_matched_in_a_range() -> None:
    """Letter case is ignored."""
    told = ask("grep", pattern=r"TEA[3-7]$", from_seq=4, to_seq=6)
    assert [seq for seq in range(1, 9) if f"* #{seq} " in told] == [4, 5, 6]


@pytest.mark.parametrize("looked_for", [{"query": "message"}, {"pattern": "message"}])
@pytest.mark.parametrize(("begins_at", "upto"), [(9, 8), (8, 7), (6, 6), (3, 6)])
def test_what_the_running_turn_has_in_view_is_not_found(
    looked_for: dict[str, str], begins_at: int, upto: int
) -> None:
    """Nor shown as a neighbour. What a node stands for is out of view, also of the same turn."""
    records = archive()
    records.turn_begins_at = begins_at
    told = ask("grep", records, **looked_for, neighbours=5, limit=50)
    assert {seq for seq in range(1, 9) if f"* #{seq} " in told} == {*range(1, upto + 1)}
    assert {seq for seq in range(1, 9) if f"#{seq} " in told} == {*range(1, upto + 1)}


def test_a_long_scan_says_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The amount of text is bounded."""
    monkeypatch.setattr(tools, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(tools, "SCANNED_CHARS", 60)
    assert "go on with from_seq=5" in ask("grep", pattern="coffee")
    monkeypatch.setattr(tools, "SCANNED_CHARS", 10**6)
    assert "go on with" not in ask("grep", pattern="coffee")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "pattern", ["(a+)+$", r"(?:a|a)*b\1", "((((a", "(?:(?:a{9999}){9999}){99}"]
)
def test_a_pattern_cannot_hang_the_gateway(pattern: str) -> None:
    """It is refused, or stopped within its time."""
    records = MemoryArchive({1: encode(user_message("a" * 5_000 + "!"))})

    def refused() -> None:
        with pytest.raises(ToolError, match=r"pattern"):
            ask("grep", records, pattern=pattern)

    assert effort(refused) < 500


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "PATTERN_TIMEOUT_S", 1.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("grep", {}),
        ("grep", {"query": "a", "pattern": "b"}),
        ("grep", {"query": "a", "limit": 0}),
        ("expand", {}),
        ("describe", {"number": 1}),
    ],
)
def test_wrong_arguments_are_told(name: str, arguments: dict[str, Any]) -> None:
    """In words for the model."""
    with pytest.raises(ToolError, match=f"the arguments of lcm_{name} do not fit"):
        ask(name, **arguments)


def test_nodes_are_described() -> None:
    """All in a line each, or one with what it condenses and its text."""
    assert len(ask("describe").splitlines()) == 3
    told = ask("describe", node=3)
    assert told.startswith(
        "node 3: level 1, messages 2 to 6, of nodes 1, 2, 3 tokens for 8, by model"
    )
    assert told.endswith("\n\nTea, cake.")
    assert "nothing" not in told
    with pytest.raises(ToolError, match="no node 9"):
        ask("describe", node=9)
    assert "no nodes yet" in ask("describe", MemoryArchive())


def test_a_line_tells_what_a_node_tells() -> None:
    """Not the sentence that all notes begin with."""
    said = [Entry(2, user_message("The tea comes from a garden in Darjeeling since 1931."))]
    node = Node(1, 0, 2, 2, extract(said, "", 200).text, "extract", 40, 90)
    told = ask("describe", MemoryArchive({}, [node]))
    assert "by extract: #2 user: The tea comes from a garden in Darjeeling since 1931." in told


def test_an_unknown_tool_is_an_error() -> None:
    """The model is told."""
    with pytest.raises(ToolError, match="offers no tool"):
        tools.answer("lcm_forget", {}, archive())


def test_a_node_is_expanded_to_its_originals() -> None:
    """As they are stored."""
    records = archive()
    head, _, body = ask("expand", records, node=1).partition("\n")
    assert head == "[messages 2 to 4 as they are stored; that is all of it]"
    assert body == "".join(f"{records.rows[seq]}\n" for seq in (2, 3, 4))
    assert ask("expand", from_seq=90) == "There are no messages from 90 to 90."


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=400)


@given(st.lists(texts, min_size=1, max_size=8), st.integers(100, 400))
def test_pages_put_together_are_the_stored_bytes(said: list[str], max_tokens: int) -> None:
    """Of every row, whatever is in it."""
    rows = {seq: encode(assistant_message(text * 9)) for seq, text in enumerate(said, start=1)}
    records, shown, place = MemoryArchive(rows), "", (1, 0)
    for _ in range(2_000):
        found = tools.page_of(records, place[0], len(rows), place[1], max_tokens)
        assert found is not None
        page, following = found
        shown += page
        if following is None:
            break
        place = following
    assert shown.encode() == "".join(f"{body}\n" for body in rows.values()).encode()


def test_the_next_page_is_named_so_that_it_can_be_asked_for() -> None:
    """With the arguments of the tool."""
    records = MemoryArchive({
        1: encode(user_message("word " * 400)),
        2: encode(user_message("end")),
    })
    first = ask("expand", records, from_seq=1, to_seq=2, max_tokens=100)
    assert "go on with from_seq=1, from_char=" in first
    assert "to_seq=2" in first
