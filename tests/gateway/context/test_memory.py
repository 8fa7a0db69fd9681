"""Recall: what memory providers are asked before a turn, and told after it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from agent.plugins.contracts import Exchange, MemoryProvider, Query, Recalled
from agent.plugins.registry import LoadedPlugin, Plugins
from agent.plugins.supervision import Caller
from agent.prompt.system import SourcedText
from gateway.access.policy import Access
from gateway.context import memory as module
from gateway.context.memory import MAX_RECALLED_CHARS, Recall, waiting_query
from gateway.settings.tree import AccessSettings
from gateway.storage.conversation.turns import Turn
from gateway.storage.database import Database
from gateway.storage.queue import inbox
from gateway.storage.queue.leases import Lease
from tests.agent.plugins.plugins import active
from tests.support.storage import Store, admit, begin_turn, claim_one, inbound

OWNER = Access(AccessSettings(owners=("telegram:42",)))
NOBODY = Access(AccessSettings())


class Unreadable:
    """Neither a text nor nothing: what it is, it does not even tell."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


class Memory(MemoryProvider):
    """Answers with what it is made of, and keeps what it is given."""

    name: ClassVar[str] = "memory"

    def __init__(self, answer: Callable[[Query], str] = lambda query: query.text) -> None:
        super().__init__({})
        self.answer = answer
        self.queries: list[Query] = []
        self.exchanges: list[Exchange] = []

    @override
    async def prefetch(self, query: Query) -> str:
        self.queries.append(query)
        return self.answer(query)

    @override
    async def store(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.answer(Query(exchange.question, exchange.scope, exchange.conversation))


def broken(_: object) -> str:
    raise ValueError("broken")


NO_TEXTS: list[Any] = [Recalled(b"a note"), Recalled("x", [1])]  # type: ignore[arg-type,list-item]


def with_providers(*providers: MemoryProvider) -> Plugins:
    return Plugins(
        tuple(
            LoadedPlugin(f"p{n}", Caller(f"p{n}", 10), providers=(provider,))
            for n, provider in enumerate(providers)
        )
    )


async def asked(database: Database, *texts: str, **changes: Any) -> Lease:
    """Have somebody ask; returns the lease of their conversation."""
    for text in texts:
        here, _ = await database.write(admit, inbound(text, **changes))
    return await database.write(claim_one, here)


async def test_all_providers_are_asked_about_the_question(database: Database) -> None:
    """Once each, for the scope of the chat; what fails or knows nothing is left out."""
    memory, long = Memory(), Memory(lambda _: "x" * 9_000)
    recall = Recall(
        database, with_providers(memory, Memory(broken), Memory(lambda _: " "), long), OWNER
    )
    lease = await asked(database, "What", "is it?")
    with capture_logs() as logs:
        told, origins = await recall.notes(lease.conversation)
    assert told[0] == SourcedText("Recalled from the memory memory", "What\nis it?")
    assert origins == set()
    assert [len(each.text) for each in told[1:]] == [MAX_RECALLED_CHARS]
    assert memory.queries == [Query("What\nis it?", "telegram:42", str(lease.conversation))]
    assert [(each["plugin"], each["call"]) for each in logs] == [("p1", "prefetch")]


@pytest.mark.parametrize(
    "answer",
    [Unreadable(), ["a note"], b"a note", *NO_TEXTS],
)
async def test_what_is_no_text_is_left_out(database: Database, answer: Any) -> None:
    """Like a failure: the question is asked without it."""
    recall = Recall(database, with_providers(Memory(lambda _: answer)), OWNER)
    lease = await asked(database, "What?")
    with capture_logs() as logs:
        assert await recall.notes(lease.conversation) == ((), ())
    assert [(each["event"], each["call"]) for each in logs] == [("plugin_failed", "prefetch")]


async def test_a_turn_that_goes_on_asks_nobody(database: Database) -> None:
    """What was recalled for it is in the transcript."""
    memory, lease = Memory(), await asked(database, "What?")
    await database.write(begin_turn, lease)
    recall = Recall(database, with_providers(memory), OWNER)
    assert await recall.notes(lease.conversation) == ((), ())
    assert memory.queries == []


async def test_a_group_has_a_scope_of_its_own(database: Database) -> None:
    """What somebody said elsewhere is not recalled where others read it."""
    memory = Memory()
    lease = await asked(database, "hi", chat_kind="group", sender="42")
    await Recall(database, with_providers(memory), OWNER).notes(lease.conversation)
    assert [query.scope for query in memory.queries] == [f"conversation:{lease.conversation}"]


async def test_without_providers_nothing_is_read(database: Database) -> None:
    """Nor with a conversation where nothing is asked."""
    lease = await asked(database, "hi")
    recall = Recall(database, Plugins((active(turn_finished=print),)), OWNER)
    await database.close()
    assert await recall.notes(lease.conversation) == ((), ())


@dataclass
class Case:
    """What waits in a conversation."""

    admitted: list[dict[str, Any]] = field(default_factory=list)
    running: bool = False


@pytest.mark.parametrize(
    "case",
    [
        Case([{"text": "/new", "kind": "command"}]),
        Case([{"text": " ", "kind": "message"}]),
        Case([{"text": "hi", "kind": "message"}], running=True),
    ],
)
def test_where_nothing_is_asked_anew_nothing_is_recalled(store: Store, case: Case) -> None:
    """A turn that goes on has its notes; a command alone asks nothing."""
    here = 0
    for each in case.admitted:
        here, _ = store.run(admit, inbound(each["text"]), kind=each["kind"])
    lease = store.run(claim_one, here)
    if case.running:
        store.run(begin_turn, lease)
        store.run(admit, inbound("more"))
    assert store.run(waiting_query, here) is None


def test_a_question_behind_a_command_is_asked(store: Store) -> None:
    """The command is carried out first."""
    here, _ = store.run(admit, inbound("/new"), kind="command")
    store.run(admit, inbound("what now?"))
    assert store.run(inbox.queued, here)[0].kind == "command"
    query = store.run(waiting_query, here)
    assert query is not None
    assert query.text == "what now?"


async def told(recall: Recall, *ended: tuple[Turn, str, str]) -> None:
    """Have plugins be told of turns, to the end."""
    for each in ended:
        recall.finished(*each)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(recall.run())
        await recall.wait_idle()
        running.cancel()


async def a_turn(database: Database) -> Turn:
    lease = await asked(database, "What?")
    return await database.write(begin_turn, lease)


async def test_an_exchange_is_stored_after_the_turn(database: Database) -> None:
    """By each provider; one that fails keeps nobody else from it."""
    turn, memory = await a_turn(database), Memory()
    recall = Recall(database, with_providers(Memory(broken), memory), OWNER)
    with capture_logs() as logs:
        await told(recall, (turn, "final_text", "That."), (turn, "empty", ""))
    conversation = str(turn.lease.conversation)
    assert memory.exchanges == [
        Exchange("What?", "That.", "telegram:42", conversation, str(turn.id))
    ]
    assert [(each["plugin"], each["call"]) for each in logs] == [("p0", "store")]


async def test_what_guests_say_is_not_stored(database: Database) -> None:
    """They could put words into a memory that others share; hooks are told all the same."""
    turn, memory = await a_turn(database), Memory()
    seen: list[dict[str, Any]] = []
    hooks = active("hook", turn_finished=seen.append)
    plugins = Plugins((*with_providers(memory).loaded, hooks, active("bad", turn_finished=broken)))
    await told(Recall(database, plugins, NOBODY), (turn, "final_text", "That."))
    assert memory.exchanges == []
    [event] = seen
    assert event == {
        "conversation": str(turn.lease.conversation),
        "turn": str(turn.id),
        "scope": "telegram:42",
        "platform": "telegram",
        "account": "default",
        "outcome": "final_text",
        "question": "What?",
        "answer": "That.",
        "may_act": False,
    }


async def test_without_plugins_nothing_waits(database: Database) -> None:
    """There is nobody to be told."""
    told: list[object] = []
    recall = Recall(database, Plugins((active(pre_tool_call=told.append),)), OWNER)
    recall.finished(await a_turn(database), "final_text", "That.")
    await recall.wait_idle()
    assert told == []


async def test_a_queue_that_is_full_drops_what_comes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn does not wait; the log says so."""
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    turn, memory = await a_turn(database), Memory()
    recall = Recall(database, with_providers(memory), OWNER)
    with capture_logs() as logs:
        await told(recall, (turn, "final_text", "1"), (turn, "final_text", "2"))
    assert [each.answer for each in memory.exchanges] == ["1"]
    assert [each["event"] for each in logs] == ["plugins_not_told"]


async def test_trouble_with_the_disk_is_logged(database: Database) -> None:
    """The next turn is told as before."""
    turn, memory = await a_turn(database), Memory()
    recall = Recall(database, with_providers(memory), OWNER)
    await database.close()
    with capture_logs() as logs:
        await told(recall, (turn, "final_text", "1"), (turn, "final_text", "2"))
    assert [each["event"] for each in logs] == ["plugins_not_told"] * 2
