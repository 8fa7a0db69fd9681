"""`parley ask "…"`: one question, its answer on stdout, and an exit code.

The running gateway answers; without one, a temporary gateway on the same database, without
platforms or page. The question is stored first, like every message, so after Ctrl-C or a kill the
next gateway finishes the answer.
"""

import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer

from agent.safety.redaction import printable
from agent.spans import SHOWN_DIGITS
from gateway import app
from gateway.cli.chat import CHAT_NAME, ChatAnswer, connected
from gateway.cli.common import AsJson, loaded, opened, settings_of, show_json, trace_in, warn
from gateway.errors import GatewayError
from gateway.http import control
from gateway.http.control import SOCKET
from gateway.session_keys import FOR_ONE_QUESTION
from gateway.settings.tree import (
    AlertSettings,
    BackupSettings,
    PlatformSettings,
    Settings,
    TelemetrySettings,
)
from gateway.storage.reports import history
from gateway.supervision.home import own_home, with_web_token

FAILED, NEEDS_A_PERSON, TIMED_OUT, INTERRUPTED = 1, 4, 124, 130
"""Exit codes besides 0 (answered)."""
MOST_BYTES = 1_000_000
"""Limit of piped input; a message has its own limit."""
PATIENCE_S = 20.0
GOES_ON = "the question is stored, and its answer goes on: `parley chat {name}` shows it"

ask_app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """The answer to the question at `seq` of its inbox, or a question to the person."""

    text: str
    files: tuple[str, ...]
    seq: int
    needs_person: bool


@ask_app.command()
def ask(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="The question; by default the piped input.")
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(help="Continue this chat of `parley chat`; by default start a new one."),
    ] = None,
    within: Annotated[
        float, typer.Option("--within", min=1, help="Seconds to wait for the answer.")
    ] = 600,
    json: AsJson = False,
) -> None:
    """Ask one question and print the answer; piped input is its context."""
    name = conversation or f"{FOR_ONE_QUESTION}{secrets.token_hex(6)}"
    if not CHAT_NAME.fullmatch(name):
        what = f"{name!r} is not a chat name: 1 to 64 letters, digits, hyphens, underscores"
        raise typer.BadParameter(what, param_hint="--conversation")
    text = question_with(question, _piped())
    settings = settings_of(context)
    try:
        told = asyncio.run(_answer(context, settings, text, name, within))
    except TimeoutError:
        _leave(f"no answer within {within:g} s", name, TIMED_OUT)
    except KeyboardInterrupt:
        _leave("interrupted", name, INTERRUPTED)
    with opened(settings) as conn:
        turn = history.turn_in_chat(conn, name, told.seq)
    here, trace = turn["conversation"], ""
    if here is not None:
        trace = trace_in(settings, here, turn["first_seq"])
    facts: dict[str, Any] = {"answer": told.text, "chat": name, "trace": trace, **turn}
    facts["files"] = list(told.files)
    if json:
        show_json(facts)
    else:
        typer.echo(printable(told.text))
        for each in told.files:
            typer.echo(f"[file: {printable(each)}]")
    if told.needs_person:
        _leave("a person has to answer that first", name, NEEDS_A_PERSON)
    if facts["state"] not in {"done", None} or facts["error"] is not None:
        trace = facts["trace"][:SHOWN_DIGITS]
        warn(f"{facts['error'] or facts['state']} (parley logs --trace {trace})", "red")
        raise typer.Exit(FAILED)


def _leave(why: str, name: str, code: int) -> NoReturn:
    warn(f"{why}; {GOES_ON.format(name=name)}")
    raise typer.Exit(code)


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    found = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise typer.BadParameter(f"more than {MOST_BYTES:,} bytes were piped in")
    return found.decode(errors="replace").strip()


def question_with(question: str | None, piped: str) -> str:
    """Append the piped input to the question."""
    parts = [each for each in ((question or "").strip(), piped) if each]
    if not parts:
        raise typer.BadParameter("ask something: `parley ask QUESTION`, or pipe it in")
    return "\n\n".join(parts)


async def _answer(
    context: typer.Context, settings: Settings, text: str, chat: str, within_s: float
) -> OneAnswer:
    """Ask the running gateway, else a temporary one, which needs valid settings."""
    if await control.ready_in(settings.home) is not None:
        return await exchange(settings.home / SOCKET, text, chat, within_s)
    own, socket = loaded(context).settings, settings.home / SOCKET
    return await _with_own_gateway(own, lambda: exchange(socket, text, chat, within_s))


async def exchange(socket: Path, text: str, chat: str, within_s: float) -> OneAnswer:
    """Ask over a socket and wait for the answer.

    Raises:
        GatewayError: The gateway is unreachable or refuses the question.
        TimeoutError: No answer came in time.
    """
    async with connected(socket, chat, PATIENCE_S) as (client, feed), asyncio.timeout(within_s):
        await feed.until(lambda: feed.synced, lambda: None)
        seq = await client.post(text) or 0

        def mine() -> list[ChatAnswer]:
            return [each for each in feed.answers if each.inbox_seq >= seq or each.asks]

        told = list[ChatAnswer]()

        def tell() -> None:
            # Notices about the delay; texts for owners have another position.
            beside = [it for it in mine() if it.notice and it.inbox_seq == seq and it not in told]
            told.extend(beside)
            for each in beside:
                warn(printable(each.markdown))

        await feed.until(lambda: any(it.asks or not it.notice for it in mine()), tell)
    found = [each for each in mine() if each.asks or not each.notice]
    said = "\n\n".join(each.markdown for each in found if each.markdown)
    files = tuple(name for each in found for name in each.files)
    return OneAnswer(said, files, seq, any(each.asks for each in found))


async def _with_own_gateway(
    settings: Settings, ask_it: Callable[[], Awaitable[OneAnswer]]
) -> OneAnswer:
    """Run a temporary gateway until the question is answered; Ctrl-C stops it."""
    # Messages for accounts not served here wait for the next gateway.
    quiet = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=quiet)
    with own_home(settings) as journal:
        whole, ready = with_web_token(settings), asyncio.Event()

        async def on_start(_: app.Gateway) -> app.OnReady:
            return lambda *_: ready.set()

        started = app.run(alone(whole), on_start, journal, whole=whole)
        running = asyncio.ensure_future(started)
        up = asyncio.ensure_future(ready.wait())
        await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            up.cancel()
            await running
            raise KeyboardInterrupt
        asking = asyncio.ensure_future(ask_it())
        await asyncio.wait({running, asking}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            asking.cancel()
            with suppress(asyncio.CancelledError, GatewayError):
                await asking
            await running
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)
        await running
        return asking.result()


def alone(settings: Settings) -> Settings:
    """Return settings for one question, without platforms, page, timers or alerts."""
    web = settings.web.model_copy(
        update={"enabled": False, "port": 0, "host": "127.0.0.1", "webhook_port": None}
    )
    return settings.model_copy(
        update={
            "platforms": PlatformSettings(),
            "web": web,
            "backup": BackupSettings(),
            "alerts": AlertSettings(enabled=False),
            "telemetry": TelemetrySettings(),
        }
    )
