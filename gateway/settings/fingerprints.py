"""What is written down of a secret: a keyed fingerprint, which tells it from another one.

The key is random and the home's own, so that nobody who reads the audit log can try guesses.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, SecretStr

from agent.safety.redaction import Redactor
from gateway.errors import SettingsError
from gateway.settings.loading import secret_values
from gateway.settings.tree import Settings, flatten

KEY_FILE = "fingerprint.key"
"""In PARLEY_HOME, for its owner alone. It is never made anew while it is there."""
KEY_BYTES = 32
SHOWN_CHARS = 8
"""Of a hash in hexadecimal: it tells two secrets apart, and fits to too many to find one."""
KEY_CHARS = 4
"""Of the key's own hash: fingerprints of two keys cannot be compared."""


class Fingerprints:
    """Writes settings down as JSON, a fingerprint in place of each secret.

    A fingerprint is `hmac-KEY:HASH`. Rows of versions before 0.6 have `sha256:HASH` without a key.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._name = hashlib.sha256(self._key).hexdigest()[:KEY_CHARS]

    def of_settings(self, settings: Settings) -> dict[str, str]:
        """Return each setting by its name, as JSON."""
        redactor = Redactor(secret_values(settings))
        found = flatten(settings)
        return {".".join(map(str, path)): self.of(value, redactor) for path, value in found}

    def of(self, value: Any, redactor: Redactor) -> str:
        """Return a value of the tree as JSON."""
        # What looks like a secret though no setting says so: a password in an address.
        return redactor.text(orjson.dumps(self._written(value), default=str).decode())

    def _written(self, value: Any) -> Any:
        match value:
            case SecretStr():
                text = value.get_secret_value().encode()
                digest = hmac.new(self._key, text, hashlib.sha256).hexdigest()
                return f"hmac-{self._name}:{digest[:SHOWN_CHARS]}"
            case BaseModel():
                inside = flatten(value)
                return {".".join(map(str, path)): self._written(inner) for path, inner in inside}
            case dict():
                return {str(key): self._written(inner) for key, inner in value.items()}
            case tuple() | list():
                return [self._written(inner) for inner in value]
            case _:
                return value


def fingerprints_of(home: Path) -> Fingerprints:
    """Return what writes fingerprints with the key of a home, which the first call makes.

    Raises:
        SettingsError: The key cannot be read or made.
    """
    file = home / KEY_FILE
    try:
        return Fingerprints(kept_secret(file, KEY_BYTES))
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read or made: {exc.strerror}") from exc


def kept_secret(file: Path, size: int) -> str:
    """Return the random secret that a file holds; make the file, for its owner alone, at first.

    Raises:
        OSError: It cannot be read or made.
    """
    # What a start that was killed has left of it is no secret.
    if not file.exists():
        partial = file.with_suffix(".new")
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as stream:  # noqa: PTH123 - a handle, no path
            stream.write(secrets.token_urlsafe(size) + "\n")
        partial.rename(file)
    return file.read_text(encoding="utf-8", errors="replace").strip()
