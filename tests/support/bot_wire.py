"""The wire of the strict Bot API server: faults, requests, refusals, and what Telegram limits."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from telegram.constants import ReactionEmoji

Json = dict[str, Any]

MAX_TEXT_UNITS = 4096
MAX_CAPTION_UNITS = 1024
MAX_ENTITIES = 100
MAX_DOWNLOAD_BYTES = 20 * 1000 * 1000
MAX_PHOTO_BYTES = 10 * 1000 * 1000
MAX_UPLOAD_BYTES = 50 * 1000 * 1000
REACTIONS = frozenset(str(emoji.value) for emoji in ReactionEmoji)
SECRET_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
ENTITY_TYPES = frozenset({
    "bold",
    "italic",
    "strikethrough",
    "code",
    "pre",
    "text_link",
    "blockquote",
})
# Methods that put something into a chat or change it there, and all that the overall limit counts.
SHOWING = frozenset({
    "sendMessage",
    "sendPhoto",
    "sendDocument",
    "editMessageText",
    "editMessageReplyMarkup",
    "sendMessageDraft",
})
COUNTED = SHOWING | {"sendChatAction", "setMessageReaction"}
PER_S, PER_MIN_IN_A_GROUP, CHAT_BURST = 30, 20, 2
# Nested values of a form are JSON texts.
_NESTED = frozenset({
    "entities",
    "caption_entities",
    "reply_parameters",
    "reply_markup",
    "link_preview_options",
    "allowed_updates",
    "commands",
    "scope",
    "reaction",
})


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
            answered with `body`), late (carried out, answered with an error page), slow
            (`delay_s` later, without fault), hang (never answered, nothing is done).
    """

    kind: Literal["error", "html", "cut", "drop", "junk", "reply", "late", "slow", "hang"]
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
HANG = Fault("hang")


class ApiError(Exception):
    """An answer of the form {"ok": false, …}."""

    def __init__(self, status: int, description: str, parameters: Json | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters or {}


async def params_of(request: web.Request) -> Json:
    """Return the parameters; a file becomes `(name, bytes)` under the name of its parameter."""
    if request.content_type == "application/json":
        sent: dict[str, str] = await request.json()
        return _decoded(sent)
    form = await request.post()
    files = {
        name: (value.filename, value.file.read())
        for name, value in form.items()
        if isinstance(value, web.FileField)
    }
    texts = {name: str(value) for name, value in form.items() if name not in files}
    params = _decoded(texts)
    attached = {f"attach://{name}": file for name, file in files.items()}
    for name, value in params.items():
        if isinstance(value, str) and value in attached:
            params[name] = attached[value]
    return files | params


def _decoded(texts: dict[str, str]) -> Json:
    """Return parameters that came as texts; those that hold others are JSON, however they came."""
    return {name: json.loads(it) if name in _NESTED else it for name, it in texts.items()}


def refusal(exc: ApiError) -> web.Response:
    """Return an error answer in Telegram's form."""
    body = {"ok": False, "error_code": exc.status, "description": exc.description}
    if exc.parameters:
        body["parameters"] = exc.parameters
    return web.json_response(body, status=exc.status)


async def refused(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault that lets nothing happen."""
    if fault is None:
        return None
    if fault.kind == "slow":
        await asyncio.sleep(fault.delay_s)
    if fault.kind == "hang":
        await asyncio.Event().wait()
    if fault.kind == "error":
        return refusal(ApiError(fault.status, fault.description, fault.parameters))
    if fault.kind == "html":
        return _error_page(fault.status)
    return _hang_up(request) if fault.kind == "drop" else None


def broken(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault after the request was carried out."""
    if fault is None:
        return None
    if fault.kind == "junk":
        return web.Response(text='{"ok": true, "resu', content_type="application/json")
    if fault.kind == "reply":
        return web.json_response(fault.body)
    if fault.kind == "late":
        return _error_page(fault.status)
    return _hang_up(request) if fault.kind == "cut" else None


def _error_page(status: int) -> web.Response:
    page = f"<html><h1>{status} Bad Gateway</h1></html>"
    return web.Response(text=page, status=status, content_type="text/html")


def _hang_up(request: web.Request) -> web.Response:
    """Drop the connection; the answer returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def excesses(calls: Iterable[Call], late_s: float = 0.0) -> list[str]:
    """Return where requests came faster than Telegram allows; the recorder of the limits.

    On a busy machine a request may be taken `late_s` later than it came, beside those after it.

    At most 30 in any second, 20 messages in any minute in a group; one message per second in a
    chat, of which two may come at once after a quiet time.
    """
    counted = [call for call in calls if call.method in COUNTED]
    found = _too_dense([call.at for call in counted], PER_S, 1.0 - late_s, "in all")
    by_chat: dict[str, list[float]] = defaultdict(list)
    for call in counted:
        if call.method in SHOWING:
            by_chat[call.params["chat_id"]].append(call.at)
    for chat, stamps in by_chat.items():
        found += _too_fast(chat, stamps, late_s)
        if chat.startswith("-"):
            found += _too_dense(stamps, PER_MIN_IN_A_GROUP, 60.0 - late_s, f"in {chat}")
    return found


def _too_dense(stamps: list[float], most: int, period_s: float, where: str) -> list[str]:
    recent: deque[float] = deque(maxlen=most + 1)
    found = []
    for stamp in stamps:
        recent.append(stamp)
        if len(recent) > most and stamp - recent[0] < period_s:
            found.append(f"{most + 1} within {stamp - recent[0]:.2f} s {where}")
    return found


def _too_fast(chat: str, stamps: list[float], late_s: float) -> list[str]:
    room, last, found = float(CHAT_BURST), float("-inf"), []
    for stamp in stamps:
        room, last = min(CHAT_BURST, room + stamp - last), stamp
        if room < 1 - late_s:
            found.append(f"more than one per second in {chat}")
        room -= 1
    return found
