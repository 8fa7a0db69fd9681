"""`parley alerts`: the troubles that owners are told of, and a test of the ways to tell them.

What is open is read from the database, whether a gateway runs or not; a test needs one that runs.
"""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from agent.messages import count
from gateway.cli.common import LISTED, AsLines, Limit, opened, settings_of
from gateway.cli.output import say, show_lines, show_table, warn
from gateway.errors import GatewayError
from gateway.http import control
from gateway.storage.queue import alerts
from gateway.storage.queue.alerts import Alert
from gateway.storage.schema import iso_time

alerts_app = typer.Typer(help="Troubles that owners were alerted to.", invoke_without_command=True)


@alerts_app.callback()
def list_alerts(
    context: typer.Context,
    limit: Limit = LISTED,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show what is over, too.")] = False,
    json: AsLines = False,
) -> None:
    """List the troubles that are there, the newest first; docs/alerts.md says what to do."""
    if context.invoked_subcommand is not None:
        return
    with opened(settings_of(context)) as conn:
        found = alerts.found(conn, with_past=everything, limit=limit)
    if json:
        show_lines(_as_data(each) for each in found)
        return
    headings = ("id", "kind", "since", "over", "told", "what")
    show_table(
        headings, [_row(each) for each in found], "nothing is wrong, as far as Parley has seen"
    )


def _row(alert: Alert) -> list[object]:
    over = "-" if alert.over_at is None else iso_time(alert.over_at)
    told = "yes" if alert.told_at is not None else "not yet"
    return [alert.id, alert.kind, iso_time(alert.since), over, told, alert.text]


def _as_data(alert: Alert) -> dict[str, object]:
    times = {
        name: None if at is None else iso_time(at)
        for name, at in asdict(alert).items()
        if name in {"since", "told_at", "over_at"}
    }
    return asdict(alert) | times


@alerts_app.command("test")
def test_alerts(context: typer.Context) -> None:
    """Have the gateway that runs send one test each way: to the chats and to the webhook.

    Exit code 1 where no way works.
    """
    try:
        done = asyncio.run(control.test_alerts(settings_of(context).home))
    except GatewayError as exc:
        warn(str(exc), "red")
        raise typer.Exit(1) from exc
    chats, is_posted = done["chats"], done["webhook"]
    if chats:
        say(f"entered for {count(chats, 'chat')}; look whether it arrives")
    else:
        warn("no chat: no owner has written to the bot directly, and alerts.to names none")
    if is_posted is not None:
        told = "the webhook took it" if is_posted else "the webhook did not take it; see the log"
        (say if is_posted else warn)(told)
    if not chats and not is_posted:
        raise typer.Exit(1)
