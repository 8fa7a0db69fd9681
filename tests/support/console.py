"""The console in tests: a gateway with a web page, and visitors with sessions of their own.

`ConsoleBrowser` is no double: a client of real HTTP that keeps cookies, and fills in forms with the
token that their page holds.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import aiohttp
import orjson

from adapters.door import FIRST_OWNER
from gateway.access import web_door
from gateway.logging.recent import RecentLines
from gateway.storage import schema
from gateway.storage.people import web_users
from tests.support.gateway import Serving, serving

_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')


class Answered(NamedTuple):
    """What a request got; redirects are not followed."""

    status: int
    text: str
    headers: Mapping[str, str]


class ConsoleBrowser:
    """Somebody's browser; signed in as `sender`, or as nobody."""

    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self.http = http
        self.origin = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> Answered:
        return await self._ask("GET", path)

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, **headers: str
    ) -> Answered:
        """Send a form as it is, from a page of ours unless `Origin` says otherwise."""
        return await self._ask(
            "POST", path, data=dict(fields or {}), headers={"Origin": self.origin} | headers
        )

    async def submit(self, page: str, path: str, **fields: str) -> Answered:
        """Open a page, and send a form of it."""
        return await self.post(path, fields | {"form_token": await self.token(page)})

    async def token(self, page: str = "/admin") -> str:
        """Return the token of the forms of a page."""
        return _TOKEN.findall((await self.get(page)).text)[0]

    async def _ask(self, method: str, path: str, **more: Any) -> Answered:
        url = self.origin + path
        async with self.http.request(method, url, allow_redirects=False, **more) as response:
            return Answered(response.status, await response.text(), response.headers)


class ConsoleGateway:
    """A gateway that runs, and browsers that come to it."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.database = serving.chat.gateway.database

    @asynccontextmanager
    async def browser(self, sender: str | None = FIRST_OWNER) -> AsyncIterator[ConsoleBrowser]:
        """Open a browser in which somebody is signed in; nobody where `sender` is None."""
        cookies = {}
        if sender is not None:
            secret = f"{sender}-{token_hex(8)}"
            hash_ = web_door.hash_of(secret)
            await self.database.write(web_users.begin, hash_, sender, "link", "", "")
            cookies = {f"parley_{self.serving.port}": secret}
        jar = aiohttp.CookieJar(unsafe=True)
        headers = {"Accept": "text/html"}
        async with aiohttp.ClientSession(cookie_jar=jar, headers=headers) as http:
            here = ConsoleBrowser(http, self.serving.port)
            jar.update_cookies(cookies, http._build_url(here.origin))
            yield here

    async def invite(self, name: str, role: Any = "member") -> None:
        """Make a user of the web chat."""
        await self.database.write(web_door.invite, name, role)


@asynccontextmanager
async def console(home: Path, *answers: Any, **sections: Any) -> AsyncIterator[ConsoleGateway]:
    """Run a gateway with its console."""
    async with serving(home, *answers, **sections) as gateway:
        yield ConsoleGateway(gateway)


BY_WEB_OWNER = "web:web"


def add(recent: RecentLines, event: str, level: str = "info", **fields: object) -> None:
    """Log a line."""
    line = {"timestamp": "2026-11-27T10:00:00.123Z", "level": level, "event": event, **fields}
    recent.add(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


async def said(running: ConsoleGateway, kind: str) -> list[str]:
    """Return by whom rows of a kind are in the audit log."""
    rows = await running.serving.chat.rows(schema.audit_rows)
    return [re.findall(r'^\["([^"]*)"', row.said)[0] for row in rows if row.kind == kind]
