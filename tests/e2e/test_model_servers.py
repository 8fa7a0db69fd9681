"""`parley chat` against each kind of model server: tools, a kill in mid-answer, the bill."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.web_chat import WebChat
from tests.support.chat_templates import TemplateServer
from tests.support.gemini_server import GeminiServer
from tests.support.model_server import ModelServer, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess
from tests.support.responses_server import ResponsesServer

PRICES = {"input_usd": 1000.0, "output_usd": 10_000.0, "cache_read_usd": 100.0}
CALL = Reply(thinking="Which time is it?", text="A moment.", calls=(("current_time", {}),), piece=4)


def server_of(kind: str) -> ModelServer:
    servers: dict[str, ModelServer] = {
        "chat": OpenAIServer(),
        "responses": ResponsesServer(),
        "gemini": GeminiServer(),
        "mistral": TemplateServer("mistral-v3"),
    }
    server = servers[kind]
    if isinstance(server, OpenAIServer) and kind != "gemini":
        server.extensions = frozenset({"reasoning_content"})
    return server


def settings_of(server: ModelServer, kind: str) -> dict[str, Any]:
    api = "responses" if kind == "responses" else "auto"
    block = {"provider": "openai", "base_url": server.url, "api": api, "name": f"model-{kind}"}
    return {
        "model": block | {"context_length": 100_000, "facts": PRICES},
        "queue": {"debounce_ms": 0},
    }


def counted(server: ModelServer, prompt: int, answer: int) -> dict[str, Any]:
    """Return a report of usage in the words of the server's API; 40 tokens come from its cache."""
    cached = {"cached_tokens": 40}
    if isinstance(server, ResponsesServer):
        return {"input_tokens": prompt, "input_tokens_details": cached, "output_tokens": answer}
    return {
        "prompt_tokens": prompt,
        "prompt_tokens_details": cached,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }


@pytest.mark.parametrize("kind", ["chat", "responses", "gemini", "mistral"])
async def test_a_conversation_through_a_kill(tmp_path: Path, kind: str) -> None:
    """A tool is called, the process killed in mid-answer; the chat goes on, and the bill is right.

    What was learned of the server is learned again by the next process, from one refusal.
    """
    async with server_of(kind) as server:
        parley = ParleyProcess(tmp_path / "home", settings_of(server, kind))
        async with parley:
            await talk(parley, server)
            # The strict template refuses the ids of calls, once for a process; the others nothing.
            learned = 1 if kind == "mistral" else 0
            assert len(server.refused) == learned
            await killed_in_mid_answer(parley, server)
            await bill(parley, server)
            assert len(server.refused) == 2 * learned


async def talk(parley: ParleyProcess, server: ModelServer) -> None:
    """By the terminal, as a person does."""
    server.script(CALL, Reply(text="It is noon.", usage=counted(server, 1_040, 50)))
    said = await parley.run("chat", stdin="What time is it?\n")
    assert (said.code, said.stderr) == (0, "")
    assert "It is noon." in said.stdout
    assert [role for role, _ in parley.transcript()] == ["user", "assistant", "tool", "assistant"]
    if isinstance(server, ResponsesServer):
        kinds = [item["type"] for item in server.requests[-1].body["input"]]
        assert kinds.count("reasoning") == 2
        assert kinds[-1] == "function_call_output"


async def killed_in_mid_answer(parley: ParleyProcess, server: ModelServer) -> None:
    """The question is asked again by the next process; nothing of the half answer stays."""
    chat = WebChat(parley, "terminal")
    server.script(Reply(text="Once upon a time there was", trouble="stall"))
    seq = await chat.say("Tell me a story.")
    await chat.until(lambda: "Once upon" in chat.preview)
    asked = server.requests[-1].body
    await parley.kill9()
    server.script(Reply(text="The end.", usage=counted(server, 2_040, 20)))
    await parley.restart()
    await chat.until(lambda: seq in chat.answered())
    assert chat.answers[-1] == "The end."
    words = [text for _, text in parley.transcript()]
    assert words[-2:] == ["Tell me a story.", "The end."]
    assert server.requests[-1].body == asked


async def bill(parley: ParleyProcess, server: ModelServer) -> None:
    """Tokens and dollars of the newest answer, and what the commands say."""
    [newest] = parley.rows(
        "SELECT input_tokens, cache_read_tokens, output_tokens, usd FROM ledger"
        " WHERE purpose = 'answer' ORDER BY id DESC LIMIT 1"
    )
    assert newest[:3] == (2_000, 40, 20)
    assert newest[3] == pytest.approx(2.0 + 0.004 + 0.2)
    chat = WebChat(parley, "terminal")
    name = parley.settings["model"]["name"]
    status = await chat.ask("/status")
    assert f"**Model**: {name}" in status
    assert "2,060 of 100,000 tokens" in status
    usage = await chat.ask("/usage")
    assert "$" in usage
    assert "unknown" not in usage
