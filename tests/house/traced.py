"""Runs `parley` and writes, at its end, in which milliseconds each file of the product was entered.

`python -m tests.house.traced FILE ARGUMENT …`: a process of its own, since all its threads are
traced from their beginning. The clock is the monotonic one, which all processes share.
"""

import json
import sys
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType

from tests.house.source import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{ROOT / top}/" for top in PACKAGES)


def main() -> None:
    """Run the command that pyproject.toml names, traced."""
    file = Path(sys.argv.pop(1))
    entered: defaultdict[str, set[int]] = defaultdict(set)

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        # A coroutine that goes on is a call, too.
        path = frame.f_code.co_filename
        if path.startswith(_OURS):
            entered[path].add(int(time.monotonic() * 1000))

    command = _command()
    threading.settrace(note)
    sys.settrace(note)
    try:
        command()
    finally:
        sys.settrace(None)
        found = {str(Path(path).relative_to(ROOT)): sorted(at) for path, at in entered.items()}
        file.write_text(json.dumps(found))


def _command() -> Callable[[], None]:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    module, _, function = tomllib.loads(text)["project"]["scripts"]["parley"].partition(":")
    command: Callable[[], None] = getattr(import_module(module), function)
    return command


if __name__ == "__main__":
    main()
