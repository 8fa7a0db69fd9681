"""What the console answers with, and to whom: pages, forms with tokens, words said once."""

import re
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr
from sqlalchemy import insert

from adapters.door import FIRST_OWNER
from gateway.console import site
from gateway.console.register import REGISTER
from gateway.console.site import SAID_COOKIE, within
from gateway.errors import StorageUnavailable
from gateway.storage import schema
from tests.support.console import console

FOREIGN = "https://evil.example"


async def test_a_form_needs_the_token_of_its_session(tmp_path: Path) -> None:
    """None, a wrong one and that of another owner's session change nothing."""
    async with console(tmp_path) as running:
        await running.invite("ann", "owner")
        async with running.browser() as browser, running.browser("ann") as other:
            theme = {"theme": "dark"}
            theirs = await other.token()
            for fields in ({}, {"form_token": "0" * 64}, {"form_token": theirs}):
                refused = await browser.post("/admin/theme", theme | fields)
                assert refused.status == 403
                assert "Nothing was changed" in refused.text
                assert "Set-Cookie" not in refused.headers
            done = await browser.submit("/admin", "/admin/theme", **theme)
            assert (done.status, done.headers["Location"]) == (303, "/admin")


@pytest.mark.parametrize("origin", [FOREIGN, "null", None])
async def test_a_form_of_another_site_is_refused(tmp_path: Path, origin: str | None) -> None:
    """Even with a right token; one that does not say where it is from as well."""
    async with console(tmp_path) as running, running.browser() as browser:
        fields = {"form_token": await browser.token(), "theme": "dark"}
        if origin is None:
            async with browser.http.post(browser.origin + "/admin/theme", data=fields) as sent:
                assert sent.status == 403
        else:
            assert (await browser.post("/admin/theme", fields, Origin=origin)).status == 403


async def test_only_plain_forms_are_read(tmp_path: Path) -> None:
    """Neither JSON nor files."""
    async with console(tmp_path) as running, running.browser() as browser:
        headers = {"Origin": browser.origin}
        async with browser.http.post(
            browser.origin + "/admin/theme", json={}, headers=headers
        ) as sent:
            assert sent.status == 415


async def test_a_theme_stays_chosen(tmp_path: Path) -> None:
    """In this browser; another word is none."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert "data-theme" not in (await browser.get("/admin")).text
        await browser.submit("/admin", "/admin/theme", theme="dark", back="/admin")
        assert '<html lang="en" data-theme="dark">' in (await browser.get("/admin")).text
        await browser.submit("/admin", "/admin/theme", theme='"><b>', back="/admin")
        assert '<html lang="en" data-theme="dark">' in (await browser.get("/admin")).text


@pytest.mark.parametrize(
    ("address", "leads_to"),
    [
        ("/admin", "/admin"),
        ("/admin/conversations?query=x&after=3", "/admin/conversations?query=x&after=3"),
        ("/", "/admin"),
        ("//evil.example/admin", "/admin"),
        ("https://evil.example/admin", "/admin"),
        ("/admin/..//evil\r\nSet-Cookie: a=b", "/admin"),
        ("/\\evil.example", "/admin"),
        ("/administrators", "/admin"),
    ],
)
def test_a_form_leads_to_the_console_alone(address: str, leads_to: str) -> None:
    """Whatever it says."""
    assert within(address) == leads_to


async def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    """A page with the menu; a file of no name is none."""
    async with console(tmp_path) as running, running.browser() as browser:
        lost = await browser.get("/admin/<b>nothing</b>")
        assert (lost.status, "Nothing is here" in lost.text) == (404, True)
        assert "<b>nothing" not in lost.text
        assert (await browser.get("/admin/static/..%2Fsite.py")).status == 404
        style = await browser.get("/admin/static/console.css")
        assert (style.status, "--text" in style.text) == (200, True)


async def test_trouble_of_the_database_is_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners read why, also where nothing can be read."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert (await browser.get("/admin")).status == 200

        async def broken(*_: object) -> None:
            raise StorageUnavailable("the disk is full")

        monkeypatch.setattr("gateway.findings.report.Examination.report", broken)
        found = await browser.get("/admin")
        assert (found.status, "the disk is full" in found.text) == (503, True)


@pytest.mark.parametrize("value", ["é.é", "bm90.é", "é"])
async def test_a_foreign_cookie_harms_no_page(tmp_path: Path, value: str) -> None:
    """Whatever it holds: no text of it is shown, and each page is."""
    async with console(tmp_path) as running, running.browser() as browser:
        [session] = browser.http.cookie_jar
        cookies = f"{session.key}={session.value}; {SAID_COOKIE}={value}"
        headers = {"Cookie": cookies}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.get(browser.origin + "/admin", headers=headers) as found,
        ):
            assert (found.status, 'class="said' in await found.text()) == (200, False)


async def test_pages_go_by_the_settings_of_now(tmp_path: Path) -> None:
    """A secret that was set while it runs is masked as well, and one that was replaced stays so."""
    async with console(tmp_path) as running, running.browser() as browser:
        reloading = running.serving.chat.gateway.reloading
        for secret in ("first-secret-of-now", "second-secret-of-now"):
            assert secret in (await browser.get(f"/admin/memory?whose={secret}")).text
        texts = " ".join(("first-secret-of-now", "second-secret-of-now"))
        row = {"scope": "telegram:u1", "target": "offer", "text": texts, "at": 1_700_000_000}
        await running.serving.chat.execute(insert(schema.memory).values(row))
        for secret in ("first-secret-of-now", "second-secret-of-now"):
            before = reloading.settings
            model = before.model.model_copy(update={"api_key": SecretStr(secret)})
            sessions = before.sessions.model_copy(update={"timezone": "Asia/Tokyo"})
            update = {"model": model, "sessions": sessions}
            reloading.settings = before.model_copy(update=update)
            page = (await browser.get("/admin/memory")).text
            assert secret not in page
        assert "first-secret-of-now" not in page
        assert "JST" in page


# The way in: owners only, whatever the register holds, and no foreign pages

# To import the pages is to fill the register.
assert site.PAGES
PATHS = [
    *((entry.method, re.sub(r"\{\w+\}", "1", entry.path)) for entry in REGISTER),
    ("GET", "/admin/nothing/there"),
    ("GET", "/admin/static/console.css"),
]


@pytest.mark.parametrize(("role", "status"), [("member", 403), ("guest", 403), (None, 303)])
async def test_nobody_else_sees_a_page(tmp_path: Path, role: str | None, status: int) -> None:
    """On every route of the register: strangers are led to sign in, others are told no."""
    async with console(tmp_path) as running:
        if role:
            await running.invite("ann", role)
        async with running.browser("ann" if role else None) as browser:
            for method, path in PATHS:
                found = await (browser.get if method == "GET" else browser.post)(path)
                told = 401 if role is None and method == "POST" else status
                assert (path, found.status) == (path, told)
                assert "Overview" not in found.text


async def test_a_stranger_is_led_back_to_the_page(tmp_path: Path) -> None:
    """The web chat is told where to go on."""
    async with console(tmp_path) as running, running.browser(None) as browser:
        led = await browser.get("/admin/conversations?query=a%20b")
        assert led.headers["Location"] == "/?next=%2Fadmin%2Fconversations%3Fquery%3Da%2520b"


async def test_an_invited_owner_is_one(tmp_path: Path) -> None:
    """Not the first owner alone."""
    async with console(tmp_path) as running:
        await running.invite("ann", "owner")
        async with running.browser("ann") as browser:
            assert (await browser.get("/admin")).status == 200


async def test_nobody_frames_a_page_or_runs_scripts_in_it(tmp_path: Path) -> None:
    """Pages load files of this site alone, and are kept by no cache."""
    async with console(tmp_path) as running, running.browser() as browser:
        found = await browser.get("/admin")
        policy = found.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["X-Frame-Options"] == "DENY"
        assert found.headers["Cache-Control"] == "no-store"
        assert "<script>" not in found.text
        assert " style=" not in found.text


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """With the page."""
    async with (
        console(tmp_path, web={"port": 0, "token": "t" * 30, "enabled": False}) as running,
        running.browser(FIRST_OWNER) as browser,
    ):
        assert (await browser.get("/admin")).status == 404


async def test_a_member_is_led_to_the_chat(tmp_path: Path) -> None:
    """Who signed in to come here, and may not, is shown the way on."""
    async with console(tmp_path) as running:
        await running.invite("ann", "member")
        async with running.browser("ann") as browser:
            found = await browser.get("/admin")
            assert found.status == 403
            assert '<a class="button" href="/">' in found.text
