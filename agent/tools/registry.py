"""What a tool is, and the registry that runs one call: checks arguments, maps every failure.

Nothing a tool does ends the turn: what goes wrong becomes a text for the model.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.context_engine import ContextEngine
from agent.errors import ToolError
from agent.messages import ToolCall
from agent.models.arguments import read_arguments
from agent.models.base import ToolSchema
from agent.ports import ConversationReader, Effect, Files, ToolStatus

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use of the turn it runs in.

    Attributes:
        conversation: Stable id of the conversation.
        reader: Reads the transcript of this conversation, and no other.
        clock: Returns the current time, aware.
        engine: The turn's context engine; None where nothing asks for it.
        files: Takes files that are to be shown with the answer; None where none can be.
        may_act: Whether tools may have side effects: not for senders who are only let talk.
    """

    conversation: str
    reader: ConversationReader
    clock: Callable[[], datetime]
    engine: ContextEngine | None = None
    files: Files | None = None
    may_act: bool = True


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What became of a call; the texts of errors are written for the model."""

    text: str
    status: ToolStatus


class Arguments(BaseModel):
    """Base of every argument model: numbers pass for text, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        description: Tells the model what it does and when to use it.
        effect: What a second run after a crash would do.
        run: Gets an instance of `arguments`; raises ToolError for what the model can mend.
        exclusive: Keeps state: never runs beside another exclusive tool of the turn.
        timeout_s: Longest run.
    """

    name: str
    description: str
    effect: Effect
    arguments: type[BaseModel]
    run: Callable[[ToolContext, Any], Awaitable[str]]
    exclusive: bool = False
    timeout_s: float = 60


class ToolBox(Protocol):
    """The tools of a turn, as the loop sees them."""

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as shown to the model, always in the same order."""
        ...

    def effect(self, name: str) -> Effect:
        """Return the effect class of a tool; "read" for an unknown one, which does nothing."""
        ...

    def exclusive(self, name: str) -> bool:
        """Return whether a tool must run alone among the exclusive ones."""
        ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Failures of the tool come back as outcomes; cancellation goes on."""
        ...


class ToolRegistry:
    """The tool box made of `Tool`s, in the order given."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Build the schemas.

        Raises:
            ValueError: Two tools have the same name.
        """
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool
        self._schemas = tuple(
            ToolSchema(tool.name, tool.description, parameter_schema(tool.arguments))
            for tool in self._tools.values()
        )

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as shown to the model."""
        return self._schemas

    def effect(self, name: str) -> Effect:
        """Return the effect class of a tool, "read" for an unknown one."""
        return self._tools[name].effect if name in self._tools else "read"

    def exclusive(self, name: str) -> bool:
        """Return whether a tool keeps state."""
        return name in self._tools and self._tools[name].exclusive

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Check the arguments of a call, run it, and map what goes wrong."""
        name = call["function"]["name"]
        if (tool := self._tools.get(name)) is None:
            return _failure(f"there is no tool {name!r}. Known tools: {', '.join(self._tools)}")
        if tool.effect == "side_effect" and not context.may_act:
            return _failure(f"the sender may not use {name}: it has side effects")
        try:
            arguments = parse_arguments(tool, call["function"]["arguments"])
        except ToolError as error:
            return _failure(str(error))
        return await _run(tool, arguments, context)


async def _run(tool: Tool, arguments: BaseModel, context: ToolContext) -> ToolOutcome:
    deadline = asyncio.timeout(tool.timeout_s)
    try:
        async with deadline:
            return ToolOutcome(await tool.run(context, arguments), "ok")
    except ToolError as error:
        return _failure(str(error))
    except Exception as error:
        if deadline.expired():
            return _failure(f"{tool.name} did not finish within {tool.timeout_s:g} s")
        log.exception("tool_failed", tool=tool.name, error=type(error).__name__)
        return _failure(f"{tool.name} failed with {type(error).__name__}")


def _failure(text: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {text}", "error")


def parse_arguments(tool: Tool, raw: str) -> BaseModel:
    """Return the typed arguments of a call.

    An empty text means no arguments, and a text is mended where nothing is guessed (see
    agent/models/arguments.py). Values are coerced where nothing is lost ("3" becomes 3).

    Raises:
        ToolError: Not JSON, not an object, or values that do not fit; one line for each.
    """
    values = read_arguments(raw) if raw.strip() else {}
    if values is None:
        raise ToolError(_unreadable(tool, raw))
    try:
        return tool.arguments.model_validate(values)
    except ValidationError as exc:
        raise ToolError(_readable(tool, exc)) from exc


def _unreadable(tool: Tool, raw: str) -> str:
    try:
        kind = type(orjson.loads(raw)).__name__
    except orjson.JSONDecodeError as exc:
        return f"the arguments of {tool.name} are not valid JSON: {exc}"
    return f"the arguments of {tool.name} must be a JSON object, not a {kind}"


def _readable(tool: Tool, error: ValidationError) -> str:
    properties = parameter_schema(tool.arguments).get("properties", {})
    lines = [f"the arguments of {tool.name} do not fit:"]
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"]) or "(all)"
        line = f"- {where}: {item['msg']}"
        if item["loc"] and (expected := _type_name(properties.get(item["loc"][0], {}))):
            line += f" (expected {expected})"
        lines.append(line)
    return "\n".join(lines)


def _type_name(schema: dict[str, Any]) -> str:
    options = schema.get("anyOf", [schema])
    return " or ".join(str(option["type"]) for option in options if "type" in option)


def parameter_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of an argument model: no titles, no unknown properties."""
    plain: dict[str, Any] = _plain(arguments.model_json_schema())
    return plain


_NAMED_SCHEMAS = ("properties", "$defs")


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {
        # The keys in here are names: a property may be called "title".
        key: {name: _plain(schema) for name, schema in value.items()}
        if key in _NAMED_SCHEMAS
        else _plain(value)
        for key, value in node.items()
        if key != "title"
    }
    if plain.get("type") == "object":
        plain.setdefault("additionalProperties", False)
    return plain
