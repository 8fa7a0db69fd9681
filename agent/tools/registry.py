"""Tools, the registry that runs one call, and the tool schemas shown to models.

Arguments are validated, and every failure of a tool becomes a text for the model: no tool ends the
turn. Only `AttemptEnds`, raised by a tool's services, propagates.

The shown schema states less than is validated: every request pays for its tokens.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.errors import AttemptEnds, ToolError
from agent.messages import ToolCall, ToolSchema
from agent.models.wire import read_arguments
from agent.ports import Effect
from agent.settings import OutputSettings
from agent.tools.context import ToolContext, ToolOutcome

log = structlog.get_logger()

LONG_TEXT_CHARS = 1_000
"""Length limits from this value on are not shown: models do not count characters."""
_NAMED_SCHEMAS = ("properties", "$defs")
_NO_SCHEMAS = ("default", "const", "enum", "examples", "discriminator")
_NULL = {"type": "null"}
_LEAST = {"minimum": 1, "minLength": 1, "exclusiveMinimum": 0}
"""Lower bounds that every sensible call respects."""


class Arguments(BaseModel):
    """Base of every argument model: numbers are accepted as text, unknown names are errors."""

    # Models omit quotes around numbers; they can correct an unknown name.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


Run = Callable[[ToolContext, Any], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        effect: Consequence of running the call again after a crash.
        arguments: A model, which validates them; or the JSON schema of a foreign tool (of an MCP
            server or engine), which validates them itself.
        run: Receives an instance of the model, or the object; raises ToolError for mistakes that
            the model can correct.
        exclusive: Has state: never runs concurrently with another exclusive tool of the turn.
        restricted: Touches the world outside the conversation: only for senders who may act.
    """

    name: str
    description: str
    effect: Effect
    arguments: type[BaseModel] | dict[str, Any]
    run: Run
    exclusive: bool = False
    timeout_s: float = 60
    restricted: bool = False


def tool(
    description: str,
    effect: Effect,
    *,
    exclusive: bool = False,
    restricted: bool = False,
    timeout_s: float = 60,
) -> Callable[[Run], Tool]:
    """Make a tool from a function: its name becomes the tool's, its `arguments` type the schema."""

    def made(run: Run) -> Tool:
        model = get_type_hints(run)["arguments"]
        return Tool(run.__name__, description, effect, model, run, exclusive, timeout_s, restricted)

    return made


class ToolRegistry:
    """The tools of a turn, in order; `schemas` are shown to the model.

    Args:
        output: Limits of the part of a result shown to the model.
    """

    def __init__(self, tools: Iterable[Tool], output: OutputSettings | None = None) -> None:
        """Build the schemas; raise a ValueError if two tools share a name."""
        self.output = output or OutputSettings()
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool
        self.schemas = tuple(
            ToolSchema(each.name, each.description, parameter_schema(each.arguments))
            for each in self._tools.values()
        )

    def changed(self, more: Iterable[Tool] = (), without: Collection[str] = ()) -> "ToolRegistry":
        """Return a copy with more tools appended or some removed."""
        kept = [tool for tool in self._tools.values() if tool.name not in without]
        return ToolRegistry([*kept, *more], self.output)

    def effect(self, name: str) -> Effect:
        """Return a tool's effect; "read" for an unknown tool, which does nothing."""
        return self._tools[name].effect if name in self._tools else "read"

    def exclusive(self, name: str) -> bool:
        """Return whether a tool must not run concurrently with another exclusive one."""
        return name in self._tools and self._tools[name].exclusive

    def restricted(self, name: str) -> bool:
        """Return whether only senders who may act can use a tool, as for all with side effects."""
        tool = self._tools.get(name)
        return tool is not None and (tool.restricted or tool.effect == "side_effect")

    def refusal(self, call: ToolCall) -> ToolOutcome | None:
        """Return the error of a call that cannot run (unknown tool, wrong arguments), or None."""
        checked = self._checked(call)
        return checked if isinstance(checked, ToolOutcome) else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. A tool's failures become outcomes; cancellation propagates.

        Raises:
            AttemptEnds: The call has no outcome yet: it awaits approval, or its effect could not be
                recorded.
        """
        arguments = self._checked(call)
        if isinstance(arguments, ToolOutcome):
            return arguments
        tool = self._tools[call["function"]["name"]]
        deadline = asyncio.timeout(tool.timeout_s)
        try:
            async with deadline:
                return ToolOutcome(await tool.run(context, arguments), "ok")
        # Not a failure of the tool: a text for the model would give the waiting call an outcome.
        except AttemptEnds:
            raise
        except ToolError as error:
            return _failure(str(error))
        except Exception as error:  # noqa: BLE001 - every failure of a tool ends here
            # A tool may raise a TimeoutError of its own.
            if not deadline.expired():
                return _broken(tool, error)
            reason = f"did not finish within {tool.timeout_s:g} s"
            log.warning("tool_timed_out", tool=tool.name, reason=reason)
            return _failure(f"{tool.name} {reason}")

    def _checked(self, call: ToolCall) -> Any | ToolOutcome:
        """Return a call's validated arguments, or the error if it cannot run."""
        name = call["function"]["name"]
        if (tool := self._tools.get(name)) is None:
            return _failure(f"there is no tool {name!r}. Known tools: {', '.join(self._tools)}")
        try:
            return parse_arguments(tool, call["function"]["arguments"])
        except ToolError as error:
            return _failure(str(error))
        except Exception as error:  # noqa: BLE001 - checks of a plugin are a part of its tool
            return _broken(tool, error)


def _broken(tool: Tool, error: Exception) -> ToolOutcome:
    log.error("tool_failed", tool=tool.name, error=type(error).__name__, exc_info=error)
    return _failure(f"{tool.name} failed with {type(error).__name__}")


def _failure(text: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {text}", "error")


def parse_arguments(tool: Tool, raw: str) -> Any:
    """Return the typed arguments of a call; raise a ToolError that lists all mistakes.

    `read_arguments` repairs the text without guessing. Values are coerced losslessly ("3" to 3).
    """
    values = read_arguments(raw)
    if values is None:
        raise ToolError(f"the arguments of {tool.name} {_unreadable(raw)}")
    model = tool.arguments
    return values if isinstance(model, dict) else fitting(tool.name, model, values)


def fitting(name: str, model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """Validate values as a tool's typed arguments; a ToolError has a line per mistake."""
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        properties = parameter_schema(model).get("properties", {})
        lines = [f"the arguments of {name} do not fit:"]
        for item in exc.errors(include_url=False, include_context=False):
            where = ".".join(str(part) for part in item["loc"]) or "(all)"
            schema = properties.get(item["loc"][0], {}) if item["loc"] else {}
            kinds = (each["type"] for each in schema.get("anyOf", [schema]) if "type" in each)
            expected = " or ".join(map(str, kinds))
            end = f" (expected {expected})" if expected else ""
            lines.append(f"- {where}: {item['msg']}{end}")
        raise ToolError("\n".join(lines)) from exc


def _unreadable(raw: str) -> str:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        return f"are not valid JSON: {exc}"
    if isinstance(value, dict):
        return "are nested too deep"
    return f"must be a JSON object, not a {type(value).__name__}"


def parameter_schema(arguments: type[BaseModel] | dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of arguments as shown to a model."""
    return arguments if isinstance(arguments, dict) else shown_schema(arguments)


@cache
def shown_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of an argument model, without parts that a model does not need.

    Omits titles, class docstrings, null and empty defaults, and bounds that every sensible call
    respects. Definitions used only once are inlined.
    """
    schema = arguments.model_json_schema()
    named = schema.pop("$defs", {})
    for described in (schema, *named.values()):
        described.pop("description", None)
    used = re.findall(r'"#/\$defs/([^"]+)"', orjson.dumps([schema, named]).decode())
    # A recursive definition is used twice: also from outside.
    inlined = {name: named.pop(name) for name in list(named) if used.count(name) == 1}
    plain: dict[str, Any] = _plain(schema | {"$defs": named} if named else schema, inlined)
    return plain


def _plain(node: Any, inlined: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_plain(item, inlined) for item in node]
    if not isinstance(node, dict):
        return node
    # A null or empty default says no more than omitting the argument.
    if node.get("default", _NULL) in (None, "", []):
        options = [option for option in node.get("anyOf", ()) if option != _NULL]
        shown = {"anyOf": options} if len(options) > 1 else dict(*options)
        node = shown | {key: node[key] for key in node if key not in {"anyOf", "default"}}
    if (name := str(node.get("$ref")).removeprefix("#/$defs/")) in inlined:
        node = _plain(inlined[name], inlined) | {key: node[key] for key in node if key != "$ref"}
    plain = {}
    for keyword, value in node.items():
        if keyword in _NAMED_SCHEMAS:  # a property may have the name of a keyword
            plain[keyword] = {name: _plain(each, inlined) for name, each in value.items()}
        elif keyword in _NO_SCHEMAS:
            plain[keyword] = value
        elif _is_shown(keyword, value):
            plain[keyword] = _plain(value, inlined)
    return plain


def _is_shown(keyword: str, value: Any) -> bool:
    if keyword in _LEAST:
        return bool(value > _LEAST[keyword])
    if keyword == "maxLength":
        return bool(value < LONG_TEXT_CHARS)
    return keyword != "title" and (keyword != "additionalProperties" or isinstance(value, dict))


@dataclass(frozen=True, slots=True)
class HeldTool:
    """A server's tool whose texts contain instructions: offered only after an owner approves.

    Attributes:
        digest: Of server, tool and texts; identifies what an approval covers.
    """

    digest: str
    server: str
    tool: str
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool offered by a server.

    Attributes:
        name: For the model; `server_name` is the server's.
        removed: Number of suspicious spans removed from its texts.
        held: Texts that an owner must approve first; None for most tools.
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
    """The state of a tool server (MCP).

    Attributes:
        problem: Reason why it is not connected; None if it is.
        said: The last stderr output of a program that is not connected.
        remembered: Whether its tools come from an earlier start.
        is_confined: Whether its program runs confined; None for a server without a program.
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
        """Tools that become available once an owner approves them."""
        return [each.held for each in self.tools if each.held]


class ServedTools(tuple[Tool, ...]):
    """The tools offered by servers; empty by default."""

    def states(self) -> Sequence[ServerState]:
        """Return the servers' current states."""
        return ()

    def agreeing(self, _agreed: Collection[str], /) -> "ServedTools":
        """Return the tools offered once owners have approved these digests."""
        return self


NO_SERVERS = ServedTools()
