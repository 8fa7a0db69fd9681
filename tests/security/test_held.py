"""Attacks that held from the beginning, and had no test by their name."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.ports import Inquiry
from agent.tools.sandbox.pages import text_of_page
from gateway.storage import audit_log
from gateway.storage.conversation import questions
from gateway.storage.database import Database
from tests.adapters.web.conftest import Served, serving
from tests.support.effort import effort
from tests.support.storage import turn_of

WAYS_OUT = [
    "/static/../adapter.py",
    "/static/..%2fadapter.py",
    "/static/%2e%2e/adapter.py",
    "/static/..%5cadapter.py",
    "/static/....//adapter.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/app.js%00.css",
    "/../../../../etc/passwd",
    "/api/chats/..%2f..%2fc2/files/1",
]


@pytest.fixture
async def chat() -> AsyncIterator[Served]:
    """A web chat whose client is signed in as the owner."""
    async with serving() as start:
        yield await start()


@pytest.mark.parametrize("path", WAYS_OUT)
async def test_no_path_leads_out_of_the_page(chat: Served, path: str) -> None:
    """As it is sent: clients that are in order would tidy the path up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", chat.port)
    cookie = "{name}={value}".format(**chat.cookie())
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{chat.port}\r\nCookie: {cookie}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert int(answer.split()[1]) in {400, 404}
    assert b"root:" not in answer
    assert b"class WebAdapter" not in answer


async def test_of_raced_approvals_one_counts(database: Database) -> None:
    """Yes and no, pressed by many at once: one is taken, and that one is on record."""
    current = await database.write(turn_of, "act")
    asked = Inquiry("approval", "c1", "act", "may I?")
    at = (current.lease.conversation, current.id, "c1")
    question = await database.write(questions.enter, *at, asked, 60)
    presses = [
        database.write(questions.answer, question.id, ("once", "deny")[n % 2], f"telegram:{n}")
        for n in range(20)
    ]
    taken = await asyncio.gather(*presses)
    assert sorted(taken) == [False] * 19 + [True]
    found = await database.read(questions.find, question.id)
    assert found is not None
    assert found.by == f"telegram:{taken.index(True)}"
    [row] = await database.read(lambda conn: list(audit_log.records(conn)))
    assert row.by == found.by


@pytest.mark.thorough
@pytest.mark.parametrize("piece", ["<div>", "<b><table><td>", "<ul><li>", "<a href=x>"])
def test_a_page_that_nests_for_ever_is_read_in_time(piece: str) -> None:
    """Ten times as deep takes about ten times as long, and no depth is too much."""
    few, many = piece * 2_000, piece * 20_000
    assert isinstance(text_of_page(many + "end"), str)
    assert effort(lambda: text_of_page(many)) <= 40 * effort(lambda: text_of_page(few)) + 5
