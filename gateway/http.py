"""The gateway's HTTP server: one port for pages, webhooks and health, one Unix socket for tools."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
from aiohttp import web

from gateway.errors import GatewayError, StorageError

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_S = 2.0
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
        site = web.TCPSite(self._public, self._host, self._port)
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
        self._socket.unlink(missing_ok=True)
        await web.UnixSite(self._private, self._socket).start()
        self._socket.chmod(0o600)
        self._bound = True


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
