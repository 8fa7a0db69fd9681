"""Keeps secrets and control characters out of what people and models read.

Logs, errors, `config show`, what goes to the summary model and comes back from it; results of tools
and answers, which are kept free of the settings' secrets alone.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

MASK = "********"
LEAST_CHARS = 8
LEAST_KINDS = 4
LONG_CHARS = 16
"""Of secrets that are masked in results and answers; see `is_telling`."""
MOST_HOPS = 256
"""How often a rare character is looked for by itself in one text."""


class _Shape(NamedTuple):
    """One kind of credential.

    Attributes:
        clue: Found in every text that holds one, and in its JSON. It begins with the rarest
            character, not with the first: `re` then skims 10 MB in 3 to 8 ms, where a pattern
            without a literal beginning takes 300.
        secret: What is replaced.
        masked: The replacement.
        rare: The clue's first character, where texts seldom hold it: `str.find` is 5 times as fast
            on the way to it as `re`.
    """

    clue: re.Pattern[str]
    secret: re.Pattern[str]
    masked: str = MASK
    rare: str = ""

    def may_be_in(self, text: str) -> bool:
        """Tell whether the clue stands in a text; False is certain."""
        place = text.find(self.rare)
        # In a text full of that character `re` is faster.
        for _ in range(MOST_HOPS if self.rare else 0):
            if place < 0 or self.clue.match(text, place):
                return place >= 0
            place = text.find(self.rare, place + 1)
        return place >= 0 and self.clue.search(text, place) is not None


def _shape(secret: str, clue: str | None = None, masked: str = MASK, rare: str = "") -> _Shape:
    return _Shape(re.compile(clue or secret), re.compile(secret), masked, rare)


# Every pattern is linear: what follows a beginning is either bounded or cannot hold another one.
_SHAPES = (
    # Telegram bot token, in URLs after "bot" too; user and password of a URL.
    _shape(
        r"(://)[^/\s:@]*:[^/\s@]+(?=@)|\d{6,12}:[A-Za-z0-9_-]{30,}",
        clue=r":(?://[^/\s:@]*:[^/\s@]+@|[A-Za-z0-9_-](?<=\d:.)[A-Za-z0-9_-]{29})",
        masked=rf"\1{MASK}",
    ),
    _shape(r"\d{6,12}%3A[A-Za-z0-9_-]{30,}", clue=r"%(?<=\d%)3A[A-Za-z0-9_-]{30}", rare="%"),
    # Anthropic; OpenAI and OpenRouter, but not "task-…".
    _shape(
        r"sk-(?:ant-[A-Za-z0-9_-]{10,}|(?<![A-Za-z0-9]sk-)[A-Za-z0-9_-]{16,})",
        clue=r"-(?<=sk-)[A-Za-z0-9_-]{14}",
    ),
    # Slack.
    _shape(r"x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}"),
    _shape(r"(B(?:earer|EARER) )[A-Za-z0-9._~+/=-]{8,}", masked=rf"\1{MASK}", rare="B"),
    _shape(r"(bearer )[A-Za-z0-9._~+/=-]{8,}", masked=rf"\1{MASK}"),
    # AWS access key.
    _shape(
        r"AKIA(?<![A-Za-z0-9]AKIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        clue=r"K(?<=AK)IA[A-Z0-9]{16}",
        rare="K",
    ),
    # GitHub.
    _shape(
        r"g(?:h[pousr]_[A-Za-z0-9]{36,}|ithub_pat_[A-Za-z0-9_]{22,})",
        clue=r"_(?:(?<=gh[pousr]_)[A-Za-z0-9]{36}|(?<=github_pat_)[A-Za-z0-9_]{22})",
    ),
    # JSON web token.
    _shape(
        r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]{8,}",
        clue=r"J(?<=eyJ)[A-Za-z0-9_-]{8}",
        rare="J",
    ),
    # Private key: its body, line breaks as they are or spelled out, headers before it.
    _shape(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])*+"
        r"(?:[A-Za-z-]{1,20}: [^\n\\]{0,100}(?:\s|\\[nr])++){0,4}+"
        r"(?=[A-Za-z0-9+/=]{16})[A-Za-z0-9+/=\s\\]++"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
        clue=r"B(?<=-----B)EGIN [A-Z ]{0,40}PRIVATE KEY",
        rare="B",
    ),
)
_VALUE = r"[^\s\"'`*,;()\[\]{}<>]"
_ASSIGNMENT = re.compile(
    r"((?i:passw(?:or)?d|passphrase|secret|api[_ -]?key|access[_-]?key|token)[\"'`*]{0,3}"
    r"\s?(?:=>|[=:])\s?[\"'`*]{0,3})(?![/~.]|https?:)"
    rf"(?=(?:(?!\d){_VALUE})*\d)(?=(?:(?![A-Za-z]){_VALUE})*[A-Za-z]){_VALUE}{{8,}}"
)
# Stands, letter case apart, wherever the pattern above matches; found in a tenth of the time.
_ASSIGNED_NAME = re.compile(r"(?:passwd|password|passphrase|secret|key|token)[\"'`*]{0,3}\s?[=:]")
_BORDER = "\x1f"
BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What changes the direction of text: with it a line is shown in another order than it has."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}]")


class Redactor:
    """Replaces configured secret values and anything shaped like a credential by `MASK`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these values as well, from now on: a key that was replaced stays a secret."""
        self._values |= {secret for secret in secrets if secret}
        known = {form for secret in self._values for form in _spellings(secret)}
        # Longest first: a secret that contains another one goes as a whole.
        self._secrets = sorted(known, key=len, reverse=True)
        escaped = {_in_json(secret) for secret in self._secrets}
        self._escaped = tuple(escaped)
        self._in_json = sorted(known | escaped, key=len, reverse=True)
        telling = {each for each in self._values if is_telling(each)}
        forms = {form for each in telling for form in (*_spellings(each), quote(each, safe=""))}
        forms |= {_in_json(form) for form in forms}
        self._configured = tuple(sorted(forms, key=len, reverse=True))

    def suspects(self, json_text: str) -> bool:
        """Tell quickly whether JSON text may hold a secret; False is certain.

        A line of the log takes 2 microseconds.
        """
        for secret in self._escaped:
            if secret in json_text:
                return True
        return any(shape.may_be_in(json_text) for shape in _SHAPES)

    def text(self, text: str) -> str:
        """Return the text with every secret masked; 10 MB without any take about 60 ms."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for shape in _SHAPES:
            if shape.may_be_in(text):
                text = shape.secret.sub(shape.masked, text)
        return text

    def texts(self, texts: Sequence[str]) -> list[str]:
        """Return each text with its secrets masked, as `text` does; made for thousands of them."""
        together = _BORDER.join(texts)
        # One look at all of them: most conversations hold no secret.
        return list(texts if self.text(together) == together else map(self.text, texts))

    def known(self, json_text: str) -> tuple[str, int]:
        """Return JSON text without the configured secrets, and how many characters were masked.

        Nothing else is touched: whoever decides by this text must not be shown less of it because
        somebody made a part look like a credential.
        """
        hidden = 0
        for secret in self._in_json:
            hidden += len(secret) * json_text.count(secret)
            json_text = json_text.replace(secret, MASK)
        return json_text, hidden

    def configured(self, text: str) -> str:
        """Return text without the configured secrets, but for those that are words (`is_telling`).

        For what people and models go on working with: nothing that only looks like a credential
        is touched.
        """
        for secret in self._configured:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def holds_configured(self, text: str) -> bool:
        """Tell whether `configured` would mask anything, in a text or in its JSON."""
        return any(secret in text for secret in self._configured)

    def settled_chars(self, text: str) -> int:
        """Return how many characters of a growing text no longer depend on what follows.

        The rest may be the beginning of a configured secret.
        """
        size = settled = len(text)
        for secret in self._configured:
            # Most pieces end with no beginning: two looks tell.
            tail = max(0, size - len(secret) + 1)
            if text[-1:] == secret[0] or text.find(secret[:2], tail) >= 0:
                settled = min(settled, _begins_at(text, secret))
        # A piece that ends with no beginning is settled as a whole.
        for secret in self._configured if settled < size else ():
            # One secret may end with what another one begins with.
            found = text.find(secret, max(0, settled - len(secret) + 1))
            if 0 <= found < settled:
                settled = max(settled, found + len(secret))
        return settled

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


def is_telling(secret: str) -> bool:
    """Tell whether a value can be masked in any text without hiding ordinary words.

    It has 8 characters or more, of four kinds or more, and up to 15 of them are not letters alone.
    """
    if len(secret) < LEAST_CHARS or len(set(secret)) < LEAST_KINDS:
        return False
    return len(secret) >= LONG_CHARS or not secret.isalpha()


def _begins_at(text: str, secret: str) -> int:
    """Return where an unfinished secret begins at the end of a text; its length for nowhere."""
    place = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while place >= 0:
        if secret.startswith(text[place:]):
            return place
        place = text.find(secret[0], place + 1)
    return len(text)


def _in_json(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def _spellings(secret: str) -> set[str]:
    """Return a secret as it stands in text, and as it stands in the repr of text."""
    doubled = secret.replace("\\", "\\\\")
    return {secret, doubled, repr(secret)[1:-1], doubled.replace("'", "\\'")}


def masked_assignments(text: str) -> str:
    """Return prose with the values masked that are given to a password, key or token by name.

    Only values of 8 characters or more with letters and digits: others are words, numbers, code.
    """
    if _ASSIGNED_NAME.search(text.casefold()):
        return _ASSIGNMENT.sub(rf"\1{MASK}", text)
    return text


def printable(text: str) -> str:
    """Return the text with control characters spelled out, all but newline and tab.

    A terminal would obey them, and parts of a log line are written by strangers.
    """
    return _CONTROL.sub(_spelled_out, text)


def _spelled_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"
