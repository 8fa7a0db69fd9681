"""README.md of this folder names each double, and nothing that is not there."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_page_names_what_is_there() -> None:
    """Each file of the folder stands in one of its tables or sentences."""
    named = set(re.findall(r"`([a-z_]+(?:\.py|/))`", (HERE / "README.md").read_text()))
    there = {path.name for path in HERE.glob("*.py")} | {
        f"{path.parent.name}/" for path in HERE.glob("*/__init__.py")
    }
    assert named == there - {"__init__.py", Path(__file__).name}
