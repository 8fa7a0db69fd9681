"""Parley as a service of one user: a unit of systemd that runs while nobody is logged in."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gateway.errors import GatewayError
from gateway.lifecycle.units import user_unit
from gateway.setup.draft import Target

NAME = "parley.service"
BEFORE = "parley.service.before"
"""Keeps another unit that stood there: that of another home, perhaps."""
SYSTEMCTL_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class UserUnit:
    """The unit as it would be installed.

    Attributes:
        file: Where systemd looks for it.
        text: What is to stand in it.
    """

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
