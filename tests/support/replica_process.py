"""A replica in a process of its own: it registers, shows that it lives, and tells what it becomes.

`python -m tests.support.replica_process URL NAME`: each line of its output is an event as
JSON. It claims all that is ready, and never works on it; it receives for Telegram where it may.
"""

import asyncio
import json
import sys
from typing import Any

import structlog
from pydantic import SecretStr

from adapters.base import Share
from gateway.errors import StorageError
from gateway.replicas.replica import AccountLeases, Replica
from gateway.storage.database import DatabaseServer
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.queue import leases
from gateway.storage.queue.blame import Death
from gateway.storage.queue.leases import Receiving
from gateway.wiring import registered

ACCOUNTS = [("telegram", "default")]
CLAIM_EVERY_S = 0.05


def tell(event: str, **facts: Any) -> None:
    """Write an event for the test."""
    sys.stdout.write(json.dumps({"event": event} | facts) + "\n")
    sys.stdout.flush()


def _keep(_logger: Any, _method: str, line: Any) -> Any:
    tell(**line)
    raise structlog.DropEvent


async def main(url: str, name: str) -> None:
    """Be a replica until the process is killed."""
    structlog.configure(processors=[_keep])
    database = PostgresDatabase(DatabaseServer(SecretStr(url), connections=2))
    accounts = AccountLeases()
    accounts.want(Receiving(*ACCOUNTS[0]))
    replica = await registered(database, name, Death(), accounts, Share())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replica.run())
        await claim(database, replica)


async def claim(database: PostgresDatabase, replica: Replica) -> None:
    """Take all that is ready, and tell how much that is."""
    held = 0
    while True:
        try:
            owned = await database.write(leases.claim, replica.id, 10, ACCOUNTS)
        except StorageError as exc:
            tell("claim_failed", error=str(exc))
        else:
            if len(owned) != held:
                tell("owns", replica=replica.id, count=len(owned))
            held = len(owned)
        await asyncio.sleep(CLAIM_EVERY_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
