"""Opens the threads in which conversations go on; a thread has the id of the message it is from."""

from collections import OrderedDict

import structlog

from adapters.base import Intake
from adapters.discord.api import Api
from adapters.discord.errors import (
    THREAD_EXISTS,
    TITLE_REFUSED,
    UNKNOWN_CHANNEL,
    Refusal,
    mapped_call,
)
from adapters.discord.inbound import PLAIN_TITLE, source_name, title_of
from adapters.discord.pending import Pending
from adapters.errors import AdapterError
from adapters.messages import Address
from adapters.pacing import Pacer

log = structlog.get_logger()

AUTO_ARCHIVE_MIN = 1440
_REMEMBERED = 10_000


class Threads:
    """What is known about the threads of one account.

    Args:
        api: Opens them.
        intake: Knows which were read.
        pacer: The budgets of the account.

    Attributes:
        pending: The threads that are being opened.
    """

    def __init__(self, api: Api, intake: Intake, pacer: Pacer) -> None:
        self.pending = Pending()
        self._api = api
        self._intake = intake
        self._pacer = pacer
        self._seen: OrderedDict[str, None] = OrderedDict()

    def note(self, thread: str) -> None:
        """Remember that a thread exists or existed: it will not be opened again."""
        self._seen[thread] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    async def open_for(self, address: Address, text: str) -> None:
        """Open the thread of a message that was committed, best effort: `send` tries again."""
        try:
            await self._open(address, title_of(text))
        except AdapterError as exc:
            log.warning(
                "discord_thread_not_opened",
                chat=address.chat,
                thread=address.thread,
                reason=str(exc),
            )
        finally:
            self.pending.end(address.thread or "")

    async def reopen(self, address: Address) -> None:
        """Open a thread that Discord does not know, unless it existed: then it was deleted.

        Raises:
            SendRejected: There will never be such a thread.
            SendDelayed: It cannot be opened now.
        """
        if await self._existed(address):
            raise Refusal("the thread was deleted", UNKNOWN_CHANNEL)
        await self._open(address, title_of(await self._starter_text(address)))

    async def _open(self, address: Address, title: str) -> None:
        """Open a thread, under a plain title where Discord does not take the message's words."""
        try:
            await self._create(address, title)
        except Refusal as exc:
            if exc.code not in TITLE_REFUSED or title == PLAIN_TITLE:
                raise
            await self._create(address, PLAIN_TITLE)

    async def _create(self, address: Address, title: str) -> None:
        thread = address.thread or ""
        path = "/channels/{channel_id}/messages/{message_id}/threads"
        wish = {"name": title, "auto_archive_duration": AUTO_ARCHIVE_MIN}
        try:
            with await self._pacer.wait_signal(address.chat), mapped_call():
                await self._api.call(
                    "POST", path, json=wish, channel_id=address.chat, message_id=thread
                )
        except Refusal as exc:
            if exc.code != THREAD_EXISTS:
                raise
        self.note(thread)

    async def _existed(self, address: Address) -> bool:
        """Whether something was said in the thread: its cursor has moved since it was opened."""
        thread = address.thread or ""
        if thread in self._seen:
            return True
        position = await self._intake.position(source_name(address.account, thread))
        return position is not None and position > int(thread)

    async def _starter_text(self, address: Address) -> str:
        path = "/channels/{channel_id}/messages/{message_id}"
        with mapped_call():
            starter = await self._api.get(
                path, channel_id=address.chat, message_id=address.thread or ""
            )
            return str(starter["content"])
