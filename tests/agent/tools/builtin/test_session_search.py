"""The tool `session_search`."""

from dataclasses import dataclass, field, replace

import pytest

from agent.errors import ToolError
from agent.ports import PastMessage
from agent.tools.builtin.session_search import (
    MARKS,
    TOOL,
    TOTAL_CHARS,
    SearchArguments,
    session_search,
)
from agent.tools.context import Findings, Hit, SearchQuery
from agent.tools.registry import parse_arguments
from tests.agent.tools.doubles import context


@dataclass
class Searcher:
    """Finds what it was given, whatever is asked."""

    hits: tuple[Hit, ...] = ()
    asked: list[SearchQuery] = field(default_factory=list)

    async def search(self, query: SearchQuery) -> Findings:
        self.asked.append(query)
        return Findings(self.hits, "Searched: this.")


def past(seq: int, text: str = "so") -> PastMessage:
    return PastMessage(seq, "user", text, "2026-03-01T08:00:00Z")


def hit(seq: int, *messages: PastMessage, here: bool = True) -> Hit:
    return Hit(1 if here else 2, "about\ntea", here, seq, messages)


async def run(searcher: Searcher | None, arguments: str = '{"query": "zebra"}') -> str:
    parsed = parse_arguments(TOOL, arguments)
    assert isinstance(parsed, SearchArguments)
    return await session_search(context(searcher=searcher), parsed)


async def test_found_messages_stand_among_their_neighbours() -> None:
    """With their numbers, which read_conversation takes, and where they were said."""
    told = await run(Searcher((hit(2, past(1), past(2, "a zebra")), hit(5, past(5), here=False))))
    assert told.splitlines() == [
        "--- this conversation",
        "  #1 user 2026-03-01T08:00:00Z: so",
        "> #2 user 2026-03-01T08:00:00Z: a zebra",
        "--- another direct chat of the same sender: about tea",
        "> #5 user 2026-03-01T08:00:00Z: so",
        f"[{MARKS}Searched: this.]",
    ]


async def test_what_was_found_by_its_neighbours_is_marked() -> None:
    """Other than what holds the words itself."""
    told = await run(Searcher((hit(1, past(1)), replace(hit(2, past(2)), holds=False))))
    assert [line[:4] for line in told.splitlines() if "#" in line] == ["> #1", "~ #2"]


async def test_passages_that_meet_are_one() -> None:
    """Nothing is shown twice; others stand apart."""
    hits = (hit(2, past(1), past(2)), hit(9, past(9)), hit(3, past(2), past(3)))
    lines = (await run(Searcher(hits))).splitlines()
    assert [line.split(" user")[0] for line in lines[:6]] == [
        "--- this conversation",
        "  #1",
        "> #2",
        "> #3",
        "--- this conversation",
        "> #9",
    ]


async def test_nothing_found_is_said_with_where_was_looked() -> None:
    """So that the model does not take it for never."""
    told = await run(Searcher())
    assert told.startswith("Nothing was found.")
    assert told.endswith("\n[Searched: this.]")


async def test_of_long_messages_the_place_that_was_meant_is_shown() -> None:
    """And how much is left out."""
    text = "x" * 20_000 + " the zebra " + "y" * 20_000
    told = await run(Searcher((hit(1, past(1, text), past(2, text)),)))
    found, neighbour = told.splitlines()[1:3]
    assert "[…] x" in found
    assert " the zebra y" in found
    assert found.endswith("characters]")
    assert "zebra" not in neighbour
    assert len(told) < TOTAL_CHARS + 500


async def test_everything_that_was_asked_reaches_the_search() -> None:
    """Words, limits, times."""
    searcher = Searcher()
    await run(
        searcher,
        '{"query": " zebra ", "limit": 3, "neighbours": 0, "role": "tool",'
        ' "since": "2026-01-01", "until": "2026-02-01"}',
    )
    assert searcher.asked == [SearchQuery("zebra", 3, 0, "tool", "2026-01-01", "2026-02-01")]


@pytest.mark.parametrize("arguments", ['{"query": " "}', '{"query": "a", "limit": 31}', "{}"])
async def test_odd_arguments_are_refused(arguments: str) -> None:
    """In words for the model."""
    with pytest.raises(ToolError):
        await run(Searcher(), arguments)


async def test_without_a_searcher_there_is_nothing() -> None:
    """Nobody serves it."""
    with pytest.raises(ToolError, match="nothing to search"):
        await run(None)
