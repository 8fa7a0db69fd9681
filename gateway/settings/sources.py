"""Merges parley.yaml, environment and command line as layers of one tree.

Later layers override key by key; a list replaces the earlier list. Every value keeps its origin.
Each mistake becomes one line with place, value and allowed values. A removed key only causes a
warning that names its replacement.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import SecretStr
from typing_extensions import override

from agent.safety.redaction import MASK, Redactor
from gateway.errors import SettingsError
from gateway.settings.tree import Key, KeyPath, all_keys, at_step, dotted, has_secrets, name_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PREFIX = "PARLEY_"
# Variables read elsewhere, like those of the test suite.
OTHER_VARIABLES = {"PARLEY_HOME", "PARLEY_CONFIG"}
TEST_PREFIX = "PARLEY_TEST_"
RENAMED: dict[KeyPath, KeyPath] = {
    ("compression", "summary_model"): ("auxiliary", "compression", "model"),
    ("model", "cache_ttl"): ("prompt_caching", "cache_ttl"),
}
FORMER: Mapping[str, str] = {
    "*.facts.cache_write_1h_usd": "it is twice facts.input_usd",
    "*.facts.cache_write_5m_usd": "it is 1.25 times facts.input_usd",
    "agent.progress": "the preview shows which tools run",
    "alerts.per_hour": "it is 10",
    "attachments.text_chars": "it is 50,000 characters; the model can read on",
    "auxiliary.*.fallbacks": "after the model of summaries those that answer are asked",
    "auxiliary.*.timeout_s": "it is 60 seconds for all calls of one piece of work",
    "commands": "the nearest known command is suggested",
    "compression.early": "views are compacted at the threshold alone",
    "compression.payback_requests": "views are compacted at the threshold alone",
    "context.lcm": "leaves have 20,000 tokens, nodes 8 leaves or 4 nodes",
    "context.options": "an engine's options are those of its plugin: plugins.options",
    "delivery": "answers are sent again for a day",
    "fallbacks.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "fallbacks.request_timeout_s": "it is 1,800 seconds",
    "metrics.enabled": "it is on, for this machine and for callers with metrics.token",
    "model.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "model.request_timeout_s": "it is 1,800 seconds",
    "plugins.timeout_s": "it is 5 seconds",
    "prompt_caching.enabled": "it is on if the model takes breakpoints",
    "queue.give_up_after_s": "it is an hour",
    "quotas.files_per_day": "messages_per_day limits files, too",
    "retention.journal_days": "they are kept as transcript_days says",
    "retention.outbox_days": "they are kept as transcript_days says",
    "retention.search": "words are found as long as their messages are kept",
    "search": "meanings are compared if auxiliary.embeddings names a model",
    "storage.pooled": "storage.url is a pooler's if there is storage.direct_url",
    "telemetry.otlp_headers": "the variable OTEL_EXPORTER_OTLP_HEADERS says it",
    "telemetry.sampling_ratio": "OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say it",
    "telemetry.service_name": "it is parley",
    "tools.approval_timeout_s": "it is an hour",
    "tools.clarify_timeout_s": "it is a day",
    "tools.delegation": "it is 30 calls, 600 seconds and 400,000 tokens; budgets limit money",
    "tools.fetch.max_bytes": "it is 2,000,000 bytes",
    "tools.fetch.timeout_s": "it is 20 seconds",
    "tools.memory": "it is 2,200 characters of notes and 4,000 of a profile",
    "tools.policy.lists": "it restricts nothing; write rows of tools.policy.rules",
    "tools.terminal.max_memory_bytes": "it is 2,000,000,000 bytes",
    "tools.terminal.max_output_bytes": "it is 1,000,000 bytes",
    "tools.terminal.max_processes": "it is 256",
    "tools.workspace.max_bytes": "it is 200,000,000 bytes",
    "web.admin": "owners have the console; web.enabled closes all pages",
    "web.max_connections_per_address": "it is a tenth of web.max_connections",
    "web.oidc.redirect_url": "it is web.public_url with sign-in/oidc/callback",
}
"""The replacement of each removed key or section."""
Hint = Callable[[str, Any], str | None]
"""Returns a replacement for an unknown dotted key with this value, or None."""


class Sources:
    """The layers read so far, merged in `tree`.

    `problems` and `warnings` are lines for the operator; only problems prevent a start.
    """

    def __init__(self, hint: Hint | None = None) -> None:
        self._hint = hint or (lambda _key, _value: None)
        self._origins: dict[KeyPath, str] = {}
        self.tree: dict[str, Any] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def add_file(self, path: Path, origin: str) -> None:
        """Add the values of a YAML file as a layer."""
        tree = read_yaml(path, origin)
        if "home" in tree:
            del tree["home"]
            self.problems.append(f"home: not a key of {origin}; set PARLEY_HOME or --home")
        self.add((), tree, origin)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add `PARLEY_SECTION__KEY` and `…_FILE` as a layer; an empty variable counts as unset."""
        for variable in sorted(environ, key=_numbered):
            ours = variable.startswith(PREFIX) and variable not in OTHER_VARIABLES
            if ours and environ[variable] and not variable.startswith(TEST_PREFIX):
                self._add_variable(variable, environ)

    def add_options(self, options: Mapping[str, Any]) -> None:
        """Add command-line options (dotted key → value) as a layer; None means not given."""
        for name, value in options.items():
            if value is not None:
                path, _ = all_keys().complete(path_of(name))
                self.add(path, value, "--" + name.rpartition(".")[2].replace("_", "-"))

    def add(self, path: KeyPath, value: Any, origin: str) -> None:
        """Add a value as a layer."""
        # Old spellings first, so that the new one wins if both are given.
        for at, leaf in sorted(key_leaves(path, value), key=lambda each: each[0] not in RENAMED):
            what = f"{dotted(at)} in {origin} is"
            if not all_keys().find(at) and (instead := former(at)):
                self.warnings.append(f"{what} no longer a setting: {instead}")
                continue
            if new := RENAMED.get(at):
                self.warnings.append(f"{what} an old spelling; write {dotted(new)}")
            self._put(new or at, leaf, origin)

    def origin(self, path: KeyPath) -> str:
        """Return the origin of the value at, above or below a path."""
        for end in range(len(path), 0, -1):
            key = all_keys().find(path[:end])
            # An enclosing block's origin is not the value's.
            is_around = end < len(path) and key is not None and key.kind in {"section", "blocks"}
            if not is_around and path[:end] in self._origins:
                return self._origins[path[:end]]
        below = (origin for at, origin in self._origins.items() if at[: len(path)] == path)
        return next(below, "default")

    def refused(self, error: "ErrorDetails") -> str:
        """Format a validation error of the tree as one line."""
        path = error["loc"]
        # pydantic marks an invalid map key like this.
        if is_name := path[-1:] == ("[key]",):
            path = path[:-1]
        name, origin = name_of(path, self.tree), self.origin(path)
        if error["type"] == "extra_forbidden":
            told = self._hint(name, error["input"]) or _instead(path, name)
            return f"{name}: unknown key in {origin}; {told}"
        value = shown(error["input"], hidden=not is_name and _hidden(path))
        allowed = _ALLOWED.get(error["type"]) or error["msg"].removeprefix("Value error, ")
        return f"{name}: {value} in {origin} is not allowed; {allowed.replace(*_PYDANTIC)}"

    def _put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Replace earlier layers' values at and below a path.

        An enclosing value of the wrong type stays and fails validation later.
        """
        node: Any = self.tree
        for end, step in enumerate(path, start=1):
            if isinstance(node, list) and isinstance(step, int) and step <= len(node):
                node.extend([{}] if step == len(node) else [])
            elif isinstance(node, dict):
                node.setdefault(step, [] if path[end:] and isinstance(path[end], int) else {})
            else:
                if isinstance(node, list):
                    told = f"has {len(node)} blocks, so there is no number {step} (they start at 0)"
                    self.problems.append(f"{dotted(path[: end - 1])}: {told}; given by {origin}")
                return
            if end == len(path):
                node[step] = copy(value)
            node = node[step]
        self._origins = {at: of for at, of in self._origins.items() if at[: len(path)] != path}
        self._origins[path] = origin

    def _add_variable(self, variable: str, environ: Mapping[str, str]) -> None:
        spelled = path_of(variable.removeprefix(PREFIX).lower(), "__")
        path, lone = all_keys().complete(spelled)
        text, key = environ[variable], all_keys().find(path)
        named = (*path[:-1], str(path[-1]).removesuffix("_file"))
        secret = all_keys().find(named)
        blocks = reduce(at_step, lone, self.tree) if lone else None
        if lone and isinstance(blocks, list) and len(blocks) > 1:
            numbered = variable_of(dotted((*lone, 0, *spelled[len(lone) :])))
            problem = f"{dotted(lone)} has {len(blocks)} blocks; name one, as in {numbered}"
            self.problems.append(f"{variable}: {problem}")
        elif key:
            self._add_text(variable, key, path, text)
        elif secret and secret.secret and secret.kind == "value":
            direct = variable.removesuffix("_FILE")
            if environ.get(direct):
                self.problems.append(f"{variable}: {direct} is set too; keep one of them")
            # Treat it as an ordinary reference from here on.
            self._put(named, f"file:{text}", variable)
        elif path in RENAMED or former(path):
            self.add(path, text, variable)
        else:
            self.problems.append(f"{variable}: unknown variable{self._meant(variable, path)}")

    def _meant(self, variable: str, path: KeyPath) -> str:
        """Suggest the variable or key that an unknown one may mean, or ""."""
        if told := self._hint(dotted(path), None):
            return f"; {told}"
        # Compare without the common prefix.
        known = [variable_of(name).removeprefix(PREFIX) for name in all_keys().names()]
        near = difflib.get_close_matches(variable.removeprefix(PREFIX), known, n=1, cutoff=0.65)
        return f"; did you mean {PREFIX}{near[0]}?" if near else ""

    def _add_text(self, variable: str, key: Key, path: KeyPath, text: str) -> None:
        if key.kind == "value":
            self._put(path, text, variable)
            return
        try:
            self.add(path, json.loads(text), variable)
        except ValueError:
            example = '["a", "b"]' if key.kind in {"json", "blocks"} else '{"key": "value"}'
            value = shown(text, hidden=key.secret or key.kind != "json")
            problem = f"{value} in {variable} is not allowed; must be JSON, such as {example}"
            self.problems.append(f"{name_of(path, self.tree)}: {problem}")


def former(path: KeyPath) -> str | None:
    """Return the replacement of a removed key, or None."""
    names = [step for step in path if isinstance(step, str)]
    around = [".".join(names[:end]) for end in range(1, len(names) + 1)]
    found = (key for key in FORMER if any(fnmatchcase(name, key) for name in around))
    return next((FORMER[key] for key in found), None)


MOST_BYTES = 500_000
"""Largest settings file in bytes; a larger one is something else and would take minutes."""


def read_yaml(path: Path, origin: str) -> dict[str, Any]:
    """Read a YAML file with a map; {} if it is empty."""
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


def parsed_yaml(text: str, origin: str) -> dict[str, Any]:
    """Parse a YAML text with a map ({} if empty); errors name line and column."""
    try:
        tree = _UniqueKeyLoader(text).get_single_data()
    except yaml.MarkedYAMLError as exc:
        # Not str(exc), which quotes the line and may contain a secret.
        mark = exc.problem_mark or exc.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(f"{origin}{place}: not valid YAML: {exc.problem}") from None
    except (yaml.YAMLError, RecursionError) as exc:
        raise SettingsError(f"{origin}: not valid YAML: {exc}") from exc
    except (ValueError, LookupError, AttributeError, TypeError) as exc:
        # Raised by a value that does not match its tag.
        raise SettingsError(f"{origin}: not valid YAML: a value is not what its tag says") from exc
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(f"{origin}: must be a map of sections, such as 'model: {{name: …}}'")
    return {str(key): value for key, value in tree.items()}


MOST_VALUES = 50_000
"""Most values in a settings file, counting repetitions by aliases."""


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node; recursive nodes are refused later."""
    if id(node) not in known:
        known[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (each if isinstance(each, tuple) else (each,) for each in inner)
        known[id(node)] = 1 + sum(_values_in(each, known) for pair in pairs for each in pair)
    return known[id(node)]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys, recursive nodes and alias bombs."""

    @override
    def construct_document(self, node: yaml.Node) -> Any:
        if _values_in(node, {}) > MOST_VALUES:
            problem = f"has more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        # Deep, so that a recursive node is refused.
        return self.construct_object(node, deep=True)

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def key_leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Split a value into the keys below `path`; unknown and misplaced values stay whole."""
    key = all_keys().find(path)
    kind = key.kind if key else "value" if path else "section"
    if key and key.lone_block and isinstance(value, Mapping):
        value = [value]
    if kind == "section" and isinstance(value, Mapping):
        for name, item in value.items():
            yield from key_leaves((*path, str(name)), item)
    elif kind == "blocks" and isinstance(value, list):
        yield path, []
        for index, block in enumerate(value):
            yield (*path, index), {}
            yield from key_leaves((*path, index), block)
    elif value is not None or kind not in {"section", "blocks"}:
        yield path, value


def path_of(name: str, separator: str = ".") -> KeyPath:
    """Split a key such as `platforms.slack.1.name`."""
    return tuple(int(step) if step.isdecimal() else step for step in name.split(separator))


def _numbered(variable: str) -> list[tuple[bool, str | int]]:
    """Sort key that orders blocks numerically: the tenth after the second."""
    return [(isinstance(step, str), step) for step in path_of(variable, "__")]


def variable_of(name: str) -> str:
    """Return the environment variable of a dotted key."""
    return PREFIX + name.replace(".", "__").upper()


_SHOWN_CHARS = 60
_redactor = Redactor()
_PYDANTIC = ("Input should", "must")
_ALLOWED = {
    "model_type": "must be a section with keys",
    "tuple_type": "must be a list",
    "float_parsing": "must be a number",
    "int_parsing": "must be a whole number",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a map",
    "string_type": "must be text (in quotes, if it looks like a number)",
}


def shown(value: Any, *, hidden: bool) -> str:
    """Format a wrong value for an error: shortened, masked if hidden or secret-like."""
    if hidden or isinstance(value, SecretStr):
        return MASK
    text = _redactor.text(repr(value))
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _hidden(path: KeyPath) -> bool:
    """Whether the value may be or contain a secret."""
    nearest = all_keys().around(path)
    # After a map's name comes a field of its section.
    field = str(path[len(nearest.pattern) + 1]) if len(path) > len(nearest.pattern) + 1 else ""
    if nearest.block is not None and field in nearest.block.model_fields:
        return has_secrets(nearest.block, field)
    return nearest.secret or nearest.kind in {"section", "blocks"}


def _instead(path: KeyPath, name: str) -> str:
    """Suggest what an unknown key may mean: a similar key, one elsewhere, or all known keys."""
    section, _, last = name.rpartition(".")
    keys = all_keys()
    known = [key.pattern[-1] for key in keys if keys.find((*path[:-1], key.pattern[-1])) is key]
    if not known and len(path) > 1:
        block = keys.around(path[:-1]).block
        known = list(block.model_fields) if block else []
    if near := difflib.get_close_matches(last, known, n=1):
        return f"did you mean {section}{'.' if section else ''}{near[0]}?"
    if elsewhere := [each for each in keys.names() if each.endswith(f".{last}")]:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(known)}"
