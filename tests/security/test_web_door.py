"""Attacks on the door of the web chat (1, 2, 3 and 8), against whole gateways."""

import asyncio
import json
import os
import pwd
import sys
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from agent.processes import confinement
from agent.settings import TerminalSettings, ToolSettings
from tests.agent.tools.sandbox.calling import use_with
from tests.e2e.web_chat import WebChat
from tests.support.door import bearer, sign_in_link
from tests.support.nginx import NGINX, PROPER, certificate, nginx, nginx_with_tls
from tests.support.oidc_server import OidcServer
from tests.support.process import ParleyProcess, free_port
from tests.support.storage import outdated_copy

PYTHON = Path(sys.executable).resolve()
MESSAGE = {"id": "m1", "text": "/approve"}
GET_AND_POST = """
import json, os, socket, sys
port, home = int(sys.argv[1]), sys.argv[2]
def ask(*lines):
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as there:
            there.sendall("\\r\\n".join((*lines, "")).encode())
            return there.recv(12).decode().split()[-1]
    except OSError as exc:
        return type(exc).__name__
def reach(what):
    try:
        what()
    except OSError as exc:
        return type(exc).__name__
    return "reached"
def connect():
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(home + "/parley.sock")
body = json.dumps({"id": "m1", "text": "/approve"})
host = f"Host: 127.0.0.1:{port}"
found = {
    "get": ask("GET /api/chats HTTP/1.1", host, "Connection: close", ""),
    "post": ask("POST /api/chats/c1/messages HTTP/1.1", host, "Connection: close",
        "Content-Type: application/json", f"Content-Length: {len(body)}", "", body),
    "socket": reach(connect),
    "token": reach(lambda: open(home + "/web.token").close()),
    "database": reach(lambda: open(home + "/parley.db").close()),
}
print(json.dumps(found))
"""


@pytest.fixture
async def parley(tmp_path: Path) -> AsyncIterator[ParleyProcess]:
    """A gateway with default settings."""
    async with ParleyProcess(tmp_path / "home") as process:
        yield process


async def answers(port: int, **headers: str) -> tuple[list[int], list[str]]:
    """Ask for the chats and write `/approve`; returns status and code of both."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=named) as http,
        http.get("/api/chats") as got,
        http.post("/api/chats/c1/messages", json=MESSAGE) as posted,
    ):
        told = [await each.json() for each in (got, posted)]
        return [got.status, posted.status], [each["error"] for each in told]


def nothing_was_taken(parley: ParleyProcess) -> bool:
    return parley.rows("SELECT * FROM inbox") == []


if NGINX is not None:

    async def test_attack_1_a_plain_proxy_pass_makes_nobody_owner(
        parley: ParleyProcess, tmp_path: Path
    ) -> None:
        """The internet comes from 127.0.0.1, under that name, without a forwarding header."""
        async with nginx(tmp_path / "nginx", parley.port) as port:
            assert await answers(port) == ([401, 401], ["sign_in_needed", "sign_in_needed"])
        assert nothing_was_taken(parley)

    async def test_attack_1_a_proxy_that_nobody_has_named_is_refused(
        parley: ParleyProcess, tmp_path: Path
    ) -> None:
        """Also for who is signed in: the page names the setting."""
        async with (
            nginx(tmp_path / "nginx", parley.port, PROPER) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):
            assert await answers(port, **bearer(parley.home)) == (
                [403, 403],
                ["proxy_not_trusted", "proxy_not_trusted"],
            )
            async with http.get("/", headers={"Accept": "text/html"}) as response:
                page = await response.text()
            assert (response.status, "web.trusted_proxies" in page) == (403, True)
        assert nothing_was_taken(parley)

    async def test_behind_a_trusted_proxy_a_link_signs_in(tmp_path: Path) -> None:
        """With a cookie for TLS alone; the log has the client's address, not the proxy's."""
        settings = {"web": {"trusted_proxies": ["127.0.0.1"]}}
        async with (
            ParleyProcess(tmp_path / "home", settings) as parley,
            nginx(tmp_path / "nginx", parley.port, PROPER) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
        ):
            await parley.wait_until(lambda: "#sign-in=" in str(parley.stderr))
            secret = sign_in_link(parley.stderr).partition("#sign-in=")[2]
            spoofed = {"X-Forwarded-For": "6.6.6.6"}
            body = {"link": secret}
            async with http.post("/api/sign-in", json=body, headers=spoofed) as response:
                assert response.status == 204
                cookie = response.cookies["__Host-parley"]
            assert (cookie["secure"], cookie["httponly"], cookie["samesite"]) == (
                True,
                True,
                "Strict",
            )
            headers = {"Cookie": f"__Host-parley={cookie.value}"}
            async with http.get("/api/me", headers=headers) as response:
                assert (await response.json())["role"] == "owner"
            signed_in = await parley.event("web_signed_in")
            assert (signed_in["user"], signed_in["by"], signed_in["address"]) == (
                "owner",
                "link",
                "127.0.0.1",
            )
            assert secret not in json.dumps(parley.records)
            log = (tmp_path / "nginx" / "access.log").read_text()
            assert "sign-in" in log
            assert secret not in log

    async def test_the_documented_block_with_tls(tmp_path: Path) -> None:
        """As docs/operations.md has it: cookies for TLS, the stream at once, files, the origin."""
        public = free_port()
        page = f"https://localhost:{public}"
        context = certificate(tmp_path / "nginx")
        web = {"trusted_proxies": ["127.0.0.1"], "public_url": f"{page}/"}
        async with (
            ParleyProcess(tmp_path / "home", {"web": web}) as parley,
            nginx_with_tls(tmp_path / "nginx", parley.port, public),
            aiohttp.ClientSession(page, connector=aiohttp.TCPConnector(ssl=context)) as http,
        ):
            await behind_tls(parley, http, page)


async def behind_tls(parley: ParleyProcess, http: aiohttp.ClientSession, page: str) -> None:
    """What a browser does, over TLS that ends at a proxy."""
    made = await parley.run("open", "--no-browser")
    link = sign_in_link(made.stdout.splitlines())
    assert link.startswith(f"{page}/#sign-in=")
    body, own = {"link": link.partition("#sign-in=")[2]}, {"Origin": page}
    plain = {"Origin": page.replace("https", "http")}
    async with http.post("/api/sign-in", json=body, headers=plain) as response:
        assert (response.status, (await response.json())["error"]) == (403, "origin_refused")
    async with http.post("/api/sign-in", json=body, headers=own) as response:
        assert response.status == 204
        cookie = response.cookies["__Host-parley"]
    assert (cookie["secure"], cookie["path"], cookie["domain"]) == (True, "/", "")
    async with http.get("/api/chats/c1/events") as stream:
        # Nothing of it is held back: it never ends by itself.
        async with asyncio.timeout(60):
            assert b"event: " in await stream.content.readline()
        form = aiohttp.FormData({"id": "m1", "text": "what is 12*7?"})
        form.add_field("file", BytesIO(b"x" * 3_000_000), filename="big.txt")
        headers = own | {"X-Parley": "1"}
        async with http.post("/api/chats/c1/messages", data=form, headers=headers) as response:
            assert response.status == 202, await response.text()
        async with asyncio.timeout(60):
            assert b"calculate" in await stream.content.readuntil(b"84")
    async with http.get("/readyz") as response:
        assert "adapters" in await response.json()
    refused = await parley.event("web_request_refused", code="origin_refused")
    assert refused["proxy"] == "127.0.0.1"


if os.geteuid() == 0:

    @pytest.fixture
    def open_folder() -> Iterator[Path]:
        """A folder that others may enter: those of pytest would do the gateway's work."""
        with TemporaryDirectory(prefix="parley-test-") as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)

    async def test_attack_2_another_user_of_the_machine_gets_nothing(open_folder: Path) -> None:
        """Neither over the port nor from what lies in PARLEY_HOME; the port says 401."""
        async with ParleyProcess(open_folder / "home") as parley:
            found = await as_nobody(parley)
            assert nothing_was_taken(parley)
        denied = dict.fromkeys(("socket", "token", "database"), "PermissionError")
        assert found == {"get": "401", "post": "401"} | denied

    async def as_nobody(parley: ParleyProcess) -> Any:
        nobody = pwd.getpwnam("nobody")
        process = await asyncio.create_subprocess_exec(
            *("/usr/bin/env", "python3", "-I", "-c", GET_AND_POST),
            *(str(parley.port), str(parley.home)),
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return json.loads(out)


if confinement.why_not() is None:

    async def test_attack_3_a_confined_command_with_the_network_gets_nothing(
        parley: ParleyProcess, tmp_path: Path
    ) -> None:
        """It cannot approve the next one: it has no session, and cannot read the token."""
        settings = ToolSettings(
            enabled=("terminal",),
            terminal=TerminalSettings(
                network=True, allow_root=True, readable=(Path(sys.base_prefix),)
            ),
        )
        (tmp_path / "ws").mkdir()
        (tmp_path / "ws" / "attack.py").write_text(GET_AND_POST)
        command = f"{PYTHON} -I attack.py {parley.port} {parley.home}"
        outcome = await use_with(settings, tmp_path / "ws", command=command)
        found = json.loads(outcome.text.splitlines()[0])
        # Where commands reach this machine at all, the port asks who they are.
        assert {found["get"], found["post"]} <= {"401", "ConnectionRefusedError", "PermissionError"}
        assert "reached" not in found.values()
        assert nothing_was_taken(parley)


async def test_attack_8_a_token_is_not_guessed(tmp_path: Path) -> None:
    """At most ten of 60 tries at a chosen token are checked, including right ones."""
    chosen = "a-phrase-that-i-like-1"
    async with (
        ParleyProcess(tmp_path / "home", {"web": {"token": chosen}}) as parley,
        aiohttp.ClientSession(parley.url) as http,
    ):
        statuses = await guess(http, 60)
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= 10
        async with http.get("/api/chats", headers={"Authorization": f"Bearer {chosen}"}) as got:
            assert got.status == 429
        refused = parley.named("web_sign_in_refused", reason="wrong_token")
        assert {record["address"] for record in refused} == {"127.0.0.1"}


async def guess(http: aiohttp.ClientSession, count: int) -> list[int]:
    """Try wrong tokens; returns the answers."""
    statuses = []
    for n in range(count):
        async with http.post("/api/sign-in", json={"token": f"{n:04}"}) as response:
            statuses.append(response.status)
    return statuses


async def test_attack_17_guesses_lock_no_program_of_the_owner_out(parley: ParleyProcess) -> None:
    """The token that Parley made, and its links, work whatever others on the machine try."""
    made = await parley.run("open", "--no-browser")
    secret = sign_in_link(made.stdout.splitlines()).partition("#sign-in=")[2]
    async with aiohttp.ClientSession(parley.url) as http:
        assert set(await guess(http, 60)) == {401}
        async with http.get("/api/chats", headers=bearer(parley.home)) as response:
            assert response.status == 200
        async with http.post("/api/sign-in", json={"link": secret}) as response:
            assert response.status == 204
    assert len(await refused_sign_ins(parley)) == 10


async def refused_sign_ins(parley: ParleyProcess) -> list[str]:
    """Return the rows of the audit log about sign-ins that were refused."""
    exported = await parley.run("audit", "export")
    return [line for line in exported.stdout.splitlines() if '"web_sign_in_refused"' in line]


async def test_attack_18_a_link_of_somebody_else_asks_first(parley: ParleyProcess) -> None:
    """Otherwise the owner would continue as the sender's user, who reads along."""
    eves = (await parley.run("web", "invite", "eve")).stdout.splitlines()
    own = (await parley.run("open", "--no-browser")).stdout.splitlines()
    own_secret, eves_secret = (sign_in_link(each).partition("#sign-in=")[2] for each in (own, eves))
    async with browser(parley) as http:
        async with http.post("/api/sign-in", json={"link": own_secret}) as response:
            assert response.status == 204
        async with http.post("/api/sign-in", json={"link": eves_secret}) as response:
            assert response.status == 409
        async with http.get("/api/me") as response:
            assert (await response.json())["name"] == "owner"
        agreed = {"link": eves_secret, "instead_of": "owner"}
        async with http.post("/api/sign-in", json=agreed) as response:
            assert response.status == 204
        async with http.get("/api/me") as response:
            assert (await response.json())["name"] == "eve"


async def test_attack_8_a_weak_token_does_not_start(tmp_path: Path) -> None:
    """Four digits fell in 4.5 s."""
    parley = ParleyProcess(tmp_path / "home", {"web": {"token": "1234"}})
    parley.home.mkdir()
    (parley.home / "parley.yaml").write_text(json.dumps(parley.settings))
    ended = await parley.run("run")
    assert ended.code == 1
    assert "web.token: must have at least 16 characters" in ended.stderr
    assert "1234" not in ended.stderr


async def test_attack_8_each_browser_has_a_session_of_its_own(parley: ParleyProcess) -> None:
    """It is listed with its address, can be revoked, and ends with `/logout`."""
    async with aiohttp.ClientSession(parley.url) as http:
        token = bearer(parley.home)["Authorization"].removeprefix("Bearer ")
        cookies = []
        for _ in range(2):
            http.cookie_jar.clear()
            async with http.post("/api/sign-in", json={"token": token}) as response:
                cookies.append(response.cookies[f"parley_{parley.port}"].value)
        assert cookies[0] != cookies[1]
        sessions = parley.rows("SELECT sender, address, id FROM web_session ORDER BY id")
        assert [each[:2] for each in sessions] == [("web", "127.0.0.1")] * 2
        ended = await parley.run("web", "revoke", str(sessions[0][2]))
        assert ended.stdout == "owner: 1 session ended\n"
        http.cookie_jar.clear()
        statuses = []
        for cookie in cookies:
            headers = {"Cookie": f"parley_{parley.port}={cookie}", "X-Parley": "1"}
            async with http.get("/api/me", headers=headers) as response:
                statuses.append(response.status)
        assert statuses == [401, 200]
        async with http.post("/logout", headers=headers) as response:
            assert response.status == 204
        http.cookie_jar.clear()
        async with http.get("/api/me", headers=headers) as response:
            assert response.status == 401
    assert await parley.event("web_signed_out", user="owner")
    assert await parley.event("web_sessions_revoked", user="owner")


async def test_the_token_is_made_once_and_for_its_owner_alone(parley: ParleyProcess) -> None:
    """With 256 random bits; a start that finds it open to others closes it and says so."""
    file = parley.home / "web.token"
    token = file.read_text()
    assert (file.stat().st_mode & 0o777, len(token.strip())) == (0o600, 43)
    await parley.terminate()
    file.chmod(0o644)
    await parley.restart()
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o600, token)
    assert parley.named("mode_restored", path=str(file), mode="0644")
    assert token.strip() not in json.dumps(parley.records) + str(parley.stderr)


@pytest.fixture
async def provider() -> AsyncIterator[OidcServer]:
    async with OidcServer().running() as server:
        yield server
        assert server.violations == []


@pytest.mark.thorough
async def test_a_provider_signs_in_whom_the_settings_name(
    tmp_path: Path, provider: OidcServer
) -> None:
    """A session like any other, in the lists and on the audit; nobody else gets one."""
    async with ParleyProcess(tmp_path / "home", **provider.gateway()) as parley:
        async with browser(parley) as http:
            async with http.get(await way_to_provider(http)) as response:
                # Back on the page, over the provider.
                assert (response.status, response.url.path) == (200, "/")
            async with http.get("/api/me") as response:
                told = await response.json()
            assert told == {"name": "ann", "role": "guest", "console": False, "has_session": True}
        provider.person |= {"sub": "2", "email": "eve@example.org"}
        async with browser(parley) as http:
            url = await way_to_provider(http)
            async with http.get(url, headers={"Accept": "text/html"}) as response:
                page = await response.text()
            assert response.status == 401
            assert "eve@example.org. Nobody of that name is let in here." in page
            async with http.get("/api/me") as response:
                assert response.status == 401
        assert parley.rows("SELECT signed_in_by FROM web_session") == [("oidc",)]
        await parley.event("web_sign_in_refused", reason="oidc_not_let_in")
        assert len(parley.named("web_sign_in_refused", reason="oidc_not_let_in")) == 1
        assert f"{provider.issuer} 2" in "".join(await refused_sign_ins(parley))


@pytest.mark.thorough
async def test_with_a_provider_that_is_down_a_link_signs_in(
    tmp_path: Path, provider: OidcServer
) -> None:
    """The owner is not locked out, also by a start meanwhile."""
    provider.is_down = True
    async with (
        ParleyProcess(tmp_path / "home", **provider.gateway()) as parley,
        browser(parley) as http,
    ):
        async with http.post("/api/sign-in/oidc", json={}) as response:
            assert response.status == 503
            assert "does not answer as it should" in await response.text()
        made = await parley.run("open", "--no-browser")
        secret = sign_in_link(made.stdout.splitlines()).partition("#sign-in=")[2]
        async with http.post("/api/sign-in", json={"link": secret}) as response:
            assert response.status == 204
        async with http.get("/api/me") as response:
            assert (await response.json())["role"] == "owner"


async def test_webhooks_need_no_port_that_has_the_chat(tmp_path: Path) -> None:
    """On a port of their own there is nothing else, and on the page's there are none."""
    hooks = free_port()
    platforms = {"slack": {"bot_token": "xoxb-1", "signing_secret": "shh!", "mode": "http"}}
    settings = {"web": {"webhook_port": hooks}, "platforms": platforms}
    async with ParleyProcess(tmp_path / "home", settings) as parley:
        chat, webhooks = [await statuses_at(port) for port in (parley.port, hooks)]
    assert chat == {"/": 200, "/api/chats": 401, "/healthz": 200, "/slack/default": 404}
    assert webhooks == {"/": 404, "/api/chats": 404, "/healthz": 200, "/slack/default": 401}


async def statuses_at(port: int) -> dict[str, int]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        found = {}
        for path in ("/", "/api/chats", "/healthz", "/slack/default"):
            method = "POST" if "slack" in path else "GET"
            async with http.request(method, path, data=b"{}") as response:
                found[path] = response.status
        return found


@pytest.mark.thorough
async def test_a_home_of_version_0_5_starts_and_loses_nothing(tmp_path: Path) -> None:
    """Its web chats are the owner's; its cookie opens nothing."""
    home = tmp_path / "home"
    async with ParleyProcess(home) as parley:
        chat = WebChat(parley, "old")
        assert "> 84" in await chat.ask("what is 12*7?")
    as_of_version_0_5(home / "parley.db")
    async with ParleyProcess(home) as parley, browser(parley) as http:
        old = {"Cookie": "parley_session=0123456789abcdef"}
        async with http.get("/api/chats", headers=old) as response:
            told = await response.json()
        assert (response.status, told["error"]) == (401, "sign_in_needed")
        made = await parley.run("open", "--no-browser")
        secret = sign_in_link(made.stdout.splitlines()).partition("#sign-in=")[2]
        async with http.post("/api/sign-in", json={"link": secret}) as response:
            assert response.status == 204
        async with http.get("/api/chats") as response:
            listed = (await response.json())["chats"]
        assert [(each["chat"], each["title"]) for each in listed] == [("old", "what is 12*7?")]
        again = WebChat(parley, "old")
        assert "6" in await again.ask("what is 2*3?")
        assert len(parley.transcript()) == 8
        assert parley.named("database_migrated", before="0005")


async def way_to_provider(http: aiohttp.ClientSession) -> str:
    """Return the address to which the page sends a browser for a sign-in by the provider."""
    async with http.post("/api/sign-in/oidc", json={}) as response:
        return str((await response.json())["url"])


def browser(parley: ParleyProcess) -> aiohttp.ClientSession:
    """Return a client that keeps cookies, of addresses as well."""
    return aiohttp.ClientSession(parley.url, cookie_jar=aiohttp.CookieJar(unsafe=True))


def as_of_version_0_5(database: Path) -> None:
    """Write the database as that version had it: without a mark of its identity."""
    old = outdated_copy(database, database.with_name("old.db"), "0005")
    for written in database.parent.glob(f"{database.name}*"):
        written.unlink()
    old.rename(database)
