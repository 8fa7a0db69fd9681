"""`parley run`: starts the gateway and prints its addresses."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import structlog
import typer

from adapters.registry import account_types, platforms
from agent.models.base import ChatModel
from agent.models.factory import resolve_provider
from agent.safety.redaction import printable
from agent.settings import CachingSettings
from gateway import app
from gateway.access import web_door
from gateway.access.pairing import owner_code
from gateway.app import Gateway, OnReady
from gateway.cli.common import loaded, warn
from gateway.findings.report import pressing
from gateway.logging.setup import configure_logging
from gateway.reload.reloading import Source
from gateway.settings.loading import Loaded, redactor_of
from gateway.settings.references import Known
from gateway.supervision.credentials import Checked, checked_lines
from gateway.supervision.home import own_home, with_web_token

log = structlog.get_logger()

run_app = typer.Typer(add_completion=False)


@run_app.command()
def run(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Host instead of web.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port instead of web.port.")] = None,
) -> None:
    """Start the gateway; Ctrl-C stops it after the running answers."""
    found = loaded(context, web__host=host, web__port=port)
    settings = found.settings
    # First, so that a second gateway never writes into the first one's log.
    with own_home(settings) as journal:
        settings = with_web_token(settings)
        configure_logging(settings.logging, settings.home, redactor_of(settings))
        for warning in found.warnings:
            warn(warning)
        source = _source(context, replace(found, settings=settings), host, port)
        asyncio.run(app.run(settings, _welcome, journal, source))


def _source(context: typer.Context, found: Loaded, host: str | None, port: int | None) -> Source:
    """Return a source that reloads the settings with the same options."""

    def read(known: Known) -> Loaded:
        again = loaded(context, known, web__host=host, web__port=port)
        return replace(again, settings=with_web_token(again.settings))

    return Source(found, read)


async def _welcome(gateway: Gateway) -> OnReady:
    """Create the owner code and a sign-in link; return the function that prints them."""
    settings, database = gateway.settings, gateway.database
    # Before any message is received, so that an earlier start's code is void.
    code = await owner_code(database, settings, gateway.replica.id)
    link = await database.write(web_door.new_link) if settings.web.enabled else None
    secret = None if link is None else link.secret
    return partial(_print_welcome, gateway, code, secret, await _warnings(gateway))


def _print_welcome(
    gateway: Gateway,
    code: str | None,
    secret: str | None,
    warnings: Sequence[str],
    port: int,
    checks: Sequence[Checked],
) -> None:
    """Print addresses, warnings and next steps to stderr; stdout is for the log."""
    settings, agent = gateway.settings, gateway.reloading.mind.agent
    file = settings.home / "parley.yaml"
    provider = resolve_provider(settings.model)
    page = settings.web.page(port)
    model = gateway.intake.facts(None)
    lines = ["", *warnings, *checked_lines(checks)]
    lines += [caching_text(agent.models[0], agent.caching)]
    if model.summaries:
        lines += [f"📝 Summaries: {model.summaries}"]
    if secret is None:
        lines += [f"Parley is ready: {page}healthz"]
    else:
        lines += [f"Parley is ready: {web_door.sign_in_address(page, secret)}"]
        lines += ["  this link signs you in, once, within 10 minutes; another one:"]
        lines += [f"                         {sys.argv[0]} open"]
    if (settings.home / "parley.sock").exists():
        lines += [f"  talk in the terminal:  {sys.argv[0]} chat"]
    if provider == "offline":
        lines += [f"  a real model:          {sys.argv[0]} setup"]
        if settings.web.enabled:
            lines += [f"                         or {page}admin/setup in the browser"]
        lines += ["                         or set ANTHROPIC_API_KEY or OPENAI_API_KEY,"]
        lines += [f"                         or `model:` in {file}"]
    if code is not None:
        lines += [f"  become its owner:      send {code} to your bot, in a direct chat"]
        for each in checks:
            if each.greeting:
                lines += [f"                         or open {each.greeting}{code}"]
    if not settings.platforms.on():
        lines += _of_platforms()
    typer.echo("\n".join([*lines, ""]), err=True)


async def _warnings(gateway: Gateway) -> list[str]:
    """Return the warnings of a start, and log them."""
    found = pressing(await gateway.platforms.examination.report(lambda each: each.at_start))
    for row in found:
        log.warning("found_at_start", finding=row.id, text=row.text)
    return [printable(row.text) for row in found]


def caching_text(model: ChatModel, caching: CachingSettings) -> str:
    """Describe a model's prompt caching for the start."""
    if model.cache_layout is not None:
        via = "Anthropic" if model.cache_layout == "native" else "OpenRouter"
        return f"💾 Prompt caching: ENABLED (Claude via {via}, {caching.cache_ttl} TTL)"
    if model.provider == "offline":
        return "💾 Prompt caching: off (the offline model reads for free)"
    return f"💾 Prompt caching: left to the provider ({model.name} takes no breakpoints)"


def _of_platforms() -> list[str]:
    """Describe how to set up the first registered platform, and name the page about the others."""
    first, *others = (each for each in platforms() if each.account is not None)
    key = account_types()[first.name].switch
    variable = f"PARLEY_PLATFORMS__{first.name}__{key}".upper()
    titles = ", ".join(each.title for each in others)
    return [f"  {first.title + ':':<22} set {variable}", f"  {titles + ':':<22} see docs/platforms"]
