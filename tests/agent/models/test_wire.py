"""What both wires share: schemas, notes, blank texts."""

from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolSchema, sanitise, user_message
from agent.models.anthropic.wire import request_body as anthropic_body
from agent.models.base import ModelRequest
from agent.models.openai.responses import responses_body
from agent.models.openai.wire import request_body as openai_body
from agent.models.wire import (
    LONGEST_REPAIR_CHARS,
    canonical_arguments,
    canonical_schema,
    content_parts,
    parse_object,
    read_arguments,
)
from agent.prompt_caching import CacheLayout, apply_cache_control
from agent.view.view import NOTE
from tests.agent.models.clients import CLOCK
from tests.support.conversations import conversation_of


def test_schemas_are_written_in_one_order() -> None:
    """Whatever order a tool has them in."""
    tool = ToolSchema("look", "Looks.", {"type": "object", "properties": {"b": {}, "a": {}}})
    schema = canonical_schema(tool)
    assert list(schema["properties"]) == ["a", "b"]


@pytest.mark.parametrize("text", ["You help.", NOTE, ""])
def test_a_prompt_without_a_note_is_one_part(text: str) -> None:
    """Only what stands before a note is parted from it; a person's text never is."""
    part = {"type": "text", "text": text}
    assert content_parts(ChatMessage(role="system", content=text)) == [part]
    assert content_parts(user_message(f"x{NOTE}"))[0]["text"] == f"x{NOTE}"


BLANKS = st.sampled_from(["", " ", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\x1f"])


def blanked(messages: list[ChatMessage], blank: str) -> list[ChatMessage]:
    """Return messages with blank texts wherever a text may stand; answers keep one that shows."""
    found: list[ChatMessage] = []
    for number, message in enumerate(messages):
        parts: list[dict[str, Any]] = [{"type": "text", "text": blank}] * 2
        if isinstance(content := message.get("content"), list):
            parts[1:1] = content
        elif message["role"] == "tool" and number % 2:
            parts = parts[1:]
        elif content:
            parts[1:1] = [{"type": "text", "text": content}]
        alone = number % 3 == 0 and message["role"] in {"tool", "assistant"}
        changed = {**message, "content": blank if alone else parts}
        found.append(cast("ChatMessage", changed))
    return found


@given(st.binary(min_size=2, max_size=24), BLANKS, st.booleans())
def test_no_blank_text_goes_out(drawn: bytes, blank: str, marked: bool) -> None:
    """Whoever is asked, wherever a text was split: providers refuse the whole request for one."""
    system = ChatMessage(role="system", content=[{"type": "text", "text": t} for t in ("a", blank)])
    talk = [user_message("hello"), *sanitise(conversation_of(drawn)), user_message("bye")]
    messages = sanitise([system, *blanked(talk, blank)])
    request = ModelRequest(apply_cache_control(messages) if marked else messages, (CLOCK,))
    assert not blank_texts(anthropic_body(request, "m"))
    for layout in (None, "envelope"):
        body = openai_body(request, "m", layout=cast("CacheLayout | None", layout))
        assert not blank_texts(body["messages"])
    assert not blank_texts(responses_body(request, "m", ""))


def blank_texts(value: Any) -> list[str]:
    """Return the blank texts of a body; an empty result answers its call all the same."""
    if isinstance(value, dict):
        texts = [value[key] for key in ("text", "content", "output") if key in value]
        blank = [each for each in texts if isinstance(each, str) and not each.strip()]
        result = value.get("role") == "tool" or "output" in value
        return [
            *(each for each in blank if each or not result),
            *(found for each in value.values() for found in blank_texts(each)),
        ]
    return (
        [found for each in value for found in blank_texts(each)] if isinstance(value, list) else []
    )


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(OBJECTS)
@settings(max_examples=60)
def test_canonical_text_means_the_same(values: dict[str, Any]) -> None:
    """Nothing is lost, the keys are sorted, and doing it twice changes nothing."""
    canonical = canonical_arguments(orjson.dumps(values, option=orjson.OPT_INDENT_2).decode())
    assert orjson.loads(canonical) == values
    assert canonical == orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
    assert canonical_arguments(canonical) == canonical


@given(OBJECTS, st.data())
@settings(max_examples=80)
def test_what_is_cut_off_is_never_completed(values: dict[str, Any], data: st.DataObject) -> None:
    """No beginning of an object is read as one, and it stays as written."""
    text = orjson.dumps(values).decode()
    part = text[: data.draw(st.integers(1, len(text) - 1))]
    assert read_arguments(part) is None
    assert canonical_arguments(part) == part


@given(st.text(alphabet="{}[]'\",:\\ 1aTn\n`", max_size=40))
@settings(max_examples=150)
def test_any_text_is_taken(text: str) -> None:
    """Nothing is raised, and what comes out is read alike."""
    canonical = canonical_arguments(text)
    assert read_arguments(canonical) == (read_arguments(text) if text.strip() else {})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", "{}"),
        (" \n", "{}"),
        ('{"b": 1, "a": {"d": 2, "c": 3}}', '{"a":{"c":3,"d":2},"b":1}'),
        ('{"é": "ü"}', '{"é":"ü"}'),
        ('```json\n{"a": 1}\n```', '{"a":1}'),
        ('```{"a": "```"}```', '{"a":"```"}'),
        ('{"a": [1, 2,], }', '{"a":[1,2]}'),
        ('{"a": "x,}" , }', '{"a":"x,}"}'),
        ('{"a": "one\ntwo\ttab"}', '{"a":"one\\ntwo\\ttab"}'),
        ("{'a': None, 'b': [True, False]}", '{"a":null,"b":[true,false]}'),
        ("{'a': 'it\\'s'}", '{"a":"it\'s"}'),
        ('"{\\"b\\": 1, \\"a\\": \\"x\\"}"', '{"a":"x","b":1}'),
        (' "{\\"a\\": {\\"b\\": \\"{}\\"}}" ', '{"a":{"b":"{}"}}'),
        ('"{}"', "{}"),
        ('""', "{}"),
        ('"```json\\n{\\"a\\": 1}\\n```"', '{"a":1}'),
        ("\"{'a': True,}\"", '{"a":true}'),
        ('"{\\"a\\": 1234567890123456789}"', '{"a":1234567890123456789}'),
    ],
)
def test_readings(written: str, meant: str) -> None:
    """What has one meaning gets it."""
    assert canonical_arguments(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "[1]",
        "null",
        '{"a": 1',
        '"{"',
        '"{\\"a\\": 1',
        '"look"',
        '"[1]"',
        '"\\"{}\\""',
        '{"a": 1,',
        '```json\n{"a": 1}',
        "{'a': [1, 2",
        '{"a" 1}',
        "{,}",
        '{"a": NaN}',
        '{"a": 1e999}',
        "{1: 2}",
        "{'a': (1, 2)}",
        "{'a': b'x'}",
        "{'a': {1, 2}}",
        "{'path': 'C:\\data'}",
        "{'a': '\\ud83d'}",
        "{'a': print(1)}",
        '{"a": 1} and more',
        "{'a': " + "-" * 5000 + "1}",
        "{'a': " + "[" * 500 + "]" * 500 + "}",
    ],
)
def test_what_would_be_guessed_stays_as_written(written: str) -> None:
    """The model gets an error about it instead."""
    assert read_arguments(written) is None
    assert canonical_arguments(written) == written


def test_long_integers_are_not_rounded() -> None:
    """A text whose reading would change a number keeps its bytes; one that fits does not."""
    too_long = '{"b": 1, "a": 123456789012345678901234567890}'
    assert canonical_arguments(too_long) == too_long
    assert canonical_arguments('{"b": 1, "a": 1234567890123456789}').startswith('{"a":1234')
    assert canonical_arguments("{'a': 1234567890123456789}") == '{"a":1234567890123456789}'


def test_too_deep_nesting_stays_as_written() -> None:
    """What can be read but not written again is kept, and no tool gets it."""
    deep = '{"a": ' * 300 + "1" + "}" * 300
    assert parse_object(deep) is not None
    assert read_arguments(deep) is None
    assert canonical_arguments(deep) == deep


def test_long_texts_are_not_mended() -> None:
    """Reading valid JSON has no limit, fixing it has."""
    filler = "x" * LONGEST_REPAIR_CHARS
    assert read_arguments(f'{{"a": "{filler}"}}') == {"a": filler}
    assert read_arguments(f'{{"a": "{filler}",}}') is None
