"""Operator actions: through the running gateway's Unix socket, else directly.

Only the socket's owner can connect to it. An action is a transaction function that records its
caller in the audit log; a running gateway is the only writer. gateway/reload/operator.py serves it.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp
from aiohttp import web
from pydantic import Field, ValidationError
from sqlalchemy import Connection

from adapters.web.platform import UserRole
from agent.settings import Section
from gateway.access import pairing, web_door
from gateway.access.pairing import COMMAND_LINE
from gateway.access.web_door import NewLink
from gateway.agent_ports.search import Indexer
from gateway.backup.pruning import Pruner
from gateway.errors import GatewayError, GatewayNotRunning, NotFound, StorageError
from gateway.findings.watch import AlertWatch
from gateway.settings.tree import RetentionSettings
from gateway.storage import maintenance
from gateway.storage.database import Database, Location
from gateway.storage.migrations import open_database, require_database
from gateway.storage.people import notebook
from gateway.storage.queue import dead_letters, replicas
from gateway.storage.search import index

SOCKET = "parley.sock"
TEST_ALERTS = "test-alerts"
CONNECTED_WITHIN_S = 5.0
READY_WITHIN_S = 15.0
"""Longest wait for a gateway's state, in seconds; its database checks take a few."""
SettingsQuestion = Literal["secrets", "reload", "differences", "running", "restart"]
S = TypeVar("S", bound=Section)


class _Invitation(Section):
    name: str
    role: UserRole
    same_as: str | None = None


class _Pruning(Section):
    retention: RetentionSettings
    raw_days: int = Field(ge=1, le=36_500)


def _read(kind: type[S], target: str) -> S:
    try:
        return kind.model_validate_json(target)
    except ValidationError as exc:
        places = {".".join(map(str, each["loc"])) or "all of it" for each in exc.errors()}
        raise GatewayError(f"what was sent cannot be read: {', '.join(sorted(places))}") from exc


def _forget(conn: Connection, target: str, by: str) -> int:
    # A number of 18 digits fits into the database's integers.
    if not re.fullmatch("[0-9]{1,18}", target):
        raise NotFound(f"{target!r} is not a conversation id; `parley sessions list` lists them")
    return maintenance.withdraw(conn, int(target), by)


def _reindex(conn: Connection, _: str, __: str) -> None:
    index.clear(conn)


def _prune(_: Connection, __: str, ___: str) -> None:
    """Placeholder: `_pruned` erases in many transactions."""


def _invite(conn: Connection, target: str, by: str) -> NewLink:
    told = _read(_Invitation, target)
    return web_door.invite(conn, told.name, told.role, told.same_as, by)


Action = Callable[[Connection, str, str], Any]
"""A transaction function with target and caller (for the audit log)."""
ACTIONS: dict[str, Action] = {
    "retry-dead-letter": dead_letters.retry,
    "drop-dead-letter": dead_letters.drop,
    "forget": _forget,
    "approve-pairing": pairing.approve,
    "deny-pairing": pairing.deny,
    "revoke-member": pairing.revoke,
    "make-owner": lambda conn, target, by: pairing.change_role(conn, target, "owner", by),
    "make-member": lambda conn, target, by: pairing.change_role(conn, target, "member", by),
    "remove-memory": notebook.remove_notes,
    "reindex-search": _reindex,
    "prune": _prune,
    "web-link": lambda conn, name, by: web_door.new_link(conn, name, by=by),
    "web-invite": _invite,
    "web-remove": web_door.remove,
    "web-revoke": web_door.revoke,
}


def alert_routes(watch: AlertWatch | None) -> list[web.RouteDef]:
    """Return the control route of `parley alerts test`, only for the Unix socket."""

    async def test(_: web.Request) -> web.Response:
        if watch is None:
            return web.json_response({"error": "alerts.enabled is false"}, status=409)
        try:
            chats, is_posted = await watch.test()
        except StorageError as exc:
            return web.json_response({"error": str(exc)}, status=409)
        return web.json_response({"result": {"chats": chats, "webhook": is_posted}})

    return [web.post(f"/control/{TEST_ALERTS}", test)]


async def act(home: Path, location: Location, action: str, target: str) -> Any:
    """Execute an action in the gateway running in `home`, or directly without one.

    Raises:
        NotFound: The target does not exist.
    """
    # Without a gateway, open the database here.
    with suppress(GatewayNotRunning):
        return await _result_of(home, action, target)
    require_database(location)
    async with open_database(location, home) as opened:
        return as_json(await carry_out(opened, ACTIONS[action], target))


async def port_of(home: Path) -> int:
    """Return the port of the page served by the gateway in `home`.

    Raises:
        GatewayNotRunning: No gateway runs there.
    """
    return int((await _asked(home, "port", within_s=READY_WITHIN_S))["port"])


async def ready_in(home: Path) -> dict[str, Any] | None:
    """Return the state of the gateway in `home`, or None without one.

    Raises:
        GatewayError: It does not answer.
    """
    with suppress(GatewayNotRunning):
        return await _asked(home, "ready", within_s=READY_WITHIN_S)
    return None


async def ask_settings(home: Path, question: SettingsQuestion, target: str = "") -> Any:
    """Ask the gateway in `home` to reload or return its settings.

    Args:
        question: secrets: see `Reloaded`. reload: see `SettingsReloaded`. differences: a list of
            `SettingChange`. running: see `Reloading.running`. restart: the state of the account
            `target` after it.

    Raises:
        GatewayNotRunning: No gateway runs there.
        NotFound: The account does not exist or the settings are unusable.
    """
    return await _result_of(home, f"settings/{question}", target)


async def test_alerts(home: Path) -> dict[str, Any]:
    """Ask the gateway in `home` to send a test alert each way.

    Raises:
        GatewayNotRunning: No gateway runs there.
        NotFound: Its alerts are off.
    """
    found: dict[str, Any] = await _result_of(home, TEST_ALERTS, "")
    return found


async def _result_of(home: Path, path: str, target: str) -> Any:
    body = await _asked(home, path, target)
    if "error" in body:
        raise NotFound(body["error"])
    return body["result"]


async def _asked(
    home: Path, path: str, target: str | None = None, within_s: float | None = None
) -> dict[str, Any]:
    """Get a control page of the gateway in `home`, or post a target to it.

    Args:
        within_s: Time limit; None for none, since erasing a large conversation may take long.
    """
    connector = aiohttp.UnixConnector(str(home / SOCKET))
    timeout = aiohttp.ClientTimeout(total=within_s, connect=CONNECTED_WITHIN_S)
    url = f"http://parley/control/{path}"
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            asked = http.get(url) if target is None else http.post(url, json={"target": target})
            async with asked as response:
                body: dict[str, Any] = await response.json()
                return body
    except aiohttp.ClientConnectorError as exc:
        text = f"No gateway runs in {home}. Start it with `parley run`."
        raise GatewayNotRunning(text) from exc
    except TimeoutError as exc:
        text = f"the gateway in {home} has not answered within {within_s or CONNECTED_WITHIN_S:g} s"
        raise GatewayError(f"{text}: it hangs, or its machine is overloaded") from exc


async def carry_out(database: Database, action: Action, target: str, by: str = COMMAND_LINE) -> Any:
    """Run an action; on return, erased text is gone from the files.

    An emptied search index is rebuilt in short writes that delay no turn.
    """
    if action is _forget:
        return await _forget_in_steps(database, target, by)
    if action is _prune:
        return await _pruned(database, target)
    result = await database.write(action, target, by)
    if action is notebook.remove_notes:
        await database.scrub()
    return await Indexer(database).feed_all() if action is _reindex else result


async def _forget_in_steps(database: Database, target: str, by: str) -> int:
    """Erase a conversation in steps, allowing other writes in between."""
    messages = await database.write(_forget, target, by)
    while await database.write(maintenance.erase_some, int(target)):
        pass
    is_first = True
    while await database.write(index.merge_some, is_first=is_first):
        is_first = False
    await database.scrub()
    await tell_replicas(database, "forgotten")
    return messages


async def tell_replicas(database: Database, kind: Literal["forgotten", "secrets"]) -> None:
    """Notify all replicas within a second or two; on SQLite do nothing."""
    if database.server is not None:
        await database.write(replicas.announce, kind)


async def _pruned(database: Database, target: str) -> dict[str, dict[str, int]]:
    """Erase old data by the JSON settings in `target`."""
    asked = _read(_Pruning, target)
    # Index everything first: unindexed words would be left behind.
    await Indexer(database).feed_all()
    gone = await Pruner(database, asked.retention, asked.raw_days).prune()
    return {name: each._asdict() for name, each in gone.items()}


def as_json(result: Any) -> Any:
    """Convert an action's result for JSON."""
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
