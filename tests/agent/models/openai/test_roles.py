"""Each request that Parley can make, in the forms that servers take: every template renders it."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import (
    ChatMessage,
    ToolSchema,
    assistant_message,
    context_message,
    text_of,
    user_message,
)
from agent.models.base import ModelRequest
from agent.models.openai.mode import Negotiation, Quirk, Quirks, ServerMode
from agent.models.openai.responses import responses_body
from agent.models.openai.wire import (
    BEFORE,
    NOT_ANSWERED,
    SIGNED_BY_NOBODY,
    alternate_roles,
    apply_quirks,
    merge_neighbours,
    move_system_text,
    request_body,
    short_id,
    with_short_ids,
    with_signature,
    with_single_calls,
    without_tools,
)
from agent.models.refusals import parse_refusal
from agent.prompt_caching import CacheLayout
from agent.turn.loop import OUTCOME_UNKNOWN
from agent.turn.request import CONTINUE
from agent.view.view import Entry, Summary, ViewPlan, shown_messages
from tests.support.chat_templates import NAMES, TemplateRefusal, render
from tests.support.conversations import PNG
from tests.support.gemini_server import GeminiServer
from tests.support.model_server import Refusal
from tests.support.responses_server import ResponsesServer
from tests.support.scripted_model import tool_call

TOOL = ToolSchema("look", "Looks.", {"type": "object", "properties": {}})
HELLO = {"role": "user", "content": "hello"}
MOST_REFUSALS = 6


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[ChatMessage]:
    """Return what a turn leaves in the transcript, whatever became of it."""
    said = [context_message(f"Recalled {number}.")] * draw(st.integers(0, 2))
    text = f"question {number}"
    parts: Any = [{"type": "text", "text": text}, PNG]
    said += [user_message(parts if draw(st.booleans()) else text)] * draw(st.integers(1, 2))
    for step in range(draw(st.integers(0, 3))):
        said += draw(groups(f"{number}-{step}"))
    end = draw(st.sampled_from(["answer", "empty", "nothing", "partial", "thought"]))
    if end == "partial":
        said += [assistant_message("The first"), user_message(CONTINUE, synthetic=True)]
    if end == "thought":
        said.append(ChatMessage(role="assistant", content="", reasoning="Hm."))
    if end in {"answer", "partial"}:
        said.append(assistant_message(f"answer {number}"))
    return said


@st.composite
def groups(draw: st.DrawFn, name: str) -> list[ChatMessage]:
    """Return an assistant message with calls and their results; some of unknown outcome."""
    calls = [
        tool_call("look", {"n": n}, f"call_{name}_{n}") for n in range(draw(st.integers(1, 3)))
    ]
    text = draw(st.sampled_from([None, "A moment.", ""]))
    results = draw(st.sampled_from(["", "found", OUTCOME_UNKNOWN]))
    asked = ChatMessage(role="assistant", content=text, tool_calls=calls)
    return [
        asked,
        *(
            ChatMessage(role="tool", tool_call_id=call["id"], name="look", content=results)
            for call in calls
        ),
    ]


@st.composite
def transcripts(draw: st.DrawFn) -> list[ChatMessage]:
    """Return the messages of a conversation; its newest is a question or the result of a tool."""
    prefill = [user_message("an example"), assistant_message("its answer")] * draw(
        st.integers(0, 1)
    )
    told = [*prefill]
    for number in range(draw(st.integers(1, 4))):
        told += draw(turns(number))
    while told[-1]["role"] == "assistant":
        told.pop()
    return told


@st.composite
def views(draw: st.DrawFn) -> list[ChatMessage]:
    """Return the messages of a request, with a compaction somewhere or none."""
    told = draw(transcripts())
    entries = [Entry(n, message) for n, message in enumerate(told, start=1)]
    starts = [n for n, message in entries if message["role"] == "user"]
    plan = ViewPlan()
    if draw(st.booleans()) and (tail := draw(st.sampled_from(starts))) > 1:
        heads = [n for n in starts if n < tail] if draw(st.booleans()) else []
        head = heads[0] if heads else 0
        role = draw(st.sampled_from(["user", "assistant"])) if head else "user"
        summary = Summary("Summed up.", head + 1, tail - 1, role=role)
        pinned = tuple(draw(st.sets(st.sampled_from([n for n in starts if n >= head]))))
        pinned = tuple(sorted(n for n in pinned if head < n < tail))
        plan = ViewPlan(head_upto=head, summaries=(summary,), pinned=pinned, tail_from=tail)
    return shown_messages("You are Parley.", plan, entries)


def taken_by(template: str, request: ModelRequest, mode: ServerMode) -> dict[str, Any]:
    """Return the body that a template renders in the end; fails where none is found."""
    talk = Negotiation(mode, lambda quirks: request_body(request, "m", quirks=quirks, join=True))
    for _ in range(MOST_REFUSALS):
        body = talk.body()
        try:
            render(template, body)
        except TemplateRefusal as refusal:
            if not talk.goes_on(parse_refusal(400, {}, str(refusal))):
                raise
        else:
            talk.settle()
            return body
    raise AssertionError(f"refused {MOST_REFUSALS} times")


@pytest.mark.parametrize("template", NAMES)
@given(messages=views(), tools=st.booleans())
def test_every_template_renders_every_request(
    template: str, messages: list[ChatMessage], tools: bool
) -> None:
    """After at most a few refusals, and the next request at once; no text of it is lost.

    Whatever the form, each text of the conversation goes out once and in its order.
    """
    mode = ServerMode("server")
    request = ModelRequest(messages, (TOOL,) if tools else ())
    body = taken_by(template, request, mode)
    assert request_body(request, "m", quirks=mode.quirks, join=True) == body
    texts = "\n".join(texts_of(body["messages"]))
    place = 0
    for text in texts_of(request_body(request, "m")["messages"]):
        place = texts.index(text, place) + len(text)


def texts_of(wired: list[dict[str, Any]]) -> Iterator[str]:
    for message in wired:
        content = message["content"]
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        yield from (part["text"] for part in parts if part.get("text"))


ALL: tuple[Quirk, ...] = (
    "no_tools",
    "one_call",
    "signed_calls",
    "short_ids",
    "no_system",
    "strict_roles",
    "no_null",
    "reasoned",
    "blank_reasoning",
)


@given(st.lists(turns(1), min_size=1, max_size=3), st.sets(st.sampled_from(ALL)), st.data())
def test_a_request_begins_with_the_one_before_it(
    told: list[list[ChatMessage]], quirks: set[Quirk], data: st.DataObject
) -> None:
    """Whatever was appended since: only the newest message may have grown at its end."""
    history = [ChatMessage(role="system", content="S."), *(each for turn in told for each in turn)]
    ends = [n for n, each in enumerate(history, 1) if is_whole(history[:n])]
    first = data.draw(st.sampled_from(ends))
    layout: CacheLayout | None = data.draw(st.sampled_from([None, "envelope"]))
    before, after = (
        request_body(ModelRequest(told), "m", layout=layout, quirks=frozenset(quirks), join=True)[
            "messages"
        ]
        for told in (history[:first], history)
    )
    *whole, newest = before
    assert after[: len(whole)] == whole
    grown = after[len(whole)]
    assert {**grown, "content": 0} == {**newest, "content": 0}
    # A result without a text is the one content that is no list there.
    if layout and isinstance(newest["content"], list):
        assert grown["content"][: len(newest["content"])] == newest["content"]
    else:
        assert flat(grown["content"]).startswith(flat(newest["content"]))


def flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "<image>") for part in content)


def is_whole(messages: list[ChatMessage]) -> bool:
    """Whether a request can end here: with a question, or with all results of a message."""
    if messages[-1]["role"] == "user":
        return True
    if messages[-1]["role"] != "tool":
        return False
    asked = next(each for each in reversed(messages) if each["role"] == "assistant")
    return messages[-1]["tool_call_id"] == asked["tool_calls"][-1]["id"]


def test_neighbours_become_one() -> None:
    """Texts with a line between them, pictures as parts; results of tools stay apart."""
    picture = {"role": "user", "content": [PNG]}
    results = [{"role": "tool", "tool_call_id": each, "content": ""} for each in "ab"]
    assert merge_neighbours([HELLO, HELLO]) == [{"role": "user", "content": "hello\n\nhello"}]
    assert merge_neighbours([HELLO, picture])[0]["content"] == [
        {"type": "text", "text": "hello"},
        PNG,
    ]
    assert merge_neighbours(results) is results
    alone = [HELLO, {"role": "assistant", "content": "x"}]
    assert merge_neighbours(alone) is alone


def test_breakpoints_stay_on_their_parts() -> None:
    """A marker of the cache is on the part that it was on."""
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [marked]}, {"role": "user", "content": [PNG]}]
    assert merge_neighbours(messages) == [{"role": "user", "content": [marked, PNG]}]


def test_the_system_prompt_goes_in_front_of_the_question() -> None:
    """Or becomes a question of its own, where none follows."""
    system = {"role": "system", "content": "S."}
    answer = {"role": "assistant", "content": "x"}
    assert move_system_text([system, HELLO]) == [{"role": "user", "content": "S.\n\nhello"}]
    assert move_system_text([system, answer]) == [{"role": "user", "content": "S."}, answer]
    assert move_system_text([HELLO]) == [HELLO]


def test_an_answer_stands_for_the_one_that_was_not_given() -> None:
    """A question behind the results of tools, and an answer at the very beginning."""
    result = {"role": "tool", "tool_call_id": "a", "content": "r"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    assert alternate_roles([HELLO, call, result, HELLO])[3:] == [
        {"role": "assistant", "content": NOT_ANSWERED},
        HELLO,
    ]
    assert alternate_roles([call, result])[0] == {"role": "user", "content": BEFORE}


def wired_call(call_id: str, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {"id": call_id, "type": "function", "function": function, **more}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"r{call_id}"}


def test_calls_go_one_by_one() -> None:
    """Each with its result behind it; what was said stands with the first."""
    calls = [wired_call("a"), wired_call("b")]
    asked = {"role": "assistant", "content": "Wait.", "tool_calls": calls}
    assert with_single_calls([HELLO, asked, result("a"), result("b"), HELLO]) == [
        HELLO,
        {"role": "assistant", "content": "Wait.", "tool_calls": calls[:1]},
        result("a"),
        {"role": "assistant", "content": None, "tool_calls": calls[1:]},
        result("b"),
        HELLO,
    ]


def test_calls_and_results_can_be_told() -> None:
    """Who called what, and what it gave."""
    asked = {"role": "assistant", "content": None, "tool_calls": [wired_call("a"), wired_call("b")]}
    assert without_tools([HELLO, asked, result("a"), result("b")])[1:] == [
        {"role": "assistant", "content": "[called look({})]\n[called look({})]"},
        {"role": "user", "content": "[result of look]\n\nra\n\n[result of look]\n\nrb"},
    ]


def test_short_ids_tie_results_to_their_calls() -> None:
    """Nine letters and digits; a short one stays as it is."""
    asked = {"role": "assistant", "content": None, "tool_calls": [wired_call("call_long-id")]}
    sent = [*map(with_short_ids, [HELLO, asked, result("call_long-id")])]
    [given] = [each["id"] for each in sent[1]["tool_calls"]]
    assert (len(given), given.isalnum()) == (9, True)
    assert sent[2]["tool_call_id"] == given
    assert (short_id("abcDEF123"), short_id("a") == short_id("b")) == ("abcDEF123", False)


def test_unsigned_calls_are_signed_by_nobody() -> None:
    """The first of a message, where none is signed."""
    signed = wired_call("a", extra_content={"google": {"thought_signature": "s"}})
    asked = {"role": "assistant", "content": None}
    own = {**asked, "tool_calls": [signed, wired_call("b")]}
    [kept, foreign] = map(with_signature, [own, {**asked, "tool_calls": [wired_call("c")] * 2}])
    assert kept is own
    extras = [each.get("extra_content") for each in foreign["tool_calls"]]
    assert extras == [SIGNED_BY_NOBODY, None]


def test_without_quirks_the_messages_are_the_same_list() -> None:
    """Nothing is built anew for a server that takes everything."""
    messages = [HELLO, {"role": "assistant", "content": "x"}]
    nothing: Quirks = frozenset()
    assert apply_quirks(messages, nothing, join=True) is messages
    assert apply_quirks([HELLO, HELLO], nothing, join=False) == [HELLO, HELLO]


@given(messages=views(), tools=st.booleans(), thought=st.booleans())
def test_responses_takes_every_request(
    messages: list[ChatMessage], tools: bool, thought: bool
) -> None:
    """The strict double refuses none, with the thoughts of all answers and without."""
    server = ResponsesServer()
    shown = [with_thought(server, n, each) for n, each in enumerate(messages)]
    request = ModelRequest(shown if thought else messages, (TOOL,) if tools else ())
    body = responses_body(request, "m", "here/m") | {"stream": True}
    server.check({}, body)
    kinds = [item["type"] for item in body["input"]]
    assert kinds.count("reasoning") == (len(server.thoughts) if thought else 0)
    assert "".join(texts_in(body)) == "".join(map(text_of, messages))


def with_thought(server: ResponsesServer, number: int, message: ChatMessage) -> ChatMessage:
    """Return an answer as the model gave it: it thought first."""
    text, calls = text_of(message), message.get("tool_calls") or ()
    if message["role"] != "assistant" or message.get("synthetic") or not (text or calls):
        return message
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
    server.thoughts[f"rs_{number}"] = thought = thought | {"encrypted_content": "x"}
    said = [{"type": "message", "chars": len(text)}] if text else []
    output = [thought, *said, *({"type": "function_call"} for _ in calls)]
    return {**message, "opaque": {"openai": {"origin": "here/m", "output": output}}}


def texts_in(body: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a body in their order."""
    yield body.get("instructions", "")
    for item in body["input"]:
        content = item.get("content", item.get("output", ""))
        parts = [{"text": content}] if isinstance(content, str) else content
        yield from (part.get("text", "") for part in parts)


@given(messages=views(), signs=st.booleans())
def test_gemini_takes_every_request(messages: list[ChatMessage], signs: bool) -> None:
    """What other models called is signed as nobody's, where it wants signatures."""
    server = GeminiServer()
    server.signs = signs
    talk = Negotiation(
        ServerMode("gemini"),
        lambda quirks: request_body(ModelRequest(messages, (TOOL,)), "m", quirks=quirks, join=True),
    )
    for _ in range(MOST_REFUSALS):
        try:
            server.check({}, talk.body() | {"stream": True})
        except Refusal as refusal:
            if not talk.goes_on(parse_refusal(refusal.fault.status, {}, str(refusal))):
                raise
        else:
            break
    talk.settle()
    assert talk.body()["messages"]
