"""The gateway's HTTP server, its health routes, and the web chat's reads (`ChatHistory`).

One port serves pages, webhooks and health checks; a Unix socket serves commands. `/healthz` means
that the process runs, `/readyz` that it can store messages and all accounts work.
"""

import asyncio
import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from adapters.base import ChatItem, ChatSummary, ContextGauge
from adapters.door import OWNER
from adapters.messages import Address, OutgoingFile
from adapters.web.guard import NOT_STORED, Guard, answer_to
from adapters.web.requests import Refusal
from gateway.commands.registry import StatusFacts
from gateway.errors import GatewayError, StorageError
from gateway.findings.report import Examination, is_ready
from gateway.http.connections import (
    IDLE_S,
    MAX_HEADERS,
    MAX_LINE_BYTES,
    Connections,
    Handler,
    counting,
    listen,
)
from gateway.session_keys import address_key
from gateway.storage.conversation import attachments, conversations
from gateway.storage.database import Database
from gateway.storage.people.web_users import STORED_LINK, ChatLinks
from gateway.storage.reports import history, usage
from gateway.supervision.silence import AccountHealth

log = structlog.get_logger()

SHUTDOWN_S = 2.0
"""Seconds that a stop waits for running requests."""
READY_S = 1.0
"""Seconds for which a `/readyz` result without details is reused."""
MAX_BODY_BYTES = 2 * 1024 * 1024
LONGEST_SOCKET_PATH = 100
"""Linux allows 107 bytes, macOS 103. Source: unix(7)."""
NO_DATABASE = (
    "Parley's database does not answer, so nobody can be signed in now. Messages wait where they"
    " are, and are answered once it is back. Whoever runs Parley: on its machine parley doctor says"
    " what is wrong and how to fix it; docs/operations.md (At 3 am) has the rest."
)
"""Shown at a sign-in or instead of a page, without the reason."""


@dataclass(frozen=True, slots=True)
class Port:
    """An address to listen on, its routes and settings `keys`; port 0 means any free one."""

    host: str
    port: int
    routes: Sequence[web.RouteDef]
    keys: str = "web.host, web.port"


class HttpServer:
    """Serves routes on a port, and these plus `private` ones on the Unix socket.

    Webhooks may have a separate port, the only one that must be reachable from outside.
    """

    def __init__(
        self,
        here: Port,
        socket: Path,
        *,
        private: Sequence[web.RouteDef],
        webhooks: Port | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._socket = socket
        self._bound = False
        self._connections = connections or Connections()
        counted = counting(self._connections)
        self._listening: list[asyncio.Server] = []
        self._ports = [(here, _runner(here.routes, counted))]
        if webhooks is not None:
            self._ports.append((webhooks, _runner(webhooks.routes, counted)))
        told = web.get("/control/port", self._tell_port)
        self._private = _runner([*here.routes, *private, told])

    async def start(self) -> int:
        """Start listening; return the actual port.

        Raises:
            GatewayError: A port is taken or forbidden.
        """
        for port, runner in self._ports:
            await self._listen(port, runner)
        await self._start_socket()
        return self.port

    async def stop(self) -> None:
        """Close all connections."""
        for each in self._listening:
            each.close()
        for _, runner in self._ports:
            await runner.cleanup()
        await self._private.cleanup()
        # A path that was not bound may belong to another process.
        if self._bound:
            self._socket.unlink(missing_ok=True)

    async def _listen(self, port: Port, runner: web.AppRunner) -> None:
        await runner.setup()
        try:
            self._listening += [await listen(runner, port.host, port.port, self._connections)]
        except OSError as exc:
            why = os.strerror(exc.errno) if exc.errno else str(exc)
            if exc.errno == errno.EADDRINUSE:
                why += "; stop the program that has it, or name another port"
            text = f"cannot listen on {port.host}:{port.port} ({port.keys}): {why}"
            raise GatewayError(text) from exc

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listening[0].sockets[0].getsockname()[1])

    async def _tell_port(self, _: web.Request) -> web.Response:
        """Tell the command line the actual port."""
        return web.json_response({"port": self.port})

    async def _start_socket(self) -> None:
        await self._private.setup()
        if len(str(self._socket).encode()) > LONGEST_SOCKET_PATH:
            log.warning("control_socket_skipped", reason="PARLEY_HOME's path is too long")
            return
        # A killed process leaves its socket, whose name cannot be bound again.
        self._socket.unlink(missing_ok=True)
        await web.UnixSite(self._private, self._socket).start()
        self._socket.chmod(0o600)
        self._bound = True


@web.middleware
async def _tell_storage_trouble(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond 503 if nothing could be stored, so that clients retry."""
    try:
        return await handler(request)
    except StorageError as exc:
        log.warning("request_not_stored", path=request.path, error=str(exc))
        if request.writer.output_size and request.transport is not None:
            # The response has started, so a second one would corrupt it.
            request.transport.close()
        is_page = "text/html" in request.headers.get("Accept", "")
        text = "Parley cannot store messages right now. Please try again."
        if is_page or request.path == "/api/sign-in":
            text = NO_DATABASE
        return answer_to(request, Refusal(503, NOT_STORED, text), leads_back=True)


def _runner(routes: Sequence[web.RouteDef], *middlewares: Any) -> web.AppRunner:
    application = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[*middlewares, _tell_storage_trouble]
    )
    application.add_routes(routes)
    return web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_S,
        # In aiohttp this is also the deadline for the first request's head.
        keepalive_timeout=IDLE_S,
        max_headers=MAX_HEADERS,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
    )


class Health:
    """The health routes of a gateway."""

    def __init__(self, examination: Examination) -> None:
        self.examination = examination
        self._began_at = time.time()
        self._known: tuple[float, bool] | None = None
        self._looking = asyncio.Lock()

    def routes(self, guard: Guard | None) -> list[web.RouteDef]:
        """Return both routes; `/readyz` gives details only to owners, identified by `guard`."""
        ready = partial(self._readyz, guard)
        return [web.get("/healthz", self._healthz), web.get("/readyz", ready)]

    @property
    def accounts(self) -> list[tuple[str, str]]:
        """The accounts of this process: (platform, account)."""
        return [
            (each.adapter.platform, each.adapter.account)
            for each in self.examination.vitals.adapters
        ]

    def control_route(self) -> web.RouteDef:
        """Return the route of the whole state, for the Unix socket only."""
        return web.get("/control/ready", self._told)

    async def _told(self, _: web.Request) -> web.Response:
        whose = {"version": version("parley"), "started_at": self._began_at, "pid": os.getpid()}
        return web.json_response(await self.look() | whose)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, guard: Guard | None, request: web.Request) -> web.Response:
        if guard is not None and await _is_owner(guard, request):
            body = await self.look()
        else:
            body = {"ready": await self._is_ready()}
        return web.json_response(body, status=200 if body["ready"] else 503)

    async def _is_ready(self) -> bool:
        """Check at most once per `READY_S`, since each check makes a commit."""
        # Concurrent requests share the running check's result.
        async with self._looking:
            now = time.monotonic()
            if self._known is None or now - self._known[0] >= READY_S:
                _, rows = await self.examination.of_live(whole=False)
                self._known = now, is_ready(rows)
            return self._known[1]

    async def look(self) -> dict[str, Any]:
        """Return the current state; each call makes a commit."""
        live, rows = await self.examination.of_live()
        return {
            "ready": is_ready(rows),
            "database": live.database,
            "descriptors": "scarce" if live.is_scarce else "free",
            "adapters": live.adapters,
            "accounts": {":".join(each): _rounded(found) for each, found in live.accounts.items()},
            "servers": live.servers,
            "findings": [each.as_data() for each in rows],
        }


async def _is_owner(guard: Guard, request: web.Request) -> bool:
    try:
        visitor = await guard.visitor(request)
    except StorageError:
        # Sessions cannot be read now; the token and the Unix socket need no database.
        return False
    return visitor is not None and visitor.role == OWNER.role


def _rounded(health: AccountHealth) -> dict[str, Any]:
    return {
        name: round(value, 1) if isinstance(value, float) else value
        for name, value in asdict(health).items()
    }


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Reads of direct chats (`adapters.base.History`).

    Attributes:
        facts: Returns the current figures of a chosen model; None for the default.
    """

    database: Database
    facts: Callable[[str | None], StatusFacts]
    links: ChatLinks

    async def chats(self, platform: str, account: str, sender: str) -> list[ChatSummary]:
        """Return a sender's own conversations, newest activity first."""
        return await self.database.read(history.chats, platform, account, sender)

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return the messages after the two positions, in order."""
        key = address_key(address)
        found = await self.database.read(history.items, key, after_inbox, after_outbox)
        answers = (item.markdown for item in found if item.outbox_seq)
        if not any(STORED_LINK in text for text in answers):
            return found
        if (here := await self.database.read(conversations.find, key)) is None:
            return found
        # People's own texts stay unchanged.
        return [
            replace(item, markdown=self.links.shown(item.markdown, here))
            if item.outbox_seq
            else item
            for item in found
        ]

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat."""
        conversation_id = await self.database.read(conversations.find, address_key(address))
        if conversation_id is None:
            return None
        return await self.database.read(attachments.in_conversation, conversation_id, file_id)

    async def gauge(self, address: Address) -> ContextGauge:
        """Return how much of the window the conversation fills."""
        here = await self.database.read(conversations.find, address_key(address))
        if here is None:
            return ContextGauge(None, self.facts(None).window_tokens)
        facts = self.facts(await self.database.read(conversations.chosen_model, here))
        fill = await self.database.read(usage.standing, here, facts.fixed_tokens)
        return ContextGauge(fill.tokens, facts.window_tokens)
