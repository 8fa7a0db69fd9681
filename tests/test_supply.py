"""What is said about holes in the locked dependencies, and that the locks name what is checked."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.supply import main, report

ROOT = Path(__file__).parents[1]
FINE = {"name": "orjson", "version": "3.13.0", "vulns": []}
HOLE = {"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": ""}
UNKNOWN = {"name": "slack-bolt", "skip_reason": "Dependency not found on PyPI"}


def test_a_known_hole_is_an_error() -> None:
    """With its name, and the version that fixes it."""
    lines, fine = report({"dependencies": [FINE, FINE | {"name": "x", "vulns": [HOLE]}]})
    assert not fine
    assert lines[0] == "x 3.13.0: PYSEC-1, fixed in 2.1"
    assert "2 of 2 packages looked up" in lines[1]


def test_what_was_not_looked_up_is_not_called_fine() -> None:
    """pip-audit says "no known vulnerabilities" also where the index knows nothing."""
    lines, fine = report({"dependencies": [FINE, UNKNOWN]})
    assert fine
    assert lines[0] == "advisories: 1 of 2 packages looked up"
    assert "nothing is known about these: slack-bolt" in lines[1]


@pytest.mark.parametrize("text", [None, "", "{"])
def test_without_a_report_nothing_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """That is said, and is no error."""
    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text)
    assert main(file) == 0
    assert "nothing was checked" in capsys.readouterr().out


def test_the_exit_code_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 for a hole."""
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"dependencies": [FINE | {"vulns": [HOLE]}]}))
    assert main(file) == 1
    assert "PYSEC-1" in capsys.readouterr().out


def test_the_tools_are_locked() -> None:
    """Each tool of the group has its version and hashes."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["supply"]
    lock = (ROOT / "requirements-supply.lock").read_text()
    assert [each for each in wanted if f"{each.partition('>')[0]}==" not in lock] == []
    assert lock.count("--hash=sha256:") > 100
