"""The answers of a set-up before they are written: keys of the settings with their new values.

A draft is laid over the file and the environment as command-line options are, so that what is
checked is what a start would make of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import SecretStr

from agent.settings import ReferencedSecret
from gateway.errors import SettingsError
from gateway.settings.editing import told
from gateway.settings.loading import CONFIG_NAME, Loaded, load_settings
from gateway.settings.references import argument, is_reference
from gateway.settings.sources import PREFIX, path_of, read_yaml
from gateway.settings.tree import KeyPath, all_keys
from gateway.setup.hermes_settings import hint

Keeping = Literal["yaml", "files", "env"]
"""Where secrets are kept: in parley.yaml, in a file each beside it, or in the environment."""
OWN_SERVER = "server"
"""What a set-up calls a server of one's own that speaks OpenAI's API."""
CHOICES = {
    "anthropic": "Anthropic (Claude)",
    "openai": "OpenAI",
    "openrouter": "OpenRouter",
    OWN_SERVER: "a server of your own that speaks OpenAI's API (Ollama, vLLM, llama.cpp, …)",
    "offline": "none for now: a demo model answers, which understands nothing",
}
_BESIDE = "setup"
"""The one section of a file of answers that is none of parley.yaml."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which settings are set up.

    Attributes:
        config: The file that is there; None where none is.
        known: Secrets by their places that were read already; no program is run for them again.
    """

    home: Path
    config: Path | None = None
    known: Mapping[KeyPath, ReferencedSecret] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where the settings are written."""
        return self.config or self.home / CONFIG_NAME

    def load(self, values: Mapping[str, Any] | None = None) -> Loaded:
        """Return the settings as they are, or as they would be with these values.

        Raises:
            SettingsError: They cannot be read, or contradict each other.
        """
        given: dict[str, Any] = {"home": self.home}
        for name, value in (values or {}).items():
            # Of options None means "not given"; inside of a section it stands for null.
            section, _, last = name.rpartition(".")
            if value is None:
                given.setdefault(section, {})[last] = None
            else:
                given[name] = value
        return load_settings(config=self.config, overrides=given, known=self.known, hint=hint)


@dataclass(slots=True)
class Answers:
    """What a set-up has been told so far.

    Attributes:
        values: New values by dotted key, in the order of the questions.
    """

    values: dict[str, Any] = field(default_factory=dict)
    keeping: Keeping = "yaml"


def is_secret(name: str) -> bool:
    """Whether the value of a dotted key is to be kept like a secret."""
    path, _ = all_keys().complete(path_of(name))
    key = all_keys().find(path)
    return key is not None and key.secret and key.kind == "value"


def variable_of(name: str) -> str:
    """Return the variable of the environment that a dotted key is read from."""
    return PREFIX + name.replace(".", "__").upper()


def secrets_to_move(target: Target, draft: Answers) -> dict[str, str]:
    """Return the secrets in the file by dotted key that are to be kept elsewhere from now on.

    Raises:
        SettingsError: The environment, where they are to be, lacks some: they would be lost.
    """
    if draft.keeping == "yaml" or not target.file.exists():
        return {}
    given = {all_keys().complete(path_of(name))[0] for name in draft.values}
    found = {}
    for name, secret in _secrets_in(read_yaml(target.file, str(target.file))):
        path, _ = all_keys().complete(path_of(name))
        if not any(path[:end] in given for end in range(1, len(path) + 1)):
            found[name] = secret
    lacking = [variable_of(name) for name in found if not _is_in_environment(name, found[name])]
    if draft.keeping == "env" and lacking:
        told = f"set {', '.join(lacking)} to what {target.file} holds, and try again"
        raise SettingsError(f"the secrets there would be lost: {told}")
    return found


def _is_in_environment(name: str, secret: str) -> bool:
    try:
        return argument(f"env:{variable_of(name)}") == secret.rstrip("\r\n")
    except SettingsError:
        return False


def _secrets_in(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in _leaves(tree, above):
        if isinstance(value, list):
            blocks = {str(number): block for number, block in enumerate(value)}
            yield from _secrets_in(blocks, f"{name}.")
        elif isinstance(value, str) and value and is_secret(name) and not is_reference(value):
            yield name, value


def read_answers(file: Path) -> Answers:
    """Return the answers of a file: parts of parley.yaml, and `setup: {secrets}`.

    Raises:
        SettingsError: It cannot be read, or is none.
    """
    tree = read_yaml(file, str(file))
    beside = tree.pop(_BESIDE, None) or {}
    if not isinstance(beside, dict) or {*beside} - {"secrets"}:
        raise SettingsError(f"{file}: setup: known here: secrets")
    keeping = beside.get("secrets", "yaml")
    if keeping not in get_args(Keeping):
        raise SettingsError(f"{file}: setup.secrets: must be one of {', '.join(get_args(Keeping))}")
    return Answers(dict(_leaves(tree)), keeping)


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{above}{name}"
        found = all_keys().find(all_keys().complete(path_of(key))[0])
        is_frame = found is None or found.kind in {"section", "blocks"}
        if isinstance(value, dict) and value and is_frame:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def changed_keys(target: Target, draft: Answers) -> list[str]:
    """Return a line for each key that gets another value; of secrets only that they change."""
    before = target.load()
    values = {name.lower(): value for name, value in before.values.items()}
    found = []
    for name, new in draft.values.items():
        old = values.get(name)
        old = list(old) if isinstance(old, tuple) else old
        if is_secret(name):
            same = isinstance(old, SecretStr) and old.get_secret_value() == new
            if not same:
                found.append(f"{name}: {'another one' if old else 'new'}")
        elif old != new:
            was = "" if old is None or old == [] else f"{told(path_of(name), old)} → "
            found.append(f"{name}: {was}{told(path_of(name), new)}")
    moved = secrets_to_move(target, draft)
    return [*found, *(f"{name}: no longer in this file" for name in moved)]
