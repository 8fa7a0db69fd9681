"""Writes of an operator: through the running gateway's Unix socket, else directly.

Only the socket's owner can connect to it. An action is one transaction function, which notes in the
audit log who wanted it; the gateway is the only writer while it runs. The console does the same
things by the same functions (`Operator`).
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import aiohttp
import orjson
from aiohttp import web
from pydantic import Field, ValidationError
from sqlalchemy import Connection

from adapters.messages import InboundMessage
from agent.settings import Section
from gateway.access import pairing, tool_texts, web_door
from gateway.access.pairing import COMMAND_LINE, Decided
from gateway.access.web_door import NewLink, SignedOut
from gateway.agent_ports.search import Indexer
from gateway.backup.pruning import Pruner
from gateway.commands.approvals import ReplyOutcome
from gateway.errors import GatewayError, GatewayNotRunning, NotFound, StorageError
from gateway.findings.watch import AlertWatch
from gateway.settings.changes import SettingChange, SettingsQuestion
from gateway.settings.tree import RetentionSettings, Settings
from gateway.signals import Wakeups
from gateway.storage import audit_log, maintenance
from gateway.storage.audit_log import AuditEntry
from gateway.storage.database import Database, Location
from gateway.storage.migrations import open_database, require_database
from gateway.storage.people import notebook
from gateway.storage.people.mcp import Verdict
from gateway.storage.queue import dead_letters
from gateway.storage.search import index
from gateway.supervision.rotation import Reloaded, SettingsReloaded

SOCKET = "parley.sock"
TEST_ALERTS = "test-alerts"
READY_WITHIN_S = 15.0
"""So long a gateway has to say how it is; its own looks at the database take a few seconds."""
S = TypeVar("S", bound=Section)


class _Invitation(Section):
    name: str
    role: Literal["owner", "member", "guest"]
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
        raise NotFound(f"{target!r} is no conversation id; `parley sessions list` lists them")
    return maintenance.withdraw(conn, int(target), by)


def _reindex(conn: Connection, _: str, __: str) -> None:
    index.clear(conn)


def _prune(_: Connection, __: str, ___: str) -> None:
    """Do nothing: what is erased is erased in many transactions (`_pruned`)."""


def _invite(conn: Connection, target: str, by: str) -> NewLink:
    told = _read(_Invitation, target)
    return web_door.invite(conn, told.name, told.role, told.same_as, by)


Action = Callable[[Connection, str, str], Any]
"""A transaction function of its target, and of who wants it (for the audit log)."""
ACTIONS: dict[str, Action] = {
    "retry-dead-letter": dead_letters.retry,
    "drop-dead-letter": dead_letters.drop,
    "forget": _forget,
    "approve-pairing": pairing.approve,
    "deny-pairing": pairing.deny,
    "revoke-member": pairing.revoke,
    "make-owner": lambda conn, target, by: pairing.set_role(conn, target, "owner", by),
    "make-member": lambda conn, target, by: pairing.set_role(conn, target, "member", by),
    "remove-memory": notebook.remove_notes,
    "reindex-search": _reindex,
    "prune": _prune,
    "web-link": lambda conn, name, by: web_door.new_link(conn, name, by=by),
    "web-invite": _invite,
    "web-remove": web_door.remove,
    "web-revoke": web_door.revoke,
}


class Reloads(Protocol):
    """What has the gateway go by its settings as they are now (gateway/reload/reloading.py)."""

    @property
    def settings(self) -> Settings:
        """What the gateway goes by."""
        ...

    @property
    def file(self) -> Path | None:
        """Where it reads them, be it there or not; None where they stay as they are."""
        ...

    async def reload(self) -> SettingsReloaded:
        """Read settings and secrets again, and go by them; what is wrong changes nothing."""
        ...

    def notify(self) -> None:
        """Reload soon: settings, secrets or owners' decisions have changed."""
        ...

    async def renew_secrets(self) -> Reloaded:
        """Read every secret that the settings refer to again, and have it be used."""
        ...

    async def restart_account(self, name: str) -> list[str]:
        """Stop and start an account's adapter; returns how it stands then.

        Raises:
            NotFound: There is no such account, or it cannot be restarted.
        """
        ...

    async def differences(self) -> list[SettingChange]:
        """Return how what stands in the file differs from what the gateway goes by.

        Raises:
            SettingsError: What stands there cannot be gone by.
        """
        ...

    def running(self) -> dict[str, dict[str, str]]:
        """Return what the gateway goes by: key → JSON, origin, mark; of secrets fingerprints."""
        ...


@dataclass(frozen=True, slots=True)
class Operator:
    """Carries out what an operator wants of a running gateway, whichever way they say it.

    Attributes:
        wakeups: Told what a retried dead letter brings.
        tell_approved: `GatewayIntake.tell_approved`.
        settings: Has the gateway go by its settings as they are now.
        answer: `GatewayIntake.answer_as_owner`.
    """

    database: Database
    wakeups: Wakeups
    tell_approved: Callable[[], Awaitable[None]]
    settings: Reloads
    answer: Callable[[InboundMessage, int, str], Awaitable[ReplyOutcome]]

    async def act(self, name: str, target: str, by: str = COMMAND_LINE) -> Any:
        """Carry out one of `ACTIONS`, and wake whoever has to go on with it.

        Args:
            by: Who wants it, "platform:sender id".

        Raises:
            GatewayError: There is no such target, or it cannot be done; nothing was changed.
        """
        action = ACTIONS[name]
        result = await carry_out(self.database, action, target, by)
        if action is _forget:
            self.wakeups.forgotten()
        if isinstance(result, dead_letters.DeadLetter):
            self.wakeups.work(result.conversation)
            self.wakeups.outbox(result.conversation)
        if isinstance(result, Decided) and result.happened is not None:
            pairing.report(result.happened)
            self.settings.notify()
            await self.tell_approved()
        if isinstance(result, NewLink | SignedOut):
            web_door.report(result, invited=action is _invite)
        return result

    async def decide_tool(self, name: str, verdict: Verdict, by: str) -> Decided:
        """Carry out what an owner says of a tool's text; no socket leads here.

        Raises:
            NotFound: There is no such text.
        """
        decision = await self.database.write(tool_texts.decide, name, verdict, by)
        self.settings.notify()
        return decision

    async def reload_secrets(self) -> Reloaded:
        """Read the secrets again that the settings refer to, here and in all replicas."""
        done = await self.settings.renew_secrets()
        await _tell_replicas(self.database, "secrets")
        return done

    async def reload(self, by: str = COMMAND_LINE, subject: str = "") -> SettingsReloaded:
        """Read settings and secrets again, and go by them, here and in all replicas.

        Args:
            by: Who wants it, "platform:sender id".
            subject: The keys that they have just written.
        """
        done = await self.settings.reload()
        if not done.problems:
            await _tell_replicas(self.database, "secrets")
            entry = AuditEntry("settings_reloaded", by=by, subject=subject)
            await self.database.write(audit_log.append, entry)
        return done


def routes(operator: Operator) -> list[web.RouteDef]:
    """Return the control routes; for the Unix socket only."""

    async def act(request: web.Request) -> web.Response:
        name = request.match_info["action"]
        if name not in ACTIONS:
            return web.json_response({"error": "unknown action"}, status=404)
        target = _target_in(await request.read())
        if target is None:
            return web.json_response({"error": 'send {"target": "…"}, a text'}, status=400)
        try:
            result = await operator.act(name, target)
        except GatewayError as exc:
            return web.json_response({"error": str(exc)}, status=409)
        return web.json_response({"result": _plain(result)})

    return [
        web.post("/control/settings/{what}", partial(_of_settings, operator)),
        web.post("/control/{action}", act),
    ]


def alert_routes(watch: AlertWatch | None) -> list[web.RouteDef]:
    """Return the control route of `parley alerts test`; for the Unix socket only."""

    async def test(_: web.Request) -> web.Response:
        if watch is None:
            return web.json_response({"error": "alerts.enabled is false"}, status=409)
        try:
            chats, is_posted = await watch.test()
        except StorageError as exc:
            return web.json_response({"error": str(exc)}, status=409)
        return web.json_response({"result": {"chats": chats, "webhook": is_posted}})

    return [web.post(f"/control/{TEST_ALERTS}", test)]


async def _of_settings(operator: Operator, request: web.Request) -> web.Response:
    """Do what `ask_settings` asks for."""
    settings, target = operator.settings, _target_in(await request.read()) or ""
    result: Any
    try:
        match request.match_info["what"]:
            case "secrets":
                result = asdict(await operator.reload_secrets())
            case "reload":
                result = asdict(await operator.reload())
            case "differences":
                result = [each._asdict() for each in await settings.differences()]
            case "running":
                result = settings.running()
            case "restart":
                result = await settings.restart_account(target)
            case _:
                return web.json_response({"error": "unknown question"}, status=404)
    except GatewayError as exc:
        return web.json_response({"error": str(exc)}, status=409)
    return web.json_response({"result": result})


def _target_in(body: bytes) -> str | None:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    target = told.get("target") if isinstance(told, dict) else None
    return target if isinstance(target, str) else None


async def act(home: Path, location: Location, action: str, target: str) -> Any:
    """Carry out an action in the gateway that runs in `home`, or directly where none does.

    Raises:
        NotFound: There is no such target.
        StorageError: The database cannot be opened or written.
    """
    # Nobody listens where no gateway runs: then the database can be opened here.
    with suppress(aiohttp.ClientConnectorError):
        return await _ask(home / SOCKET, action, target)
    require_database(location)
    async with open_database(location, home) as opened:
        return _plain(await carry_out(opened, ACTIONS[action], target))


async def port_of(home: Path) -> int:
    """Return the port on which the gateway that runs in `home` serves the page.

    Raises:
        GatewayNotRunning: None runs there.
    """
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(home / SOCKET))) as http,
            http.get("http://parley/control/port") as response,
        ):
            return int((await response.json())["port"])
    except aiohttp.ClientConnectorError as exc:
        text = f"No gateway answers on {home / SOCKET}. Start it with `parley run`."
        raise GatewayNotRunning(text) from exc


async def ready_in(home: Path) -> dict[str, Any] | None:
    """Return what the gateway that runs in `home` says of itself; None where none runs.

    Raises:
        GatewayError: It does not answer.
    """
    connector, timeout = (
        aiohttp.UnixConnector(str(home / SOCKET)),
        aiohttp.ClientTimeout(total=READY_WITHIN_S),
    )
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            http.get("http://parley/control/ready") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found
    except aiohttp.ClientConnectorError:
        return None
    except TimeoutError as exc:
        text = f"the gateway in {home} has not answered within {READY_WITHIN_S:g} s: it hangs, or"
        raise GatewayError(f"{text} its machine is overloaded") from exc


async def ask_settings(home: Path, question: SettingsQuestion, target: str = "") -> Any:
    """Have the gateway that runs in `home` read its settings again, or say what they are.

    Args:
        question: secrets: see `Reloaded`. reload: see `SettingsReloaded`. differences: a list of
            `SettingChange`. running: see `Reloads.running`. restart: how the account `target`
            stands then.

    Raises:
        GatewayNotRunning: None does.
        NotFound: There is no such account, or the settings cannot be gone by.
    """
    try:
        return await _ask(home / SOCKET, f"settings/{question}", target)
    except aiohttp.ClientConnectorError as exc:
        text = f"no gateway runs in {home}; settings and secrets are read when it starts"
        raise GatewayNotRunning(text) from exc


async def test_alerts(home: Path) -> dict[str, Any]:
    """Have the gateway that runs in `home` send a test of its alerts each way.

    Raises:
        GatewayNotRunning: None does.
        NotFound: It tells nobody of anything.
    """
    try:
        found: dict[str, Any] = await _ask(home / SOCKET, TEST_ALERTS, "")
    except aiohttp.ClientConnectorError as exc:
        text = f"no gateway runs in {home}; start it with `parley run`"
        raise GatewayNotRunning(text) from exc
    return found


async def carry_out(database: Database, action: Action, target: str, by: str = COMMAND_LINE) -> Any:
    """Run an action; what it erased is gone from the files when this returns.

    A search index that was emptied is full again, in writes so short that turns go on beside it.
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
    """Erase a conversation and what is left of it, with other writes between any two steps."""
    messages = await database.write(_forget, target, by)
    while await database.write(maintenance.erase_some, int(target)):
        pass
    is_first = True
    while await database.write(index.merge_some, is_first=is_first):
        is_first = False
    await database.scrub()
    await _tell_replicas(database, "forgotten")
    return messages


async def _tell_replicas(database: Database, kind: Literal["forgotten", "secrets"]) -> None:
    """Have all replicas know within a second or two; on SQLite there are none."""
    if database.server is not None:
        from gateway.storage import sharing  # noqa: PLC0415

        await database.write(sharing.announce, kind)


async def _pruned(database: Database, target: str) -> dict[str, dict[str, int]]:
    """Erase what is too old by the settings of whoever asks; the target holds them as JSON."""
    asked = _read(_Pruning, target)
    # A message goes with its words in the index: one that is not there yet would stay.
    await Indexer(database).feed_all()
    gone = await Pruner(database, asked.retention, asked.raw_days).prune()
    return {name: each._asdict() for name, each in gone.items()}


async def _ask(socket: Path, action: str, target: str) -> Any:
    connector = aiohttp.UnixConnector(str(socket))
    # No total: to erase a large conversation takes as long as it takes.
    timeout = aiohttp.ClientTimeout(total=None, connect=5)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
        http.post(f"http://parley/control/{action}", json={"target": target}) as response,
    ):
        body = await response.json()
    if "error" in body:
        raise NotFound(body["error"])
    return body["result"]


def _plain(result: Any) -> Any:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
