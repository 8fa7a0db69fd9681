"""The overview, what waits for a person, and the costs."""

import re
from collections import deque
from pathlib import Path

import pytest
from sqlalchemy import update

from adapters.errors import SendRejected
from agent.messages import Usage
from gateway.console.pages.overview import GONE
from gateway.console.register import REGISTER
from gateway.findings import machine
from gateway.findings.report import FINDINGS
from gateway.logging.recent import RecentLines
from gateway.storage import schema
from gateway.storage.queue import alerts
from gateway.storage.reports import spending
from gateway.storage.schema import replica, turn
from tests.gateway.agent_ports.test_questions import GROUP, Acting, acting, asking, quiet
from tests.gateway.storage.reports.test_conversation_list import set_rows
from tests.support.console import BY_WEB_OWNER, ConsoleGateway, add, console, said
from tests.support.door import TOKEN
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import model_call


@pytest.fixture(autouse=True)
def recent(monkeypatch: pytest.MonkeyPatch) -> RecentLines:
    """Return the memory of the log, empty."""
    kept = RecentLines()
    monkeypatch.setattr(machine, "RECENT", kept)
    return kept


async def test_all_is_well(tmp_path: Path) -> None:
    """With its figures, its charts and the newest conversations."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        found = (await browser.get("/admin")).text
        assert "All is well" in found
        assert '<a href="/admin/conversations/1">Good morning</a>' in found
        assert "Turns by day" in found
        assert "telegram:default" in found
        assert "There have been none." in found


async def test_not_all_is_well_while_there_are_warnings(
    tmp_path: Path, recent: RecentLines
) -> None:
    """The finding links to recent warnings; older lines and other levels do not count."""
    for at in ("2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"):
        add(recent, "plugin_failed", "warning", timestamp=at, plugin="<slow>", reason="hangs")
    add(recent, "turn_finished", timestamp="2999-01-01T00:00:00Z")
    ended = {"timestamp": "2999-01-01T00:00:00Z", "how": "killed"}
    add(recent, "previous_process_ended", "warning", **ended)
    async with console(tmp_path) as running, running.browser() as browser:
        found = (await browser.get("/admin")).text
        assert "1 thing needs you" in found
        assert "All is well" not in found
        assert (
            '<a href="/admin/log?level=warning">warnings and errors of the last 15 minutes:'
            " 2 of plugin_failed, 1 of previous_process_ended</a>"
        ) in found
        assert "turn_finished" not in found


async def test_what_needs_somebody_is_named(tmp_path: Path) -> None:
    """Alerts, turns that were given up, replicas that say nothing."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        write = running.database.write
        await write(alerts.note, "model-failing", "gpt", "The model <b>gpt</b> fails.", 1.0)
        await write(set_rows, turn, turn.c.id == 1, state="dead")
        await write(set_rows, replica, replica.c.id > 0, heartbeat_until=1.0)
        found = (await browser.get("/admin")).text
        assert "things need you" in found
        assert "The model &lt;b&gt;gpt&lt;/b&gt; fails." in found
        assert "1 question on telegram:default got no answer and was given up" in found
        assert "All is well" not in found


async def test_an_alert_leads_to_what_it_is_about(tmp_path: Path) -> None:
    """Of every finding, to a page that is there; what it tells is not told a second time."""
    pages = [each.page.partition("?")[0] for each in FINDINGS.values() if each.page]
    assert {f"/admin/{page}" for page in pages} <= {each.path for each in REGISTER}
    assert all(each.page for each in FINDINGS.values() if each.told)
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("Good morning")
        write = running.database.write
        await write(alerts.note, "message-dead", "telegram:default", "it was", 1.0)
        await write(set_rows, turn, turn.c.id == 1, state="dead")
        found = (await browser.get("/admin")).text
        assert '<a href="/admin/dead-letters">1 question on telegram:default got no' in found
        assert "1 thing needs you" in found


@pytest.mark.parametrize(("answer", "done"), [("once", ["it"]), ("deny", [])])
async def test_an_approval_is_given_and_its_turn_goes_on(
    tmp_path: Path, answer: str, done: list[str]
) -> None:
    """The page shows the question, then that nothing waits; the second click changes nothing."""
    acts = Acting()
    async with (
        console(tmp_path, acting(acts), adapter=quiet()) as running,
        running.browser() as browser,
    ):
        chat = running.serving.chat
        await chat.ask("act", **GROUP)
        page = await browser.get("/admin/approvals")
        assert "Approval 1: act" in page.text
        assert '<a href="/admin/conversations/1">act</a>' in page.text
        assert "telegram:u1" in page.text
        for where in ("/admin", "/admin/conversations/1"):
            here = (await browser.get(where)).text
            assert '<a href="/admin/approvals"><span class="badge warn">waits for approval' in here
            assert ">running<" not in here
        fields = {"answer": answer, "form_token": await browser.token("/admin/approvals")}
        for told in ("act (1)", "answered already"):
            sent = await browser.post("/admin/approvals/1", fields)
            assert (sent.status, sent.headers["Location"]) == (303, "/admin/approvals")
            assert told in (await browser.get("/admin/approvals")).text
        await chat.logged("turn_finished")
        assert acts.done == done
        assert "Nothing waits for an answer" in (await browser.get("/admin/approvals")).text
        assert await said(running, "denied" if answer == "deny" else "approved") == [BY_WEB_OWNER]


async def test_a_question_is_answered_by_a_choice_or_in_words(tmp_path: Path) -> None:
    """An empty answer is none; what is not there is said."""
    async with (
        console(tmp_path, asking("red", "<b>blue</b>"), adapter=quiet()) as running,
        running.browser() as browser,
    ):
        await running.serving.chat.ask("which?")
        page = (await browser.get("/admin/approvals")).text
        assert 'value="&lt;b&gt;blue&lt;/b&gt;"' in page
        for path, answer in (("1", " "), ("99", "x"), ("1", "green")):
            await browser.submit("/admin/approvals", f"/admin/approvals/{path}", answer=answer)
        texts = await running.serving.chat.answers(3)
        assert "green" in texts[2]
        assert (await browser.submit("/admin", "/admin/approvals/x", answer="1")).status == 404


async def test_a_secret_in_a_question_is_masked(tmp_path: Path) -> None:
    """In a choice, too, as all pages mask it."""
    question = asking("red", f"use {TOKEN}")
    async with (
        console(tmp_path, question, adapter=quiet()) as running,
        running.browser() as browser,
    ):
        await running.serving.chat.ask("which?")
        await running.serving.chat.execute(
            update(schema.inquiry).values(question=f"Is {TOKEN} the one?")
        )
        page = (await browser.get("/admin/approvals")).text
        assert "the one?" in page
        assert TOKEN not in page


async def test_a_secret_in_a_dead_letter_is_masked(tmp_path: Path) -> None:
    """In why it is dead, and in its text."""
    async with console(tmp_path, adapter=rejecting()) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.say("one")
        await chat.logged("message_buried")
        told = {"error": f"refused {TOKEN}", "markdown": f"the token is {TOKEN}"}
        await chat.execute(update(schema.outbox).values(told))
        page = (await browser.get("/admin/dead-letters")).text
        assert "refused" in page
        assert "the token is" in page
        assert TOKEN not in page


def rejecting() -> RecordingAdapter:
    """Return a platform that refuses the first message of chat c1."""
    adapter = RecordingAdapter()
    adapter.failures["c1"] = deque([SendRejected("blocked")])
    return adapter


async def test_a_dead_letter_is_retried_and_arrives(tmp_path: Path) -> None:
    """Once, on record with who wanted it; a second click finds nothing."""
    async with console(tmp_path, adapter=rejecting()) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.say("one")
        await chat.logged("message_buried")
        page = await browser.get("/admin/dead-letters")
        assert "s1.1" in page.text
        assert "blocked" in page.text
        trace = chat.events("message_admitted")[0]["trace"][:8]
        assert f'href="/admin/log?text={trace}"' in page.text
        fields = {"form_token": await browser.token("/admin/dead-letters")}
        for told in ("s1.1 is sent again.", GONE.format(id="s1.1")):
            sent = await browser.post("/admin/dead-letters/s1.1/retry", fields)
            assert (sent.status, sent.headers["Location"]) == (303, "/admin/dead-letters")
            assert told in (await browser.get("/admin/dead-letters")).text
        assert "re: one" in await chat.answers(2)
        assert await said(running, "dead_letter_retried") == [BY_WEB_OWNER]


async def test_a_dead_letter_is_dropped(tmp_path: Path) -> None:
    """It is off the list, and stays a row."""
    async with console(tmp_path, adapter=rejecting()) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.say("one")
        await chat.logged("message_buried")
        await browser.submit("/admin/dead-letters", "/admin/dead-letters/s1.1/drop")
        page = (await browser.get("/admin/dead-letters")).text
        assert "There are no dead letters." in page
        assert "s1.1 is dropped." in page
        assert await said(running, "dead_letter_dropped") == [BY_WEB_OWNER]


async def test_dead_letters_have_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each letter once; a page behind one that is gone says so."""
    monkeypatch.setattr("gateway.console.register.PAGE", 1)
    adapter = RecordingAdapter()
    for chat_id in ("a", "b"):
        adapter.failures[chat_id] = deque([SendRejected("blocked")])
    async with console(tmp_path, adapter=adapter) as running, running.browser() as browser:
        chat = running.serving.chat
        for n, chat_id in enumerate(("a", "b"), start=1):
            await chat.say("one", chat_id)
            await chat.logged("message_buried", n)
        first = (await browser.get("/admin/dead-letters")).text
        [address] = re.findall(r'href="(/admin/dead-letters\?after=[^"]+)" rel="next"', first)
        second = (await browser.get(address)).text
        shown = [re.findall(r"Retry (s\d+\.\d+)", page) for page in (first, second)]
        assert sorted(map(str, shown)) == ["['s1.1']", "['s2.1']"]
        assert (await browser.get("/admin/dead-letters?after=s9.9")).status == 404


# Costs


async def spend(running: ConsoleGateway, sender: str, model: str, usd: float) -> None:
    """Enter a call."""
    call = model_call(Usage(1_000, 200, 500), model=model, cost_usd=usd, id=f"{sender}{model}")
    await running.database.write(spending.append, 1, None, sender, [call])


async def test_what_was_spent_is_shown_by_all(tmp_path: Path) -> None:
    """The dearest first, in all periods; names are text."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("hello", sender="7", sender_name="<b>Ann</b>")
        await spend(running, "telegram:7", "gpt-<i>5</i>", 1.5)
        await spend(running, "slack:U&1", "claude", 0.5)
        for path in ("/admin/costs", "/admin/costs?period=90+days", "/admin/costs?period=never"):
            found = (await browser.get(path)).text
            assert "$2.00" in found
            assert "gpt-&lt;i&gt;5&lt;/i&gt;" in found
            assert '<a href="/admin/conversations?person=slack%3AU%261">slack:U&amp;1</a>' in found
            assert ">telegram:7</a> <small>&lt;b&gt;Ann&lt;/b&gt;</small>" in found
            assert found.index("telegram:7") < found.index("slack:U&amp;1")


async def test_nothing_was_spent(tmp_path: Path) -> None:
    """And that is said."""
    async with console(tmp_path) as running, running.browser() as browser:
        assert "No model was called in this time." in (await browser.get("/admin/costs")).text
