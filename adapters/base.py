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
"""An update of a platform, read by its adapter."""


class Intake(Protocol):
    """Durable admission; the gateway implements it, adapters call it."""

    async def accept(
        self, updates: Sequence[Update], *, cursors: Sequence[Cursor] = ()
    ) -> list[Admission]:
        """Commit updates in one transaction, moves first and the cursors with them.

        Only after this returned may an adapter acknowledge the updates to its platform. It returns
        one admission for each message, in the same order.

        Raises:
            StorageUnavailable: Nothing was stored; do not acknowledge.
        """

    def wait_s(self, platform: str, sender: str) -> float:
        """Return the seconds until a member may send another message."""

    async def position(self, source: str) -> int | None:
        """Return the committed position of a source, or None before its first update."""

    async def positions(self, prefix: str) -> dict[str, int]:
        """Return the positions of all sources with a name prefix, by name."""

    async def is_conversation(self, address: Address) -> bool:
        """Whether the bot has a conversation in this direct chat or thread."""


class PoolUse(Protocol):
    """The use of one account's connections; `limit` is None if there is no limit."""

    limit: int | None
    replaced: int

    @property
    def in_use(self) -> int:
        """Connections with a request, or lost to the pool; idle ones do not count."""

    def figures(self) -> dict[str, int | None]:
        """Return `in_use`, `limit` and `replaced` (how often the client was) by name."""


FENCE: ContextVar[Callable[[], bool] | None] = ContextVar("FENCE", default=None)
"""Called before each request of a send: whether this process still holds the lease for it."""
Clock = Callable[[], float]
"""Returns monotonic seconds."""
Renderer = Callable[[str], list[str]]
"""Splits markdown into payloads, each within the platform's limits; pure, never empty."""


class Share:
    """This process's share of an account's budgets if several processes send for it.

    Attributes:
        of: Number of processes that share the budgets of the account and of each group. Those of a
            direct chat are not shared: one process sends for a conversation.
        held_until: Nothing is sent before, in monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.of = 1
        self.held_until = float("-inf")
        self._clock = clock

    def hold(self, seconds: float) -> None:
        """Send nothing for a time: others do not know yet that they have to share."""
        self.held_until = self._clock() + seconds


class PreviewIntent:
    """Announces the first message of a preview, so that a crash leaves none behind.

    This one stores nothing; the gateway passes a durable one.
    """

    async def begin(self) -> str:
        """Announce a new message right before it is posted; return its nonce: 24 hex characters.

        From then on the chat may show it, until `preview` returns its id, or `undo`.
        """
        return secrets.token_hex(12)

    def undo(self) -> None:
        """Cancel the announcement: nothing was shown."""


UNANNOUNCED = PreviewIntent()


K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """A dictionary of at most `most` entries, from which the oldest are dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @override
    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # A key that is set again would keep its old place, and be dropped too early.
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)


class Receives(Protocol):
    """A connection over which updates come."""

    @property
    def connected(self) -> bool:
        """Whether the platform was reached lately; shown by /readyz."""

    async def run(self) -> None:
        """Receive updates until cancelled; every call starts a fresh client.

        Raises:
            AdapterDisconnected: Call it again, with back-off.
            AdapterRefused: Credentials are wrong; the message names the setting.
        """


class Adapter(Protocol):
    """One account of one platform. Its constructor makes no network call.

    A caller that is cancelled stops waiting; a request that has begun goes on to its end.

    Attributes:
        idempotent_sends: The same row sent twice is shown once, so no `sending` mark is needed.
        preview_interval_s: Least time between two previews in one chat.
    """

    platform: str
    account: str
    idempotent_sends: bool
    preview_interval_s: float

    @property
    def receivers(self) -> Sequence[Receives]:
        """The connections that bring updates; always the same ones, in the same order."""

    @property
    def is_exclusive(self) -> bool:
        """Whether only one process at a time may run each receiver; the others only send."""

    @property
    def pool(self) -> PoolUse | None:
        """The use of the connections for sending; None if there are none."""

    async def close(self) -> None:
        """Close the connections. Sends are possible until then, also without receiving."""

    def render(self, markdown: str) -> list[str]:
        """Split an answer into payloads; see `Renderer`."""

    async def send(self, message: Outgoing) -> Receipt:
        """Show one payload, within the platform's limits.

        Raises:
            SendDelayed: Nothing was shown; try again later.
            SendUnknown: It may have been shown.
            SendRejected: It will never be shown.
        """

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Remove the buttons of a message; may be repeated.

        Raises:
            SendDelayed: Try again later.
            SendRejected: The message cannot be changed any more.
        """

    async def fetch(self, address: Address, attachment: Attachment, limit_bytes: int) -> bytes:
        """Download a file that came with a message.

        Raises:
            FetchDelayed: Try again later.
            FetchRejected: It is gone, or it has more than `limit_bytes`.
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

        A later `send` at this address comes behind it, even if the caller was cancelled.

        Args:
            text: The whole markdown text so far, below lines about running tools.
            ref: The result of the previous call for this answer; None for the first.
            grows: Later texts are likely to begin with this one; False if it names running tools.

        Returns:
            The platform's id of the preview message, for `Outgoing.preview_ref`, or None.
        """

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Return the id of an announced preview, as `preview` would have; None if it is not shown.

        Messages with the ids `others` are known to be something else.

        Raises:
            SendDelayed: It cannot be looked up now.
            SendRejected: It can never be looked up.
        """

    async def show_working(self, question: MessageRef) -> None:
        """Show that an answer is being made ("typing"), best effort; lasts about 5 s."""

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the question's message, in place of an earlier reaction; best effort."""


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A conversation in the list of the web chat; times are ISO 8601 in UTC."""

    chat: str
    title: str
    updated_at: str


@dataclass(frozen=True, slots=True)
class ChatItem:
    """One message as a user sees it.

    Items are ordered by (inbox_seq, outbox_seq): a user's message has outbox_seq 0, its answers
    follow.

    Attributes:
        markdown: Raw markdown, or plain text of a user's message.
        notice: It comes before the answer.
        choices: Its buttons.
        ref: The `message_ref` of a user's message.
        taken: It says that the answer to a question was accepted, as do its buttons.
        over: The question with this number ended and loses its buttons; `markdown` is the note
            about that, not a message.
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
        """Return a user's own conversations, newest activity first, at most 200."""

    async def items(
        self, address: Address, *, after_inbox: int = 0, after_outbox: int = 0
    ) -> list[ChatItem]:
        """Return the items after the two positions, in order; empty for an unknown chat."""

    async def file(self, address: Address, file_id: int) -> OutgoingFile | None:
        """Return a file of this chat, or None."""

    async def gauge(self, address: Address) -> ContextGauge:
        """Return the fill of the conversation's window."""


class Viewers(Protocol):
    """The open pages of the web chat in this process; every call returns at once."""

    def refresh(self, chat: str) -> None:
        """Make them read the history again."""

    def show(self, chat: str, text: str) -> None:
        """Show them a growing answer; an empty text shows none."""

    def show_working(self, chat: str) -> None:
        """Show them that an answer is being made."""


class Elsewhere:
    """Other processes that serve the web chat; every call returns at once.

    This one has none; the gateway of several replicas passes one that does.
    """

    def join(self, viewers: Viewers) -> None:
        """Show these pages from now on the answers that are made elsewhere."""

    def opened(self, chat: str) -> None:
        """Note that a page shows a chat here."""

    def closed(self, chat: str) -> None:
        """Note that no page shows a chat here any more."""

    def growing(self, chat: str, text: str) -> None:
        """Report the growing answer of a chat that is made here."""

    def working(self, chat: str) -> None:
        """Report that an answer in a chat is being made here."""

    def ended(self, chat: str) -> None:
        """Report that no answer grows in a chat any more."""


ALONE = Elsewhere()
