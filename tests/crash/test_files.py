"""Killed around the commits of files, in and out, and of a chat that moves; on a real adapter."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from tests.crash.points import around
from tests.support.bot_api import SERVER_ERROR, TOKEN, BotApi, Fault
from tests.support.crash import KILLED, Crashes

ANN, GROUP, SUPERGROUP = 11, -5, -1005
COMMAND = [{"type": "bot_command", "offset": 0, "length": 6}]
GONE = Fault("error", 400, "Bad Request: file is too big")


@pytest.fixture
async def api(crashes: Crashes) -> AsyncIterator[BotApi]:
    """Telegram, for all gateways of the test."""
    async with BotApi() as api:
        crashes.configure(real=("telegram", {"token": TOKEN, "base_url": api.root}))
        yield api
        assert api.violations == []


async def die_and_recover(crashes: Crashes, api: BotApi, point: str, chat: int) -> None:
    """Live until the point, then once more until the chat has its answer."""
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    pid = crashes.start()
    await api.wait_for(lambda: any("m1" in text for text in api.shown(chat)))
    assert await crashes.stop(pid) == 0, crashes.log()


def rows(crashes: Crashes, query: str) -> list[tuple[Any, ...]]:
    """Return what a query finds."""
    with closing(sqlite3.connect(crashes.database)) as database:
        return database.execute(query).fetchall()


def push_file(api: BotApi) -> None:
    """Let Ann send a text file."""
    document = api.add_file(b"what the file says") | {"file_name": "a.txt"}
    api.push_text(ANN, None, document=document, caption="m1")


@pytest.mark.parametrize("point", around("store_part", "finish"))
async def test_a_file_is_fetched_once_more(crashes: Crashes, api: BotApi, point: str) -> None:
    """The model reads it whole, and it is stored once."""
    push_file(api)
    await die_and_recover(crashes, api, point, ANN)
    [(body,)] = rows(crashes, "SELECT body FROM message WHERE role = 'user'")
    assert body.count("what the file says") == 1
    assert rows(crashes, "SELECT state, size_bytes FROM attachment") == [("stored", 18)]
    assert rows(crashes, "SELECT body FROM attachment_part") == [(b"what the file says",)]


@pytest.mark.thorough
@pytest.mark.parametrize("point", around("attempt"))
async def test_a_delayed_file_is_tried_again(crashes: Crashes, api: BotApi, point: str) -> None:
    """Its attempts are counted, before they begin, across restarts."""
    api.fail("file", SERVER_ERROR)
    push_file(api)
    await die_and_recover(crashes, api, point, ANN)
    assert rows(crashes, "SELECT state FROM attachment") == [("stored",)]


@pytest.mark.parametrize("point", around("give_up"))
async def test_a_lost_file_is_told_to_the_model(crashes: Crashes, api: BotApi, point: str) -> None:
    """The message is answered without it."""
    api.fail("getFile", GONE, GONE)
    push_file(api)
    await die_and_recover(crashes, api, point, ANN)
    assert rows(crashes, "SELECT state FROM attachment") == [("failed",)]
    [(body,)] = rows(crashes, "SELECT body FROM message WHERE role = 'user'")
    assert "a.txt" in body


@pytest.mark.thorough
@pytest.mark.parametrize("point", around("offer"))
async def test_a_file_of_a_tool_is_shown_once(crashes: Crashes, api: BotApi, point: str) -> None:
    """Also where the tool has to run again."""
    api.push_text(ANN, "m1 hand")
    await die_and_recover(crashes, api, point, ANN)
    files = [message.file for message in api.messages if message.file is not None]
    assert files == [("hand.txt", b"m1")]


@pytest.mark.thorough
@pytest.mark.parametrize("point", around("move"))
async def test_a_chat_that_moved_is_answered_there(
    crashes: Crashes, api: BotApi, point: str
) -> None:
    """Once, and its conversation has both keys."""
    api.add_chat(GROUP, "group")
    update = api.message_update(GROUP, "/retry", entities=COMMAND)
    api.push_raw(update)
    api.migrate(GROUP, SUPERGROUP)
    assert await crashes.ended(crashes.start(kill=[point, 1])) == KILLED, crashes.log()
    pid = crashes.start()
    await api.wait_for(lambda: api.shown(SUPERGROUP))
    assert await crashes.stop(pid) == 0, crashes.log()
    assert len(api.shown(SUPERGROUP)) == 1
    assert len(rows(crashes, "SELECT session_key FROM alias")) == 2
