"""Finds texts of an MCP server's tool that give the model orders beyond the tool's purpose.

A description should describe its own tool. If it names tools of other servers or places of secrets,
or has a passage between tags, an owner reads it first. These rules work in any language, but one:
references to all other tools are found in English only. The threat scan is the other half. Both
read the description and everything in the schema together, to find orders in pieces.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

from agent.safety.threats import PRIVATE_FILES, scan
from agent.settings import MCP_PREFIX
from agent.tools.catalog import BUILTIN

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
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords of a schema whose keys are names chosen by the server."""
_WORDS_OF_SCHEMAS = frozenset({"type", "format", "required", "$ref"})


def orders_in(description: str, schema: Any, own: Collection[str]) -> tuple[str, ...]:
    """Return the reasons why an owner must read a tool's texts first; empty for most tools.

    Args:
        schema: As the model sees it, before suspicious spans are removed.
        own: Names of all tools of its server.
    """
    described = [description, *_texts(schema, names=False)]
    everything = [description, *_texts(schema, names=True)]
    # Pieces have no full stop at the end, so that an order can continue in the next piece.
    readings = [" ".join(each.strip(_END) for each in some) for some in (described, everything)]
    whole = "\n".join(everything)
    found = []
    if kinds := sorted({kind for reading in (*readings, whole) for kind in scan(reading).counts}):
        found.append(f"the threat scan found: {', '.join(kinds)}")
    if names := sorted(_other_tools(whole, own)):
        found.append(f"it names tools of others: {', '.join(names[:5])}")
    if any(map(_ALL_TOOLS.search, readings)):
        found.append("it speaks of all other tools")
    if private := _PRIVATE.search(whole):
        found.append(f"it names a private place: {private.group()[:40]}")
    if _TAG.search(whole):
        found.append("it has a passage between tags")
    return tuple(found)


def _other_tools(text: str, own: Collection[str]) -> set[str]:
    """Return the names of Parley's own tools and of other servers' tools in a text."""
    return {
        name
        for name in _NAME.findall(text)
        if name not in own and (name in BUILTIN or name.startswith(MCP_PREFIX))
    }


def _texts(node: Any, *, names: bool) -> Iterator[str]:
    """Yield the descriptions in a schema, in order; with `names` all texts that a model reads."""
    if isinstance(node, str) and names:
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _texts(item, names=names)
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _below(key, value, names=names)


def _below(key: str, value: Any, *, names: bool) -> Iterator[str]:
    if key == "description" and isinstance(value, str):
        yield value
    elif key in NAMED and isinstance(value, dict):
        for name, each in value.items():
            yield from [name] if names else []
            yield from _texts(each, names=names)
    elif key not in _WORDS_OF_SCHEMAS:
        yield from _texts(value, names=names)
