"""Arguments of a tool whose schema comes from an MCP server (step 6).

Only what costs nothing is checked before a person is asked whether the call may run: names and
plain types. The rest is the server's part: its patterns could keep this process busy for hours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.errors import ToolError

_KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


@dataclass(frozen=True, slots=True)
class SchemaArguments:
    """Implements `agent.tools.registry.ForeignArguments`."""

    schema: dict[str, Any]

    def checked(self, tool: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are.

        Raises:
            ToolError: Something is missing, not known, or of another type; one line for each.
        """
        problems = list(self._problems(values))
        if problems:
            raise ToolError("\n".join([f"the arguments of {tool} do not fit:", *problems]))
        return values

    def _problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        properties = self.schema["properties"]
        for name in self.schema.get("required", ()):
            if name not in values:
                yield f"- {name}: Field required"
        for name, value in values.items():
            if name in properties:
                wanted = _types(properties[name])
                if wanted and not any(_is(value, kind) for kind in wanted):
                    yield f"- {name}: must be {' or '.join(wanted)}"
            elif self.schema.get("additionalProperties") is False:
                yield f"- {name}: there is no such argument; known: {', '.join(properties)}"


def _types(schema: Any) -> list[str]:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return [kinds] if isinstance(kinds, str) else list(kinds or ())


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind])
