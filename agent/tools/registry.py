"""What a tool is, and the registry that runs one call: checks arguments, maps every failure.

Nothing a tool does ends the turn: what goes wrong becomes a text for the model. What its services
raise to end the attempt (`AttemptEnds`) is not the tool's, and goes on.

What tools may use of whoever runs them, beside the transcript (agent/ports.py).

The gateway implements these for one turn at a time: each is bound to the conversation of the turn,
and to the people whose words are in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent.context_engine import ContextEngine
from agent.errors import AttemptEnds, ToolError
from agent.messages import ToolCall, ToolSchema
from agent.models.arguments import read_arguments
from agent.ports import ConversationReader, Effect, Files, PastMessage, ToolStatus
from agent.prompt.skills import SkillShelf
from agent.tools.schemas import shown_schema

InquiryKind = Literal["approval", "clarify"]
MemoryTarget = Literal["memory", "user"]

FOR_OWNERS = frozenset({"skill_manage"})
"""Tools whose effects reach everybody who talks to the bot: only for owners, who alone approve."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Something that a person is asked while the turn waits.

    Attributes:
        kind: approval: may this call run; clarify: a question of the agent.
        call_id: The call that waits; one inquiry for each call of a turn.
        question: In Markdown.
        choices: Labels of the buttons of a question; an approval has its own.
        definition: Of an approval, a digest of the tool as the model is offered it: what stays
            approved is that tool, not whatever comes under its name later.
        askable: Whether there is a question that can be shown; else only a standing approval
            counts.
    """

    kind: InquiryKind
    call_id: str
    tool: str
    question: str
    choices: tuple[str, ...] = ()
    definition: str = ""
    askable: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of an inquiry.

    Attributes:
        state: expired: nobody answered in time.
        text: approval: "once", "conversation" or "deny"; clarify: what was said.
        by: Who answered, "platform:sender id".
    """

    state: Literal["answered", "expired"]
    text: str = ""
    by: str = ""


class People(Protocol):
    """The people of the turn's conversation."""

    async def ask(self, inquiry: Inquiry) -> Reply:
        """Return the reply to an inquiry; asked once, however often this is called.

        Nobody is asked for a tool that was approved for the conversation, since it began anew
        last: that is the reply.

        Raises:
            TurnSuspended: Nobody has answered yet. The turn ends its attempt, and goes on once
                somebody has, or the time is over.
            ToolError: It is not askable, and the tool was not approved for the conversation.
        """
        ...

    async def decided(self, call_id: str) -> Reply | None:
        """Return what became of the question whether a call may run; None if nobody was asked.

        Raises:
            TurnSuspended: Nobody has answered yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One thing to be done."""

    content: str
    state: Literal["pending", "in_progress", "done", "cancelled"] = "pending"


class Notebook(Protocol):
    """What the agent keeps for itself: the conversation's list, and what it has noted down.

    Notes belong to the sender of a direct chat, and to the conversation everywhere else.
    """

    async def todo(self) -> Sequence[TodoItem]:
        """Return the list."""
        ...

    async def set_todo(self, items: Sequence[TodoItem]) -> None:
        """Replace the list."""
        ...

    async def notes(self, target: MemoryTarget) -> Sequence[str]:
        """Return the notes in the order in which they were made."""
        ...

    async def change(
        self, target: MemoryTarget, *, remove: str | None, add: str | None
    ) -> Sequence[str]:
        """Take out the one note that holds `remove`, put `add` in its place or behind the others.

        Returns:
            The notes as they stand now. A change that was made already has no effect.

        Raises:
            ToolError: No note or several hold it, or there is no room for the new one.
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What is searched for; times are ISO 8601, `until` not included."""

    text: str
    limit: int = 10
    neighbours: int = 1
    role: Literal["user", "assistant", "tool"] | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, among its neighbours in order of seq.

    Attributes:
        conversation: Its id; `title` what it is called, `here` whether it is the turn's own.
        seq: Which of `messages` was found.
        holds: Whether it holds a word that was looked for; else only messages next to it do.
    """

    conversation: int
    title: str
    here: bool
    seq: int
    messages: tuple[PastMessage, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search found, best first; `scope` says in words what was and was not looked at."""

    hits: tuple[Hit, ...]
    scope: str


class Searcher(Protocol):
    """Searches what the turn may see.

    That is its own conversation from its first message on and, in a direct chat, the other direct
    chats of the same sender.
    """

    async def search(self, query: SearchQuery) -> Findings:
        """Return what was found."""
        ...


@dataclass(frozen=True, slots=True)
class Delegated:
    """How a delegated task ended.

    Attributes:
        outcome: As of a turn (agent/loop.py), or "failed" for a child that broke.
        text: What it answered; else why there is no answer.
    """

    outcome: str
    text: str
    conversation: int
    iterations: int = 0
    used_tokens: int = 0
    cost_usd: float | None = None


class Delegates(Protocol):
    """Runs child agents, each in a conversation of its own."""

    async def run(self, call_id: str, task: str) -> Delegated:
        """Have a child agent do a task; for the same call of a turn it is one child, resumed.

        Raises:
            TurnSuspended: The child waits for a person.
        """
        ...


class Progress(Protocol):
    """Shows people what the tools of the turn do; both return at once and never raise."""

    def working(self, call: ToolCall) -> None:
        """A call begins."""
        ...

    def worked(self, call: ToolCall, status: ToolStatus | Literal["waiting"]) -> None:
        """A call has ended, or waits for a person."""
        ...


class Hooks(Protocol):
    """What plugins do around a call that the sender may have made.

    Neither raises, and both are over within their time limit: what fails is logged and left out.
    """

    async def before(
        self, name: str, arguments: Mapping[str, Any], context: "ToolContext"
    ) -> str | None:
        """Return why the call must not run, in words for the model; None where it may.

        Args:
            name: Of the tool.
            arguments: As the model gave them, checked against the tool's schema.
            context: That of the call.
        """
        ...

    async def after(
        self,
        name: str,
        arguments: Mapping[str, Any],
        outcome: "ToolOutcome",
        context: "ToolContext",
    ) -> None:
        """Take note of what became of a call that ran."""
        ...


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
        by_owners: Whether all whose words the turn reads are owners (`FOR_OWNERS`).
        call_id: The call that runs.
        people: Asks the people of the conversation; this and what follows: None where there is
            none.
        notebook: The list and the notes.
        searcher: Searches what was said.
        delegates: Runs child agents.
        workspace: The conversation's own directory, where tools that touch files work.
        hooks: What plugins do before and after a call.
        progress: Shows which calls run.
        scope: Whose memories the turn may use: "platform:sender id" in a direct chat, else
            "conversation:id".
        skills: The operator's.
    """

    conversation: str
    reader: ConversationReader
    clock: Callable[[], datetime]
    engine: ContextEngine | None = None
    files: Files | None = None
    may_act: bool = True
    by_owners: bool = False
    call_id: str = ""
    people: People | None = None
    notebook: Notebook | None = None
    searcher: Searcher | None = None
    delegates: Delegates | None = None
    workspace: Path | None = None
    hooks: Hooks | None = None
    progress: Progress | None = None
    scope: str = ""
    skills: SkillShelf | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What became of a call; the texts of errors are written for the model."""

    text: str
    status: ToolStatus


class Arguments(BaseModel):
    """Base of every argument model: numbers pass for text, unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class ForeignArguments(Protocol):
    """Arguments whose JSON schema was not made here; no schema is derived from a class."""

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as shown to the model."""
        ...

    def checked(self, tool: str, values: dict[str, Any]) -> Any:
        """Return what the tool's `run` gets.

        Raises:
            ToolError: Values that do not fit; one line for each.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        description: Tells the model what it does and when to use it.
        effect: What a second run after a crash would do.
        run: Gets an instance of `arguments`, or what they return; raises ToolError for what the
            model can mend.
        exclusive: Keeps state: never runs beside another exclusive tool of the turn.
        timeout_s: Longest run.
        restricted: Touches the world outside of the conversation: only for senders who may act,
            whatever its effect is.
    """

    name: str
    description: str
    effect: Effect
    arguments: type[BaseModel] | ForeignArguments
    run: Callable[[ToolContext, Any], Awaitable[str]]
    exclusive: bool = False
    timeout_s: float = 60
    restricted: bool = False


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

    def restricted(self, name: str) -> bool:
        """Return whether a tool is only for senders who may act."""
        ...

    def refusal(self, call: ToolCall, context: ToolContext) -> ToolOutcome | None:
        """Return why a call cannot run, whatever anybody says; None where it can.

        There is no such tool, the sender may not use it, or its arguments do not fit.
        """
        ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Failures of the tool come back as outcomes; cancellation goes on.

        Raises:
            AttemptEnds: The call has no outcome yet: it waits for a person, or what it did could
                not be recorded.
        """
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

    def restricted(self, name: str) -> bool:
        """Return whether a tool touches the world outside; a side effect always does."""
        tool = self._tools.get(name)
        return tool is not None and (tool.restricted or tool.effect == "side_effect")

    def refusal(self, call: ToolCall, context: ToolContext) -> ToolOutcome | None:
        """Check name, sender and arguments of a call."""
        checked = self._checked(call, context)
        return checked if isinstance(checked, ToolOutcome) else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Check a call, run it, and map what goes wrong."""
        checked = self._checked(call, context)
        if isinstance(checked, ToolOutcome):
            return checked
        return await _run(self._tools[call["function"]["name"]], checked, context)

    def _checked(self, call: ToolCall, context: ToolContext) -> Any | ToolOutcome:
        """Return the arguments of a call that can run; else why it cannot."""
        name = call["function"]["name"]
        if (tool := self._tools.get(name)) is None:
            return _failure(f"there is no tool {name!r}. Known tools: {', '.join(self._tools)}")
        if self.restricted(name) and not context.may_act:
            text = f"Error: the sender may not use {name}: it touches the world outside"
            return ToolOutcome(text, "refused")
        if name in FOR_OWNERS and not context.by_owners:
            return ToolOutcome(f"Error: the sender may not use {name}: only owners may", "refused")
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
    except AttemptEnds:
        raise
    except ToolError as error:
        return _failure(str(error))
    except Exception as error:  # noqa: BLE001 - whatever a tool does ends here
        if deadline.expired():
            return _failure(f"{tool.name} did not finish within {tool.timeout_s:g} s")
        return _broken(tool, error)


def _broken(tool: Tool, error: Exception) -> ToolOutcome:
    log.error("tool_failed", tool=tool.name, error=type(error).__name__, exc_info=error)
    return _failure(f"{tool.name} failed with {type(error).__name__}")


def _failure(text: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {text}", "error")


def parse_arguments(tool: Tool, raw: str) -> Any:
    """Return the typed arguments of a call.

    An empty text means no arguments, and a text is mended where nothing is guessed (see
    agent/models/arguments.py). Values are coerced where nothing is lost ("3" becomes 3).

    Raises:
        ToolError: Not JSON, not an object, or values that do not fit; one line for each.
    """
    values = arguments_object(tool.name, raw)
    if not isinstance(tool.arguments, type):
        return tool.arguments.checked(tool.name, values)
    try:
        return tool.arguments.model_validate(values)
    except ValidationError as exc:
        raise ToolError(_readable(tool, exc)) from exc


def arguments_object(name: str, raw: str) -> dict[str, Any]:
    """Return the object that the arguments of a call mean, unchecked.

    Raises:
        ToolError: Not JSON, not an object, or nested deeper than can be written again.
    """
    values = read_arguments(raw)
    if values is None:
        raise ToolError(f"the arguments of {name} {_unreadable(raw)}")
    return values


def _unreadable(raw: str) -> str:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        return f"are not valid JSON: {exc}"
    if isinstance(value, dict):
        return "are nested too deep"
    return f"must be a JSON object, not a {type(value).__name__}"


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


def parameter_schema(arguments: type[BaseModel] | ForeignArguments) -> dict[str, Any]:
    """Return the JSON schema of arguments as a model is shown it."""
    return shown_schema(arguments) if isinstance(arguments, type) else arguments.schema
