"""The threat scan: remove text spans that instruct the model, hide content, or exfiltrate data.

It is applied to third-party texts that enter the prompt: notes, context files, skills. A mark that
names the kind replaces each span. It is one of several safeguards (the rest is still framed as
data), so it prefers missing a clever attack to mutilating a harmless page.

Some characters are invisible. Joiners belong in emoji sequences and in the scripts of Persian,
Hindi and others, direction marks in lines with Hebrew or Arabic. Elsewhere, or repeated, they hide
something.

The patterns at the end have spaces between their words; `_words` accepts any short run of spaces,
line breaks and Markdown marks there. All gaps are bounded, and a gap that many beginnings could
share ends at the next beginning, so that the scan takes linear time.
"""

import base64
import binascii
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal[
    "injection pattern", "hidden text", "invisible characters", "exfiltration", "encoded data"
]

LONG_BLOB_CHARS = 400
"""Longer encoded data is useless to a model; keys and digests are shorter."""
MAX_BLOB_CHARS = 20_000
"""Most characters of one blob to decode."""

_BLOB = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/]{24,}={0,2}(?![A-Za-z0-9+/])")
_HEX = re.compile(r"[0-9a-fA-F]+")
_LOOKALIKES = str.maketrans(
    # Cyrillic lower case, Cyrillic upper case, Greek; the emphasis mark.
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405"
    "\u03bf\u03b1\u03b9\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7_",
    "aeopcyxijsdqwABEKMHOPCTXIJSoaiABEHIKMNOPTX ",
)


@dataclass(frozen=True, slots=True)
class Threat:
    """A removed span with its position in the text and its length."""

    kind: Kind
    start: int
    chars: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A text with a mark in place of each finding; findings are ordered and do not overlap."""

    text: str
    findings: tuple[Threat, ...] = ()

    @property
    def counts(self) -> Mapping[Kind, int]:
        """Number of findings of each kind."""
        return Counter(finding.kind for finding in self.findings)


def scan(text: str) -> Scan:
    """Replace every suspicious span of a text by a mark."""
    findings = tuple(_merged(list(_found(text))))
    if not findings:
        return Scan(text)
    pieces: list[str] = []
    done = 0
    for finding in findings:
        pieces += [text[done : finding.start], mark(finding)]
        done = finding.start + finding.chars
    return Scan("".join([*pieces, text[done:]]), findings)


def mark(finding: Threat) -> str:
    """Return the mark that replaces a finding."""
    unit = "character" if finding.chars == 1 else "characters"
    return f"[removed: {finding.kind}, {finding.chars} {unit}]"


def _found(text: str) -> Iterator[Threat]:
    """Yield all findings, most explanatory kind first; they may overlap."""
    # Most texts have none, so their characters need not be checked one by one.
    unseen = [] if text.isascii() and text.isprintable() else unseen_spans(text)
    plain, places = _plain(text, unseen)
    for kind, start, end in _in_words(plain):
        yield Threat(kind, places[start], places[end - 1] + 1 - places[start])
    for start, end in misplaced_spans(text, unseen):
        yield Threat("invisible characters", start, end - start)


def _in_words(plain: str) -> Iterator[tuple[Kind, int, int]]:
    for start, end in _comments(plain):
        # Pages are full of harmless comments; only one that addresses a model is removed.
        if SUSPICIOUS.search(plain, start, end):
            yield "hidden text", start, end
    yield from (("hidden text", start, end) for start, end in _hidden(plain))
    # Replaced one for one, so that positions are equal in both readings.
    alike = plain.translate(_LOOKALIKES)
    readings = (plain,) if alike == plain else (plain, alike)
    for (kind, pattern), reading in product(PATTERNS, readings):
        for match in pattern.finditer(reading):
            yield kind, *match.span()
    for match in _BLOB.finditer(plain):
        if _is_suspicious(match.group()):
            yield "encoded data", *match.span()


def _comments(plain: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of comments; an unclosed one hides its paragraph."""
    yield from (match.span() for match in LINK_COMMENT.finditer(plain))
    # All ends are found at once: searching from each beginning would be quadratic.
    closings = [match.start() for match in re.finditer("-->", plain)]
    blanks = [match.start() for match in BLANK_LINE.finditer(plain)]
    done = 0
    for opening in re.finditer("<!--", plain):
        start = opening.start()
        if start < done:
            continue
        closing = _first(closings, opening.end(), len(plain) + COMMENT_CHARS)
        if closing - opening.end() <= COMMENT_CHARS:
            done = closing + len("-->")
        else:
            done = min(_first(blanks, start, len(plain)), opening.end() + OPEN_COMMENT_CHARS)
        yield start, min(done, len(plain))


def _hidden(plain: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of hidden elements; for long ones only the opening tag."""
    closings: dict[str, list[int]] = {}
    ends: dict[int, int] = {}
    for match in CLOSING.finditer(plain):
        closings.setdefault(match.group(1).casefold(), []).append(match.start())
        ends[match.start()] = match.end()
    for match in HIDING.finditer(plain):
        places = closings.get(match.group(1).casefold(), [])
        closing = _first(places, match.end(), match.end() + HIDDEN_CHARS + 1)
        # A distant closing tag may belong to another element: visible text between must stay.
        is_near = closing - match.end() <= HIDDEN_CHARS
        yield match.start(), ends[closing] if is_near else match.end()


def _first(places: list[int], at: int, otherwise: int) -> int:
    """Return the first of these sorted positions that is not before `at`."""
    n = bisect_left(places, at)
    return places[n] if n < len(places) else otherwise


def _is_suspicious(blob: str) -> bool:
    """Return whether base64 data is long or, once decoded, addresses the model."""
    # Digests and commit ids are long as well.
    if _HEX.fullmatch(blob):
        return False
    if len(blob) >= LONG_BLOB_CHARS:
        return True
    # Padding may be missing, and a cut may leave an incomplete group of four.
    body = blob.rstrip("=")[:MAX_BLOB_CHARS]
    try:
        decoded = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return any(pattern.search(decoded) for pattern in SPEECH)


def _plain(text: str, unseen: list[tuple[int, int]]) -> tuple[str, Sequence[int]]:
    """Return the text in plain, visible letters, and each one's original position."""
    places: Sequence[int] = range(len(text))
    if unseen:
        hidden = {n for start, end in unseen for n in range(start, end)}
        places = [n for n in places if n not in hidden]
    plain = "".join(text[n] for n in places) if unseen else text
    return plain if plain.isascii() else "".join(map(_folded, plain)), places


def _folded(character: str) -> str:
    """Return the plain form of a letter (full width, mathematical) as one character."""
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKC", character)
    # A ligature becomes several letters, which would shift all positions.
    return plain if len(plain) == 1 else character


def _merged(findings: list[Threat]) -> Iterator[Threat]:
    """Yield findings in order; merge overlapping ones under the kind found first."""
    current: Threat | None = None
    best = 0
    for start, rank in sorted((each.start, n) for n, each in enumerate(findings)):
        finding = findings[rank]
        if current is None or start >= current.start + current.chars:
            if current is not None:
                yield current
            current, best = finding, rank
            continue
        end = max(current.start + current.chars, start + finding.chars)
        best = min(best, rank)
        current = Threat(findings[best].kind, current.start, end - current.start)
    if current is not None:
        yield current


_RTL = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
_JOINING = f"{_RTL}\u0900-\u0fff\u1000-\u109f\u1780-\u18af"
_PICTURES = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff\ufe0f\U0001f3fb-\U0001f3ff"
_BREAKING = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u0f00-\u0fff"

_RUN = re.compile(
    "["
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f"  # control characters
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # musical, tags, variation selectors
    "]+"
)
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")

_picture = re.compile(f"[{_PICTURES}]").match
_joining = re.compile(f"[{_JOINING}]").match
_breaking = re.compile(f"[{_BREAKING}]").match
_rtl = re.compile(f"[{_RTL}]").search
_ideograph = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]").match


def unseen_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each run of invisible characters, in order."""
    return [match.span() for match in _RUN.finditer(text)]


def reveal_invisible(text: str) -> str:
    """Escape the invisible characters of a text that no script or emoji requires."""
    pieces, done = [], 0
    for start, end in misplaced_spans(text, unseen_spans(text)):
        pieces += [text[done:start], text[start:end].encode("unicode_escape").decode()]
        done = end
    return "".join([*pieces, text[done:]])


def misplaced_spans(text: str, unseen: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the invisible runs of a text that no script or emoji requires."""
    # Flags of England, Scotland and Wales consist of a black flag and invisible letters.
    flags = [match.span() for match in _FLAG.finditer(text)]
    for start, end in unseen:
        if any(low <= start and end <= high for low, high in flags):
            continue
        if not _is_in_place(text, start, end):
            yield start, end


def _is_in_place(text: str, start: int, end: int) -> bool:
    run, before, after = text[start:end], text[start - 1 : start], text[end : end + 1]
    # The pair that joins two pictures into one, as in families and flags.
    if run == "\ufe0f\u200d":
        return bool(_picture(before) and _picture(after))
    if len(run) > 1:
        return False
    # Direction marks belong in lines that contain right-to-left letters.
    if run in "\u200e\u200f\u061c":
        return bool(_rtl(_line_around(text, start)))
    if run == "\ufeff":
        # At the beginning of a text it is a byte order mark.
        return start == 0
    return _belongs(run, before, after)


def _belongs(one: str, before: str, after: str) -> bool:
    joins = _joining(before)
    if one == "\u200d":
        joins = joins or (_picture(before) and _picture(after))
    rules = (
        (one in "\u200c\u200d", joins),
        ("\ufe00" <= one <= "\ufe0f", before.strip()),
        ("\U000e0100" <= one <= "\U000e01ef", _ideograph(before)),
        (one == "\u200b", _breaking(before) and _breaking(after)),
        (one == "\u00ad", before.isalpha() and after.isalpha()),
        ("\u180b" <= one <= "\u180f", True),
    )
    return any(applies and fits for applies, fits in rules)


def _line_around(text: str, place: int) -> str:
    first = text.rfind("\n", max(0, place - 200), place) + 1 or max(0, place - 200)
    last = text.find("\n", place, place + 200)
    return text[first : last if last >= 0 else place + 200]


_GAP = r"[^\w.!?]{1,8}"
_REST_OF_SENTENCE = r"[^\n.!?<>\u3002\uff01\uff1f]{0,200}"
"""After its opening words an injection states its demand."""


_RULES = (
    r"(?:instructions?|prompts?|rules?|directives?|guidelines?|messages?|commands?|orders?"
    r"|constraints?|guardrails?|context|training)"
)
_EARLIER = r"(?:previous|prior|above|earlier|preceding|former|foregoing|initial|original|system)"
_NOT = r"(?:do not|don['\u2019]?t|never)"
_PERSON = r"(?:the|your) (?:users?|human|operator|owner)"
_FILL = r"(?:(?:all|any|every|each|of|the|these|those|this|your|my|our|other|such|and) ){0,5}"

_SPEECH = (
    (
        rf"\b(?:ignore|disregard|forget|override|bypass|discard) {_FILL}{_EARLIER} (?:\w+ ){{0,3}}?"
        rf"{_RULES}\b"
    ),
    (
        rf"\b(?:ignore|disregard|forget) {_FILL}(?:everything|anything|what) (?:\w+ ){{0,3}}?"
        r"(?:above|before|told|said|instructed|learned)\b"
    ),
    rf"\b(?:ignore|disregard|bypass|override) {_FILL}your (?:\w+ ){{0,2}}?{_RULES}\b",
    (
        rf"\b(?:{_NOT}|stop) (?:follow|obey|comply with|following|obeying)"
        rf" {_FILL}{_EARLIER} (?:\w+ )?{_RULES}\b"
    ),
    (
        r"\byou are now (?:an?|the|my|called|named|known as|acting as|playing|DAN|free|unrestricted"
        r"|jailbroken|no longer|in (?:developer|debug|god|dan|jailbreak|admin|root|unrestricted))\b"
    ),
    (
        r"\bfrom now on,? you (?:will|must|are|shall|should) (?:\w+ )?(?:act|answer|respond|reply"
        r"|behave|be|ignore|obey|pretend|only|always|never)\b"
    ),
    r"\b(?:new|updated|real|true|actual|revised) system (?:prompts?|instructions?|messages?)\b",
    r"\bsystem (?:prompt|message|instructions?) (?:override|update|overwrite)\b",
    (
        r"\b(?:reveal|print|show|repeat|output|leak|disclose|recite|expose|tell me|send me|give me)"
        r" (?:me )?(?:your (?:\w+ )?|the (?:full|entire|hidden|exact|complete|whole|original) )"
        r"(?:system|hidden|initial|developer|secret) (?:prompts?|instructions?|messages?|rules?)\b"
    ),
    (
        rf"\b{_NOT} (?:tell|inform|alert) {_PERSON}"
        r"(?= about (?:this|it|these)| of (?:this|it)|\s*[.,;!]|\s*$)"
    ),
    rf"\b{_NOT} mention (?:this|it|that) to {_PERSON}\b",
    rf"\bwithout (?:telling|informing|alerting|asking) {_PERSON}\b",
    rf"\b(?:hide|conceal|keep) (?:this|it|that) (?:secret |hidden )?from {_PERSON}\b",
    (
        r"\b(?:act|behave|respond) as (?:if|though) you (?:had|have) no"
        r" (?:restrictions|limits|rules|guidelines|filters?)\b"
    ),
    (
        r"\b(?:pretend|imagine) (?:that )?you (?:are|were|have) (?:an? |no )?(?:\w+ )?"
        r"(?:unrestricted|jailbroken|unfiltered|DAN|restrictions|rules|limits|guidelines)\b"
    ),
    r"\b(?:developer|debug|god|DAN|jailbreak) mode (?:is )?(?:now )?(?:enabled|activated|on)\b",
    (
        r"\byour (?:new|real|true|actual|only) (?:task|goal|purpose|instructions?|role|objective"
        r"|directive|mission) (?:is|are)\b"
    ),
    # The same in other languages.
    r"(?:忽略|无视|忽視|無視|忘记|忘記)[^\n。]{0,12}(?:指令|指示|提示|规则|規則|说明|說明|命令)",
    r"(?:以前|前|上記|これまで)の[^\n。]{0,8}(?:指示|命令|指令|ルール)[^\n。]{0,6}(?:無視|忘れ)",
    (
        r"\b(?:ignorier|missacht|vergiss)\w* (?:\w+ ){0,3}?(?:vorherig|bisherig|obig|vorig)\w*"
        r" (?:\w+ )?(?:anweisung|befehl|regel|vorgabe|instruktion)\w*"
    ),
    (
        r"\b(?:ignor|olvid|descart)\w+ (?:\w+ ){0,3}?(?:instrucciones|instruções|reglas|regras)"
        r" (?:anteriores|previas|prévias|de arriba|del sistema)\b"
    ),
    (
        r"\b(?:ignor|oubli)\w+ (?:\w+ ){0,3}?(?:instructions|consignes|règles|directives)"
        r" (?:précédentes|antérieures|ci-dessus|du système)\b"
    ),
    (
        r"\b(?:игнорир|забуд|отбрось)\w* (?:\w+ ){0,3}?(?:предыдущ|прежн|вышеуказанн|систем)\w*"
        r" (?:\w+ )?(?:инструкц|указан|правил|команд)\w*"
    ),
)
_MARKUP = (
    (
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|eot_id|begin_of_text"
        r"|start_header_id|end_header_id)\|>"
    ),
    r"\[/?INST\]|<</?SYS>>",
    r"</?(?:memory-context|parley-data|system-reminder|system-prompt|system_prompt)\b[^<>]{0,200}>",
)
PRIVATE_FILES = (
    r"(?:\.env\b(?!\.(?:example|sample|template|dist|test))|\.netrc\b|\.pgpass\b|\.npmrc\b"
    r"|\.pypirc\b|\.aws/credentials|\.kube/config|\.docker/config\.json|\.ssh/(?!config\b|known_hosts\b)"
    r"|id_rsa\b(?!\.pub)|id_ed25519\b(?!\.pub)|id_ecdsa\b(?!\.pub)|/etc/(?:passwd|shadow)\b)"
)
_KEY_VARIABLE = r"\$\{?\w*(?:KEY|TOKEN|SECRET|PASSW|CREDENTIAL)\w*"
_CLIENT = r"\b(?:curl|wget|nc|ncat|invoke-webrequest|iwr|invoke-restmethod)\b"
_READER = r"\b(?:cat|less|more|head|tail|type|base64|xxd|strings)\s"
_SENDS = r"send|post|upload|forward|exfiltrate|transmit|leak"
_SENDER = rf"\b(?:{_SENDS}|e-?mail|submit|append)\b"
_HEADER = r"(?:authorization|x-api-key|api-key|x-auth-token|private-token|x-\w+-token)['\"]?\s*[:=]"
_SECRETS = (
    r"(?:api keys?|secrets?|passwords?|credentials?|access tokens?|private keys?|ssh keys?"
    r"|environment variables?|chat history|conversation history|system prompt|\.env)"
)
_CATCHERS = (
    r"(?:webhook\.site|requestbin\.\w+|[\w-]+\.requestcatcher\.com|[\w-]+\.pipedream\.net"
    r"|[\w-]+\.burpcollaborator\.net|[\w-]+\.oast\.\w+|[\w-]+\.interact\.sh"
    r"|[\w-]+\.ngrok(?:-free)?\.(?:io|app|dev))"
)
_CARRIED = (
    # A key in its own header is how services are called.
    rf"{_CLIENT}(?:(?!{_HEADER}|{_CLIENT})[^\n]){{0,300}}?(?:{_KEY_VARIABLE})[^\n]{{0,200}}",
    (
        rf"{_CLIENT}(?:(?!{_CLIENT})[^\n]){{0,300}}?(?:{PRIVATE_FILES}|\$\((?:cat|env|printenv)\b|`(?:cat|env|printenv)\b)"
        r"[^\n]{0,200}"
    ),
    rf"{_READER}(?:(?!{_READER})[^\n|;&]){{0,100}}?{PRIVATE_FILES}[^\n]{{0,200}}",
    rf"\b(?:printenv|env|set)\s*\|\s*{_CLIENT}[^\n]{{0,200}}",
    r">{1,2}\s*\S{0,100}\.ssh/authorized_keys\b",
    rf"https?://{_CATCHERS}\S{{0,300}}",
    r"https?://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks)/\S{0,200}?[?&]\w+=\S{0,200}",
    r"!\[[^\]\n]{0,100}\]\(https?://[^)\s]{1,300}?[?&/=](?:\{|%7B|<|\$)[^)\n]{0,200}\)",
    (
        rf"{_SENDER}(?:(?!{_SENDER})[^\n.]){{0,80}}?\b{_SECRETS}\b"
        rf"(?:(?!\b{_SECRETS}\b)[^\n]){{0,80}}?(?:https?://\S{{1,200}}|to (?:the following|this)"
        r" (?:url|address|server|webhook|endpoint))"
    ),
    (
        rf"\b(?:{_SENDS})\b(?:(?!\b(?:{_SENDS})\b)[^\n.]){{0,40}}?https?://\S{{1,200}}+"
        rf"[^\n.]{{0,40}}?\b{_SECRETS}\b"
    ),
)
_HIDING_STYLE = (
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?!\.?[1-9])"
    r"|opacity\s*:\s*0(?![.\d]))"
)


def _compiled(patterns: tuple[str, ...], ending: str = "") -> tuple[re.Pattern[str], ...]:
    flags = re.IGNORECASE | re.MULTILINE
    return tuple(re.compile(f"(?:{pattern}){ending}", flags) for pattern in patterns)


HIDING = re.compile(rf"<(\w{{1,20}})\b[^<>]{{0,300}}?{_HIDING_STYLE}[^<>]{{0,300}}>", re.IGNORECASE)
"""An element that a page does not display, up to its `CLOSING`."""
CLOSING = re.compile(r"</(\w{1,20})\s{0,20}>")
HIDDEN_CHARS = 5_000
"""Longest element that is removed together with its contents."""
COMMENT_CHARS = 10_000
OPEN_COMMENT_CHARS = 2_000
"""Most text that an unclosed comment hides, up to `BLANK_LINE`."""
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
LINK_COMMENT = re.compile(r"^\[(?://|comment)\]:[^\n]{0,1000}$", re.MULTILINE)
SUSPICIOUS = re.compile(
    r"(?:\bignore (?:all|any|every|the|your|previous|prior|rules)|disregard|override"
    r"|secret(?:ly)?|system prompt|you must|you are|you should|assistant|language model"
    r"|\bLLM\b|\bAI\b|do not (?:tell|mention|reveal)|instructions? (?:to|for) )",
    re.IGNORECASE,
)
"""Words in a comment that address a model."""
SPEECH = _compiled(tuple(each.replace(" ", _GAP) for each in _SPEECH), _REST_OF_SENTENCE)
_BY_KIND: tuple[tuple[Kind, tuple[re.Pattern[str], ...]], ...] = (
    ("exfiltration", _compiled(_CARRIED)),
    ("injection pattern", (*SPEECH, *_compiled(_MARKUP))),
)
PATTERNS = tuple((kind, pattern) for kind, patterns in _BY_KIND for pattern in patterns)
"""By kind, most explanatory first: overlapping spans are merged under the first kind."""


_FILE_ENDS = (
    "avif|bmp|css|csv|docx|gif|html|ini|jpeg|jpg|js|json|jsx|log|mp3|mp4|odt|pdf|png|pptx|toml|ts"
    "|tsx|txt|wav|xlsx|xml|yaml|yml"
)
"""File extensions that are not top-level domains. Source: IANA's list."""
_DOT = r"(?:\.|\[\.\]|\(\.\)|\u3002|\uff61)"
_LABEL = r"[^\W_](?:[\w-]*[^\W_])?"
_DATE = re.compile(r"(?<!\d)(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./-])\d{1,2}\1\d{2,4})(?!\d)")
_DELICATE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"[a-z][a-z\d+-]*:/{1,2}\S|\b(?:data|javascript|mailto|tel|sms):\S|\bwww\.",
        # A host, also in an email address.
        rf"(?<!\w){_LABEL}{_DOT}(?!(?:{_FILE_ENDS})\b)(?:{_LABEL}{_DOT})*[^\W\d_]{{2,}}(?!\w)",
        r"\w@\w|\blocalhost\b|[a-z][\w-]*:\d{2,5}\b",
        r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])|(?:[\da-f]{1,4}:){2,7}:?[\da-f]{1,4}|::\d",
        # A command: a shell's option, path, quoting, pipe or substitution.
        r"(?<!\S)--?[a-z][\w-]*|(?<!\S)(?:~|\.{1,2})?/[\w.~-]|\b[a-z]:\\|`|\$[({\w]|&&|\||;\s*\S+\s-",
        # An account: an IBAN, a number of at least seven digits, a long word of letters and digits.
        r"\b[a-z]{2}\d{2}(?:[ -]?[a-z\d]{2,4}){3,8}\b",
        r"(?:\d[\s()./'\u00b7\u2010-\u2015\u2022\u2212-]{0,3}){6}\d",
        r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{16,}\b",
    )
)
_PROGRAM = re.compile(
    r"(?<![\w-])(?:bash|chmod|chown|curl|npx|powershell|rm|scp|ssh|sudo|uvx|wget|xargs)(?![\w-])"
)


def is_delicate(text: str) -> bool:
    """Return whether a text has a URL, host, command, account number or phone number."""
    # Invisible characters and combining marks ("1" in a keycap) could split them; full-width
    # letters and digits look like plain ones.
    seen = "".join(each for each in text if unicodedata.category(each) not in {"Cf", "Me", "Mn"})
    plain = _DATE.sub(" ", unicodedata.normalize("NFKC", seen))
    return any(found.search(plain) for found in (*_DELICATE, _PROGRAM))
