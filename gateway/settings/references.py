"""References to secrets: settings can name where a secret is stored instead of its value.

    file:PATH                a file, without the newline at its end
    env:NAME                 a variable of the environment
    credential:NAME          a credential of systemd ($CREDENTIALS_DIRECTORY)
    keyring:SERVICE/NAME     the keyring of the system (the library `keyring`, an extra)
    command:PROGRAM ARGS     the output of a program, run without a shell

Each is read at start and again when its value may have changed. Errors contain neither values nor
program output.
"""

import os
import shlex
import stat
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agent.errors import SecretUnreadable
from agent.network import in_words
from agent.processes.descent import kill_group
from agent.settings import ReferencedSecret
from gateway.errors import SettingsError
from gateway.settings.tree import KeyPath, placed, secrets_in

COMMAND_TIMEOUT_S = 10.0
MOST_BYTES = 65_536
"""Largest secret in bytes."""
CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The folder with credentials from `LoadCredential=`."""


Known = Mapping[KeyPath, ReferencedSecret]
"""Known secrets by path."""


class References:
    """Resolves references to secrets.

    Attributes:
        problems: Unreadable secrets: path and reason.
        warnings: Secrets readable by others: path and remedy.
    """

    def __init__(self, environ: Mapping[str, str], known: Known | None = None) -> None:
        self._environ = environ
        self._known = known or {}
        self.problems: list[tuple[KeyPath, str]] = []
        self.warnings: list[tuple[KeyPath, str]] = []

    def resolved(self, value: Any) -> Any:
        """Return a value of the tree with references replaced by their secrets."""
        for path, secret in secrets_in(value):
            # Skip equal values, since copying marks fields as set.
            if (found := self._secret(secret, path)) is not secret:
                value = placed(value, path, found)
        return value

    def _secret(self, secret: SecretStr, path: KeyPath) -> SecretStr:
        reference = secret.get_secret_value()
        if isinstance(secret, ReferencedSecret) or not is_reference(reference):
            return secret
        known = self._known.get(path)
        if known is not None and known.reference == reference:
            return known
        read = partial(read_secret, reference, self._environ)
        try:
            value = read()
        except SecretUnreadable as exc:
            self.problems.append((path, f"{told(reference)} {exc}"))
            return secret
        if warning := _open_to_others(reference):
            self.warnings.append((path, warning))
        return ReferencedSecret(value, reference, read)


def is_reference(text: str) -> bool:
    """Whether a value of a secret setting refers to the secret."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind in _READERS


def unresolved(value: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield path and text of each unresolved reference in a value of the tree."""
    for path, secret in secrets_in(value):
        text = secret.get_secret_value()
        if not isinstance(secret, ReferencedSecret) and is_reference(text):
            yield path, text


def told(reference: str) -> str:
    """Format a reference for messages: of a command show only the program."""
    kind, _, rest = reference.partition(":")
    if kind != "command":
        return reference
    return f"command:{rest.split()[0]} …" if rest.split() else reference


def argument(text: str) -> str:
    """Return an argument's value, resolving a reference."""
    if not is_reference(text):
        return text
    try:
        return read_secret(text, os.environ)
    except SecretUnreadable as exc:
        raise SettingsError(f"{told(text)} {exc}") from None


def read_secret(reference: str, environ: Mapping[str, str]) -> str:
    """Read a referenced secret without its final newline; may block.

    Raises:
        SecretUnreadable: Its message completes a sentence that starts with the reference.
    """
    kind, _, rest = reference.partition(":")
    value = _READERS[kind](rest, environ).rstrip("\r\n")
    if not value.strip():
        raise SecretUnreadable("is empty")
    return value


def references_in(value: Any) -> Iterator[tuple[KeyPath, ReferencedSecret]]:
    """Yield path and secret of every resolved reference."""
    for path, secret in secrets_in(value):
        if isinstance(secret, ReferencedSecret):
            yield path, secret


def _of_file(path: str, _environ: Mapping[str, str]) -> str:
    try:
        file = Path(path).expanduser()
        # A pipe or device could block the start.
        if not stat.S_ISREG(file.stat().st_mode):
            raise SecretUnreadable("is not a file")
        with file.open("rb") as opened:
            return _text(opened.read(MOST_BYTES + 1))
    except RuntimeError as exc:
        raise SecretUnreadable("names a user that does not exist") from exc
    except OSError as exc:
        raise SecretUnreadable(f"cannot be read: {exc.strerror}") from exc


def _text(content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise SecretUnreadable(f"has more than {MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        # Not `from exc`, which contains the content.
        raise SecretUnreadable("is not UTF-8 text") from None


def _of_environment(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise SecretUnreadable("is not set")
    return environ[name]


def _of_systemd(name: str, environ: Mapping[str, str]) -> str:
    folder = environ.get(CREDENTIALS)
    if not folder:
        raise SecretUnreadable(f"cannot be read: systemd hands over nothing here ({CREDENTIALS})")
    if name in {"", ".", ".."} or "/" in name:
        raise SecretUnreadable("is not the name of a credential")
    return _of_file(str(Path(folder, name)), environ)


def _of_keyring(place: str, _environ: Mapping[str, str]) -> str:
    service, slash, name = place.partition("/")
    if not (service and slash and name):
        raise SecretUnreadable("must be keyring:SERVICE/NAME")
    try:
        keyring = import_module("keyring")
    except ImportError as exc:
        raise SecretUnreadable("needs the package keyring: pip install 'parley[keyring]'") from exc
    try:
        value: str | None = keyring.get_password(service, name)
    except keyring.errors.NoKeyringError as exc:
        raise SecretUnreadable("cannot be read: there is no keyring on this system") from exc
    except Exception as exc:  # noqa: BLE001 - a backend talks to the desktop, and may raise anything
        # Not `from exc`: a backend's text may contain anything.
        raise SecretUnreadable(f"cannot be read: {in_words(exc)}") from None
    if value is None:
        raise SecretUnreadable("is not in the keyring")
    return value


def _of_command(line: str, environ: Mapping[str, str]) -> str:
    try:
        arguments = shlex.split(line)
    except ValueError as exc:
        raise SecretUnreadable(f"is not a command: {exc}") from exc
    if not arguments:
        raise SecretUnreadable("names no program")
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own line, without a shell
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Its errors may contain the secret.
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as exc:
        raise SecretUnreadable(f"cannot be run: {exc.strerror}") from exc
    with process:
        try:
            output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Including children, which would keep the pipe open and block `with`.
            kill_group(process.pid)
            # Not `from exc`, which contains the output.
            raise SecretUnreadable(f"took longer than {COMMAND_TIMEOUT_S:g} s") from None
    if process.returncode:
        raise SecretUnreadable(f"failed with exit code {process.returncode}")
    return _text(output)


_READERS = {
    "file": _of_file,
    "env": _of_environment,
    "credential": _of_systemd,
    "keyring": _of_keyring,
    "command": _of_command,
}


def _open_to_others(reference: str) -> str:
    """Return a warning if all users of the machine may read a file, else ""."""
    kind, _, rest = reference.partition(":")
    path = Path(rest).expanduser() if kind == "file" else None
    if path is None or not path.stat().st_mode & stat.S_IROTH:
        return ""
    return f"{path} can be read by every user of this machine; chmod 600 it"
