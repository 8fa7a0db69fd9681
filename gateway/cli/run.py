"""`parley run`: starts the gateway and prints its addresses."""

import asyncio
import sys
from dataclasses import replace
from typing import Annotated

import typer

from adapters.registry import account_types, platforms
from agent.models.factory import resolve_provider
from gateway import app
from gateway.access.web_door import sign_in_address
from gateway.app import Welcome
from gateway.cli.common import loaded, warn
from gateway.logging.setup import configure_logging
from gateway.reload.reloading import Source, stamp_of
from gateway.settings.loading import Loaded, redactor_of
from gateway.settings.references import Known
from gateway.settings.tree import Settings
from gateway.supervision import credentials
from gateway.supervision.home import own_home, with_web_token

run_app = typer.Typer(add_completion=False)


@run_app.command()
def run(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Instead of web.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Instead of web.port.")] = None,
) -> None:
    """Start the gateway; Ctrl-C stops it once the running answers are finished."""
    found = loaded(context, web__host=host, web__port=port)
    settings = found.settings
    # First: the log of another running gateway must not be written into.
    with own_home(settings) as journal:
        settings = with_web_token(settings)
        configure_logging(settings.logging, settings.home, redactor_of(settings))
        for warning in found.warnings:
            warn(warning)
        source = _source(context, replace(found, settings=settings), host, port)
        started = app.run(settings, lambda welcome: _welcome(settings, welcome), journal, source)
        asyncio.run(started)


def _source(context: typer.Context, found: Loaded, host: str | None, port: int | None) -> Source:
    """Return a source that reads the settings again, with the same options."""

    def read(known: Known) -> Loaded:
        again = loaded(context, known, web__host=host, web__port=port)
        return replace(again, settings=with_web_token(again.settings))

    source = Source(found, read)
    source.stamp = stamp_of(source.file)
    return source


def _welcome(settings: Settings, welcome: Welcome) -> None:
    """Print addresses and next steps to stderr: stdout belongs to the log."""
    file = settings.home / "parley.yaml"
    provider = resolve_provider(settings.model)
    page = settings.web.page(welcome.port)
    checks = credentials.checked_lines(welcome.checks)
    lines = ["", *welcome.warnings, *checks, welcome.caching]
    if welcome.summaries:
        lines += [f"📝 Summaries: {welcome.summaries}"]
    if welcome.sign_in is None:
        lines += [f"Parley is ready: {page}healthz"]
    else:
        lines += [f"Parley is ready: {sign_in_address(page, welcome.sign_in)}"]
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
    if welcome.owner_code is not None:
        lines += [
            f"  become its owner:      send {welcome.owner_code} to your bot, in a direct chat"
        ]
        for each in welcome.checks:
            if each.greeting:
                lines += [f"                         or open {each.greeting}{welcome.owner_code}"]
    if not settings.platforms.on():
        lines += _of_platforms()
    typer.echo("\n".join([*lines, ""]), err=True)


def _of_platforms() -> list[str]:
    """Return how to set up the first platform of the register, and the page about the others."""
    first, *others = (each for each in platforms() if each.account is not None)
    key = account_types()[first.name].switch
    variable = f"PARLEY_PLATFORMS__{first.name}__{key}".upper()
    titles = ", ".join(each.title for each in others)
    return [f"  {first.title + ':':<22} set {variable}", f"  {titles + ':':<22} see docs/platforms"]
