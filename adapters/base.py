"""The ports between platforms and gateway: `Adapter` (a platform), `Intake`, `History`."""

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
"""An update from a platform, parsed by its adapter."""


class Intake(Protocol):
    """Durable admission of updates; implemented by the gateway, called by adapters."""

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        """Commit updates in one transaction: moves first, and the cursors with them.

        An adapter may acknowledge the updates to its platform only after this returns. Returns one
        admission per message, in the same order.

        Raises:
            StorageUnavailable: Nothing was stored; do not acknowledge.
        """

    def wait_s(self, platform: str, sender: str) -> float:
        """Return the number of seconds until a member may send another message."""

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source, or None before its first update."""

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the positions of all sources whose name has this prefix, by name."""

    async def is_conversation(self, address: Address) -> bool:
        """Return whether the bot has a conversation in this direct chat or thread."""


class PoolUse(Protocol):
    """Usage of one account's connections; `limit` is None if unlimited."""

    limit: int | None
    replaced: int

    @property
    def in_use(self) -> int:
        """Connections that carry a request or are lost to the pool; idle ones do not count."""

    def figures(self) -> dict[str, int | None]:
        """Return `in_use`, `limit` and `replaced` (how often the client was replaced) by name."""


FENCE: ContextVar[Callable[[], bool] | None] = ContextVar("FENCE", default=None)
"""Called before each request of a send; returns whether this process still holds the send lease."""
Clock = Callable[[], float]
"""Returns monotonic seconds."""
Renderer = Callable[[str], list[str]]
"""Splits Markdown into at least one payload, each within the platform's limits; pure."""


class Share:
    """This process's share of an account's budgets if multiple processes send for it.

    Attributes:
        of: Number of processes that share the budgets of the account and its groups. A direct
            chat's budget is not shared: one process sends for a conversation.
        held_until: No message is sent before this time, in monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.of = 1
        self.held_until = float("-inf")
        self._clock = clock

    def hold(self, seconds: float) -> None:
        """Pause sending for a while, until other processes know that the budgets are shared."""
        self.held_until = self._clock() + seconds


class PreviewIntent:
    """Announces the first message of a preview, so that a crash does not leave it behind.

    This class stores nothing; the gateway passes a durable implementation.
    """

    async def begin(self) -> str:
        """Announce a new message right before it is posted; return its nonce: 24 hex characters.

        From then on the chat may show the message, until `preview` returns its id or `undo` is
        called.
        """
        return secrets.token_hex(12)

    def undo(self) -> None:
        """Cancel the announcement, because the message was not shown."""


UNANNOUNCED = PreviewIntent()


K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """A dictionary of at most `most` entries; the oldest are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @override
    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # Reassigning a key would keep its old position, and it would be dropped too early.
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)


class Receives(Protocol):
    """A connection that receives updates."""

    @property
    def connected(self) -> bool:
        """Whether the platform was reached recently; shown by /readyz."""

    async def run(self) -> None:
        """Receive updates until cancelled; every call starts a new client.

        Raises:
            AdapterDisconnected: Call this method again, with back-off.
            AdapterRefused: The credentials are wrong; the message names the setting.
        """


class Adapter(Protocol):
    """One account of one platform. Its constructor makes no network call.

    A cancelled caller stops waiting, but a request that has begun runs to its end.

    Attributes:
        idempotent_sends: A row sent twice is shown only once, so no `sending` mark is needed.
    """

    platform: str
    account: str
    idempotent_sends: bool
    preview_interval_s: float

    @property
    def receivers(self) -> Sequence[Receives]:
        """The connections that receive updates; always the same, in the same order."""

    @property
    def is_exclusive(self) -> bool:
        """Whether only one process at a time may run each receiver; the others only send."""

    @property
    def pool(self) -> PoolUse | None:
        """Usage of the sending connections; None if there are none."""

    async def close(self) -> None:
        """Close the connections. Until then messages can be sent, even if nothing is received."""

    def render(self, markdown: str) -> list[str]:
        """Split an answer into payloads; see `Renderer`."""

    async def send(self, message: Outgoing) -> Receipt:
        """Send one payload that fits the platform's limits.

        Raises:
            SendDelayed: The payload was not shown; retry later.
            SendUnknown: The payload may have been shown.
            SendRejected: The payload will never be shown.
        """

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Remove the buttons of a message; idempotent.

        Raises:
            SendDelayed: Retry later.
            SendRejected: The message can no longer be changed.
        """

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file that came with a message.

        Raises:
            FetchDelayed: Retry later.
            FetchRejected: The file no longer exists or exceeds `limit_bytes`.
        """

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

        A later `send` to this address appears after it, even if the caller was cancelled.

        Args:
            text: The whole Markdown text so far, followed by lines about running tools.
            ref: The result of the previous call for this answer; None for the first call.
            grows: Whether later texts are likely to start with this one; False if it lists running
                tools.

        Returns:
            The platform's id of the preview message, for `Outgoing.preview_ref`, or None.
        """

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Return the id of an announced preview, as `preview` would have; None if not shown.

        Messages with an id in `others` are known not to be the preview.

        Raises:
            SendDelayed: The lookup is impossible now.
            SendRejected: The lookup will never be possible.
        """

    async def show_working(self, question: MessageRef) -> None:
        """Show that an answer is in progress ("typing"), best effort; lasts about 5 s."""

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the question's message, replacing an earlier reaction; best effort."""


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A conversation in the web chat's list; times are ISO 8601 in UTC."""

    chat: str
    title: str
    updated_at: str


@dataclass(frozen=True, slots=True)
class ChatItem:
    """One message as a user sees it.

    Items are ordered by (inbox_seq, outbox_seq): a user's message has outbox_seq 0, and its answers
    follow.

    Attributes:
        markdown: Raw Markdown, or the plain text of a user's message.
        notice: Whether it is a notice before the answer.
        taken: Whether it confirms that the answer to a question was accepted, as its buttons do.
        over: Number of a question that ended and loses its buttons; `markdown` is then a note about
            that, not a message.
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
    """A stored file; `History.file` opens it by `id`."""

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
    """The web chat's read access to the database; the gateway implements it."""

    async def chats(self, platform: str, account: str, sender: str) -> list[ChatSummary]:
        """Return a user's own conversations, most recently active first, at most 200."""

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return the items after the two positions, in order; empty for an unknown chat."""

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat, or None."""

    async def gauge(self, address: Address) -> ContextGauge:
        """Return the fill level of the conversation's window."""


class Viewers(Protocol):
    """The open pages of the web chat in this process; every method returns at once."""

    def refresh(self, chat: str) -> None:
        """Make the chat's pages reload the history."""

    def show(self, chat: str, text: str) -> None:
        """Show a growing answer in the chat's pages; an empty text removes it."""

    def show_working(self, chat: str) -> None:
        """Show in the chat's pages that an answer is in progress."""


class Elsewhere:
    """Other processes that serve the web chat; every method returns at once.

    This class has none; a gateway with multiple replicas passes one that does.
    """

    def join(self, viewers: Viewers) -> None:
        """Start showing in these pages the answers that other processes make."""

    def opened(self, chat: str) -> None:
        """Report that a page of this process opened a chat."""

    def closed(self, chat: str) -> None:
        """Report that no page of this process shows a chat any longer."""

    def growing(self, chat: str, text: str) -> None:
        """Report the growing answer of a chat that this process makes."""

    def working(self, chat: str) -> None:
        """Report that this process is making an answer in a chat."""

    def ended(self, chat: str) -> None:
        """Report that a chat no longer has a growing answer."""


ALONE = Elsewhere()
