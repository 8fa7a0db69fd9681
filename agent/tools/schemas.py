"""The JSON schema of a tool's arguments as a model is shown it: every request pays for it.

It says less than what is checked (agent/tools/registry.py), where the rest would only cost tokens.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel

LONG_TEXT_CHARS = 1_000
"""Limits of texts from here on are not shown: models do not count characters."""
_NAMED_SCHEMAS = ("properties", "$defs")
_NO_SCHEMAS = ("default", "const", "enum", "examples", "discriminator")
_NULL = {"type": "null"}


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
    match keyword:
        case "title":
            return False
        case "additionalProperties":
            return isinstance(value, dict)
        case "minimum" | "minLength":
            return bool(value > 1)
        case "exclusiveMinimum":
            return bool(value > 0)
        case "maxLength":
            return bool(value < LONG_TEXT_CHARS)
        case _:
            return True
