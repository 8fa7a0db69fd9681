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
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from aiohttp import web

from tests.support.bot_wire import (
    BLOCKED,
    CUT,
    DROP,
    ENTITY_TYPES,
    HANG,
    HTML_502,
    JUNK,
    MAX_CAPTION_UNITS,
    MAX_DOWNLOAD_BYTES,
    MAX_ENTITIES,
    MAX_PHOTO_BYTES,
    MAX_TEXT_UNITS,
    MAX_UPLOAD_BYTES,
    REACTIONS,
    SECRET_CHARS,
    SERVER_ERROR,
    SHOWING,
    ApiError,
    Call,
    Fault,
    Json,
    broken,
    excesses,
    flood,
    params_of,
    refusal,
    refused,
)
from tests.support.thorough import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BLOCKED",
    "BOT_ID",
    "CUT",
    "DROP",
    "HANG",
    "HTML_502",
    "JUNK",
    "SERVER_ERROR",
    "TOKEN",
    "BotApi",
    "Fault",
    "flood",
]

TOKEN = "123456:loopback-TOKEN"
BOT_ID = 123456
USERNAME = "parley_bot"


@dataclass
class Shown:
    """A message that people see, as last edited; `text` is the caption of a file."""

    chat: int
    message_id: int
    text: str
    entities: list[Json]
    thread: int | None = None
    reply_to: int | None = None
    edits: int = 0
    buttons: list[list[Json]] = field(default_factory=list)
    kind: str = "text"
    file: tuple[str, bytes] | None = None


class BotApi:
    """The server; use as an async context manager.

    Attributes:
        root: What `platforms.telegram.base_url` has to be.
        messages: Everything shown by the bot, in order of first appearance.
        pending: Updates that no getUpdates offset has confirmed yet; put into another order, or
            put in twice, they are delivered so.
        calls: Every request with a known token, in order.
        violations: What a correct bot never does; tests assert that it is empty.
        menus: Commands by scope; `commands` are those of the default scope.
        reactions: The bot's own, by (chat, message id).
        answered: What presses of buttons were answered with, by query id.
        without_reactions: Chats that do not allow any.
        files_dir: Where the server stores files; it is one in local mode then.
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
        self.menus: dict[str, list[Json]] = defaultdict(list)
        self.drafts: list[tuple[int, str]] = []
        self.reactions: dict[tuple[int, int], str] = {}
        self.answered: dict[str, Json] = {}
        self.without_reactions: set[int] = set()
        self.files_dir: Path | None = None
        self.webhook: Json | None = None
        self._chats: dict[int, Json] = {}
        self._topics: dict[int, set[int]] = defaultdict(set)
        self._closed_topics: set[tuple[int, int]] = set()
        self._unreachable: dict[int, ApiError] = {}
        self._files: dict[str, tuple[str, bytes]] = {}
        self._queries: set[str] = set()
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._known_ids: set[tuple[int, int]] = set()
        self._next_update = 1000
        self._next_message = 1
        self._poll: asyncio.Event | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_UPLOAD_BYTES + (1 << 20))
        app.router.add_post("/bot{token}/{method}", self._handle)
        app.router.add_get("/file/bot{token}/{path:.*}", self._hand_out)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.root = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def commands(self) -> list[Json]:
        """The menu of the default scope."""
        return self.menus["default"]

    def add_chat(self, chat: int, kind: str = "", topics: tuple[int, ...] = ()) -> None:
        """Make a chat known; without a kind it is private for positive ids, else a supergroup."""
        self._chats[chat] = {"id": chat, "type": kind or ("private" if chat > 0 else "supergroup")}
        self._topics[chat].update(topics)

    def block(self, chat: int) -> None:
        """Let the person block the bot."""
        self._unreachable[chat] = ApiError(403, "Forbidden: bot was blocked by the user")
        self._push_membership(chat, "kicked")

    def unblock(self, chat: int) -> None:
        """Let the person take that back."""
        del self._unreachable[chat]
        self._push_membership(chat, "member")

    def kick(self, chat: int) -> None:
        """Throw the bot out of a group."""
        self._unreachable[chat] = ApiError(
            403, "Forbidden: bot was kicked from the supergroup chat"
        )
        self._push_membership(chat, "kicked")

    def mute(self, chat: int) -> None:
        """Take the right to send from the bot."""
        text = "Bad Request: not enough rights to send text messages to the chat"
        self._unreachable[chat] = ApiError(400, text)

    def migrate(self, chat: int, new_chat: int) -> None:
        """Make a group a supergroup; both chats tell of it."""
        self.push_text(chat, None, migrate_to_chat_id=new_chat)
        self.push_text(new_chat, None, migrate_from_chat_id=chat)
        text = "Bad Request: group chat was upgraded to a supergroup chat"
        self._unreachable[chat] = ApiError(400, text, {"migrate_to_chat_id": new_chat})

    def delete_topic(self, chat: int, thread: int) -> None:
        """Delete a forum topic."""
        self._topics[chat].discard(thread)

    def close_topic(self, chat: int, thread: int) -> None:
        """Close a forum topic; the bot is no administrator."""
        self._closed_topics.add((chat, thread))

    def delete_message(self, chat: int, message_id: int) -> None:
        """Delete a message."""
        self.messages = [m for m in self.messages if (m.chat, m.message_id) != (chat, message_id)]
        self._known_ids.discard((chat, message_id))

    def add_file(self, content: bytes, path: str = "documents/file_0.bin") -> Json:
        """Store a file; return the part of a message that names it."""
        number = len(self._files)
        self._files[f"file{number}"] = (path, content)
        return {
            "file_id": f"file{number}",
            "file_unique_id": f"u{number}",
            "file_size": len(content),
        }

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

    def press_update(self, chat: int, label: str, sender: Json | None = None) -> Json:
        """Return an update with the press of a button that stands in a chat."""
        shown, button = next(
            (shown, button)
            for shown in reversed(self.messages)
            for row in shown.buttons
            for button in row
            if shown.chat == chat and button["text"] == label
        )
        self._next_update += 1
        query_id = f"query{self._next_update}"
        self._queries.add(query_id)
        query = {
            "id": query_id,
            "from": sender or {"id": abs(chat), "is_bot": False, "first_name": "Ann"},
            "message": self._message(shown),
            "chat_instance": "1",
            "data": button["callback_data"],
        }
        return {"update_id": self._next_update, "callback_query": query}

    def push_text(
        self, chat: int, text: str | None, sender: Json | None = None, **extra: Any
    ) -> int:
        """Let a person write; returns the update_id."""
        return self.push_raw(self.message_update(chat, text, sender, **extra))

    def press(self, chat: int, label: str, sender: Json | None = None) -> str:
        """Let a person press a button; returns the query's id."""
        update = self.press_update(chat, label, sender)
        self.push_raw(update)
        query_id: str = update["callback_query"]["id"]
        return query_id

    def expire(self, query_id: str) -> None:
        """Let it be too late to answer a press."""
        self._queries.discard(query_id)

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
        """Let the next requests of a method (of a file: "file") go wrong, one fault each."""
        self._faults[method].extend(faults)

    def mend(self, *methods: str) -> None:
        """Let these methods go right again, whatever was still to go wrong."""
        for each in methods:
            self._faults[each].clear()

    def shown(self, chat: int) -> list[str]:
        """Return the texts that stand in a chat, in order."""
        return [message.text for message in self.messages if message.chat == chat]

    def made(self, method: str) -> list[Call]:
        """Return the requests of one method, in order."""
        return [call for call in self.calls if call.method == method]

    def rate_stamps(self, chat: int) -> list[float]:
        """Return when messages and edits were requested for a chat; monotonic seconds."""
        return [
            call.at
            for call in self.calls
            if call.method in SHOWING and call.params.get("chat_id") == str(chat)
        ]

    def excesses(self, late_s: float = 0.0) -> list[str]:
        """Return where requests came faster than Telegram allows."""
        return excesses(self.calls, late_s)

    async def wait_for(self, predicate: Callable[[], object], timeout_s: float = WAIT_S) -> None:
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
            return refusal(ApiError(401, "Unauthorized"))
        method = request.match_info["method"]
        perform = getattr(self, f"_do_{method.lower()}", None)
        if perform is None:
            self.violations.append(f"unknown method {method}")
            return refusal(ApiError(404, "Not Found"))
        params = await params_of(request)
        self.calls.append(Call(method, params, time.monotonic()))
        await self._notify()
        try:
            return await self._answer(request, perform, params, self._fault(method))
        finally:
            await self._notify()

    async def _answer(
        self, request: web.Request, perform: Any, params: Json, fault: Fault | None
    ) -> web.StreamResponse:
        answer = await refused(request, fault)
        if answer is not None:
            return answer
        try:
            result = await perform(params)
        except ApiError as exc:
            return refusal(exc)
        return broken(request, fault) or web.json_response({"ok": True, "result": result})

    async def _hand_out(self, request: web.Request) -> web.StreamResponse:
        fault = self._fault("file")
        await self._notify()
        answer = await refused(request, fault)
        if answer is not None:
            return answer
        for path, content in self._files.values():
            if (request.match_info["token"], request.match_info["path"]) == (self.token, path):
                return broken(request, fault) or web.Response(body=content)
        return refusal(ApiError(404, "Not Found"))

    def _fault(self, method: str) -> Fault | None:
        return self._faults[method].popleft() if self._faults[method] else None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _do_getme(self, _params: Json) -> Json:
        name = {"first_name": "Parley", "username": self.username}
        return {"id": self.bot_id, "is_bot": True, **name}

    async def _do_getmycommands(self, params: Json) -> list[Json]:
        return self.menus[_scope(params)]

    async def _do_setmycommands(self, params: Json) -> bool:
        if self.menus[_scope(params)] == params["commands"]:
            self.violations.append("the same menu set again")
        self.menus[_scope(params)] = params["commands"]
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
        if not SECRET_CHARS.issuperset(params.get("secret_token", "")):
            raise ApiError(400, "Bad Request: secret token contains unallowed characters")
        self._refuse_drop(params)
        self.webhook = params
        return True

    async def _do_getwebhookinfo(self, _params: Json) -> Json:
        url = self.webhook["url"] if self.webhook else ""
        waiting = len(self.pending)
        return {"url": url, "has_custom_certificate": False, "pending_update_count": waiting}

    async def _do_deletewebhook(self, params: Json) -> bool:
        self._refuse_drop(params)
        self.webhook = None
        return True

    async def _do_sendmessage(self, params: Json) -> Json:
        chat = self._chat(params)
        text, entities = self._checked_text(params)
        return self._show(chat, params, Shown(chat, 0, text, entities))

    async def _do_sendphoto(self, params: Json) -> Json:
        name, content = params["photo"]
        if len(content) > MAX_PHOTO_BYTES:
            self._refuse("PHOTO_SAVE_FILE_INVALID: too large")
        if not content.startswith((b"\x89PNG", b"\xff\xd8", b"RIFF")):
            raise ApiError(400, "Bad Request: IMAGE_PROCESS_FAILED")
        return self._show_file(params, "photo", (name, content))

    async def _do_senddocument(self, params: Json) -> Json:
        name, content = params["document"]
        if not content:
            self._refuse("file must be non-empty")
        if len(content) > MAX_UPLOAD_BYTES:
            self._refuse("file is too big")
        return self._show_file(params, "document", (name, content))

    async def _do_editmessagetext(self, params: Json) -> Json:
        chat = self._chat(params)
        text, entities = self._checked_text(params)
        shown = self._found(chat, params)
        if shown.kind != "text":
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        return self._edited(shown, text, entities, self._buttons(params))

    async def _do_editmessagereplymarkup(self, params: Json) -> Json:
        shown = self._found(self._chat(params), params)
        return self._edited(shown, shown.text, shown.entities, self._buttons(params))

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

    async def _do_setmessagereaction(self, params: Json) -> bool:
        chat, number = self._chat(params), int(params["message_id"])
        if (chat, number) not in self._known_ids:
            raise ApiError(400, "Bad Request: message to react not found")
        emoji = [it["emoji"] for it in params.get("reaction", [])]
        if not REACTIONS.issuperset(emoji) or len(emoji) > 1:
            self._refuse("REACTION_INVALID")
        if chat in self.without_reactions:
            raise ApiError(400, "Bad Request: REACTION_INVALID")
        self.reactions[chat, number] = "".join(emoji)
        return True

    async def _do_answercallbackquery(self, params: Json) -> bool:
        if params["callback_query_id"] not in self._queries:
            text = "query is too old and response timeout expired or query ID is invalid"
            raise ApiError(400, f"Bad Request: {text}")
        if len(params.get("text", "")) > 200:
            self._refuse("MESSAGE_TOO_LONG")
        self._queries.discard(params["callback_query_id"])
        self.answered[params["callback_query_id"]] = params
        return True

    async def _do_getfile(self, params: Json) -> Json:
        if params["file_id"] not in self._files:
            raise ApiError(400, "Bad Request: invalid file_id")
        path, content = self._files[params["file_id"]]
        if self.files_dir is None and len(content) > MAX_DOWNLOAD_BYTES:
            raise ApiError(400, "Bad Request: file is too big")
        if self.files_dir is not None:
            stored = self.files_dir / self.token / path
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_bytes(content)
            path = str(stored)
        ids = {"file_id": params["file_id"], "file_unique_id": "u"}
        return ids | {"file_size": len(content), "file_path": path}

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

    def _push_membership(self, chat: int, status: str) -> None:
        if chat not in self._chats:
            self.add_chat(chat)
        me = {"id": self.bot_id, "is_bot": True, "first_name": "Parley"}
        change = {
            "chat": self._chats[chat],
            "from": {"id": abs(chat), "is_bot": False, "first_name": "Ann"},
            "date": 1_700_000_000,
            "old_chat_member": {"user": me, "status": "member"},
            "new_chat_member": {"user": me, "status": status, "until_date": 0},
        }
        self.push_raw({"my_chat_member": change})

    def _chat(self, params: Json) -> int:
        try:
            chat = int(params["chat_id"])
        except (KeyError, ValueError):
            raise ApiError(400, "Bad Request: chat_id is empty") from None
        if chat in self._unreachable:
            raise self._unreachable[chat]
        if chat not in self._chats:
            raise ApiError(400, "Bad Request: chat not found")
        return chat

    def _thread(self, chat: int, params: Json) -> int | None:
        if "message_thread_id" not in params:
            return None
        thread = int(params["message_thread_id"])
        if thread not in self._topics[chat]:
            raise ApiError(400, "Bad Request: message thread not found")
        if (chat, thread) in self._closed_topics:
            raise ApiError(400, "Bad Request: TOPIC_CLOSED")
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

    def _buttons(self, params: Json) -> list[list[Json]]:
        rows: list[list[Json]] = params.get("reply_markup", {}).get("inline_keyboard", [])
        for button in (it for row in rows for it in row):
            if not button["text"].strip():
                self._refuse("Text buttons are unallowed in the inline keyboard")
            if not 1 <= len(button.get("callback_data", "").encode()) <= 64:
                self._refuse("BUTTON_DATA_INVALID")
        return rows

    def _checked_text(
        self, params: Json, name: str = "text", most_units: int = MAX_TEXT_UNITS
    ) -> tuple[str, list[Json]]:
        text = params.get(name, "")
        units = text.encode("utf-16-le", "surrogatepass")
        if name == "text" and not text.strip():
            self._refuse("message text is empty")
        if len(units) // 2 > most_units:
            self._refuse(f"message {name} is too long")
        if "parse_mode" in params:
            self.violations.append("parse_mode used")
        entities = params.get("entities" if name == "text" else "caption_entities", [])
        if len(entities) > MAX_ENTITIES:
            self.violations.append(f"{len(entities)} entities")
        for entity in entities:
            self._check_entity(entity, units)
        return text, entities[:MAX_ENTITIES]

    def _check_entity(self, entity: Json, units: bytes) -> None:
        start, end = entity["offset"], entity["offset"] + entity["length"]
        if entity["type"] not in ENTITY_TYPES:
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

    def _show_file(self, params: Json, kind: str, file: tuple[str, bytes]) -> Json:
        chat = self._chat(params)
        caption, entities = self._checked_text(params, "caption", MAX_CAPTION_UNITS)
        return self._show(chat, params, Shown(chat, 0, caption, entities, kind=kind, file=file))

    def _show(self, chat: int, params: Json, shown: Shown) -> Json:
        shown.thread = self._thread(chat, params)
        shown.reply_to = self._reply(chat, params)
        shown.buttons = self._buttons(params)
        shown.message_id = self._new_message_id(chat)
        self.messages.append(shown)
        return self._message(shown)

    def _found(self, chat: int, params: Json) -> Shown:
        number = int(params["message_id"])
        for shown in self.messages:
            if (shown.chat, shown.message_id) == (chat, number):
                return shown
        raise ApiError(400, "Bad Request: message to edit not found")

    def _edited(
        self, shown: Shown, text: str, entities: list[Json], buttons: list[list[Json]]
    ) -> Json:
        if (shown.text, shown.entities, shown.buttons) == (text, entities, buttons):
            raise ApiError(
                400,
                "Bad Request: message is not modified: specified new message content and reply "
                "markup are exactly the same as a current content and reply markup of the message",
            )
        shown.text, shown.entities, shown.buttons = text, entities, buttons
        shown.edits += 1
        return self._message(shown) | {"edit_date": 1_700_000_001}

    def _message(self, shown: Shown) -> Json:
        message = {
            "message_id": shown.message_id,
            "date": 1_700_000_000,
            "chat": self._chats[shown.chat],
            "from": {"id": self.bot_id, "is_bot": True, "first_name": "Parley"},
        }
        if shown.thread is not None:
            message |= {"message_thread_id": shown.thread, "is_topic_message": True}
        if shown.buttons:
            message["reply_markup"] = {"inline_keyboard": shown.buttons}
        if shown.kind == "text":
            return message | {"text": shown.text, "entities": shown.entities}
        return message | {"caption": shown.text, "caption_entities": shown.entities}

    def _new_message_id(self, chat: int) -> int:
        self._next_message += 1
        self._known_ids.add((chat, self._next_message))
        return self._next_message


def _number(update: Any) -> int:
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) else 0


def _scope(params: Json) -> str:
    kind: str = params.get("scope", {"type": "default"})["type"]
    return kind


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
