"""Set up: a model and the platforms of a home that has none yet, tried before they are written.

`parley setup` alone changes what exists: a browser's session must not be able to send conversations
to another server. It alone asks for the owner, who is signed in here already, and for the place of
secrets, which moves those in the file.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from adapters.registry import by_name
from agent.models.catalog import PROVIDERS
from agent.models.factory import resolve_provider
from agent.models.offline import OfflineModel
from gateway.console.pages.system import told
from gateway.console.register import HOME, Ask, Missing, Moved, Result, Shown, action, page
from gateway.errors import GatewayError, StorageError
from gateway.settings.editing import OWNER_ONLY
from gateway.settings.references import is_reference, references_in
from gateway.settings.tree import Settings
from gateway.setup.questions import (
    CHOICES,
    MODEL,
    NAMELESS,
    OWN_SERVER,
    Answers,
    SetupQuestion,
    Target,
    of_platform,
    of_provider,
    platforms_asked_about,
    take,
    take_model,
    try_answers,
    wrong,
)
from gateway.setup.writing import refuse_unwritable, write
from gateway.supervision.credentials import Checked

SETUP = f"{HOME}/setup"
DEMO = OfflineModel.provider


def is_without_model(*settings: Settings) -> bool:
    """Whether only the demo model answers, by all of these settings."""
    return all(resolve_provider(each.model) == DEMO for each in settings)


@page(SETUP, "Set up", "System")
async def setup(ask: Ask) -> Result:
    """Show the forms for the model and the platforms that are missing."""
    return await _forms(ask)


async def _forms(ask: Ask, refused: str = "") -> Shown:
    """Show the forms; after a refusal with the answers, except keys and tokens."""
    target, settings = await _read(ask)
    return Shown(
        "setup.html",
        {
            "needs_model": is_without_model(settings, ask.inside.settings),
            "providers": {name: words for name, words in CHOICES.items() if name != DEMO},
            "nameless": [CHOICES[name] for name in NAMELESS],
            "filled": {name: ask.form.get(name, "") for name in ("provider", "name", "base_url")},
            "own_server": OWN_SERVER,
            "keys_at": {name: each.keys_at for name, each in PROVIDERS.items() if each.keys_at},
            "platforms": [
                {"title": each.title, "name": each.name, "questions": of_platform(each)}
                for each in platforms_asked_about()
            ],
            "on": _on(settings, ask.inside.settings),
            "running": _on(ask.inside.settings),
            "file": str(target.file),
        },
        title="Set up",
        refused=refused,
    )


def _on(*settings: Settings) -> set[str]:
    """Return the platforms with tokens in any of these settings."""
    return {name for each in settings for name, _ in each.platforms.on()}


async def _read(ask: Ask) -> tuple[Target, Settings]:
    """Return the target, and the settings of the file, which may wait for a restart."""
    running, file = ask.inside.settings, ask.inside.operator.reloading.file
    is_there = file is not None and await asyncio.to_thread(file.exists)
    # A page must not run the programs of references again.
    known = dict(references_in(running))
    target = Target(running.home, file if is_there else None, known)
    return target, (await asyncio.to_thread(target.load)).settings


@action(f"{SETUP}/model")
async def model(ask: Ask) -> Result:
    """Try a model with one question, and write it down if it answers."""
    return await _with_forms(ask, _model)


@action(f"{SETUP}/platforms/{{name}}")
async def account(ask: Ask) -> Result:
    """Try the tokens of a platform's first account, and write them down if they work."""
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
    provider, now = ask.form.get("provider", ""), await asyncio.to_thread(target.load)
    asked = of_provider(provider, now)
    if provider == DEMO:
        raise GatewayError("Please choose a provider.")
    draft = Answers()
    take_model(draft, provider, _answers(ask, asked), now)
    return await _written(ask, target, draft, await try_answers(target, draft, MODEL))


async def _account(ask: Ask) -> Result:
    platform = by_name().get(ask.names["name"])
    if platform is None or not platform.credentials:
        raise Missing("There is no such platform.")
    target, settings = await _read(ask)
    if platform.name in _on(settings, ask.inside.settings):
        raise GatewayError(f"{platform.title} is set up already; `parley setup` changes it.")
    draft, asked = Answers(), of_platform(platform)
    take(draft, asked, _answers(ask, asked))
    return await _written(ask, target, draft, await try_answers(target, draft, platform.name))


def _answers(ask: Ask, asked: Sequence[SetupQuestion]) -> dict[str, str]:
    """Return the answers of a form, by the fields of the questions.

    Raises:
        GatewayError: An answer is missing or wrong, or refers to a secret: a browser's session
            could run programs of this machine, or send its files to a server of its choice.
    """
    given = {each.field: ask.form.get(each.field, "").strip() for each in asked}
    for question in asked:
        text = given[question.field]
        if question.is_secret and is_reference(text):
            raise GatewayError("References to secrets are set with `parley setup`, not from here.")
        if problem := wrong(question, text):
            raise GatewayError(f"{problem[0].upper()}{problem[1:]}.")
    return given


async def _written(ask: Ask, target: Target, draft: Answers, checked: Checked) -> Moved:
    """Write the answers that were tried, reload the gateway, and say what remains to be done."""
    if checked.outcome != "accepted":
        raise GatewayError(f"Nothing was written. {checked.subject}: {checked.text}.")
    await asyncio.to_thread(refuse_unwritable, target)
    written = await asyncio.to_thread(write, target, draft)
    done = await ask.inside.operator.reload(ask.by, ", ".join(draft.values))
    parts = [f"{checked.subject}: {checked.text}.", *(f"Still to do: {x}." for x in checked.lacks)]
    parts.append(f"Written to {written.file}.")
    if written.is_closed:
        parts.append(f"It {OWNER_ONLY}.")
    if done.problems:
        parts += ["But Parley goes on by what it had before:", *done.problems]
        return Moved(SETUP, " ".join(parts), failed=True)
    return Moved(SETUP, " ".join([*parts, told(done)]))
