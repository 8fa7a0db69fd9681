"""Reading back in the conversation, and searching what was said."""

import re
from dataclasses import dataclass, field, replace

import pytest
from pydantic import ValidationError

from agent.errors import ToolError
from agent.ports import Findings, Hit, Origin, PastMessage, SearchQuery
from agent.settings import OutputSettings
from agent.tools.builtin.history import (
    FOUND_CHARS,
    MARKS,
    HistoryArguments,
    HistorySearchArguments,
    read_conversation,
    session_search,
)
from agent.tools.registry import parse_arguments
from tests.agent.tools.doubles import KnownPast, MemoryReader, context

MESSAGES = [
    PastMessage(1, "user", "I live in Vienna", "2026-03-01T12:00:00Z"),
    PastMessage(2, "assistant", "Noted.", "2026-03-01T12:00:01Z"),
    PastMessage(3, "user", "Is VIENNA large?", "2026-03-01T12:00:02Z"),
]


async def read(reader: MemoryReader, **arguments: object) -> str:
    return await read_conversation.run(context(reader), HistoryArguments.model_validate(arguments))


async def test_messages_are_shown_with_seq_role_and_time() -> None:
    """One block for each, in order."""
    assert await read(MemoryReader(MESSAGES), limit=2) == (
        "#2 assistant 2026-03-01T12:00:01Z: Noted.\n#3 user 2026-03-01T12:00:02Z: Is VIENNA large?"
    )


async def test_arguments_reach_the_reader() -> None:
    """Start and text narrow down what is shown."""
    shown = await read(MemoryReader(MESSAGES), from_seq=2, contains="vienna")
    assert shown.startswith("#3 user")
    assert "\n" not in shown


async def test_an_output_may_be_older_than_what_the_conversation_has_read() -> None:
    """It is found by its id after `/new` as well: it counts as all that was ever read here."""
    page = Origin("page", "a.example")
    turn = context(MemoryReader(o1="One"))
    turn.rights.read.past = KnownPast({page})
    arguments = HistoryArguments.model_validate({"output_id": "o1"})
    assert await read_conversation.run(turn, arguments) == "#1: One"
    assert turn.rights.read.origins == {page}


async def test_no_match_is_said() -> None:
    """The model is not left with an empty text."""
    assert "No message" in await read(MemoryReader(MESSAGES), contains="Graz")


async def test_long_texts_are_cut_to_their_share() -> None:
    """Even the most and widest messages stay within the default limits of a tool result."""
    wide = [
        PastMessage(n, "assistant", "😀" * 5000, "2026-03-01T12:00:00.000000+00:00")
        for n in range(200)
    ]
    shown = await read(MemoryReader(wide), limit=200)
    assert len(shown.encode()) < OutputSettings().max_bytes
    assert len(re.findall(r"\[\+4,9\d\d characters; go on with from_seq=", shown)) == 200


async def test_one_message_gets_all_the_room() -> None:
    """A cut message can be read alone."""
    reader = MemoryReader([PastMessage(1, "user", "x" * 7000, "t")])
    assert await read(reader, from_seq=1, limit=1) == f"#1 user t: {'x' * 7000}"


async def test_a_long_message_is_read_to_its_end() -> None:
    """Each answer says where the next one begins; put together they are the message."""
    text = "".join(f"{number:06}" for number in range(4000))
    reader = MemoryReader([PastMessage(1, "user", text, "t"), PastMessage(2, "user", "after", "t")])
    whole = ""
    from_char: int | None = 0
    while from_char is not None:
        shown = await read(reader, from_seq=1, limit=1, from_char=from_char)
        part, _, rest = shown.removeprefix("#1 user t: ").partition(" [+")
        whole += part
        onward = re.search(r"go on with from_seq=1, from_char=(\d+)]$", rest)
        from_char = int(onward[1]) if onward else None
    assert whole == text


async def test_the_mark_of_a_cut_message_tells_how_much_is_left() -> None:
    """The model can judge whether reading on is worth it."""
    reader = MemoryReader([PastMessage(7, "user", "x" * 9000, "t")])
    first = await read(reader, from_seq=7, limit=1)
    shown = first.partition(" [+")[0].count("x")
    assert first.endswith(
        f"x [+{9000 - shown:,} characters; go on with from_seq=7, from_char={shown}]"
    )
    rest = await read(reader, from_seq=7, limit=1, from_char=shown)
    assert rest == f"#7 user t: {'x' * (9000 - shown)}"


async def test_a_place_behind_the_end_of_a_message_shows_nothing_of_it() -> None:
    """No error: the line stands there with its seq, so the model sees that it has it all."""
    reader = MemoryReader([PastMessage(7, "user", "short", "t")])
    assert await read(reader, from_seq=7, limit=1, from_char=99) == "#7 user t: "


async def test_a_stored_output_is_read_page_by_page() -> None:
    """The pages, put together, are the output; each says where to go on."""
    output = "".join(f"line {number}\n" for number in range(1, 51))
    reader = MemoryReader(o1=output)
    first = await read(reader, output_id="o1", limit=30)
    assert first.splitlines()[0] == "#1: line 1"
    assert first.splitlines()[-1] == "[50 rows in all; go on with from_seq=31]"
    second = await read(reader, output_id="o1", limit=30, from_seq=31)
    assert second.splitlines()[0] == "#31: line 31"
    assert second.splitlines()[-1] == "#50: line 50"


async def test_a_long_line_is_read_in_rows() -> None:
    """A line of any length can be read to its end, within the limits."""
    reader = MemoryReader(o1="😀" * 25_500)
    rows = ""
    for start in (1, 9, 17, 25):
        page = await read(reader, output_id="o1", limit=200, from_seq=start)
        assert len(page.encode()) < OutputSettings().max_bytes
        rows += page
    assert rows.count("😀") == 25_500


async def test_an_output_is_searched() -> None:
    """Rows keep their numbers."""
    reader = MemoryReader(o1="one\nTwo\nthree")
    assert await read(reader, output_id="o1", contains="two") == "#2: Two"
    assert await read(reader, output_id="o1", contains="four") == "No row of the output matches."


async def test_an_unknown_output_is_an_error() -> None:
    """Ids of other conversations are unknown here."""
    with pytest.raises(ToolError, match="no stored output 'o9'"):
        await read(MemoryReader(), output_id="o9")


@pytest.mark.parametrize("limit", [0, 201])
def test_the_limit_is_bounded(limit: int) -> None:
    """The reader takes 1 to 200."""
    with pytest.raises(ValidationError):
        HistoryArguments.model_validate({"limit": limit})


def test_a_place_in_a_text_is_not_negative() -> None:
    """A negative one would count from the end."""
    with pytest.raises(ValidationError):
        HistoryArguments.model_validate({"from_char": -1})


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
    parsed = parse_arguments(session_search, arguments)
    assert isinstance(parsed, HistorySearchArguments)
    return await session_search.run(context(searcher=searcher), parsed)


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
    assert len(told) < FOUND_CHARS + 500


async def test_what_short_messages_leave_goes_to_long_ones() -> None:
    """A single long one among short ones is shown nearly whole."""
    text = "The zebra sleeps. " * 300
    short = [past(n, "yes") for n in (1, 2, 4, 5)]
    told = await run(Searcher((hit(3, *short[:2], past(3, text), *short[2:]),)))
    assert len(told) > len(text)


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


async def test_in_order_of_time() -> None:
    """What was said first comes first, whatever is best."""
    late, early = past(9), replace(past(2), at="2026-02-01T08:00:00Z")
    searcher = Searcher((hit(9, late), hit(2, early)))
    told = await run(searcher, '{"query": "zebra", "order": "time"}')
    assert [line[:4] for line in told.splitlines() if "#" in line] == ["> #2", "> #9"]


async def test_without_a_searcher_there_is_nothing() -> None:
    """Nobody serves it."""
    with pytest.raises(ToolError, match="nothing to search"):
        await run(None)
