"""`parley replay`: plays recorded conversations; gateway/replay/ does the work."""

import asyncio
from pathlib import Path
from typing import Annotated, cast

import typer

from gateway.cli.common import out, settings_of
from gateway.replay.cli import ReplayOptions
from gateway.replay.cli import replay as play
from gateway.replay.player import Gap

replay_app = typer.Typer(add_completion=False)


@replay_app.command()
def replay(  # noqa: PLR0913 - an option each
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="tau-bench, pi, SWE-agent or OpenAI JSON.")],
    report: Annotated[
        Path | None, typer.Option(help="Write a page with charts and tables here.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Context length of the model, tokens.")] = None,
    engine: Annotated[str | None, typer.Option(help="Instead of context.engine.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Instead of compression.threshold, 0 to 1.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="system_and_3 or anchored, instead of prompt_caching.strategy."),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="5m or 1h, instead of prompt_caching.cache_ttl.")
    ] = None,
    gap: Annotated[
        str,
        typer.Option(
            help="Pauses that the prompt cache sees: none, busy (up to 2 minutes between turns),"
            " chat (up to 10 hours), recorded (busy where nothing is recorded)."
        ),
    ] = "recorded",
    early: Annotated[
        bool,
        typer.Option(
            "--early", help="Turn compression.early on; where it acts, play without it too."
        ),
    ] = False,
    restart_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop the gateway after so many requests, in the middle of a turn, and start it"
            " again on its database; conversations are then played one at a time.",
        ),
    ] = None,
    concatenate: Annotated[
        bool, typer.Option("--concatenate", help="Play all conversations of a file as one.")
    ] = False,
) -> None:
    """Play recorded conversations through the real path; exit code 1 if an answer is missing."""
    settings = settings_of(context)
    options = ReplayOptions(
        report=report,
        window=window,
        engine=engine,
        threshold=threshold,
        strategy=strategy,
        ttl=ttl,
        early=early,
        # Other words are refused by `replay`, with the list of those that there are.
        gap=cast("Gap", gap),
        restart_every=restart_every,
        concatenate=concatenate,
    )
    if not asyncio.run(play(settings, files, out, options)):
        raise typer.Exit(1)
