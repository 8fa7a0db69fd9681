"""What a tool is, the registry that runs one call, and what a model is shown of a tool.

A call's arguments are checked, and every failure is mapped: nothing a tool does ends the turn, what
goes wrong becomes a text for the model. What its services raise to end the attempt (`AttemptEnds`)
is not the tool's, and goes on.

The schema that a model is shown says less than what is checked, where the rest would only cost
tokens: every request pays for it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.errors import AttemptEnds, ToolError
from agent.messages import ToolCall, ToolSchema
from agent.models.wire import read_arguments
from agent.ports import Effect
from agent.tools.context import ToolContext, ToolOutcome

log = structlog.get_logger()

LONG_TEXT_CHARS = 1_000
"""Limits of texts from here on are not shown: models do not count characters."""
_NAMED_SCHEMAS = ("properties", "$defs")
_NO_SCHEMAS = ("default", "const", "enum", "examples", "discriminator")
_NULL = {"type": "null"}
_LEAST = {"minimum": 1, "minLength": 1, "exclusiveMinimum": 0}
"""Bounds from below that every sensible call keeps."""


class Arguments(BaseModel):
    """Base of every argument model: numbers pass for text, unknown names are errors."""

    # Models write numbers without quotes; a name that is not known is a mistake that they can fix.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        description: Tells the model what it does and when to use it.
        effect: What a second run after a crash would do.
        arguments: A model, which checks them; or the JSON schema of a foreign tool (an MCP
            server's, an engine's), which checks them itself.
        run: Gets an instance of the model, or the object; raises ToolError for what the model can
            fix.
        exclusive: Keeps state: never runs beside another exclusive tool of the turn.
        restricted: Touches the world outside of the conversation: only for senders who may act,
            whatever its effect is.
    """

    name: str
    description: str
    effect: Effect
    arguments: type[BaseModel] | dict[str, Any]
    run: Callable[[ToolContext, Any], Awaitable[str]]
    exclusive: bool = False
    timeout_s: float = 60
    restricted: bool = False


class ToolRegistry:
    """The tools of a turn, in the order given; `schemas` are as shown to the model."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Build the schemas; raises a ValueError if two tools have the same name."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool
        self.schemas = tuple(schema_of(tool) for tool in self._tools.values())

    def changed(self, more: Iterable[Tool] = (), without: Collection[str] = ()) -> "ToolRegistry":
        """Return a copy with more tools at its end, or without some of them."""
        kept = [tool for tool in self._tools.values() if tool.name not in without]
        return ToolRegistry([*kept, *more])

    def effect(self, name: str) -> Effect:
        """Return the effect class of a tool; "read" for an unknown one, which does nothing."""
        return self._tools[name].effect if name in self._tools else "read"

    def exclusive(self, name: str) -> bool:
        """Return whether a tool must run alone among the exclusive ones: it keeps state."""
        return name in self._tools and self._tools[name].exclusive

    def restricted(self, name: str) -> bool:
        """Return whether a tool is only for senders who may act; a side effect always is."""
        tool = self._tools.get(name)
        return tool is not None and (tool.restricted or tool.effect == "side_effect")

    def refusal(self, call: ToolCall) -> ToolOutcome | None:
        """Return why a call cannot run (unknown, or arguments that do not fit), or None."""
        checked = self._checked(call)
        return checked if isinstance(checked, ToolOutcome) else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Failures of the tool come back as outcomes; cancellation goes on.

        Raises:
            AttemptEnds: The call has no outcome yet: it waits for a person, or what it did could
                not be recorded.
        """
        checked = self._checked(call)
        if isinstance(checked, ToolOutcome):
            return checked
        return await _run(self._tools[call["function"]["name"]], checked, context)

    def _checked(self, call: ToolCall) -> Any | ToolOutcome:
        """Return the arguments of a call that can run; else why it cannot."""
        name = call["function"]["name"]
        if (tool := self._tools.get(name)) is None:
            return _failure(f"there is no tool {name!r}. Known tools: {', '.join(self._tools)}")
        try:
            return parse_arguments(tool, call["function"]["arguments"])
        except ToolError as error:
            return _failure(str(error))
        except Exception as error:  # noqa: BLE001 - a plugin's own checks are a part of its tool
            return _broken(tool, error)


async def _run(tool: Tool, arguments: Any, context: ToolContext) -> ToolOutcome:
    deadline = asyncio.timeout(tool.timeout_s)
    try:
        async with deadline:
            return ToolOutcome(await tool.run(context, arguments), "ok")
    # No failure of the tool: as a text for the model it would give the waiting call an outcome.
    except AttemptEnds:
        raise
    except ToolError as error:
        return _failure(str(error))
    except Exception as error:  # noqa: BLE001 - whatever a tool does ends here
        # A tool may raise a TimeoutError of its own: the deadline tells whose it was.
        if deadline.expired():
            reason = f"did not finish within {tool.timeout_s:g} s"
            log.warning("tool_timed_out", tool=tool.name, reason=reason)
            return _failure(f"{tool.name} {reason}")
        return _broken(tool, error)


def _broken(tool: Tool, error: Exception) -> ToolOutcome:
    log.error("tool_failed", tool=tool.name, error=type(error).__name__, exc_info=error)
    return _failure(f"{tool.name} failed with {type(error).__name__}")


def _failure(text: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {text}", "error")


def parse_arguments(tool: Tool, raw: str) -> Any:
    """Return the typed arguments of a call.

    An empty text means no arguments, and a text is fixed where nothing is guessed (see
    agent/models/wire.py). Values are coerced where nothing is lost ("3" becomes 3).

    Raises:
        ToolError: Not JSON, not an object, or values that do not fit; one line for each.
    """
    values = read_arguments(raw)
    if values is None:
        raise ToolError(f"the arguments of {tool.name} {_unreadable(raw)}")
    if isinstance(tool.arguments, dict):
        return values
    return fitting(tool.name, tool.arguments, values)


def fitting(name: str, model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Return values as the typed arguments of a tool.

    Raises:
        ToolError: They do not fit; one line for each.
    """
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        raise ToolError(_readable(name, model, exc)) from exc


def _unreadable(raw: str) -> str:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        return f"are not valid JSON: {exc}"
    if isinstance(value, dict):
        return "are nested too deep"
    return f"must be a JSON object, not a {type(value).__name__}"


def _readable(name: str, model: type[BaseModel], error: ValidationError) -> str:
    properties = parameter_schema(model).get("properties", {})
    lines = [f"the arguments of {name} do not fit:"]
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


def schema_of(tool: Tool) -> ToolSchema:
    """Return a tool as a model is shown it."""
    return ToolSchema(tool.name, tool.description, parameter_schema(tool.arguments))


def parameter_schema(arguments: type[BaseModel] | dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of arguments as a model is shown it."""
    return arguments if isinstance(arguments, dict) else shown_schema(arguments)


@cache
def shown_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of an argument model, without what tells a model nothing.

    That is: titles, docstrings of classes, definitions that are used once, null and empty defaults
    of what may be left out, and bounds that every sensible call keeps.
    """
    schema = arguments.model_json_schema()
    named = schema.pop("$defs", {})
    for described in (schema, *named.values()):
        described.pop("description", None)
    used = re.findall(r'"#/\$defs/([^"]+)"', orjson.dumps([schema, named]).decode())
    # A definition that refers to itself is used twice: from outside, too.
    inlined = {name: named.pop(name) for name in list(named) if used.count(name) == 1}
    plain: dict[str, Any] = _plain(schema | {"$defs": named} if named else schema, inlined)
    return plain


def _plain(node: Any, inlined: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_plain(item, inlined) for item in node]
    if not isinstance(node, dict):
        return node
    node = _without_null(node)
    if (name := str(node.get("$ref")).removeprefix("#/$defs/")) in inlined:
        node = _plain(inlined[name], inlined) | _without(node, "$ref")
    plain = {}
    for keyword, value in node.items():
        if keyword in _NAMED_SCHEMAS:  # a property may have the name of a keyword
            plain[keyword] = {name: _plain(each, inlined) for name, each in value.items()}
        elif keyword in _NO_SCHEMAS:
            plain[keyword] = value
        elif _is_shown(keyword, value):
            plain[keyword] = _plain(value, inlined)
    return plain


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an argument without null and default, where leaving it out says both."""
    if node.get("default", _NULL) not in (None, "", []):
        return node
    options = [option for option in node.get("anyOf", ()) if option != _NULL]
    shown = {"anyOf": options} if len(options) > 1 else dict(*options)
    return shown | _without(node, "anyOf", "default")


def _without(node: dict[str, Any], *keywords: str) -> dict[str, Any]:
    return {keyword: value for keyword, value in node.items() if keyword not in keywords}


def _is_shown(keyword: str, value: Any) -> bool:
    if keyword in _LEAST:
        return bool(value > _LEAST[keyword])
    if keyword == "maxLength":
        return bool(value < LONG_TEXT_CHARS)
    return keyword != "title" and (keyword != "additionalProperties" or isinstance(value, dict))


@dataclass(frozen=True, slots=True)
class HeldTool:
    """A server's tool whose texts give orders: offered once an owner approves them.

    Attributes:
        digest: Of server, tool and texts; an approval applies to it.
        text: As received, written by others.
    """

    digest: str
    server: str
    tool: str
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool that a server offers.

    Attributes:
        name: As the model knows it; `server_name` as the server does.
        removed: Number of suspicious spans that were taken out of its texts.
        held: What an owner must agree to before it is offered; None for most tools.
    """

    name: str
    server_name: str
    description: str
    schema: dict[str, Any]
    effect: Effect = "side_effect"
    removed: int = 0
    held: HeldTool | None = None


@dataclass(frozen=True, slots=True)
class ServerState:
    """How a server of tools (MCP) stands at a moment.

    Attributes:
        problem: Why it is not connected; None if it is.
        said: The end of what a program that is not connected said to stderr.
        remembered: Whether its tools are those of an earlier start.
        skipped: (name, reason) of those that are left out.
        is_confined: Whether its program runs behind walls; None for a server without a program.
    """

    name: str
    problem: str | None = None
    said: str = ""
    remembered: bool = False
    tools: Sequence[ServedTool] = ()
    skipped: Sequence[tuple[str, str]] = ()
    is_confined: bool | None = None

    @property
    def held(self) -> Sequence[HeldTool]:
        """Tools that are offered once an owner has agreed."""
        return [each.held for each in self.tools if each.held]


class ServedTools(tuple[Tool, ...]):
    """The offered tools of servers; without servers by default."""

    def states(self) -> Sequence[ServerState]:
        """Return the servers' current states."""
        return ()

    def agreeing(self, _agreed: Collection[str], /) -> "ServedTools":
        """Return the tools offered if owners have approved these digests."""
        return self


NO_SERVERS = ServedTools()
