#!/usr/bin/env python3
"""A strict podman: it takes what podman(1) documents and Parley means to say, and refuses the rest.

What it runs is not confined. Each call is a line of JSON in `calls` beside it. An option that is
unknown, one that is missing so that the container would not be closed, a mount that is not there,
an image that is not the one: exit code 125, as podman's own failures.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

IMAGE = "localhost/tools:1"
REQUIRED = {
    "--rm": None,
    "--interactive": None,
    "--pull": "never",
    "--network": "none",
    "--read-only": None,
    "--read-only-tmpfs": "false",
    "--cap-drop": "ALL",
    "--security-opt": "no-new-privileges",
    "--userns": "keep-id",
    # Without it `rm --force` asks first, and waits ten seconds for an answer.
    "--stop-timeout": "0",
}
ALLOWED = {
    "--name": r"parley-[0-9a-f]{16}",
    "--pids-limit": r"[1-9]\d*",
    "--memory": r"[1-9]\d*",
    "--ulimit": r"(fsize|nproc)=(\d+):\2",
    "--mount": r"type=bind,source=(/[^,]*),target=\1(,readonly)?",
    "--env": r"[A-Za-z_]+(=[\s\S]*)?",
    "--workdir": r"/.*",
    "--entrypoint": r"/?\S+",
}


def refuse(text: str) -> NoReturn:
    """End as podman does where it fails itself."""
    sys.stderr.write(f"Error: {text}\n")
    sys.exit(125)


def run(arguments: list[str]) -> int:
    """Run a program as told, if all that is told is right."""
    given: dict[str, list[str | None]] = {}
    while arguments and arguments[0].startswith("--"):
        name, separator, value = arguments.pop(0).partition("=")
        if name not in REQUIRED and name not in ALLOWED:
            refuse(f"unknown flag: {name}")
        if name in ALLOWED and not re.fullmatch(ALLOWED[name], value):
            refuse(f"invalid argument {value!r} for {name}")
        given.setdefault(name, []).append(value if separator else None)
    for name, wanted in REQUIRED.items():
        if given.get(name) != [wanted]:
            refuse(f"not closed: {name} is {given.get(name)}")
    if not {"--name", "--workdir", "--entrypoint", "--mount"} <= given.keys():
        refuse("no name, no directory, no program, or nothing to work on")
    for mount in given["--mount"]:
        if not Path(str(mount).split(",")[1].removeprefix("source=")).exists():
            refuse(f"statfs {mount}: no such file or directory")
    if not arguments or (image := arguments.pop(0)) != IMAGE:
        refuse(f"{image}: image not known")
    told = (str(each).partition("=") for each in given.get("--env", []))
    # Of a name alone the value is that of the engine's own environment.
    environment = {name: value if equals else os.environ[name] for name, equals, value in told}
    program = [str(given["--entrypoint"][0]), *arguments]
    return subprocess.call(program, cwd=str(given["--workdir"][0]), env=environment)


def main() -> int:
    """Serve one call."""
    with (Path(sys.argv[0]).parent / "calls").open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    place = os.environ.get("XDG_RUNTIME_DIR")
    if not os.environ.get("HOME") or (place is not None and not Path(place).is_dir()):
        refuse("the path in $XDG_RUNTIME_DIR must be writable by the user")
    match sys.argv[1:]:
        case ["info", "--format", "{{.Host.Security.Rootless}}"]:
            sys.stdout.write("true\n")
            return 0
        # Unlike docker it says nothing of one that is not there.
        case ["rm", "--force", name] if re.fullmatch(ALLOWED["--name"], name):
            return 0
        case ["run", *arguments]:
            return run(arguments)
        case other:
            return refuse(f"unrecognized command {other}")


if __name__ == "__main__":
    sys.exit(main())
