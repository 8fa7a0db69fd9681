"""A warm process that has imported everything once and forks gateways on request.

Commands are lines of JSON on stdin: {"run": spec} answers the pid, {"wait": pid} answers how the
child ended (negative: by which signal).
"""

import gc
import json
import os
import sys
from importlib import import_module
from typing import Any

WARM = (
    "gateway.storage.migrations",
    "adapters.telegram.adapter",
    "adapters.discord.adapter",
    "adapters.slack.adapter",
    "gateway.storage.postgres",
    "agent.models.offline",
    "adapters.web.adapter",
    "encodings.idna",
    "httpcore",
)


def main() -> None:
    """Serve until stdin ends."""
    child = import_module("tests.crash.child")
    for name in WARM:
        import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(_obey(json.loads(line), child), flush=True)


def _obey(command: dict[str, Any], child: Any) -> int:
    if "wait" in command:
        return os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1])
    pid = os.fork()
    if pid == 0:
        child.live(command["run"])
    return pid


if __name__ == "__main__":
    main()
