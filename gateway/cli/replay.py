"""`parley replay`: plays recorded conversations through the real path, on a temporary database.

Only the model, its tools and the platform are simulated (gateway/replay/).
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from agent.plugins.engines import why_unusable
from agent.plugins.loading import PLUGINS
from agent.settings import AuxiliarySettings
from gateway.cli.common import loaded, out
from gateway.errors import SettingsError
from gateway.replay.player import facts_in, playing, show
from gateway.replay.recordings import BadRecording, Recording, load_recordings
from gateway.settings.tree import BudgetSettings, Settings

replay_app = typer.Typer(add_completion=False)


@replay_app.command()
def replay(  # noqa: PLR0913 - an option each
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="tau-bench, pi, SWE-agent or OpenAI JSON.")],
    window: Annotated[
        int | None,
        typer.Option("--window", "--context-length", help="Window of the model, in tokens."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine instead of context.engine.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Threshold (0 to 1) instead of compression.threshold.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="system_and_3 or anchored, instead of prompt_caching.strategy."),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", "--cache-ttl", help="5m or 1h, instead of prompt_caching.cache_ttl."),
    ] = None,
    gap: Annotated[
        float, typer.Option(min=0, help="Simulated seconds between turns, for the prompt cache.")
    ] = 60,
) -> None:
    """Replay recorded conversations through the real path; exit code 1 if an answer is missing."""
    settings = loaded(
        context,
        model__context_length=window,
        context__engine=engine,
        compression__threshold=threshold,
        prompt_caching__strategy=strategy,
        prompt_caching__cache_ttl=ttl,
    ).settings
    # A gateway would replace an unusable engine by the default.
    if engine is not None and (wrong := why_unusable(settings.home, engine)):
        raise SettingsError(f"--engine {engine}: {wrong}")
    if not asyncio.run(play_files(settings, files, out, gap)):
        raise typer.Exit(1)


async def play_files(
    settings: Settings, files: Sequence[Path], console: Console, gap_s: float = 60
) -> bool:
    """Replay the conversations of the files and print the results.

    `gap_s` is the simulated time between turns for the prompt cache. Return whether every user
    message got its recorded answer.
    """
    recordings = [it for file in files for it in _load(file)]
    with tempfile.TemporaryDirectory(prefix="parley-replay-") as folder:
        own = _for_replay(settings, Path(folder))
        async with playing(own, recordings, gap_s) as player:
            numbered = enumerate(track(recordings, "conversations", console=console))
            results = [await player.play(number, recording) for number, recording in numbered]
    show(results, facts_in(settings), console)
    failed = [result for result in results if result.problem]
    console.print(f"{len(results) - len(failed)} of {len(results)} conversations fully answered")
    return not failed


def _load(file: Path) -> list[Recording]:
    try:
        return load_recordings(file)
    except (BadRecording, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc).removeprefix(f"{file}: ")
        raise SettingsError(f"cannot replay {file}: {why}") from exc


def _for_replay(settings: Settings, home: Path) -> Settings:
    """Return settings for a replay without waits or network, with the real home's plugins.

    No real model writes summaries, sessions are not reset by time, and budgets are off.
    """
    (home / PLUGINS).symlink_to(settings.home / PLUGINS)
    return settings.model_copy(
        update={
            "home": home,
            "queue": settings.queue.model_copy(update={"debounce_ms": 0}),
            "sessions": settings.sessions.model_copy(update={"reset": "none"}),
            "auxiliary": AuxiliarySettings(),
            "budget": BudgetSettings(),
        }
    )
