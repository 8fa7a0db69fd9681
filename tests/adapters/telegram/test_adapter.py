"""Downloading what came with a message: limits, faults, and servers in local mode."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from adapters.errors import AdapterError, FetchDelayed, FetchRejected
from adapters.messages import Address, Attachment
from adapters.telegram.adapter import TelegramAdapter
from adapters.telegram.inbound import BotIdentity, Reading
from adapters.telegram.receive import Albums, read_updates
from tests.adapters.telegram.conftest import MakeAdapter
from tests.support.bot_api import (
    BLOCKED,
    CUT,
    DROP,
    HANG,
    HTML_502,
    JUNK,
    TOKEN,
    BotApi,
    Fault,
    flood,
)
from tests.support.process import free_port

ANN = Address("telegram", "default", "7")
LIMIT = 1000
IDS = {"file_id": "f", "file_unique_id": "u"}
FOR_NOW = "Bad Request: wrong file_id or the file is temporarily unavailable"


def attached(api: BotApi, content: bytes, path: str = "documents/a b#1.txt") -> Attachment:
    """Let a person send a file; return what the adapter made of it."""
    update = api.message_update(7, None, document=api.add_file(content, path))
    reading = Reading("default", BotIdentity(42, "parley_bot"), frozenset())
    read: Any = read_updates([update], reading, Albums(monotonic))[0][1]
    attachment: Attachment = read.attachments[0]
    return attachment


async def test_a_file_is_fetched(api: BotApi, adapter: TelegramAdapter) -> None:
    """The server tells where it is; its path may have any characters."""
    file = attached(api, b"x" * LIMIT)
    assert await adapter.fetch(ANN, file, LIMIT) == b"x" * LIMIT


async def test_a_file_beyond_the_limit(api: BotApi, adapter: TelegramAdapter) -> None:
    """What is known to be too large is not even downloaded."""
    file = attached(api, b"x" * (LIMIT + 1))
    with pytest.raises(FetchRejected, match="larger than 1000 bytes"):
        await adapter.fetch(ANN, file, LIMIT)


async def test_a_size_that_is_not_told_holds_all_the_same(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """The download ends where the limit is passed."""
    file = attached(api, b"x" * (LIMIT + 1), "big")
    answer = {"ok": True, "result": IDS | {"file_path": "big"}}
    api.fail("getFile", Fault("reply", body=answer))
    with pytest.raises(FetchRejected, match="larger"):
        await adapter.fetch(ANN, file, LIMIT)


async def test_telegram_has_a_limit_of_its_own(api: BotApi, adapter: TelegramAdapter) -> None:
    """Twenty megabytes is what a bot can have; the reason can be told."""
    file = attached(api, bytes(20_000_001))
    with pytest.raises(FetchRejected, match="up to 20 MB"):
        await adapter.fetch(ANN, file, 1 << 30)


@pytest.mark.parametrize(
    ("method", "fault", "error"),
    [
        ("getFile", flood(3), FetchDelayed),
        ("getFile", HTML_502, FetchDelayed),
        ("getFile", CUT, FetchDelayed),
        ("getFile", JUNK, FetchDelayed),
        ("getFile", Fault("reply", body={"ok": True, "result": IDS}), FetchDelayed),
        ("getFile", Fault("error", 401, "Unauthorized"), FetchDelayed),
        ("getFile", Fault("error", 400, FOR_NOW), FetchDelayed),
        ("getFile", Fault("error", 400, "Bad Request: invalid file_id"), FetchRejected),
        ("getFile", BLOCKED, FetchRejected),
        ("file", HTML_502, FetchDelayed),
        ("file", DROP, FetchDelayed),
        ("file", Fault("error", 429, "Too Many Requests"), FetchDelayed),
        ("file", Fault("error", 404, "Not Found"), FetchRejected),
    ],
    ids=lambda value: getattr(value, "description", value),
)
async def test_what_becomes_of_a_failed_download(
    api: BotApi, adapter: TelegramAdapter, method: str, fault: Fault, error: type[AdapterError]
) -> None:
    """The class of the error says whether trying again is of use."""
    file = attached(api, b"x")
    api.fail(method, fault)
    with pytest.raises(error) as caught:
        await adapter.fetch(ANN, file, LIMIT)
    assert TOKEN not in str(caught.value)


async def test_a_server_that_is_not_there(api: BotApi, make: MakeAdapter) -> None:
    """A file server that cannot be reached is tried again, and its address is not told."""
    adapter = make(base_file_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(FetchDelayed) as caught:
        await adapter.fetch(ANN, attached(api, b"x"), LIMIT)
    assert TOKEN not in str(caught.value)


async def test_a_download_that_never_ends(
    api: BotApi, adapter: TelegramAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says nothing holds nobody up for good."""
    monkeypatch.setattr("adapters.telegram.adapter._DEADLINE_S", 0.05)
    api.fail("file", HANG)
    with pytest.raises(FetchDelayed):
        await adapter.fetch(ANN, attached(api, b"x"), LIMIT)


async def test_downloads_run_side_by_side(api: BotApi, adapter: TelegramAdapter) -> None:
    """A slow one holds up neither the other files nor the answers."""
    slow, fast = attached(api, b"slow", "1"), attached(api, b"fast", "2")
    api.fail("file", HANG)
    task = asyncio.ensure_future(adapter.fetch(ANN, slow, LIMIT))
    await api.wait_for(lambda: not api._faults["file"])
    assert await adapter.fetch(ANN, fast, LIMIT) == b"fast"
    assert not task.done()
    task.cancel()


async def test_a_server_in_local_mode(
    api: BotApi, adapter: TelegramAdapter, tmp_path: Path
) -> None:
    """It names a path on this machine, from which the file is read; the limit holds."""
    api.files_dir = tmp_path
    small, large = attached(api, b"local", "1"), attached(api, bytes(LIMIT + 1), "2")
    assert await adapter.fetch(ANN, small, LIMIT) == b"local"
    with pytest.raises(FetchRejected, match="larger"):
        await adapter.fetch(ANN, large, LIMIT)


async def test_a_server_in_local_mode_on_another_machine(
    api: BotApi, adapter: TelegramAdapter
) -> None:
    """What is not on this disk is asked for by HTTP, below the token's directory."""
    file = attached(api, b"remote", "documents/1")
    path = f"/var/lib/telegram-bot-api/{TOKEN}/documents/1"
    api.fail("getFile", Fault("reply", body={"ok": True, "result": IDS | {"file_path": path}}))
    assert await adapter.fetch(ANN, file, LIMIT) == b"remote"


async def test_a_local_file_that_cannot_be_read(
    api: BotApi, adapter: TelegramAdapter, tmp_path: Path
) -> None:
    """A directory, or a file without permission, cannot be had; the path is not told."""
    answer = {"ok": True, "result": IDS | {"file_path": str(tmp_path)}}
    api.fail("getFile", Fault("reply", body=answer))
    with pytest.raises(FetchRejected, match="cannot be read") as caught:
        await adapter.fetch(ANN, attached(api, b"x"), LIMIT)
    assert str(tmp_path) not in str(caught.value)


async def test_telegrams_own_server_names_no_local_files(
    api: BotApi, make: MakeAdapter, tmp_path: Path
) -> None:
    """Only a server that the operator has set may have files read from this disk."""
    adapter = make()
    adapter._has_own_server = False
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    answer = {"ok": True, "result": IDS | {"file_path": str(secret)}}
    api.fail("getFile", Fault("reply", body=answer))
    with pytest.raises(FetchRejected):
        await adapter.fetch(ANN, attached(api, b"x"), LIMIT)
