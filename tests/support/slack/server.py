"""A strict Slack on a loopback port, with a fault switchboard; no global state.

It refuses what Slack refuses and notes in `violations` what a correct app never does. Web API,
Socket Mode and files on one port; HTTP mode delivers to `url`. Runs in the test's own loop; the
app may be in another process.
"""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from tests.support.slack import faults
from tests.support.slack.delivery import Delivery
from tests.support.slack.faults import ApiError, Fault, Json
from tests.support.slack.people import People
from tests.support.slack.workspace import Identity, Message
from tests.support.thorough import WAIT_S

_NESTED = frozenset({"blocks", "chunks", "files", "metadata", "prompts", "loading_messages"})
_RESPONSES = 5


@dataclass
class Call:
    """One request of the app; `at` is the monotonic time of its arrival."""

    method: str
    params: Json
    at: float


@dataclass
class Response:
    """What the app posted to a response_url."""

    url: str
    body: Json


class SlackServer(People):
    """The server; use as an async context manager.

    Attributes:
        base_url: What `platforms.slack.base_url` has to be.
        calls: Every request to the Web API, in order.
        responses: What was posted to response_urls.
        changed: Notified after everything that happens.
        revoked: The error that every call gets once the app was removed ("token_revoked").
    """

    def __init__(self, identity: Identity | None = None) -> None:
        super().__init__(identity or Identity())
        self.base_url = ""
        self.calls: list[Call] = []
        self.responses: list[Response] = []
        self.revoked: str | None = None
        self.delivering.changed = self._notify
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._quiet_until: dict[tuple[str, str], float] = {}
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/api/{method}", self._handle)
        app.router.add_get("/link/", self.delivering.socket)
        app.router.add_post("/upload/v1/{file}", self._upload)
        app.router.add_get("/files-pri/{file}/{name}", self._download)
        app.router.add_get("/login", _login_page)
        app.router.add_post("/{kind:actions|commands}/{team}/{number}/{secret}", self._response)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.api.root = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.base_url = f"{self.api.root}/api/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delivering.close()
        await self._runner.cleanup()

    # what can go wrong

    def fail(self, method: str, *faults_: Fault) -> None:
        """Let the next requests of a method go wrong, one fault each.

        Beside the methods of the Web API there are `upload`, `download` and `response`.
        """
        self._faults[method].extend(faults_)

    def recover(self) -> None:
        """Take back all faults that have not come up yet."""
        self._faults.clear()

    def held(self) -> AbstractAsyncContextManager[list[Delivery]]:
        """Keep deliveries in a list that may be reordered or repeated; sent at the end."""
        return self.delivering.held()

    # what the test looks at

    def messages(self, channel: str, thread: str | None = None) -> list[Message]:
        """Return what stands in a channel or thread, in order."""
        return self.workspace.in_channel(channel, thread)

    def shown(self, channel: str, thread: str | None = None) -> list[str]:
        """Return the texts of the bot that stand in a channel or thread, in order."""
        bot = self.identity.bot
        return [m.shown for m in self.messages(channel, thread) if m.bot == bot]

    def reactions(self, channel: str, ts: str) -> list[str]:
        """Return the bot's reactions to a message."""
        reactions = self.workspace.get(channel, ts).reactions
        return [name for name, users in reactions.items() if self.identity.user in users]

    def made(self, method: str) -> list[Call]:
        """Return the requests of one method, in order."""
        return [call for call in self.calls if call.method == method]

    def rate_stamps(self, channel: str) -> list[float]:
        """Return when the bot posted in a channel; monotonic seconds."""
        return self.api.posts.get(channel, [])

    async def wait_for(self, predicate: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        """Wait until the predicate holds; it is looked at after everything that happens."""
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(lambda: bool(predicate()))

    # requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        params = await _params(request)
        self.calls.append(Call(method, params, time.monotonic()))
        await self._notify()
        fault = self._faults[method].popleft() if self._faults[method] else None
        self._note_pace(method, params, fault)
        try:
            return await self._answer(request, lambda: self._call(request, method, params), fault)
        finally:
            await self._notify()

    async def _answer(
        self, request: web.Request, perform: Callable[[], web.Response], fault: Fault | None
    ) -> web.StreamResponse:
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.delay_s)
        refused = faults.before(request, fault)
        if refused is not None:
            return refused
        try:
            done = perform()
        except ApiError as exc:
            return faults.refusal(exc.error, exc.fields)
        return faults.after(request, fault) or done

    def _call(self, request: web.Request, method: str, params: Json) -> web.Response:
        token = _token(request, params)
        if "token" in request.query:
            self.violations.append("a token in a URL")
        self._authorise(token, method)
        if method == "apps.connections.open":
            socket = self.api.root.replace("http", "ws", 1)
            ticket = self.delivering.ticket()
            url = f"{socket}/link/?ticket={ticket}&app_id={self.identity.app}"
            return faults.answer({"url": url})
        done = faults.answer(self.api.perform(method, params))
        done.headers["X-OAuth-Scopes"] = ",".join(sorted(self.api.scopes))
        return done

    def _authorise(self, token: str, method: str) -> None:
        if self.revoked is not None:
            raise ApiError(self.revoked)
        if not token:
            raise ApiError("not_authed")
        if token not in {self.identity.bot_token, self.identity.app_token}:
            raise ApiError("invalid_auth")
        wanted = token == self.identity.app_token
        if method != "auth.test" and wanted != (method == "apps.connections.open"):
            self.violations.append(f"wrong kind of token for {method}")
            raise ApiError("not_allowed_token_type")

    def _note_pace(self, method: str, params: Json, fault: Fault | None) -> None:
        """Note a request that comes before the Retry-After of an earlier one has passed."""
        key = (method, str(params.get("channel") or params.get("channel_id") or ""))
        now = time.monotonic()
        if now < self._quiet_until.get(key, 0.0) - 0.05:
            self.violations.append(f"{method} before Retry-After had passed")
        if fault is not None and fault.kind == "limited":
            self._quiet_until[key] = now + fault.retry_after_s

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        content = await _uploaded(request)
        self.calls.append(Call("upload", {"bytes": len(content)}, time.monotonic()))
        fault = self._faults["upload"].popleft() if self._faults["upload"] else None

        def perform() -> web.Response:
            if not self.api.receive(request.match_info["file"], content):
                return web.Response(status=400, text="bad length")
            return web.Response(text=f"OK - {len(content)}")

        try:
            return await self._answer(request, perform, fault)
        finally:
            await self._notify()

    async def _download(self, request: web.Request) -> web.StreamResponse:
        """Serve a file; without the bot's token Slack redirects to its login page."""
        file = self.workspace.files.get(request.match_info["file"])
        self.calls.append(Call("download", {"file": request.match_info["file"]}, time.monotonic()))
        fault = self._faults["download"].popleft() if self._faults["download"] else None

        def perform() -> web.Response:
            allowed = self.revoked is None and "files:read" in self.api.scopes
            if not allowed or _bearer(request) != self.identity.bot_token:
                return web.Response(status=302, headers={"Location": f"{self.api.root}/login"})
            if file is None or file.gone:
                return web.Response(status=404, text="not found")
            return web.Response(body=file.content, content_type=file.mime or "binary/octet-stream")

        return await self._answer(request, perform, fault)

    async def _response(self, request: web.Request) -> web.StreamResponse:
        body: Json = await request.json()
        fault = self._faults["response"].popleft() if self._faults["response"] else None
        url = f"{self.api.root}{request.path}"

        def perform() -> web.Response:
            if sum(response.url == url for response in self.responses) >= _RESPONSES:
                return faults.refusal("used_url", status=404)
            self.responses.append(Response(url, body))
            return web.Response(text="ok")

        try:
            return await self._answer(request, perform, fault)
        finally:
            await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


async def _params(request: web.Request) -> Json:
    """Return the parameters of JSON, form and query; nested values of a form are JSON texts."""
    params: Json = dict(request.query)
    if request.content_type == "application/json":
        params |= await request.json()
    else:
        params |= await request.post()
    return {
        name: _loaded(value) if name in _NESTED and isinstance(value, str) else value
        for name, value in params.items()
    }


def _loaded(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _token(request: web.Request, params: Json) -> str:
    return _bearer(request) or str(params.get("token", ""))


def _bearer(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ").strip()


async def _uploaded(request: web.Request) -> bytes:
    """Return an upload's bytes: the raw body, or the one part of a form."""
    if request.content_type != "multipart/form-data":
        return await request.read()
    for value in (await request.post()).values():
        if isinstance(value, web.FileField):
            return value.file.read()
    return b""


async def _login_page(_request: web.Request) -> web.Response:
    return web.Response(text="<html>Sign in to Loopback</html>", content_type="text/html")
