"""`parley audit export`."""

from pathlib import Path

import orjson
import pytest

from gateway.storage.audit_log import AuditEntry, append
from gateway.storage.schema import audit_rows
from tests.support.command_line import Run
from tests.support.storage import Store


@pytest.fixture
def logged(store: Store) -> Store:
    """A store with three rows in its audit log."""
    for kind, by in (("denied", "telegram:7"), ("approved", "web:ada"), ("expired", "")):
        store.run(append, AuditEntry(kind, by, "::1", "\x1b[31mact"))  # type: ignore[arg-type]
    return store


def test_an_export_has_all_rows(logged: Store, parley: Run, tmp_path: Path) -> None:
    """The oldest first, in a file as on stdout; a file that is there is kept."""
    file = tmp_path / "audit.jsonl"
    assert parley("audit", "export", str(file)).code == 0
    lines = file.read_text().splitlines()
    assert parley("audit", "export").out.splitlines() == lines
    rows = [orjson.loads(line) for line in lines]
    assert [(row["seq"], row["kind"], row["by"]) for row in rows] == [
        (1, "denied", "telegram:7"),
        (2, "approved", "web:ada"),
        (3, "expired", ""),
    ]
    assert parley("audit", "export", str(file)).code == 1
    assert logged.rows(audit_rows)
