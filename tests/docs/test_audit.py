"""docs/audit.md has a row for each kind of row in the audit log."""

import re
from pathlib import Path
from typing import get_args

from gateway.storage.audit_log import AuditKind

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_each_kind_has_its_row() -> None:
    """And no other has one."""
    documented = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert documented == list(get_args(AuditKind))
