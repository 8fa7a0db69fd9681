"""Where settings come from: parley.yaml, environment and command line, laid over each other.

A later layer wins key by key; a list replaces the list below it. Every value keeps its origin. What
is wrong becomes one line each, with place, value and what is allowed.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import SecretStr
from typing_extensions import override

from agent.safety.redaction import MASK, Redactor
from gateway.errors import SettingsError
from gateway.settings.foreign import counterpart, hint
from gateway.settings.former import former_key, is_former
from gateway.settings.tree import Key, KeyPath, Keys, dotted, has_secrets, name_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX = "PARLEY_"
# Read elsewhere: where things are, and the switches of the test suite.
OTHER_VARIABLES = {"PARLEY_HOME", "PARLEY_CONFIG"}
TEST_PREFIX = "PARLEY_TEST_"
RENAMED: dict[KeyPath, KeyPath] = {
    ("compression", "summary_model"): ("auxiliary", "compression", "model"),
    ("model", "cache_ttl"): ("prompt_caching", "cache_ttl"),
}
OF_NAME = "[key]"
"""Stands in pydantic's place of an error behind a name in a map that is wrong itself."""
_SHOWN_CHARS = 60
_ALLOWED = {
    "model_type": "a section with keys",
    "tuple_type": "a list",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "bool_parsing": "true or false",
    "dict_type": "a map",
    "string_type": "text (in quotes, if it looks like a number)",
}
_redactor = Redactor()


class Sources:
    """The layers read so far, laid over each other.

    Attributes:
        tree: What was given as nested maps and lists.
        problems: Lines for the operator, all reported at once.
        warnings: Likewise of what stops nothing.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._origins: dict[KeyPath, str] = {}
        self.tree: dict[str, Any] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def add_file(self, path: Path, origin: str) -> None:
        """Lay the values of a YAML file on top.

        Raises:
            SettingsError: The file cannot be read or is not a YAML map.
        """
        tree = read_yaml(path, origin)
        if "home" in tree:
            del tree["home"]
            self.problems.append(f"home: not a key of {origin}; set PARLEY_HOME or --home")
        self._add_all(_leaves(self._keys, (), tree), origin)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Lay `PARLEY_SECTION__KEY` and `…_FILE` on top; an empty variable counts as not set."""
        for variable in sorted(environ, key=_numbered):
            ours = variable.startswith(PREFIX) and variable not in OTHER_VARIABLES
            if ours and environ[variable] and not variable.startswith(TEST_PREFIX):
                self._add_variable(variable, environ)

    def add_options(self, options: Mapping[str, Any]) -> None:
        """Lay command-line options (dotted key → value) on top; None means not given."""
        for name, value in options.items():
            if value is not None:
                path, _ = self._keys.complete(path_of(name))
                origin = "--" + name.rpartition(".")[2].replace("_", "-")
                self._add_all(_leaves(self._keys, path, value), origin)

    def origin(self, path: KeyPath) -> str:
        """Return where the value at (or around, or below) a path comes from."""
        for end in range(len(path), 0, -1):
            key = self._keys.find(path[:end])
            # A list of blocks or a block around it only holds it.
            holds = end < len(path) and key is not None and key.kind in {"section", "blocks"}
            if not holds and path[:end] in self._origins:
                return self._origins[path[:end]]
        below = (origin for at, origin in self._origins.items() if at[: len(path)] == path)
        return next(below, "default")

    def name(self, path: KeyPath) -> str:
        """Return a path as people write it."""
        return name_of(path, self.tree)

    def _add_all(self, leaves: Iterator[tuple[KeyPath, Any]], origin: str) -> None:
        # Old spellings first, so that the new one wins where a layer has both.
        for path, value in sorted(leaves, key=lambda leaf: leaf[0] not in RENAMED):
            new = RENAMED.get(path, path)
            if new != path:
                text = f"{dotted(path)} in {origin} is an old spelling; write {dotted(new)}"
                self.warnings.append(text)
            self._put(new, value, origin)

    def _put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set a value in place of all that lower layers have there and below."""
        around = self._around(path, origin)
        if around is None:
            return
        if isinstance(around, list) and path[-1] == len(around):
            around.append(None)
        around[path[-1]] = copy(value)
        self._origins = {at: of for at, of in self._origins.items() if at[: len(path)] != path}
        self._origins[path] = origin

    def _around(self, path: KeyPath, origin: str) -> Any:
        """Return the map or list for a path's last step, made if need be.

        Returns:
            None where there cannot be one: a number is too high, or another value is there.
        """
        node: Any = self.tree
        for end, step in enumerate(path):
            if isinstance(node, list) and int(step) > len(node):
                problem = f"has {len(node)} blocks, so there is no number {step} (they start at 0)"
                self.problems.append(f"{dotted(path[:end])}: {problem}; given by {origin}")
                return None
            if not isinstance(node, dict | list):
                return None
            if end + 1 < len(path):
                if isinstance(node, list) and step == len(node):
                    node.append({})
                frame: Any = [] if isinstance(path[end + 1], int) else {}
                node = node[int(step)] if isinstance(node, list) else node.setdefault(step, frame)
        return node

    def _add_variable(self, variable: str, environ: Mapping[str, str]) -> None:
        spelled = path_of(variable.removeprefix(PREFIX).lower(), "__")
        path, lone = self._keys.complete(spelled)
        key = self._keys.find(path)
        if lone and self._count(lone) > 1:
            numbered = _variable((*lone, 0, *spelled[len(lone) :]))
            problem = f"{dotted(lone)} has {self._count(lone)} blocks; name one, as in {numbered}"
            self.problems.append(f"{variable}: {problem}")
        elif key:
            self._add_text(variable, key, path, environ[variable])
        elif secret := self._secret_of_file(path):
            self._add_secret_file(variable, secret, environ)
        elif path in RENAMED:
            self._add_all(iter([(path, environ[variable])]), variable)
        elif is_former(path):
            value = _json_or_text(environ[variable])
            self._add_all(_leaves(self._keys, path, value), variable)
        elif is_former(named := _without_file(path)):
            self._put(named, f"file:{environ[variable]}", variable)
        else:
            self.problems.append(f"{variable}: unknown variable{self._meant(variable, path)}")

    def _meant(self, variable: str, path: KeyPath) -> str:
        """Return "; did you mean …?" for a variable that there is not, or nothing."""
        of_others = counterpart(dotted(path))
        if of_others is not None and of_others.key is not None:
            return f"; did you mean {_variable(tuple(of_others.key.split('.')))}?"
        names = [_variable(tuple(name.split("."))) for name in self._keys.names()]
        return suggestion(variable, names, PREFIX)

    def _add_text(self, variable: str, key: Key, path: KeyPath, text: str) -> None:
        if key.kind == "value":
            self._put(path, text, variable)
            return
        try:
            value = json.loads(text)
        except ValueError:
            example = '["a", "b"]' if key.kind in {"json", "blocks"} else '{"key": "value"}'
            value_shown = shown(text, hidden=key.secret or key.kind != "json")
            problem = f"{value_shown} in {variable} is not allowed; must be JSON, such as {example}"
            self.problems.append(f"{self.name(path)}: {problem}")
            return
        self._add_all(_leaves(self._keys, path, value), variable)

    def _secret_of_file(self, path: KeyPath) -> KeyPath | None:
        named = _without_file(path)
        key = self._keys.find(named)
        return named if key and key.secret and key.kind == "value" and named != path else None

    def _add_secret_file(self, variable: str, path: KeyPath, environ: Mapping[str, str]) -> None:
        direct = variable.removesuffix("_FILE")
        if environ.get(direct):
            self.problems.append(f"{variable}: {direct} is set too; keep one of them")
            return
        # From now on it is a reference like any other.
        self._put(path, f"file:{environ[variable]}", variable)

    def _count(self, path: KeyPath) -> int:
        """Return how many blocks a list has so far."""
        node: Any = self.tree
        for step in path:
            node = node.get(step) if isinstance(node, dict) else None
        return len(node) if isinstance(node, list) else 0


MOST_BYTES = 500_000
"""To read more takes minutes: it is a log or a database that got a wrong name."""


def read_yaml(path: Path, origin: str) -> dict[str, Any]:
    """Return the map in a YAML file, {} for an empty one.

    Raises:
        SettingsError: Unreadable, malformed, a key twice, or not a map; names line and column.
    """
    try:
        if path.is_fifo():
            raise SettingsError(f"{origin}: is a pipe, and no settings file")
        if path.stat().st_size > MOST_BYTES:
            raise SettingsError(f"{origin}: has more than {MOST_BYTES:,} bytes: no settings file")
        return parsed_yaml(path.read_text("utf-8-sig"), origin)
    except OSError as exc:
        raise SettingsError(f"{origin}: cannot be read: {exc.strerror} ({path})") from exc
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise SettingsError(f"{origin}, line {line}: is not written in UTF-8") from exc
    except ValueError as exc:
        raise SettingsError(f"{origin}: not valid YAML: {exc}") from exc


def parsed_yaml(text: str, origin: str) -> dict[str, Any]:
    """Return the map in a YAML text, {} for an empty one.

    Raises:
        SettingsError: Malformed, a key twice, huge by its aliases, or not a map; names line and
            column.
    """
    try:
        tree = _UniqueKeyLoader(text).get_single_data()
    except yaml.MarkedYAMLError as exc:
        # Not str(exc): it quotes the line, which may hold a secret.
        mark = exc.problem_mark or exc.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{origin}{place}: not valid YAML: {exc.problem}") from None
    except (yaml.YAMLError, RecursionError) as exc:
        raise SettingsError(f"{origin}: not valid YAML: {exc}") from exc
    except (ValueError, LookupError, AttributeError, TypeError) as exc:
        # What a value raises that is not of the type which its tag names.
        raise SettingsError(f"{origin}: not valid YAML: a value is not what its tag says") from exc
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(f"{origin}: must be a map of sections, such as 'model: {{name: …}}'")
    return {str(key): value for key, value in tree.items()}


MOST_VALUES = 50_000
"""Of a settings file, each counted as often as aliases repeat it: a few of these make it huge."""


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node; inside itself, which is refused later, it counts as none."""
    if id(node) not in known:
        known[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (each if isinstance(each, tuple) else (each,) for each in inner)
        known[id(node)] = 1 + sum(_values_in(each, known) for pair in pairs for each in pair)
    return known[id(node)]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses the same key twice in a map, what contains itself, and bombs."""

    @override
    def construct_document(self, node: yaml.Node) -> Any:
        if _values_in(node, {}) > MOST_VALUES:
            problem = f"has more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        # All of it at once: a part that is not finished when it is needed contains itself.
        return self.construct_object(node, deep=True)

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def _leaves(keys: Keys, path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Split a value into the keys below `path`; unknown and misplaced things stay whole."""
    key = keys.find(path)
    if not path or (key.kind == "section" if key else is_former(path) and not former_key(path)):
        if isinstance(value, Mapping):
            for name, item in value.items():
                yield from _leaves(keys, (*path, str(name)), item)
        elif value is not None:
            yield path, value
    elif key and key.kind == "blocks" and value is not None:
        blocks = [value] if key.lone_block and isinstance(value, Mapping) else value
        yield path, [] if isinstance(blocks, list) else blocks
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            yield (*path, index), {}
            yield from _leaves(keys, (*path, index), block)
    elif not (key and key.kind == "blocks"):
        yield path, value


def _without_file(path: KeyPath) -> KeyPath:
    """Return the key whose secret is in the file that a variable names."""
    return (*path[:-1], str(path[-1]).removesuffix("_file"))


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def path_of(name: str, separator: str = ".") -> KeyPath:
    """Return the path that a person's name of a key means: `platforms.slack.1.name`."""
    return tuple(int(step) if step.isdecimal() else step for step in name.split(separator))


def _numbered(variable: str) -> list[tuple[bool, str | int]]:
    """Sort blocks by their numbers: the tenth comes after the second."""
    return [(isinstance(step, str), step) for step in path_of(variable, "__")]


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(str(step).upper() for step in path)


def complaint(error: "ErrorDetails", keys: Keys, name: str, origin: str) -> str:
    """Return the line for one validation error.

    Args:
        name: The key as people write it.
        origin: Where its value comes from.
    """
    path, is_name = error["loc"], error["loc"][-1:] == (OF_NAME,)
    if is_name:
        path, name = path[:-1], name.removesuffix(f".{OF_NAME}")
    if error["type"] == "extra_forbidden":
        told = hint(name, error["input"]) or _instead(path, name, keys)
        return f"{name}: unknown key in {origin}; {told}"
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
