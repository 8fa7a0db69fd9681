"""The page in a real browser (collected only where Chromium is installed)."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import FilePayload, Page, Route, expect

from adapters.door import OWNER, Visitor
from adapters.messages import Address, Choice, MessageRef
from adapters.web.platform import WebSettings
from gateway.access import rate_limits
from gateway.access.rate_limits import STREAMS_OF_USER
from tests.adapters.web.conftest import Serve, Served, serving
from tests.adapters.web.streams import listen
from tests.support.browser import in_the_browser, page
from tests.support.door import COMMANDS, TOKEN
from tests.support.history import MemoryHistory
from tests.support.thorough import WAIT_S

FILES_ARE_KEPT = """async () => {
  const there = await indexedDB.databases();
  if (!there.some(({ name }) => name === "parley")) return false;
  return new Promise((resolve) => {
    const opening = indexedDB.open("parley");
    opening.onsuccess = () => {
      const database = opening.result;
      const counting = database.transaction("files").objectStore("files").count();
      counting.onsuccess = () => (database.close(), resolve(counting.result > 0));
    };
  });
}"""
C1 = MessageRef(Address("web", "default", "c1"))
TAKEN = 'article.message[data-who="you"]:not([data-state])'
"""What the server has; a message is shown before it is sent."""


pytestmark = in_the_browser


@pytest_asyncio.fixture(loop_scope="session")
async def serve() -> AsyncIterator[Serve]:
    """Start a web chat, which ends with the test."""
    async with serving() as start:
        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def chat(serve: Serve) -> Served:
    """A web chat."""
    return await serve()


async def open_chat(tab: Page, served: Served, chat: str = "c1") -> None:
    await signed_in(tab, served)
    await tab.goto(served.url(f"/#{chat}"))
    await expect(tab.locator("#connection")).to_have_text("Connected")


async def signed_in(tab: Page, served: Served, visitor: Visitor = OWNER) -> None:
    """Give the browser the cookie of a session."""
    await tab.context.add_cookies([served.cookie(visitor)])


async def say(tab: Page, text: str) -> None:
    await tab.fill("#composer", text)
    await tab.press("#composer", "Enter")


async def test_a_message_and_its_answer_appear(chat: Served) -> None:
    """Enter sends, the answer streams in, takes its place, and both survive a reload."""
    async with page() as tab:
        await open_chat(tab, chat)
        await say(tab, "Hello <b>there</b>\nsecond line")
        mine = tab.locator('article.message[data-who="you"]')
        await expect(mine.locator(".body")).to_have_text("Hello <b>there</b>\nsecond line")
        await expect(mine.locator(".state")).to_have_text("")
        await chat.adapter.show_working(C1)
        await expect(tab.locator("#working")).to_have_text("Parley is working…")
        await chat.adapter.preview(C1, "Grow**ing**", None)
        await expect(tab.locator("#preview strong")).to_have_text("ing")
        await expect(tab.locator("#working")).to_have_text("")
        await chat.answer("Grow**n**")
        answer = tab.locator('article.message[data-who="parley"] .body')
        await expect(answer).to_have_text("Grown")
        await expect(tab.locator("#preview")).to_be_hidden()
        await tab.reload()
        await expect(answer).to_have_text("Grown")
        await expect(tab.locator("article.message")).to_have_count(2)
        assert len(chat.history.messages) == 1


@pytest.mark.thorough
async def test_shift_enter_starts_a_new_line_and_drafts_are_kept(chat: Served) -> None:
    """Each chat has its own draft, and a reload keeps it."""
    async with page() as tab:
        await open_chat(tab, chat)
        await tab.fill("#composer", "one")
        await tab.press("#composer", "Shift+Enter")
        await tab.type("#composer", "two")
        await tab.click("#new-chat")
        await expect(tab.locator("#composer")).to_have_value("")
        await tab.goto(chat.url("/#c1"))
        await tab.reload()
        await expect(tab.locator("#composer")).to_have_value("one\ntwo")
    assert chat.history.messages == []


@pytest.mark.thorough
async def test_an_unsent_message_is_sent_once_when_parley_is_back(serve: Serve) -> None:
    """What is written while the server is away survives a reload of the page's state."""
    first = await serve()
    history, port = first.history, first.port
    async with page() as tab:
        await open_chat(tab, first)
        await first.stop()
        await expect(tab.locator("#connection")).to_have_text("Reconnecting…")
        await say(tab, "are you there?")
        await say(tab, "hello?")
        sending = tab.locator('article[data-state="sending"] .state')
        await expect(sending).to_have_text(["sending…", "sending…"])
        again = await serve(port=port, history=history, door=first.door)
        await expect(tab.locator("#connection")).to_have_text("Connected")
        await expect(sending).to_have_count(0)
        await again.answer("Yes.")
        await expect(tab.locator("article.message .body")).to_have_text([
            "are you there?",
            "hello?",
            "Yes.",
        ])
    assert [message.text for message in history.messages] == ["are you there?", "hello?"]


@pytest.mark.thorough
async def test_an_acknowledgement_that_was_lost_does_not_double_the_message(chat: Served) -> None:
    """The post is repeated under the same id, and shown once."""
    lost, acknowledged = [], asyncio.Event()

    async with page() as tab:

        async def lose_first(route: Route) -> None:
            response = await route.fetch()
            lost.append(route)
            if len(lost) == 1:
                await route.abort()
            elif len(lost) == 2:
                await route.fulfill(response=response, body="{")
            else:
                await route.fulfill(response=response)
                acknowledged.set()

        await tab.route("**/messages", lose_first)
        await open_chat(tab, chat)
        await say(tab, "once")
        # The stream may show it as taken before the first acknowledgement is lost.
        await acknowledged.wait()
        await expect(tab.locator("article[data-state]")).to_have_count(0)
        await expect(tab.locator("article.message .body")).to_have_text(["once"])
    assert (len(lost), len(chat.history.messages)) == (3, 1)


@pytest.mark.thorough
async def test_a_refused_message_says_why_and_can_be_removed(chat: Served) -> None:
    """A message that will never be taken does not stand in the way of others."""
    async with page() as tab:
        await tab.add_init_script(
            "localStorage['parley.outbox'] ??="
            " JSON.stringify([{id: 'm', chat: 'c1', text: 'x'.repeat(200001)}])"
        )
        await open_chat(tab, chat)
        failed = tab.locator('article[data-state="failed"]')
        await expect(failed.locator(".state")).to_contain_text("Not sent: The message has 200,001")
        await say(tab, "short")
        await expect(tab.locator("article:not([data-state]) .body")).to_have_text("short")
        await failed.get_by_role("button", name="Remove").click()
        await expect(tab.locator("article.message")).to_have_count(1)


@pytest.mark.thorough
async def test_no_markup_runs(chat: Served) -> None:
    """Attacks in both directions stay text; the console is free of policy violations."""
    attack = (
        '<img src=x onerror="hacked=1"><script>hacked=1</script>\n\n'
        "[link](javascript:hacked=1) ![picture](https://tracker.example/p.png)\n\n"
        "| a |\n|--:|\n| `<svg onload=hacked=1>` |"
    )
    chat.history.write("c1", attack)
    chat.history.answer("c1", attack)
    async with page() as tab:
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        await open_chat(tab, chat)
        await chat.adapter.preview(C1, attack, None)
        await expect(tab.locator("#preview")).to_be_visible()
        await expect(tab.locator("article a")).to_have_text("picture")
        assert await tab.evaluate("typeof hacked") == "undefined"
        assert await tab.locator("#messages img, #messages script, #messages svg").count() == 0
        assert [url for url in asked if "tracker" in url] == []


@pytest.mark.thorough
async def test_an_answers_parts_are_usable(chat: Served) -> None:
    """Code can be copied, links open elsewhere, wide tables scroll and not the page."""
    wide = "|" + " column |" * 30
    table = f"{wide}\n|{'---|' * 30}\n{wide}"
    chat.history.write("c1", "x" * 3000)
    chat.history.answer("c1", f"```python\nprint(1)\n```\n\n{table}\n\n[a](https://a.example/)")
    async with page(
        width=360, height=640, permissions=["clipboard-read", "clipboard-write"]
    ) as tab:
        # "Copied" stands there for two seconds; a busy machine may look later.
        await tab.clock.install(time=0)
        await open_chat(tab, chat)
        await tab.clock.pause_at(3600)
        await tab.get_by_role("button", name="Copy code").click()
        await expect(tab.locator(".code button")).to_have_text("Copied")
        assert await tab.evaluate("navigator.clipboard.readText()") == "print(1)"
        await expect(tab.locator(".code span").first).to_have_text("python")
        assert await tab.locator("article a").get_attribute("rel") == "noopener noreferrer"
        scrolls = "(name) => document.querySelector(name).scrollWidth > innerWidth"
        assert await tab.evaluate(scrolls, ".table")
        assert not await tab.evaluate(scrolls, "html")
        assert not await tab.evaluate(scrolls, "#scroller")


# Browsers tell a page about scrolling with the next frame.
SCROLL_NOTICED = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"


async def until(tab: Page, condition: str) -> None:
    """Look in each frame until it holds; the page's policy refuses what Playwright waits with."""
    async with asyncio.timeout(WAIT_S):
        while not await tab.evaluate(condition):
            await tab.evaluate(SCROLL_NOTICED)


@pytest.mark.thorough
async def test_the_reader_is_not_pulled_away(chat: Served) -> None:
    """New messages keep the bottom in view only for those who are there."""
    chat.history.write("c1", "hi")
    chat.history.answer("c1", "line\n\n" * 80)
    async with page() as tab:
        await open_chat(tab, chat)
        top = "document.querySelector('#scroller').scrollTop"
        await until(tab, f"{top} > 500")
        await tab.evaluate(f"{top} = 0")
        await tab.evaluate(SCROLL_NOTICED)
        await expect(tab.locator("#jump")).to_be_hidden()
        await chat.answer("news")
        await tab.get_by_role("button", name="Latest message").click()
        await until(tab, f"{top} > 500")
        await expect(tab.locator("#jump")).to_be_hidden()


AT_THE_END = """() => {
    const it = document.querySelector("#scroller");
    return it.scrollHeight - it.scrollTop - it.clientHeight < 1;
}"""
GROW_WHILE_SCROLLING = """() => {
    document.querySelector("#scroller").scrollTop -= 9;
    const message = document.createElement("article");
    message.style.height = "500px";
    document.querySelector("#messages").append(message);
}"""


@pytest.mark.thorough
async def test_what_comes_while_the_page_scrolls_is_in_sight(chat: Served) -> None:
    """A message may come before the browser tells of the scrolling that the last one caused."""
    chat.history.write("c1", "hi")
    chat.history.answer("c1", "line\n\n" * 80)
    async with page() as tab:
        await open_chat(tab, chat)
        await expect(tab.locator("article.message")).to_have_count(2)
        await until(tab, AT_THE_END)
        await tab.evaluate(GROW_WHILE_SCROLLING)
        await until(tab, AT_THE_END)


@pytest.mark.thorough
async def test_chats_have_addresses_and_titles(chat: Served) -> None:
    """The list leads to each chat; a new one has an id of its own."""
    await chat.post("First chat", chat="c1")
    await chat.post("Second chat", chat="c2")
    async with page() as tab:
        await open_chat(tab, chat)
        await expect(tab.locator("h1")).to_have_text("First chat")
        await tab.hover("#chats a:has-text('Second chat')")
        await tab.mouse.down()
        # The list is looked at again meanwhile.
        async with tab.expect_response("**/api/chats"):
            await chat.answer("news", chat="c1")
        await tab.evaluate(SCROLL_NOTICED)
        await tab.mouse.up()
        await expect(tab).to_have_url(chat.url("/#c2"))
        await expect(tab.locator("h1")).to_have_text("Second chat")
        await expect(tab.locator("article.message .body")).to_have_text(["Second chat"])
        await tab.click("#new-chat")
        await expect(tab).to_have_url(re.compile(r"/#[0-9a-f]{24}$"))
        await expect(tab.locator("#welcome h2")).to_be_visible()
        await signed_in(tab, chat)
        await tab.goto(chat.url("/"))
        await expect(tab).to_have_url(re.compile(r"/#[0-9a-f]{24}$"))


@pytest.mark.thorough
async def test_two_tabs_show_the_same_chat(chat: Served) -> None:
    """What is sent in one tab appears in the other one."""
    async with page() as tab:
        await open_chat(tab, chat)
        other = await tab.context.new_page()
        await open_chat(other, chat)
        await say(other, "from the other tab")
        for each in (tab, other):
            await expect(each.locator("article.message .body")).to_have_text(["from the other tab"])
            await expect(each.locator("article[data-state]")).to_have_count(0)


@pytest.mark.thorough
async def test_late_answers_stand_with_their_question(chat: Served) -> None:
    """The order on the page is the order of the history."""
    chat.history.write("c1", "long job")
    chat.history.write("c1", "/status")
    chat.history.answer("c1", "working", inbox_seq=2)
    async with page() as tab:
        await open_chat(tab, chat)
        await expect(tab.locator("article.message")).to_have_count(3)
        await chat.answer("done", inbox_seq=1)
        await expect(tab.locator("article.message .body")).to_have_text([
            "long job",
            "done",
            "/status",
            "working",
        ])


@pytest.mark.thorough
async def test_the_gauge_tells_how_full_the_window_is(serve: Serve) -> None:
    """Used tokens over the window, as a meter and in words."""
    served = await serve(history=MemoryHistory(used_tokens=24_300))
    async with page() as tab:
        await open_chat(tab, served)
        await expect(tab.locator("#gauge-text")).to_have_text("12 % of 200k")
        meter = tab.get_by_label("Context")
        assert await meter.evaluate("(meter) => meter.value") == pytest.approx(0.1215)


@pytest.mark.thorough
async def test_commands_are_offered(chat: Served) -> None:
    """A slash opens the list of the gateway; it can be used with the keyboard alone."""
    async with page() as tab:
        await open_chat(tab, chat)
        await tab.type("#composer", "/")
        offered = [f"/{name}{meaning}" for name, meaning in COMMANDS]
        await expect(tab.locator("#commands button")).to_have_text(offered)
        await tab.fill("#composer", "")
        await expect(tab.locator("#commands")).to_be_hidden()
        await tab.type("#composer", "/st")
        await expect(tab.locator("#commands b")).to_have_text(["/stop", "/status"])
        await tab.press("#composer", "ArrowUp")
        await tab.keyboard.press("ArrowUp")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#composer")).to_have_value("/stop")
        await expect(tab.locator("#composer")).to_be_focused()
        for key in ("Enter", "Tab"):
            await tab.fill("#composer", "/sto")
            await tab.press("#composer", key)
            await expect(tab.locator("#composer")).to_have_value("/stop")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("article.message .body")).to_have_text(["/stop"])
        await expect(tab.locator("#commands")).to_be_hidden()


@pytest.mark.thorough
async def test_a_slash_before_the_commands_are_known_is_looked_at_again(chat: Served) -> None:
    """Whoever types faster than the list comes is offered it all the same."""
    typed = asyncio.Event()

    async def hold(route: Route) -> None:
        await typed.wait()
        await route.continue_()

    async with page() as tab:
        await tab.route("**/api/chats", hold)
        await open_chat(tab, chat)
        await tab.type("#composer", "/")
        await expect(tab.locator("#commands")).to_be_hidden()
        typed.set()
        await expect(tab.locator("#commands button")).to_have_count(len(COMMANDS))


@pytest.mark.thorough
async def test_the_drawer_opens_on_narrow_screens(chat: Served) -> None:
    """Conversations are out of the way, and out of the tab order, until they are called."""
    await chat.post("First chat")
    async with page(width=390, height=844) as tab:
        await open_chat(tab, chat)
        await expect(tab.locator("h1")).to_have_text("First chat")
        await expect(tab.locator("#sidebar")).to_be_hidden()
        await tab.get_by_role("button", name="Conversations", exact=True).click()
        await expect(tab.locator("#new-chat")).to_be_focused()
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#sidebar")).to_be_hidden()
        await expect(tab.locator("#open-sidebar")).to_be_focused()
        await tab.keyboard.press("Enter")
        await tab.click("#chats a")
        await expect(tab.locator("#sidebar")).to_be_hidden()


@pytest.mark.thorough
async def test_a_token_is_asked_for(serve: Serve) -> None:
    """The page says when the token is wrong, and goes on after the right one."""
    served = await serve()
    served.history.write("c1", "secret words")
    async with page() as tab:
        await tab.goto(served.url("/#c1"))
        await tab.get_by_label("token").fill("wrong")
        await tab.get_by_role("button", name="Sign in").click()
        for _ in range(2):
            await expect(tab.locator("#sign-in-error")).to_have_text("That token is not right.")
            async with tab.expect_response("**/api/chats"):
                await tab.evaluate("dispatchEvent(new Event('online'))")
        await expect(tab.locator("article.message")).to_have_count(0)
        await tab.get_by_label("token").fill(TOKEN)
        await tab.get_by_role("button", name="Sign in").click()
        await expect(tab.locator("article.message .body")).to_have_text(["secret words"])
        await tab.reload()
        await expect(tab.locator("article.message .body")).to_have_text(["secret words"])
        await expect(tab.locator("#sign-in")).to_be_hidden()


@pytest.mark.thorough
async def test_a_link_is_one_click(serve: Serve) -> None:
    """It leads into the chat, there a second time as well; its secret is in no address after."""
    served = await serve()
    served.door.links["s3cret-of-ann"] = Visitor("ann", "ann", "member")
    async with page() as tab:
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        await tab.goto(served.url("/#sign-in=s3cret-of-ann"))
        await expect(tab.locator("#connection")).to_have_text("Connected")
        await expect(tab.locator("#account")).to_contain_text("ann (member)")
        assert "s3cret" not in tab.url
        assert not [url for url in asked[1:] if "s3cret" in url]
        await say(tab, "hello")
        await expect(tab.locator(TAKEN)).to_have_count(1)
        assert served.history.messages[0].sender == "ann"
        await tab.goto(served.url("/#sign-in=s3cret-of-ann"))
        await expect(tab.locator("#connection")).to_have_text("Connected")
        await expect(tab.locator("#account")).to_contain_text("ann (member)")
    async with page() as tab:
        await tab.goto(served.url("/#sign-in=s3cret-of-ann"))
        await expect(tab.locator("#sign-in-error")).to_contain_text("has been used or has expired")
        await expect(tab.locator("#connection")).to_have_text("Not signed in")
        await expect(tab.locator("#gauge")).to_be_hidden()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1280, 360])
async def test_a_link_of_another_user_asks_first(chat: Served, width: int) -> None:
    """*Stay* keeps the current user; agreeing signs in the link's user, in a fresh page."""
    chat.door.links["s3cret"] = Visitor("ann", "ann", "member")
    async with page(width=width) as tab:
        await signed_in(tab, chat)
        await tab.goto(chat.url("/#sign-in=s3cret"))
        await expect(tab.locator("#other-user")).to_contain_text("Sign in as ann?")
        await tab.get_by_role("button", name="Stay owner").click()
        await expect(tab.locator("#account")).to_contain_text("owner")
        assert "s3cret" in chat.door.links
        await tab.goto(chat.url("/#sign-in=s3cret"))
        await tab.get_by_role("button", name="Sign out owner, sign in as ann").click()
        await expect(tab.locator("#account")).to_contain_text("ann (member)")


@pytest.mark.thorough
async def test_another_port_gets_no_cookie(serve: Serve) -> None:
    """Of the page under its printed address, whichever server the browser opens next."""
    served = await serve(signed_in=False)
    served.door.links["s3cret"] = OWNER
    got: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(request.headers.get("Cookie"))
        return web.Response(text="other")

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as other, page() as tab:
        await tab.goto(WebSettings().page(served.port) + "#sign-in=s3cret")
        await expect(tab.locator("#connection")).to_have_text("Connected")
        for host in ("127.0.0.1", "localhost"):
            await tab.goto(f"http://{host}:{other.port}/")
    assert got == [None, None]


@pytest.mark.thorough
async def test_signing_out_leaves_nothing_behind(chat: Served) -> None:
    """Neither the session nor what was not sent; the next one here does not send it."""
    async with page() as tab:
        await open_chat(tab, chat)
        await tab.fill("#composer", "a draft")
        async with tab.expect_event("load"):
            await tab.click("#sign-out")
        await expect(tab.locator("#sign-in")).to_be_visible()
        assert "draft" not in await tab.evaluate("JSON.stringify(localStorage)")
        # That of the client of this test alone.
        assert len(chat.door.sessions) == 1


@pytest.mark.thorough
async def test_another_person_sends_nothing_of_the_one_before(serve: Serve) -> None:
    """What waits in the browser is dropped where a link signs somebody else in."""
    served = await serve()
    served.door.links["of-ann"] = Visitor("ann", "ann", "member")

    async def late(route: Route) -> None:
        """Write once more where the cookie is ann's and the page does not know yet."""
        await say(tab, "from the owner, too")
        await route.continue_()

    async with page() as tab:
        await open_chat(tab, served)
        await expect(tab.locator("#account")).to_contain_text("owner")
        await tab.context.set_offline(True)
        await say(tab, "from the owner")
        await tab.route("**/api/me", late)
        async with tab.expect_event("load"):
            await tab.context.set_offline(False)
            await tab.evaluate("location.hash = 'sign-in=of-ann'")
            await tab.click("#other-user [value=change]")
        await expect(tab.locator("#account")).to_contain_text("ann")
        await expect(tab.locator("#connection")).to_have_text("Connected")
        await say(tab, "from ann")
        await expect(tab.locator(TAKEN)).to_have_count(1)
        await expect(tab.locator("article.message .body")).to_have_text(["from ann"])
        sent = {message.text for message in served.history.messages if message.sender == "ann"}
        assert sent == {"from ann"}


@pytest.mark.thorough
async def test_the_page_has_its_landmarks_and_names(chat: Served) -> None:
    """A screen reader finds one heading, a log, named regions, and a name for every control."""
    chat.history.write("c1", "hi")
    chat.history.answer("c1", "```\ncode\n```")
    async with page() as tab:
        await open_chat(tab, chat)
        await expect(tab.get_by_role("log", name="Messages")).to_have_attribute(
            "aria-live", "polite"
        )
        await expect(tab.get_by_role("heading", level=1)).to_have_count(1)
        await expect(tab.get_by_role("main")).to_have_count(1)
        await expect(tab.get_by_role("navigation", name="Your conversations")).to_have_count(1)
        await expect(tab.get_by_role("textbox", name="Message")).to_be_focused()
        assert await tab.locator("html").get_attribute("lang") == "en"
        nameless = await tab.evaluate(
            "[...document.querySelectorAll('button')]"
            ".filter((b) => !(b.ariaLabel ?? b.textContent).trim()).length"
        )
        assert nameless == 0
        first = "document.querySelector('a[href], button, textarea, [tabindex]').id"
        assert await tab.evaluate(first) == "skip"
        await tab.focus("#skip")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("#composer")).to_be_focused()
        await expect(tab).to_have_url(chat.url("/#c1"))


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def upload(name: str, mime: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": mime, "buffer": content}


async def choose(tab: Page, *files: FilePayload) -> None:
    """Choose files, once the page knows how large they may be: people see no button before."""
    await expect(tab.locator("#attach")).to_be_visible()
    await tab.set_input_files("#picker", files)


@pytest.mark.thorough
async def test_files_go_with_a_message_and_are_shown(chat: Served) -> None:
    """A picture is seen, another file can be saved; one chosen by mistake stays here."""
    async with page() as tab:
        await open_chat(tab, chat)
        files = [("a.png", "image/png", PNG), ("b.txt", "text/plain", b"hi"), ("c", "", b"")]
        await choose(tab, *(upload(*each) for each in files))
        await tab.get_by_label("Remove c").click()
        await expect(tab.locator("#composer")).to_be_focused()
        await tab.press("#composer", "Enter")
        mine = tab.locator('article.message[data-who="you"]')
        await expect(mine.locator("img")).to_have_js_property("naturalWidth", 1)
        async with tab.expect_download() as saving:
            await mine.get_by_role("link", name="b.txt").click()
        assert (await saving.value).suggested_filename == "b.txt"
        await expect(tab.locator("#chosen")).to_be_hidden()
    [message] = chat.history.messages
    assert [file.name for file in message.attachments] == ["a.png", "b.txt"]


@pytest.mark.thorough
async def test_too_large_files_are_not_sent(serve: Serve) -> None:
    """The message box says so before anything goes out."""
    chat = await serve(max_file_bytes=3)
    async with page() as tab:
        await open_chat(tab, chat)
        await choose(tab, upload("a", "", b"1234"))
        await expect(tab.locator("#hint")).to_have_text(
            "These files add up to 4 bytes; the limit is 3 bytes."
        )
        await expect(tab.locator("#send")).to_be_disabled()


@pytest.mark.thorough
async def test_files_that_wait_survive_a_reload(chat: Served) -> None:
    """What was sent while the server was away goes out later, with its files."""
    async with page() as tab:
        await tab.route("**/messages", lambda route: route.abort())
        await open_chat(tab, chat)
        await choose(tab, upload("a.txt", "text/plain", b"hi"))
        await say(tab, "later")
        waiting = tab.locator('article[data-state="sending"] .file')
        await expect(waiting).to_have_text("a.txt")
        # The browser writes it down behind what is shown; until then the page says "please add it".
        await until(tab, FILES_ARE_KEPT)
        await tab.reload()
        await expect(waiting).to_have_text("a.txt")
        await tab.unroute("**/messages")
        await chat.history.admitted.wait()
        await expect(waiting).to_have_count(0)
    assert chat.history.messages[0].attachments[0].content == b"hi"


@pytest.mark.thorough
async def test_a_button_is_pressed_once(chat: Served) -> None:
    """Its text is sent, and what was chosen stays marked after a reload."""
    chat.history.write("c1", "no")  # said before the question, so it is no answer to it
    choices = (Choice("Yes, do", "yes"), Choice("No", "no"))
    await chat.answer("Shall I?", choices=choices)
    async with page() as tab:
        await open_chat(tab, chat)
        buttons = tab.locator(".choices button")
        await expect(buttons.first).to_be_enabled()
        await buttons.first.press("Enter")
        await expect(tab.locator('article[data-who="you"] .body')).to_have_text(["no", "yes"])
        for _ in range(2):
            await expect(buttons.first).to_have_attribute("aria-pressed", "true")
            await expect(buttons.last).to_have_attribute("aria-pressed", "false")
            await expect(tab.locator(".choices button:enabled")).to_have_count(0)
            await tab.reload()


ASKED = (Choice("Approve once", "/approve 7 once"), Choice("Deny", "/deny 7"))


@pytest.mark.thorough
async def test_an_answer_that_was_taken_is_shown_by_its_button(chat: Served) -> None:
    """Neither the command nor its acknowledgement is shown; the turn's answer stands below."""
    await chat.answer("May I?", choices=ASKED)
    async with page() as tab:
        await open_chat(tab, chat)
        await tab.get_by_role("button", name="Approve once").click()
        await expect(tab.locator(TAKEN)).to_have_count(1)
        seq = chat.history.store["c1"].inbox_head
        await chat.answer("Approved.", inbox_seq=seq, notice=True, taken=True)
        await chat.answer("answered", inbox_seq=seq, notice=True, over=7)
        await chat.answer("It is done.", inbox_seq=seq)
        for _ in range(2):
            await expect(tab.locator("article .answer:visible")).to_have_text([
                "May I?",
                "It is done.",
            ])
            await expect(tab.locator('article[data-who="you"]:visible')).to_have_count(0)
            pressed = tab.locator(".choices button[aria-pressed=true]")
            await expect(pressed).to_have_text("Approve once")
            await tab.reload()


@pytest.mark.thorough
async def test_a_press_that_was_refused_leaves_the_buttons(chat: Served) -> None:
    """It does not look chosen, and the page says why."""
    await chat.answer("May I?", choices=ASKED)
    async with page() as tab:
        await open_chat(tab, chat)
        await tab.get_by_role("button", name="Deny").click()
        await expect(tab.locator('article[data-who="you"] .body')).to_have_text(["/deny 7"])
        await chat.answer("Not for you.")
        await expect(tab.locator(".choices button:enabled")).to_have_count(2)
        await expect(tab.locator(".choices button[aria-pressed=true]")).to_have_count(0)


@pytest.mark.thorough
async def test_a_question_that_is_over_has_no_buttons(chat: Served) -> None:
    """They go when it ends, after a reload too, or when a press finds out."""
    await chat.answer("May I?", choices=ASKED)
    other = (Choice("Yes", "/approve 8 once"),)
    await chat.answer("And this?", choices=other)
    async with page() as tab:
        await open_chat(tab, chat)
        chat.history.verdict = {"answer": "over", "over": "stopped"}
        await tab.get_by_role("button", name="Yes").click()
        await expect(tab.locator(".choices").last).to_have_text("→ stopped")
        await chat.answer("not answered in time", over=7)
        await expect(tab.locator(".choices").first).to_have_text("→ not answered in time")
        await tab.reload()
        await expect(tab.locator(".choices").first).to_have_text("→ not answered in time")
        await expect(tab.locator("article .answer")).to_have_text(["May I?", "And this?"])


@pytest.mark.thorough
async def test_what_is_to_be_approved_is_in_sight_on_a_phone(chat: Served) -> None:
    """Long lines of its code are wrapped; those of other answers scroll."""
    code = f"```json\n{'x' * 300}\n```"
    await chat.answer(code)
    await chat.answer(code, choices=ASKED)
    async with page(width=400) as tab:
        await open_chat(tab, chat)
        hidden = "all => all.map((pre) => pre.scrollWidth > pre.clientWidth)"
        await expect(tab.locator("pre")).to_have_count(2)
        assert await tab.locator("pre").evaluate_all(hidden) == [True, False]


@pytest.mark.thorough
async def test_long_choices_stay_within_a_phone(chat: Served) -> None:
    """Their labels wrap, even within a long word; so does a note above them."""
    labels = ("Yes", "word " * 12, "x" * 60)
    note = f"Remembered: `{'x' * 180}`. `/memory undo 1`"
    await chat.answer(note, choices=tuple(Choice(label, label) for label in labels))
    async with page(width=360, height=640) as tab:
        await open_chat(tab, chat)
        buttons = tab.locator(".choices button")
        await expect(buttons).to_have_count(len(labels))
        edges = "all => all.map((each) => each.getBoundingClientRect().right)"
        assert max(await buttons.evaluate_all(edges)) <= 360
        clipped = "all => all.some((each) => each.scrollWidth > each.clientWidth)"
        assert not await buttons.evaluate_all(clipped)
        assert not await tab.locator("#scroller").evaluate_all(clipped)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("updated", "edited"),
        ("queued", "edited"),
        ("refused", "edited"),
        ("ignored", "Not saved: this message is gone."),
    ],
)
async def test_saving_an_edit_has_an_end(chat: Served, outcome: str, state: str) -> None:
    """Whatever became of it."""
    async with page() as tab:
        await open_chat(tab, chat)
        await say(tab, "helo")
        await expect(tab.locator("article[data-ref] .body")).to_have_text(["helo"])
        chat.history.edits = outcome
        await tab.get_by_label("Edit this message").click()
        await say(tab, "hello")
        await expect(tab.locator("article .state").first).to_have_text(state)


@pytest.mark.thorough
async def test_the_newest_message_can_be_edited(chat: Served) -> None:
    """The pencil is at the newest one; Escape gives up, Enter saves the new text in its place."""
    chat.history.write("c1", "older", ref="m0")
    async with page() as tab:
        await open_chat(tab, chat)
        await say(tab, "helo")
        await expect(tab.locator("article[data-ref] .body")).to_have_text(["older", "helo"])
        await tab.fill("#composer", "a draft")
        await tab.get_by_label("Edit this message").click()
        await expect(tab.locator("#composer")).to_have_value("helo")
        await tab.press("#composer", "Escape")
        await expect(tab.locator("#composer")).to_have_value("a draft")
        await tab.get_by_label("Edit this message").click()
        await say(tab, "hello")
        for _ in range(2):
            await expect(tab.locator("article .body:not(:empty)")).to_have_text(["older", "hello"])
            await expect(tab.locator("article .state").last).to_have_text("edited")
            await tab.reload()
    first, edit = chat.history.messages
    assert (edit.kind, edit.text, edit.message_ref) == ("edit", "hello", first.message_ref)


async def test_of_too_many_windows_the_oldest_waits_until_it_is_used(chat: Served) -> None:
    """It says so, keeps its content, and continues after a click; it closes no other by itself."""
    async with page() as tab, AsyncExitStack() as others:
        await open_chat(tab, chat)
        for n in range(STREAMS_OF_USER):
            await others.enter_async_context(listen(chat, f"other{n}"))
        await expect(tab.locator("#connection")).to_have_text("Paused: too many windows are open")
        await tab.evaluate("dispatchEvent(new Event('online'))")
        await chat.answer("news")
        assert len(chat.door.limits._streams) == STREAMS_OF_USER
        await tab.click("#composer")
        await expect(tab.locator("#connection")).to_have_text("Connected")
        await expect(tab.locator('article[data-who="parley"] .body')).to_have_text("news")


async def test_a_message_that_there_is_no_room_for_is_sent_later(
    chat: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says why and when it tries again, and sends it once."""
    monkeypatch.setattr(rate_limits, "BUSY_S", 1)
    async with page() as tab:
        await open_chat(tab, chat)
        with chat.door.limits.room(OWNER) as reach:
            reach(rate_limits.BODY_BYTES_OF_USER)
            await say(tab, "hello")
            busy = "Parley is busy with other files and messages. Trying again in 1 s."
            await expect(tab.locator('article[data-state="sending"] .state')).to_have_text(busy)
        await expect(tab.locator(TAKEN)).to_have_count(1)
        assert len(chat.history.messages) == 1
