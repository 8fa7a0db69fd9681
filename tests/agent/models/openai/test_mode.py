"""What is learned of servers from their refusals: noticed, applied, kept, and forgotten again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from agent.errors import BadRequest, ContextOverflow, ModelError
from agent.messages import ChatMessage, ToolSchema, assistant_message, tool_message, user_message
from agent.models.base import ModelRequest
from agent.models.openai.client import OpenAIModel
from agent.models.openai.mode import (
    LOOK_AGAIN_S,
    Quirk,
    Quirks,
    ServerMode,
    has_call,
    known_modes,
    quirk_named_in,
)
from agent.models.openai.wire import NOT_ANSWERED
from agent.settings import ModelSettings
from tests.support.chat_templates import TemplateServer
from tests.support.model_server import Fault, Refusal, Reply, SinkSpy
from tests.support.openai_server import OpenAIServer
from tests.support.scripted_model import tool_call

TOOL = ToolSchema("look", "Looks.", {"type": "object", "properties": {}})
SYSTEM = ChatMessage(role="system", content="Be brief.")
CALL = tool_call("look", {}, "call_1")
CALLED = ChatMessage(role="assistant", content=None, tool_calls=[CALL])
INTERRUPTED = [
    SYSTEM,
    user_message("one"),
    CALLED,
    tool_message("call_1", "look", "found"),
    user_message("two"),
]


@asynccontextmanager
async def connect(server: OpenAIServer, **settings: Any) -> AsyncIterator[OpenAIModel]:
    defaults = {"provider": "openai", "name": "local-1", "base_url": server.url}
    model = OpenAIModel(ModelSettings.model_validate(defaults | settings))
    try:
        yield model
    finally:
        await model.close()


# Each as the server says it; sources: their documentation, code and issue trackers.
REFUSALS: tuple[tuple[str, Quirk], ...] = (
    ("Conversation roles must alternate user/assistant/user/assistant/...", "strict_roles"),
    (
        (
            "After the optional system message, conversation roles must alternate user and"
            " assistant roles except for tool calls and results."
        ),
        "strict_roles",
    ),
    (
        "After the (optional) system message(s), user and assistant roles should be alternating.",
        "strict_roles",
    ),
    ("Unexpected role 'user' after role 'tool'", "strict_roles"),
    ("Please ensure that multiturn requests alternate between user and model.", "strict_roles"),
    (
        (
            "Please ensure that function call turn comes immediately after a user turn or after a"
            " function response turn."
        ),
        "strict_roles",
    ),
    ("System role not supported", "no_system"),
    ("Developer instruction is not enabled for models/gemma-3-27b-it", "no_system"),
    (
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "no_system",
    ),
    ("registry.ollama.ai/library/gemma:latest does not support tools", "no_tools"),
    ("Function calling is not enabled for models/gemma-3-27b-it", "no_tools"),
    (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "no_tools",
    ),
    ("Only user and assistant roles are supported!", "no_tools"),
    ("This model only supports single tool-calls at once!", "one_call"),
    ("Tool call IDs should be alphanumeric strings with length 9!", "short_ids"),
    (
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
        "short_ids",
    ),
    (
        "Function call is missing a thought_signature in functionCall parts.",
        "signed_calls",
    ),
    ("The `reasoning_content` in the thinking mode must be passed back to the API.", "reasoned"),
    (
        (
            "thinking is enabled but reasoning_content is missing in assistant tool call message"
            " at index 3"
        ),
        "reasoned",
    ),
    ("messages.2: field reasoning_content is required", "reasoned"),
    ("Missing `reasoning_content` field in the assistant message at position 4", "reasoned"),
    ("assistant message without reasoning_content", "reasoned"),
    ("This model requires reasoning_content in multi-turn requests", "reasoned"),
    ("reasoning_content must not be empty", "reasoned"),
    ("param incorrect: expected reasoning_content in messages[5]", "reasoned"),
    (
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
            " 'max_completion_tokens' instead."
        ),
        "max_completion_tokens",
    ),
    ("Unrecognized request argument supplied: stream_options", "no_stream_options"),
    ("body.stream_options: Extra inputs are not permitted", "no_stream_options"),
    ('Invalid JSON payload received. Unknown name "tool_choice": Cannot find', "no_tool_choice"),
    ("Encrypted content is not supported with this model.", "no_encrypted_reasoning"),
    (
        'Unknown name "const" at tools[0].function_declarations[0]: Cannot find field.',
        "plain_schemas",
    ),
    ("unsupported operand type(s) for +: 'NoneType' and 'str'", "no_null"),
    ("messages.2.content: Input should be a valid string", "no_null"),
)
NOTHING: Quirks = frozenset()


@pytest.mark.parametrize(("refusal", "quirk"), REFUSALS)
def test_refusals_are_understood(refusal: str, quirk: Quirk) -> None:
    """In the words of servers and templates."""
    assert quirk_named_in(refusal, NOTHING) == quirk


def test_every_quirk_has_its_refusal() -> None:
    """What cannot be learned would be dead; OpenAI's own limit is refused by others."""
    limit: Quirks = frozenset({"max_completion_tokens"})
    assert quirk_named_in("max_completion_tokens: Extra inputs are not permitted", limit)
    words = "reasoning_content is missing"
    assert quirk_named_in(words, frozenset({"reasoned"})) == "blank_reasoning"
    taught = {quirk for _, quirk in REFUSALS} | {"max_tokens", "tool_parser_off"}
    taught |= {"blank_reasoning"}
    assert taught == set(get_args(Quirk))


@pytest.mark.parametrize(
    "refusal",
    [
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"
            " (8000 in the messages, 1000 in the functions)."
        ),
        "Invalid value for 'temperature': must be at most 2.",
        "tool_choice is only allowed when tools are specified",
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        "Provider returned error",
        "Could not process image",
        "",
    ],
)
def test_other_refusals_teach_nothing(refusal: str) -> None:
    """They are met elsewhere."""
    assert quirk_named_in(refusal, NOTHING) is None


async def test_a_refusal_is_learned_once_and_kept() -> None:
    """The first request is made twice; those after it are taken, of another client too."""
    request = ModelRequest([SYSTEM, user_message("hi")])
    with capture_logs() as logs:
        async with TemplateServer("gemma-2") as server:
            async with connect(server) as model:
                await model.complete(request, SinkSpy())
                await model.complete(request, SinkSpy())
            async with connect(server) as model:
                await model.complete(request, SinkSpy())
    assert server.refused == ["System role not supported"]
    assert len(server.requests) == 4
    assert {entry["event"]: entry["quirk"] for entry in logs} == {
        "server_mode_learned": "no_system"
    }
    assert len(logs) == 1
    [known] = known_modes()
    assert known.learned == {"no_system"}


@pytest.mark.parametrize("status", [400, 422, 500, 0])
async def test_servers_refuse_in_several_ways(status: int) -> None:
    """VLLM and LM Studio, Mistral, llama.cpp; 0 is an error inside of the stream."""
    async with TemplateServer("mistral-v3", status) as server, connect(server) as model:
        sink = SinkSpy()
        done = await model.complete(ModelRequest(INTERRUPTED, (TOOL,)), sink)
        assert (done.message["content"], sink.text) == ("ok", "ok")
        sent = server.requests[-1].body["messages"]
        assert sent[-2] == {"role": "assistant", "content": NOT_ANSWERED}
        assert model.mode.quirks == {"strict_roles", "short_ids"}


async def test_what_does_not_help_is_not_kept() -> None:
    """A server that goes on refusing taught nothing, and its refusal is told."""
    refusal = Fault(status=400, message="Conversation roles must alternate, whatever you do")
    async with OpenAIServer() as server, connect(server) as model:
        server.script(*[refusal] * 9)
        with pytest.raises(BadRequest, match="whatever you do"), capture_logs() as logs:
            await model.complete(ModelRequest(INTERRUPTED, (TOOL,)), SinkSpy())
        assert len(server.requests) == 4
        assert (model.mode.quirks, logs) == (NOTHING, [])


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(status=400, message="maximum context length is 9 tokens"), ContextOverflow),
        (Fault(status=403, message="System role not supported"), ModelError),
        (Fault(status=400, message="This model only supports single tool-calls"), BadRequest),
    ],
)
async def test_other_failures_are_told_at_once(fault: Fault, expected: type[ModelError]) -> None:
    """Also a refusal of what the request does not have."""
    async with OpenAIServer() as server, connect(server) as model:
        server.script(fault)
        with pytest.raises(expected):
            await model.complete(ModelRequest([SYSTEM, user_message("hi")]), SinkSpy())
        assert len(server.requests) == 1


async def test_nothing_is_asked_again_once_something_was_said() -> None:
    """A refusal behind the beginning of an answer is a failure like others."""
    async with OpenAIServer() as server, connect(server) as model:
        frames = server.frames

        def broken(body: dict[str, Any], reply: Reply) -> list[bytes]:
            error = {"error": {"message": "Conversation roles must alternate"}}
            return [*frames(body, reply)[:3], f"data: {json.dumps(error)}\n\n".encode()]

        server.frames = broken  # type: ignore[method-assign]
        server.script(Reply(text="Well, well, well"))
        with pytest.raises(ModelError):
            await model.complete(ModelRequest(INTERRUPTED), SinkSpy())
        assert len(server.requests) == 1


class LimitServer(OpenAIServer):
    """Takes one name of the limit alone, and no `stream_options`."""

    limit = "max_tokens"

    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        super().check(headers, body)
        for name in ("max_tokens", "max_completion_tokens", "stream_options"):
            if name in body and name != self.limit:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                raise Refusal(400, "unsupported_parameter", f"{text} {self.advice}")

    @property
    def advice(self) -> str:
        return f"Use '{self.limit}' instead."


async def test_the_name_of_the_limit_is_learned() -> None:
    """In both directions, as the server changes; and the field of the report."""
    async with LimitServer(default=Reply(text="ok")) as server, connect(server) as model:
        server.limit = "max_completion_tokens"
        await model.complete(ModelRequest([user_message("hi")]), SinkSpy())
        assert model.mode.quirks == {"max_completion_tokens", "no_stream_options"}
        server.limit = "max_tokens"
        await model.complete(ModelRequest([user_message("hi")]), SinkSpy())
        assert model.mode.quirks == {"max_tokens", "no_stream_options"}
        assert "max_tokens" in server.requests[-1].body


class ThinkingServer(OpenAIServer):
    """Refuses answers without `reasoning_content`, like DeepSeek and Kimi; `least` chars of it."""

    least = 0
    only_calls = True

    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.extensions = frozenset({"reasoning_content"})
        super().check(headers, body)
        for place, message in enumerate(body["messages"]):
            if message["role"] != "assistant" or (self.only_calls and "tool_calls" not in message):
                continue
            if len(message.get("reasoning_content", "").strip()) < self.least or (
                "reasoning_content" not in message
            ):
                why = f"thinking is enabled but reasoning_content is missing at index {place}"
                raise Refusal(400, "invalid_request_error", why)


@pytest.mark.parametrize("only_calls", [True, False])
@pytest.mark.parametrize("least", [0, 1])
async def test_reasoning_is_sent_if_the_server_wants_it(least: int, only_calls: bool) -> None:
    """Calls of another model have none; an empty one does, or an ellipsis where that is refused."""
    server = ThinkingServer(default=Reply(text="ok"))
    server.least, server.only_calls = least, only_calls
    history = [*INTERRUPTED[1:4], assistant_message("Done."), user_message("and now?")]
    async with server, connect(server) as model:
        for _ in range(2):
            done = await model.complete(ModelRequest(history), SinkSpy())
            assert done.message["content"] == "ok"
        assert model.mode.quirks == {"reasoned"} | ({"blank_reasoning"} if least else set())
        assert len(server.requests) == least + 3


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.at = 1e9

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    built = ServerMode.__init__

    def with_clock(self: ServerMode, *given: Any, **named: Any) -> None:
        built(self, *given, **named)
        self.now = clock

    monkeypatch.setattr(ServerMode, "__init__", with_clock)
    return clock


async def test_what_holds_no_longer_is_forgotten(clock: Clock) -> None:
    """After a day a request goes out without it; a server that takes it is not asked again."""
    request = ModelRequest([SYSTEM, user_message("hi")])
    async with TemplateServer("gemma-2") as server, connect(server) as model:
        await model.complete(request, SinkSpy())
        server.template = None
        await model.complete(request, SinkSpy())
        assert model.mode.quirks == {"no_system"}
        clock.at += LOOK_AGAIN_S + 1
        await model.complete(request, SinkSpy())
        assert model.mode.quirks == NOTHING
        assert server.requests[-1].body["messages"][0] == SYSTEM
        assert len(server.requests) == 4


async def test_what_still_holds_costs_one_refusal_a_day(clock: Clock) -> None:
    """And no line in the log."""
    request = ModelRequest([SYSTEM, user_message("hi")])
    async with TemplateServer("gemma-2") as server, connect(server) as model:
        await model.complete(request, SinkSpy())
        clock.at += LOOK_AGAIN_S + 1
        with capture_logs() as logs:
            for _ in range(3):
                await model.complete(request, SinkSpy())
        assert (len(server.refused), len(server.requests), logs) == (2, 6, [])


async def test_servers_and_models_are_told_apart() -> None:
    """What one refuses the other may take."""
    request = ModelRequest([SYSTEM, user_message("hi")])
    async with TemplateServer("gemma-2") as strict, TemplateServer(None) as other:
        async with connect(strict) as model:
            await model.complete(request, SinkSpy())
        for server, name in ((strict, "another"), (other, "local-1")):
            async with connect(server, name=name) as model:
                assert model.mode.quirks == NOTHING


async def test_ephemeral_context_and_question_are_one_message() -> None:
    """Where nothing is known of a server; OpenAI's own takes two."""
    context = ChatMessage(role="user", content="Recalled.", synthetic=True, ephemeral=True)
    asked = [context, user_message("hi"), assistant_message("yes"), context, user_message("so?")]
    async with TemplateServer("gemma-2") as server, connect(server) as model:
        await model.complete(ModelRequest(asked), SinkSpy())
        assert [each["content"] for each in server.requests[0].body["messages"]] == [
            "Recalled.\n\nhi",
            "yes",
            "Recalled.\n\nso?",
        ]
    official = OpenAIModel(ModelSettings(provider="openai", api_key="k"))  # type: ignore[arg-type]
    sent = official._body(ModelRequest(asked), NOTHING)["messages"]
    assert len(sent) == 5
    await official.close()


AS_TEXT = {
    "Hermes, Qwen": '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>',
    "behind words": 'Let me look.<tool_call>{"name": "look"}</tool_call>',
    "GLM": "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>it</arg_value>\n</tool_call>",
    "Qwen coder": "<function=look>\n<parameter=at>it</parameter>\n</function>",
    "Mistral": '[TOOL_CALLS][{"name": "look", "arguments": {}}]',
    "Mistral, newer": '[TOOL_CALLS]look[ARGS]{"at": "it"}',
    "Llama": '{"name": "look", "parameters": {"at": "it"}}',
    "Llama 3.1": '<|python_tag|>{"type": "function", "name": "look", "parameters": {}}',
    "Kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0",
    "DeepSeek": "<\uff5ctool\u2581calls\u2581begin\uff5c>function look",
    "MiniMax": '<minimax:tool_call>\n<invoke name="look">\n</invoke>\n</minimax:tool_call>',
    "gpt-oss": "commentary to=functions.look <|constrain|>json<|message|>{}",
    "Phi": 'functools[{"name": "look", "arguments": {}}]',
    "Gemma": "```tool_code\nprint(look(at='it'))\n```",
    "Nemotron": '<TOOLCALL>[{"name": "look", "arguments": {}}]</TOOLCALL>',
    "InternLM": '<|action_start|><|plugin|>\n{"name": "look"}',
    "Llama 4": "[look(at='it')]",
    "in a fence behind words": 'I look.\n\n```json\n{"name": "look", "arguments": {}}\n```',
    "in a fence": '```json\n{"name": "look", "arguments": {}}\n```',
}
NO_CALLS = [
    "I shall look into it.",
    "Qwen writes `<tool_call>look</tool_call>` for that.",
    '<tool_call>{"name": "another"}</tool_call>',
    "The tool [tools] can look like this.",
    'As JSON: {"name": "look"}',
    "<b>look</b> [function](x)",
]


@pytest.mark.parametrize("text", AS_TEXT.values(), ids=AS_TEXT)
def test_calls_that_came_as_text_are_known(text: str) -> None:
    """In the form of each family of models, if they name a tool that there is."""
    assert has_call(text, ["send", "look"])
    assert not has_call(text, ["send"])


@pytest.mark.parametrize("text", NO_CALLS)
def test_words_about_calls_are_none(text: str) -> None:
    """In code, without a mark, or of a tool that there is not."""
    assert not has_call(text, ["send", "look"])


async def test_the_operator_hears_that_the_tool_parser_is_off() -> None:
    """Once, in the log and for doctor, until a call comes as one; requests stay as they are."""
    request = ModelRequest([user_message("hello")], (TOOL,))
    async with OpenAIServer() as server:
        server.script(*[Reply(text=AS_TEXT["Hermes, Qwen"])] * 2, Reply(calls=(("look", {}),)))
        async with connect(server) as model:
            with capture_logs() as logs:
                said = [await model.complete(request, SinkSpy()) for _ in range(2)]
            [learned] = logs
            assert (learned["event"], learned["quirk"]) == (
                "server_mode_learned",
                "tool_parser_off",
            )
            assert said[0].message["content"] == AS_TEXT["Hermes, Qwen"]
            assert [each.learned for each in known_modes()] == [{"tool_parser_off"}]
            await model.complete(request, SinkSpy())
            assert model.mode.quirks == NOTHING
        assert server.requests[0].body == server.requests[1].body
        assert [each.learned for each in known_modes()] == [NOTHING]


async def test_calls_as_text_are_expected_where_calls_are_forbidden() -> None:
    """Then nothing is wrong with the server."""
    async with OpenAIServer() as server, connect(server) as model:
        server.script(*[Reply(text=AS_TEXT["Llama"])] * 2)
        await model.complete(
            ModelRequest([user_message("x")], (TOOL,), allow_tools=False), SinkSpy()
        )
        await model.complete(ModelRequest([user_message("x")]), SinkSpy())
        assert model.mode.quirks == NOTHING
