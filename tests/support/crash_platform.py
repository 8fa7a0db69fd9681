"""A chat platform on a loopback port of the test's process: it outlives every killed gateway.

It re-delivers updates until they are acknowledged and shows every send that it accepts. One
request per connection: a JSON line there, a JSON line back.
"""

import asyncio
import json
import os
import re
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tests.support.thorough import WAIT_S

Fault = Literal["delay", "doubt", "reject"]
"""delay: asks to come again; doubt: shows it and hangs up; reject: never takes it."""
REFERENCE = re.compile(r"\n\nReference: `[0-9a-f]{8}`\Z")
"""How the text of a turn that failed ends; test_turn.py proves that its digits are right."""


@dataclass
class Shown:
    """A message that people see in a chat; `final` tells answers from previews.

    `begun_as` is the nonce of a message that was a preview at first, `by` the process that made it
    final.
    """

    ref: str
    text: str
    final: bool
    buttons: bool = False
    begun_as: str = ""
    by: int = 0


@dataclass
class Update:
    """What a person wrote."""

    number: int
    chat: str
    text: str


@dataclass
class Gate:
    """Where models wait until the test lets them go on.

    Attributes:
        reached: How many calls have come here.
        passes: How many calls of a process may go on while the gate is closed.
    """

    reached: int = 0
    open: bool = False
    passes: Counter[int] = field(default_factory=Counter)

    def lets(self, pid: int) -> bool:
        """Whether a call of this process may go on."""
        return self.open or self.passes[pid] > 0


class LoopbackPlatform:
    """The server; use as an async context manager.

    Attributes:
        pushed: Every update, in order.
        acknowledged: Updates below this number are forgotten by the platform.
        polls: How often a gateway asked for updates.
        chats: What stands in each chat, in order.
        notes: What the gateways' children told, in order: ("ready", …), ("refused", …).
        rejected: Texts that the platform said it would never take.
        keeps_buttons: It takes no buttons off.
        gate: Where the model waits for messages with the verb `gate`.
        refuses: It takes the bot's token no more; see `refuse`.
        fuse: How many models must have reached the gate before one with the verb `die` dies.
        show_once: Recognise the nonce of a send that was accepted before.
        on_note: Called with what a child tells and its pid, before that goes on.
        one_poller: Who asks for updates ends the request of another process that does, as Telegram
            has it (409).
        conflicts: (the process that was ended, who ended it, when, in monotonic seconds).
        sent: (text, when, in monotonic seconds) of all that was taken.
    """

    def __init__(self, *, show_once: bool = False, one_poller: bool = False) -> None:
        self.show_once = show_once
        self.one_poller = one_poller
        self.on_note: Callable[[str, int], None] = lambda _what, _pid: None
        self.conflicts: list[tuple[int, int, float]] = []
        self.sent: list[tuple[str, float]] = []
        self.port = 0
        self.pushed: list[Update] = []
        self.acknowledged = 1
        self.polls = 0
        self.fuse = 0
        self.chats: dict[str, list[Shown]] = defaultdict(list)
        self.notes: list[tuple[str, str]] = []
        self.gate = Gate()
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.rejected: list[str] = []
        self.keeps_buttons = self.refuses = False
        self._nonces: dict[str, str] = {}
        self._refs = 0
        self._pollers: dict[object, int] = {}
        self._closing = asyncio.Event()
        self._talking: dict[asyncio.Task[None], int | None] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._closing.set()
        if self._talking:
            await asyncio.wait(self._talking)

    async def push(self, chat: str, text: str) -> None:
        """Let a person write."""
        self.pushed.append(Update(len(self.pushed) + 1, chat, text))
        await self._notify()

    def shown_by(self, pids: Collection[int]) -> list[tuple[str, str]]:
        """Return (chat, text) of what these processes have shown for good."""
        return [
            (chat, shown.text)
            for chat, there in self.chats.items()
            for shown in there
            if shown.final and shown.by in pids
        ]

    def finals(self, chat: str) -> list[str]:
        """Return what was said in a chat for good, in order, without the references of failures."""
        return [REFERENCE.sub("", shown.text) for shown in self.chats[chat] if shown.final]

    def all_finals(self) -> list[str]:
        """Return what was said in all chats."""
        return [text for chat in list(self.chats) for text in self.finals(chat)]

    async def open_gate(self, pid: int | None = None) -> None:
        """Let all models go on, or only the next call of one process."""
        if pid is None:
            self.gate.open = True
        else:
            self.gate.passes[pid] += 1
        await self._notify()

    async def refuse(self, *, refuses: bool = True) -> None:
        """Answer who asks for updates that the token is refused, or no more so."""
        self.refuses = refuses
        await self._notify()

    async def wait_for(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Wait until the condition holds; it is looked at after every request."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: bool(condition()))

    def noted(self, what: str) -> int:
        """Return how often the children have noted this."""
        return sum(each == what for each, _ in self.notes)

    async def hang_up(self, pid: int) -> None:
        """Wait until every request of a process that is gone has been dealt with."""
        while waiting := [task for task, of in self._talking.items() if of in {None, pid}]:
            await asyncio.wait(waiting)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talking[task] = None
        try:
            line = await reader.readline()
            if line.endswith(b"\n"):
                request = json.loads(line)
                self._talking[task] = request["pid"]
                await self._answer(request, reader, writer)
        except ConnectionError:
            return
        finally:
            del self._talking[task]
            writer.close()
            await self._notify()

    async def _answer(
        self, request: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a request out; that its caller is gone ends it where it waits."""
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(getattr(self, f"_do_{request['do']}")(request), name="work")
            gone = tasks.create_task(reader.read(), name="caller gone")
            closing = tasks.create_task(self._closing.wait(), name="closing")
            await asyncio.wait([work, gone, closing], return_when=asyncio.FIRST_COMPLETED)
            for task in (work, gone, closing):
                task.cancel()
        if not work.cancelled() and work.result() is not None:
            writer.write(json.dumps(work.result()).encode() + b"\n")
            await writer.drain()

    async def _do_poll(self, request: Any) -> Any:
        self.polls += 1
        self.acknowledged = max(self.acknowledged, request["offset"])
        pid, this = request["pid"], object()
        if self.one_poller:
            others = [each for each in self._pollers.values() if each != pid]
            self.conflicts += [(each, pid, time.monotonic()) for each in others]
            self._pollers.clear()
        self._pollers[this] = pid
        await self._notify()
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: (
                        len(self.pushed) >= self.acknowledged
                        or this not in self._pollers
                        or self.refuses
                    )
                )
            if self.refuses:
                return {"error": "refused"}
            if this not in self._pollers:
                return {"error": "conflict"}
        finally:
            self._pollers.pop(this, None)
        updates = self.pushed[self.acknowledged - 1 :][: request["limit"]]
        return {"updates": [[each.number, each.chat, each.text] for each in updates]}

    async def _do_send(self, request: Any) -> Any:
        fault = self._fault_for(request["text"])
        if fault == "reject":
            self.rejected.append(request["text"])
        if fault in {"delay", "reject"}:
            return {"error": fault}
        ref = self._show(request)
        self.sent.append((request["text"], time.monotonic()))
        await self._notify()
        return None if fault == "doubt" else {"ref": ref}

    async def _do_withdraw(self, request: Any) -> Any:
        shown = self._find(request["chat"], request["ref"])
        if shown is None or self.keeps_buttons:
            return {"error": "reject"}
        shown.text, shown.buttons = request["text"], False
        return {}

    async def _do_preview(self, request: Any) -> Any:
        shown = self._find(request["chat"], request["ref"])
        if shown is None:
            shown = self._new(request["chat"], request["text"], final=False)
            shown.begun_as = request["nonce"]
        if not shown.final:
            shown.text = request["text"]
        return {"ref": shown.ref}

    async def _do_find(self, request: Any) -> Any:
        begun = [each for each in self.chats[request["chat"]] if each.begun_as == request["nonce"]]
        return {"ref": begun[0].ref if begun else None}

    async def _do_gate(self, request: Any) -> Any:
        self.gate.reached += 1
        await self._notify()
        async with self._changed:
            await self._changed.wait_for(lambda: self.gate.lets(request["pid"]))
        self.gate.passes[request["pid"]] -= 1
        return {}

    async def _do_fuse(self, _: Any) -> Any:
        async with self._changed:
            await self._changed.wait_for(lambda: self.gate.reached >= self.fuse)
        return {}

    async def _do_note(self, request: Any) -> Any:
        self.notes.append((request["what"], request["text"]))
        self.on_note(request["what"], request["pid"])
        return {}

    def _show(self, request: Any) -> str:
        if self.show_once and request["nonce"] in self._nonces:
            return self._nonces[request["nonce"]]
        shown = self._find(request["chat"], request["ref"])
        if shown is None:
            shown = self._new(request["chat"], request["text"], final=True)
        shown.text, shown.final, shown.buttons = request["text"], True, request["buttons"]
        shown.by = request["pid"]
        self._nonces[request["nonce"]] = shown.ref
        return shown.ref

    def _find(self, chat: str, ref: str | None) -> Shown | None:
        return next((shown for shown in self.chats[chat] if shown.ref == ref), None)

    def _new(self, chat: str, text: str, *, final: bool) -> Shown:
        self._refs += 1
        self.chats[chat].append(Shown(f"r{self._refs}", text, final))
        return self.chats[chat][-1]

    def _fault_for(self, text: str) -> Fault | None:
        for message_id, faults in self.faults.items():
            if faults and message_id in text.removeprefix("(re-sent) ").split()[0].split(","):
                return faults.popleft()
        return None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def tell(port: int, what: str) -> None:
    """Note something at a platform and wait until it has noted it; blocks."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        request = {"do": "note", "what": what, "text": "", "pid": os.getpid()}
        connection.sendall(json.dumps(request).encode() + b"\n")
        connection.recv(100)


async def ask(port: int, **request: Any) -> Any:
    """Make one request of a platform, from another process.

    Raises:
        ConnectionError: It hung up without an answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps({**request, "pid": os.getpid()}).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line.endswith(b"\n"):
        raise ConnectionError("the platform hung up")
    return json.loads(line)
