"""What the doubles of the model providers share: a loopback server, a script, faults."""

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import orjson
from aiohttp import web

Call = tuple[str, dict[str, Any] | str]
Trouble = Literal["cut", "stall", "pings", "garbage", "cut_after_end", "endless", "endless_event"]

PING_PAUSE_S = 0.02
_BODY = web.RequestKey("body", dict)
HEADINGS = "Use exactly these headings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer.

    Attributes:
        text: What the model says, sent in pieces of `piece` characters.
        calls: Tool calls: a name, and arguments as an object or as raw text.
        thinking: Reasoning; signed by the Anthropic double.
        stop: The provider's stop reason; None for the one that fits.
        usage: Fields that replace those of the usage report; None for no report (OpenAI only).
        trouble: What happens after the text: cut (connection reset), stall (silence), pings
            (nothing but pings, for ever), garbage (an event that breaks off inside its JSON);
            cut_after_end (reset after the last event but before the end of the body); endless (the
            last event with `extra["endless"]` in it comes again and again, as fast as it is read);
            endless_event (an event that never ends).
        error: Type of an error event sent after the text instead of the end.
        extra: Fields of the provider for the test at hand.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    stop: str | None = None
    usage: dict[str, Any] | None = field(default_factory=dict)
    trouble: Trouble | None = None
    error: str | None = None
    piece: int = 7
    pause_s: float = 0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A scripted HTTP error.

    Attributes:
        error: The provider's type.
        html: Sent as the body, as HTML.
        json: Sent as the body, as JSON, be it valid or not.
        trouble: What happens instead of an answer: cut (the connection is closed before the first
            byte), stall (nothing comes, for ever).
    """

    status: int = 500
    error: str = ""
    message: str = "scripted fault"
    headers: dict[str, str] = field(default_factory=dict)
    html: str | None = None
    json: str | None = None
    trouble: Literal["cut", "stall"] | None = None


class Refusal(Exception):
    """The double refuses a request as the real server would."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(status=status, error=error, message=message)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it arrived; header names are lower case."""

    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer:
    """A scripted provider on a loopback port; subclasses speak a protocol.

    Attributes:
        requests: Every request for an answer, also the refused ones, in order.
        refused: What was wrong with the requests that broke a rule.
        default: Answer once the script is used up; None refuses with status 500.
        sent_bytes: How much of endless answers was sent.
        left: Set when a client has left an unfinished answer.
        key_faults: By key: what a request with it always gets. Such a key need not be `api_key`.
        max_prompt_tokens: Longer prompts are refused, as `prompt_tokens` counts them.
        max_bytes: Larger bodies are refused with status 413.
        look_ups: Paths of the questions about models, in order.
        look_up_fault: What these get.
        infos: What is known about models, by id; without it their questions get status 404.
    """

    path = ""
    root = ""
    ping = b""
    garbage = b""

    def __init__(self, api_key: str = "", default: Reply | None = None) -> None:
        self.api_key = api_key
        self.default = default
        self.requests: list[Recorded] = []
        self.refused: list[str] = []
        self.left = asyncio.Event()
        self.sent_bytes = 0
        self.models: set[str] | None = None
        self.key_faults: dict[str, Fault] = {}
        self.max_prompt_tokens: int | None = None
        self.max_bytes: int | None = None
        self.look_ups: list[str] = []
        self.look_up_fault: Fault | None = None
        self.infos: dict[str, dict[str, Any]] = {}
        self._peers: set[object] = set()
        self._script: deque[Reply | Fault] = deque()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post(self.path, self._handle)
        app.router.add_get(f"{self.root or '/v1'}/models{{rest:.*}}", self._handle_look_up)
        app.router.add_get("/v1/key", self._handle_key)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """What `model.base_url` must be."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}{self.root}"

    @property
    def connections(self) -> int:
        """How many TCP connections brought a request."""
        return len(self._peers)

    def script(self, *items: Reply | Fault) -> None:
        """Queue what the next requests get."""
        self._script.extend(items)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            item = await self._admit(request)
        except Refusal as refusal:
            self.refused.append(str(refusal))
            item = refusal.fault
        if isinstance(item, Fault):
            return await self._fail(request, item)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._play(request, response, item)
        return response

    async def _admit(self, request: web.Request) -> Reply | Fault:
        assert request.transport is not None
        self._peers.add(request.transport.get_extra_info("peername"))
        raw = await request.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            raise Refusal(400, "invalid_request_error", "not JSON") from exc
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Recorded(headers, body))
        # Of this request: others may have come by the time that it is answered.
        request[_BODY] = body
        if fault := self.key_faults.get(key_of(headers)):
            return fault
        self.check(headers, body)
        if self.max_bytes is not None and len(raw) > self.max_bytes:
            raise Refusal(413, "request_too_large", "Request exceeds the maximum size")
        item = self._script.popleft() if self._script else self.default
        if isinstance(item, Reply):
            self.note_answered(body)
        return item or Fault(error="api_error", message="the script is used up")

    async def _handle_look_up(self, request: web.Request) -> web.StreamResponse:
        self.look_ups.append(request.path)
        key = key_of({name.lower(): value for name, value in request.headers.items()})
        if fault := self.look_up_fault or self.key_faults.get(key):
            return await self._fail(request, fault)
        found = self.look_up(request.match_info["rest"].strip("/"))
        if found is None:
            missing = Fault(status=404, error="not_found_error", message="no such model")
            return await self._fail(request, missing)
        return web.json_response(found)

    async def _handle_key(self, request: web.Request) -> web.StreamResponse:
        """Answer as OpenRouter does, whose list of models is public; 401 for any other key."""
        self.look_ups.append(request.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if key_of(headers) != self.api_key:
            return await self._fail(request, Fault(status=401, message="User not found."))
        return web.json_response({"data": {"label": "sk-or-v1-0e6...1c96", "usage": 0}})

    async def _fail(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.trouble == "stall":
            await asyncio.Event().wait()
        if fault.trouble == "cut":
            assert request.transport is not None
            request.transport.close()
        text = fault.html or fault.json or orjson.dumps(self.error_body(fault)).decode()
        kind = "text/html" if fault.html is not None else "application/json"
        headers = {"Content-Type": kind} | fault.headers
        return web.Response(status=fault.status, text=text, headers=headers)

    async def _play(self, request: web.Request, response: web.StreamResponse, reply: Reply) -> None:
        try:
            frames = self.frames(request[_BODY], reply)
            for frame in frames:
                await response.write(frame)
                if reply.pause_s:
                    await asyncio.sleep(reply.pause_s)
            if reply.trouble == "stall":
                await asyncio.Event().wait()
            if reply.trouble in {"endless", "endless_event"}:
                await self._write_without_end(response, frames, reply)
            while reply.trouble == "pings":
                await response.write(self.ping)
                await asyncio.sleep(PING_PAUSE_S)
            if reply.trouble == "garbage":
                await response.write(self.garbage)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        if reply.trouble in {"cut", "cut_after_end"}:
            assert request.transport is not None
            request.transport.close()

    async def _write_without_end(
        self, response: web.StreamResponse, frames: list[bytes], reply: Reply
    ) -> None:
        mark = reply.extra.get("endless", "").encode()
        again = next(frame for frame in reversed(frames) if mark in frame)
        if reply.trouble == "endless_event":
            await response.write(b"data: ")
            again = b"x" * 65_536
        while True:
            await response.write(again)
            self.sent_bytes += len(again)

    def check(self, headers: dict[str, str], body: dict[str, Any]) -> None:
        """Raise Refusal for what the real server does not take."""
        raise NotImplementedError

    def note_answered(self, body: dict[str, Any]) -> None:
        """Take note of a request that gets a scripted answer."""

    def look_up(self, name: str) -> dict[str, Any] | None:
        """Return what GET models/`name` says, None for status 404; "" asks for the list."""
        raise NotImplementedError

    def error_body(self, fault: Fault) -> dict[str, Any]:
        """Return the JSON of an HTTP error."""
        raise NotImplementedError

    def frames(self, body: dict[str, Any], reply: Reply) -> list[bytes]:
        """Return the events of an answer up to its trouble, if it has one."""
        raise NotImplementedError


def asks_for_summary(body: dict[str, Any]) -> bool:
    """Whether a request is one of a compaction."""
    return HEADINGS in str(body["messages"][-1]["content"])


def key_of(headers: dict[str, str]) -> str:
    """Return the key of a request, "" if it has none."""
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")


def prompt_tokens(body: dict[str, Any]) -> int:
    """Return how many tokens the doubles find in a request."""
    return len(json.dumps(body)) // 4


def pieces(text: str, size: int) -> list[str]:
    """Return the text cut into pieces of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def require(holds: object, message: str, *, error: str = "invalid_request_error") -> None:
    """Refuse with status 400 unless the condition holds."""
    if not holds:
        raise Refusal(400, error, message)


class SinkSpy:
    """A TextSink that remembers what was pushed since the last restart, and counts restarts.

    Attributes:
        started: Set once something was pushed.
    """

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.pushed: list[str] = []
        self.restarts = 0

    @property
    def text(self) -> str:
        """What is shown now."""
        return "".join(self.pushed)

    def push(self, delta: str) -> None:
        """Append."""
        self.pushed.append(delta)
        self.started.set()

    def restart(self) -> None:
        """Forget."""
        self.pushed.clear()
        self.restarts += 1
