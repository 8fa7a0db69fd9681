"""Checks of `access`: ids and keys that can never match anything are refused at the start."""

from pathlib import Path

import orjson
import pytest

from gateway.errors import SettingsError
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings


def load(home: Path, **access: object) -> Settings:
    file = home / "parley.yaml"
    file.write_bytes(orjson.dumps({"access": access}))
    return load_settings(config=file, environ={"PARLEY_HOME": str(home)}).settings


@pytest.mark.parametrize(
    "key", ["*", "telegram:*", "telegram:-1001234567", "discord:123", "slack:C0123", "slack:*"]
)
def test_groups_are_named_by_platform_and_chat(tmp_path: Path, key: str) -> None:
    """Or all of a platform, or all."""
    groups = load(tmp_path, groups={key: {"respond": "always"}}).access.groups
    assert groups[key].respond == "always"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("telegram", "must be PLATFORM:CHAT"),
        ("-1001234567", "must be PLATFORM:CHAT"),
        ("web:terminal", "must be PLATFORM:CHAT"),
        ("telgram:*", "must be PLATFORM:CHAT"),
        ("telegram:", "is not an id of a chat on telegram"),
        ("telegram:@channel", "is not an id of a chat on telegram"),
        ("discord:general", "is not an id of a chat on discord"),
        ("slack:#general", "is not an id of a chat on slack"),
    ],
)
def test_other_keys_of_groups_are_refused(tmp_path: Path, key: str, problem: str) -> None:
    """A rule that holds nowhere would be a silent mistake."""
    with pytest.raises(SettingsError, match=problem) as refused:
        load(tmp_path, groups={key: {}})
    assert str(refused.value).startswith(f"access.groups: {key!r}")


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        ({"telegram": ["@ada"]}, "access.telegram: '@ada' is not a numeric id"),
        ({"discord": ["ada#1234"]}, "access.discord: 'ada#1234' is not a numeric id"),
        ({"slack": ["@ada"]}, "access.slack: '@ada' is not a member id"),
        ({"owners": ["ada"]}, "access.owners: 'ada' must be PLATFORM:ID"),
        ({"owners": ["telegram:"]}, "access.owners: 'telegram:' must be PLATFORM:ID"),
        ({"owners": ["web:web"]}, "access.owners: 'web:web' must be PLATFORM:ID"),
        ({"owners": ["discord:ada"]}, "access.owners: 'discord:ada': 'ada' is not a numeric id"),
    ],
)
def test_names_are_no_ids(tmp_path: Path, access: dict[str, object], problem: str) -> None:
    """On no platform: they can change hands."""
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, **access)
    assert str(refused.value).startswith(problem)


def test_ids_of_all_platforms(tmp_path: Path) -> None:
    """As the platforms write them."""
    access = {"telegram": [7], "discord": ["1234567890123456789"], "slack": ["U0123ABC"]}
    owners = ["telegram:7", "discord:1", "slack:W0123"]
    assert load(tmp_path, **access, owners=owners).access.owners == tuple(owners)


@pytest.mark.parametrize(
    "roles", [["user"], ["assistant", "user"], ["user", "user"], ["user", "assistant", "user"]]
)
def test_examples_are_pairs(tmp_path: Path, roles: list[str]) -> None:
    """A conversation cannot begin with half an example."""
    file = tmp_path / "parley.yaml"
    prefill = [{"role": role, "content": "x"} for role in roles]
    file.write_bytes(orjson.dumps({"agent": {"prefill": prefill}}))
    with pytest.raises(SettingsError, match=r"agent\.prefill"):
        load_settings(config=file, environ={"PARLEY_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("alerts", "problem"),
    [
        ({"to": ["telegram"]}, "alerts.to: 'telegram' must be PLATFORM:CHAT"),
        ({"to": ["telegram:a:b:c"]}, "alerts.to: 'telegram:a:b:c' must be PLATFORM:CHAT"),
        ({"to": ["web:owner"]}, "alerts.to: 'web:owner' must be PLATFORM:CHAT"),
        ({"to": ["slack:C0123"]}, "alerts.to: 'slack:C0123': slack is off"),
        ({"webhook": "ftp://T0KEN.example.org"}, "alerts.webhook: must begin with http://"),
        ({"webhook_secret": "s3cret-s3cret"}, "alerts.webhook_secret: signs nothing"),
    ],
)
def test_alerts_lead_somewhere(tmp_path: Path, alerts: dict[str, object], problem: str) -> None:
    """A mistake shows at the start, and not in the night when something is wrong."""
    file = tmp_path / "parley.yaml"
    file.write_bytes(orjson.dumps({"alerts": alerts}))
    with pytest.raises(SettingsError) as refused:
        load_settings(config=file, environ={"PARLEY_HOME": str(tmp_path)})
    assert problem in str(refused.value)
    assert "T0KEN" not in str(refused.value)
