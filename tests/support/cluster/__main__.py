"""`make cluster N=3`: a cluster for trying out on one machine, without Docker.

PostgreSQL out of a wheel, one migration, N replicas with the offline model, one address. Ctrl-C
stops the replicas gracefully, then the database, whose data goes with it.
"""

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path

from tests.support.cluster.balancer import Balancer
from tests.support.cluster.replicas import Replica, Shared, command, running
from tests.support.postgres import postgres_server
from tests.support.process import free_port

CONNECTIONS_EACH = 20
"""Of a replica to the database, and some for commands."""


def main() -> None:
    """Run a cluster until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("replicas", type=int, nargs="?", default=3)
    parser.add_argument("--port", type=int, default=8765, help="where browsers come to")
    given = parser.parse_args()
    settings = {
        "max_connections": str(CONNECTIONS_EACH * (given.replicas + 1)),
        "autovacuum": "on",
        "fsync": "on",
        "synchronous_commit": "on",
    }
    with (
        tempfile.TemporaryDirectory(prefix="parley-cluster-") as folder,
        postgres_server(settings) as server,
    ):
        print(f"PostgreSQL runs at port {server.port}", flush=True)
        asyncio.run(_run(Path(folder), server.url(server.create()), given))
    print("all has stopped", flush=True)


async def _run(folder: Path, database_url: str, given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    shared = Shared(folder, database_url, f"http://127.0.0.1:{given.port}/")
    print((await command(shared, "migration", "db", "migrate")).strip(), flush=True)
    replicas = [Replica(shared, f"replica-{n}", free_port()) for n in range(1, given.replicas + 1)]
    balancer = Balancer.of(each.port for each in replicas)
    async with balancer.listening(given.port), running(replicas):
        await _tell(shared, replicas, balancer, stop)
        await stop.wait()
        print("\nstopping: running answers are finished first", flush=True)


async def _tell(
    shared: Shared, replicas: list[Replica], balancer: Balancer, stop: asyncio.Event
) -> None:
    """Say where the chat is, once all replicas are ready."""
    ready = asyncio.ensure_future(balancer.wait_ready(len(replicas)))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not ready.done():
        ready.cancel()
        return
    link = await command(shared, replicas[0].name, "open", "--no-browser")
    print(f"{len(replicas)} replicas are ready: {link.strip()}", flush=True)
    for each in replicas:
        assert each.process is not None
        print(f"  {each.name}  pid {each.process.pid}  port {each.port}  {each.home}", flush=True)
    print("  kill one and go on talking; Ctrl-C stops all", flush=True)


if __name__ == "__main__":
    main()
