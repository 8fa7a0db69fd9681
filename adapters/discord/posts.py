"""Posts and edits messages in channels and threads (step 9); never in a thread's parent channel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adapters.discord.api import Api
from adapters.discord.errors import UNKNOWN_CHANNEL, Refusal, mapped_call, mapped_post
from adapters.discord.threads import Threads
from adapters.messages import Address, Choice

if TYPE_CHECKING:
    from adapters.messages import OutgoingFile

_SUPPRESS_EMBEDS = 1 << 2
_BUTTONS_PER_ROW = 5
_ROW, _BUTTON, _GREY = 1, 2, 2
_MESSAGES = "/channels/{channel_id}/messages"


def channel_of(address: Address) -> str:
    """Return the id of the channel or thread that an address names."""
    return address.thread or address.chat


def body_of(text: str, choices: Sequence[Choice] = ()) -> dict[str, Any]:
    """Return a message for Discord: nobody is pinged, no link preview is added."""
    return {
        "content": text,
        "components": _rows(choices),
        "allowed_mentions": {"parse": []},
        "flags": _SUPPRESS_EMBEDS,
    }


class Posts:
    """The messages of one account.

    Args:
        api: Carries them.
        threads: Opens those that are not there yet.
    """

    def __init__(self, api: Api, threads: Threads) -> None:
        self._api = api
        self._threads = threads

    async def post(
        self, address: Address, body: dict[str, Any], file: "OutgoingFile | None" = None
    ) -> str:
        """Show a new message; return its id.

        Raises:
            AdapterError: See `Adapter.send`.
        """
        if address.thread is None:
            return await self._create(address.chat, body, file)
        await self._threads.pending.wait(address.thread)
        try:
            ref = await self._create(address.thread, body, file)
        except Refusal as exc:
            if exc.code != UNKNOWN_CHANNEL:
                raise
            await self._threads.reopen(address)
            ref = await self._create(address.thread, body, file)
        self._threads.note(address.thread)
        return ref

    async def edit(self, address: Address, ref: str, body: dict[str, Any]) -> None:
        """Change a message.

        Raises:
            SendDelayed: Try again later.
            SendRejected: It cannot be changed.
        """
        with mapped_call():
            shown = await self._api.call(
                "PATCH",
                _MESSAGES + "/{message_id}",
                json=body,
                channel_id=channel_of(address),
                message_id=ref,
            )
            # A page that answers for Discord, such as that of a Wi-Fi, has changed nothing.
            shown["id"]

    async def delete(self, address: Address, ref: str) -> None:
        """Take a message away.

        Raises:
            SendDelayed: Try again later.
            SendRejected: It cannot be taken away.
        """
        with mapped_call():
            await self._api.call(
                "DELETE",
                _MESSAGES + "/{message_id}",
                channel_id=channel_of(address),
                message_id=ref,
            )

    async def _create(self, channel: str, body: dict[str, Any], file: "OutgoingFile | None") -> str:
        with mapped_post():
            if file is None:
                sent = await self._api.call("POST", _MESSAGES, json=body, channel_id=channel)
            else:
                sent = await self._api.upload(_MESSAGES, body, file, channel_id=channel)
            return str(sent["id"])


def _rows(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    buttons = [
        {"type": _BUTTON, "style": _GREY, "label": choice.label, "custom_id": choice.text}
        for choice in choices
    ]
    rows = [buttons[n : n + _BUTTONS_PER_ROW] for n in range(0, len(buttons), _BUTTONS_PER_ROW)]
    return [{"type": _ROW, "components": row} for row in rows]
