"""Answers button presses and removes buttons from messages."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import orjson
import structlog
from telegram import CallbackQuery, Message, MessageEntity

from adapters.base import Recent
from adapters.errors import UNREADABLE, SendDelayed, SendRejected
from adapters.messages import NOT_FOR_YOU, Admission, Withdrawal
from adapters.telegram.client import Client, is_group
from adapters.telegram.errors import mapped_edit
from adapters.telegram.render import MAX_TEXT_UNITS, units

log = structlog.get_logger()

# Most waiting presses, and most concurrent requests.
_WAITING = 256
_WORKERS = 16
_REMEMBERED = 1024
_TAKEN = frozenset({"queued", "command", "duplicate"})
# Source: https://core.telegram.org/bots/api#answercallbackquery
_MAX_NOTICE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Press:
    """A button press and its message; `markup` says whether the message still has buttons."""

    query: str
    chat: str
    message_id: int
    label: str
    text: str
    entities: Sequence[MessageEntity]
    markup: bool


def press_of(update: dict[str, Any]) -> Press:
    """Return the press of an update; raise UNREADABLE for a malformed message."""
    query = CallbackQuery.de_json(update["callback_query"], None)
    message = query.message
    # For an old message Telegram sends only the id.
    shown = message if isinstance(message, Message) else None
    keyboard = shown.reply_markup if shown else None
    buttons = [it for row in (keyboard.inline_keyboard if keyboard else ()) for it in row]
    return Press(
        query=query.id,
        chat=str(message.chat.id) if message else "",
        message_id=message.message_id if message else 0,
        label=next((it.text for it in buttons if it.callback_data == query.data), ""),
        text=(shown.text if shown else None) or "",
        entities=shown.entities if shown else (),
        markup=bool(buttons),
    )


class Buttons:
    """Answers presses after their commit; best effort, without delaying updates.

    Every press is answered at once. A message's buttons are removed once, when the chat's budget
    allows; a refused press leaves them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: asyncio.Queue[tuple[Press, Admission]] = asyncio.Queue(_WAITING)
        self._chosen: asyncio.Queue[Press] = asyncio.Queue()
        self._taken_off: Recent[tuple[str, int], None] = Recent(_REMEMBERED)

    def put(self, update: Any, admission: Admission) -> None:
        """Queue a press; if too many wait, drop it, so its button keeps spinning."""
        try:
            press = press_of(update)
        except UNREADABLE:
            reason = "it cannot be understood"
            log.debug("telegram_signal_failed", action="button", chat="", reason=reason)
            return
        if self._waiting.full():
            log.debug("telegram_signal_failed", action="button", chat=press.chat, reason="too many")
            return
        self._waiting.put_nowait((press, admission))
        is_taken = admission.outcome in _TAKEN and admission.answer != "refused"
        key = press.chat, press.message_id
        # Only the first press changes the message.
        if is_taken and press.markup and key not in self._taken_off:
            self._taken_off[key] = None
            self._chosen.put_nowait(replace(press, label=admission.over or press.label))

    async def run(self) -> NoReturn:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WORKERS):
                tasks.create_task(self._answer_all(), name="telegram buttons")
            while True:
                press = await self._chosen.get()
                tasks.create_task(self._take_off(press), name="telegram buttons")

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Replace a question's buttons by its outcome; see `Adapter.withdraw`."""
        chat, content = withdrawal.address.chat, orjson.loads(withdrawal.payload)
        with await self._client.pacer.wait(chat, group=is_group(chat)):
            try:
                await self._replace(
                    Press(
                        query="",
                        chat=chat,
                        message_id=int(withdrawal.message_ref),
                        label=withdrawal.note,
                        text=content["text"],
                        entities=MessageEntity.de_list(content["entities"], None),
                        markup=True,
                    )
                )
            except SendDelayed as exc:
                self._client.heed(chat, exc)
                raise

    async def _answer_all(self) -> NoReturn:
        while True:
            press, admission = await self._waiting.get()
            with self._client.best_effort("button", press.chat):
                await self._answer(press, admission)

    async def _answer(self, press: Press, admission: Admission) -> None:
        """Stop the button's spinner; show why a press was refused."""
        alarm = admission.is_refused or admission.answer == "over"
        notice = (admission.told or NOT_FOR_YOU) if alarm else press.label
        with mapped_edit(self._client.token):
            await self._client.bot.answer_callback_query(
                press.query, notice[:_MAX_NOTICE_CHARS] or None, show_alert=alarm
            )

    async def _take_off(self, press: Press) -> None:
        """Replace the buttons; after a failure the next press tries again."""
        with self._client.best_effort("button", press.chat), ExitStack() as undo:
            undo.callback(self._taken_off.pop, (press.chat, press.message_id), None)
            with await self._client.pacer.wait(press.chat, group=is_group(press.chat)):
                await self._replace(press)
            undo.pop_all()

    async def _replace(self, press: Press) -> None:
        """Replace the buttons by the choice, noted below the text."""
        noted = f"{press.text}\n→ {press.label}"
        if not press.text or not press.label or units(noted) > MAX_TEXT_UNITS:
            await self._clear(press)
            return
        try:
            ref = str(press.message_id)
            await self._client.edit(press.chat, ref, noted, entities=press.entities)
        except SendRejected:
            await self._clear(press)

    async def _clear(self, press: Press) -> None:
        with mapped_edit(self._client.token):
            await self._client.bot.edit_message_reply_markup(press.chat, press.message_id)
