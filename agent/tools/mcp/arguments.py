"""Arguments of a tool whose schema comes from an MCP server (step 6).

Only what costs nothing is checked before a person is asked whether the call may run: names and
plain types. The rest is the server's part: its patterns could keep this process busy for hours.
Values are coerced where nothing is lost ("42" for an integer), as those of built-in tools are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agent.errors import ToolError

_SAME_RULES = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False)
"""As in `agent.tools.registry.Arguments`."""
_COERCED: dict[str, TypeAdapter[Any]] = {
    "integer": TypeAdapter(int, config=_SAME_RULES),
    "number": TypeAdapter(float, config=_SAME_RULES),
    "boolean": TypeAdapter(bool, config=_SAME_RULES),
    "string": TypeAdapter(str, config=_SAME_RULES),
}

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
        """Return the arguments, coerced where nothing is lost; what fits stays as it is.

        Raises:
            ToolError: Something is missing, not known, or of another type; one line for each.
        """
        values = _coerced(values, self.schema)
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


def _coerced(value: Any, schema: Any) -> Any:
    """Return a value as its schema wants it, so far as that is certain; as deep as the schema."""
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return {name: _coerced(each, known.get(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_coerced(each, schema.get("items")) for each in value]
    wanted = _types(schema)
    # A truth value is never a number or a text that somebody meant.
    if not wanted or isinstance(value, bool) or any(_is(value, kind) for kind in wanted):
        return value
    return next(_read(value, wanted), value)


def _read(value: Any, wanted: list[str]) -> Iterator[Any]:
    for kind in wanted:
        if kind in _COERCED:
            try:
                yield _COERCED[kind].validate_python(value)
            except ValidationError:
                continue


def _types(schema: Any) -> list[str]:
    """Return the types that a schema names, also one by one in `anyOf`; nothing where any may do.

    `anyOf` is how servers written in Python tell of what may be left out.
    """
    if not isinstance(schema, dict):
        return []
    kinds = schema.get("type")
    if kinds is None and (options := schema.get("anyOf")):
        named = [_types(option) for option in options]
        return [kind for each in named for kind in each] if all(named) else []
    return [kinds] if isinstance(kinds, str) else list(kinds or ())


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind])
