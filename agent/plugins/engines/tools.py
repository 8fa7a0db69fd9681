"""The tool box of a turn whose engine offers tools of its own to the model."""

from collections.abc import Sequence

import structlog

from agent.errors import AttemptEnds, ToolError
from agent.messages import ToolCall, ToolSchema
from agent.ports import Effect
from agent.processes.threads import CallHangs, DaemonThreads
from agent.tools.context import ToolContext, ToolOutcome
from agent.tools.registry import ToolBox, arguments_object

log = structlog.get_logger()

TIME_LIMIT_S = 60.0


class EngineTools:
    """A tool box, and behind its tools those of the context engine.

    The schemas are fixed for good; a call goes to the engine of its own turn, which `ToolContext`
    carries. An engine is asked one thing at a time, so its tools count as exclusive.
    """

    def __init__(
        self, base: ToolBox, offered: Sequence[ToolSchema], *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """Put the engine's tools behind those of `base`.

        A tool whose name is taken is left out, with a warning.

        Args:
            base: Every other tool.
            offered: `ContextEngine.get_tool_schemas()`.
            time_limit_s: For one call of the engine.
        """
        self._base = base
        self._own: dict[str, ToolSchema] = {}
        self._threads = DaemonThreads()
        self._time_limit_s = time_limit_s
        taken = {schema.name for schema in base.schemas}
        for schema in offered:
            if schema.name in taken:
                log.warning("engine_tool_skipped", tool=schema.name)
                continue
            taken.add(schema.name)
            self._own[schema.name] = schema

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools as shown to the model."""
        return (*self._base.schemas, *self._own.values())

    def effect(self, name: str) -> Effect:
        """Return the effect class of a tool; the engine's only read."""
        return "read" if name in self._own else self._base.effect(name)

    def exclusive(self, name: str) -> bool:
        """Return whether a tool must run alone among the exclusive ones."""
        return name in self._own or self._base.exclusive(name)

    def restricted(self, name: str) -> bool:
        """Return whether a tool is only for senders who may act; none of the engine's is."""
        return name not in self._own and self._base.restricted(name)

    def refusal(self, call: ToolCall, context: ToolContext) -> ToolOutcome | None:
        """Return why a call cannot run; the engine checks its arguments itself."""
        if call["function"]["name"] in self._own:
            return None
        return self._base.refusal(call, context)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call: the engine's in a thread with a time limit, every failure as an outcome."""
        name = call["function"]["name"]
        if name not in self._own:
            return await self._base.execute(call, context)
        try:
            return ToolOutcome(await self._answer(call, context), "ok")
        except AttemptEnds:
            raise
        except ToolError as error:
            return _failure(str(error))
        except CallHangs:
            return _failure(f"{name} did not finish within {self._time_limit_s:g} s")
        except Exception as error:
            log.exception("tool_failed", tool=name, error=type(error).__name__)
            return _failure(f"{name} failed with {type(error).__name__}")

    async def _answer(self, call: ToolCall, context: ToolContext) -> str:
        engine = context.services.engine
        if engine is None:
            raise ToolError("this turn has no context engine that could answer")
        name = call["function"]["name"]
        arguments = arguments_object(name, call["function"]["arguments"])
        return await self._threads.run_async(
            lambda: str(engine.handle_tool_call(name, arguments)), self._time_limit_s
        )


def _failure(text: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {text}", "error")
