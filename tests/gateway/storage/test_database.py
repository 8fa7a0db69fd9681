"""Where a database is, by the settings."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.settings.tree import Settings, StorageSettings
from gateway.storage.database import DatabaseServer, Location, location_of

URL, DIRECT = "postgresql://parley@pool:6432/parley", "postgresql://parley@db/parley"


def location(home: Path, **storage: object) -> Location:
    """Return where the database is for these settings."""
    return location_of(Settings(home=home, storage=StorageSettings.model_validate(storage)))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (None, "/home/parley.db"),
        ("sqlite:////var/lib/parley.db", "/var/lib/parley.db"),
        ("sqlite:///other.db", "/home/other.db"),
    ],
)
def test_a_file_is_relative_to_the_home(url: str | None, path: str) -> None:
    """Without a setting it lies there, too."""
    assert location(Path("/home"), url=url) == Path(path)


def test_a_server_has_one_way_past_its_pooler(tmp_path: Path) -> None:
    """Where there is no pooler that is the only way."""
    alone = location(tmp_path, url=DIRECT)
    assert alone == DatabaseServer(SecretStr(DIRECT))
    assert isinstance(alone, DatabaseServer)
    assert alone.direct == SecretStr(DIRECT)
    pooled = location(tmp_path, url=URL, direct_url=DIRECT, connections=3)
    assert pooled == DatabaseServer(SecretStr(URL), SecretStr(DIRECT), pooled=True, connections=3)
    assert isinstance(pooled, DatabaseServer)
    assert pooled.direct == SecretStr(DIRECT)


def test_a_server_is_shown_without_its_password(tmp_path: Path) -> None:
    """Wherever it gets into a log or an error."""
    found = location(tmp_path, url="postgresql://parley:hunter22@db/parley")
    assert "hunter22" not in repr(found)
