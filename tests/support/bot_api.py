"""A strict Bot API server on a loopback port, with a fault switchboard; no global state.

It refuses what Telegram refuses and notes in `violations` what a correct bot never does. Errors
have Telegram's wire format. Runs in the test's own loop; the bot may be in another process.
"""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import aiohttp
from aiohttp import web

TOKEN = "123456:loopback-TOKEN"
BOT_ID = 123456
USERNAME = "parley_bot"
MAX_TEXT_UNITS = 4096
MAX_ENTITIES = 100
_SECRET_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ENTITY_TYPES = frozenset({
    "bold",
    "italic",
    "strikethrough",
    "code",
    "pre",
    "text_link",
    "blockquote",
})
_NESTED = frozenset({
    "entities",
    "reply_parameters",
    "link_preview_options",
    "allowed_updates",
    "commands",
})

Json = dict[str, Any]


@dataclass
class Shown:
    """A message that people see, as last edited."""

    chat: int
    message_id: int
    text: str
    entities: list[Json]
    thread: int | None = None
    reply_to: int | None = None
    edits: int = 0


@dataclass
class Call:
    """One request of the bot; `at` is the monotonic time of its arrival."""

    method: str
    params: Json
    at: float


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    Attributes:
        kind: error (answered with `status`, nothing shown), html (an error page of a proxy), cut
            (carried out, then the connection is dropped without an answer), drop (dropped before
            anything is done), junk (carried out, answered with invalid JSON), reply (carried out,
            answered with `body`), slow (`delay_s` later, without fault).
    """

    kind: Literal["error", "html", "cut", "drop", "junk", "reply", "slow"]
    status: int = 500
    description: str = "Internal Server Error"
    parameters: Json = field(default_factory=dict)
    delay_s: float = 0.0
    body: Any = None


def flood(retry_after: int) -> Fault:
    """Return a 429."""
    text = f"Too Many Requests: retry after {retry_after}"
    return Fault("error", 429, text, {"retry_after": retry_after})


BLOCKED = Fault("error", 403, "Forbidden: bot was blocked by the user")
SERVER_ERROR = Fault("error", 500, "Internal Server Error")
HTML_502 = Fault("html", 502)
CUT = Fault("cut")
DROP = Fault("drop")
JUNK = Fault("junk")


class ApiError(Exception):
    """An answer of the form {"ok": false, …}."""

    def __init__(self, status: int, description: str, parameters: Json | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters or {}


class BotApi:
    """The server; use as an async context manager.

    Attributes:
        root: What `platforms.telegram.base_url` has to be.
        messages: Everything shown by the bot, in order of first appearance.
        pending: Updates that no getUpdates offset has confirmed yet.
        calls: Every request with a known token, in order.
        violations: What a correct bot never does; tests assert that it is empty.
    """

    def __init__(self, token: str = TOKEN, *, bot_id: int = BOT_ID, username: str = USERNAME):
        self.token = token
        self.bot_id = bot_id
        self.username = username
        self.root = ""
        self.messages: list[Shown] = []
        self.pending: list[Any] = []
        self.calls: list[Call] = []
        self.violations: list[str] = []
        self.commands: list[Json] = []
        self.drafts: list[tuple[int, str]] = []
        self.webhook: Json | None = None
        self._chats: dict[int, Json] = {}
        self._topics: dict[int, set[int]] = defaultdict(set)
        self._blocked: set[int] = set()
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._known_ids: set[tuple[int, int]] = set()
        self._next_update = 1000
        self._next_message = 1
        self._poll: asyncio.Event | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.root = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def add_chat(self, chat: int, kind: str = "", topics: tuple[int, ...] = ()) -> None:
        """Make a chat known; without a kind it is private for positive ids, else a supergroup."""
        self._chats[chat] = {"id": chat, "type": kind or ("private" if chat > 0 else "supergroup")}
        self._topics[chat].update(topics)

    def block(self, chat: int) -> None:
        """Let the person block the bot."""
        self._blocked.add(chat)

    def delete_topic(self, chat: int, thread: int) -> None:
        """Delete a forum topic."""
        self._topics[chat].discard(thread)

    def delete_message(self, chat: int, message_id: int) -> None:
        """Delete a message of the bot."""
        self.messages = [m for m in self.messages if (m.chat, m.message_id) != (chat, message_id)]
        self._known_ids.discard((chat, message_id))

    def message_update(
        self, chat: int, text: str | None, sender: Json | None = None, **extra: Any
    ) -> Json:
        """Return an update with a message, without queueing it; `extra` goes into the message."""
        if chat not in self._chats:
            self.add_chat(chat)
        user = {"id": abs(chat), "is_bot": False, "first_name": "Ann"}
        message = {
            "message_id": self._new_message_id(chat),
            "date": 1_700_000_000,
            "chat": self._chats[chat],
            "from": sender or user,
        }
        if text is not None:
            message["text"] = text
        self._next_update += 1
        return {"update_id": self._next_update, "message": message | extra}

    def push_text(
        self, chat: int, text: str | None, sender: Json | None = None, **extra: Any
    ) -> int:
        """Let a person write; returns the update_id."""
        return self.push_raw(self.message_update(chat, text, sender, **extra))

    def push_raw(self, update: Any) -> int:
        """Queue an update of any shape; an object without update_id gets the next one."""
        if isinstance(update, dict) and "update_id" not in update:
            self._next_update += 1
            update = {"update_id": self._next_update, **update}
        self.pending.append(update)
        if self._poll is not None:
            self._poll.set()
        return _number(update)

    def fail(self, method: str, *faults: Fault) -> None:
        """Let the next requests of a method go wrong, one fault each."""
        self._faults[method].extend(faults)

    def shown(self, chat: int) -> list[str]:
        """Return the texts that stand in a chat, in order."""
        return [message.text for message in self.messages if message.chat == chat]

    def made(self, method: str) -> list[Call]:
        """Return the requests of one method, in order."""
        return [call for call in self.calls if call.method == method]

    def rate_stamps(self, chat: int) -> list[float]:
        """Return when messages and edits were requested for a chat; monotonic seconds."""
        charged = {"sendMessage", "editMessageText"}
        return [
            call.at
            for call in self.calls
            if call.method in charged and call.params.get("chat_id") == str(chat)
        ]

    async def wait_for(self, predicate: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until the predicate holds; it is looked at after every request."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: bool(predicate()))

    async def deliver_webhook(self, update: Any, *, attempts: int = 3) -> list[int]:
        """Post an update to the registered webhook until it answers 200; returns the statuses."""
        assert self.webhook is not None, "no webhook is set"
        headers = {"Content-Type": "application/json"}
        if self.webhook.get("secret_token"):
            headers["X-Telegram-Bot-Api-Secret-Token"] = self.webhook["secret_token"]
        statuses: list[int] = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while len(statuses) < attempts and statuses[-1:] != [200]:
                body = update if isinstance(update, bytes) else json.dumps(update)
                async with session.post(self.webhook["url"], data=body, headers=headers) as answer:
                    statuses.append(answer.status)
        return statuses

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["token"] != self.token:
            return _refusal(ApiError(401, "Unauthorized"))
        method = request.match_info["method"]
        perform = getattr(self, f"_do_{method.lower()}", None)
        if perform is None:
            self.violations.append(f"unknown method {method}")
            return _refusal(ApiError(404, "Not Found"))
        params = await _params(request)
        self.calls.append(Call(method, params, time.monotonic()))
        await self._notify()
        fault = self._faults[method].popleft() if self._faults[method] else None
        try:
            return await self._answer(request, perform, params, fault)
        finally:
            await self._notify()

    async def _answer(
        self, request: web.Request, perform: Any, params: Json, fault: Fault | None
    ) -> web.StreamResponse:
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
        refused = _refused(request, fault)
        if refused is not None:
            return refused
        try:
            result = await perform(params)
        except ApiError as exc:
            return _refusal(exc)
        return _broken(request, fault) or web.json_response({"ok": True, "result": result})

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _do_getme(self, _params: Json) -> Json:
        name = {"first_name": "Parley", "username": self.username}
        return {"id": self.bot_id, "is_bot": True, **name}

    async def _do_setmycommands(self, params: Json) -> bool:
        self.commands = params["commands"]
        return True

    async def _do_getupdates(self, params: Json) -> list[Any]:
        if self.webhook is not None:
            text = "Conflict: can't use getUpdates method while webhook is active"
            raise ApiError(409, f"{text}; use deleteWebhook to delete the webhook first")
        if "offset" in params:
            self._confirm(int(params["offset"]))
            await self._notify()
        with self._polling() as wake:
            if not self.pending:
                await _set_within(wake, float(params.get("timeout", 0)))
            if self._poll is not wake:
                text = "Conflict: terminated by other getUpdates request"
                raise ApiError(409, f"{text}; make sure that only one bot instance is running")
            return self.pending[: int(params.get("limit", 100))]

    async def _do_setwebhook(self, params: Json) -> bool:
        if not params.get("url", "").startswith(("https://", "http://127.0.0.1")):
            raise ApiError(400, "Bad Request: bad webhook: an HTTPS URL must be provided")
        if not _SECRET_CHARS.issuperset(params.get("secret_token", "")):
            raise ApiError(400, "Bad Request: secret token contains unallowed characters")
        self._refuse_drop(params)
        self.webhook = params
        return True

    async def _do_deletewebhook(self, params: Json) -> bool:
        self._refuse_drop(params)
        self.webhook = None
        return True

    async def _do_sendmessage(self, params: Json) -> Json:
        chat = self._chat(params)
        text, entities = self._checked_text(params)
        thread = self._thread(chat, params)
        shown = Shown(chat, 0, text, entities, thread, self._reply(chat, params))
        shown.message_id = self._new_message_id(chat)
        self.messages.append(shown)
        return self._message(shown)

    async def _do_editmessagetext(self, params: Json) -> Json:
        chat = self._chat(params)
        text, entities = self._checked_text(params)
        number = int(params["message_id"])
        for shown in self.messages:
            if (shown.chat, shown.message_id) == (chat, number):
                return self._edited(shown, text, entities)
        raise ApiError(400, "Bad Request: message to edit not found")

    async def _do_sendmessagedraft(self, params: Json) -> bool:
        chat = self._chat(params)
        if chat < 0 or int(params["draft_id"]) == 0:
            raise ApiError(400, "Bad Request: TEXTDRAFT_PEER_INVALID")
        text, _ = self._checked_text(params)
        self.drafts.append((chat, text))
        return True

    async def _do_sendchataction(self, params: Json) -> bool:
        chat = self._chat(params)
        self._thread(chat, params)
        if params.get("action") != "typing":
            raise ApiError(400, "Bad Request: wrong parameter action in request")
        return True

    def _confirm(self, offset: int) -> None:
        if offset < 0:
            self.violations.append("negative offset")
        self.pending = [update for update in self.pending if _number(update) >= offset]

    @contextmanager
    def _polling(self) -> Iterator[asyncio.Event]:
        """Only the newest poll stays; an older one is woken and answered with a conflict."""
        if self._poll is not None:
            self._poll.set()
        wake = self._poll = asyncio.Event()
        try:
            yield wake
        finally:
            if self._poll is wake:
                self._poll = None

    def _refuse_drop(self, params: Json) -> None:
        if params.get("drop_pending_updates") in {True, "true"}:
            self.violations.append("pending updates dropped")
            self.pending.clear()

    def _chat(self, params: Json) -> int:
        try:
            chat = int(params["chat_id"])
        except (KeyError, ValueError):
            raise ApiError(400, "Bad Request: chat_id is empty") from None
        if chat in self._blocked:
            raise ApiError(403, "Forbidden: bot was blocked by the user")
        if chat not in self._chats:
            raise ApiError(400, "Bad Request: chat not found")
        return chat

    def _thread(self, chat: int, params: Json) -> int | None:
        if "message_thread_id" not in params:
            return None
        thread = int(params["message_thread_id"])
        if thread not in self._topics[chat]:
            raise ApiError(400, "Bad Request: message thread not found")
        return thread

    def _reply(self, chat: int, params: Json) -> int | None:
        reply = params.get("reply_parameters")
        if reply is None:
            return None
        if (chat, reply["message_id"]) in self._known_ids:
            return int(reply["message_id"])
        if reply.get("allow_sending_without_reply"):
            return None
        raise ApiError(400, "Bad Request: message to be replied not found")

    def _checked_text(self, params: Json) -> tuple[str, list[Json]]:
        text = params.get("text", "")
        units = text.encode("utf-16-le", "surrogatepass")
        if not text.strip():
            self._refuse("message text is empty")
        if len(units) // 2 > MAX_TEXT_UNITS:
            self._refuse("message is too long")
        if "parse_mode" in params:
            self.violations.append("parse_mode used")
        entities = params.get("entities", [])
        if len(entities) > MAX_ENTITIES:
            self.violations.append(f"{len(entities)} entities")
        for entity in entities:
            self._check_entity(entity, units)
        return text, entities[:MAX_ENTITIES]

    def _check_entity(self, entity: Json, units: bytes) -> None:
        start, end = entity["offset"], entity["offset"] + entity["length"]
        if entity["type"] not in _ENTITY_TYPES:
            self._refuse(f"unsupported entity type {entity['type']}")
        if entity["length"] <= 0 or start < 0 or end > len(units) // 2:
            self._refuse("entity out of bounds")
        if entity["type"] == "text_link" and "://" not in entity.get("url", ""):
            self._refuse("entity URL is invalid")
        try:
            units[2 * start : 2 * end].decode("utf-16-le")
        except UnicodeDecodeError:
            self._refuse("entity splits a surrogate pair")

    def _refuse(self, reason: str) -> None:
        self.violations.append(reason)
        raise ApiError(400, f"Bad Request: {reason}")

    def _edited(self, shown: Shown, text: str, entities: list[Json]) -> Json:
        if (shown.text, shown.entities) == (text, entities):
            raise ApiError(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same as a current content and reply markup of the message",
            )
        shown.text, shown.entities = text, entities
        shown.edits += 1
        return self._message(shown) | {"edit_date": 1_700_000_001}

    def _message(self, shown: Shown) -> Json:
        return {
            "message_id": shown.message_id,
            "date": 1_700_000_000,
            "chat": self._chats[shown.chat],
            "from": {"id": self.bot_id, "is_bot": True, "first_name": "Parley"},
            "text": shown.text,
            "entities": shown.entities,
        }

    def _new_message_id(self, chat: int) -> int:
        self._next_message += 1
        self._known_ids.add((chat, self._next_message))
        return self._next_message


def _number(update: Any) -> int:
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) else 0


async def _params(request: web.Request) -> Json:
    """Return the parameters; as in the Bot API, nested values of a form are JSON texts."""
    if request.content_type == "application/json":
        params: Json = await request.json()
        return params
    form = await request.post()
    return {
        name: json.loads(str(value)) if name in _NESTED else value for name, value in form.items()
    }


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


def _refusal(exc: ApiError) -> web.Response:
    body = {"ok": False, "error_code": exc.status, "description": exc.description}
    if exc.parameters:
        body["parameters"] = exc.parameters
    return web.json_response(body, status=exc.status)


def _refused(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault that lets nothing happen."""
    if fault is None:
        return None
    if fault.kind == "error":
        return _refusal(ApiError(fault.status, fault.description, fault.parameters))
    if fault.kind == "html":
        page = f"<html><h1>{fault.status} Bad Gateway</h1></html>"
        return web.Response(text=page, status=fault.status, content_type="text/html")
    return _hang_up(request) if fault.kind == "drop" else None


def _broken(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault after the request was carried out."""
    if fault is None:
        return None
    if fault.kind == "junk":
        return web.Response(text='{"ok": true, "resu', content_type="application/json")
    if fault.kind == "reply":
        return web.json_response(fault.body)
    return _hang_up(request) if fault.kind == "cut" else None


def _hang_up(request: web.Request) -> web.Response:
    """Drop the connection; the answer returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
