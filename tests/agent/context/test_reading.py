"""What is read of messages: statements, who made them, and how much at most."""

from typing import Any

import pytest

from agent.context.reading import MOST_MESSAGES, Statement, read
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.view.view import Entry


def entries(*messages: ChatMessage) -> list[Entry]:
    """Return messages with the numbers from 1 on."""
    return [Entry(seq, message) for seq, message in enumerate(messages, 1)]


def calling(name: str, arguments: str) -> ChatMessage:
    """Return an assistant message that calls a tool."""
    function: Any = {"name": name, "arguments": arguments}
    return ChatMessage(
        role="assistant",
        content="",
        tool_calls=[{"id": "c", "type": "function", "function": function}],
    )


def test_sentences_of_messages() -> None:
    """In order, with their places; Parley's own requests and system prompts are left out."""
    said = entries(
        ChatMessage(role="system", content="Be kind."),
        user_message("I am in Bonn. It rains."),
        assistant_message("Take a coat."),
        user_message("Go on.", synthetic=True),
    )
    assert read(said) == [
        Statement(2, "", 0, "I am in Bonn."),
        Statement(2, "", 1, "It rains."),
        Statement(3, "assistant", 0, "Take a coat."),
    ]


def test_content_parts() -> None:
    """The text parts of a message are read, images are not."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    parts = ChatMessage(role="user", content=[{"type": "text", "text": "A zebra."}, image])
    assert [each.text for each in read(entries(parts))] == ["A zebra."]


def test_a_group_names_its_speakers() -> None:
    """Each line of a message belongs to whoever is named in front of it."""
    said = entries(
        user_message("Anna: The boat is mine. It floats.\nBob: It leaks."),
        user_message("Bob: Look."),
        user_message("Anna: Not now"),
        user_message("Bob: Why?"),
    )
    assert read(said)[:3] == [
        Statement(1, "Anna", 0, "The boat is mine."),
        Statement(1, "Anna", 1, "It floats."),
        Statement(1, "Bob", 2, "It leaks."),
    ]


def test_a_list_of_one_person_is_no_group() -> None:
    """What stands before a colon is a name only where several names come again and again."""
    said = entries(user_message("Budget: 5 euros"), user_message("Date: 3 May"), user_message("Hi"))
    assert {each.who for each in read(said)} == {""}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"timeout": 3, "command": "make  test"}', "make test"),
        ('{"text": "hello", "path": "src/x.py"}', "src/x.py"),
        ('{"note": "only this"}', "only this"),
        ('{"n": 1}', None),
        ("[1]", None),
        ("no json", None),
    ],
)
def test_calls(arguments: str, told: str | None) -> None:
    """The argument that tells most, decoded."""
    found = read(entries(calling("bash", arguments)))
    assert found == ([] if told is None else [Statement(1, "called bash", 0, told)])


def test_results() -> None:
    """First and last line, and errors between them; the tool is known from its call."""
    result = tool_message("c", "", "start\nok\nTypeError: no\nok again\ndone")
    found = read(entries(calling("bash", "{}"), result))
    assert [each.text for each in found] == ["start", "TypeError: no", "done"]
    assert {each.who for each in found} == {"result of bash"}


def test_of_a_long_result_both_ends_are_read() -> None:
    """No line that the cut has torn is among them."""
    result = "first line\n" + "filler words here\n" * 2_000 + "the last line"
    texts = [each.text for each in read(entries(tool_message("c", "t", result)))]
    assert texts == ["first line", "the last line"]


def test_of_a_long_answer_lines_with_numbers_are_read() -> None:
    """And the first and the last one."""
    lines = [
        "Here is the plan.",
        *["Words and more words of it."] * 9_000,
        "It costs 77 euros.",
        "Bye now.",
    ]
    texts = [each.text for each in read(entries(assistant_message("\n".join(lines))))]
    assert texts == ["Here is the plan.", "It costs 77 euros.", "Bye now."]


def test_a_sentence_over_two_lines_is_read_whole() -> None:
    """What a longer answer has cut into lines of one width is not torn where lines are left out."""
    wrapped = (
        "It takes 77 litres of petrol to get there, and the same to come back\nby night. Good."
    )
    lines = ["A plan.", *["Words and more words."] * 9_000, wrapped]
    texts = [each.text for each in read(entries(assistant_message("\n".join(lines))))]
    assert texts[1:] == [wrapped.removesuffix(" Good."), "Good."]


def test_code_is_no_outcome() -> None:
    """The first and the last line of a listing say nothing of what came of a call."""
    listing = 'const border = (width: number) => {\n  /* … */\n  return ["-".repeat(width)];\n}'
    assert not read(entries(tool_message("c", "read", listing)))


def test_reading_is_bounded() -> None:
    """However much was said, not more is read than one pass can afford; the newest is."""
    said = [user_message("It rains in Bonn. " * 200) for _ in range(4_000)]
    found = read(entries(*said))
    assert len({each.seq for each in found}) <= MOST_MESSAGES["user"]
    assert found[-1].seq == 4_000
    assert sum(len(each.text) for each in found) < 400_000


def test_secrets_are_masked() -> None:
    """Where the words around them tell what they are, and in calls."""
    key = "sk-ant-" + "a1b2" * 5
    said = entries(
        user_message("My password: hunter2secret"), calling("bash", f'{{"command": "curl {key}"}}')
    )
    texts = [each.text for each in read(said)]
    assert len(texts) == 2
    assert "hunter2secret" not in texts[0]
    assert key not in texts[1]


def outcomes(*messages: ChatMessage) -> list[tuple[int, str, str]]:
    """Return what came of requests, as far as it is told."""
    return [(each.seq, each.who, each.text) for each in read(entries(*messages)) if each.is_outcome]


def test_what_came_of_a_request_is_told_apart() -> None:
    """The last sentence of the answer that says so, well or badly; no question, no intention."""
    worked = assistant_message("The build passed. Let me know more. Shall I push it?")
    failed = assistant_message("All of it took a minute. HAT139 has not enough seats left. Go on?")
    asked = user_message("Build it.")
    looked = tool_message("c", "bash", "ok")
    call = calling("bash", '{"command": "make"}')
    assert outcomes(asked, call, looked, worked, asked, call, looked, failed) == [
        (4, "outcome", "The build passed."),
        (8, "outcome", "HAT139 has not enough seats left."),
    ]


def test_work_that_goes_on_has_come_so_far() -> None:
    """Where the last message is no answer; a step without a word leaves the text before it."""
    told = assistant_message("The tests of the parser failed twice.")
    call = calling("bash", '{"command": "make"}')
    said = [user_message("Build it."), call, tool_message("c", "bash", "ok"), told, call]
    assert outcomes(*said) == [(4, "so far", "The tests of the parser failed twice.")]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("I couldn't find your reservation, sorry.", ["I couldn't find your reservation, sorry."]),
        ("A scope has been nested in another one since the beginning.", []),
        ("I found it in a book. " + "Names are bound in blocks of code. " * 9, []),
        ("You're welcome!", []),
        ("Once I have it confirmed, I'll book your flight.", []),
        ("To upgrade what has been booked, I will need your card.", []),
    ],
)
def test_without_a_tool_an_answer_tells_of_itself(answer: str, told: list[str]) -> None:
    """An explanation is no outcome, nor is politeness."""
    assert [
        text for _, _, text in outcomes(user_message("And?"), assistant_message(answer))
    ] == told


def test_what_is_pasted_is_told_apart() -> None:
    """Output of a shell, code and tables; the words around them are the person's."""
    text = (
        "Why does it fail here?\n$ make test\nValueError: no such day: 31\n"
        "| day | runs |\nIt worked on Monday."
    )
    said = [(each.who, each.text) for each in read(entries(user_message(text)))]
    assert said == [
        ("", "Why does it fail here?"),
        ("pasted", "ValueError: no such day: 31"),
        ("pasted", "| day | runs |"),
        ("", "It worked on Monday."),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Milk\nBread\nEggs",
        "US$ 500 for the flight\n20% off on Monday\n3. the hotel",
        "What we can spend:\n$ 500 for the flights\n$ 300 for the hotel",
        "My day:\n9:00 dentist\n10:30 call with Anna\n14:15 lunch\n[x] pay the deposit",
        "Hello,\n\nthe fair begins on May 3.\n\nBest,\nAnna",
    ],
)
def test_lines_that_people_write_are_their_own(text: str) -> None:
    """Lists, prices and letters are no output."""
    assert {each.who for each in read(entries(user_message(text)))} == {""}
