"""Edits: shorter, valid, pure."""

import copy
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolCall, encode, text_of, tool_message, user_message
from agent.view.edits import (
    CLEARED,
    DUPLICATE,
    LEAST_OUTLINED_CHARS,
    clipped,
    duplicate,
    outline,
    outlined,
    pruned,
    with_short_arguments,
    without_images,
    without_thinking,
)
from tests.support.scripted_model import tool_call
from tests.support.shared import SHARED

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
long_texts = st.builds(lambda text, n: text * n, texts, st.integers(0, 40))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | long_texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(texts, inner, max_size=8),
    max_leaves=30,
)
arguments = st.one_of(
    st.dictionaries(texts, values, max_size=8).map(json.dumps),
    st.dictionaries(texts, values, max_size=8).map(lambda it: json.dumps(it, ensure_ascii=False)),
    long_texts,
)
parts = st.one_of(
    long_texts.map(lambda text: {"type": "text", "text": text}),
    st.sampled_from([
        PICTURE,
        {"type": "image", "source": {"data": "A" * 99}},
        {"type": "input_image"},
    ]),
)
contents = st.none() | long_texts | st.lists(parts, max_size=5)


def calling(*texts: str) -> ChatMessage:
    """Return a message with one call for each text of arguments."""
    calls = [
        ToolCall(id=f"c{n}", type="function", function={"name": "look", "arguments": text})
        for n, text in enumerate(texts)
    ]
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
    """Draw a message of any role with any content."""
    role = draw(st.sampled_from(["user", "assistant", "tool"]))
    message: dict[str, Any] = {"role": role, "content": draw(contents)}
    if role == "tool":
        message |= {"tool_call_id": "c0", "name": draw(st.sampled_from(["look", "a\nb", ""]))}
    if role == "assistant":
        message = {**calling(*draw(st.lists(arguments, max_size=3))), **message}
        message["opaque"] = {"anthropic": [{"type": "thinking", "signature": "x"}]}
    return message  # type: ignore[return-value]


EDITS: list[Callable[[ChatMessage], ChatMessage]] = [
    lambda message: pruned(message, tool_call("look", {"path": "a" * 300})),
    lambda message: pruned(message, None),
    duplicate,
    lambda message: with_short_arguments(message, 200),
    lambda message: with_short_arguments(message, 0),
    without_images,
    without_thinking,
    lambda message: clipped(message, 100, 7),
    lambda message: clipped(message, 400, 123_456),
]


def chars_of(message: ChatMessage) -> int:
    """Return the characters of the texts and the call arguments."""
    return len(text_of(message)) + sum(map(len, arguments_of(message)))


def arguments_of(message: ChatMessage) -> list[str]:
    """Return the arguments of the message's calls."""
    return [call["function"]["arguments"] for call in message.get("tool_calls", [])]


@given(messages(), st.sampled_from(EDITS))
def test_edits_are_pure_and_never_longer(
    message: ChatMessage, edit: Callable[[ChatMessage], ChatMessage]
) -> None:
    """The same bytes each time, the input as it was; only an image may become a line of text."""
    before = copy.deepcopy(message)
    shown = edit(message)
    assert message == before
    assert encode(edit(copy.deepcopy(message))) == encode(shown)
    assert chars_of(shown) <= chars_of(message) or has_images(message)


def has_images(message: ChatMessage) -> bool:
    """Whether there are parts that are no text."""
    content = message.get("content")
    return isinstance(content, list) and any(part["type"] != "text" for part in content)


@given(messages(), st.sampled_from(EDITS))
def test_edits_keep_what_ties_messages_together(
    message: ChatMessage, edit: Callable[[ChatMessage], ChatMessage]
) -> None:
    """Role, name, call ids and names of called tools."""
    shown = edit(message)
    for key in ("role", "name", "tool_call_id"):
        assert shown.get(key) == message.get(key)
    calls, called = shown.get("tool_calls", []), message.get("tool_calls", [])
    assert [(it["id"], it["function"]["name"]) for it in calls] == [
        (it["id"], it["function"]["name"]) for it in called
    ]


@given(messages(), st.sampled_from(EDITS))
def test_valid_arguments_stay_valid(
    message: ChatMessage, edit: Callable[[ChatMessage], ChatMessage]
) -> None:
    """What changes is JSON afterwards, whatever it was."""
    for before, after in zip(arguments_of(message), arguments_of(edit(message)), strict=True):
        assert before == after or json.loads(after) is not None


@given(messages(), st.sampled_from(EDITS))
def test_edits_of_what_is_shown_shortened_change_nothing_more(
    message: ChatMessage, edit: Callable[[ChatMessage], ChatMessage]
) -> None:
    """A list that was compacted before keeps its bytes, the lines that stand for results too."""
    once = edit(message)
    if once is not message:
        assert edit(once) == once


def test_a_pruned_result_tells_what_it_was() -> None:
    """Tool, arguments, size, outcome and first line, in one line."""
    result = tool_message("c1", "read_file", "\n\nimport os\n" + "x = 1\n" * 2000)
    call = tool_call("read_file", {"path": "src/a.py", "lines": [1, 2], "all": True}, "c1")
    assert pruned(result, call) == tool_message(
        "c1",
        "read_file",
        "[read_file path=src/a.py lines=(2 values) all=true → 12,012 chars, 2,003 lines; ok;"
        " first line: import os]",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Error: no such file src/a.py", "; error; Error: no such file src/a.py]"),
        ("compiling\n$ make\nExit code: 2", "; exit code 2; first line: compiling]"),
        ('{"output": "done", "exit_code": 0}', "; exit code 0; first line: "),
        ("Process exited with code 1\nls: a: not found", "; exit code 1; ls: a: not found]"),
        ('{"success": false, "hint": "later"}', "; error; first line: "),
        ("start\na.ts(2,5): error TS2322: Type 'x'", "; error; a.ts(2,5): error TS2322: Type 'x'"),
        ("start\nTraceback (most recent call last):\nKeyError: 1", "; error; KeyError: 1]"),
        ("how errors are handled", "; ok; first line: how errors are handled]"),
    ],
)
def test_a_pruned_result_tells_how_it_ended(text: str, told: str) -> None:
    """Guessed from what tools usually write at either end."""
    padded = text.replace("\n", "\n" + "-" * 300 + "\n", 1) + " " * 300
    line = text_of(pruned(tool_message("c1", "run", padded), tool_call("run", {}, "c1")))
    assert told in line
    assert "\n" not in line


def test_the_end_of_a_long_result_counts_most() -> None:
    """Where commands say how they ended, whatever an earlier one said."""
    text = "exit code 0\n" + "...\n" * 1000 + "a.c:3: error: no x\nexit code 2"
    line = text_of(pruned(tool_message("c1", "run", text), None))
    assert line.endswith("; exit code 2; a.c:3: error: no x]")


def test_an_error_in_the_middle_of_a_text_is_no_outcome() -> None:
    """A file that deals with errors was read all the same."""
    text = "ok\n" * 1000 + "ValueError: x\n" + "ok\n" * 1000
    assert "; ok;" in text_of(pruned(tool_message("c1", "read", text), None))


def test_a_pruned_result_shows_unreadable_arguments_as_they_are() -> None:
    """What the model wrote is the best that can be told."""
    call = tool_call("run", {}, "c1")
    call["function"]["arguments"] = '{"path": "a.py'
    line = text_of(pruned(tool_message("c1", "run", "x" * 900), call))
    assert line.startswith('[run {"path": "a.py → 900 chars, 1 line; ok; first line: xxx')


def test_a_pruned_image_is_counted() -> None:
    """A screenshot has no text, and still says what it was."""
    shot = tool_message("c1", "screenshot", "")
    shot["content"] = [PICTURE]
    line = text_of(pruned(shot, tool_call("screenshot", {"of": "page"}, "c1")))
    assert line == "[screenshot of=page → 0 chars, 0 lines, images: 1; ok; no text]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x" * 100, "[run of=yyyyyyyyyy → 100 chars, 1 line; ok]"),
        ("x" * 40, "[run → 40 chars, 1 line; ok]"),
        ("x" * 20, "x" * 20),
        (DUPLICATE, DUPLICATE),
    ],
)
def test_a_line_says_less_where_it_would_be_longer(text: str, line: str) -> None:
    """Down to the result itself."""
    call = tool_call("run", {"of": "y" * 10}, "c1")
    assert text_of(pruned(tool_message("c1", "run", text), call)) == line


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200).filter(
    str.strip
)
outcomes = st.sampled_from([
    "",
    "Error: no such file\n",
    "exit code 3\n",
    "\n\n",
    "→ 5 chars; ok]\n",
])


@given(names, arguments, outcomes, st.integers(0, 700), st.booleans())
def test_a_line_for_a_result_stands_for_itself(
    name: str, given_arguments: str, outcome: str, size: int, has_image: bool
) -> None:
    """Whatever tool, arguments and outcome it tells, it is no longer than it may be."""
    result = tool_message("c0", name, outcome + "x" * size)
    if has_image:
        result["content"] = [{"type": "text", "text": outcome + "x" * size}, PICTURE]
    call = calling(given_arguments)["tool_calls"][0]
    call["function"]["name"] = name
    line = pruned(result, call)
    if line is not result:
        assert pruned(line, call) is line
        assert pruned(line, None) is line
        assert len(text_of(line)) <= 512


def test_a_cleared_result_stays_cleared() -> None:
    """Although a line with the tool's name would be shorter than that."""
    call = tool_call("n" * 14, {}, "c1")
    cleared = pruned(tool_message("c1", "n" * 14, "exit code 3 " + "x" * 36), call)
    assert text_of(cleared) == CLEARED
    assert pruned(cleared, call) is cleared


LINE = "[run of=a → 9,000 chars, 1 line; ok; first line: x]"


@pytest.mark.parametrize(
    "text",
    [
        LINE + "\n" + "x" * 200,
        "x" * 200 + "\n" + LINE,
        LINE.removesuffix("x]") + "x" * 500 + "]",
        LINE + " " + "x" * 200,
        "[" + "x" * 200 + "]",
    ],
    ids=["followed", "preceded", "long", "not closed", "other"],
)
def test_what_looks_like_a_line_for_a_result_is_shortened(text: str) -> None:
    """A tool may have read one of them; what is longer than any is none."""
    line = text_of(pruned(tool_message("c1", "read", text), tool_call("read", {}, "c1")))
    assert line.startswith(f"[read → {len(text)} chars, ")


def test_a_result_of_nobody_is_cleared() -> None:
    """Without a tool's name there is nothing to say."""
    assert text_of(pruned(tool_message("c1", "", "x" * 500), None)) == CLEARED


def test_a_duplicate_says_so_in_one_line() -> None:
    """Where the result is longer than that."""
    assert duplicate(tool_message("c1", "run", "x" * 500))["content"] == DUPLICATE
    short = tool_message("c1", "run", "x")
    assert duplicate(short) is short


def test_only_long_strings_inside_of_arguments_are_cut() -> None:
    """Everything else keeps its spelling, to the last digit."""
    text = (
        '{ "path": "a\\u00e9.py", "n": 12345678901234567890123, "x": 1.50e3,\n "list":'
        f' [true, null, "{"b" * 300}"], "{"k" * 300}": {{"deep": "{"é" * 300}"}} }}'
    )
    (short,) = arguments_of(with_short_arguments(calling(text), 200))
    assert short == (
        '{"path":"a\\u00e9.py","n":12345678901234567890123,"x":1.50e3,"list":[true,null,"'
        f'{"b" * 200}...[truncated]"],"{"k" * 300}":{{"deep":"{"é" * 200}...[truncated]"}}}}'
    )


def test_characters_are_cut_and_not_their_escapes() -> None:
    """Half an escape would be no JSON, half an emoji no character."""
    text = json.dumps({"text": "\N{GRINNING FACE}\n" * 200})
    (short,) = arguments_of(with_short_arguments(calling(text), 3))
    assert json.loads(short) == {"text": "\N{GRINNING FACE}\n\N{GRINNING FACE}...[truncated]"}


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ({"rows": list(range(100_000))}, ',"...[truncated]"]}'),
        ({"rows": ["x" * 100] * 10_000}, ',"...[truncated]"]}'),
        ({f"key {n}": n for n in range(100_000)}, ',"...":"...[truncated]"}'),
        ({"k" * 100_000: 1}, '...[truncated]"}'),
    ],
)
def test_very_many_values_end_in_a_mark(value: object, end: str) -> None:
    """A long list of short values shrinks, too."""
    (short,) = arguments_of(with_short_arguments(calling(json.dumps(value)), 200))
    assert len(short) < 4_500
    assert short.endswith(end)
    assert json.loads(short)


@pytest.mark.parametrize(
    "text", ['{"path": "' + "x" * 600, "\x01" * 600, "[" * 2000, "\ud800" * 600, "NaN " * 200]
)
def test_arguments_that_are_no_json_become_an_object_with_their_beginning(text: str) -> None:
    """Cut streams, control characters, absurd depth, halves of characters."""
    (short,) = arguments_of(with_short_arguments(calling(text), 200))
    head = json.loads(short)["truncated"].removesuffix("...[truncated]")
    assert head
    assert len(short) < len(text)
    assert text.replace("\ud800", "\ufffd").startswith(head)


def test_arguments_up_to_500_characters_stay() -> None:
    """The very message comes back."""
    message = calling(json.dumps({"text": "x" * 480}), "{}")
    assert with_short_arguments(message, 10) is message


def test_what_is_unchanged_is_shared() -> None:
    """An edit copies only the way to what it changes."""
    message = calling(json.dumps({"text": "x" * 600}), '{"text": "y"}')
    shown = with_short_arguments(message, 10)
    assert shown["tool_calls"][1]["function"] is message["tool_calls"][1]["function"]


def test_images_become_labels() -> None:
    """Text parts stay, and what has no image stays itself."""
    said = {"type": "text", "text": "see"}
    message = ChatMessage(role="user", content=[said, PICTURE, {"type": "image"}])
    label = {"type": "text", "text": "[image]"}
    assert without_images(message)["content"] == [said, label, label]
    assert without_images(without_images(message)) == without_images(message)
    plain = user_message("hi")
    assert without_images(plain) is plain


def test_thinking_goes_in_both_forms() -> None:
    """And what has none stays itself."""
    message = calling("{}")
    thought = ChatMessage(**message, reasoning="hm", opaque={"anthropic": []})
    assert without_thinking(thought) == message
    assert without_thinking(message) is message


def test_what_belongs_to_the_calls_stays() -> None:
    """Gemini refuses its own calls without it; what was thought goes all the same."""
    extra = {"call_1": {"google": {"thought_signature": "s"}}}
    fields = {"origin": "x/gemini", "reasoning_details": [{"text": "hm"}], "extra_content": extra}
    thought = ChatMessage(role="assistant", content="4", opaque={"openai": fields})
    kept = without_thinking(thought)
    assert kept["opaque"] == {"openai": {"origin": "x/gemini", "extra_content": extra}}


def test_a_clipped_text_keeps_its_ends_around_a_pointer() -> None:
    """The pointer says how much is left out and how to read it."""
    text = "head" + "x" * 400_000 + "tail"
    shown = text_of(clipped(user_message(text), 1000, 12))
    assert len(shown) in range(990, 1001)
    start, pointer, end = shown.split("\n")
    assert text.startswith(start)
    assert text.endswith(end)
    assert pointer == (
        f"[... {len(text) - len(start) - len(end):,} characters left out; the full text is"
        " message 12 of the transcript: read_conversation(from_seq=12, limit=1) ...]"
    )


@given(messages(), st.integers(100, 2000), st.integers(1, 10**6))
def test_a_clipped_message_is_within_its_limit(message: ChatMessage, limit: int, seq: int) -> None:
    """Texts and arguments together; within it, the very message comes back."""
    shown = clipped(message, limit, seq)
    assert chars_of(shown) <= limit or shown is message
    assert (shown is message) == (chars_of(message) <= limit)


def test_a_small_text_beside_large_arguments_stays_whole() -> None:
    """What is small gets all it needs, the others share the rest."""
    message = calling(json.dumps({"path": "a.py", "text": "x" * 5000}))
    message["content"] = "I write it."
    shown = clipped(message, 600, 3)
    assert shown["content"] == "I write it."
    arguments = json.loads(arguments_of(shown)[0])
    assert arguments["path"] == "a.py"
    assert len(arguments["text"]) > 250


def test_very_many_calls_are_clipped_to_empty_objects() -> None:
    """Even then the arguments are JSON."""
    shown = clipped(calling(*[json.dumps({"text": "x" * 100})] * 50), 100, 3)
    assert set(arguments_of(shown)) == {"{}"}


def test_many_values_are_clipped_to_their_beginning() -> None:
    """Where no cut of the strings is enough."""
    text = json.dumps({"rows": list(range(10_000))})
    (short,) = arguments_of(clipped(calling(text), 300, 3))
    assert text.startswith(json.loads(short)["truncated"].removesuffix("...[truncated]"))


def test_a_text_without_room_for_a_pointer_is_cut() -> None:
    """Beside many others a text may get less than the pointer takes."""
    message = calling(*["x" * 200] * 9)
    message["content"] = "y" * 200
    assert clipped(message, 100, 3)["content"] == "y" * 10


def test_clipped_text_parts_become_one_and_images_stay() -> None:
    """The limit is one for the message as a whole."""
    said = [{"type": "text", "text": letter * 300} for letter in "ab"]
    message = ChatMessage(role="user", content=[PICTURE, said[0], PICTURE, said[1]])
    content = clipped(message, 200, 3)["content"]
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["image_url", "text", "image_url"]
    assert content[1]["text"].startswith("aaa")
    assert content[1]["text"].endswith("bbb")


if SHARED is not None:
    TASKS = orjson.loads((SHARED / "tau-bench/gpt-4o-airline.json").read_bytes())

    @pytest.mark.parametrize("task", TASKS[::20], ids=lambda task: task["task_id"])
    def test_results_of_real_sessions_become_telling_lines(task: dict[str, Any]) -> None:
        """Every long result of a dialogue names its tool and how it was asked."""
        said: list[ChatMessage] = task["traj"]
        calls = {call["id"]: call for it in said for call in it.get("tool_calls") or ()}
        for result in (it for it in said if it["role"] == "tool" and len(text_of(it)) > 400):
            call = calls[result["tool_call_id"]]
            line = text_of(pruned(result, call))
            assert line.startswith(f"[{call['function']['name']} ")
            assert f" → {len(text_of(result)):,} chars" in line


# Outlines

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
