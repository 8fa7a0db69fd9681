"""What was said in messages, statement by statement: the material of an extract.

Of each message its sentences; of a call of a tool what it was called with; of a result how it
began, how it ended, and its errors. What came of a request is told apart from what else an
assistant says, and what a person pasted from what they say. Of very much text less is read of each
message. Secrets are masked here, where the words around them still tell what they are.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from agent.context.sentences import MAX_CHARS, Unit, units
from agent.context.statements import (
    has_error,
    is_courtesy,
    is_question,
    looks_like_code,
    quick_words,
    speaks_of_self,
    tells_outcome,
    without_function_words,
)
from agent.messages import text_of
from agent.safety.redaction import Redactor, masked_assignments
from agent.view.view import Entry

MOST_MESSAGES = {"user": 1_500, "assistant": 500, "tool": 200}
"""So many messages of a role are read, and of those that call tools: of more a sample, the newest
among them. A compaction in time has fewer."""
PEOPLE_CHARS = 200_000
TOOL_CHARS = 40_000
"""How much is read of all texts of users and of tools."""
ASSISTANT_CHARS = 70_000, 16_000
"""The same of the assistant: the first, less what people wrote; at least the second."""
MOST_LINE_CHARS = 800
MOST_CHARS = {"tool": 1_000}
"""How much is read of one text: a longer result is a listing."""
LEAST_CHARS = 200
RESULT_LINES = 3

ASSISTANT = "assistant"
OUTCOME = "outcome"
SO_FAR = "so far"
"""Who says what came of a request, and where somebody still works on it."""
PASTED = "pasted"
LAST_ANSWERS = 3
"""Where tools are used the outcome may stand in a text before the last one."""
OUTCOME_UNITS = 8
"""So many sentences are looked at; a longer answer without any tool is an explanation."""
OUTCOME_WORDS = 2
OUTCOME_CHARS = 250
LEAST_CHARS_WITHOUT = 30
"""A sentence without a word for success or failure is no outcome if it is shorter."""
PASTED_SHARE = 0.4
PASTED_UNITS = 3
"""A message of so many lines at least, so many of them pasted, is all pasted but its sentences."""
_SENTENCE_ENDS = frozenset(".!?\u2026\u3002\uff01\uff1f")
_CLOSERS = "*_`\"')\u201d\u00bb"
_INTENT = re.compile(
    r"(?:\w+, )?(?:let me|let's|let us|i'll|i will|i'm going|we'll|next|now |would you|please"
    r"|if |once |to [^,]+, i(?:'ll| will) |you (?:can|could|may) |before |after |feel free"
    r"|to proceed|wenn |falls |bitte |ich werde|si |je vais|voy a|por favor|se )",
    re.IGNORECASE,
)
"""Who begins so tells what will be done, or asks for it."""
_PROMPT = re.compile(r"(?:\S+@\S+[#$%>]|(?:[~/]\S*|bash\S*)?\$|[\u279c\u276f]) (?!\d)")
"""How the line of a shell begins: what it did stands in the lines behind it."""
_OUTPUT = re.compile(
    r"\[(?![xX]\])[^\]\s][^\]]*\]|\([A-Z][\w ]+: |\d{4}-\d\d-\d\d[T ]\d\d:"
    r"|\d\d:\d\d:\d\d|at \S+ \(|\w*(?:Error|Exception)\b|Traceback|\d+(?::(?!\d\d\b)|\|)"
    r"|diff --git|</?\w"
)
"""How lines of a shell, a log, a trace of calls, a numbered file or a page begin."""
_SPEAKER = re.compile(r"([^\s:][^:\n]{0,40}): (?=\S)")
_DIGIT = re.compile("[0-9]")
_LINE_ENDS = re.compile(r"\n(?![a-z])")
_SPOKEN_SHARE = 0.6
"""Where so many messages begin with the name of one of several people, a group talks."""
_NAMING = ("command", "cmd", "path", "file_path", "file", "url", "query", "pattern", "name")
"""Arguments that tell what a call is about, the most telling first."""


class Statement(NamedTuple):
    """A sentence of a message, or what a call or a result comes to.

    Attributes:
        who: "" for the user, else "assistant", the name of somebody in a group, what a tool did
            ("called NAME", "result of NAME"), or `OUTCOME`, `SO_FAR`, `PASTED`.
        place: In its message; statements of one message stand in this order.
    """

    seq: int
    who: str
    place: int
    text: str

    @property
    def is_persons(self) -> bool:
        """Whether a person said it."""
        return self.who != ASSISTANT and not (self.is_outcome or self.is_tools)

    @property
    def is_outcome(self) -> bool:
        """Whether an assistant tells what came of a request."""
        return self.who in {OUTCOME, SO_FAR}

    @property
    def is_tools(self) -> bool:
        """Whether it tells of a tool, here or where somebody pasted it from."""
        return self.who.startswith(("called ", "result of ", PASTED))


def read(entries: Sequence[Entry], *, share: float = 1.0) -> list[Statement]:
    """Return the statements of messages in order; of long ones those of both ends.

    Args:
        share: How much of the usual amount is read; of less than all of it nothing of tools.
    """
    most = {role: int(count * share) for role, count in MOST_MESSAGES.items()}
    if share < 1:
        most["tool"] = 0
    told = _sampled([entry for entry in entries if not _is_ours(entry)], most)
    texts = [text_of(entry.message) for entry in told]
    limits = _limits([entry.message["role"] for entry in told], texts, share)
    ends = [
        _ends(entry.message["role"], text, limits[entry.message["role"]])
        for entry, text in zip(told, texts, strict=True)
    ]
    masked = iter(_masked(told, ends))
    people = _people(
        entry.message["role"] == "user" and end[0] for entry, end in zip(told, ends, strict=True)
    )
    called = _called(told) if most["tool"] else {}
    names: dict[str, str] = {}
    found: list[Statement] = []
    work = _Work()
    for entry, end in zip(told, ends, strict=True):
        said = [next(masked) for _ in end]
        if entry.message["role"] == "user":
            work.end(found, OUTCOME)
        if entry.message["role"] == ASSISTANT:
            work.answers.append((len(found), _whole(said)))
        found += _of_message(entry, said, people, names)
        if calls := entry.message.get("tool_calls"):
            work.has_acted = True
            names = {call["id"]: call["function"]["name"] for call in calls}
            found += called.get(entry.seq, ())
    is_answered = (
        told and told[-1].message["role"] == ASSISTANT and not told[-1].message.get("tool_calls")
    )
    work.end(found, OUTCOME if is_answered else SO_FAR)
    return found


@dataclass(slots=True)
class _Work:
    """What an assistant said since it was last asked for something, and whether it used a tool.

    Attributes:
        answers: Its texts in units, with the place of the first one among the statements.
    """

    answers: list[tuple[int, list[Unit]]] = field(default_factory=list)
    has_acted: bool = False

    def end(self, found: list[Statement], who: str) -> None:
        """Name what came of it; begin anew."""
        for start, told in self._looked_at():
            if (place := _outcome(told, has_acted=self.has_acted)) is not None:
                found[start + place] = found[start + place]._replace(who=who)
                break
        self.answers.clear()
        self.has_acted = False

    def _looked_at(self) -> Iterator[tuple[int, list[Unit]]]:
        """Yield the last texts, the last one first, as far as they are looked at."""
        if self.has_acted:
            yield from self.answers[: -LAST_ANSWERS - 1 : -1]
        elif self.answers and len(self.answers[-1][1]) <= OUTCOME_UNITS:
            yield self.answers[-1]


def _outcome(told: Sequence[Unit], *, has_acted: bool) -> int | None:
    """Return the place of the sentence of an answer that tells what came of it; None for none.

    That is the last one with a word for success or failure. Where a tool was used and no sentence
    has one it is the last of some length.
    """
    last = None
    for place in range(len(told) - 1, max(-1, len(told) - 1 - OUTCOME_UNITS), -1):
        text, form = told[place]
        if form not in {"prose", "item"} or not _may_tell_outcome(text, has_acted=has_acted):
            continue
        if tells_outcome(text):
            return place
        if last is None and form == "prose" and len(text) >= LEAST_CHARS_WITHOUT:
            last = place
    return last if has_acted else None


def _may_tell_outcome(text: str, *, has_acted: bool) -> bool:
    """Whether a sentence tells something; without a tool only of whoever answers."""
    if len(text) > OUTCOME_CHARS or text.rstrip(_CLOSERS)[-1:] not in _SENTENCE_ENDS:
        return False
    if is_question(text) or _INTENT.match(text):
        return False
    words = quick_words(text)
    if len(without_function_words(words)) < OUTCOME_WORDS or is_courtesy(text, words):
        return False
    return has_acted or speaks_of_self(text, words)


def _is_ours(entry: Entry) -> bool:
    """Whether Parley itself wrote a message, as a request to go on."""
    return entry.message["role"] == "user" and entry.message.get("synthetic", False)


def _sampled(entries: Sequence[Entry], most: Mapping[str, int]) -> Sequence[Entry]:
    """Return what is read, in order; of a role with very many messages every n-th."""
    by_role: dict[str, list[Entry]] = {role: [] for role in most}
    for entry in entries:
        if entry.message["role"] in by_role:
            by_role[entry.message["role"]].append(entry)
    if all(len(each) <= most[role] for role, each in by_role.items()):
        return [entry for entry in entries if entry.message["role"] in by_role]
    kept = []
    for role, each in by_role.items():
        # Backwards, so that the newest one is always among them.
        kept += each[:: -max(1, -(-len(each) // most[role]))] if most[role] else []
    return sorted(kept, key=itemgetter(0))


def _limits(roles: Sequence[str], texts: Sequence[str], share: float) -> dict[str, int]:
    """Return for each role the length from which on only the ends of a text are read."""
    sizes: dict[str, list[int]] = {role: [] for role in MOST_MESSAGES}
    for role, text in zip(roles, texts, strict=True):
        sizes[role].append(len(text))
    most, least = ASSISTANT_CHARS
    assistant = max(least, most - sum(sizes["user"]))
    rooms = {"user": PEOPLE_CHARS, ASSISTANT: assistant, "tool": TOOL_CHARS}
    limits = {}
    for role, room in rooms.items():
        level = _level(sorted(sizes[role]), int(room * share))
        limits[role] = max(LEAST_CHARS, min(level, MOST_CHARS.get(role, level)))
    return limits


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the length at which texts are cut so that all together take at most `room`."""
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return share
        room -= size
    return sizes[-1] if sizes else 0


def _ends(role: str, text: str, limit: int) -> tuple[str, ...]:
    """Return a text, or what is read of one that is longer than the limit.

    Of an answer these are its first and its last line, and lines with numbers: they are what an
    assistant says that nobody could guess. Of others it is the beginning and the end.
    """
    if len(text) <= limit:
        return (text,)
    if role == ASSISTANT and (lines := _telling_lines(text, limit)):
        return ("\n".join(lines),)
    head = limit * 2 // 3
    return text[:head], text[len(text) - limit + head :]


def _telling_lines(text: str, limit: int) -> list[str]:
    """Return whole lines of a text in order, together not much longer than the limit."""
    # A small letter goes on with the sentence of the line before it.
    lines = [each for each in _LINE_ENDS.split(text) if each and len(each) <= MOST_LINE_CHARS]
    # What stands in front may be the number of a point in a list.
    numbered = [n for n, line in enumerate(lines) if _DIGIT.search(line, 3)]
    kept, size = set[int](), 0
    for n in dict.fromkeys((*range(min(1, len(lines))), len(lines) - 1, *numbered)):
        if size < limit and n >= 0:
            kept.add(n)
            size += len(lines[n])
    return [lines[n] for n in sorted(kept)]


def _masked(entries: Sequence[Entry], ends: Sequence[tuple[str, ...]]) -> list[str]:
    """Return all of the texts with secrets masked."""
    flat = [text for end in ends for text in end]
    roles = [entry.message["role"] for entry, end in zip(entries, ends, strict=True) for _ in end]
    return [
        masked_assignments(text) if role == "user" and _tells(text) else text
        for role, text in zip(roles, Redactor().texts(flat), strict=True)
    ]


def _tells(text: str) -> bool:
    """Tell quickly whether a person may have written a password or a key."""
    lower = text.lower()
    return any(name in lower for name in ("pass", "secret", "key", "token"))


def _of_message(
    entry: Entry, said: Sequence[str], people: frozenset[str], names: dict[str, str]
) -> Iterator[Statement]:
    seq, message = entry
    if message["role"] == "tool":
        name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
        yield from _of_result(seq, f"result of {name or 'a tool'}", said)
        return
    if people and message["role"] == "user":
        yield from _of_group(seq, said, people)
        return
    told = _whole(said)
    who = ASSISTANT if message["role"] == ASSISTANT else ""
    pasted = () if who else _pasted(told)
    for place, unit in enumerate(told):
        if place not in pasted:
            yield Statement(seq, who, place, unit.text)
        elif _PROMPT.match(unit.text) is None:
            yield Statement(seq, PASTED, place, unit.text)


def _pasted(told: Sequence[Unit]) -> Set[int]:
    """Return the places of what a person pasted among their words: code, tables, output of tools.

    Of a message that is rather output it is all but whole sentences, of another one what looks
    like it, and single lines within that.
    """
    if len(told) < PASTED_UNITS:
        return set()
    marked = {n for n, unit in enumerate(told) if _is_output(unit)}
    if len(marked) >= PASTED_SHARE * len(told):
        return marked | {n for n, unit in enumerate(told) if unit.text[-1] not in _SENTENCE_ENDS}
    return marked | {n + 1 for n in marked if n + 2 in marked}


def _is_output(unit: Unit) -> bool:
    if unit.form in {"code", "row"}:
        return True
    text = unit.text
    return any(each.match(text) for each in (_OUTPUT, _PROMPT)) or looks_like_code(text)


def _whole(said: Sequence[str]) -> list[Unit]:
    """Return the units of a text, or of its two ends without those that the cut may have torn."""
    if len(said) == 1:
        return units(said[0])
    head, tail = map(units, said)
    return head[:-1] + tail[1:]


def _of_group(seq: int, said: Sequence[str], people: frozenset[str]) -> Iterator[Statement]:
    """Yield what several people said in one message; each line names who did."""
    who, place = "", 0
    for line in (line for text in said for line in text.splitlines()):
        named = _SPEAKER.match(line)
        if named and named[1] in people:
            who, line = named[1], line[named.end() :]  # noqa: PLW2901 - what is left of it
            # Nobody's name passes for one that we give.
            who = who if Statement(seq, who, 0, "").is_persons else f"@{who}"
        for unit in units(line):
            yield Statement(seq, who, place, unit.text)
            place += 1


def _people(texts: Iterable[str | bool]) -> frozenset[str]:
    """Return the names that begin the messages of a group; none where one person talks."""
    found, count = Counter[str](), 0
    for text in texts:
        if not isinstance(text, str) or not text:
            continue
        count += 1
        if named := _SPEAKER.match(text):
            found[named[1]] += 1
    names = {name for name, times in found.items() if times > 1}
    spoken = sum(found[name] for name in names)
    return frozenset(names) if len(names) > 1 and spoken >= _SPOKEN_SHARE * count else frozenset()


def _of_result(seq: int, who: str, said: Sequence[str]) -> Iterator[Statement]:
    """Yield the last line of a result, and errors before it; of a short one the first line, too."""
    lines = [unit.text for unit in _whole(said)]
    places = {n for n in {0, len(lines) - 1} if lines and not looks_like_code(lines[n])}
    if has_error("".join(said)):
        places.update([n for n, line in enumerate(lines) if has_error(line)][-RESULT_LINES:])
    for place in sorted(places):
        yield Statement(seq, who, place, lines[place])


def _called(entries: Iterable[Entry]) -> dict[int, list[Statement]]:
    """Return what tools were called with by the message that calls them."""
    found = [
        Statement(entry.seq, f"called {call['function']['name']}", place, told)
        for entry in entries
        for place, call in enumerate(entry.message.get("tool_calls") or ())
        if (told := _told(call["function"]["arguments"]))
    ]
    masked = Redactor().texts([each.text for each in found])
    by_message: dict[int, list[Statement]] = {}
    for each, text in zip(found, masked, strict=True):
        by_message.setdefault(each.seq, []).append(each._replace(text=text))
    return by_message


def _told(arguments: str) -> str:
    """Return the argument that tells most; "" where there is none that is short."""
    try:
        given: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(given, dict):
        return ""
    ordered = [*(given[name] for name in _NAMING if name in given), *given.values()]
    texts = (" ".join(value.split()) for value in ordered if isinstance(value, str))
    return next((text for text in texts if 0 < len(text) <= MAX_CHARS), "")
