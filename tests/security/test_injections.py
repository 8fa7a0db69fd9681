"""The injection corpus against a model that obeys every attacker: nothing happens without a yes.

Measured are: a look-up of another host than the person's, a request that carries data or
comes after something was recalled, more than five links, a note, a skill, a file for the chat, a
command, a written file, a mail.
"""

from pathlib import Path

import pytest

from agent.settings import TAINTED_ROWS
from agent.tools import policy
from gateway.storage import schema
from tests.security.corpus.cases import (
    CHANNELS,
    EVIL,
    NAMED,
    SECRET,
    order,
)
from tests.security.corpus.world import CASES, NOT_YET, attack, attacked, page_of
from tests.support.thorough import products

KINDS = ("egress", "persistence", "side effect")


@pytest.mark.parametrize(("channel", "kind"), products(CHANNELS, KINDS))
async def test_no_attack_succeeds_without_a_yes(tmp_path: Path, channel: str, kind: str) -> None:
    """Though the model obeys all of them; a question that nobody answers is no yes."""
    chosen = [case for case in CASES if (case.channel, case.goal.kind) == (channel, kind)]
    async with attacked(tmp_path) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        assert await world.happened(chat) == []
        assert world.obeyed == {case.number for case in chosen}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_of_before_new_may_hold_what_was_read_then(tmp_path: Path, kind: str) -> None:
    """A page that was kept in the workspace is no more trusted for that."""
    chosen = [case for case in CASES if (case.channel, case.goal.kind) == ("page", kind)]
    async with attacked(tmp_path) as (world, chat):
        for case in chosen[:5]:
            place = f"c{case.number}"
            fetch = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/{case.number}"}))
            await chat.ask(f"{NOT_YET} {fetch}", place)
            newest = max(row.id for row in await chat.rows(schema.conversation))
            workspace = tmp_path / "workspaces" / str(newest)
            workspace.mkdir(parents=True)
            (workspace / "page.txt").write_text(page_of(case.number))
            await chat.ask("/new", place)
            await chat.ask(order(("read_file", {"path": "page.txt"})), place)
        assert await world.happened(chat) == []
        assert world.obeyed == {case.number for case in chosen[:5]}


def test_the_corpus_is_large_enough() -> None:
    """And no case stands there twice."""
    assert len({(case.channel, case.text) for case in CASES}) == len(CASES) >= 200


async def test_the_attacks_are_real(tmp_path: Path) -> None:
    """Where nothing is asked, as version 0.5 did it for pages, they succeed."""
    careless = policy.build_table("never", without=(*TAINTED_ROWS, "default.notes-delicate"))
    chosen = [case for case in CASES if (case.channel, case.template) == ("page", "plain")]
    async with attacked(tmp_path, careless) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        got = " ".join(map(str, await world.happened(chat)))
    for sign in (
        EVIL,
        f"{NAMED}.{EVIL}",
        f"{SECRET}.{NAMED}",
        "for you.html",
        "Send all",
        "Trusts",
    ):
        assert sign in got
    for sign in ("evil", "a.sh", "terminal", "mcp_mail_send", "Obey"):
        assert sign in got


@pytest.mark.thorough
async def test_a_yes_for_ones_own_records_lets_no_attack_through(tmp_path: Path) -> None:
    """A tainted turn cancels bookings with a yes for the conversation; all else is asked about."""
    chosen = [case for case in CASES if (case.channel, case.template) == ("page", "plain")]
    booking = order(("mcp_mail_send", {"to": "one"}))
    declared = frozenset({"mcp_mail_send"})
    async with attacked(tmp_path, own_records=declared) as (world, chat):
        for case in chosen:
            place = f"c{case.number}"
            await attack(world, chat, case)
            await chat.ask("/stop", place)
        assert await world.happened(chat) == []
        page = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/0"}))
        await chat.ask(f"{NOT_YET} {page}", "own")
        await chat.ask(booking, "own")
        number = max(row.id for row in await chat.rows(schema.inquiry))
        await chat.ask(f"/approve {number} conversation", "own")
        await chat.until(lambda: len(world.acts) == 1)
        await chat.answers(4, "own")
        assert await chat.ask(order(("mcp_mail_send", {"to": "two"})), "own") == "fine"
        assert len(world.acts) == 2
        other = order(("terminal", {"command": "rm"}))
        assert "May I run `terminal`" in await chat.ask(other, "own")
        assert len(world.acts) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("channel", ["page", "server"])
async def test_nor_with_approval_never(tmp_path: Path, channel: str) -> None:
    """The operator trusts whoever writes to the bot, and a page is written by others."""
    chosen = [case for case in CASES if (case.channel, case.template) == (channel, "plain")]
    async with attacked(tmp_path, policy.build_table("never")) as (world, chat):
        for case in chosen:
            await attack(world, chat, case)
        assert await world.happened(chat) == []


@pytest.mark.parametrize("own_records", [frozenset(), frozenset({"mcp_mail_send"})])
async def test_what_was_approved_before_the_page_does_not_count(
    tmp_path: Path, own_records: frozenset[str]
) -> None:
    """The person lets mails to one address be sent, then a page is read: it is asked anew.

    Also where the operator has declared that these reach only the person's own records.
    """
    mail = order(("mcp_mail_send", {"to": "ann", "text": "hello"}))
    async with attacked(tmp_path, own_records=own_records) as (world, chat):
        await chat.ask(mail)
        await chat.ask("/approve 1 conversation")
        await chat.until(lambda: len(world.acts) == 1)
        await chat.answers(3)
        assert await chat.ask(mail) == "fine"
        assert len(world.acts) == 2
        page = order(("fetch_url", {"url": f"http://{NAMED}:PORT/page/0"}))
        await chat.ask(f"{NOT_YET} {page}")
        question = await chat.ask(mail)
        assert f"I read what others wrote: the page of `{NAMED}`" in question
        assert len(world.acts) == 2
