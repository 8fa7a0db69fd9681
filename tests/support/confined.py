"""Commands under the real supervisor, as the user `nobody`: what an ordinary user can do."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.processes.supervisor import CommandOrder, Report

NOBODY = 65534
BECOME_NOBODY = f"""
import os
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""
"""A process reads the code first: to this user it may be closed."""
SUPERVISE = f"from agent.processes import supervisor\n{BECOME_NOBODY}\nsupervisor.main()"


def order_for(folder: Path, command: str, **changes: Any) -> CommandOrder:
    """Return an order with small limits."""
    fields: dict[str, Any] = {
        "command": command,
        "shell": shutil.which("bash") or "/bin/sh",
        "directory": str(folder),
        "environment": {"PATH": os.defpath, "HOME": str(folder)},
        "confine": True,
        "network": False,
        "readable": [],
        "timeout_s": 10,
        "output_bytes": 2_000,
        "tail_bytes": 1_000,
        "max_processes": 30,
        "memory_bytes": 100_000_000,
        "disk_bytes": 200_000,
    }
    return CommandOrder(**{**fields, **changes})


def run_as_nobody(
    folder: Path, command: str, *, supervise: str = SUPERVISE, **changes: Any
) -> tuple[Report, str]:
    """Have a supervisor that is this user run a command; returns its report and the output."""
    order = order_for(folder, command, **changes)
    started = [sys.executable, "-c", supervise]
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        process.stdin.flush()
        _group, report, output = process.stdout.read().split(b"\n", 2)
    return Report(**json.loads(report)), output.decode(errors="replace")
