"""Keep secrets and control characters out of texts that people and models read.

Tool results and answers are cleared only of secrets in the settings; logs, errors, `config show`
and the summary model's texts also of anything that looks like a credential. Secrets are also found
in base64, hex, URLs and JSON, but not in archives or reversed.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import orjson

MASK = "********"
LEAST_CHARS = 8
LEAST_KINDS = 4
LONG_CHARS = 16
"""Length bounds of secrets masked in results and answers; see `is_telling`."""


class _Shape(NamedTuple):
    """One kind of credential.

    Attributes:
        clue: Occurs in every text with this credential, and in its JSON. It begins with the rarest
            character rather than the first: a pattern without a literal beginning is fifty times
            slower.
    """

    clue: re.Pattern[str]
    secret: re.Pattern[str]
    masked: str = MASK


def _shape(secret: str, clue: str | None = None, masked: str = MASK) -> _Shape:
    return _Shape(re.compile(clue or secret), re.compile(secret), masked)


# Every pattern is linear: the part after a beginning is bounded or cannot contain another
# beginning.
_SHAPES = (
    # Telegram bot token, also after "bot" in URLs; user and password of a URL.
    _shape(
        r"(://)[^/\s:@]*:[^/\s@]+(?=@)|\d{6,12}:[A-Za-z0-9_-]{30,}",
        clue=r":(?://[^/\s:@]*:[^/\s@]+@|[A-Za-z0-9_-](?<=\d:.)[A-Za-z0-9_-]{29})",
        masked=rf"\1{MASK}",
    ),
    _shape(r"\d{6,12}%3A[A-Za-z0-9_-]{30,}", clue=r"%(?<=\d%)3A[A-Za-z0-9_-]{30}"),
    # Anthropic; OpenAI and OpenRouter, but not "task-…".
    _shape(
        r"sk-(?:ant-[A-Za-z0-9_-]{10,}|(?<![A-Za-z0-9]sk-)[A-Za-z0-9_-]{16,})",
        clue=r"-(?<=sk-)[A-Za-z0-9_-]{14}",
    ),
    # Slack.
    _shape(r"x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}"),
    _shape(r"(B(?:earer|EARER) )[A-Za-z0-9._~+/=-]{8,}", masked=rf"\1{MASK}"),
    _shape(r"(bearer )[A-Za-z0-9._~+/=-]{8,}", masked=rf"\1{MASK}"),
    # AWS access key.
    _shape(r"AKIA(?<![A-Za-z0-9]AKIA)[A-Z0-9]{16}(?![A-Za-z0-9])", clue=r"K(?<=AK)IA[A-Z0-9]{16}"),
    # GitHub.
    _shape(
        r"g(?:h[pousr]_[A-Za-z0-9]{36,}|ithub_pat_[A-Za-z0-9_]{22,})",
        clue=r"_(?:(?<=gh[pousr]_)[A-Za-z0-9]{36}|(?<=github_pat_)[A-Za-z0-9_]{22})",
    ),
    # JSON web token.
    _shape(
        r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]{8,}",
        clue=r"J(?<=eyJ)[A-Za-z0-9_-]{8}",
    ),
    # Private key: its body, with real or escaped line breaks, after optional headers.
    _shape(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])*+"
        r"(?:[A-Za-z-]{1,20}: [^\n\\]{0,100}(?:\s|\\[nr])++){0,4}+"
        r"(?=[A-Za-z0-9+/=]{16})[A-Za-z0-9+/=\s\\]++"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
        clue=r"B(?<=-----B)EGIN [A-Z ]{0,40}PRIVATE KEY",
    ),
)
_VALUE = r"[^\s\"'`*,;()\[\]{}<>]"
_ASSIGNMENT = re.compile(
    r"((?i:passw(?:or)?d|passphrase|secret|api[_ -]?key|access[_-]?key|token)[\"'`*]{0,3}"
    r"\s?(?:=>|[=:])\s?[\"'`*]{0,3})(?![/~.]|https?:)"
    rf"(?=(?:(?!\d){_VALUE})*\d)(?=(?:(?![A-Za-z]){_VALUE})*[A-Za-z]){_VALUE}{{8,}}"
)
# Ignoring case, matches wherever the pattern above does, ten times faster.
_ASSIGNED_NAME = re.compile(r"(?:passwd|password|passphrase|secret|key|token)[\"'`*]{0,3}\s?[=:]")
_URL_SAFE = str.maketrans("+/", "-_")
# The end of a long line of base64 or hex, in plain text or JSON. Each begins with a single
# character, which `re` finds fast.
_WRAPPED = (
    re.compile(r"\n(?<=[A-Za-z0-9+/_-]{59}.\n)"),
    re.compile(r"\\(?<=[A-Za-z0-9+/_-]{60}\\)[nr]"),
)
_LINE_END = r"(?:\s|\\[nr])*+"
_ENDS_LINE = re.compile(r"[\n\r]|\\[nr]")
_BLANK = re.compile(r"\s+|\\(?:[nr]|\Z)")
"""May interrupt an encoded secret, or its beginning at the end of a text."""
BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Characters that change text direction and so reorder a displayed line."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}]")


class Redactor:
    """Replaces configured secrets and anything that looks like a credential by `MASK`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these values as well: a replaced key stays secret."""
        self._values |= {secret for secret in secrets if secret}
        telling = {each for each in self._values if is_telling(each)}
        coded = {form for each in telling for form in _coded(each)}
        forms = {form for each in telling for form in _quoted(each)} | coded
        known = forms | {form for secret in self._values for form in _spellings(secret)}
        # Longest first: a secret that contains another one is masked as a whole.
        self._secrets = sorted(known, key=len, reverse=True)
        escaped = {_in_json(secret) for secret in self._secrets}
        self._escaped = tuple(escaped)
        self._in_json = sorted(known | escaped, key=len, reverse=True)
        forms |= {form for each in telling for form in _spellings(each)}
        forms |= {_in_json(form) for form in forms}
        self._configured = tuple(sorted(forms, key=len, reverse=True))
        self._beginnings = _Beginnings.of(self._configured)
        self._coded = coded
        self._over_lines: re.Pattern[str] | None = None

    def suspects(self, json_text: str) -> bool:
        """Return quickly whether JSON text may contain a secret; False is certain."""
        is_known = any(secret in json_text for secret in self._escaped)
        return is_known or any(shape.clue.search(json_text) for shape in _SHAPES)

    def text(self, text: str) -> str:
        """Mask every secret in a text."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for shape in _SHAPES:
            if shape.clue.search(text):
                text = shape.secret.sub(shape.masked, text)
        return text

    def known(self, json_text: str) -> tuple[str, int]:
        """Mask the configured secrets in JSON text; also return the number of masked characters.

        Nothing else is masked: a person who approves this text must see every other part, even if
        it looks like a credential.
        """
        hidden = 0
        for secret in self._in_json:
            if found := json_text.count(secret):
                hidden += len(secret) * found
                json_text = json_text.replace(secret, MASK)
        return json_text, hidden

    def configured(self, text: str, *, is_piece: bool = False) -> str:
        """Mask the configured secrets, except words (`is_telling`), and nothing else.

        For texts that people and models work with.

        Args:
            is_piece: Whether it is part of a longer text, so that line lengths are unknown.
        """
        for secret in self._configured:
            text = text.replace(secret, MASK)
        wrapped = self._wrapped_in(text, (_ENDS_LINE,) if is_piece else _WRAPPED)
        return wrapped.sub(MASK, text) if wrapped else text

    def holds_configured(self, text: str) -> bool:
        """Return whether `configured` would mask anything in a text or in its JSON."""
        if any(secret in text for secret in self._configured):
            return True
        wrapped = self._wrapped_in(text)
        return wrapped is not None and wrapped.search(text) is not None

    def is_in(self, content: bytes) -> bool:
        """Return whether `configured` would mask anything in a file, UTF-16 included."""
        plain = (content, content.replace(b"\0", b"")) if b"\0" in content else (content,)
        return any(self.holds_configured(each.decode(errors="replace")) for each in plain)

    def _wrapped_in(
        self, text: str, places: Iterable[re.Pattern[str]] = _WRAPPED
    ) -> re.Pattern[str] | None:
        """Return the pattern of secrets encoded across lines, if the text has such lines."""
        if not self._coded or not any(place.search(text) for place in places):
            return None
        if self._over_lines is None:
            forms = (_LINE_END.join(map(re.escape, form)) for form in self._coded)
            self._over_lines = re.compile("|".join(forms))
        return self._over_lines

    def settled_chars(self, text: str) -> int:
        """Count the characters of a growing text that no later text can cause to be masked.

        The rest may be the beginning of a configured secret, possibly encoded.
        """
        return len(text) if self._beginnings is None else self._beginnings.settled_chars(text)

    def value(self, value: Any, mask: Callable[[str], str] | None = None) -> Any:
        """Return a copy of JSON data with every string and key masked by `mask` or `text`."""
        mask = mask or self.text
        match value:
            case str():
                return mask(value)
            case dict():
                return {mask(key): self.value(item, mask) for key, item in value.items()}
            case list():
                return [self.value(item, mask) for item in value]
            case _:
                return value


def is_telling(secret: str) -> bool:
    """Return whether a value can be masked in any text without hiding ordinary words.

    It needs at least 8 characters, four of them different; below 16 characters, not only letters.
    """
    if len(secret) < LEAST_CHARS or len(set(secret)) < LEAST_KINDS:
        return False
    return len(secret) >= LONG_CHARS or not secret.isalpha()


class _Beginnings(NamedTuple):
    """Finds beginnings of secrets at the end of a text, both without blanks.

    Attributes:
        pattern: Matches the first two characters of any secret, or the first at the very end.
        forms: The secrets by their first character.
    """

    pattern: re.Pattern[str]
    forms: dict[str, list[str]]
    longest: int

    @classmethod
    def of(cls, secrets: Sequence[str]) -> "_Beginnings | None":
        forms: dict[str, list[str]] = {}
        joined = [form for each in secrets if len(form := _without_blanks(each)) > 1]
        for secret in joined:
            forms.setdefault(secret[0], []).append(secret)
        # Alternatives start with one literal character each: `re` skips all other text at once.
        seconds = {first: "".join({each[1] for each in those}) for first, those in forms.items()}
        found = "|".join(
            rf"{re.escape(first)}(?:{_BLANK.pattern})*+(?:[{re.escape(those)}]|\Z)"
            for first, those in seconds.items()
        )
        return cls(re.compile(found), forms, max(map(len, joined))) if joined else None

    def settled_chars(self, text: str) -> int:
        if not self.pattern.search(text):
            return len(text)
        joined = _without_blanks(text)
        settled = self._settled(joined)
        return len(text) if settled == len(joined) else _place(text, settled)

    def _settled(self, text: str) -> int:
        # One secret may end with the beginning of another.
        at, end = max(0, len(text) - 2 * self.longest), 0
        while found := self.pattern.search(text, at):
            start = found.start()
            at, rest = start + 1, text[start:]
            forms = self.forms[text[start]]
            if any(len(form) > len(rest) and form.startswith(rest) for form in forms):
                return max(start, end)
            end = max([end, *(start + len(form) for form in forms if rest.startswith(form))])
        return len(text)


def _without_blanks(text: str) -> str:
    return _BLANK.sub("", text)


def _place(text: str, count: int) -> int:
    """Return the position after `count` characters, ignoring blanks."""
    at = 0
    for blank in _BLANK.finditer(text):
        if at + count < blank.start():
            break
        count -= blank.start() - at
        at = blank.end()
    return at + count


def _in_json(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def _spellings(secret: str) -> set[str]:
    """Return the forms of a secret in text and in the repr of text."""
    doubled = secret.replace("\\", "\\\\")
    return {secret, doubled, repr(secret)[1:-1], doubled.replace("'", "\\'")}


def _quoted(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in URLs, and in JSON (ASCII or HTML-safe)."""
    for form in (quote(secret, safe=""), quote(secret, safe="/!'()*"), quote_plus(secret)):
        yield form
        yield re.sub("%..", lambda found: found[0].lower(), form)
    yield json.dumps(secret)[1:-1]
    yield _in_json(secret).replace("/", "\\/")


def _coded(secret: str) -> Iterator[str]:
    """Yield a secret in hex and base64, by itself or within a longer text.

    Three bytes become four base64 characters, so each of three offsets has its own form. The first
    and last characters depend on the neighbours and are omitted.
    """
    content = secret.encode()
    yield content.hex()
    yield content.hex().upper()
    for place in range(3):
        coded = b64encode(bytes(place) + content).decode()
        form = coded[(place * 8 + 5) // 6 : (place + len(content)) * 8 // 6]
        yield form
        yield form.translate(_URL_SAFE)


def masked_assignments(text: str) -> str:
    """Mask values in prose that are assigned to a password, key or token by name.

    Only values of at least 8 characters with letters and digits: others are words, numbers or code.
    """
    if _ASSIGNED_NAME.search(text.casefold()):
        return _ASSIGNMENT.sub(rf"\1{MASK}", text)
    return text


def printable(text: str) -> str:
    """Escape control characters, which a terminal would execute, except newline and tab."""
    return _CONTROL.sub(_spelled_out, text)


def _spelled_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"
