"""Links that sign in and stand in a chat: shown to who may use them, never stored."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr

from adapters.messages import Address
from adapters.registry import BUILT_IN
from gateway.access.web_door import hash_of
from gateway.commands.pair import INVITED
from gateway.http.server import ChatHistory
from gateway.storage import schema
from gateway.storage.people.web_users import ChatLinks
from tests.support.door import TOKEN
from tests.support.gateway import Running, running
from tests.support.recording_adapter import RecordingAdapter
from tests.support.renderers import PLATFORMS, Platform

OWNED = {"mode": "pairing", "owners": ["telegram:1"]}
WEB = {"public_url": "https://chat.example", "token": TOKEN}
LINK = re.compile(r"https://chat\.example/#sign-in=([0-9a-f]{43})\b")
LINKS = ChatLinks(SecretStr(TOKEN))


async def shown(chat: Running, text: str = "/pair invite ann") -> str:
    """Have an owner invite; returns the secret that the platform was given."""
    [secret] = LINK.findall(await chat.ask(text, "own", sender="1"))
    return str(secret)


def bytes_of(home: Path) -> bytes:
    """Return all that the database has on the disk, and what a backup would."""
    backup = home / "backup.db"
    with (
        closing(sqlite3.connect(home / "parley.db")) as books,
        closing(sqlite3.connect(backup)) as to,
    ):
        books.backup(to)
    files = [file for file in home.glob("*.db*") if not file.name.endswith("-shm")]
    assert {"parley.db", "parley.db-wal", "backup.db"} <= {file.name for file in files}
    return b"".join(file.read_bytes() for file in files)


async def test_no_byte_of_the_database_is_a_links_secret(tmp_path: Path) -> None:
    """Not while the link waits, not once it is delivered, not when it has expired."""
    async with running(tmp_path, access=OWNED, web=WEB) as chat:
        secrets = [await shown(chat), await shown(chat)]
        assert hash_of(secrets[1]) in [row.hash for row in await chat.rows(schema.web_link)]
        await chat.logged("message_sent", 2)
        on_disk = bytes_of(tmp_path)
        assert b"signs **ann** in to the web chat" in on_disk
        assert [secret for secret in secrets if secret.encode() in on_disk] == []
        await chat.execute(schema.web_link.update().values(expires_at=1.0))
        assert [secret for secret in secrets if secret.encode() in bytes_of(tmp_path)] == []
    whole = (
        bytes_of(tmp_path)
        if (tmp_path / "parley.db-wal").exists()
        else (tmp_path / "parley.db").read_bytes()
    )
    assert [secret for secret in secrets if secret.encode() in whole] == []


async def test_a_restart_shows_the_link_that_was_stored_before(tmp_path: Path) -> None:
    """Its secret is made of what is there again."""
    async with running(tmp_path, at_work=False, access=OWNED, web=WEB) as chat:
        await chat.say("/pair invite ann", "own", sender="1")
        [link] = await chat.rows(schema.web_link)
    async with running(tmp_path, access=OWNED, web=WEB) as chat:
        [secret] = LINK.findall((await chat.answers(1, "own"))[0])
        assert hash_of(secret) == link.hash


async def test_the_web_chat_shows_it_in_its_own_chat_alone(tmp_path: Path) -> None:
    """What somebody writes stays as it is, and what a model repeats elsewhere opens nothing."""
    adapter = RecordingAdapter("web")
    async with running(tmp_path, adapter=adapter, web=WEB) as chat:
        fields = {"platform": "web", "sender": "web", "authenticated": True}
        [secret] = LINK.findall(await chat.ask("/pair invite ann", "own", **fields))
        stored = next(row.markdown or row.payload for row in await chat.rows(schema.outbox))
        [number] = re.findall("#invited=[0-9a-f]{43}", stored)
        await chat.ask(f"say {number}", "own", **fields)
        repeated = await chat.ask(f"say {number}", "other", **fields)
        assert secret not in repeated
        history = ChatHistory(chat.gateway.database, lambda _: pytest.fail("asked"), LINKS)
        items = await history.items(Address(BUILT_IN, "default", "own"))
        asked = [item.markdown for item in items if not item.outbox_seq]
        assert next(secret in item.markdown for item in items if item.outbox_seq)
        assert asked == ["/pair invite ann", f"say {number}"]
        others = await history.items(Address(BUILT_IN, "default", "other"))
        assert [item.markdown for item in others if secret in item.markdown] == []


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda each: each.name)
def test_every_platform_shows_the_whole_link(platform: Platform) -> None:
    """In as many characters as were stored: places of entities stay what they are."""
    link, secret = LINKS.new("https://chat.example/", 7)
    payloads = platform.render(INVITED.format(name="ann", life="a day", link=link))
    [payload] = [LINKS.shown(each, 7) for each in payloads]
    assert f"https://chat.example/#sign-in={secret}" in payload
    assert (len(payload), platform.faults(payload)) == (len(payloads[0]), [])


def test_who_has_the_database_alone_cannot_make_the_secret() -> None:
    """Nor whoever has another token, or none; a process without a token has a key of its own."""
    link, secret = LINKS.new("/", 7)
    stored = f"here: {link}"
    assert LINKS.shown(stored, 7) == f"here: /#sign-in={secret}"
    for other in (ChatLinks(None), ChatLinks(SecretStr(f"{TOKEN}x"))):
        assert secret not in other.shown(stored, 7)
    assert secret not in LINKS.shown(stored, 8)
