"""Words for settings that are wrong: one line each, naming place, value and what is allowed."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from agent.safety.redaction import MASK, Redactor
from gateway.settings.tree import Key, KeyPath, Keys, has_secrets

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


OF_NAME = "[key]"
"""Stands in pydantic's place of an error behind a name in a map that is wrong itself."""
_SHOWN_CHARS = 60
_ALLOWED = {
    "model_type": "a section with keys",
    "tuple_type": "a list",
    "dict_type": "a map",
    "string_type": "text (in quotes, if it looks like a number)",
}
_redactor = Redactor()


def complaint(error: "ErrorDetails", keys: Keys, name: str, origin: str) -> str:
    """Return the line for one validation error.

    Args:
        error: What pydantic says.
        keys: The keys there are.
        name: The key as people write it.
        origin: Where its value comes from.
    """
    path, is_name = error["loc"], error["loc"][-1:] == (OF_NAME,)
    if is_name:
        path, name = path[:-1], name.removesuffix(f".{OF_NAME}")
    if error["type"] == "extra_forbidden":
        return f"{name}: unknown key in {origin}; {_instead(path, name, keys)}"
    value = shown(error["input"], hidden=not is_name and _hidden(path, keys))
    return f"{name}: {value} in {origin} is not allowed; {_allowed(error)}"


def shown(value: Any, *, hidden: bool) -> str:
    """Return a bad value for an error message, shortened; masked if hidden or secret-like."""
    if hidden or isinstance(value, SecretStr):
        return MASK
    text = _redactor.text(repr(value))
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def suggestion(name: str, known: Iterable[str], prefix: str) -> str:
    """Return "; did you mean …?" for the nearest known name, or nothing.

    The prefix, which all of them have, makes no two of them alike.
    """
    rest, rests = name.removeprefix(prefix), [each.removeprefix(prefix) for each in known]
    near = difflib.get_close_matches(rest, rests, n=1, cutoff=0.65)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _allowed(error: "ErrorDetails") -> str:
    """Return what pydantic would have taken, as "must be …"."""
    if words := _ALLOWED.get(error["type"]):
        return f"must be {words}"
    return error["msg"].removeprefix("Value error, ").replace("Input should", "must")


def _hidden(path: KeyPath, keys: Keys) -> bool:
    """Tell whether the value may be a secret: a section holds some, a list of keys too."""
    nearest = _nearest(path, keys)
    # Behind a map stands a name that is no key, and behind that a field of its section.
    field = str(path[len(nearest.pattern) + 1]) if len(path) > len(nearest.pattern) + 1 else ""
    if nearest.block is not None and field in nearest.block.model_fields:
        return has_secrets(nearest.block, field)
    return nearest.secret or nearest.kind in {"section", "blocks"}


def _nearest(path: KeyPath, keys: Keys) -> Key:
    """Return the innermost key at a path or around it."""
    above = (keys.find(path[:end]) for end in range(len(path), 0, -1))
    return next(key for key in above if key)


def _instead(path: KeyPath, name: str, keys: Keys) -> str:
    """Return what an unknown key may have meant: one beside it, one elsewhere, or what is there."""
    section, _, last = name.rpartition(".")
    beside = _beside(path, keys)
    if near := difflib.get_close_matches(last, beside, n=1):
        return f"did you mean {section}{'.' if section else ''}{near[0]}?"
    elsewhere = [known for known in keys.names() if known.endswith(f".{last}")]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(beside)}"


def _beside(path: KeyPath, keys: Keys) -> list[str]:
    """Return the names that there are in the section of a path."""
    beside = [key.pattern[-1] for key in keys if keys.find((*path[:-1], key.pattern[-1])) is key]
    if beside or len(path) == 1:
        return beside
    block = _nearest(path[:-1], keys).block
    return list(block.model_fields) if block else []
