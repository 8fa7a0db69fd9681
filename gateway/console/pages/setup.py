"""Set up: a model and the platforms of a home that has none yet, tried before they are written.

What is there already is changed with `parley setup`: a session in a browser is no reason to send
conversations to another server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from adapters.registry import BUILT_IN, Platform, by_name, platforms
from agent.models.catalog import DEFAULT_NAMES
from agent.models.factory import resolve_provider
from agent.models.offline import OfflineModel
from gateway.console.pages.system import told
from gateway.console.register import HOME, Ask, Missing, Moved, Result, Shown, action, page
from gateway.errors import GatewayError, StorageError
from gateway.settings.editing import OWNER_ONLY
from gateway.settings.references import is_reference, references_in
from gateway.settings.tree import Settings
from gateway.setup.checks import (
    KEYS_AT,
    check_account,
    check_model,
    mixed_up,
    mixed_up_key,
)
from gateway.setup.draft import OWN_SERVER, PROVIDERS, Answers, Target
from gateway.setup.writing import WrittenSettings, refuse_unwritable, write
from gateway.supervision.start_checks import Finding

SETUP = f"{HOME}/setup"
DEMO = OfflineModel.provider
DEMO_NAME = OfflineModel.name


@dataclass(frozen=True, slots=True)
class _Platform:
    """A platform, whether its token is in the settings, and whether the gateway goes by that."""

    it: Platform
    is_on: bool
    runs: bool


def is_without_model(*settings: Settings) -> bool:
    """Whether only the demo model answers, by all of these settings."""
    return all(resolve_provider(each.model) == DEMO for each in settings)


@page(SETUP, "Set up", "System")
async def setup(ask: Ask) -> Result:
    """Show the forms for what is not there yet."""
    return await _forms(ask)


async def _forms(ask: Ask, refused: str = "") -> Shown:
    """Show the forms; after a refusal with what was filled in, but for keys and tokens."""
    target, settings = await _read(ask)
    return Shown(
        "setup.html",
        {
            "needs_model": is_without_model(settings, ask.inside.settings),
            "providers": {name: words for name, words in PROVIDERS.items() if name != DEMO},
            "nameless": [PROVIDERS[name] for name in _NAMELESS],
            "filled": {name: ask.form.get(name, "") for name in ("provider", "name", "base_url")},
            "own_server": OWN_SERVER,
            "keys_at": KEYS_AT,
            "platforms": _platforms(settings, ask.inside.settings),
            "file": str(target.file),
        },
        title="Set up",
        refused=refused,
    )


_NAMELESS = [name for name in PROVIDERS if name not in {DEMO, OWN_SERVER, *DEFAULT_NAMES}]
"""Providers with many models, none of which is the usual one."""


def _platforms(settings: Settings, running: Settings) -> Sequence[_Platform]:
    on, runs = ({name for name, _ in each.platforms.on()} for each in (settings, running))
    return [
        _Platform(each, each.name in on | runs, each.name in runs)
        for each in platforms()
        if each.name != BUILT_IN
    ]


async def _read(ask: Ask) -> tuple[Target, Settings]:
    """Return which settings are set up, and how they stand in the file: a restart may be due.

    Raises:
        SettingsError: The file cannot be read.
    """
    running, file = ask.inside.settings, ask.inside.operator.settings.file
    is_there = file is not None and await asyncio.to_thread(file.exists)
    # What is gone by was read: to look at a page runs no program of a reference once more.
    known = dict(references_in(running))
    target = Target(running.home, file if is_there else None, known)
    return target, (await asyncio.to_thread(target.load)).settings


@action(f"{SETUP}/model")
async def model(ask: Ask) -> Result:
    """Try a model with one question, and write it down where it answers."""
    return await _with_forms(ask, _model)


@action(f"{SETUP}/platforms/{{name}}")
async def account(ask: Ask) -> Result:
    """Try the tokens of a platform's first account, and write them down where they are taken."""
    return await _with_forms(ask, _account)


async def _with_forms(ask: Ask, tried: Callable[[Ask], Awaitable[Result]]) -> Result:
    try:
        return await tried(ask)
    except StorageError:
        raise
    except GatewayError as exc:
        return await _forms(ask, str(exc))


async def _model(ask: Ask) -> Result:
    target, settings = await _read(ask)
    if not is_without_model(settings, ask.inside.settings):
        raise GatewayError("There is a model already; `parley setup` changes it.")
    provider, name = ask.form.get("provider", ""), ask.form.get("name", "").strip()
    if provider not in PROVIDERS or provider == DEMO:
        raise GatewayError("Please choose a provider.")
    if provider in _NAMELESS and not name:
        raise GatewayError(f"{PROVIDERS[provider]} has no default model; please name one.")
    key = _secret(ask, "key")
    if mixed := mixed_up_key(key):
        raise GatewayError(f"This is {mixed}; the key of the model is asked for.")
    draft = Answers()
    given = {"api_key": key, "name": name}
    if provider == OWN_SERVER:
        given["base_url"] = ask.form.get("base_url", "")
    draft.put_model(await asyncio.to_thread(target.load), provider, given)
    found = await asyncio.to_thread(target.load, draft.values)
    return await _written(ask, target, draft, await check_model(found.settings.model))


async def _account(ask: Ask) -> Result:
    platform = by_name().get(ask.names["name"])
    if platform is None or not platform.credentials:
        raise Missing("There is no such platform.")
    target, settings = await _read(ask)
    known = _platforms(settings, ask.inside.settings)
    if any(each.is_on for each in known if each.it is platform):
        raise GatewayError(f"{platform.title} is set up already; `parley setup` changes it.")
    draft = Answers()
    for credential in platform.credentials:
        token = _secret(ask, credential.key)
        if not token:
            raise GatewayError(f"Please fill in the {credential.title}.")
        if mixed := mixed_up(token, platform.name, credential.key):
            raise GatewayError(f"This is {mixed}; the {credential.title} is asked for.")
        draft.put_token(platform.name, credential.key, token)
    found = await asyncio.to_thread(target.load, draft.values)
    block = found.settings.platforms.accounts(platform.name)[0]
    return await _written(ask, target, draft, await check_account(platform.name, block))


def _secret(ask: Ask, name: str) -> str:
    """Return a key or a token of a form.

    Raises:
        GatewayError: It refers to one: a session in a browser would run programs of this machine,
            or send its files to whoever answers for the model.
    """
    text = ask.form.get(name, "").strip()
    if is_reference(text):
        raise GatewayError("References to secrets are set with `parley setup`, not from here.")
    return text


async def _written(ask: Ask, target: Target, draft: Answers, checked: Finding) -> Moved:
    """Write what was tried, have the gateway go by it, and say what is still to do.

    Raises:
        GatewayError: It was refused, or cannot be tried or written; nothing was changed.
    """
    if checked.outcome != "accepted":
        raise GatewayError(f"Nothing was written. {checked.subject}: {checked.text}.")
    written = await asyncio.to_thread(_kept, target, draft)
    done = await ask.inside.operator.reload(ask.by, ", ".join(draft.values))
    parts = [f"{checked.subject}: {checked.text}.", *(f"Still to do: {x}." for x in checked.lacks)]
    parts.append(f"Written to {written.file}.")
    if written.is_closed:
        parts.append(f"It {OWNER_ONLY}.")
    if done.problems:
        parts += ["But Parley goes on by what it had before:", *done.problems]
        return Moved(SETUP, " ".join(parts), failed=True)
    return Moved(SETUP, " ".join([*parts, told(done)]))


def _kept(target: Target, draft: Answers) -> WrittenSettings:
    refuse_unwritable(target)
    return write(target, draft)
