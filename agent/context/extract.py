"""The extractor: writes notes of messages that leave the view, in any language, without a model.

The notes are whole sentences of the originals, in order, one line per message and speaker. People's
sentences come first: the most informative sentence of each message, then the second of each, and so
on. The assistant and its tools get at least a third of the room. A sentence is informative if its
words are rare in this conversation. The extractor draws no conclusions.

The next compaction parses the notes and selects again among old and new sentences. A model's
summary of earlier messages stays in front of the notes.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import orjson

from agent.context_engine import Days
from agent.messages import ChatMessage, text_of
from agent.safety.redaction import Redactor, masked_assignments
from agent.tokens import estimate_tokens
from agent.view.view import Entry

GAP = "…"
INTRODUCTION = (
    "Notes taken without a model: sentences as they were written, each line with its message's"
    f" number and speaker; {GAP} stands for a new line or for what is left out."
)
PERSONS_SHARE = 2 / 3
"""Share of the room for people's sentences first; then come the others', then more of people's."""
EARLIER_SHARE = 0.5
"""Largest share of the room for a model's earlier summary."""
AGAIN = 0.65
"""Weight of each further sentence of a message, relative to the one before it."""
COST_POWER = 0.75
"""Exponent of a sentence's length in its score; at 1 only the score per character would count."""
FOCUS = 4.0
"""Score factor of a sentence that contains a word of the focus."""
LINE_TOKENS, LINE_CHARS = 8, 20
"""Size of a line's number and speaker."""
MAX_CHARS = 400
"""A longer sentence is pasted text, and is cut."""
MOST_CHARS = {"user": 40_000, "assistant": 40_000, "tool": 1_500}
"""Of a longer message only the start and the end are read."""
WRAPPED_CHARS = 50
"""A line of at least this length may have been wrapped by a mail client."""
KEY_SENTENCES = 60

_LINE = re.compile(r"#(\d+) ([^:\n]{1,80}): (.*)")
_DAY = re.compile(r"\[(\d{4}-\d{2}-\d{2})\]")
_SPEAKER = re.compile(r"([^\s:][^:\n]{0,40}): (?=\S)")
_MARKS = re.compile(r"(?:[-*+•>|]\s+|#{1,6}\s+)*")
# Sentence ends and closing marks after them; the second set for scripts without spaces.
_ENDS, _WIDE_ENDS = ".!?\u2026\u061f\u06d4\u0964\u0965", "\u3002\uff01\uff1f\uff61"
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]*_`\u300d\u300f\uff09\u3011"
_END = re.compile(rf"[{_ENDS}]+[{_CLOSERS}]*(?:\s+|$)|[{_WIDE_ENDS}]+[{_CLOSERS}]*\s*")
_ENDED = re.compile(rf"[{_ENDS}{_WIDE_ENDS}:;\uff1a\uff1b][{_CLOSERS}]*$")
# "Dr.", "J.", "No. 5", "z.B.", "3. Mai". Joining two sentences is better than splitting one.
_SHORT_FORM = re.compile(r"(?:^|[\s(])(?:[^\W\d_a-z]\w?|\d{1,2}|(?:\w{1,2}\.)+\w{1,2})\.$")
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SPACELESS}]+|[^\W_{_SPACELESS}]+")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")


class Sentence(NamedTuple):
    """A sentence and its place in its message.

    `who` is "user", a name in a group, "assistant", "result", or "called" and the tool's name.
    """

    seq: int
    who: str
    place: int
    text: str

    @property
    def is_persons(self) -> bool:
        """Whether a person wrote it."""
        return self.who not in {"assistant", "result"} and not self.who.startswith("called ")


@dataclass(frozen=True, slots=True)
class Extract:
    """Notes, and the share of people's most informative sentences that they contain."""

    text: str
    retained_share: float


def extract(
    entries: Sequence[Entry],
    previous: str,
    budget_tokens: int,
    *,
    focus: str | None = None,
    days: Days = (),
) -> Extract:
    """Return notes of the messages that leave the view, and of `previous` summaries of any kind.

    Equal arguments give equal text, in any process.

    Args:
        entries: The originals that leave the view now, ordered by seq.
        budget_tokens: Most tokens of the text, by `estimate_tokens` without a model.
    """
    earlier, known, known_days = _parsed(Redactor().text(previous))
    earlier = shortened(earlier, int(budget_tokens * EARLIER_SHARE))
    # Messages passed as a list are numbered by position: after a compaction from 1 again.
    shift = max(0, known[-1].seq + 1 - entries[0].seq) if known and entries else 0
    fresh = [each._replace(seq=each.seq + shift) for each in read_sentences(entries)]
    days = [*known_days, *((seq + shift, day) for seq, day in days)]
    ranked = _ranked([*known, *fresh], focus)
    chosen = _chosen(ranked, budget_tokens - estimate_tokens(_text(earlier, (), ())))
    while estimate_tokens(text := _text(earlier, chosen, days)) > budget_tokens and chosen:
        del chosen[-1 - len(chosen) // 50 :]
    while (tokens := estimate_tokens(text)) > budget_tokens:
        text = text[: len(text) * budget_tokens // tokens - 1]
    telling = [each.text for each in ranked if each.is_persons][:KEY_SENTENCES]
    return Extract(text, retained_share(telling, text))


def key_sentences(
    entries: Sequence[Entry], previous: str = "", focus: str | None = None
) -> list[str]:
    """Return people's most informative sentences, best first."""
    _, known, _ = _parsed(Redactor().text(previous))
    ranked = _ranked([*known, *read_sentences(entries)], focus)
    return [each.text for each in ranked if each.is_persons][:KEY_SENTENCES]


def retained_share(sentences: Sequence[str], text: str) -> float:
    """Return the share of sentences with at least half of their words in `text`; 1.0 if empty."""
    known = _words(text)
    held = sum(2 * len(words & known) >= len(words) for words in map(_words, sentences))
    return held / len(sentences) if sentences else 1.0


def sentences(text: str) -> list[str]:
    """Split a text into sentences; each line of a list, a table or code is at least one."""
    found: list[str] = []
    for line in _lines(text):
        start = 0
        for end in _END.finditer(line):
            before, after = line[start : end.end()], line[end.end() :]
            is_lower = after[:1].islower() and not before[:1].islower()
            goes_on = is_lower or _SHORT_FORM.search(before.rstrip()) is not None
            if not (before[-1].isspace() and goes_on):
                found += _pieces(before)
                start = end.end()
        found += _pieces(line[start:])
    return [each for each in found if any(map(str.isalnum, each))]


def _lines(text: str) -> Iterator[str]:
    """Yield lines without list marks; join lines that a mail client wrapped."""
    line = ""
    for raw in text.splitlines():
        if len(line) >= WRAPPED_CHARS and raw[:1].islower() and not _ENDED.search(line):
            line += f" {raw.strip()}"
        else:
            yield line
            line = _MARKS.sub("", raw.strip(), count=1)
    yield line


def _pieces(sentence: str) -> Iterator[str]:
    sentence = sentence.strip()
    while len(sentence) > MAX_CHARS:
        comma, space = (sentence.rfind(mark, 0, MAX_CHARS) for mark in (", ", " "))
        at = (comma if comma > MAX_CHARS // 2 else space) + 1 or MAX_CHARS
        yield sentence[:at].strip()
        sentence = sentence[at:].strip()
    yield sentence


def read_sentences(entries: Iterable[Entry]) -> list[Sentence]:
    """Return the sentences of messages in order, with secrets masked."""
    told = [each for each in entries if not each.message.get("synthetic")]
    redactor = Redactor()
    pairs: list[tuple[Entry, str]] = []
    for each in told:
        text, most = text_of(each.message), MOST_CHARS.get(each.message["role"], 0)
        if len(text) > most:
            text = f"{text[: most // 2]}\n{text[len(text) - most // 2 :]}"
        pairs.append((each, redactor.text(text)))
    names = _names(text for entry, text in pairs if entry.message["role"] == "user")
    found: list[Sentence] = []
    for (seq, message), text in pairs:
        if message["role"] == "user":
            found += _of_people(seq, masked_assignments(text), names)
        else:
            who = "result" if message["role"] == "tool" else "assistant"
            found += [Sentence(seq, who, n, each) for n, each in enumerate(sentences(text))]
        found += _calls(seq, message)
    return found


def _names(texts: Iterable[str]) -> frozenset[str]:
    """Find the names that a group's messages begin with; empty if only one person writes."""
    begun = [found[1] if (found := _SPEAKER.match(text)) else "" for text in texts]
    counts = Counter(begun)
    names = frozenset(name for name, count in counts.items() if name and count > 1)
    is_group = len(names) > 1 and sum(counts[name] for name in names) > len(begun) / 2
    return names if is_group else frozenset()


def _of_people(seq: int, text: str, names: frozenset[str]) -> Iterator[Sentence]:
    who, place = "user", 0
    for line in text.splitlines() if names else [text]:
        words = line
        if (found := _SPEAKER.match(line)) and found[1] in names:
            # A person may have the name of one of our own speaker labels.
            is_free = Sentence(0, found[1], 0, "").is_persons
            who, words = found[1] if is_free else f"@{found[1]}", line[found.end() :]
        for each in sentences(words):
            yield Sentence(seq, who, place, each)
            place += 1


def _calls(seq: int, message: ChatMessage) -> Iterator[Sentence]:
    for place, call in enumerate(message.get("tool_calls") or ()):
        name = " ".join(call["function"]["name"].replace(":", " ").split())[:60]
        if told := _short_values(call["function"]["arguments"]):
            yield Sentence(seq, f"called {name}", place, Redactor().text(told))


def _short_values(arguments: str) -> str:
    """Join the short values of a call's arguments: long ones are texts that the call writes."""
    try:
        given: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    values = given.values() if isinstance(given, dict) else ()
    texts = [" ".join(str(each).split()) for each in values if isinstance(each, str | int | float)]
    return " ".join(each for each in texts if len(each) <= MAX_CHARS // 2)[:MAX_CHARS]


def _words(text: str) -> set[str]:
    """Return the case-folded words of a text; character pairs in scripts without spaces."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if len(word) > 1 and _IS_SPACELESS.match(word):
            found.update(word[n : n + 2] for n in range(len(word) - 1))
        else:
            found.add(word)
    return found


def _ranked(said: Sequence[Sentence], focus: str | None) -> list[Sentence]:
    """Sort sentences by score; further sentences of the same message count less."""
    bags = [_words(each.text) for each in said]
    messages = [
        list(group)
        for _, group in groupby(range(len(said)), key=lambda n: (said[n].seq, said[n].who))
    ]
    counts = Counter(word for places in messages for word in {w for n in places for w in bags[n]})
    # Integers: the sum of floats depends on a set's order, and so on the process.
    rarity = {
        word: round(100 * math.log((len(messages) + 1) / count)) for word, count in counts.items()
    }
    wanted = _words(focus or "")
    worth: dict[int, float] = {}
    for n, bag in enumerate(bags):
        length = len(said[n].text) + LINE_CHARS
        factor = 1.0 if wanted.isdisjoint(bag) else FOCUS
        worth[n] = factor * sum(map(rarity.__getitem__, bag)) / length**COST_POWER
    for places in messages:
        for rank, n in enumerate(sorted(places, key=lambda n: -worth[n])):
            worth[n] *= AGAIN**rank
    return [said[n] for n in sorted(worth, key=lambda n: (-worth[n], n))]


def _chosen(ranked: Sequence[Sentence], room: float) -> list[Sentence]:
    persons = [each for each in ranked if each.is_persons]
    others = [each for each in ranked if not each.is_persons]
    chosen: list[Sentence] = []
    left = room - _fill(chosen, persons, room * PERSONS_SHARE)
    left -= _fill(chosen, others, left)
    _fill(chosen, persons, left)
    return chosen


def _fill(chosen: list[Sentence], candidates: Iterable[Sentence], room: float) -> float:
    """Add new candidates that fit; return their token count."""
    lines = {each[:2] for each in chosen}
    texts = {each.text for each in chosen}
    taken = 0.0
    for each in candidates:
        cost = estimate_tokens(each.text) + (2 if each[:2] in lines else LINE_TOKENS)
        if taken + cost <= room and each.text not in texts:
            taken += cost
            lines.add(each[:2])
            texts.add(each.text)
            chosen.append(each)
    return taken


def _text(earlier: str, chosen: Iterable[Sentence], days: Days) -> str:
    lines, day = [f"{earlier}\n", INTRODUCTION] if earlier else [INTRODUCTION], ""
    for (seq, who), group in groupby(sorted(chosen), key=lambda each: each[:2]):
        if (today := _day_of(seq, days)) != day:
            day = today
            lines.append(f"[{day}]")
        lines.append(f"#{seq} {who}: {_joined([*group])}")
    return "\n".join(lines)


def _joined(said: Sequence[Sentence]) -> str:
    text = " ".join(said[0].text.split())
    for before, each in pairwise(said):
        follows = each.place == before.place + 1 and _ENDED.search(before.text)
        text += f"{' ' if follows else f' {GAP} '}{' '.join(each.text.split())}"
    return text


def _day_of(seq: int, days: Days) -> str:
    place = bisect_right(days, seq, key=lambda day: day[0])
    return days[place - 1][1] if place else ""


def _parsed(text: str) -> tuple[str, list[Sentence], list[tuple[int, str]]]:
    """Split summaries into a model's text, the sentences of notes, and the notes' days."""
    earlier, *notes = f"\n{text}\n".split(f"\n{INTRODUCTION}\n")
    written, said, days, day = [earlier], list[Sentence](), list[tuple[int, str]](), ""
    for line in "\n".join(notes).splitlines():
        if found := _LINE.fullmatch(line):
            seq, who, told = int(found[1]), found[2], found[3]
            if day and day != _day_of(seq, days):
                days.append((seq, day))
            # A gap occupies a position, so that sentences stay separate.
            pieces = [[*sentences(piece), ""] for piece in told.split(f" {GAP} ")]
            numbered = enumerate(each for piece in pieces for each in piece)
            said += [Sentence(seq, who, place, each) for place, each in numbered if each]
        elif found := _DAY.fullmatch(line):
            day = found[1]
        else:
            written.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(written)).strip(), said, days


def shortened(text: str, most_tokens: int) -> str:
    """Cut a summary to `most_tokens`, keeping at least a sentence of each section.

    The longest section is cut first. A repeated heading continues its section.
    """
    named, heading = dict[str, list[str]](), ""
    for line in text.splitlines():
        heading = line if line.startswith("#") else heading
        if line != heading or line not in named:
            named.setdefault(heading, []).append(line)
    sections = [*named.values()]
    sizes = [_size(each) for each in sections]
    left = {n for n, size in enumerate(sizes) if size}
    while sum(sizes) > most_tokens and left:
        longest = max(left, key=lambda n: (sizes[n], n))
        shorter = _cut(sections[longest])
        if shorter == sections[longest]:
            left.remove(longest)
        sections[longest], sizes[longest] = shorter, _size(shorter)
    return "\n".join(line for section in sections for line in section)


def _size(section: Sequence[str]) -> int:
    return estimate_tokens("\n".join(section)) + bool(section)


def _cut(section: Sequence[str]) -> list[str]:
    """Cut the last sentences of a line that dominates the section, or else its last lines.

    The list of finished items is chronological: its first lines are cut.
    """
    has_heading = section[0].startswith("#")
    heading, body = section[:has_heading], [each for each in section[has_heading:] if each != GAP]
    longest = max(range(len(body)), key=lambda n: len(body[n]), default=0)
    parts = sentences(body[longest]) if body else []
    if len(parts) > 1 and 2 * len(body[longest]) >= sum(map(len, body)):
        body[longest] = f"{' '.join(parts[: -1 - len(parts) // 50])} {GAP}"
        return [*heading, *body]
    if (count := min(1 + len(body) // 50, len(body) - 1)) <= 0:
        return [*section]
    is_log = has_heading and "done" in section[0].casefold()
    return [*heading, GAP, *body[count:]] if is_log else [*heading, *body[:-count], GAP]
