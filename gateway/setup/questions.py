"""What a set-up asks about the model and the platforms, in the terminal and on the web page alike.

Each shows the questions in its own way. What becomes of the answers is the same: they are taken
over into a draft, tried, and written (gateway/setup/writing.py).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from adapters.registry import BUILT_IN, Platform, platforms
from agent.models.catalog import DEFAULT_NAMES
from agent.models.providers import PROVIDERS
from gateway.errors import GatewayError, SettingsError
from gateway.settings.loading import Loaded, key_variable
from gateway.setup.checks import check_account, check_model, mixed_up
from gateway.setup.draft import CHOICES, OWN_SERVER, Answers, Target
from gateway.supervision.start_checks import Checked

MODEL = "model"
OFFLINE = "offline"
LOCAL_URL = "http://127.0.0.1:11434/v1"
"""Where Ollama listens."""
NAMELESS = tuple(name for name in CHOICES if name not in {OFFLINE, OWN_SERVER, *DEFAULT_NAMES})
"""Providers with many models, none of which is the usual one."""


class SetupQuestion(NamedTuple):
    """One thing that is asked.

    Attributes:
        key: Of the settings; its last part names the field of a form.
        title: What is asked for: "bot token".
        wanted: The same in a sentence: "Telegram's bot token".
        default: What no answer means; of a secret the variable that has one.
        found_at: The page on which people get it.
        steps: What they do there.
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
        """Its name in a form."""
        return self.key.rpartition(".")[2]


def platforms_asked_about() -> list[Platform]:
    """Return the platforms that need tokens."""
    return [each for each in platforms() if each.name != BUILT_IN]


def of_platform(platform: Platform) -> tuple[SetupQuestion, ...]:
    """Return the questions for the one account of a platform."""
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
    """Return the questions for the model of a provider: its server, key and name."""
    if provider == OFFLINE:
        return ()
    facts = PROVIDERS.get(provider)
    address = SetupQuestion("model.base_url", "Its address", "the address", default=LOCAL_URL)
    key = SetupQuestion(
        "model.api_key",
        "Key",
        "the key of the model",
        is_secret=True,
        default=key_variable(provider),
        found_at=facts.keys_at if facts else "",
    )
    same = now.settings.model.name if now.settings.model.provider == provider else None
    usual = same or DEFAULT_NAMES.get(provider) or (facts.example if facts else "llama3.3")
    name = SetupQuestion("model.name", "Model", "the model", default=usual)
    return (address, key, name) if provider == OWN_SERVER else (key, name)


def wrong(question: SetupQuestion, text: str) -> str:
    """Return why an answer cannot be right; empty if it may be."""
    if not text:
        return f"please fill in the {question.title}" if question.is_required else ""
    section, name, _ = f"{question.key}.".split(".", 2)
    mixed = mixed_up(text, name if section == "platforms" else "", question.field)
    return f"this is {mixed}; {question.wanted} is asked for" if mixed else ""


def take(answers: Answers, questions: Sequence[SetupQuestion], given: Mapping[str, str]) -> None:
    """Take over what was answered, by the fields of the questions."""
    for question in questions:
        if text := given.get(question.field, "").strip():
            answers.values[question.key] = text


def take_model(answers: Answers, provider: str, given: Mapping[str, str], now: Loaded) -> None:
    """Take over what was said of the model: name, base_url, api_key; empty: not said.

    A provider that is another one than in the file takes nothing over from that one.

    Raises:
        SettingsError: There is no such provider, or it needs the name of a model.
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
        of_file = now.config_file is not None and now.origins[key] in {
            str(now.config_file),
            now.config_file.name,
        }
        if text or (is_other and of_file):
            # To leave it out would hand what is there to another provider.
            answers.values[key] = text or None


async def try_answers(target: Target, answers: Answers, section: str) -> Checked:
    """Have the model or the account of a platform show whether the answers are right.

    Args:
        section: `MODEL`, or the name of the platform.
    """
    try:
        found = await asyncio.to_thread(target.load, answers.values)
    except GatewayError as exc:
        return Checked(section, "refused", str(exc))
    if section == MODEL:
        return await check_model(found.settings.model)
    return await check_account(section, found.settings.platforms.accounts(section)[0])
