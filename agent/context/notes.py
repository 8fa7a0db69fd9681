"""The text of an extract: what was decided, values that changed, notes by message; how it is read.

Decisions stand together, each where nothing else of its message is. The other notes are laid out
in parts, one for each compaction, so that what was chosen then is known later. A line begins with
the number of its message; what of the message stood in other lines is indented below it. Nothing
that anybody wrote can begin a line: it cannot pass for a heading.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from operator import attrgetter

from agent.context.reading import Statement
from agent.context.sentences import GAP, JOINT, units
from agent.context.statements import (
    CHANGE_WORDS,
    Value,
    content_words,
    is_decision,
    is_question,
    looks_like_code,
    quick_words,
    speaks_of_change,
    speaks_of_self,
    values_of,
    words_of,
)
from agent.context_engine import Days

INTRODUCTION = (
    f"Notes taken without a model: whole sentences as they were written, by message. {GAP} stands"
    " for what is left out; lines without a name are the user's."
)
CHANGED = "## Changed"
DECIDED = "## Decided"
EARLIER = "## Earlier summary"
FURTHER = "Further words: "
_PART = re.compile(r"^## Messages (\d+) to (\d+)(?:, (\S+)(?: to (\S+))?)?$")
_LINE = re.compile(r"^#(\d+) (?:\(([^()\n]{1,60})\) )?(.*)$")
_DAY = re.compile(r"^\[(\d{4}-\d{2}-\d{2})\]$")
_DECIDED_LINE = re.compile(r"^#(\d+) (?:\(([^()\n]{1,60})\) )?(.*?)(?: \[\d{4}-\d{2}-\d{2}\])?$")
_OLD = "Extracted without a model. Under Terms, #N: begins a stretch"
_OLD_LINE = re.compile(r"^- #(\d+) (.+)$", re.MULTILINE)

_ENDS = frozenset(".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964\u0965")
_CLOSERS = "\"')\u201d\u00bb"

RARE_STATEMENTS = 6
"""A word in more statements with numbers tells nothing of what they are about."""
LEAST_SHARED = 2
ALIKE_SHARE = 0.6
"""Two statements are about the same thing if they share so many rare words, and so much of the
shorter one's; where the later one speaks of a change the number of words is enough."""
MOST_SUBJECT_WORDS = 3
_APART = 1_000_000
"""The place of a decision in its message, which is not known when it is read back: behind all."""
_EVENTS = frozenset({"date", "time"})
_POINT = re.compile(r"\s*\d+[.)] ")
# Up to its comma, which is none of "$4,000".
_CONDITION = re.compile(
    r"^\W*(?:if|wenn|falls|si)\b(?:[^,;\n]|[,;](?=\d))*[,;](?!\d)", re.IGNORECASE
)

Told = tuple[Statement, Set[bytes]]
"""A statement of a person with a number in it, and its content words."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The notes of the messages that left the view at one compaction.

    Attributes:
        words: Further words by the message that they stand in.
    """

    first_seq: int
    last_seq: int
    said: Sequence[Statement] = ()
    words: Sequence[tuple[int, str]] = ()
    days: Days = ()


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """A value that is no longer what it was.

    Attributes:
        subject: Words that both statements have.
        seq: Of the message that tells the new value.
        day: Of that message; "" where it is not known.
    """

    subject: str
    before: str
    before_seq: int
    now: str
    seq: int
    day: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """Parts in order, changed values, and what a model wrote before."""

    parts: Sequence[Stretch] = ()
    changes: Sequence[ChangedValue] = ()
    earlier: str = ""


def text_of_notes(notes: Notes) -> str:
    """Return notes as text; see the module."""
    blocks = [INTRODUCTION]
    if notes.changes:
        blocks += [CHANGED, *map(change_line, notes.changes)]
    if decided := [line for part in notes.parts for line in _decided(part)]:
        blocks += [DECIDED, *decided]
    for part in notes.parts:
        if not (part.said or part.words):
            continue
        blocks.append(_heading(part))
        blocks += _lines(part)
        if part.words:
            blocks.append(FURTHER + _further(part.words))
    if notes.earlier:
        blocks += [EARLIER, notes.earlier]
    return "\n".join(blocks)


def _heading(part: Stretch) -> str:
    days = [part.days[0][1], part.days[-1][1]] if part.days else []
    dated = f", {' to '.join(dict.fromkeys(days))}" if days else ""
    return f"## Messages {part.first_seq} to {part.last_seq}{dated}"


def _is_decided(said: Statement) -> bool:
    """Whether somebody says what was decided; an assistant often says what might be."""
    if said.is_tools or not is_decision(said.text):
        return False
    return said.is_persons or speaks_of_self(said.text, quick_words(said.text))


def _decided(part: Stretch) -> Iterable[str]:
    """Yield the decisions of a part, each with its day where that is known."""
    for each in part.said:
        if _is_decided(each):
            day = day_of(each.seq, part.days)
            yield line_of(each.seq, each.who, [each]) + (f" [{day}]" if day else "")


def _lines(part: Stretch) -> Iterable[str]:
    day = part.days[0][1] if part.days else ""
    others = (each for each in part.said if not _is_decided(each))
    for seq, message in groupby(others, key=attrgetter("seq")):
        if (today := day_of(seq, part.days)) != day:
            day = today
            yield f"[{day}]"
        for who, said in groupby(message, key=attrgetter("who")):
            yield line_of(seq, who, list(said))


def line_of(seq: int, who: str, said: Sequence[Statement]) -> str:
    """Return the line of some statements of one message by one person.

    What has no number is from a summary that a model wrote.
    """
    first = _flat(said[0].text)
    # Nobody's own words may look like a name that we put there.
    name = who or ("user" if first.startswith("(") else "")
    number = f"#{seq}" if seq else "-"
    begin = f"{number} ({name}) " if name else f"{number} "
    parts, begun = [begin, first], said[0]
    for before, each in pairwise(said):
        between = _between(before, each, begun.text[0])
        begun = each if GAP in between else begun
        parts += [between, _flat(each.text)]
    return "".join(parts)


def _between(before: Statement, each: Statement, first: str) -> str:
    """Return what stands between two statements of a message: a space, the end of a line, a gap.

    Args:
        first: The first letter of what stands behind the last gap. A small one: sentences begin
            so there. A bar: it is a row of a table, in which no sentences are looked for.
    """
    if each.place != before.place + 1:
        return f" {GAP} "
    begins = not each.text[0].isdigit() and (first.islower() or not each.text[0].islower())
    ends = first != "|" and begins and before.text.rstrip(_CLOSERS)[-1:] in _ENDS
    return " " if ends else f" {JOINT} "


def _flat(text: str) -> str:
    return " ".join(text.split())


def _further(words: Sequence[tuple[int, str]]) -> str:
    groups = groupby(words, key=lambda pair: pair[0])
    return "; ".join(f"#{seq} {', '.join(word for _, word in pairs)}" for seq, pairs in groups)


def change_line(change: ChangedValue) -> str:
    """Return the line of a changed value."""
    where = f"#{change.seq}, {change.day}" if change.day else f"#{change.seq}"
    told = f"{change.before} (#{change.before_seq}) \u2192 {change.now} ({where})"
    return f"- {change.subject}: {told}"


_CHANGE = re.compile(r"^- (.+): (.+) \(#(\d+)\) \u2192 (.+) \(#(\d+)(?:, (\d{4}-\d{2}-\d{2}))?\)$")


def day_of(seq: int, days: Days) -> str:
    """Return the day of a message; "" where it is not known."""
    place = bisect_right(days, seq, key=lambda day: day[0])
    return days[place - 1][1] if place else ""


@dataclass(slots=True)
class _NotesReader:
    """Takes a text apart line by line."""

    parts: list[Stretch] = field(default_factory=list)
    changes: list[ChangedValue] = field(default_factory=list)
    decided: list[Statement] = field(default_factory=list)
    part: Stretch | None = None
    said: list[Statement] = field(default_factory=list)
    words: list[tuple[int, str]] = field(default_factory=list)
    days: list[tuple[int, str]] = field(default_factory=list)
    day: str = ""

    def take(self, line: str) -> None:
        if found := _PART.match(line):
            self.close()
            self.part = Stretch(int(found[1]), int(found[2]))
            self.day = found[3] or ""
            self.days = [(self.part.first_seq, self.day)] if self.day else []
        elif self.part is None:
            if found := _CHANGE.match(line):
                subject, before, before_seq, now, seq, day = found.groups()
                self.changes.append(
                    ChangedValue(subject, before, int(before_seq), now, int(seq), day or "")
                )
            elif found := _DECIDED_LINE.match(line):
                seq, who, text = found.groups()
                who = "" if who == "user" else who or ""
                self.decided.append(Statement(int(seq), who, _APART + len(self.decided), text))
        elif line.startswith(FURTHER):
            self.words += _words(line)
        elif found := _DAY.match(line):
            self.day = found[1]
        elif found := _LINE.match(line):
            self.line(int(found[1]), found[2] or "", found[3])

    def line(self, seq: int, who: str, text: str) -> None:
        if self.day and self.day != (self.days[-1][1] if self.days else ""):
            self.days.append((seq, self.day))
        self.said += _statements(seq, "" if who == "user" else who, text)

    def close(self) -> None:
        part = self.part
        if part is not None:
            here = [each for each in self.decided if part.first_seq <= each.seq <= part.last_seq]
            self.said = sorted([*self.said, *here])
        if part is not None and (self.said or self.words):
            self.parts.append(
                Stretch(
                    part.first_seq,
                    part.last_seq,
                    tuple(self.said),
                    tuple(self.words),
                    tuple(self.days),
                )
            )
        self.part, self.said, self.words, self.days = None, [], [], []


def _statements(seq: int, who: str, text: str) -> Iterable[Statement]:
    """Yield the sentences of a line; behind a gap a place is left out."""
    place = 0
    for piece in text.split(f" {GAP} "):
        for unit in units(piece):
            yield Statement(seq, who, place, unit.text)
            place += 1
        place += 1


def _words(line: str) -> Iterable[tuple[int, str]]:
    for group in line.removeprefix(FURTHER).split("; "):
        seq, _, words = group.partition(" ")
        if seq[1:].isdecimal():
            yield from ((int(seq[1:]), word) for word in words.split(", "))


def parsed(text: str) -> Notes:
    """Return the notes in a summary, whoever wrote it; what a model wrote is `earlier`."""
    if text.startswith(_OLD):
        return _parsed_old(text)
    before, *own = f"\n{text}\n".split(f"\n{INTRODUCTION}\n")
    reader, earlier = _NotesReader(), [before.strip()]
    for each in own:
        notes, _, told = each.partition(f"\n{EARLIER}\n")
        for line in notes.splitlines():
            reader.take(line)
        reader.close()
        reader.decided.clear()
        earlier.append(told.strip())
    return Notes(reader.parts, reader.changes, "\n\n".join(filter(None, earlier)))


def _parsed_old(text: str) -> Notes:
    """Return what an extract of a version before 0.6 told; its list of terms says nothing."""
    told, _, earlier = text.partition(f"\n{EARLIER}\n")
    said = sorted({
        (int(seq), line) for seq, line in _OLD_LINE.findall(told.partition("\n## Terms")[0])
    })
    statements = [Statement(seq, "", 0, line) for seq, line in said]
    parts = [Stretch(said[0][0], said[-1][0], statements)] if said else []
    return Notes(parts, (), earlier)


def changes_in(told: Sequence[Told], first_seq: int, days: Days) -> list[ChangedValue]:
    """Return what changed from `first_seq` on, in order.

    Args:
        told: In order.
        first_seq: Earlier statements only tell how things were.
        days: When the messages were written, where that is known.
    """
    counts = Counter(chain.from_iterable(words for _, words in told))
    subjects = [
        {each for each in words if counts[each] <= RARE_STATEMENTS and not each[:1].isdigit()}
        for words in (words - CHANGE_WORDS for _, words in told)
    ]
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    found: list[ChangedValue] = []
    for n, (said, _) in enumerate(told):
        if said.seq >= first_seq and (before := _before(subjects, places, n)) is not None:
            found += _changed(told[before][0], said, subjects[before] & subjects[n], days)
        for word in subjects[n]:
            places[word].append(n)
    return found


def _before(
    subjects: Sequence[Set[bytes]], places: Mapping[bytes, Sequence[int]], n: int
) -> int | None:
    """Return the earlier statement that shares most words, the newest of several; None for none."""
    shared = Counter(chain.from_iterable(places[word] for word in subjects[n] if word in places))
    best = max(shared.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return best[0] if best[1] >= LEAST_SHARED else None


def _changed(
    before: Statement, now: Statement, shared: Set[bytes], days: Days
) -> Iterable[ChangedValue]:
    least = min(len(quick_words(before.text)), len(quick_words(now.text)))
    are_alike = len(shared) >= ALIKE_SHARE * least / 2
    speaks_of_it = speaks_of_change(now.text)
    # What one message says in two like sentences is a list; who asks has changed nothing yet.
    if is_question(now.text) or not (speaks_of_it or (are_alike and before.seq != now.seq)):
        return
    # "If it costs more than $100, …" says nothing of what it costs.
    old, new = _told(before.text), _told(_CONDITION.sub("", now.text))
    said = {value.text for value in old} & {value.text for value in new}
    for one in new:
        other = next((each for each in reversed(old) if _may_replace(each, one)), None)
        if other is None or said & {one.text, other.text}:
            continue
        # Two meetings on two days are no change, unless somebody says so.
        if speaks_of_it or (are_alike and one.unit not in _EVENTS):
            subject = _subject(now.text, shared)
            # Two numbered lines of a program.
            if not looks_like_code(subject):
                yield ChangedValue(
                    subject, other.text, before.seq, one.text, now.seq, day_of(now.seq, days)
                )
            return


def _told(text: str) -> Sequence[Value]:
    """Return the values of a statement; the number of a point in a list is none."""
    found = values_of(text)
    return found[1:] if found and not found[0].unit and _POINT.match(text) else found


def _may_replace(old: Value, new: Value) -> bool:
    # "27 May" and "27 May 2024" is one day, "7334 for" and "7334 to" one number.
    words_in = words_of if old.unit in _EVENTS else content_words
    before, now = set(words_in(old.text)), set(words_in(new.text))
    return old.unit == new.unit and not (before <= now or now <= before)


def _subject(text: str, shared: Set[bytes]) -> str:
    """Return the shared words as a statement has them."""
    words = (word.strip(".,;:!?()[]\"'*_`\u201c\u201d") for word in text.split())
    named = [word for word in words if word and quick_words(word) & shared]
    return " ".join(named[:MOST_SUBJECT_WORDS])
