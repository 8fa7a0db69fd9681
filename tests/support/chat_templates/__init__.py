"""Chat templates of models, and a server that renders requests with them.

The templates are written from what the models' cards and servers document: which roles they take,
in which order, and with which words they refuse the rest.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from typing_extensions import override

from tests.support.model_server import Fault, Refusal, Reply
from tests.support.openai_server import OpenAIServer

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))


class TemplateRefusal(Exception):
    """A template raises; the text is its own."""


def render(name: str, body: dict[str, Any]) -> str:
    """Return the prompt that a server would make of the body of a request.

    Raises:
        TemplateRefusal: The template does not take it.
    """
    messages = [_as_servers_do(message) for message in body["messages"]]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        return _template(name).render(messages=messages, tools=body.get("tools"), **tokens)
    except TypeError as exc:
        # Servers hand on what Python says of it.
        raise TemplateRefusal(str(exc)) from exc


def _as_servers_do(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as vLLM and llama.cpp hand it to a template for texts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text", "<image>") for part in content]
        content = "\n".join(texts)
    calls = [_with_object(call) for call in message.get("tool_calls") or ()]
    return {**message, "content": content} | ({"tool_calls": calls} if calls else {})


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


@lru_cache
def _template(name: str) -> jinja2.Template:
    def raise_exception(text: str) -> None:
        raise TemplateRefusal(text)

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.Undefined)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string((FOLDER / f"{name}.jinja").read_text())


class TemplateServer(OpenAIServer):
    """OpenAI's double in front of a chat template, as vLLM, llama.cpp and LM Studio are.

    Attributes:
        template: Its name; None for one that takes everything.
        status: With which a template's refusal comes; 0 for an error inside of the stream.
        prompts: What was rendered.
    """

    def __init__(self, template: str | None, status: int = 400) -> None:
        super().__init__(default=Reply(text="ok"))
        self.template = template
        self.status = status
        self.prompts: list[str] = []
        self._refusal = ""

    @override
    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        super().check(headers, body)
        self._refusal = ""
        if self.template is None:
            return
        try:
            self.prompts.append(render(self.template, body))
        except TemplateRefusal as exc:
            if self.status:
                raise Refusal(self.status, "BadRequestError", str(exc)) from exc
            self.refused.append(str(exc))
            self._refusal = f"Error rendering prompt with jinja template: {exc}"

    @override
    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        if not self._refusal:
            return super().frames(body, reply)
        error = self.error_body(Fault(message=self._refusal))
        return [f"event: error\ndata: {json.dumps(error)}\n\n".encode()]
