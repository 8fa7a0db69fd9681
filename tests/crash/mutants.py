"""Flaws that the harness must catch, each built into a child as a patch of its own process."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select

from adapters.messages import Admission, InboundMessage, Outgoing
from gateway.context.parts import TurnParts
from gateway.findings.telling import AlertsTold, Telling
from gateway.pipeline.intake import GatewayIntake
from gateway.pipeline.preview import TurnChat
from gateway.replicas.replica import AccountLease, AccountLeases
from gateway.storage.conversation import turn_journal, turns
from gateway.storage.engine import SqliteDatabase
from gateway.storage.queue import alerts, blame, leases, replicas
from gateway.storage.queue.blame import Inheritance
from gateway.storage.queue.sending import nonce_of
from gateway.storage.schema import conversation, replica


def replace_in(target: object, **replacements: object) -> None:
    """Patch names that a module or class of this process has."""
    for name, replacement in replacements.items():
        assert hasattr(target, name), f"{target} has no {name}"
        setattr(target, name, replacement)


AFTER_ACKNOWLEDGEMENT_S = 0.2


def acknowledge_before_commit(_: Any) -> None:
    """Report an admission before it is durable."""
    accept = GatewayIntake.accept
    running: set[asyncio.Task[Any]] = set()

    async def commit_later(*args: Any, **rest: Any) -> None:
        await asyncio.sleep(AFTER_ACKNOWLEDGEMENT_S)
        await accept(*args, **rest)

    async def hasty(
        self: GatewayIntake, messages: Sequence[InboundMessage], **rest: Any
    ) -> list[Admission]:
        running.add(asyncio.create_task(commit_later(self, messages, **rest)))
        return [Admission("queued", 1, 1) for _ in messages]

    replace_in(GatewayIntake, accept=hasty)


def send_before_commit(_: Any) -> None:
    """Show an answer, then commit it as shown."""
    write = SqliteDatabase.write
    adapters: dict[Any, Any] = {}
    make = TurnChat.of

    def remember(parts: TurnParts, turn: Any) -> TurnChat:
        adapters.update(parts.shared.adapters)
        return make(parts, turn)

    async def hasty(self: SqliteDatabase, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if fn is turn_journal.commit:
            turn, messages, parts, end = args
            address = turn.lease.address
            for part in parts:
                nonce = nonce_of(part.source_key)
                await adapters[address.platform, address.account].send(
                    Outgoing(
                        conversation=turn.lease.conversation,
                        address=address,
                        seq=0,
                        payload=part.payload,
                        nonce=nonce,
                    )
                )
            args = (turn, messages, [], end)
        return await write(self, fn, *args, **kwargs)

    replace_in(TurnChat, of=staticmethod(remember))
    replace_in(SqliteDatabase, write=hasty)


def no_fence(_: Any) -> None:
    """Write whatever the token says."""

    def unfenced(conn: Connection, lease: leases.Lease) -> Any:
        return conn.execute(
            select(conversation).where(conversation.c.id == lease.conversation)
        ).one()

    take_seqs = leases.take_seqs

    def taken_by_anybody(conn: Connection, lease: leases.Lease, *args: Any, **rest: Any) -> Any:
        owner = unfenced(conn, lease)
        held = replace(lease, replica=owner.owner, epoch=owner.epoch)
        return take_seqs(conn, held, *args, **rest)

    replace_in(leases, fence=unfenced, take_seqs=taken_by_anybody)
    for module in (turns, turn_journal):
        replace_in(module, fence=unfenced)
    deaf()


def deaf() -> None:
    """Never hear from the database that one was reaped."""
    attend = replicas.attend

    def as_if_alive(*args: Any, **rest: Any) -> replicas.Surroundings:
        return attend(*args, **rest) or replicas.Surroundings(living=1)

    replace_in(replicas, attend=as_if_alive)


def zombie_claim(_: Any) -> None:
    """Go on under the identity of the process before, with its tokens."""
    register = leases.register

    def same_identity(conn: Connection, name: str) -> int:
        known = conn.scalar(select(replica.c.id).order_by(replica.c.id.desc()).limit(1))
        return register(conn, name) if known is None else int(known)

    replace_in(leases, register=same_identity)

    def as_another(conn: Connection, name: str, *_: Any, **__: Any) -> tuple[int, Inheritance]:
        return same_identity(conn, name), Inheritance(0, 0, {})

    replace_in(replicas, enter=as_another)


def two_pollers(_: Any) -> None:
    """Ask for updates whoever has the lease, and admit what comes."""

    async def at_once(_: AccountLease) -> None:
        """Wait for nothing."""

    async def never(_: AccountLease) -> None:
        await asyncio.Event().wait()

    replace_in(AccountLease, acquire=at_once, gone=never)
    replace_in(AccountLeases, fence=lambda *_: None)


def every_death_counts(_: Any) -> None:
    """Charge an attempt for every death of the process, and suspect nobody in particular."""
    replace_in(blame, _forgiven=lambda standing: standing, SUSPECT_AFTER=1_000_000)


def tells_again(_: Any) -> None:
    """Tell of what is open in each process anew."""
    note, say_all, known = alerts.note, Telling._say_all, set[Any]()

    def forgetful(conn: Connection, *trouble: Any) -> int | None:
        made = note(conn, *trouble)
        open_ones = {(each.kind, each.subject): each.id for each in alerts.found(conn)}
        key = trouble[:2]
        is_new = key not in known
        known.add(key)
        return (made or open_ones[key]) if is_new else None

    def say_again(self: Telling, conn: Connection, key: str, text: str, told: AlertsTold) -> bool:
        return say_all(self, conn, f"{key}:{os.getpid()}", text, told)

    replace_in(alerts, note=forgetful)
    replace_in(Telling, _say_all=say_again)


def never_over(_: Any) -> None:
    """Take nothing back that was told."""
    replace_in(alerts, end=lambda *_: False)


def over_in_silence(_: Any) -> None:
    """End what was told, and tell nobody."""
    replace_in(Telling, _tell_end=lambda *_: None)


MUTANTS: dict[str, Callable[[Any], None]] = {
    "acknowledge before commit": acknowledge_before_commit,
    "send before commit": send_before_commit,
    "no fence": no_fence,
    "zombie claim": zombie_claim,
    "every death counts": every_death_counts,
    "two pollers": two_pollers,
    "tells again": tells_again,
    "never over": never_over,
    "over in silence": over_in_silence,
}
