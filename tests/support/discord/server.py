"""A strict Discord on a loopback port; no global state.

It refuses what Discord refuses and notes in `violations` what a correct bot never does. It runs in
the test's own loop; the bot may be in another process.
"""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from tests.support.discord.bodies import read_body
from tests.support.discord.faults import Fault, Json, Refusal
from tests.support.discord.gateway import Gateway
from tests.support.discord.limits import LIMITS, Limits, Window
from tests.support.discord.people import People
from tests.support.discord.rest import Asked
from tests.support.discord.world import Bot, Channel, World
from tests.support.thorough import WAIT_S

_LOOK_S = 0.02
TOKEN = "MTIz.loopback.TOKEN-SECRET"
_ROUTES = (
    ("login", "GET", "/users/@me", "me"),
    ("application", "GET", "/oauth2/applications/@me", "application"),
    ("application", "GET", "/applications/@me", "application"),
    ("gateway_url", "GET", "/gateway/bot", "gateway_url"),
    ("direct", "POST", "/users/@me/channels", "open_direct"),
    ("channel", "GET", "/channels/{channel}", "channel"),
    ("change_channel", "PATCH", "/channels/{channel}", "change_channel"),
    ("threads", "GET", "/guilds/{guild}/threads/active", "active_threads"),
    ("threads", "GET", "/channels/{channel}/threads/archived/public", "archived_threads"),
    ("join", "PUT", "/channels/{channel}/thread-members/@me", "join"),
    ("history", "GET", "/channels/{channel}/messages", "history"),
    ("message", "GET", "/channels/{channel}/messages/{message}", "message"),
    ("send", "POST", "/channels/{channel}/messages", "send"),
    ("edit", "PATCH", "/channels/{channel}/messages/{message}", "edit"),
    ("delete", "DELETE", "/channels/{channel}/messages/{message}", "delete"),
    ("thread", "POST", "/channels/{channel}/messages/{message}/threads", "open_thread"),
    ("typing", "POST", "/channels/{channel}/typing", "typing_signal"),
    ("react", "PUT", "/channels/{channel}/messages/{message}/reactions/{emoji}/@me", "react"),
    ("react", "DELETE", "/channels/{channel}/messages/{message}/reactions/{emoji}/@me", "unreact"),
    ("commands", "GET", "/applications/{application}/commands", "commands"),
    ("sync", "PUT", "/applications/{application}/commands", "sync_commands"),
)
_HOOK = "/webhooks/{application}/{token}"
_TOKEN_ROUTES = (
    ("callback", "POST", "/interactions/{interaction}/{token}/callback", "callback"),
    ("answer", "GET", _HOOK + "/messages/@original", "original"),
    ("answer", "PATCH", _HOOK + "/messages/@original", "edit_original"),
    ("answer", "DELETE", _HOOK + "/messages/@original", "delete_original"),
    ("follow_up", "POST", _HOOK, "follow_up"),
    ("follow_up", "PATCH", _HOOK + "/messages/{message}", "edit_follow_up"),
)
_SENDS = frozenset({"send", "edit", "answer", "follow_up"})


@dataclass(frozen=True)
class Call:
    """One request of a bot; `at` is the monotonic time of its arrival, `status` its answer.

    Attributes:
        route: login, send, edit, history, message, thread, channel, typing, react, commands, sync,
            callback, answer (the deferred answer of an interaction), follow_up, cdn, gateway, …
        verb: The HTTP method.
        channel: The channel of the path; 0 without one.
        data: The JSON body.
    """

    route: str
    verb: str
    channel: int
    data: Json
    query: dict[str, str]
    at: float
    files: tuple[str, ...] = ()


class DiscordServer(People):
    """The server; use as an async context manager. See `People` for what can be done at it.

    Attributes:
        api_url: What `platforms.discord.api_url` has to be; `gateway_url` likewise.
        calls: Every request that reached a route, in order.
        strict_limits: Whether a request beyond a rate limit is a violation and not only a 429;
            False where a bot is killed and cannot know what it sent before.
    """

    def __init__(
        self,
        *,
        heartbeat_s: float = 41.25,
        limits: dict[str, Window] | None = None,
        strict_limits: bool = True,
    ) -> None:
        self.api_url = ""
        self.gateway_url = ""
        self.calls: list[Call] = []
        self.strict_limits = strict_limits
        self._violations: list[str] = []
        self._changed = asyncio.Condition()
        world, bots = World(), dict[str, Bot]()
        gateway = Gateway(world, bots, self._notify)
        gateway.heartbeat_s = heartbeat_s
        super().__init__(world, bots, gateway, (TOKEN, "Parley"))
        self.limits = Limits(dict(LIMITS) if limits is None else limits)
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._quiet_until: dict[tuple[int, str, int], float] = {}

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/gateway", self._open_gateway)
        app.router.add_get("/gateway/", self._open_gateway)
        app.router.add_get("/attachments/{channel}/{file}/{name}", self._download)
        for table, target in ((_ROUTES, self.rest), (_TOKEN_ROUTES, self.interactions)):
            for route, verb, path, name in table:
                serve = self._serving(
                    route, getattr(target, name), by_token=target is not self.rest
                )
                app.router.add_route(verb, "/api/v10" + path, serve)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        place = f"127.0.0.1:{self._runner.addresses[0][1]}"
        self.api_url, self.gateway_url = f"http://{place}/api/v10", f"ws://{place}/gateway"
        self._world.cdn, self.gateway.url = f"http://{place}", self.gateway_url
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gateway.drop()
        await self._runner.cleanup()

    @property
    def violations(self) -> list[str]:
        """What a correct bot never does; tests assert that it is empty."""
        return self._violations + self.rest.violations + self.gateway.violations

    def fail(self, route: str, *faults: Fault) -> None:
        """Let the next requests of a route (see `Call.route`) go wrong, one fault each."""
        self._faults[route].extend(faults)

    def made(self, route: str, channel: Channel | None = None) -> list[Call]:
        """Return the requests of one route, in order."""
        wanted = {0} if channel is None else {channel.id}
        return [
            call
            for call in self.calls
            if call.route == route and (channel is None or call.channel in wanted)
        ]

    def rate_stamps(self, channel: Channel) -> list[float]:
        """Return when messages and edits were requested for a channel; monotonic seconds."""
        return [c.at for c in self.calls if c.route in _SENDS and c.channel == channel.id]

    def typed(self, channel: Channel) -> int:
        """Return how often "typing" was shown in a channel."""
        return sum(where == channel.id for where, _ in self.rest.typing)

    async def wait_for(self, predicate: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Wait until the predicate holds; it is looked at after every request, and now and then."""
        async with asyncio.timeout(timeout_s):
            while not predicate():
                await self._change()

    async def _change(self) -> None:
        """Wait until something has happened here; a bot's own state is asked for all the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S), self._changed:
                await self._changed.wait()

    async def online(self, bot: Bot | None = None) -> None:
        """Wait until a bot (the first) has a session."""
        await self.wait_for(lambda: self.gateway.online(bot or self.bot))

    def _serving(self, route: str, perform: Any, *, by_token: bool) -> Any:
        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                return await self._serve(request, route, perform, by_token=by_token)
            finally:
                await self._notify()

        return serve

    async def _serve(
        self, request: web.Request, route: str, perform: Any, *, by_token: bool
    ) -> web.StreamResponse:
        bot = self._authorised(request, by_token=by_token)
        if bot is None:
            return _refusal(Refusal(401, 0, "401: Unauthorized"))
        try:
            body = await read_body(request)
        except Refusal as exc:
            return _refusal(exc)
        path = {name: unquote(value) for name, value in request.match_info.items()}
        asked = Asked(bot, path, dict(request.query), body)
        call = self._record(request, route, asked)
        await self._notify()
        fault = self._next_fault(route)
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
        key = (bot.id, route, call.channel)
        headers, limited = ({}, None) if by_token else self._limited(key, fault)
        refused = limited or _refused(request, fault)
        if refused is not None:
            return refused
        try:
            result = perform(asked)
        except Refusal as exc:
            return _refusal(exc, headers)
        return _broken(request, fault) or _answer(result, headers)

    def _authorised(self, request: web.Request, *, by_token: bool) -> Bot | None:
        if not request.headers.get("User-Agent", "").startswith("DiscordBot ("):
            self._violations.append(f"no valid user agent for {request.path}")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        bot = self._bots.get(token) if scheme == "Bot" else None
        if by_token:
            return bot or self.bot
        return None if bot is None or bot.revoked else bot

    def _record(self, request: web.Request, route: str, asked: Asked) -> Call:
        channel = int(asked.path.get("channel", "0"))
        names = tuple(name for name, _, _ in asked.body.files)
        call = Call(
            route, request.method, channel, asked.body.data, asked.query, time.monotonic(), names
        )
        if "token" in asked.path:
            known = [i for i in self.interactions.all if i.token == asked.path["token"]]
            place = known[0].channel.id if known else 0
            call = Call(route, call.verb, place, call.data, call.query, call.at, names)
        self.calls.append(call)
        return call

    def _next_fault(self, route: str) -> Fault | None:
        return self._faults[route].popleft() if self._faults[route] else None

    def _limited(
        self, key: tuple[int, str, int], fault: Fault | None
    ) -> tuple[dict[str, str], web.StreamResponse | None]:
        """Return the headers of the answer, and a 429 where the bot has to wait."""
        now = time.monotonic()
        # A clock of the bot may be a little ahead of this one.
        if now < self._quiet_until.get(key, 0.0) - 0.02:
            self._violations.append(f"{key[1]} in {key[2]} although a 429 said to wait")
        if fault is not None and fault.kind == "limit":
            self._quiet_until[key] = now + fault.delay_s
            return {}, None
        room, headers = self.limits.take(*key)
        if room:
            return headers, None
        if self.strict_limits:
            self._violations.append(f"{key[1]} in {key[2]} beyond the rate limit it was told")
        wait_s = float(headers["X-RateLimit-Reset-After"])
        self._quiet_until[key] = now + wait_s
        body = {"message": "You are being rate limited.", "retry_after": wait_s, "global": False}
        more = {
            "Via": "1.1 google",
            "Retry-After": str(int(wait_s) + 1),
            "X-RateLimit-Scope": "user",
        }
        return headers, _json(body, 429, headers | more)

    async def _open_gateway(self, request: web.Request) -> web.StreamResponse:
        call = Call("gateway", "GET", 0, {}, dict(request.query), time.monotonic())
        self.calls.append(call)
        fault = self._next_fault("gateway")
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
        refused = _refused(request, fault)
        await self._notify()
        return refused or await self.gateway.handle(request)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers:
            self._violations.append("the token was shown to the CDN")
        channel = int(request.match_info["channel"])
        self.calls.append(Call("cdn", "GET", channel, {}, dict(request.query), time.monotonic()))
        await self._notify()
        fault = self._next_fault("cdn")
        refused = _refused(request, fault)
        if refused is not None:
            return refused
        file = self._world.files.get(int(request.match_info["file"]))
        epoch = int(request.query.get("hm", "0"), 16)
        if file is None or epoch < self._world.oldest_link_epoch:
            return web.Response(text="This content is no longer available.", status=404)
        mime = file.mime.partition(";")[0] or "application/octet-stream"
        return web.Response(body=file.content, content_type=mime)

    async def _unknown(self, request: web.Request) -> web.Response:
        self._violations.append(f"unknown route {request.method} {request.path}")
        return _refusal(Refusal(404, 0, "404: Not Found"))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _answer(result: Json | list[Json] | None, headers: dict[str, str]) -> web.Response:
    if result is None:
        return web.Response(status=204, headers=headers)
    return _json(result, 200, headers)


def _json(data: Any, status: int, headers: dict[str, str] | None = None) -> web.Response:
    """Return JSON whose type names no charset: discord.py takes it for text otherwise."""
    more = (headers or {}) | {"Content-Type": "application/json"}
    return web.Response(body=json.dumps(data).encode(), status=status, headers=more)


def _refusal(exc: Refusal, headers: dict[str, str] | None = None) -> web.Response:
    return _json(exc.body, exc.status, headers)


def _refused(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault that lets nothing happen."""
    if fault is None:
        return None
    if fault.kind == "error":
        return _refusal(Refusal(fault.status, fault.code, fault.message))
    if fault.kind == "html":
        page = f"<html><h1>{fault.status} Bad Gateway</h1></html>"
        return web.Response(text=page, status=fault.status, content_type="text/html")
    if fault.kind == "limit":
        return _limit_answer(fault)
    return _hang_up(request) if fault.kind == "drop" else None


def _limit_answer(fault: Fault) -> web.Response:
    if fault.body is None:
        return web.Response(text=fault.message, status=429, headers=fault.headers)
    return _json(fault.body, 429, fault.headers)


def _broken(request: web.Request, fault: Fault | None) -> web.StreamResponse | None:
    """Return the answer of a fault after the request was carried out."""
    if fault is None:
        return None
    if fault.kind == "junk":
        return web.Response(body=b'{"id": "1', headers={"Content-Type": "application/json"})
    if fault.kind == "reply":
        return _json(fault.body, 200)
    if fault.kind == "late":
        return web.Response(text="<html>", status=fault.status, content_type="text/html")
    return _hang_up(request) if fault.kind == "cut" else None


def _hang_up(request: web.Request) -> web.Response:
    """Drop the connection; the answer returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
