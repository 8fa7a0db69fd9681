"""The questions of a set-up about model and platforms, and their answers.

The terminal and the web page present the questions differently. The answers override the file and
the environment like command-line options for a trial start, and are then written
(gateway/setup/writing.py).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import SecretStr

from adapters.registry import BUILT_IN, Platform, platforms
from agent.models.catalog import DEFAULT_NAMES, KEY_VARIABLES, PROVIDERS
from gateway.errors import GatewayError, SettingsError
from gateway.settings.editing import told
from gateway.settings.loading import CONFIG_NAME, Loaded, load_settings, provider_keys
from gateway.settings.references import Known, argument, is_reference
from gateway.settings.sources import Sources, key_leaves, path_of, read_yaml, variable_of
from gateway.settings.tree import all_keys, name_of
from gateway.setup.checks import check_account, check_model, mixed_up
from gateway.setup.hermes_settings import hint, leaves
from gateway.supervision.credentials import Checked

Keeping = Literal["yaml", "files", "env"]
"""Storage of secrets: in parley.yaml, in one file each, or in the environment."""
OWN_SERVER = "server"
"""A server with OpenAI's API."""
CHOICES = {
    "anthropic": "Anthropic (Claude)",
    "openai": "OpenAI",
    "openrouter": "OpenRouter",
    OWN_SERVER: "a server of your own that speaks OpenAI's API (Ollama, vLLM, llama.cpp, …)",
    "offline": "none for now: a demo model answers, which understands nothing",
}
_BESIDE = "setup"
"""The extra section of an answers file, absent from parley.yaml."""


@dataclass(frozen=True, slots=True)
class Target:
    """The settings to set up.

    Attributes:
        config: The named file, if any.
        known: Known secrets by path, to avoid reading them again.
    """

    home: Path
    config: Path | None = None
    known: Known = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The file to write."""
        return self.config or self.home / CONFIG_NAME

    def load(self, values: Mapping[str, Any] | None = None) -> Loaded:
        """Load the current settings, or the settings with these values applied."""
        given: dict[str, Any] = {"home": self.home}
        for name, value in (values or {}).items():
            # For an option None means "not given"; within a section it means null.
            section, _, last = name.rpartition(".")
            if value is None:
                given.setdefault(section, {})[last] = None
            else:
                given[name] = value
        return load_settings(config=self.config, overrides=given, known=self.known, hint=hint)


@dataclass(slots=True)
class Answers:
    """New values by dotted key in question order, and the storage of secrets."""

    values: dict[str, Any] = field(default_factory=dict)
    keeping: Keeping = "yaml"


def is_secret(name: str) -> bool:
    """Whether a dotted key's value must be stored as a secret."""
    key = all_keys().find(path_of(name))
    return key is not None and key.secret and key.kind == "value"


def secrets_to_move(target: Target, draft: Answers) -> dict[str, str]:
    """Return the file's secrets that the answers move elsewhere, by dotted key.

    Raises:
        SettingsError: They should move to the environment, which lacks some: they would be lost.
    """
    if draft.keeping == "yaml" or not target.file.exists():
        return {}
    given = {all_keys().complete(path_of(name))[0] for name in draft.values}
    sources, found = Sources(), {}
    sources.add_file(target.file, str(target.file))
    for path, value in key_leaves((), sources.tree):
        name = name_of(path, sources.tree)
        is_given = any(path[:end] in given for end in range(len(path) + 1))
        is_text = is_secret(name) and isinstance(value, str) and value
        if is_text and not is_given and not is_reference(value):
            found[name] = value
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


def read_answers(file: Path) -> Answers:
    """Read answers from a file: parts of parley.yaml, and `setup: {secrets}`."""
    tree = read_yaml(file, str(file))
    beside = tree.pop(_BESIDE, None) or {}
    if not isinstance(beside, dict) or {*beside} - {"secrets"}:
        raise SettingsError(f"{file}: setup: known here: secrets")
    keeping = beside.get("secrets", "yaml")
    if keeping not in get_args(Keeping):
        raise SettingsError(f"{file}: setup.secrets: must be one of {', '.join(get_args(Keeping))}")
    return Answers(dict(leaves(tree, _is_value)), keeping)


def _is_value(name: str) -> bool:
    key = all_keys().find(path_of(name))
    return key is not None and key.kind not in {"section", "blocks"}


def changed_keys(target: Target, draft: Answers) -> list[str]:
    """Return a line for each changed key, without secret values."""
    before = target.load()
    values = {name.lower(): value for name, value in before.values.items()}
    found = []
    for name, new in draft.values.items():
        old = values.get(name)
        old = list(old) if isinstance(old, tuple) else old
        if is_secret(name):
            if not (isinstance(old, SecretStr) and old.get_secret_value() == new):
                found.append(f"{name}: {'another one' if old else 'new'}")
        elif old != new:
            was = "" if old is None or old == [] else f"{told(path_of(name), old)} → "
            found.append(f"{name}: {was}{told(path_of(name), new)}")
    moved = secrets_to_move(target, draft)
    return [*found, *(f"{name}: no longer in this file" for name in moved)]


MODEL = "model"
OFFLINE = "offline"
LOCAL_URL = "http://127.0.0.1:11434/v1"
"""Ollama's default address."""
NAMELESS = tuple(name for name in CHOICES if name not in {OFFLINE, OWN_SERVER, *DEFAULT_NAMES})
"""Providers without a default model."""


class SetupQuestion(NamedTuple):
    """One question.

    Attributes:
        key: The settings key; its last part is the form field.
        title: A label such as "bot token".
        wanted: The label in a sentence, such as "Telegram's bot token".
        default: Used without an answer; for a secret, the variable that contains one.
        found_at: The page where `steps` find it.
    """

    key: str
    title: str
    wanted: str
    is_secret: bool = False
    is_required: bool = False
    default: str = ""
    found_at: str = ""
    steps: str = ""

    @property
    def field(self) -> str:
        """Its form field."""
        return self.key.rpartition(".")[2]


def platforms_asked_about() -> list[Platform]:
    """Return the platforms that need tokens."""
    return [each for each in platforms() if each.name != BUILT_IN]


def of_platform(platform: Platform) -> tuple[SetupQuestion, ...]:
    """Return the questions about a platform's account."""
    return tuple(
        SetupQuestion(
            f"platforms.{platform.name}.{each.key}",
            each.title,
            f"{platform.title}'s {each.title}",
            is_secret=True,
            is_required=True,
            found_at=each.found_at,
            steps=each.steps,
        )
        for each in platform.credentials
    )


def of_provider(provider: str, now: Loaded) -> tuple[SetupQuestion, ...]:
    """Return the questions about a provider's model: server, key and name."""
    if provider == OFFLINE:
        return ()
    facts = PROVIDERS.get(provider)
    address = SetupQuestion("model.base_url", "Address", "the address", default=LOCAL_URL)
    key = SetupQuestion(
        "model.api_key",
        "Key",
        "the key of the model",
        is_secret=True,
        default=KEY_VARIABLES[provider] if provider in provider_keys() else "",
        found_at=facts.keys_at if facts else "",
    )
    same = now.settings.model.name if now.settings.model.provider == provider else None
    usual = same or DEFAULT_NAMES.get(provider) or (facts.example if facts else "llama3.3")
    name = SetupQuestion("model.name", "Model", "the model", default=usual)
    return (address, key, name) if provider == OWN_SERVER else (key, name)


def wrong(question: SetupQuestion, text: str) -> str:
    """Return why an answer is invalid, or ""."""
    if not text:
        return f"please fill in the {question.title}" if question.is_required else ""
    section, name, _ = f"{question.key}.".split(".", 2)
    mixed = mixed_up(text, name if section == "platforms" else "", question.field)
    return f"this is {mixed}; {question.wanted} is asked for" if mixed else ""


def take(answers: Answers, questions: Sequence[SetupQuestion], given: Mapping[str, str]) -> None:
    """Store the given answers by question field."""
    for question in questions:
        if text := given.get(question.field, "").strip():
            answers.values[question.key] = text


def take_model(answers: Answers, provider: str, given: Mapping[str, str], now: Loaded) -> None:
    """Store the answers about the model: name, base_url, api_key; empty means unanswered.

    A new provider gets none of the old one's values from the file.
    """
    if provider not in CHOICES:
        raise SettingsError("Please choose a provider.")
    if provider in NAMELESS and not given.get("name", "").strip():
        raise SettingsError(f"{CHOICES[provider]} has no default model; please name one.")
    chosen = "openai" if provider == OWN_SERVER else provider
    is_other = chosen != now.settings.model.provider
    answers.values["model.provider"] = chosen
    for name in ("name", "base_url", "api_key"):
        key, text = f"model.{name}", given.get(name, "").strip()
        file = now.config_file
        of_file = file is not None and now.origins[key] in {str(file), file.name}
        if text or (is_other and of_file):
            # Omitting the key would send the old value to another provider.
            answers.values[key] = text or None


async def try_answers(target: Target, answers: Answers, section: str) -> Checked:
    """Test the answers about the model (section `MODEL`) or a platform's account."""
    try:
        found = await asyncio.to_thread(target.load, answers.values)
    except GatewayError as exc:
        return Checked(section, "refused", str(exc))
    if section == MODEL:
        return await check_model(found.settings.model)
    return await check_account(section, found.settings.platforms.accounts(section)[0])
