"""What pip-audit has found out about the locked dependencies: `python -m tests.supply REPORT`.

pip-audit calls it "no known vulnerabilities" as well where the index knows nothing about the
packages. Here what was not looked up is not called fine. Only a known hole is an error: a machine
without advisories can still run all tests.
"""

import json
import sys
from pathlib import Path
from typing import Any


def report(found: dict[str, Any]) -> tuple[list[str], bool]:
    """Return what is said about pip-audit's report, and whether no hole is known."""
    packages = found["dependencies"]
    holes = [
        f"{each['name']} {each['version']}: {hole['id']}, {_cure(hole)}"
        for each in packages
        for hole in each.get("vulns", ())
    ]
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    looked_up = len(packages) - len(skipped)
    lines = [*holes, f"advisories: {looked_up} of {len(packages)} packages looked up"]
    if not packages or skipped:
        lines.append(
            "advisories: the index gives none for the others, so nothing is known about these: "
            + (", ".join(skipped) if looked_up else "all")
        )
    return lines, not holes


def _cure(hole: dict[str, Any]) -> str:
    versions = hole.get("fix_versions") or []
    return f"fixed in {', '.join(versions)}" if versions else "not fixed yet"


def main(file: Path) -> int:
    """Print what a report says; returns the exit code."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        print("advisories: nothing was checked: the index could not be asked")
        return 0
    lines, fine = report(found)
    print("\n".join(lines))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
