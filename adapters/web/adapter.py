"""`WebAdapter`: the web chat as a platform, with its routes on the gateway's HTTP server.

A page reads the history by position, so `send` only has to wake the event streams.
"""

import asyncio
from dataclasses import asdict

from aiohttp import web

from adapters.base import UNANNOUNCED, PreviewIntent, Renderer
from adapters.door import OWNER, LimitReached, Visitor
from adapters.errors import FetchRejected
from adapters.messages import (
    Address,
    Attachment,
    InboundMessage,
    MessageRef,
    Outgoing,
    Reaction,
    Receipt,
    Withdrawal,
)
from adapters.registry import DEFAULT_ACCOUNT, Host
from adapters.web import requests
from adapters.web.events import EventStreams, Hub
from adapters.web.guard import Guard, named, place_of, visitor_of
from adapters.web.platform import CALLBACK, WebSettings
from adapters.web.requests import (
    PostedMessage,
    Refusal,
    file_of,
    file_response,
    give_up,
    json_response,
    posted_form,
    posted_message,
)

PING_S = 15.0
SEND_S = 600.0
"""Time limit for a browser to download a file, the same as for an upload."""
FILES_AT_ONCE = 8
"""Files of unknown size read into memory at once."""
FORMS_AT_ONCE = 2
"""Messages with files stored concurrently; their checksums take time in the transaction."""


def build(settings: WebSettings, host: Host) -> "WebAdapter":
    """Return the web chat."""
    return WebAdapter(settings, host)


def renderer(_settings: WebSettings) -> Renderer:
    """Return the function that splits answers: the page has no limit."""
    return lambda markdown: [markdown]


class WebAdapter:
    """The web chat. `close` ends the open streams: call it before the server stops."""

    platform: str = "web"
    account: str = DEFAULT_ACCOUNT
    # Pages read the database by position, so a row sent twice is shown once.
    idempotent_sends = True
    preview_interval_s = 0.05
    # Browsers may connect to any process, and nothing is polled.
    is_exclusive = False
    pool = None

    def __init__(self, settings: WebSettings, host: Host, *, ping_s: float = PING_S) -> None:
        self._intake = host.intake
        self._history = host.history
        self._commands = host.commands
        self._elsewhere = host.elsewhere
        self._hub = Hub(host.elsewhere)
        self._guard = Guard(host.door, settings)
        self._has_provider = host.door.provider is not None
        self._limits = host.door.limits
        self._streams = EventStreams(host.history, self._hub, ping_s, self._guard, self._limits)
        self.connected = False
        self.render = renderer(settings)
        self._max_file_bytes = host.max_file_bytes
        self._reading = asyncio.Semaphore(FILES_AT_ONCE)
        self._storing = asyncio.Semaphore(FORMS_AT_ONCE)

    def routes(self) -> list[web.RouteDef]:
        """Return all routes of the web chat, each behind its guard."""
        protect = self._guard.protect
        return [
            web.get("/", protect(requests.index, public=True)),
            web.get("/static/{name}", protect(requests.static, public=True)),
            web.get("/api/sign-in", protect(self._guard.ways_in, public=True)),
            web.post("/api/sign-in", protect(self._guard.sign_in, public=True)),
            *self._provider_routes(),
            web.post("/logout", protect(self._guard.sign_out, public=True)),
            web.get("/api/me", protect(self._show_me)),
            web.get("/api/chats", protect(self._list_chats)),
            web.post("/api/chats/{chat}/messages", protect(self._take_message)),
            web.get("/api/chats/{chat}/files/{file}", protect(self._show_file)),
            # A stream has no end, so HEAD would hang.
            web.get("/api/chats/{chat}/events", protect(self._streams.handle), allow_head=False),
        ]

    def _provider_routes(self) -> list[web.RouteDef]:
        if not self._has_provider:
            return []
        protect, guard = self._guard.protect, self._guard
        # This changes state, so HEAD, which programs use to check links, is not allowed.
        return [
            web.post("/api/sign-in/oidc", protect(guard.lead_out, public=True)),
            web.get(CALLBACK, protect(guard.come_back, public=True), allow_head=False),
        ]

    async def _show_me(self, request: web.Request) -> web.Response:
        return json_response(_me(visitor_of(request)))

    async def _list_chats(self, request: web.Request) -> web.Response:
        visitor = visitor_of(request)
        chats = await self._history.chats(self.platform, self.account, visitor.sender)
        listed = [asdict(chat) | {"chat": named(chat.chat)} for chat in chats]
        told = {"max_file_bytes": self._max_file_bytes, "commands": self._commands}
        return json_response({"chats": listed, "you": _me(visitor)} | told)

    async def _take_message(self, request: web.Request) -> web.Response:
        place, visitor = place_of(request), visitor_of(request)
        with self._limits.room(visitor) as reach:
            if request.content_type != "multipart/form-data":
                return await self._accept(place, visitor, await posted_message(request, reach))
            # Refuse files before reading them; read a text, since it may be `/stop`.
            wait_s = self._intake.wait_s(self.platform, visitor.sender)
            if wait_s and visitor.role != OWNER.role:
                raise LimitReached("Too many messages in a short time.", int(wait_s) + 1)
            posted = await posted_form(request, reach, self._max_file_bytes)
            async with self._storing:
                return await self._accept(place, visitor, posted)

    async def _accept(
        self, place: Address, visitor: Visitor, posted: PostedMessage
    ) -> web.Response:
        [admission] = await self._intake.accept([_to_inbound(place, visitor, posted)])
        if admission.outcome == "ignored" and admission.told:
            raise Refusal(422, "set_aside", admission.told)
        self._hub.refresh(place.chat)
        told = {"outcome": admission.outcome, "seq": admission.seq}
        rest = {"over": admission.over, "silent": admission.silent}
        return json_response(told | {name: value for name, value in rest.items() if value}, 202)

    async def _show_file(self, request: web.Request) -> web.Response:
        place, number = place_of(request), file_of(request)
        async with self._reading:
            file = await self._history.file(place, number)
        if file is None:
            raise Refusal(404, "no_such_file", "There is no such file.")
        response = file_response(file)
        with self._limits.room(visitor_of(request)) as reach:
            reach(len(file.content))
            # Send within this block, since it takes memory until the browser has received it.
            try:
                async with asyncio.timeout(SEND_S):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                give_up(request)
        return response

    @property
    def receivers(self) -> tuple["WebAdapter"]:
        """The adapter itself: it waits for browsers."""
        return (self,)

    async def run(self) -> None:
        """Wait until cancelled; messages arrive through the routes."""
        self.connected = True
        try:
            await asyncio.Event().wait()
        finally:
            self.connected = False

    async def close(self) -> None:
        """End all event streams; the pages reconnect to the next process."""
        self._hub.close()

    async def send(self, message: Outgoing) -> Receipt:
        """Wake the pages to show the committed answer instead of its preview."""
        self._hub.show(message.address.chat, "")
        self._hub.refresh(message.address.chat)
        self._elsewhere.ended(message.address.chat)
        return Receipt(platform_ref=f"{message.conversation}:{message.seq}")

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Wake the pages to show that the question is closed."""
        self._hub.refresh(withdrawal.address.chat)

    async def fetch(self, _address: Address, attachment: Attachment, _limit_bytes: int) -> bytes:
        """Refuse: files arrive with their message and cannot be fetched later."""
        raise FetchRejected(f"{attachment.name} did not come with its message")

    async def preview(
        self,
        question: MessageRef,
        text: str,
        ref: str | None,
        *,
        grows: bool = True,  # noqa: ARG002
        intent: PreviewIntent = UNANNOUNCED,  # noqa: ARG002 - a preview here is no message
    ) -> str | None:
        """Show the growing answer; a chat has only one, so it needs no id."""
        self._hub.show(question.address.chat, text)
        self._elsewhere.growing(question.address.chat, text)
        return ref

    async def find_preview(
        self, _question: MessageRef, _nonce: str, _others: frozenset[str]
    ) -> str | None:
        """Return None: previews leave no message behind."""
        return None

    async def show_working(self, question: MessageRef) -> None:
        """Show "working" on the open pages."""
        self._hub.show_working(question.address.chat)
        self._elsewhere.working(question.address.chat)

    async def acknowledge(self, _question: MessageRef, _mark: Reaction) -> None:
        """Do nothing: the page marks its messages itself."""


def _me(visitor: Visitor) -> dict[str, object]:
    """Return the user as JSON data for the page."""
    return {
        "name": visitor.name,
        "role": visitor.role,
        "has_session": visitor.has_session,
        "console": visitor.role == OWNER.role,
    }


def _to_inbound(place: Address, visitor: Visitor, posted: PostedMessage) -> InboundMessage:
    return InboundMessage(
        address=place,
        chat_kind="dm",
        sender=visitor.sender,
        sender_name=visitor.name,
        text=posted.text,
        dedupe_key=f"{place.chat}:{posted.id}",
        raw=posted.raw,
        message_ref=posted.edits or posted.id,
        kind="edit" if posted.edits else "message",
        attachments=posted.files,
        authenticated=True,
    )
