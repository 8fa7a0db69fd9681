"""`parley replay`: recorded conversations through the real path, on a database of its own.

Intake, queue, worker, loop and outbox are the ones of `parley run`; only the model, its tools and
the platform are played.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from adapters.messages import Address, InboundMessage, Outgoing
from adapters.null import NullAdapter
from agent.engines.plugins import PLUGINS
from agent.engines.registry import available
from agent.loop import Agent
from agent.messages import storable, text_of
from agent.models.recorded import RecordedModel, RecordedTools
from agent.recordings import BadRecording, Recording, load_recordings
from agent.recovery import RetryPolicy
from agent.settings import AuxiliarySettings
from gateway import notices
from gateway.app import Gateway, assembled
from gateway.errors import SettingsError
from gateway.replayreport import Conditions, Replayed, check_target, write_report
from gateway.replaytables import show
from gateway.settings import Settings
from gateway.storage import history, timeline
from gateway.storage.opening import open_database

AT_ONCE = 8
"""Conversations that are played side by side."""

NOTICES = frozenset({notices.TROUBLE, notices.HYGIENE, *notices.CONTEXT.values()})
"""What may be said about a turn before its answer."""

DEFAULT_WINDOW_TOKENS = 200_000
"""Where neither an option nor the settings name one."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the command line gives; None leaves a setting as it is.

    Attributes:
        report: Where to write the page; None for none.
        window: Context length of the model in tokens, instead of `model.context_length`.
        engine: Instead of `context.engine`; unlike there, it must exist.
        threshold: Instead of `compression.threshold`.
    """

    report: Path | None = None
    window: int | None = None
    engine: str | None = None
    threshold: float | None = None


async def replay(
    settings: Settings, files: Sequence[Path], console: Console, options: ReplayOptions
) -> bool:
    """Play the conversations of the files, print a line for each, and write the report.

    Returns:
        Whether every user message of every conversation got its recorded answer.

    Raises:
        SettingsError: An option is not allowed, a file cannot be read or has none of the known
            formats, or the report cannot be written; all of that is known before anything runs.
    """
    settings = overridden(settings, options)
    recordings = [recording for file in files for recording in _load(file)]
    if options.report is not None:
        check_target(options.report)
    results = await _play(settings, recordings, console)
    show(results, console)
    failed = [result for result in results if result.problem]
    console.print(f"{len(results) - len(failed)} of {len(results)} conversations fully answered")
    if options.report is not None:
        write_report(options.report, results, _conditions(settings, files))
        console.print(f"report: {options.report}", markup=False, highlight=False, soft_wrap=True)
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
    ):
        value = getattr(options, option)
        if value is not None:
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


def window_of(settings: Settings) -> int:
    """Return the context length that is played with, in tokens."""
    return settings.model.context_length or DEFAULT_WINDOW_TOKENS


def _conditions(settings: Settings, files: Sequence[Path]) -> Conditions:
    compression, engine = settings.compression, settings.context.engine
    own = settings.context.rounds.threshold
    return Conditions(
        window_tokens=window_of(settings),
        threshold=own if engine == "rounds" else compression.threshold,
        target_ratio=compression.target_ratio,
        protect_last_n=compression.protect_last_n,
        engine=engine,
        files=tuple(map(str, files)),
    )


def _load(file: Path) -> list[Recording]:
    try:
        return load_recordings(file)
    except (BadRecording, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc).removeprefix(f"{file}: ")
        raise SettingsError(f"cannot replay {file}: {why}") from exc


async def _play(
    settings: Settings, recordings: Sequence[Recording], console: Console
) -> list[Replayed]:
    """Play everything in a home that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="parley-replay-") as folder:
        async with playing(_for_replay(settings, Path(folder)), recordings) as player:
            return await _play_all(player, recordings, console)


def _for_replay(settings: Settings, home: Path) -> Settings:
    """Return settings for a replay: nothing is waited for, and no network is used.

    Summaries are the extractor's, sessions do not end by the clock, and the plugins are those of
    the real home.
    """
    (home / PLUGINS.parts[0]).symlink_to(settings.home / PLUGINS.parts[0])
    return settings.model_copy(
        update={
            "home": home,
            "queue": settings.queue.model_copy(update={"debounce_ms": 0}),
            "sessions": settings.sessions.model_copy(update={"reset": "none"}),
            "auxiliary": AuxiliarySettings(),
        }
    )


async def _play_all(
    player: "Player", recordings: Sequence[Recording], console: Console
) -> list[Replayed]:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    places = asyncio.Semaphore(AT_ONCE)
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


@asynccontextmanager
async def playing(settings: Settings, recordings: Sequence[Recording]) -> AsyncIterator["Player"]:
    """Run a gateway whose model plays `recordings`, without HTTP, in `settings.home`."""
    model = RecordedModel(window_of(settings))
    steps = max((len(each.steps) for it in recordings for each in it.exchanges), default=1)
    agent = Agent(
        models=[model],
        tools=RecordedTools(model, recordings),
        settings=settings.agent.model_copy(update={"max_iterations": steps + 1}),
        output=settings.tools.output,
        retry=RetryPolicy(),
        max_output_tokens=settings.model.max_output_tokens,
    )
    answers = Answers()
    adapter = NullAdapter(answers.put)
    async with (
        open_database(settings.home / "replay.db") as database,
        assembled(settings, database, agent, lambda *_: [adapter]) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        running = [
            tasks.create_task(gateway.worker.run(), name="worker"),
            tasks.create_task(gateway.delivery.run(), name="delivery"),
        ]
        yield Player(gateway, model, answers)
        for task in running:
            task.cancel()


class Answers:
    """What the null platform was given, by conversation, in order."""

    def __init__(self) -> None:
        self._queues: dict[int, asyncio.Queue[str]] = {}

    def put(self, message: Outgoing) -> None:
        """Take a message that is being sent."""
        self._of(message.conversation).put_nowait(message.payload)

    async def next(self, conversation_id: int) -> str:
        """Wait for the conversation's next message."""
        return await self._of(conversation_id).get()

    def _of(self, conversation_id: int) -> asyncio.Queue[str]:
        return self._queues.setdefault(conversation_id, asyncio.Queue())


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the user's side and compares what comes back."""

    gateway: Gateway
    model: RecordedModel
    answers: Answers

    async def play(self, number: int, recording: Recording) -> Replayed:
        """Send each user message once the one before is answered."""
        started = time.monotonic()
        problem = None
        conversation_id = 0
        for n, exchange in enumerate(recording.exchanges, start=1):
            message = _inbound(f"{number}", n, exchange.user)
            (admission,) = await self.gateway.intake.accept([message])
            conversation_id = admission.conversation or 0
            # The worker cannot have begun: nothing was awaited since the commit.
            self.model.play(str(conversation_id), recording, n - 1)
            answer = await self._answer(conversation_id)
            if answer != text_of(exchange.steps[-1]):
                problem = problem or f"message {n} was answered with {answer[:60]!r}"
        duration_s = time.monotonic() - started
        read = self.gateway.database.read
        return Replayed(
            # A file's name may hold bytes that are no UTF-8.
            name=storable(recording.name),
            work=await read(history.work, conversation_id),
            timeline=await read(timeline.of_conversation, conversation_id),
            duration_s=duration_s,
            problem=problem,
        )

    async def _answer(self, conversation_id: int) -> str:
        """Return the next message that is no notice about the turn."""
        while (text := await self.answers.next(conversation_id)) in NOTICES:
            continue
        return text


def _inbound(chat: str, n: int, text: str) -> InboundMessage:
    return InboundMessage(
        address=Address("null", "default", chat),
        chat_kind="dm",
        sender="replay",
        sender_name="Replay",
        text=text,
        dedupe_key=f"{chat}:{n}",
        raw="{}",
        authenticated=True,
    )
