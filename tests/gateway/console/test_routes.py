"""The way into the console: owners only, whatever the register holds, and no foreign pages."""

import re
from pathlib import Path

import pytest

from adapters.door import FIRST_OWNER
from gateway.console import site
from gateway.console.register import REGISTER
from tests.support.console import console

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
    """With the page, or alone."""
    for web in ({"admin": False}, {"enabled": False}):
        async with (
            console(tmp_path, web={"port": 0, "token": "t" * 30} | web) as running,
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
