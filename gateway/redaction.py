"""Keeps secrets and control characters out of what people read: logs, errors, `config show`."""

import re
from collections.abc import Iterable
from typing import Any

import orjson

MASK = "********"

_SHAPES = re.compile(
    r"\d{6,12}(?::|%3A)[A-Za-z0-9_-]{30,}"  # Telegram bot token, in URLs after "bot" too
    r"|sk-ant-[A-Za-z0-9_-]{10,}"  # Anthropic
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"  # OpenAI, OpenRouter; but not "task-…"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{8,})"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # user and password of a URL
)
# What every shape contains: looking for these takes 1 microsecond a line, the shapes take 30.
_HINTS = ("sk-", "xox", "xapp-", "earer ", "EARER ", "://", "%3A")
_TOKEN_HINT = re.compile(r":[A-Za-z0-9_-]{30}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Redactor:
    """Replaces configured secret values and anything shaped like a credential by `MASK`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if secret for form in _spellings(secret)}
        # Longest first: a secret that contains another one goes as a whole.
        self._secrets = sorted(known, key=len, reverse=True)
        escaped = {orjson.dumps(secret)[1:-1].decode() for secret in self._secrets}
        self._hints = (*escaped, *_HINTS)

    def suspects(self, json_text: str) -> bool:
        """Tell quickly whether JSON text may hold a secret; False is certain."""
        for hint in self._hints:
            if hint in json_text:
                return True
        return _TOKEN_HINT.search(json_text) is not None

    def text(self, text: str) -> str:
        """Return the text with every secret masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return _SHAPES.sub(MASK, text)

    def value(self, value: Any) -> Any:
        """Return a copy of JSON data with every string in it masked, keys of maps included."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
            case _:
                return value


def _spellings(secret: str) -> set[str]:
    """Return a secret as it stands in text, and as it stands in the repr of text."""
    doubled = secret.replace("\\", "\\\\")
    return {secret, doubled, repr(secret)[1:-1], doubled.replace("'", "\\'")}


def printable(text: str) -> str:
    """Return the text with control characters spelled out, all but newline and tab.

    A terminal would obey them, and parts of a log line are written by strangers.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
