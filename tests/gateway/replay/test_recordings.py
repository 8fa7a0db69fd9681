"""Recorded conversations: formats, normal form, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.messages import ChatMessage, text_of
from gateway.replay.recordings import (
    END_OF_RECORDING,
    NO_RESULT,
    BadRecording,
    RecordedExchange,
    Recording,
    load_recordings,
)
from tests.support.shared import SHARED


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, *call_ids: str) -> dict[str, Any]:
    calls = [{"id": it, "function": {"name": "look", "arguments": "{}"}} for it in call_ids]
    return {"role": "assistant", "content": text, "tool_calls": calls or None}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def load(folder: Path, data: Any, name: str = "some.json") -> list[Recording]:
    path = folder / name
    lines = data if name.endswith(".jsonl") else [data]
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return load_recordings(path)


def exchanges(folder: Path, *messages: dict[str, Any]) -> tuple[RecordedExchange, ...]:
    return load(folder, list(messages))[0].exchanges


def short(exchange: RecordedExchange) -> list[str]:
    """Each step as "role text" with the ids of its calls."""
    return [exchange.user, *(_short(step) for step in exchange.steps)]


def _short(step: ChatMessage) -> str:
    ids = [call["id"] for call in step.get("tool_calls", [])]
    ids += [step["tool_call_id"]] if step["role"] == "tool" else []
    return " ".join([step["role"], *ids, text_of(step)]).strip()


def test_a_plain_list_becomes_exchanges(tmp_path: Path) -> None:
    """One for each user message; what the system and nobody said is left out."""
    [recording] = load(
        tmp_path,
        [
            {"role": "system", "content": "Be kind."},
            said("Welcome!"),
            user("  one "),
            said(None, "a"),
            result("a", "seen"),
            said("It is there."),
            user("two"),
            said("Good."),
        ],
    )
    assert recording.name == "some"
    assert [short(exchange) for exchange in recording.exchanges] == [
        ["one", "assistant a", "tool a seen", "assistant It is there."],
        ["two", "assistant Good."],
    ]


def test_messages_are_canonical(tmp_path: Path) -> None:
    """Keys, types and the tool's name are those of `ChatMessage`."""
    call = {"id": "a", "function": {"name": "look", "arguments": {"at": "ü"}}, "index": 0}
    [exchange] = exchanges(
        tmp_path,
        user("hi"),
        {**said(None), "tool_calls": [call], "refusal": None},
        result("a", "x"),
    )
    function = {"name": "look", "arguments": '{"at":"ü"}'}
    assert exchange.steps[:2] == (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "look", "content": "x"},
    )


def test_user_messages_in_a_row_are_joined(tmp_path: Path) -> None:
    """Empty messages between them do not separate them."""
    [exchange] = exchanges(
        tmp_path, user("one"), said(""), user(""), result("x", "stray"), user("two"), said("ok")
    )
    assert short(exchange) == ["one\n\ntwo", "assistant ok"]


def test_an_assistant_text_is_merged_into_the_next_assistant_message(tmp_path: Path) -> None:
    """A text ends an exchange, so it must not stand in its middle."""
    [exchange] = exchanges(
        tmp_path,
        user("go"),
        said("First"),
        said("I look", "a"),
        result("a", "x"),
        said("1"),
        said("2"),
    )
    assert short(exchange) == [
        "go",
        "assistant a First\n\nI look",
        "tool a x",
        "assistant 1\n\n2",
    ]


def test_a_call_without_result_gets_one(tmp_path: Path) -> None:
    """Before the next assistant message, before the next user message and at the end."""
    first, second = exchanges(
        tmp_path, user("1"), said(None, "a", "b"), result("b", "x"), said(None, "c"), user("2")
    )
    assert short(first) == [
        "1",
        "assistant a b",
        "tool b x",
        f"tool a {NO_RESULT}",
        "assistant c",
        f"tool c {NO_RESULT}",
        f"assistant {END_OF_RECORDING}",
    ]
    assert short(second) == ["2", f"assistant {END_OF_RECORDING}"]


def test_a_result_without_call_is_dropped(tmp_path: Path) -> None:
    """A second result of the same call is one as well."""
    [exchange] = exchanges(
        tmp_path, user("1"), said(None, "a"), result("a", "x"), result("a", "y"), result("z", "?")
    )
    assert short(exchange) == ["1", "assistant a", "tool a x", f"assistant {END_OF_RECORDING}"]


def test_a_repeated_call_id_gets_a_number(tmp_path: Path) -> None:
    """In one message and across messages; each result follows its call."""
    first, second = exchanges(
        tmp_path,
        *(user("1"), said(None, "a", "a"), result("a", "x"), result("a", "y"), said("ok")),
        *(user("2"), said(None, "a"), result("a", "z"), said("ok")),
    )
    assert short(first)[1:4] == ["assistant a a_2", "tool a x", "tool a_2 y"]
    assert short(second)[1:3] == ["assistant a_3", "tool a_3 z"]


def test_texts_are_cleaned(tmp_path: Path) -> None:
    """Lone surrogates and NULs, which recordings hold, cannot be stored."""
    [exchange] = exchanges(tmp_path, user("a\ud800"), said("b\x00"))
    assert short(exchange) == ["a\ufffd", "assistant b\ufffd"]


def test_text_parts_are_joined(tmp_path: Path) -> None:
    """Images are left out."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    [exchange] = exchanges(tmp_path, {"role": "user", "content": parts}, said("ok"))
    assert exchange.user == "a\nb"


def test_tau_bench_has_one_recording_for_each_item(tmp_path: Path) -> None:
    """They are numbered in the order of the file."""
    items = [{"task_id": n, "traj": [user(f"q{n}"), said("a")]} for n in (7, 8)]
    recordings = load(tmp_path, items, "tau.json")
    assert [(it.name, it.exchanges[0].user) for it in recordings] == [
        ("tau#0", "q7"),
        ("tau#1", "q8"),
    ]


def test_swe_agent_results_name_their_calls_in_a_list(tmp_path: Path) -> None:
    """The history of a trajectory is one recording."""
    observation = {"role": "tool", "content": "x", "tool_call_ids": ["a"], "agent": "main"}
    [recording] = load(
        tmp_path, {"history": [user("fix"), said("I look", "a"), observation]}, "run.traj"
    )
    assert short(recording.exchanges[0])[1:3] == ["assistant a I look", "tool a x"]


def test_pi_lines_become_messages(tmp_path: Path) -> None:
    """Thinking becomes reasoning; other lines and other roles have no message."""
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "I look\u2028now"},
        {"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "x"}},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": parts},
        {"role": "toolResult", "toolCallId": "a", "content": [{"type": "text", "text": "y"}]},
        {"role": "bashExecution", "output": "z"},
        {"role": "assistant", "content": "done"},
    ]
    lines = [{"type": "session"}, *({"type": "message", "message": it} for it in messages)]
    [recording] = load(tmp_path, lines, "session.jsonl")
    [exchange] = recording.exchanges
    assert short(exchange) == ["go", "assistant a I look\u2028now", "tool a y", "assistant done"]
    assert exchange.steps[0]["reasoning"] == "hm"
    assert exchange.steps[0]["tool_calls"][0]["function"]["arguments"] == '{"path":"x"}'


def test_merged_messages_keep_their_reasoning(tmp_path: Path) -> None:
    """Both thoughts stand in the merged message."""

    def thought(text: str) -> dict[str, Any]:
        parts = [{"type": "thinking", "thinking": text}, {"type": "text", "text": text.upper()}]
        return {"type": "message", "message": {"role": "assistant", "content": parts}}

    lines = [{"type": "message", "message": user("go")}, thought("a"), thought("b")]
    [recording] = load(tmp_path, lines, "session.jsonl")
    [step] = recording.exchanges[0].steps
    assert (step["content"], step["reasoning"]) == ("A\n\nB", "a\n\nb")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "neither a list"),
        ([], "neither a list"),
        ("text", "neither a list"),
        ([said("hi")], "messages: there is no user message"),
        ([user("hi"), "x"], "message 1: is not an object"),
        ([user("hi"), {"role": "robot"}], "message 1: unknown role 'robot'"),
        ([user("hi"), {"role": "user", "content": 3}], "message 1: `content` is neither"),
        ([{"role": "user", "content": ["hi"]}], "message 0: `content` is a list with"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has no `text`"),
        ([user("hi"), {**said("x"), "tool_calls": [1]}], "`tool_calls` is not a list of objects"),
        ([user("hi"), {**said("x"), "tool_calls": [{}]}], "message 1: a tool call has no function"),
        ([{"traj": [user("hi")]}, {"traj": 5}], "item 1: has no list `traj`"),
        ([{"traj": [user("hi"), {}]}], "item 0, message 1: unknown role None"),
        ({"history": [user("hi"), 1]}, "history item 1: is not an object"),
    ],
)
def test_bad_input_names_file_item_and_problem(tmp_path: Path, data: Any, problem: str) -> None:
    """The person who wrote the file can find the place."""
    with pytest.raises(BadRecording) as error:
        load(tmp_path, data)
    assert str(error.value).startswith(f"{tmp_path / 'some.json'}: ")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"type": "session"}\n{"type": ', "line 2: Expecting value"),
        (b'{"type": "message"}', "line 1: has no object `message`"),
        (
            b'{"type":"message","message":{"role":"assistant","content":[{"type":"toolCall"}]}}',
            "line 1: a tool call has no function name",
        ),
        (b"\xff\xfe", "codec can't decode"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, problem: str) -> None:
    """A cut line, a line without its part, bytes that are no text."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=problem):
        load_recordings(path)


if SHARED:

    @pytest.mark.parametrize(
        ("name", "conversations", "exchange_count"),
        [
            ("tau-bench/gpt-4o-airline.json", 200, 1490),
            ("pi/before-compaction.jsonl", 1, 48),
            ("pi/large-session.jsonl", 1, 79),
            ("swe-agent/ctf-web-demo.traj", 1, 21),
            ("swe-agent/marshmallow-1867-function-calling.traj", 1, 1),
        ],
    )
    def test_real_recordings_load_into_the_normal_form(
        name: str, conversations: int, exchange_count: int
    ) -> None:
        """Nothing is lost on the way, and every rule of the form holds."""
        recordings = load_recordings(SHARED / name)
        assert len(recordings) == conversations
        assert sum(len(it.exchanges) for it in recordings) == exchange_count
        for recording in recordings:
            _assert_normal(recording)


def _assert_normal(recording: Recording) -> None:
    ids: list[str] = []
    for exchange in recording.exchanges:
        assert exchange.user.strip() == exchange.user != ""
        assert exchange.steps[-1]["role"] == "assistant"
        waiting: set[str] = set()
        for step in exchange.steps:
            if step["role"] == "tool":
                waiting.remove(step["tool_call_id"])
                continue
            calls = [call["id"] for call in step.get("tool_calls", [])]
            assert not waiting
            assert calls or step is exchange.steps[-1]
            waiting.update(calls)
            ids += calls
        assert not waiting
    assert len(ids) == len(set(ids))
