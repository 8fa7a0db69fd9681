"""The telling terms of a stretch of conversation, and the index of them that a summary holds.

They are found in excerpts of the messages, each of a bounded length. An index line names the
message where a stretch begins, then terms that stand from there on, most telling first. Lines of
earlier indexes are read back from the previous summary.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from agent.messages import ChatMessage, text_of
from agent.safety.redaction import Redactor, masked_assignments
from agent.tokens.estimate import estimate_tokens
from agent.view.view import Entry

ROOM_CHARS = {
    "user": 700_000,
    "assistant": 700_000,
    "tool": 100_000,
    "call": 40_000,
    "system": 10_000,
}
"""How much is read of all texts of a kind together."""

MOST_CHARS = {"tool": 1_000, "call": 200}
"""How much is read of one text: a longer result is a listing, a longer argument a file."""

LEAST_CHARS = 40
MANY_TEXTS = 5_000
"""From here on less is read of what people write, so that the time for all stays the same."""

MAX_TERM_CHARS = 40
LINE_TERMS = 70
"""Terms of one line of the index."""
LINE_TOKENS = 6
"""What a line takes beside its terms."""

# What a word is worth, by who wrote it and by its form: tuned with tests/bench/retention.py.
WEIGHTS = {"user": 1.0, "assistant": 0.6, "tool": 0.2, "call": 0.2, "system": 0.1}
LENGTH_POWER = 0.75
DIGITS = 2.0
CAPITALS = 1.4
SENIOR = 4.0
FOCUS = 8.0
NAMED = 3.0

_INNER = ".@:'-"
_EDGES = "_\u2019" + _INNER
_SEPARATORS = bytes(
    byte if byte >= 0x80 or chr(byte).isalnum() or chr(byte) in "_" + _INNER else 0x20
    for byte in range(256)
)
_WORD = re.compile(r"\w[\w.@:'\u2019-]*")
_PART = re.compile(r"\w[\w'\u2019-]*")
_DIGIT = re.compile(r"\d")
_FILE = re.compile(r"[\w-]+\.[a-z]{1,4}")
_SCRIPT = "\u3040-\u30ff\u3400-\u9fff"
_UNSPACED = re.compile(f"[{_SCRIPT}]")
_RUN = re.compile(f"[{_SCRIPT}]{{1,4}}|[^\\W{_SCRIPT}]+")
_GARBAGE = re.compile(r"(?=.*\d)(?=.*[a-z])[0-9a-z+/=]{17,}|[0-9a-f]{13,}")
_LINE = re.compile(r"^#(\d+): (.+)$", re.MULTILINE)

Index = list[tuple[int, list[str]]]
"""Lines of (seq of the message where a stretch begins, its terms)."""


class Excerpt(NamedTuple):
    """A text of one message, free of secrets; `role` is "call" for a tool call."""

    seq: int
    role: str
    text: str


def read(entries: Sequence[Entry], share: float = 1.0) -> list[Excerpt]:
    """Return what is read of each message, in order; long texts by their head and tail.

    Args:
        share: How much of the usual amount.
    """
    seqs: list[int] = []
    roles: list[str] = []
    texts: list[str] = []
    for seq, message in entries:
        if text := text_of(message):
            seqs.append(seq)
            roles.append(_role(message))
            texts.append(text)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            seqs.append(seq)
            roles.append("call")
            texts.append(f"{function['name']} {clip(function['arguments'], MOST_CHARS['call'])}")
    limits = _limits(roles, texts, share)
    clipped = [clip(text, limits[role]) for role, text in zip(roles, texts, strict=True)]
    return list(map(Excerpt, seqs, roles, _redacted(roles, clipped)))


def _role(message: ChatMessage) -> str:
    """Return the message's role; what other programs invent (developer) counts as system."""
    role = message["role"]
    return role if role in ROOM_CHARS else "system"


def _limits(roles: Sequence[str], texts: Sequence[str], share: float) -> dict[str, int]:
    """Return for each role the length at which its texts are clipped."""
    sizes: dict[str, list[int]] = {role: [] for role in ROOM_CHARS}
    for role, text in zip(roles, texts, strict=True):
        sizes[role].append(len(text))
    people = share * min(1.0, MANY_TEXTS / max(1, len(texts)))
    limits = {}
    for role, room in ROOM_CHARS.items():
        most = MOST_CHARS.get(role)
        level = _level(sizes[role], int(room * (share if most else people)))
        # At least a few words of each text, however many there are.
        limits[role] = max(LEAST_CHARS, min(level, most or level))
    return limits


def _level(sizes: list[int], room: int) -> int:
    """Return the length at which texts are clipped so that all together take at most `room`."""
    sizes.sort()
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return sizes[-1] if sizes else 0


def clip(text: str, limit: int) -> str:
    """Return a text, or its head and tail where it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} … {text[len(text) - limit + head :]}"


def _redacted(roles: Sequence[str], texts: list[str]) -> list[str]:
    """Return the texts with secrets masked: here the words around them still tell what they are."""
    return [
        masked_assignments(text) if role == "user" and _tells(text) else text
        for role, text in zip(roles, Redactor().texts(texts), strict=True)
    ]


def _tells(text: str) -> bool:
    """Tell quickly whether a person may have written a password or a key."""
    lower = text.lower()
    return any(name in lower for name in ("pass", "secret", "key", "token"))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Terms by their lower case, those that are worth most for what they cost first.

    Attributes:
        spellings: As they were written; lower case where they occur so.
        places: Seq of the first message that they stand in.
        worth: Regardless of what they cost.
        counts: How many messages they stand in.
    """

    spellings: dict[str, str]
    places: dict[str, int]
    worth: dict[str, float]
    counts: dict[str, int]

    def without(self, known: Set[str]) -> "Vocabulary":
        """Return it without these terms, given in lower case."""
        if not known:
            return self
        kept = {key: text for key, text in self.spellings.items() if key not in known}
        return replace(self, spellings=kept)


def words_of(text: str) -> set[str]:
    """Return the distinct terms of a text in lower case."""
    return {term for word in set(_WORD.findall(text.lower())) for term in split(word)}


def rank(
    pieces: Sequence[Excerpt],
    *,
    most: int,
    messages: int = 0,
    senior: int = 0,
    focus: Set[str] = frozenset(),
) -> Vocabulary:
    """Return the terms of pieces by worth for what they cost, best first.

    A word is worth the more the more messages it stands in, up to where it is common, and the
    shorter these messages are.

    Args:
        pieces: What was read, in order.
        most: How many words are looked at closely.
        messages: How many they come from; 0 for as many as the last seq tells.
        senior: Messages up to this seq are worth more.
        focus: Terms in lower case; messages that hold one are worth more.
    """
    # Words are counted by powers of two of their weight: a float for each word would take longer.
    classes: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
    places: dict[bytes, int] = {}
    for seq, role, text in reversed(pieces):
        # A dict, for its order: that of a set of bytes differs from process to process.
        words = dict.fromkeys(_raw(text), seq)
        weight = WEIGHTS[role] / (len(words) + 1) ** LENGTH_POWER
        if seq <= senior:
            weight *= SENIOR
        if focus and not focus.isdisjoint(words_of(text)):
            weight *= FOCUS
        classes[round(math.log2(weight))].update(words.keys())
        places.update(words)
    worth, counts = _sums(classes)
    best = sorted(worth, key=worth.__getitem__, reverse=True)[:most]
    terms = _merged(best, worth, counts, places)
    messages = messages or (pieces[-1].seq if pieces else 0)
    return _ordered(terms, max(4, messages // 40))


def _raw(text: str) -> list[bytes]:
    """Return the words of a text, some with a punctuation mark at an end, at 50 MB/s.

    Of the distinct ones only those that may be chosen are looked at more closely.
    """
    # Bytes: their `translate` is a table look-up, far faster than a pattern on text.
    spaced = text.encode("utf-8", "replace").translate(_SEPARATORS)
    return spaced.replace(b". ", b" ").replace(b": ", b" ").split()


def _sums(classes: Mapping[int, Counter[bytes]]) -> tuple[dict[bytes, float], Counter[bytes]]:
    """Return the worth and the frequency of each word; they were counted by class of weight."""
    worth: dict[bytes, float] = {}
    counts: Counter[bytes] = Counter()
    known = worth.get
    for exponent in sorted(classes):
        weight = 2.0**exponent
        counted = classes[exponent]
        for word, count in counted.items():
            worth[word] = known(word, 0.0) + weight * count
        counts.update(counted)
    for word in worth:
        if word[:1].isdigit():
            worth[word] *= DIGITS
    return worth, counts


class _Merged(NamedTuple):
    """By the lower case of each term: spelling, place, worth, frequency."""

    spellings: dict[str, str]
    places: dict[str, int]
    worth: dict[str, float]
    counts: dict[str, int]


def _merged(
    best: Iterable[bytes],
    worth: Mapping[bytes, float],
    counts: Mapping[bytes, int],
    places: Mapping[bytes, int],
) -> _Merged:
    """Return the terms of words; what differs in case or punctuation is one term."""
    merged = _Merged({}, {}, {}, {})
    spellings, seqs, values, totals = merged
    for raw in best:
        word = raw.decode("utf-8", "replace")
        for text in (word,) if raw.isalnum() else split(word):
            key = text.lower()
            if key in values:
                values[key] += worth[raw]
                totals[key] += counts[raw]
                seqs[key] = min(seqs[key], places[raw])
                # Lower case sorts last: a word is a name only where it never has lower case.
                spellings[key] = max(spellings[key], text)
            else:
                spellings[key], seqs[key] = text, places[raw]
                values[key], totals[key] = worth[raw], counts[raw]
    return merged


def _ordered(merged: _Merged, limit: int) -> Vocabulary:
    """Return the terms in at most `limit` messages, those worth most for their cost first."""
    spellings, places, worth, counts = merged
    density: dict[str, float] = {}
    for key, text in spellings.items():
        # What stands in so many messages tells none of them apart.
        if counts[key] > limit:
            continue
        if text == key and key.isascii() and key.isalpha():
            if 1 < len(key) <= MAX_TERM_CHARS:
                density[key] = worth[key] / (0.35 * len(key) + 0.61)
        elif telling(key):
            if text != key:
                worth[key] *= CAPITALS
            elif key[0].isalpha() and _DIGIT.search(key):
                worth[key] *= DIGITS
            density[key] = worth[key] / _tokens(text, key)
    order = sorted(density, key=density.__getitem__, reverse=True)
    return Vocabulary({key: spellings[key] for key in order}, places, worth, counts)


def telling(key: str) -> bool:
    """Tell whether a term may stand in an index: no single letters, encoded data or hashes."""
    size = len(key)
    if size > 12:
        return size <= MAX_TERM_CHARS and not _GARBAGE.fullmatch(key)
    return size > 1 or key.isdigit()


def _tokens(text: str, key: str) -> float:
    """Return about how many tokens a term and its separator take.

    By figures like those of agent/tokens/rough.py, but without looking at bytes.
    """
    size = len(text)
    if not text.isascii():
        return 0.8 * size + 0.61
    if text.isalpha():
        tokens = 0.35 * size + 0.61
    else:
        tokens = (0.66 if text.isdigit() else 0.47) * size + 0.61
    return tokens if text == key else tokens + 0.69 * sum(map(str.isupper, text))


def split(word: str) -> Sequence[str]:
    """Return the terms of a word: names with digits, files and addresses stay whole."""
    word = word.strip(_EDGES)
    if word.isascii() and (word.isidentifier() or word.isdigit()):
        return (word,)
    if word[-2:] in {"'s", "\u2019s"}:
        word = word[:-2]
    if _UNSPACED.search(word):
        return _RUN.findall(word)
    if _DIGIT.search(word) or "@" in word or _FILE.fullmatch(word):
        return _WORD.findall(word)
    return _PART.findall(word)


def most_telling(found: Vocabulary, count: int) -> list[str]:
    """Return the terms that say most, whatever they cost: names, numbers, what is rare."""
    says = {
        key: found.worth[key] / found.counts[key] ** 0.7 * (NAMED if _named(text) else 1.0)
        for key, text in islice(found.spellings.items(), 6 * count)
    }
    best = sorted(says, key=says.__getitem__, reverse=True)[:count]
    return [found.spellings[key] for key in best]


def _named(text: str) -> bool:
    return not text.islower() or _DIGIT.search(text) is not None


def parse_index(text: str) -> Index:
    """Return the lines of the index in a summary, as (seq, terms)."""
    return [(int(seq), terms.split()) for seq, terms in _LINE.findall(text)]


def index_text(lines: Index) -> str:
    """Return the lines as they stand in a summary."""
    return "\n".join([f"#{seq}: {' '.join(terms)}" for seq, terms in lines])


def shortened(index: Index, share: float) -> Index:
    """Return the index with the first terms of each line, about that share of them."""
    lines = [(seq, line[: int(len(line) * share)]) for seq, line in index]
    return [(seq, line) for seq, line in lines if line]


def fitting(terms: Sequence[str], room_tokens: int) -> Sequence[str]:
    """Return the longest beginning of terms whose index takes at most so many tokens, nearly."""
    count = min(len(terms), room_tokens // 3)
    for _ in range(3):
        taken = estimate_tokens(" ".join(terms[:count])) + LINE_TOKENS * -(-count // LINE_TERMS)
        if taken <= room_tokens and count == len(terms):
            break
        count = min(len(terms), int(count * room_tokens / max(1, taken)))
    return terms[:count]


def lay_out(terms: Iterable[str], places: Mapping[str, int]) -> Index:
    """Return terms as index lines in order of place; in a line the order is kept."""
    # Terms come most telling first, and stand so within a line.
    ranks = {term: n for n, term in enumerate(terms)}
    by_place = sorted(ranks, key=lambda term: places[term.lower()])
    lines: Index = []
    for start in range(0, len(by_place), LINE_TERMS):
        group = by_place[start : start + LINE_TERMS]
        lines.append((places[group[0].lower()], sorted(group, key=ranks.__getitem__)))
    return lines
