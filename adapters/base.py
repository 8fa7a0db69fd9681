"""The ports between platforms and gateway: `Adapter` (a platform), `Intake`, `History`.

Also `Elsewhere`, and what adapters are built with: `PoolUse`, `Share`, `PreviewIntent`, `Recent`.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeVar

from typing_extensions import override

from adapters.messages import (
    Address,
    Admission,
    Attachment,
    Choice,
    Cursor,
    InboundMessage,
    MessageRef,
    Move,
    Outgoing,
    OutgoingFile,
    Poison,
    Reaction,
    Receipt,
    Withdrawal,
)

Update = InboundMessage | Move | Poison
"""What an adapter makes of an update of its platform."""


class Intake(Protocol):
    """Durable admission; the gateway implements it, adapters call it."""

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        """Commit updates in one transaction, moves first and the cursors with them.

        Only after this returned may the platform be told that the updates were received.

        Returns:
            One admission for each message, in the same order.

        Raises:
            StorageUnavailable: Nothing was stored; do not confirm, deliver again later.
        """
        ...

    def wait_s(self, platform: str, sender: str) -> float:
        """Return the seconds until a member may send another message, 0 for now."""
        ...

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source's cursor, None before the first update."""
        ...

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the positions of all sources with a name prefix."""
        ...

    async def is_conversation(self, address: Address) -> bool:
        """Whether the bot has a conversation in this direct chat or thread."""
        ...


class PoolUse(Protocol):
    """How far the connections behind the requests of one account are used, at any time.

    Attributes:
        limit: How many there can be; None for no limit.
        replaced: How often the client was replaced by a fresh one since the start.
    """

    limit: int | None
    replaced: int

    @property
    def in_use(self) -> int:
        """How many carry a request now, or are lost to the pool; idle ones do not count."""
        ...

    def figures(self) -> dict[str, int | None]:
        """Return all three by name, as they are now."""
        ...


FENCE: ContextVar[Callable[[], bool] | None] = ContextVar("FENCE", default=None)
"""Asked before each request of a send: whether no other process can have sent it meanwhile."""
Clock = Callable[[], float]
"""Tells monotonic seconds."""
Renderer = Callable[[str], list[str]]
"""Splits markdown into payloads, each within the platform's limits; pure, never empty."""


class Share:
    """What part of an account's budgets is this process's, where several send for it.

    Attributes:
        of: Among so many the budgets of the account, and of each group, are divided; those of a
            direct chat are not, since one process sends what a conversation shows.
        held_until: Nothing is sent before, by the clock of whoever sends.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.of = 1
        self.held_until = float("-inf")
        self._clock = clock

    def hold(self, seconds: float) -> None:
        """Send nothing for so long: others do not know yet that they have to share."""
        self.held_until = self._clock() + seconds


class PreviewIntent:
    """Announces the first message of a preview, so that a crash leaves none behind.

    This one stores nothing; the gateway hands in a durable one.
    """

    async def begin(self) -> str:
        """Announce a new message, right before it is posted; returns its nonce: 24 hex characters.

        From then on it may stand in the chat: until `preview` returns its id, or `undo`.
        """
        return secrets.token_hex(12)

    def undo(self) -> None:
        """Take the announcement back: nothing was shown."""


UNANNOUNCED = PreviewIntent()


K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """What an adapter has noted lately; the oldest goes, so that memory does not grow with time.

    Attributes:
        most: How many entries are kept.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @override
    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # A key that is set again would keep its old place, and go too early.
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)


class Receives(Protocol):
    """A connection over which updates come."""

    @property
    def connected(self) -> bool:
        """Whether the platform was reached lately; shown by /readyz."""
        ...

    async def run(self) -> None:
        """Receive updates until cancelled, handing each to the intake.

        May be called again after it raised AdapterDisconnected; every call starts a fresh client.

        Raises:
            AdapterDisconnected: Restart me with back-off.
            AdapterRefused: Credentials are wrong; the message says which setting to fix.
        """
        ...


class Adapter(Protocol):
    """One account of one platform. Its constructor imports the SDK and does no network call.

    A caller that is cancelled stops waiting; a request that is on its way goes on to its end.

    Attributes:
        platform: "telegram", "web", …
        account: Name of the account within the platform; "default" unless configured.
        idempotent_sends: Sending the same row twice shows it once, so no `sending` mark is needed.
        preview_interval_s: Least time between two previews in one chat; 0 for none.
    """

    platform: str
    account: str
    idempotent_sends: bool
    preview_interval_s: float

    @property
    def receivers(self) -> Sequence[Receives]:
        """The connections that bring updates; always the same ones, in the same order."""
        ...

    @property
    def is_exclusive(self) -> bool:
        """Whether one process at a time may run a receiver.

        Of several processes one does then, for each receiver; the others only send. Else all do:
        updates may come to any of them.
        """
        ...

    @property
    def pool(self) -> PoolUse | None:
        """How far the connections for sending are used; None where there are none."""
        ...

    async def close(self) -> None:
        """Give back connections. Sends are possible until then, also without receiving."""
        ...

    def render(self, markdown: str) -> list[str]:
        """Split an answer into payloads, each within the platform's limits; pure, never empty."""
        ...

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload, pacing it to the platform's limits.

        Raises:
            SendDelayed: Nothing was shown; try again later.
            SendUnknown: It may have been shown.
            SendRejected: It will never be shown.
        """
        ...

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Take the buttons off a message; may be repeated.

        Raises:
            SendDelayed: Try again later.
            SendRejected: The message cannot be changed any more.
        """
        ...

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file that came with a message.

        Raises:
            FetchDelayed: Try again later.
            FetchRejected: It cannot be had any more, or it has more than `limit_bytes`.
        """
        ...

    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,
        intent: PreviewIntent = UNANNOUNCED,
    ) -> str | None:
        """Show an answer as it grows, best effort: never raises an AdapterError, never queues.

        A later `send` at this address comes behind it, also where the caller was cancelled.

        Args:
            question: What is answered; the answer will appear at its address.
            text: The whole markdown text so far; lines about the tools that run above it.
            ref: What the previous call for this answer returned.
            grows: Whether later texts are likely to begin as this one does; not where it tells
                which tools run.
            intent: Is told before a new message is posted, where previews are messages.

        Returns:
            The platform's id of the preview message, to be replaced by the final answer through
            `Outgoing.preview_ref`; None where there is none.
        """
        ...

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Look up a preview that was announced, and whose id nobody knows.

        Args:
            others: Ids of messages that are known to be something else.

        Returns:
            Its id, as `preview` would have returned it; None where it was never shown.

        Raises:
            SendDelayed: It cannot be said now.
            SendRejected: It can never be said.
        """
        ...

    async def show_working(self, question: MessageRef) -> None:
        """Show that an answer is being made ("typing"), best effort; lasts about 5 s."""
        ...

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to `question.message_ref`, in place of an earlier reaction; best effort."""
        ...


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A conversation in the list of the web chat; times are ISO 8601 in UTC."""

    chat: str
    title: str
    updated_at: str


@dataclass(frozen=True, slots=True)
class ChatItem:
    """One message as a person sees it.

    Items are ordered by (inbox_seq, outbox_seq): what a person wrote has outbox_seq 0, the answers
    that belong to it follow. `markdown` is raw markdown (or plain text, for a person's message).
    A `notice` is said while the answer is still to come.

    Attributes:
        files: What came with it, or what it shows.
        choices: Its buttons, if it has any.
        ref: Of a person's message: its `message_ref`.
        taken: It says that the answer to a question was taken, which its buttons show as well.
        over: The buttons of the question with this number are to go; `markdown` is how it ended,
            and no message.
    """

    inbox_seq: int
    outbox_seq: int
    markdown: str
    at: str
    notice: bool = False
    files: tuple["ChatFile", ...] = ()
    choices: tuple[Choice, ...] = ()
    ref: str | None = None
    taken: bool = False
    over: int = 0


@dataclass(frozen=True, slots=True)
class ChatFile:
    """A stored file; `id` opens it through `History.file`."""

    id: int
    name: str
    mime: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ContextGauge:
    """How full the model's window is; `used_tokens` is None before the first answer."""

    used_tokens: int | None
    window_tokens: int


class History(Protocol):
    """What the web chat reads from the database; the gateway implements it."""

    async def chats(self, platform: str, account: str, sender: str) -> list[ChatSummary]:
        """Return somebody's own conversations, newest activity first, at most 200."""
        ...

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return what was said after the two positions, in order; empty for an unknown chat."""
        ...

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat, and of no other; None if there is none."""
        ...

    async def gauge(self, address: Address) -> ContextGauge:
        """Return how much of the window the conversation fills."""
        ...


class Viewers(Protocol):
    """Who looks at chats of the built-in platform in this process; every call returns at once."""

    def refresh(self, chat: str) -> None:
        """Have them read the history again."""
        ...

    def show(self, chat: str, text: str) -> None:
        """Show them a growing answer; an empty text shows none."""
        ...

    def show_working(self, chat: str) -> None:
        """Show them that an answer is being made."""
        ...


class Elsewhere:
    """Other processes that serve the chats of the built-in platform; every call returns at once.

    This one knows of none; where there are replicas the gateway hands in one that does.
    """

    def join(self, viewers: Viewers) -> None:
        """Tell these from now on what happens elsewhere in the chats that they look at."""

    def opened(self, chat: str) -> None:
        """Note that somebody looks at a chat here."""

    def closed(self, chat: str) -> None:
        """Note that nobody looks at a chat here any more."""

    def growing(self, chat: str, text: str) -> None:
        """Tell how far the answer in a chat has grown that is made here."""

    def working(self, chat: str) -> None:
        """Tell that an answer in a chat is still being made here."""

    def ended(self, chat: str) -> None:
        """Tell that no answer grows in a chat any more."""


ALONE = Elsewhere()
