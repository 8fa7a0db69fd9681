"""A tool box without some of its tools: what a delegated child may use of its parent's."""

from collections.abc import Collection

from agent.messages import ToolCall, ToolSchema
from agent.ports import Effect
from agent.tools.registry import ToolBox, ToolContext, ToolOutcome


class Lacking:
    """Another tool box, in which some names do not exist."""

    def __init__(self, base: ToolBox, missing: Collection[str]) -> None:
        self._base = base
        self._missing = frozenset(missing)
        self._schemas = tuple(each for each in base.schemas if each.name not in self._missing)

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """What is left, in the same order."""
        return self._schemas

    def effect(self, name: str) -> Effect:
        """Return the effect class of a tool, "read" for one that is missing."""
        return "read" if name in self._missing else self._base.effect(name)

    def exclusive(self, name: str) -> bool:
        """Return whether a tool must run alone among the exclusive ones."""
        return name not in self._missing and self._base.exclusive(name)

    def restricted(self, name: str) -> bool:
        """Return whether a tool is only for senders who may act."""
        return name not in self._missing and self._base.restricted(name)

    def refusal(self, call: ToolCall, context: ToolContext) -> ToolOutcome | None:
        """Return why a call cannot run; one of a missing tool never can."""
        name = call["function"]["name"]
        if name in self._missing:
            return ToolOutcome(f"Error: there is no tool {name!r} here", "error")
        return self._base.refusal(call, context)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run a call of a tool that is left."""
        return self.refusal(call, context) or await self._base.execute(call, context)
