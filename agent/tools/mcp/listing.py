"""What an MCP server offers, made fit to stand in a prompt.

All of it was written by others, and all of it is sent with every request: what a provider would
refuse, or what could not be told apart, is left out here with the reason. Pure: the same
definitions give the same bytes, in whatever order a server lists them.

The arguments of a call are the server's to check: its patterns could keep this process busy for
hours.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from jsonschema import SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import Draft202012Validator  # type: ignore[import-untyped]
from typing_extensions import override

from agent.safety.threats import scan
from agent.settings import MCP_PREFIX
from agent.tools.mcp.orders import NAMED, orders_in

MAX_NAME_CHARS = 64
"""Longest name of a tool. Source: Anthropic and OpenAI, `^[a-zA-Z0-9_-]{1,64}$`."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_BYTES = 20_000
"""As compact JSON; a request carries the schemas of all tools."""
MAX_RAW_BYTES = 2 * MAX_SCHEMA_BYTES
"""As the server wrote it: with titles, ids and spans that are taken out; looked at no further."""
MAX_LISTING_BYTES = 500_000
"""Schemas of one server that are looked at, all together."""
MAX_DEPTH = 32
MAX_MIXED_ITEMS = 100
"""In a list of a schema that cannot be sorted: whether it repeats itself takes quadratic time."""
MAX_TOOLS = 128
"""Of one server. Source: OpenAI takes 128 tools in a request."""
MAX_DEFINITIONS = 512
"""Of one server that are looked at; `tools` in its settings may choose among them."""

_TOO_LARGE = f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes"
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
# Source: https://docs.anthropic.com/en/api/messages, input_schema.
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_REFUSED_AT_ROOT = ("oneOf", "anyOf", "allOf")
# Of no use to a model, or different at every start.
_DROPPED = frozenset({"$schema", "$id", "$comment", "title"})
_LITERAL = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that can be used.

    Attributes:
        name: As the model knows it; `server_name` as the server does.
        removed: How many suspicious spans were taken out of its texts.
        orders: Why an owner must agree before it is offered; empty for most tools.
        digest: Of server, tool, description and schema as received.
        text: Description and schema as received, for an owner.
    """

    name: str
    server_name: str
    description: str
    schema: dict[str, Any]
    removed: int = 0
    orders: tuple[str, ...] = ()
    digest: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tool that is left out, and why."""

    server_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What became of a server's tools, both in the order of their names."""

    tools: tuple[Offered, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def listing_of(
    server: str, definitions: Iterable[Any], allowed: Collection[str] | None = None
) -> Listing:
    """Return what of a server's tools can be used.

    Args:
        definitions: As they came over the wire.
        allowed: Names of those that are wanted; None for all. The others are not mentioned.
    """
    definitions = list(definitions)[:MAX_DEFINITIONS]
    own = frozenset(map(_name, definitions))
    tools: dict[str, Offered] = {}
    skipped: list[Skipped] = []
    left_bytes = MAX_LISTING_BYTES
    for definition in sorted(definitions, key=_name):
        name = _name(definition)
        if allowed is not None and name not in allowed:
            continue
        offered = _offered(server, definition, left_bytes, own)
        left_bytes -= min(_size(_schema(definition)) or 0, MAX_RAW_BYTES)
        if isinstance(offered, Offered) and (other := tools.get(offered.name)):
            offered = Skipped(name, f"is called {offered.name}, as {other.server_name!r} is")
        if isinstance(offered, Offered) and len(tools) == MAX_TOOLS:
            offered = Skipped(name, f"the server has more than {MAX_TOOLS} tools")
        if isinstance(offered, Skipped):
            skipped.append(offered)
        else:
            tools[offered.name] = offered
    missing = sorted(set(allowed or ()) - {_name(definition) for definition in definitions})
    skipped += [Skipped(name, "the server has no such tool") for name in missing]
    return Listing(tuple(tools[name] for name in sorted(tools)), tuple(skipped))


def tool_name(server: str, name: str) -> str:
    """Return what the model calls a tool: it says whose it is; long names keep a digest."""
    full = f"{MCP_PREFIX}{server}_" + _FOREIGN.sub("_", name)
    if len(full) <= MAX_NAME_CHARS:
        return full
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{full[: MAX_NAME_CHARS - 9]}_{digest}"


def _name(definition: Any) -> str:
    name = definition.get("name") if isinstance(definition, dict) else None
    return name if isinstance(name, str) else ""


def _schema(definition: Any) -> Any:
    return definition.get("inputSchema") if isinstance(definition, dict) else None


def _offered(
    server: str, definition: Any, left_bytes: int, own: Collection[str]
) -> Offered | Skipped:
    """Return a tool as the model sees it; `own` are the names of all tools of its server."""
    name = _name(definition)
    if not name:
        return Skipped("(no name)", "it has no name")
    if left_bytes <= 0:
        return Skipped(name, f"its server's schemas have more than {MAX_LISTING_BYTES:,} bytes")
    schema = _schema(definition)
    if (wrong := misfit(schema) or _problem(schema)) is not None:
        return Skipped(name, wrong)
    cleaned = _Cleaned()
    description, plain = _shown(definition, cleaned)
    if (_size(plain) or 0) > MAX_SCHEMA_BYTES:
        return Skipped(name, _TOO_LARGE)
    said, came = _shown(definition, _Cut())
    orders = orders_in(said, came, own)
    if cleaned.removed and not orders:
        orders = ("it has a suspicious passage",)
    digest = hashlib.sha256(orjson.dumps([server, name, said, came])).hexdigest()
    text = f"{said}\n{orjson.dumps(came, option=orjson.OPT_INDENT_2).decode()}"
    return Offered(
        *(tool_name(server, name), name, description, plain, cleaned.removed),
        *(orders, digest, text),
    )


def _shown(definition: Any, read: "_Cut") -> tuple[str, dict[str, Any]]:
    """Return description and schema of a tool, in a fixed order, with each text converted."""
    schema: dict[str, Any] = _in_order(_schema(definition), read)
    schema.setdefault("properties", {})
    return read.text(definition.get("description"), MAX_DESCRIPTION_CHARS), schema


def misfit(schema: Any) -> str | None:
    """Return why a tool's schema is not even looked at; told in no time, however large it is."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its schema is not one of an object"
    size = _size(schema)
    if size is None:
        return "its schema cannot be sent as JSON: too deep, or what stands in it is no JSON"
    if size > MAX_RAW_BYTES:
        return _TOO_LARGE
    return f"its schema is nested deeper than {MAX_DEPTH}" if _depth(schema) > MAX_DEPTH else None


def _size(node: Any) -> int | None:
    """Return the bytes of JSON as compact text; None where it cannot be sent as such."""
    try:
        return len(orjson.dumps(node))
    except TypeError:
        # Too deep, a number of more than 64 bits, half a surrogate pair.
        return None


def _problem(schema: dict[str, Any]) -> str | None:
    """Return what is wrong with a schema; None where a model can be shown it."""
    if _is_slow(schema):
        return f"its schema has a list of more than {MAX_MIXED_ITEMS} values of several kinds"
    if refused := [key for key in _REFUSED_AT_ROOT if key in schema]:
        return f"its schema has {refused[0]} at its root, which providers refuse"
    if (broken := _against_its_own_rules(schema)) is not None:
        return f"its schema is wrong: {broken}"
    names = schema.get("properties", {})
    if odd := [name for name in names if not _PROPERTY.fullmatch(name)]:
        return f"providers refuse the name of its property {odd[0][:40]!r}"
    outside = [ref for ref in _references(schema) if not _leads_inside(schema, ref)]
    return f"its schema refers to {outside[0][:80]!r}, which is not in it" if outside else None


def _against_its_own_rules(schema: dict[str, Any]) -> str | None:
    """Check a schema by the newest draft, whichever it names; patterns in it are not run."""
    try:
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as exc:
        return f"{exc.json_path}: {exc.message[:200]}"
    return None


def _is_slow(node: Any) -> bool:
    """Whether a list would be compared item by item, each with each, where it must be unique."""
    if isinstance(node, dict):
        return any(map(_is_slow, node.values()))
    if not isinstance(node, list):
        return False
    if len(node) > MAX_MIXED_ITEMS and not any(
        all(type(item) in kinds for item in node) for kinds in ((str,), (int, float))
    ):
        return True
    return any(map(_is_slow, node))


def _depth(node: Any) -> int:
    """Return how deep JSON is nested, as far as that matters."""
    level, deep = [node], 0
    while level and deep <= MAX_DEPTH:
        deep += 1
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
    return deep


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in {"$ref", "$dynamicRef"} and isinstance(value, str):
                yield value
            yield from _references(value)


def _leads_inside(schema: dict[str, Any], reference: str) -> bool:
    """Whether a reference is a pointer to a place of the same schema."""
    if reference == "#":
        return True
    node: Any = schema
    if not reference.startswith("#/"):
        return False
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


class _Cut:
    """Reads texts unchanged, cut to a length."""

    def text(self, text: Any, most_chars: int) -> str:
        """Return a text, or "" for another value."""
        if not isinstance(text, str):
            return ""
        plain = text[:most_chars].encode("utf-8", "replace").decode().strip()
        return plain if len(text) <= most_chars else f"{plain} …"


class _Cleaned(_Cut):
    """Takes out of a tool's texts what does not belong there, and counts it."""

    def __init__(self) -> None:
        self.removed = 0

    @override
    def text(self, text: Any, most_chars: int) -> str:
        """Return a text without suspicious spans."""
        found = scan(super().text(text, most_chars))
        self.removed += len(found.findings)
        return found.text


def _in_order(node: Any, read: "_Cut") -> Any:
    """Return a schema in a fixed order, without parts that models do not need."""
    if isinstance(node, list):
        return [_in_order(item, read) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _value(key, node[key], read) for key in sorted(node) if key not in _DROPPED}
    if plain.get("type") == "array":
        # OpenAI refuses an array that does not describe its items.
        plain.setdefault("items", {})
    return plain


def _value(key: str, value: Any, read: "_Cut") -> Any:
    if key == "description":
        return read.text(value, MAX_SCHEMA_BYTES)
    if key in NAMED and isinstance(value, Mapping):
        return {name: _in_order(value[name], read) for name in sorted(value)}
    if key == "required" and isinstance(value, list):
        return sorted(value, key=str)
    return value if key in _LITERAL else _in_order(value, read)
