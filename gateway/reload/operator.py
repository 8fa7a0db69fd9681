"""Operator actions on a running gateway, over its Unix socket or from the console."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from adapters.messages import InboundMessage
from gateway.access import pairing, web_door
from gateway.access.pairing import COMMAND_LINE, Decided
from gateway.access.web_door import NewLink, SignedOut
from gateway.commands import mcp
from gateway.commands.approvals import ReplyOutcome
from gateway.errors import GatewayError
from gateway.http.control import ACTIONS, as_json, carry_out, tell_replicas
from gateway.reload.reloading import Reloading
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from gateway.storage.people.mcp import Verdict
from gateway.storage.queue import dead_letters
from gateway.supervision.credentials import Reloaded, SettingsReloaded


@dataclass(frozen=True, slots=True)
class Operator:
    """Executes operator actions."""

    reloading: Reloading

    async def act(self, name: str, target: str, by: str = COMMAND_LINE) -> Any:
        """Execute one of `ACTIONS` and wake the affected parts.

        Args:
            by: The operator, "platform:sender id".

        Raises:
            GatewayError: The target does not exist or the action is impossible; nothing changed.
        """
        parts = self.reloading.parts
        wakeups = parts.shared.wakeups
        result = await carry_out(parts.shared.database, ACTIONS[name], target, by)
        if name == "forget":
            wakeups.forgotten()
        if isinstance(result, dead_letters.DeadLetter):
            wakeups.work(result.conversation)
            wakeups.outbox(result.conversation)
        if isinstance(result, Decided) and result.happened is not None:
            pairing.report(result.happened)
            self.reloading.notify()
            await parts.intake.tell_approved()
        if isinstance(result, NewLink | SignedOut):
            web_door.report(result, invited=name == "web-invite")
        return result

    async def answer(self, owner: InboundMessage, inquiry_id: int, said: str) -> ReplyOutcome:
        """See `GatewayIntake.answer_as_owner`."""
        return await self.reloading.parts.intake.answer_as_owner(owner, inquiry_id, said)

    async def decide_tool(self, name: str, verdict: Verdict, by: str) -> Decided:
        """Record an owner's verdict on a tool's text; raise NotFound for an unknown text.

        Not reachable over the socket.
        """
        decision = await self.reloading.parts.shared.database.write(mcp.decide, name, verdict, by)
        self.reloading.notify()
        return decision

    async def reload_secrets(self) -> Reloaded:
        """Reload all referenced secrets, here and in all replicas."""
        done = await self.reloading.renew_secrets()
        await tell_replicas(self.reloading.parts.shared.database, "secrets")
        return done

    async def reload(self, by: str = COMMAND_LINE, subject: str = "") -> SettingsReloaded:
        """Reload settings and secrets, here and in all replicas.

        Args:
            by: The operator, "platform:sender id".
            subject: The changed keys.
        """
        done, database = await self.reloading.reload(), self.reloading.parts.shared.database
        if not done.problems:
            await tell_replicas(database, "secrets")
            entry = AuditEntry("settings_reloaded", by=by, subject=subject)
            await database.write(audit_log.append, entry)
        return done


def routes(operator: Operator) -> list[web.RouteDef]:
    """Return the control routes, only for the Unix socket."""

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
        return web.json_response({"result": as_json(result)})

    return [
        web.post("/control/settings/{what}", partial(_of_settings, operator)),
        web.post("/control/{action}", act),
    ]


async def _of_settings(operator: Operator, request: web.Request) -> web.Response:
    """Serve `control.ask_settings`."""
    reloading, target = operator.reloading, _target_in(await request.read()) or ""
    result: Any
    try:
        match request.match_info["what"]:
            case "secrets":
                result = asdict(await operator.reload_secrets())
            case "reload":
                result = asdict(await operator.reload())
            case "differences":
                result = [each._asdict() for each in await reloading.differences()]
            case "running":
                result = reloading.running()
            case "restart":
                result = await reloading.restart_account(target)
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
