"""/healthz and /readyz over HTTP."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from adapters.errors import AdapterRefused
from gateway.errors import DatabaseReplaced
from tests.support.gateway import serving
from tests.support.recording_adapter import RecordingAdapter


async def test_a_running_gateway_is_healthy_and_ready(tmp_path: Path) -> None:
    """Both pages are green."""
    async with serving(tmp_path) as gateway:
        assert await gateway.get("/healthz") == (200, {"status": "ok"})
        status, body = await gateway.get("/readyz")
        assert (status, body["ready"], body["database"]) == (200, True, "writable")
        assert body["adapters"] == {"telegram:default": "connected"}


async def test_ready_tells_how_accounts_stand(tmp_path: Path) -> None:
    """Also while nothing is wrong."""
    async with serving(tmp_path) as gateway:
        _, before = await gateway.get("/readyz")
        await gateway.chat.ask("hello")
        await gateway.chat.logged("message_sent")
        _, after = await gateway.get("/readyz")
        unsent = {"waiting": 0, "oldest_unsent_s": None, "silent_s": None, "pool": None}
        never = {"last_sent_s": None, "last_received_s": None}
        assert before["accounts"] == {"telegram:default": unsent | never}
        account = after["accounts"]["telegram:default"]
        assert account["last_received_s"] >= account["last_sent_s"] >= 0


async def test_a_connecting_adapter_is_not_ready(tmp_path: Path) -> None:
    """The process is healthy nevertheless: a restart would not help."""
    adapter = RecordingAdapter()
    adapter.connected = False
    async with serving(tmp_path, adapter=adapter) as gateway:
        status, body = await gateway.get("/readyz")
        assert (status, body["adapters"]) == (503, {"telegram:default": "connecting"})
        assert (await gateway.get("/healthz"))[0] == 200


async def test_a_stopped_adapter_says_why(tmp_path: Path) -> None:
    """The reason is the setting to mend."""
    adapter = RecordingAdapter()
    adapter.outages.append(AdapterRefused("the token is wrong"))
    async with serving(tmp_path, adapter=adapter) as gateway:
        await gateway.chat.logged("adapter_stopped")
        status, body = await gateway.get("/readyz")
        assert status == 503
        assert body["adapters"]["telegram:default"] == "stopped: the token is wrong"


async def test_a_blocked_database_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the write lock: no commit in time."""
    monkeypatch.setattr("gateway.health.WRITE_TIMEOUT_S", 1.0)
    async with serving(tmp_path) as gateway:
        with closing(sqlite3.connect(tmp_path / "parley.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            status, body = await gateway.get("/readyz")
            other.execute("ROLLBACK")
        assert (status, body["database"]) == (503, "no commit within 1 s")
        assert (await gateway.get("/healthz"))[0] == 200


async def test_a_database_that_became_read_only_is_not_ready(tmp_path: Path) -> None:
    """What SQLite says stands in the answer."""
    async with serving(tmp_path) as gateway:
        database = gateway.chat.gateway.database
        await database.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON"))
        status, body = await gateway.get("/readyz")
        assert status == 503
        assert body["database"].startswith("not writable: attempt to write a readonly")


async def test_a_database_that_was_removed_is_not_ready(tmp_path: Path) -> None:
    """No message is acknowledged any more, and one line of the log says why."""
    async with serving(tmp_path) as gateway:
        assert await gateway.chat.ask("before") == "re: before"
        (tmp_path / "parley.db").unlink()
        with pytest.raises(DatabaseReplaced):
            await gateway.chat.say("into nowhere")
        status, body = await gateway.get("/readyz")
        assert (status, body["ready"]) == (503, False)
        assert "parley.db was removed while Parley runs" in body["database"]
        assert len(gateway.chat.events("database_lost")) == 1
    with pytest.raises(DatabaseReplaced, match="there is no database"):
        async with serving(tmp_path):
            pytest.fail("it has begun anew without a word")
