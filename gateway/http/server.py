"""The gateway's HTTP server, and what it answers from the database.

One port serves pages, webhooks and health; one Unix socket serves tools. `/healthz` says that the
process runs, `/readyz` that it can store messages and that all accounts work. `ChatHistory` is what
the web chat reads (`adapters.base.History`).
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import structlog
from aiohttp import web
from typing_extensions import override

from adapters.base import ChatItem, ChatSummary, ContextGauge
from adapters.messages import Address, OutgoingFile
from gateway import descriptors
from gateway.commands.status_figures import StatusFacts
from gateway.descriptors import is_scarce
from gateway.errors import GatewayError, StorageError
from gateway.lifecycle.supervision import Supervised, Watch
from gateway.session_keys import address_key
from gateway.storage.conversation import attachments, conversations
from gateway.storage.engine import Database
from gateway.storage.queue import leases
from gateway.storage.reports import history, usage

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_S = 2.0
"""How long a stop waits for requests that are under way."""
BACKLOG = 128
"""Connections that may wait for being accepted."""
WRITE_TIMEOUT_S = 2.0
"""How long `/readyz` waits for a commit."""
MAX_BODY_BYTES = 2 * 1024 * 1024
LONGEST_SOCKET_PATH = 100
"""Linux takes 107 bytes, macOS 103. Source: unix(7)."""


class HttpServer:
    """Serves `public` routes on host and port, and `private` ones as well on the Unix socket."""

    def __init__(
        self,
        host: str,
        port: int,
        socket: Path,
        *,
        public: Sequence[web.RouteDef],
        private: Sequence[web.RouteDef],
    ) -> None:
        self._host = host
        self._port = port
        self._socket = socket
        self._bound = False
        self._public = _runner(public)
        self._private = _runner([*public, *private])

    async def start(self) -> int:
        """Listen; returns the port, which differs from the setting where that is 0.

        Raises:
            GatewayError: The port is taken or may not be used.
        """
        await self._public.setup()
        site = _Site(self._public, self._host, self._port)
        try:
            await site.start()
        except OSError as exc:
            why = os.strerror(exc.errno) if exc.errno else str(exc)
            text = f"cannot listen on {self._host}:{self._port} (web.host, web.port): {why}"
            raise GatewayError(text) from exc
        await self._start_socket()
        return int(self._public.addresses[0][1])

    async def stop(self) -> None:
        """Close all connections."""
        await self._public.cleanup()
        await self._private.cleanup()
        if self._bound:
            self._socket.unlink(missing_ok=True)

    async def _start_socket(self) -> None:
        await self._private.setup()
        if len(str(self._socket).encode()) > LONGEST_SOCKET_PATH:
            log.warning("control_socket_skipped", reason="PARLEY_HOME's path is too long")
            return
        # A process that was killed leaves its socket behind, and the name cannot be bound twice.
        self._socket.unlink(missing_ok=True)
        await web.UnixSite(self._private, self._socket).start()
        self._socket.chmod(0o600)
        self._bound = True


class _Site(web.BaseSite):
    """Listens on host and port, and turns connections away before descriptors run out."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port

    @property
    @override
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    @override
    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        # asyncio accepts as many at a time as its queue is long; before the first of them is closed
        # those of four times are open. The system's own queue may be longer.
        at_once = min(BACKLOG, (descriptors.limit() - descriptors.ceiling()) // 5)
        self._server = await loop.create_server(
            self._protocol, self._host, self._port, backlog=at_once
        )
        for each in self._server.sockets:
            # A copy of the descriptor: leaving `with` closes it, and asyncio goes on with its own.
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(BACKLOG)

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None  # noqa: S101 - the runner is set up before its sites
        return _Door(server)


class _Door(asyncio.Protocol):
    """Lets a connection in, or ends it: one that nobody accepts would wait for its own time limit.

    The number of its descriptor tells how many are in use.
    """

    def __init__(self, inside: Callable[[], asyncio.BaseProtocol]) -> None:
        self._inside = inside

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        if connection.get_extra_info("socket").fileno() >= descriptors.ceiling():
            connection.abort()
            log.warning("connection_refused", limit=descriptors.limit())
            return
        protocol = self._inside()
        connection.set_protocol(protocol)
        protocol.connection_made(connection)


@web.middleware
async def _tell_storage_trouble(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 503 where nothing could be stored, so that clients send again."""
    try:
        return await handler(request)
    except StorageError as exc:
        log.warning("request_not_stored", path=request.path, error=str(exc))
        text = "Parley cannot store messages right now. Please try again."
        return web.json_response({"error": "storage_unavailable", "message": text}, status=503)


def _runner(routes: Sequence[web.RouteDef]) -> web.AppRunner:
    application = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[_tell_storage_trouble]
    )
    application.add_routes(routes)
    return web.AppRunner(
        application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S
    )


class Health:
    """The health routes of a running gateway."""

    def __init__(
        self, database: Database, replica: int, adapters: Sequence[Supervised], watch: Watch
    ) -> None:
        self._database = database
        self._replica = replica
        self._adapters = adapters
        self._watch = watch

    def routes(self) -> list[web.RouteDef]:
        """Return both routes; they tell nothing that is secret."""
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        database = await self._database_state()
        adapters = {supervised.name: supervised.state for supervised in self._adapters}
        connected = all(state == "connected" for state in adapters.values())
        accounts: dict[str, dict[str, Any]] = {}
        if database == "writable":
            database, accounts = await self._account_states()
        silent = any(each["silent_s"] is not None for each in accounts.values())
        scarce = is_scarce()
        body: dict[str, Any] = {
            "ready": database == "writable" and connected and not silent and not scarce,
            "database": database,
            "descriptors": "scarce" if scarce else "free",
            "adapters": adapters,
            "accounts": accounts,
        }
        ready = body["ready"]
        return web.json_response(body, status=200 if ready else 503)

    async def _database_state(self) -> str:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._database.write(leases.heartbeat, self._replica)
        except TimeoutError:
            return f"no commit within {WRITE_TIMEOUT_S:g} s"
        except StorageError as exc:
            return f"not writable: {exc}"
        return "writable"

    async def _account_states(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the database's state again, and how each account stands; seconds, rounded."""
        try:
            found = await self._watch.look()
        except StorageError as exc:
            return f"not readable: {exc}", {}
        return "writable", {
            ":".join(account): _rounded(asdict(found[account])) for account in found
        }


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 1) if isinstance(value, float) else value
        for name, value in figures.items()
    }


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Reads of direct chats.

    Attributes:
        facts: Returns the figures of the model that was chosen, None for the default, as they are
            now.
    """

    database: Database
    facts: Callable[[str | None], StatusFacts]

    async def chats(self, platform: str, account: str) -> list[ChatSummary]:
        """Return the account's conversations, newest activity first."""
        return await self.database.read(history.chats, platform, account)

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return what was said after the two positions, in order."""
        key = address_key(address)
        return await self.database.read(history.items, key, after_inbox, after_outbox)

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat, and of no other."""
        conversation_id = await self.database.read(conversations.find, address_key(address))
        if conversation_id is None:
            return None
        return await self.database.read(attachments.of_conversation, conversation_id, file_id)

    async def gauge(self, address: Address) -> ContextGauge:
        """Return how much of the window the conversation fills."""
        key = address_key(address)
        facts = self.facts(await self.database.read(usage.model_of, key))
        used = await self.database.read(usage.view_tokens, key, facts.fixed_tokens)
        return ContextGauge(used, facts.window_tokens)
