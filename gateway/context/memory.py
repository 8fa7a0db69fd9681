"""Memory providers and the hook `turn_finished`.

Before a turn the providers are asked for notes about the question. After its commit they are
informed in the background. Without such plugins neither costs anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

import structlog
from sqlalchemy import Connection

from agent.messages import text_of
from agent.plugins.contracts import Exchange, MemoryProvider, Query, Recalled
from agent.plugins.registry import LoadedPlugin, Plugins
from agent.plugins.supervision import PluginFailed
from agent.ports import Origin
from agent.prompt.system import SourcedText
from agent.spans import trace_of
from gateway.access.policy import Access
from gateway.agent_ports.tools import rights_of_turn, tainting
from gateway.context.memory_reading import MemoryReader
from gateway.errors import StorageError
from gateway.storage.conversation import sessions, turns
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.people import notebook
from gateway.storage.queue import inbox
from gateway.storage.queue.inbox import merged_text

log = structlog.get_logger()

MAX_QUERY_CHARS = 4_000
MAX_RECALLED_CHARS = 4_000
"""Of one provider's answer: it is read with the question, and stays in view."""
MAX_WAITING = 1_000
"""Finished turns that wait to be reported to plugins; more are dropped."""

_Recollection = tuple[str, str, Sequence[str] | None]
"""The memory, its text, and the turns from which it recalls it; None if it does not say."""


class Recall:
    """Asks and informs plugins about all turns; `reader` reads messages for the notebook."""

    def __init__(
        self,
        database: Database,
        plugins: Plugins,
        access: Access,
        reader: MemoryReader | None = None,
    ) -> None:
        self.reader = reader
        self._database = database
        self._plugins = plugins
        self._access = access
        self._waiting: asyncio.Queue[tuple[Turn, str, str]] = asyncio.Queue(MAX_WAITING)

    async def notes(self, conversation_id: int) -> tuple[Sequence[SourcedText], Collection[Origin]]:
        """Return the notes of memory providers about the waiting question, and their taints.

        All are asked side by side, each within `HOOK_S`; one that fails is left out. A turn that is
        resumed has its notes in the transcript.
        """
        if not self._plugins.providers:
            return (), ()
        query = await self._database.read(waiting_query, conversation_id)
        if query is None:
            return (), ()
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(_recalled(plugin, provider, query), name=f"recall {plugin.name}")
                for plugin, provider in self._plugins.providers
            ]
        found = [told for task in asked if (told := task.result()) is not None]
        if not found:
            return (), ()
        origins = await self._database.read(self._tainting, conversation_id, found)
        notes = [SourcedText(f"Recalled from the memory {name}", text) for name, text, _ in found]
        return notes, origins

    def _tainting(
        self, conn: Connection, conversation_id: int, found: Sequence[_Recollection]
    ) -> set[Origin]:
        """Return the origins that taint a turn which reads these notes."""
        read: set[Origin] = set()
        for memory, _, of in found:
            if of is None:
                # It may come from anything read or said in a conversation of this scope.
                read |= sessions.held_in(conn, notebook.sharing(conn, conversation_id))
                continue
            known = turns.segments(conn, of)
            if not known or len(known) < len({*of}):
                read.add(Origin("tool", memory))
            read.update(*sessions.held_by(conn, known.values()).values())
        return tainting(conn, self._access, read)

    def finished(self, turn: Turn, outcome: str, answer: str) -> None:
        """Have plugins and the reader informed of a committed turn; returns at once."""
        if self.reader is not None:
            self.reader.hear(turn)
        if not (self._plugins.providers or self._plugins.having("turn_finished")):
            return
        try:
            self._waiting.put_nowait((turn, outcome, answer))
        except asyncio.QueueFull:
            log.warning("plugins_not_told", turn=turn.id, reason="too many turns wait")

    async def run(self) -> None:
        """Inform plugins, one turn after another, until cancelled; what waits then is lost."""
        while True:
            turn, outcome, answer = await self._waiting.get()
            try:
                await self._tell(turn, outcome, answer)
            except StorageError as exc:
                log.warning("plugins_not_told", turn=turn.id, reason=str(exc))
            finally:
                self._waiting.task_done()

    async def wait_idle(self) -> None:
        """Wait until plugins were informed of all turns."""
        await self._waiting.join()

    async def _tell(self, turn: Turn, outcome: str, answer: str) -> None:
        rights = await self._database.read(rights_of_turn, self._access, turn)
        conversation, address = turn.lease.conversation, turn.lease.address
        own = (message for message in turn.messages if not message.get("synthetic", False))
        question = next((text_of(message) for message in own if message["role"] == "user"), "")
        exchange = Exchange(question, answer, rights.scope, str(conversation), str(turn.id))
        event = {
            "conversation": exchange.conversation,
            "turn": exchange.turn,
            "scope": exchange.scope,
            "platform": address.platform,
            "account": address.account,
            "outcome": outcome,
            "question": question,
            "answer": answer,
            "may_act": rights.may_act,
        }
        remembered = self._plugins.providers if rights.may_act and answer else ()
        trace = trace_of(conversation, turn.first_seq)
        with structlog.contextvars.bound_contextvars(
            conversation=conversation, turn=turn.id, trace=trace
        ):
            async with asyncio.TaskGroup() as group:
                for plugin in self._plugins.having("turn_finished"):
                    telling = _told(plugin.call_hooks, "turn_finished", event)
                    group.create_task(telling, name=f"tell {plugin.name}")
                for plugin, provider in remembered:
                    storing = _told(plugin.caller.ask, "store", provider.store, exchange)
                    group.create_task(storing, name=f"store {plugin.name}")


def waiting_query(conn: Connection, conversation_id: int) -> Query | None:
    """Return the likely question of a conversation's next turn.

    None if it resumes an unfinished turn, only carries out commands, or waits for files.
    """
    if turns.has_running(conn, conversation_id):
        return None
    waiting = inbox.queued(conn, conversation_id)
    if not waiting or any(entry.awaits_files for entry in waiting):
        return None
    asked = [entry for entry in waiting if entry.kind == "message"]
    text = merged_text(asked, named=False).strip()[:MAX_QUERY_CHARS]
    scope = notebook.scope_of(conn, conversation_id)
    return Query(text, scope, str(conversation_id)) if text else None


async def _recalled(
    plugin: LoadedPlugin, provider: MemoryProvider, query: Query
) -> _Recollection | None:
    try:
        found = await plugin.caller.ask("prefetch", provider.prefetch, query)
        text, of = (found.text, found.turns) if isinstance(found, Recalled) else (found, None)
        if not isinstance(text, str | None) or not all(isinstance(turn, str) for turn in of or ()):
            wrong = TypeError(f"it returned {type(found).__name__}, not a text or `Recalled` of it")
            raise plugin.caller.failed("prefetch", wrong)
    except PluginFailed:
        return None
    text = (text or "").strip()[:MAX_RECALLED_CHARS]
    return (provider.name, text, of) if text else None


async def _told(tell: Callable[..., Awaitable[object]], *arguments: object) -> None:
    """Inform a plugin; a failure is already logged by the call."""
    with suppress(PluginFailed):
        await tell(*arguments)
