"""Sends outbox rows: replaces a preview or "thinking…", or posts a new message.

Progress before an answer is best effort: "typing", reactions, and the growing answer, an edited
message that becomes the answer.

Every new message has the row's nonce, which Discord keeps unique for some minutes; a row with an
unknown outcome is first looked up in the channel's history. So it is shown once; if the bot may not
read the history, it is marked. A thread's answer is never posted in its parent channel.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from typing_extensions import override

from adapters.base import Recent
from adapters.discord.buttons import ANSWERABLE_S, Callback, noted, snowflake_at
from adapters.discord.client import MESSAGE, MESSAGES, PAGE, Api, PendingKeys
from adapters.discord.errors import (
    INVALID_TOKEN,
    MISSING_ACCESS,
    MISSING_PERMISSIONS,
    THREAD_ARCHIVED,
    UNKNOWN_CHANNEL,
    UNKNOWN_INTERACTION,
    UNKNOWN_MESSAGE,
    UNKNOWN_WEBHOOK,
    CodedRefusal,
    mapped_call,
)
from adapters.discord.render import RESENT_MARK, preview_text
from adapters.discord.threads import ChannelKinds, Threads, channel_of
from adapters.errors import SendDelayed, SendRejected, SendUnknown
from adapters.messages import (
    Address,
    Choice,
    MessageRef,
    Outgoing,
    OutgoingFile,
    Reaction,
    Receipt,
    Withdrawal,
)
from adapters.previews import EditedPreviews
from adapters.rendering.chunks import PREVIEW_END

log = structlog.get_logger()

_SUPPRESS_EMBEDS = 1 << 2
# Source: https://discord.com/developers/docs/components/reference (types, styles, "up to 5")
_BUTTONS_PER_ROW = 5
_ROW, _BUTTON, _GREY = 1, 2, 2
_REMEMBERED = 1024
ACKNOWLEDGED_IN_S = 5.0
"""An interaction must be acknowledged within 3 s; this allows for clock skew."""
UNTIL_THEN_S = 0.5
_NOT_EDITABLE = {UNKNOWN_MESSAGE, THREAD_ARCHIVED}
# Error codes of an expired interaction.
_EXPIRED = {UNKNOWN_MESSAGE, UNKNOWN_WEBHOOK, UNKNOWN_INTERACTION, INVALID_TOKEN}
# Accepted clock skew; an equal answer before the row must not be mistaken for it.
_SKEW_S = 2.0
_MOST_PAGES = 5
_EMOJI: dict[Reaction, str] = {"received": "👀", "answered": "✅", "failed": "⚠️"}
# Discord allows one reaction change per 0.25 s and channel, which the SDK learns only from a 429.
_BETWEEN_REACTIONS_S = 0.3
_REACTION = MESSAGE + "/reactions/{emoji}/@me"


def body_of(text: str, choices: Sequence[Choice] = ()) -> dict[str, Any]:
    """Return a message body without pings and link previews."""
    return {
        "content": text,
        "components": _rows(choices),
        "allowed_mentions": {"parse": []},
        "flags": _SUPPRESS_EMBEDS,
    }


class Posts:
    """The messages of one account."""

    def __init__(self, api: Api, threads: Threads) -> None:
        self._api = api
        self._threads = threads

    async def post(
        self, address: Address, body: dict[str, Any], file: OutgoingFile | None = None
    ) -> str:
        """Send a new message and return its id; raises like `Adapter.send`."""
        if address.thread is None:
            return await self._create(address.chat, body, file)
        await self._threads.pending.wait(address.thread)
        try:
            ref = await self._create(address.thread, body, file)
        except CodedRefusal as exc:
            if exc.code != UNKNOWN_CHANNEL:
                raise
            # Never post in the parent channel instead, where others could read it.
            await self._threads.reopen(address)
            ref = await self._create(address.thread, body, file)
        self._threads.note(address.thread)
        return ref

    async def edit(self, address: Address, ref: str, body: dict[str, Any]) -> None:
        """Edit a message; raises like `Adapter.withdraw`."""
        with mapped_call():
            ids = {"channel_id": channel_of(address), "message_id": ref}
            shown = await self._api.call("PATCH", MESSAGE, body, **ids)
            # A captive portal's page answers 200 but changes nothing.
            shown["id"]

    async def delete(self, address: Address, ref: str) -> None:
        """Delete a message; raises like `Adapter.withdraw`."""
        with mapped_call():
            channel = channel_of(address)
            await self._api.call("DELETE", MESSAGE, channel_id=channel, message_id=ref)

    async def _create(self, channel: str, body: dict[str, Any], file: OutgoingFile | None) -> str:
        with mapped_call(once=True):
            if file is None:
                sent = await self._api.call("POST", MESSAGES, body, channel_id=channel)
            else:
                sent = await self._api.upload(MESSAGES, body, file, channel_id=channel)
            return str(sent["id"])


def _rows(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    buttons = [
        {"type": _BUTTON, "style": _GREY, "label": choice.label, "custom_id": choice.text}
        for choice in choices
    ]
    rows = [buttons[n : n + _BUTTONS_PER_ROW] for n in range(0, len(buttons), _BUTTONS_PER_ROW)]
    return [{"type": _ROW, "components": row} for row in rows]


class DiscordPreviews(EditedPreviews):
    """The growing answers of one bot."""

    def __init__(self, api: Api, posts: Posts, channel_kinds: ChannelKinds) -> None:
        super().__init__(api.pacer, api.best_effort, preview_text)
        self._posts = posts
        self._channel_kinds = channel_kinds

    @override
    def budget(self, question: MessageRef) -> tuple[str, bool] | None:
        # "Thinking…" serves as the preview.
        is_command = Callback.parse(question.message_ref)
        return None if is_command else (channel_of(question.address), False)

    @override
    async def post(self, question: MessageRef, text: str, nonce: str) -> str:
        # The SDK retries a post after a server error; the nonce prevents a repeat.
        address = question.address
        reference = await self._channel_kinds.reference(address, question.message_ref)
        once = {"nonce": nonce, "enforce_nonce": True}
        return await self._posts.post(address, body_of(text) | once | reference)

    @override
    async def edit(self, address: Address, ref: str, text: str) -> None:
        await self._posts.edit(address, ref, body_of(text))


class Reactions:
    """Typing and reactions of one account."""

    def __init__(self, api: Api, threads: Threads, *, reactions: bool) -> None:
        self._api = api
        self._threads = threads
        self._reactions = reactions
        self._forbidden: set[str] = set()

    async def show_working(self, question: MessageRef) -> None:
        """Show "typing" for about 10 s; a command already shows "thinking…"."""
        channel = channel_of(question.address)
        if Callback.parse(question.message_ref):
            return
        await self._threads.pending.wait(question.address.thread or "")
        if (slot := self._api.pacer.try_typing(channel)) is None:
            return
        with slot, self._api.best_effort("typing", channel), mapped_call():
            await self._api.call("POST", "/channels/{channel_id}/typing", channel_id=channel)

    async def acknowledge(self, question: MessageRef, mark: Reaction) -> None:
        """React to the answered message and remove the earlier reaction."""
        ref = question.message_ref
        if ref is None or not self._reactions or Callback.parse(ref):
            return
        address = question.address
        # A message that opened a thread is in the parent channel, but a forum post's first message,
        # which also has the thread's id, is in the thread: try both.
        is_opener = address.thread is not None and ref == address.thread
        for channel in [address.chat, ref] if is_opener else [channel_of(address)]:
            if channel not in self._forbidden and await self._reacted(channel, ref, mark):
                return

    async def _reacted(self, channel: str, ref: str, mark: Reaction) -> bool:
        """React in one channel; return False if the message is not there."""
        with self._api.best_effort("reaction", channel):
            try:
                # Add the new mark first, so that at least one is always shown.
                await self._call("PUT", channel, ref, _EMOJI[mark])
                if mark != "received":
                    await self._call("DELETE", channel, ref, _EMOJI["received"])
            except CodedRefusal as exc:
                if exc.code in {MISSING_ACCESS, MISSING_PERMISSIONS}:
                    self._forbidden.add(channel)
                    log.info("discord_reactions_forbidden", channel=channel, reason=str(exc))
                return False
        return True

    async def _call(self, method: str, channel: str, ref: str, emoji: str) -> None:
        with await self._api.pacer.wait_signal(channel), mapped_call():
            await self._api.call(method, _REACTION, channel_id=channel, message_id=ref, emoji=emoji)
        await asyncio.sleep(_BETWEEN_REACTIONS_S)


class Sender:
    """Sends the outbox rows of one account."""

    def __init__(
        self,
        api: Api,
        posts: Posts,
        channel_kinds: ChannelKinds,
        acknowledging: PendingKeys,
        previews: DiscordPreviews,
    ) -> None:
        self._api = api
        self._posts = posts
        self._channel_kinds = channel_kinds
        self._acknowledging = acknowledging
        self._previews = previews
        self._shown: Recent[str, str] = Recent(_REMEMBERED)
        self._answered: Recent[str, str] = Recent(_REMEMBERED)

    async def send(self, message: Outgoing) -> Receipt:
        """Send one row; see `Adapter.send`."""
        message = await self._previews.settled(message)
        channel = channel_of(message.address)
        slot = await self._api.pacer.wait(channel, group=False)
        try:
            with slot:
                receipt = await self._show(message)
        except SendDelayed as exc:
            if exc.retry_after_s is not None:
                self._api.pacer.block(channel, exc.retry_after_s)
            raise
        except SendUnknown as exc:
            if not message.outcome_unknown:
                raise
            # The row is looked up before each attempt, so a retry shows nothing twice.
            raise SendDelayed(str(exc)) from exc
        self._shown[receipt.platform_ref] = message.nonce
        return receipt

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Replace a question's buttons by its outcome; see `Adapter.withdraw`."""
        address = withdrawal.address
        body = body_of(noted(withdrawal.payload, withdrawal.note))
        # A 429 does not block the channel: it may concern edits of messages older than an hour, of
        # which Discord allows few (code 30046).
        with await self._api.pacer.wait(channel_of(address), group=False):
            await self._posts.edit(address, withdrawal.message_ref, body)

    async def find_preview(
        self, question: MessageRef, nonce: str, others: frozenset[str]
    ) -> str | None:
        """Look up a preview in the channel's history; see `Adapter.find_preview`.

        The history has no nonces, so the preview is the bot's only unfinished message after the
        question that replies to no other question.
        """
        if (ref := await self._previews.arrived(question)) is not None:
            return ref
        after = _id_of(question.message_ref or question.address.thread)
        if not after:
            raise SendRejected("what was asked has no place in the history")
        found, read = [], 0
        async for shown in _since(self._api, channel_of(question.address), after):
            read += 1
            if shown["id"] not in others and _is_unfinished(shown, question, nonce, self._api.user):
                found.append(str(shown["id"]))
        if len(found) > 1 or (not found and read == _MOST_PAGES * PAGE):
            raise SendRejected(f"{len(found)} of {read} messages may be the preview")
        return found[0] if found else None

    async def _show(self, message: Outgoing) -> Receipt:
        if message.preview_ref is None:
            return await self._show_anew(message)
        if await self._replace(message, message.preview_ref):
            return Receipt(message.preview_ref)
        receipt = await self._show_anew(message)
        # The lookup may find the same message, which then is the answer.
        if receipt.platform_ref != message.preview_ref:
            with self._api.best_effort("preview", channel_of(message.address)):
                await self._posts.delete(message.address, message.preview_ref)
        return receipt

    async def _show_anew(self, message: Outgoing) -> Receipt:
        # A file cannot replace "thinking…".
        callback = None if message.file else Callback.parse(message.reply_to)
        if callback is not None and (ref := await self._answer(message, callback)):
            return Receipt(ref)
        if message.outcome_unknown:
            try:
                shown = self._shown.items()
                others = frozenset(ref for ref, nonce in shown if nonce != message.nonce)
                if found := await _find_sent(self._api, message, others):
                    return Receipt(found)
            except CodedRefusal as exc:
                # Only the nonce prevents a repeat now, for some minutes.
                log.warning("discord_look_up_failed", chat=message.address.chat, reason=str(exc))
                return Receipt(await self._post(message, RESENT_MARK), resent=True)
        return Receipt(await self._post(message))

    async def _replace(self, message: Outgoing, ref: str) -> bool:
        """Edit the preview into the row; return False if it can no longer be edited."""
        try:
            body = body_of(message.payload, message.choices)
            await self._posts.edit(message.address, ref, body)
        except CodedRefusal as exc:
            if exc.code not in _NOT_EDITABLE:
                raise
            log.info("discord_preview_missing", chat=message.address.chat, reason=str(exc))
            return False
        return True

    async def _answer(self, message: Outgoing, callback: Callback) -> str | None:
        """Replace "thinking…" with the row; return None if it expired or is already replaced."""
        # Before the acknowledgement, an edit fails as an unknown webhook.
        await self._acknowledging.wait(callback.id)
        taken_by = self._answered.get(callback.id, message.nonce)
        # An interaction's token expires after 15 minutes.
        if taken_by != message.nonce or callback.age_s >= ANSWERABLE_S:
            return None
        body = body_of(message.payload, message.choices)
        path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
        ids = {"webhook_id": callback.application, "webhook_token": callback.token}
        try:
            with mapped_call(once=True):
                # Before the request, so that it counts as replaced even if the outcome is unknown.
                self._answered[callback.id] = message.nonce
                shown = await self._api.callback("PATCH", path, body, **ids)
                return str(shown["id"])
        except CodedRefusal as exc:
            if exc.code not in _EXPIRED:
                raise
            if not self._channel_kinds.is_whole and callback.age_s < ACKNOWLEDGED_IN_S:
                # Another process received it and has not acknowledged it yet.
                raise SendDelayed("the interaction is not acknowledged yet", UNTIL_THEN_S) from exc
            log.info("discord_interaction_expired", chat=message.address.chat, reason=str(exc))
            return None

    async def _post(self, message: Outgoing, mark: str = "") -> str:
        body = body_of((mark + message.payload).strip(), message.choices)
        # At most 25 characters. For some minutes Discord drops messages with the same nonce.
        body |= {"nonce": message.nonce, "enforce_nonce": True}
        body |= await self._channel_kinds.reference(message.address, message.reply_to)
        return await self._posts.post(message.address, body, message.file)


async def _find_sent(api: Api, message: Outgoing, others: frozenset[str]) -> str | None:
    """Return the id of the message that shows a row, or None; skip `others`."""
    callback = Callback.parse(message.reply_to)
    answered = _id_of((callback.id if callback else message.reply_to) or message.address.thread)
    after = max(snowflake_at(time.time() - message.age_s - _SKEW_S), answered)
    async with aclosing(_since(api, channel_of(message.address), after)) as history:
        async for shown in history:
            if shown["id"] not in others and _shows(shown, message, api.user):
                return str(shown["id"])
    return None


def _is_unfinished(shown: Any, question: MessageRef, nonce: str, user: str) -> bool:
    if shown["author"]["id"] != user or not shown["content"].endswith(PREVIEW_END):
        return False
    if told := shown.get("nonce"):
        return str(told) == nonce
    named = (shown.get("message_reference") or {}).get("message_id")
    return named is None or named == question.message_ref


def _id_of(ref: str | None) -> int:
    return int(ref) if ref is not None and ref.isdecimal() else 0


async def _since(api: Api, channel: str, after: int) -> AsyncGenerator[Any, None]:
    """Yield some pages of messages after an id, oldest first; raises like `history`."""
    for number in range(_MOST_PAGES):
        page = await api.history(channel, after)
        # A hidden history looks like an empty channel. Source:
        # https://discord.com/developers/docs/resources/message#get-channel-messages
        if not page and number == 0 and not await api.history(channel, 0, limit=1):
            raise CodedRefusal("the bot may not read the history", 0)
        for shown in page:
            yield shown
        if len(page) < PAGE:
            return
        after = int(page[-1]["id"])


def _shows(shown: Any, message: Outgoing, user: str) -> bool:
    """Whether a message shows the row, by nonce if available, else by content."""
    if shown["author"]["id"] != user:
        return False
    if nonce := shown.get("nonce"):
        return str(nonce) == message.nonce
    if message.file is not None:
        sizes = [file["size"] for file in shown.get("attachments", ())]
        return sizes == [len(message.file.content)]
    content = shown["content"].strip().removeprefix(RESENT_MARK)
    return bool(content == message.payload.strip())
