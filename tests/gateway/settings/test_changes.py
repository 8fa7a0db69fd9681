"""Settings in the audit log: changes found by a start; for secrets only keyed fingerprints."""

from pathlib import Path
from typing import Any

import pytest

from gateway.settings.changes import KEY_FILE, fingerprinted
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry
from tests.support.storage import Store

SECRET = "swordfish-and-chips"


def settings_with(home: Path, yaml: str, **environ: str) -> Settings:
    """Return the settings of a file and an environment."""
    home.mkdir(exist_ok=True)
    (home / "parley.yaml").write_text(yaml)
    return load_settings(environ={"PARLEY_HOME": str(home), **environ}).settings


def written(settings: Settings) -> dict[str, str]:
    """Return the settings as the audit log records them."""
    return fingerprinted(settings)


def started(store: Store, settings: Settings) -> AuditEntry | None:
    """Record the settings of a start; returns the newest row about settings."""
    store.run(audit_log.note_settings, written(settings))
    return store.run(audit_log.newest, "settings_changed")


def changed(row: AuditEntry | None) -> dict[str, Any]:
    """Return the changes in a row."""
    assert row is not None
    return dict(row.detail["changed"])


def test_the_first_start_says_with_which_settings(store: Store, tmp_path: Path) -> None:
    """The row has all settings, and no changes."""
    row = started(store, settings_with(tmp_path / "home", "web: {port: 8123}"))
    assert row is not None
    assert row.subject == "first start"
    assert row.detail["settings"]["web.port"] == "8123"
    assert changed(row) == {}


def test_the_same_settings_again_are_not_worth_a_row(store: Store, tmp_path: Path) -> None:
    """Most starts only follow a stop."""
    for _ in range(3):
        row = started(store, settings_with(tmp_path / "home", "web: {port: 8123}"))
    assert row is not None
    assert row.seq == 1


def test_what_differs_is_named_with_before_and_after(store: Store, tmp_path: Path) -> None:
    """Also a block that is new, key by key."""
    started(store, settings_with(tmp_path / "home", "access: {owners: ['telegram:1']}"))
    row = started(store, settings_with(tmp_path / "home", "access: {owners: ['telegram:2']}"))
    assert changed(row) == {"access.owners": ['["telegram:1"]', '["telegram:2"]']}
    assert row is not None
    assert row.subject == "access.owners"


def test_a_secret_is_told_by_its_fingerprint(store: Store, tmp_path: Path) -> None:
    """Another secret has another; no secret is recorded, not even as part of an address."""
    for secret in (SECRET, "another-one-of-those"):
        environ = {"MODEL_KEY": secret}
        yaml = f"model: {{provider: openai, api_key: {secret}, base_url: 'http://u:{secret}@h/v1'}}"
        row = started(store, settings_with(tmp_path / "home", yaml, **environ))
    before, after = changed(row)["model.api_key"]
    assert before.startswith('"hmac-')
    assert before != after
    said = repr(store.run(lambda c: list(audit_log.records(c))))
    assert SECRET not in said


def test_the_key_is_the_homes_own(tmp_path: Path) -> None:
    """Made once, readable by its owner only; without it a guess cannot be tested."""
    yaml = f"model: {{provider: openai, api_key: {SECRET}}}"
    homes = [settings_with(tmp_path / name, yaml) for name in ("one", "two")]
    first, again, other = (written(homes[n])["model.api_key"] for n in (0, 0, 1))
    assert first == again
    assert first.rpartition(":")[2] != other.rpartition(":")[2]
    file = homes[0].home / KEY_FILE
    assert f"{file.stat().st_mode & 0o777:o}" == "600"
    assert len(file.read_text().strip()) >= 43


@pytest.mark.parametrize("before", ["sha256:0123abcd", "hmac-ffff:0123abcd"])
def test_another_key_is_no_other_secret(store: Store, tmp_path: Path, before: str) -> None:
    """The row says so; other changes are named as usual."""
    yaml = f"model: {{provider: openai, api_key: {SECRET}, name: one}}"
    settings = settings_with(tmp_path / "home", yaml)
    now = written(settings)
    store.run(audit_log.note_settings, now | {"model.api_key": f'"{before}"'})
    row = started(store, settings)
    assert row is not None
    assert (row.subject, changed(row)) == (audit_log.OTHER_KEY, {})
    renamed = now | {"model.api_key": f'"{before}"', "model.name": '"two"'}
    store.run(audit_log.note_settings, renamed)
    last = store.run(audit_log.newest, "settings_changed")
    assert list(changed(last)) == ["model.name"]
