"""Who may write: strangers who are let in from the page, roles, web users and links; budgets."""

import re
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.access import web_door
from gateway.access.pairing import APPROVED
from gateway.console.pages.people import used_share
from gateway.storage import schema
from gateway.storage.people import web_users
from gateway.storage.schema import now_s
from tests.support.console import BY_WEB_OWNER, ConsoleGateway, console, said

OWNED = {"mode": "pairing", "owners": ["telegram:1"], "telegram": ["77"]}


async def code_of(running: ConsoleGateway) -> str:
    """Have a stranger ask to be let in; returns the code."""
    await running.serving.chat.say("hi", "dm", sender="666", sender_name="Ann <b>B</b>")
    [request] = await running.serving.chat.rows(schema.pairing)
    return str(request.code)


async def test_a_stranger_is_let_in_from_the_page(tmp_path: Path) -> None:
    """They are told, and heard; a second click says that it was done."""
    async with console(tmp_path, access=OWNED) as running, running.browser() as browser:
        chat = running.serving.chat
        code = await code_of(running)
        page = (await browser.get("/admin/people")).text
        assert code in page
        assert "Ann &lt;b&gt;B&lt;/b&gt;" in page
        assert "telegram:77" in page
        fields = {
            "do": "approve",
            "whom": code,
            "form_token": await browser.token("/admin/people"),
        }
        for told in ("may write to me now", "already has access"):
            sent = await browser.post("/admin/people", fields)
            assert (sent.status, sent.headers["Location"]) == (303, "/admin/people")
            assert told in (await browser.get("/admin/people")).text
        assert (await chat.answers(2, "dm"))[1:] == [APPROVED]
        assert await chat.ask("hi again", "dm", sender="666") == "re: hi again"
        assert await said(running, "pairing_approved") == [BY_WEB_OWNER]


async def test_roles_are_changed_and_taken_back(tmp_path: Path) -> None:
    """Each is on record with who did it; what is unknown changes nothing."""
    async with console(tmp_path, access=OWNED) as running, running.browser() as browser:
        code = await code_of(running)
        for do, whom, told in (
            ("deny", code, "is denied"),
            ("approve", code, "may write to me now"),
            ("owner", "telegram:666", "is an owner now"),
            ("member", "telegram:666", "is a member now"),
            ("revoke", "telegram:666", "telegram 666 "),
            ("revoke", "telegram:666", "was not let in by a code"),
        ):
            await browser.submit("/admin/people", "/admin/people", do=do, whom=whom)
            assert told in (await browser.get("/admin/people")).text
        assert await running.serving.chat.rows(schema.member) == []
        kinds = ("pairing_denied", "member_role_changed", "member_revoked")
        assert [len(await said(running, kind)) for kind in kinds] == [1, 2, 1]
        odd = await browser.submit("/admin/people", "/admin/people", do="crown", whom=code)
        assert (odd.status, "That cannot be done" in odd.text) == (409, True)


async def test_a_web_user_is_invited_with_a_link_that_is_shown_once(tmp_path: Path) -> None:
    """It signs in; the answer is kept by nobody, and a second click makes no second user."""
    async with console(tmp_path) as running, running.browser() as browser:
        form = {"name": "ann", "role": "guest", "same_as": ""}
        made = await browser.submit("/admin/web-users", "/admin/web-users/invite", **form)
        [secret] = re.findall(r"#sign-in=([\w-]+)", made.text)
        assert f"http://parley.localhost:{running.serving.port}/#sign-in={secret}" in made.text
        assert made.headers["Cache-Control"] == "no-store"
        again = await browser.submit("/admin/web-users", "/admin/web-users/invite", **form)
        assert (again.status, "is a web user already" in again.text) == (409, True)
        signs_in = await running.database.write(web_users.take_link, web_door.hash_of(secret))
        assert signs_in == "ann"
        page = (await browser.get("/admin/web-users")).text
        assert "ann" in page
        assert secret not in page
        assert await said(running, "web_user_invited") == [BY_WEB_OWNER]


async def test_a_link_leads_to_where_the_page_was_opened(tmp_path: Path) -> None:
    """Behind a proxy 127.0.0.1 is nobody's; what the settings say goes before that."""
    form = {"name": "ann", "role": "guest", "same_as": ""}
    async with console(tmp_path, web=BEHIND) as running, running.browser() as browser:
        token = await browser.token("/admin/web-users")
        [session] = browser.http.cookie_jar
        headers = {
            "Cookie": f"__Host-parley={session.value}",
            "Origin": "https://chat.example",
            "X-Forwarded-For": "203.0.113.9",
            "X-Forwarded-Proto": "https",
            "X-Forwarded-Host": "chat.example",
        }
        fields = form | {"form_token": token}
        made = await browser.post("/admin/web-users/invite", fields, **headers)
        assert "https://chat.example/#sign-in=" in made.text


BEHIND = {"port": 0, "token": "t" * 30, "trusted_proxies": ["127.0.0.1"]}


@pytest.mark.parametrize(
    ("do", "by_chat"), [("member", False), ("revoke", False), ("revoke", True)]
)
async def test_who_is_no_owner_any_more_leaves_the_console_at_once(
    tmp_path: Path, do: str, *, by_chat: bool
) -> None:
    """Their session in a browser is of the same person as in the chat."""
    async with console(tmp_path, access=OWNED) as running, running.browser() as browser:
        code = await code_of(running)
        for what, whom in (("approve", code), ("owner", "telegram:666")):
            await browser.submit("/admin/people", "/admin/people", do=what, whom=whom)
        await running.database.write(web_door.invite, "ann", "member", "telegram:666")
        async with running.browser("ann") as theirs:
            assert (await theirs.get("/admin")).status == 200
            if by_chat:
                said_ = "/pair revoke telegram:666"
                await running.serving.chat.say(said_, "o", sender="1")
            else:
                whom = "telegram:666"
                await browser.submit("/admin/people", "/admin/people", do=do, whom=whom)
            assert (await theirs.get("/admin")).status in {303, 403}


@pytest.mark.parametrize("name", ["", "Ann", "owner", "7", "a" * 40, "<b>"])
async def test_a_wrong_name_is_told(tmp_path: Path, name: str) -> None:
    """On a plain page, and nobody is invited."""
    async with console(tmp_path) as running, running.browser() as browser:
        form = {"name": name, "role": "guest", "same_as": ""}
        told = await browser.submit("/admin/web-users", "/admin/web-users/invite", **form)
        assert (told.status, "is no name for a web user" in told.text) == (409, True)
        assert "<b>" not in told.text.replace("<b>Parley", "")
        assert await running.serving.chat.rows(schema.web_user) == []


async def test_web_users_are_signed_out_and_removed(tmp_path: Path) -> None:
    """Their sessions end at once; a new link brings back who is still a user."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.invite("ann", "owner")
        async with running.browser("ann") as theirs:
            assert (await theirs.get("/admin")).status == 200
            await browser.submit("/admin/web-users", "/admin/web-users", do="sign-out", whom="ann")
            assert (await theirs.get("/admin")).status == 303
        made = await browser.submit("/admin/web-users", "/admin/web-users/link", name="ann")
        assert "#sign-in=" in made.text
        for told in ("ann is no user any more", "ann is not there any more"):
            await browser.submit("/admin/web-users", "/admin/web-users", do="remove", whom="ann")
            assert told in (await browser.get("/admin/web-users")).text
        odd = await browser.submit("/admin/web-users", "/admin/web-users", do="x", whom="ann")
        assert odd.status == 409
        gone = await browser.submit("/admin/web-users", "/admin/web-users/link", name="ann")
        assert gone.status == 409


async def test_memory_is_shown_and_forgotten(tmp_path: Path) -> None:
    """By person; an entry is erased once."""
    async with console(tmp_path) as running, running.browser() as browser:
        rows = [
            {"scope": scope, "target": target, "text": text, "at": now_s()}
            for scope, target, text in (
                ("telegram:u1", "offer", "Always answer in <b>French</b>."),
                ("telegram:u2", "offer", "lives in Rome"),
            )
        ]
        for row in rows:
            await running.serving.chat.execute(insert(schema.memory).values(row))
        everything = (await browser.get("/admin/memory")).text
        assert "Always answer in &lt;b&gt;French&lt;/b&gt;." in everything
        assert "lives in Rome" in everything
        hers = (await browser.get("/admin/memory?whose=telegram:u2")).text
        assert "lives in Rome" in hers
        assert "French" not in hers
        for which in ("1", "telegram:u2"):
            for told in (f"{which}: 1 note erased", f"{which} was forgotten before."):
                await browser.submit(
                    "/admin/memory?whose=telegram:u2", "/admin/memory/forget", which=which
                )
                assert told in (await browser.get("/admin/memory")).text
        assert await said(running, "memory_removed") == [BY_WEB_OWNER] * 2


# Budgets


@pytest.mark.parametrize(
    ("usd", "limit", "used"), [(1, None, None), (1, 2, 0.5), (0, 0, 1.0), (3, 2, 1.5)]
)
def test_the_share_of_a_limit(usd: float, limit: float | None, used: float | None) -> None:
    """A limit of nothing is used up from the start."""
    assert used_share(usd, limit) == used


async def test_what_was_spent_today_is_shown_by_person(tmp_path: Path) -> None:
    """Beside the limits; who is over theirs is marked, and a used up day is said."""
    limits = {"daily_usd": 1.0, "sender_daily_usd": 0.5}
    async with console(tmp_path, budget=limits) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.ask("hello")
        for sender, usd in (("telegram:u1", 0.9), ("telegram:<u2>", 0.3)):
            call = {"provider": "p", "model": "m", "purpose": "answer", "at": now_s()}
            row = {"conversation": 1, "sender": sender, "usd": usd, **call}
            await chat.execute(insert(schema.ledger).values(row))
        page = (await browser.get("/admin/budgets")).text
        assert "telegram:&lt;u2&gt;" in page
        assert ">telegram:u1</a> <small>Una</small>" in page
        assert "180%" in page
        assert "The budget of today is used up" in page
        assert (await browser.get("/admin/budgets?after=nobody")).status == 404


async def test_without_limits_it_says_so(tmp_path: Path) -> None:
    """And that nothing was spent."""
    async with console(tmp_path) as running, running.browser() as browser:
        page = (await browser.get("/admin/budgets")).text
        assert "no limit (budget.daily_usd)" in page
        assert "Nothing was spent today." in page
