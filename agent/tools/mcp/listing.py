"""Prepare the tools of an MCP server for prompts, and detect instructions in their texts.

Third parties write these texts, and every request includes them. A tool that a provider would
refuse or whose name is ambiguous is skipped with the reason. Pure functions: the same definitions
give the same bytes, in any order of the server's list.

A description should describe its own tool. If it names other servers' tools or locations of
secrets, or contains a passage between tags, an owner must review it first. These rules work in any
language; only references to "all other tools" are recognized in English alone. The threat scan
complements them. Both read the description and the whole schema together, to find instructions
split in pieces.

The server validates a call's arguments: its patterns could block this process for hours.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson
from jsonschema import SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import Draft202012Validator  # type: ignore[import-untyped]

from agent.safety.threats import PRIVATE_FILES, Threat, scan
from agent.settings import MCP_PREFIX
from agent.tools.catalog import BUILTIN
from agent.tools.registry import HeldTool, ServedTool, ServerState

MAX_NAME_CHARS = 64
"""Longest tool name. Source: Anthropic and OpenAI, `^[a-zA-Z0-9_-]{1,64}$`."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_BYTES = 20_000
"""Limit of one schema as compact JSON; a request carries the schemas of all tools."""
MAX_RAW_BYTES = 2 * MAX_SCHEMA_BYTES
"""Limit of the original schema, including titles, ids and spans removed later."""
MAX_LISTING_BYTES = 500_000
"""Limit of all schemas of one server."""
MAX_DEPTH = 32
MAX_MIXED_ITEMS = 100
"""Longest list of mixed types in a schema: the duplicate check takes quadratic time."""
MAX_TOOLS = 128
"""Most tools of one server. Source: OpenAI accepts 128 tools in a request."""
MAX_DEFINITIONS = 512
"""Most definitions read from one server; `tools` in its settings may choose among them."""

_TOO_LARGE = f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes"
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
# Source: https://docs.anthropic.com/en/api/messages, input_schema.
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_REFUSED_AT_ROOT = ("oneOf", "anyOf", "allOf")
# Useless to a model, or different at every start.
_DROPPED = frozenset({"$schema", "$id", "$comment", "title"})
_LITERAL = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})

_TAG = re.compile(r"</\s{0,5}[A-Za-z][\w-]{0,40}\s{0,5}>")
_PRIVATE = re.compile(
    r"(?:~|\$\{?HOME\}?|%USERPROFILE%)[/\\]\S{1,40}|(?<![\w.])/(?:etc|proc|root)/\S{1,40}"
    rf"|parley\.(?:db|yaml)\b|{PRIVATE_FILES}",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z0-9]{1,40}(?:[_-][A-Za-z0-9]{1,40}){1,10}")
_ALL_TOOLS = re.compile(
    r"\b(?:any|all|every|each|other|another)\b[^\w.!?]{1,8}(?:[\w'-]{1,20}[^\w.!?]{1,8}){0,3}"
    r"tools?\b",
    re.IGNORECASE,
)
_END = " \t\r\n.!?…"
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Schema keywords whose keys are names chosen by the server."""
_WORDS_OF_SCHEMAS = frozenset({"type", "format", "required", "$ref"})


def build_listing(
    server: str,
    definitions: Iterable[Any],
    allowed: Collection[str] | None = None,
    read_only: Collection[str] = (),
) -> ServerState:
    """Return a server's usable tools, sorted by name.

    Args:
        definitions: As sent by the server, unchecked.
        allowed: Names of the wanted tools, None for all. Others are omitted without mention.
    """
    definitions = list(definitions)[:MAX_DEFINITIONS]
    own = frozenset(map(_name, definitions))
    tools: dict[str, ServedTool] = {}
    skipped: list[tuple[str, str]] = []
    left_bytes = MAX_LISTING_BYTES
    for definition in sorted(definitions, key=_name):
        name = _name(definition)
        if allowed is not None and name not in allowed:
            continue
        found = _served(server, definition, left_bytes, own, is_read=name in read_only)
        left_bytes -= min(_size(_schema(definition)) or 0, MAX_RAW_BYTES)
        if isinstance(found, ServedTool) and (other := tools.get(found.name)):
            found = f"is called {found.name}, as {other.server_name!r} is"
        if isinstance(found, ServedTool) and len(tools) == MAX_TOOLS:
            found = f"the server has more than {MAX_TOOLS} tools"
        if isinstance(found, str):
            skipped.append((name or "(no name)", found))
        else:
            tools[found.name] = found
    missing = sorted(set(allowed or ()) - own)
    skipped += [(name, "the server has no such tool") for name in missing]
    in_order = tuple(tools[name] for name in sorted(tools))
    return ServerState(server, tools=in_order, skipped=tuple(skipped))


def tool_name(server: str, name: str) -> str:
    """Return a tool's name for the model, prefixed by its server; a digest ends a long one."""
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


def _served(
    server: str, definition: Any, left_bytes: int, own: Collection[str], *, is_read: bool
) -> ServedTool | str:
    """Return a tool for the model, or the reason to skip it; `own` names all the server's tools."""
    if not (name := _name(definition)):
        return "it has no name"
    if left_bytes <= 0:
        return f"its server's schemas have more than {MAX_LISTING_BYTES:,} bytes"
    schema = _schema(definition)
    if (wrong := find_misfit(schema) or _problem(schema)) is not None:
        return wrong
    removed: list[Threat] = []
    description, plain = _shown(definition, removed)
    if (_size(plain) or 0) > MAX_SCHEMA_BYTES:
        return _TOO_LARGE
    said, came = _shown(definition, None)
    orders = find_instructions(said, came, own)
    if removed and not orders:
        orders = ("it has a suspicious passage",)
    digest = hashlib.sha256(orjson.dumps([server, name, said, came])).hexdigest()
    text = f"{said}\n{orjson.dumps(came, option=orjson.OPT_INDENT_2).decode()}"
    return ServedTool(
        *(tool_name(server, name), name, description, plain),
        "read" if is_read else "side_effect",
        len(removed),
        HeldTool(digest, server, name, "; ".join(orders), text) if orders else None,
    )


def _shown(definition: Any, removed: list[Threat] | None) -> tuple[str, dict[str, Any]]:
    """Return description and ordered schema; move suspicious spans to `removed`, if given."""
    schema: dict[str, Any] = _in_order(_schema(definition), removed)
    schema.setdefault("properties", {})
    return _text(definition.get("description"), MAX_DESCRIPTION_CHARS, removed), schema


def find_misfit(schema: Any) -> str | None:
    """Return the reason why a schema is unusable, or None; fast for a schema of any size."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its schema is not one of an object"
    size = _size(schema)
    if size is None:
        return "its schema cannot be sent as JSON: too deep, or not valid JSON"
    if size > MAX_RAW_BYTES:
        return _TOO_LARGE
    is_deep = any(depth > MAX_DEPTH for depth, _ in _nodes(schema))
    return f"its schema is nested deeper than {MAX_DEPTH}" if is_deep else None


def _size(node: Any) -> int | None:
    """Return the size as compact JSON, or None if the value cannot be sent."""
    try:
        return len(orjson.dumps(node))
    except TypeError:
        # Too deep, a number of more than 64 bits, or a lone surrogate.
        return None


def _problem(schema: dict[str, Any]) -> str | None:
    """Return the error in a schema, or None."""
    if any(_is_slow(node) for _, node in _nodes(schema)):
        return f"its schema has a list of more than {MAX_MIXED_ITEMS} values of several kinds"
    if refused := [key for key in _REFUSED_AT_ROOT if key in schema]:
        return f"its schema has {refused[0]} at its root, which providers refuse"
    try:
        # Validated against the newest draft whichever it declares; its patterns are not run.
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as exc:
        return f"its schema is wrong: {exc.json_path}: {exc.message[:200]}"
    names = schema.get("properties", {})
    if odd := [name for name in names if not _PROPERTY.fullmatch(name)]:
        return f"providers refuse the name of its property {odd[0][:40]!r}"
    objects = [node for _, node in _nodes(schema) if isinstance(node, dict)]
    refs = [node.get(key) for node in objects for key in ("$ref", "$dynamicRef")]
    outside = [it for it in refs if isinstance(it, str) and not _leads_inside(schema, it)]
    return f"its schema refers to {outside[0][:80]!r}, which is not in it" if outside else None


def _nodes(schema: Any) -> Iterator[tuple[int, Any]]:
    """Yield each JSON object and list with its depth, up to one level more than allowed."""
    level, depth = [schema], 1
    while level and depth <= MAX_DEPTH + 1:
        yield from ((depth, each) for each in level)
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        depth += 1


def _is_slow(node: Any) -> bool:
    """Return whether checking a list for duplicates would compare all pairs of items."""
    if not isinstance(node, list) or len(node) <= MAX_MIXED_ITEMS:
        return False
    alike = ((str,), (int, float))
    return not any(all(type(item) in kinds for item in node) for kinds in alike)


def _leads_inside(schema: dict[str, Any], reference: str) -> bool:
    """Return whether a reference is a pointer into the same schema."""
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


def _text(text: Any, most_chars: int, removed: list[Threat] | None) -> str:
    """Return a text, cut to `most_chars`; "" for any other value."""
    if not isinstance(text, str):
        return ""
    plain = text[:most_chars].encode("utf-8", "replace").decode().strip()
    plain = plain if len(text) <= most_chars else f"{plain} …"
    if removed is None:
        return plain
    found = scan(plain)
    removed += found.findings
    return found.text


def _in_order(node: Any, removed: list[Threat] | None) -> Any:
    """Return a schema in a fixed order, without parts that models do not need."""
    if isinstance(node, list):
        return [_in_order(item, removed) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _value(key, node[key], removed) for key in sorted(node) if key not in _DROPPED}
    if plain.get("type") == "array":
        # OpenAI refuses an array without a description of its items.
        plain.setdefault("items", {})
    return plain


def _value(key: str, value: Any, removed: list[Threat] | None) -> Any:
    if key == "description":
        return _text(value, MAX_SCHEMA_BYTES, removed)
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _in_order(value[name], removed) for name in sorted(value)}
    if key == "required" and isinstance(value, list):
        return sorted(value, key=str)
    return value if key in _LITERAL else _in_order(value, removed)


def find_instructions(description: str, schema: Any, own: Collection[str]) -> tuple[str, ...]:
    """Return the reasons for an owner to review a tool's texts; empty for most tools.

    Args:
        schema: Before suspicious spans are removed.
        own: Names of all the server's tools.
    """
    described = [description, *_texts(schema, names=False)]
    everything = [description, *_texts(schema, names=True)]
    # Strip the full stops of the pieces: an instruction may continue in the next piece.
    readings = [" ".join(each.strip(_END) for each in some) for some in (described, everything)]
    whole = "\n".join(everything)
    found = []
    if kinds := sorted({kind for reading in (*readings, whole) for kind in scan(reading).counts}):
        found.append(f"the threat scan found: {', '.join(kinds)}")
    named = {name for name in _NAME.findall(whole) if name not in own}
    if names := sorted(each for each in named if each in BUILTIN or each.startswith(MCP_PREFIX)):
        found.append(f"it names tools of others: {', '.join(names[:5])}")
    if any(map(_ALL_TOOLS.search, readings)):
        found.append("it speaks of all other tools")
    if private := _PRIVATE.search(whole):
        found.append(f"it names a private place: {private.group()[:40]}")
    if _TAG.search(whole):
        found.append("it has a passage between tags")
    return tuple(found)


def _texts(node: Any, *, names: bool) -> Iterator[str]:
    """Yield the descriptions in a schema, in order; with `names` every text that a model reads."""
    if isinstance(node, str) and names:
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _texts(item, names=names)
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "description" and isinstance(value, str):
            yield value
        elif key in _NAMED and isinstance(value, dict):
            for name, each in value.items():
                yield from [name] if names else []
                yield from _texts(each, names=names)
        elif key not in _WORDS_OF_SCHEMAS:
            yield from _texts(value, names=names)
