"""The client of the object store, against a strict double: what comes back, and what is told."""

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.errors import NotFound, ObjectsUnavailable, SettingsError
from gateway.settings.tree import StorageSettings
from gateway.storage import object_store
from gateway.storage.object_store import ObjectStore
from tests.support.object_server import S3Server
from tests.support.process import free_port

NAME = "ab/abcdef-01"


@pytest.fixture
async def s3() -> AsyncIterator[S3Server]:
    """A store in which nothing lies; no client does what it should not."""
    async with S3Server().running() as server:
        yield server
        assert server.violations == []


def store_at(s3: S3Server, **changed: Any) -> ObjectStore:
    """Return the client of a store."""
    return ObjectStore(StorageSettings(**s3.settings(**changed)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself asks again for a moment only."""
    monkeypatch.setattr(object_store, "RETRY_S", 0)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)) * 30_000])
async def test_what_is_put_comes_back(s3: S3Server, content: bytes) -> None:
    """In one request each way, whatever its size; it lies below the prefix."""
    store = store_at(s3)
    await store.put(NAME, content)
    assert await store.get(NAME) == content
    assert s3.objects == {f"home/one/{NAME}": content}
    assert [method for method, _ in s3.asked] == ["PUT", "GET"]


async def test_a_bucket_without_a_prefix(s3: S3Server) -> None:
    """All of it is Parley's."""
    await store_at(s3, files="s3://parley-files").put(NAME, b"x")
    assert list(s3.objects) == [NAME]


async def test_what_is_deleted_is_gone(s3: S3Server) -> None:
    """Deleted twice, too: the answer to the first may have been lost."""
    store = store_at(s3)
    await store.put(NAME, b"hello")
    await store.delete(NAME)
    await store.delete(NAME)
    assert s3.objects == {}


async def test_what_is_not_there_is_told_so(s3: S3Server) -> None:
    """That is no trouble of the store."""
    with pytest.raises(NotFound, match=f"{NAME} is not in http://127"):
        await store_at(s3).get(NAME)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"files": "s3://another-bucket"}, "has no such bucket: see storage.files"),
        ({"files_secret_key": "another"}, "does not allow it: see the rights"),
        ({"files_key_id": "AKIDANOTHER"}, "does not allow it: see the rights"),
    ],
)
async def test_a_wrong_setting_is_named(s3: S3Server, changed: dict[str, str], reason: str) -> None:
    """Whoever reads the log knows what to fix; no secret is in it."""
    with pytest.raises(ObjectsUnavailable, match=reason) as caught:
        await store_at(s3, **changed).put(NAME, b"x")
    assert "another" not in str(caught.value).replace("another-bucket", "")
    assert s3.objects == {}


async def test_a_key_without_rights(s3: S3Server) -> None:
    """It is known, and may not do it."""
    s3.refusing = True
    with pytest.raises(ObjectsUnavailable, match="does not allow it"):
        await store_at(s3).delete(NAME)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("call", ["put", "get", "delete"])
async def test_a_store_that_is_down(s3: S3Server, call: str) -> None:
    """Each call says so, and works again once the store does."""
    store = store_at(s3)
    await store.put(NAME, b"hello")
    s3.down = True
    args = (NAME, b"hello") if call == "put" else (NAME,)
    with pytest.raises(ObjectsUnavailable, match="does not answer as it should"):
        await getattr(store, call)(*args)
    s3.down = False
    await getattr(store, call)(*args)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_not_there(s3: S3Server) -> None:
    """Nobody listens at its port."""
    gone = store_at(s3, files_endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ObjectsUnavailable, match="does not answer as it should"):
        await gone.get(NAME)


async def test_an_answer_that_is_lost(s3: S3Server) -> None:
    """The client asks again: the same bytes by the same name."""
    s3.loses = 1
    store = store_at(s3)
    await store.put(NAME, b"hello")
    assert await store.get(NAME) == b"hello"
    assert [method for method, _ in s3.asked] == ["PUT", "PUT", "GET"]


async def test_bytes_that_end_early_are_never_taken_for_all(s3: S3Server) -> None:
    """The client asks for the rest."""
    content = bytes(range(256)) * 2000
    store = store_at(s3)
    await store.put(NAME, content)
    s3.cuts = 1
    assert await store.get(NAME) == content


def test_without_the_extra_the_start_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SettingsError, match=r"pip install 'parley\[s3\]'"):
        ObjectStore(StorageSettings(files="s3://bucket"))


def test_a_key_of_the_settings_is_a_secret() -> None:
    """It is shown nowhere."""
    settings = StorageSettings(files="s3://bucket", files_secret_key=SecretStr("hidden-0123"))
    assert "hidden-0123" not in repr(settings)
