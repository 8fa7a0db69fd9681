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

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from adapters.messages import Address, InboundMessage, Outgoing
from adapters.null import NullAdapter
from agent.loop import Agent
from agent.messages import text_of
from agent.models.recorded import RecordedModel, RecordedTools
from agent.recordings import BadRecording, Recording, load_recordings
from agent.recovery import RetryPolicy
from gateway.app import Gateway, assembled
from gateway.errors import SettingsError
from gateway.settings import Settings
from gateway.storage import history
from gateway.storage.history import Work
from gateway.storage.opening import open_database

AT_ONCE = 8
"""Conversations that are played side by side."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How one conversation went; `problem` is None where every message got its answer."""

    name: str
    work: Work
    duration_s: float
    problem: str | None


async def replay(settings: Settings, files: Sequence[Path], console: Console) -> bool:
    """Play the conversations of the files and print a line for each.

    Returns:
        Whether every user message of every conversation got its recorded answer.

    Raises:
        SettingsError: A file cannot be read or has none of the known formats.
    """
    recordings = [recording for file in files for recording in _load(file)]
    with tempfile.TemporaryDirectory(prefix="parley-replay-") as folder:
        own = settings.model_copy(
            update={
                "home": Path(folder),
                "queue": settings.queue.model_copy(update={"debounce_ms": 0}),
            }
        )
        async with playing(own, recordings) as player:
            results = await _play_all(player, recordings, console)
    console.print(_table(results))
    failed = [result for result in results if result.problem]
    console.print(f"{len(results) - len(failed)} of {len(results)} conversations fully answered")
    return not failed


def _load(file: Path) -> list[Recording]:
    try:
        return load_recordings(file)
    except (BadRecording, OSError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc).removeprefix(f"{file}: ")
        raise SettingsError(f"cannot replay {file}: {why}") from exc


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
    model = RecordedModel()
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
            self.model.register(str(conversation_id), recording)
            answer = await self.answers.next(conversation_id)
            if answer != text_of(exchange.steps[-1]):
                problem = problem or f"message {n} was answered with {answer[:60]!r}"
        work = await self.gateway.database.read(history.work, conversation_id)
        return Replayed(recording.name, work, time.monotonic() - started, problem)


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


def _table(results: Sequence[Replayed]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("conversation", no_wrap=True)
    for name in ("messages", "turns", "tool calls", "tokens in", "tokens out", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("answered")
    for result in results:
        work = result.work
        counts = (work.messages, work.turns, work.tool_calls, work.tokens_in, work.tokens_out)
        table.add_row(
            Text(result.name),
            *(f"{count:,}" for count in counts),
            f"{result.duration_s:.1f}",
            Text(result.problem or "all"),
        )
    return table
