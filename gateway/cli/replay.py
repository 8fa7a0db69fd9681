"""`parley replay`: plays recorded conversations through the real path, on a database of its own.

Intake, queue, worker, loop and outbox are the ones of `parley run`; only the model, its tools and
the platform are played (gateway/replay/).
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from agent.context_engine import Limits
from agent.plugins.engines import available
from agent.plugins.finding import PLUGINS
from agent.settings import AuxiliarySettings
from gateway.cli.common import loaded
from gateway.cli.output import out
from gateway.errors import SettingsError
from gateway.replay.costs import Tariff
from gateway.replay.player import (
    Gap,
    Player,
    Stage,
    Writer,
    facts_in,
    playing,
    window_of,
    writer_in,
)
from gateway.replay.recordings import BadRecording, Recording, load_recordings
from gateway.replay.report import Replayed, show
from gateway.settings.tree import BudgetSettings, Settings

Summaries = Literal["extract", "model"]
AT_ONCE = 8
"""Conversations that are played side by side; one where the gateway restarts, so that a restart
comes at the same place in every replay."""

replay_app = typer.Typer(add_completion=False)


@replay_app.command()
def replay(  # noqa: PLR0913 - an option each
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="tau-bench, pi, SWE-agent or OpenAI JSON.")],
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
        Gap,
        typer.Option(
            help="Pauses that the prompt cache sees: none, busy (up to 2 minutes between turns),"
            " chat (up to 10 hours), recorded (busy where nothing is recorded)."
        ),
    ] = "recorded",
    early: Annotated[
        bool,
        typer.Option("--early", help="Turn compression.early on."),
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
    summaries: Annotated[
        Summaries,
        typer.Option(
            help="Who writes them: extract (no model; what one would cost is reckoned) or model"
            " (that of auxiliary.compression, else the one that is played; its price is paid)."
        ),
    ] = "extract",
) -> None:
    """Play recorded conversations through the real path; exit code 1 if an answer is missing."""
    settings = loaded(context).settings
    options = ReplayOptions(
        window=window,
        engine=engine,
        threshold=threshold,
        strategy=strategy,
        ttl=ttl,
        early=early,
        gap=gap,
        restart_every=restart_every,
        concatenate=concatenate,
        summaries=summaries,
    )
    if not asyncio.run(play_files(settings, files, out, options)):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line gives; None leaves a setting as it is.

    Attributes:
        window: Context length of the model in tokens, instead of `model.context_length`.
        engine: Instead of `context.engine`; unlike there, it must exist.
        threshold: Instead of `compression.threshold`.
        strategy: Instead of `prompt_caching.strategy`; `ttl` instead of `prompt_caching.cache_ttl`.
        early: Turns `compression.early` on.
        gap: Which pauses are played; see gateway/replay/player.py.
        restart_every: The gateway is started again after so many requests; None for never.
        concatenate: All conversations of a file are played as one.
        summaries: Who writes them: the extractor, or a model that is played and paid.
    """

    window: int | None = None
    engine: str | None = None
    threshold: float | None = None
    strategy: str | None = None
    ttl: str | None = None
    early: bool = False
    gap: Gap = "recorded"
    restart_every: int | None = None
    concatenate: bool = False
    summaries: Summaries = "extract"


async def play_files(
    settings: Settings, files: Sequence[Path], console: Console, options: ReplayOptions
) -> bool:
    """Play the conversations of the files, and print what became of them.

    Returns:
        Whether every user message of every conversation got its recorded answer.

    Raises:
        SettingsError: An option is not allowed, a file cannot be read or has none of the known
            formats; all of that is known before anything runs.
    """
    settings = overridden(settings, options)
    recordings = [it for file in files for it in _load(file, concatenate=options.concatenate)]
    results = await _play(settings, recordings, console, options)
    show(results, _tariff(settings), console)
    failed = [result for result in results if result.problem]
    console.print(f"{len(results) - len(failed)} of {len(results)} conversations fully answered")
    return not failed


def overridden(settings: Settings, options: ReplayOptions) -> Settings:
    """Return the settings with the options in them.

    Raises:
        SettingsError: A value is not allowed; one line for each.
    """
    problems = []
    for option, block, key in (
        ("window", "model", "context_length"),
        ("threshold", "compression", "threshold"),
        ("strategy", "prompt_caching", "strategy"),
        ("ttl", "prompt_caching", "cache_ttl"),
        ("early", "compression", "early"),
    ):
        value = getattr(options, option)
        if value is not None and value is not False:
            try:
                settings = _with_value(settings, block, key, value)
            except ValidationError as exc:
                allowed = exc.errors()[0]["msg"].replace("Input should", "must")
                problems.append(f"--{option} {value}: {allowed}")
    if options.engine is not None:
        problems += _engine_problems(settings.home, options.engine)
        context = settings.context.model_copy(update={"engine": options.engine})
        settings = settings.model_copy(update={"context": context})
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def _with_value(settings: Settings, block: str, key: str, value: object) -> Settings:
    section = getattr(settings, block)
    changed = type(section).model_validate({**dict(section), key: value})
    return settings.model_copy(update={block: changed})


def _engine_problems(home: Path, name: str) -> list[str]:
    found = available(home)
    usable = sorted({info.name for info in found if info.problem is None})
    if name in usable:
        return []
    why = next((info.problem for info in found if info.name == name), "there is no such engine")
    return [f"--engine {name}: {why}; there are: {', '.join(usable)}"]


def _tariff(settings: Settings) -> Tariff:
    compression = settings.compression
    limits = Limits(
        context_length=window_of(settings),
        threshold=compression.threshold,
        target_ratio=compression.target_ratio,
        protect_last_n=compression.protect_last_n,
    )
    ttl = settings.prompt_caching.cache_ttl
    return Tariff(facts_in(settings), limits, ttl, writer_in(settings))


def _load(file: Path, *, concatenate: bool) -> list[Recording]:
    try:
        return load_recordings(file, concatenated=concatenate)
    except (BadRecording, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc).removeprefix(f"{file}: ")
        raise SettingsError(f"cannot replay {file}: {why}") from exc


async def _play(
    settings: Settings,
    recordings: Sequence[Recording],
    console: Console,
    options: ReplayOptions,
) -> list[Replayed]:
    """Play everything in a home that is gone afterwards."""
    at_once = AT_ONCE if options.restart_every is None else 1
    with tempfile.TemporaryDirectory(prefix="parley-replay-") as folder:
        own = _for_replay(settings, Path(folder))
        writer: Writer = None
        if options.summaries == "model":
            writer = writer_in(settings) or "main"
        stage = Stage(own, recordings, options.gap, options.restart_every, writer)
        async with playing(stage) as player:
            return await _play_all(player, recordings, console, at_once)


def _for_replay(settings: Settings, home: Path) -> Settings:
    """Return settings for a replay: nothing is waited for, and no network is used.

    No real model writes summaries, sessions do not end by the clock, no budget ends, and the
    plugins are those of the real home.
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


async def _play_all(
    player: Player, recordings: Sequence[Recording], console: Console, at_once: int
) -> list[Replayed]:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    places = asyncio.Semaphore(at_once)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("conversations", total=len(recordings))

        async def one(number: int, recording: Recording) -> Replayed:
            async with places:
                result = await player.play(number, recording)
            progress.advance(bar)
            return result

        async with asyncio.TaskGroup() as tasks:
            jobs = [
                tasks.create_task(one(number, recording), name=f"replay {recording.name}")
                for number, recording in enumerate(recordings)
            ]
    return [job.result() for job in jobs]
