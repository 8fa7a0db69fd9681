"""Parley as a service of one user: a unit of systemd that runs while nobody is logged in."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gateway.errors import GatewayError
from gateway.setup.draft import Target

NAME = "parley.service"
BEFORE = "parley.service.before"
"""Keeps another unit that stood there: that of another home, perhaps."""
SYSTEMCTL_WITHIN_S = 300.0
_UNIT = """\
[Unit]
Description=Parley, a chat gateway for an LLM agent
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=10min
StartLimitBurst=20

[Service]
Type=notify
NotifyAccess=main
ExecStart={command} run
ExecReload=/bin/kill -HUP $MAINPID
# It is fed by progress: loop, database and worker (docs/operations.md).
WatchdogSec=60
Restart=on-failure
RestartSec=5
# A large database is migrated before it is ready.
TimeoutStartSec=1h
# Longer than queue.grace_s and the last deliveries.
TimeoutStopSec=60
KillMode=mixed
UMask=0077
LimitNOFILE=65536
# Memory is people's words: no core of it.
LimitCORE=0
Environment={home}
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""
"""deploy/parley.service is the machine's own, with more walls; a test compares them. What each line
is for stands in docs/operations.md, *As a service*."""


@dataclass(frozen=True, slots=True)
class UserUnit:
    """The unit as it would be installed."""

    file: Path
    text: str

    @property
    def is_there(self) -> bool:
        """Whether this very unit is installed."""
        return self.file.is_file() and self.file.read_text("utf-8") == self.text

    @property
    def replaces(self) -> bool:
        """Whether another one stands there."""
        return self.file.exists() and not self.is_there


def service_of(target: Target) -> UserUnit:
    """Return the unit for a home, with the `parley` that is called now."""
    options = ("--config", str(target.file.absolute())) if target.is_named else ()
    text = user_unit(program(), str(target.home), options)
    return UserUnit(platformdirs.user_config_path() / "systemd" / "user" / NAME, text)


def user_unit(program: str, home: str, options: Iterable[str] = ()) -> str:
    """Return the unit for ~/.config/systemd/user.

    Args:
        program: The path of `parley`.
        options: Of `parley` itself, before `run`.
    """
    command = _command(program, *options)
    return _UNIT.format(command=command, home=_quoted(f"PARLEY_HOME={home}"))


def _command(*words: str) -> str:
    # In a command alone "$" begins a variable.
    return " ".join(_quoted(each).replace("$", "$$") for each in words)


def _quoted(text: str) -> str:
    """Return a word as a unit has it. Source: systemd.syntax(7), systemd.unit(5) "%"."""
    safe = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{safe}"' if set(text) & set(" \t\"'\\;") else safe


def program() -> str:
    """Return the path of `parley`."""
    called = Path(sys.argv[0])
    found = called if called.is_file() else Path(shutil.which("parley") or called)
    return str(found.absolute())


def install(service: UserUnit) -> list[str]:
    """Write the unit, start it, and have it started at each boot; return what was done.

    Raises:
        GatewayError: The unit cannot be written, or systemd does not take it; the text says what to
            do by hand.
    """
    done = [f"{service.file} is written"]
    try:
        service.file.parent.mkdir(parents=True, exist_ok=True)
        if service.replaces:
            kept = service.file.replace(service.file.with_name(BEFORE))
            done.append(f"another unit stood there, and is kept as {kept}")
        service.file.write_text(service.text, encoding="utf-8")
    except OSError as exc:
        raise GatewayError(f"{service.file} cannot be written: {exc.strerror}") from exc
    # One that runs goes by the old file until it is started again; `enable --now` leaves it alone.
    for words in (("daemon-reload",), ("enable", NAME), ("restart", NAME)):
        _systemctl(*words)
    return [*done, "it runs, and is started again when you log in"]


BY_HAND = " && ".join(
    f"systemctl --user {each}" for each in ("daemon-reload", f"enable {NAME}", f"restart {NAME}")
)
LINGER = "loginctl enable-linger"
"""Has the services of a user run while that one is not logged in, from the boot on."""


def _systemctl(*words: str) -> None:
    command = shutil.which("systemctl")
    if command is None:
        raise GatewayError("there is no systemd here; run `parley run` by what starts services")
    try:
        subprocess.run(  # noqa: S603 - words of this file
            [command, "--user", *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_WITHIN_S,
        )
    except subprocess.TimeoutExpired as exc:
        raise GatewayError(f"systemd does not answer; by hand: {BY_HAND}") from exc
    except subprocess.CalledProcessError as exc:
        why = exc.stderr.strip().splitlines()[-1:] or [f"exit code {exc.returncode}"]
        raise GatewayError(f"systemd refuses it ({why[0]}); by hand: {BY_HAND}") from exc
