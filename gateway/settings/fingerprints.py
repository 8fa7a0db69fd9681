"""Keyed fingerprints: logs have these in place of secrets, to tell whether a secret changed.

The key is random and belongs to the home, so that readers of the audit log cannot test guesses.
"""

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr

from agent.safety.redaction import Redactor
from gateway.errors import SettingsError
from gateway.settings.loading import replace_closed, secret_values
from gateway.settings.tree import Settings, flatten, plain

KEY_FILE = "fingerprint.key"
"""In PARLEY_HOME, readable by its owner only. An existing key is never replaced."""
KEY_BYTES = 32
SHOWN_CHARS = 8
"""Hexadecimal digits of the hash: enough to tell two secrets apart, too few to find one."""
KEY_CHARS = 4
"""Digits of the key's own hash: fingerprints with two keys cannot be compared."""


class Fingerprints:
    """Writes settings as JSON, with a fingerprint in place of each secret.

    A fingerprint is `hmac-KEY:HASH`. Rows of the unreleased 0.6 may have `sha256:HASH`.
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
        # A value may contain a secret though its setting is not one: a password in an address.
        return redactor.text(orjson.dumps(plain(value, self._written), default=str).decode())

    def _written(self, secret: SecretStr) -> str:
        text = secret.get_secret_value().encode()
        digest = hmac.new(self._key, text, hashlib.sha256).hexdigest()
        return f"hmac-{self._name}:{digest[:SHOWN_CHARS]}"


def fingerprints_of(home: Path) -> Fingerprints:
    """Return the writer for a home's fingerprints; the first call makes the key.

    Raises:
        SettingsError: The key cannot be read or made.
    """
    file = home / KEY_FILE
    try:
        return Fingerprints(kept_secret(file, KEY_BYTES))
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read or made: {exc.strerror}") from exc


def kept_secret(file: Path, size: int) -> str:
    """Return the random secret of a file; the first call makes it, readable by its owner only.

    Raises:
        OSError: It cannot be read or made.
    """
    if not file.exists():
        replace_closed(file, (secrets.token_urlsafe(size) + "\n").encode())
    return file.read_text(encoding="utf-8", errors="replace").strip()
