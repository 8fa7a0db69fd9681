"""The tool `read_conversation`."""

import re

import pytest
from pydantic import ValidationError

from agent.errors import ToolError
from agent.ports import PastMessage
from agent.settings import OutputSettings
from agent.tools.builtin.read_conversation import ReadArguments, read_conversation
from tests.agent.tools.doubles import MemoryReader, context

MESSAGES = [
    PastMessage(1, "user", "I live in Vienna", "2026-03-01T12:00:00Z"),
    PastMessage(2, "assistant", "Noted.", "2026-03-01T12:00:01Z"),
    PastMessage(3, "user", "Is VIENNA large?", "2026-03-01T12:00:02Z"),
]


async def read(reader: MemoryReader, **arguments: object) -> str:
    return await read_conversation(context(reader), ReadArguments.model_validate(arguments))


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
        ReadArguments.model_validate({"limit": limit})


def test_a_place_in_a_text_is_not_negative() -> None:
    """A negative one would count from the end."""
    with pytest.raises(ValidationError):
        ReadArguments.model_validate({"from_char": -1})
