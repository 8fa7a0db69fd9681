"""Set up: a model and the platforms of a home that has none yet, tried before they are written.

What is there already is changed with `parley setup`: a session in a browser is no reason to send
conversations to another server.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.registry import BUILT_IN, Platform, by_name, platforms
from agent.models.factory import resolve_provider
from agent.offline import OfflineModel
from gateway.console.pages.system import told
from gateway.console.register import HOME, Ask, Missing, Moved, Result, Shown, action, page
from gateway.errors import GatewayError
from gateway.settings.tree import Settings
from gateway.setup.checks import (
    KEYS_AT,
    Checked,
    check_account,
    check_model,
    mixed_up,
    mixed_up_key,
)
from gateway.setup.draft import OWN_SERVER, PROVIDERS, Answers, Target
from gateway.setup.writing import refuse_unwritable, write
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry

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
    target, settings = await _read(ask)
    return Shown(
        "setup.html",
        {
            "needs_model": is_without_model(settings, ask.inside.settings),
            "providers": {name: words for name, words in PROVIDERS.items() if name != DEMO},
            "own_server": OWN_SERVER,
            "keys_at": KEYS_AT,
            "platforms": _platforms(settings, ask.inside.settings),
            "file": str(target.file),
        },
    )


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
    home, file = ask.inside.settings.home, ask.inside.operator.settings.file
    target = Target(home, file if file is not None and file.exists() else None)
    return target, (await asyncio.to_thread(target.load)).settings


@action(f"{SETUP}/model")
async def model(ask: Ask) -> Result:
    """Try a model with one question, and write it down where it answers."""
    target, settings = await _read(ask)
    if not is_without_model(settings, ask.inside.settings):
        raise GatewayError("There is a model already; `parley setup` changes it.")
    provider, key = ask.form.get("provider", ""), ask.form.get("key", "").strip()
    if provider not in PROVIDERS or provider == DEMO:
        raise GatewayError("Please choose a provider.")
    if mixed := mixed_up_key(key):
        raise GatewayError(f"This is {mixed}; the key of the model is asked for.")
    draft = Answers()
    given = {"api_key": key, "name": ask.form.get("name", "")}
    if provider == OWN_SERVER:
        given["base_url"] = ask.form.get("base_url", "")
    draft.put_model(target.load(), provider, given)
    found = target.load(draft.values)
    return await _written(ask, target, draft, await check_model(found.settings.model))


@action(f"{SETUP}/platforms/{{name}}")
async def account(ask: Ask) -> Result:
    """Try the tokens of a platform's first account, and write them down where they are taken."""
    platform = by_name().get(ask.names["name"])
    if platform is None or not platform.credentials:
        raise Missing("There is no such platform.")
    target, settings = await _read(ask)
    known = _platforms(settings, ask.inside.settings)
    if any(each.is_on for each in known if each.it is platform):
        raise GatewayError(f"{platform.title} is set up already; `parley setup` changes it.")
    draft = Answers()
    for credential in platform.credentials:
        token = ask.form.get(credential.key, "").strip()
        if not token:
            raise GatewayError(f"Please fill in the {credential.title}.")
        if mixed := mixed_up(token, platform.name, credential.key):
            raise GatewayError(f"This is {mixed}; the {credential.title} is asked for.")
        draft.put_token(platform.name, credential.key, token)
    block = target.load(draft.values).settings.platforms.accounts(platform.name)[0]
    return await _written(ask, target, draft, await check_account(platform.name, block))


async def _written(ask: Ask, target: Target, draft: Answers, checked: Checked) -> Moved:
    """Write what was tried, have the gateway go by it, and say what is still to do.

    Raises:
        GatewayError: It was refused, or cannot be tried or written; nothing was changed.
    """
    if checked.outcome != "accepted":
        raise GatewayError(f"Nothing was written. {checked.subject}: {checked.text}.")
    refuse_unwritable(target)
    write(target, draft)
    done = await ask.inside.operator.settings.reload()
    entry = AuditEntry("settings_reloaded", by=ask.by, subject=", ".join(draft.values))
    await ask.inside.database.write(audit_log.append, entry)
    parts = [f"{checked.subject}: {checked.text}.", *(f"Still to do: {x}." for x in checked.lacks)]
    return Moved(SETUP, " ".join([*parts, f"Written to {target.file}.", told(done)]))
