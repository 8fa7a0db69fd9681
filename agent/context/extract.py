"""The extractor: a summary of what leaves the view, made without any model.

It stands in for the summary model where that fails, and its facts are what a model's summary is
checked against. A short narrative tells what was asked and decided, files, errors and the last
state; each of its lines names the message that it comes from. An index of the telling terms by
place follows (agent/context/terms.py): what is not told can be found and looked up.
"""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import itemgetter

from agent.context import terms
from agent.context.terms import Excerpt, read
from agent.safety.redaction import Redactor, masked_assignments
from agent.tokens.estimate import estimate_tokens
from agent.view.view import Entry

NARRATIVE_SHARE = 0.12
"""How much of the budget the narrative takes."""
LEAST_TOLD_TOKENS = 80
"""The newest request and the last state are told also where there is little room."""
EARLIER_SHARE = 0.5
"""Most of the budget that a model's earlier summary takes, which is kept as it is."""

FIRST_SHARE = 0.88
LATER_SHARE = 0.65
"""How much of the index's free room one extraction may fill; the rest is for what comes later.

What an index holds stays there, so the first one leaves room for the messages that were still
shown verbatim then. Source of both: tests/bench/retention.py.
"""

SENIOR_CHARS = 4
"""Per token of the budget: how much of what leaves was in view at the previous compaction.

The tail that stays verbatim has about as many tokens as an extract.
"""

MOST_FACTS = 300
FACTS_SHARE = 0.15
"""How much is read for facts alone, as a share of what is read for an extract."""
FACTS_MESSAGES = 600
"""From how many messages. Source: 1,000 of them take half of the time for a whole compaction."""
CANDIDATES = 1500
CANDIDATES_PER_TOKEN = 0.3
"""How many words compete for a place, beside those that have one: about twice what fits."""

INTRODUCTION = (
    "Extracted without a model. Under Terms, #N: begins a stretch at message N and lists words that"
    " stand there."
)
INTRODUCTIONS = (
    INTRODUCTION,
    f"{INTRODUCTION[:-1]}; read_conversation(from_seq=N) returns the messages in full.",
)
"""The second one is of versions that told the tool whether it was offered or not."""
_TERMS = "## Terms"
_EARLIER = "## Earlier summary"
_ALSO = "Also mentioned:"
_GROUP_WORDS = 15

Sections = dict[str, list[str]]
"""Lines by the title of their section."""

SECTION_SHARES = {"Asked": 0.45, "Decided": 0.2, "Files": 0.1, "Errors": 0.1, "Last state": 0.15}
"""Sections in their order, with their shares of the narrative's tokens."""

SECTION_LINES = 30
"""Most lines that one extraction adds to a section."""
SECTION_PIECES = 150
"""How many of the newest texts are looked at for a section."""
LINE_CHARS = 240

_LINE = re.compile(r"^(?:## (.+)|- (#\d+ .+))$", re.MULTILINE)
# Some lack their first letter, here and in `_ERRORS`: it may be a capital.
_DECISIONS = (
    "decided", "agreed", "instead of", "from now on", "et's ", "confirmed", "prefer", "must not",
    "never", "always", "ake sure", "approved", "deadline",
)  # fmt: skip
_ERRORS = ("rror", "xception", "ailed", "FAILED", "ERROR")
_BREAK = re.compile(r"(?<=[.!?])\s|\n")
_PATH = re.compile(r"(?<![\w/.])(?:[~.]{0,2}/)?(?:[\w.@-]+/)+[\w@-]+(?:\.\w{1,6})+")


@dataclass(frozen=True, slots=True)
class Extract:
    """A summary made without a model.

    Attributes:
        facts: The most telling terms of what leaves the view, most telling first.
    """

    text: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Carried:
    """What the previous summary hands on.

    Attributes:
        story: An extract without its index; "" where a model wrote it.
        index: Of an extract.
        earlier: What a model wrote, now or before the extracts since.
        lost: The end of it that has no room.
    """

    story: str
    index: terms.Index
    earlier: str
    lost: str


def extract(
    entries: Sequence[Entry],
    previous: str,
    budget_tokens: int,
    *,
    focus: str | None = None,
    elsewhere: Set[str] = frozenset(),
) -> Extract:
    """Return a summary of what leaves the view and of what had left it before.

    The same arguments give the same text, in any process. At most 700,000 characters of users,
    as many of the assistant and 120,000 of tools are read, fewer from 4,000 messages on.

    Args:
        entries: The originals that leave the view now, in order of seq.
        previous: The summary of what had left before, an extract or a model's; "" for none.
        budget_tokens: Most tokens of the text, by `estimate_tokens` without a model.
        focus: What the summary is to dwell on.
        elsewhere: Terms in lower case that other summaries in view hold: they are not listed again.
    """
    carried = _carried(previous, budget_tokens)
    pieces = read(entries)
    found = _found(pieces, carried, budget_tokens, focus, len(elsewhere)).without(elsewhere)
    told = max(int(budget_tokens * NARRATIVE_SHARE), min(LEAST_TOLD_TOKENS, budget_tokens // 2))
    story = narrate(pieces, carried.story, told)
    text = _fitted(story, found, carried, budget_tokens)
    return Extract(text, tuple(terms.most_telling(found, MOST_FACTS)))


def merged(texts: Sequence[str], budget_tokens: int) -> str:
    """Return one text for summaries of consecutive stretches, extracts or a model's, oldest first.

    Args:
        texts: As `extract` or a model wrote them.
        budget_tokens: Most tokens of the text.
    """
    stories, lines, earlier = [], [], []
    for text in texts:
        ours, told = _parted(text)
        story, _, index = ours.partition(f"\n{_TERMS}\n")
        stories.append(story)
        lines.append(index)
        earlier.append(told)
    whole = _text(*("\n".join(filter(None, part)) for part in (stories, lines, earlier)))
    return extract((), whole, budget_tokens).text


def key_facts(entries: Sequence[Entry], *, focus: str | None = None) -> tuple[str, ...]:
    """Return the most telling terms of what leaves the view, most telling first.

    A model's summary is checked against them. Less is read than for an extract: a sample of
    many messages, half of it from people.
    """
    sample = _sampled(entries)
    found = terms.rank(
        read(sample, FACTS_SHARE),
        most=CANDIDATES,
        messages=len(sample),
        focus=terms.words_of(focus or ""),
    )
    return tuple(terms.most_telling(found, MOST_FACTS))


def _sampled(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the first message and at most `FACTS_MESSAGES` others, spread evenly, in order."""
    if len(entries) <= FACTS_MESSAGES:
        return entries
    # The first request tells what all that follows is about.
    first, *rest = entries
    asked = _spread([entry for entry in rest if entry.message["role"] == "user"])
    others = _spread([entry for entry in rest if entry.message["role"] != "user"])
    return [first, *sorted([*asked, *others], key=itemgetter(0))]


def _spread(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return every n-th entry from the newest back, half of `FACTS_MESSAGES` at most."""
    step = -(-len(entries) // (FACTS_MESSAGES // 2))
    # Backwards, so that the newest one is always among them.
    return entries[::-1][:: max(1, step)]


def _carried(previous: str, budget_tokens: int) -> _Carried:
    ours, earlier = _parted(previous)
    story, _, index = ours.partition(f"\n{_TERMS}\n")
    kept = _beginning(earlier, int(budget_tokens * EARLIER_SHARE))
    return _Carried(story, terms.parse_index(index), kept, earlier[len(kept) :])


def _parted(text: str) -> tuple[str, str]:
    """Return what an extract says of its own, and what a model wrote before."""
    if not text.startswith(INTRODUCTIONS):
        return "", text
    ours, _, earlier = text.partition(f"\n{_EARLIER}\n")
    return ours, earlier


def _beginning(text: str, room_tokens: int) -> str:
    """Return the longest beginning of whole lines, else of words, that fits."""
    while (taken := estimate_tokens(text)) > room_tokens:
        kept = text[: min(len(text) - 1, len(text) * room_tokens // taken)]
        text = kept[: max(kept.rfind("\n"), kept.rfind(" "), 0)]
    return text


def _found(
    pieces: Sequence[Excerpt], carried: _Carried, budget_tokens: int, focus: str | None, listed: int
) -> terms.Vocabulary:
    """Return the terms of what leaves, and of what a model wrote that has no room any more."""
    words = carried.lost.split()
    lost = [
        # A model's text names no messages: it counts as said by people at the very beginning.
        Excerpt(1, "user", " ".join(words[at : at + _GROUP_WORDS]))
        for at in range(0, len(words), _GROUP_WORDS)
    ]
    # Before the first compaction nothing was in view at an earlier one.
    later = carried.index or carried.earlier
    known = listed + sum(len(line) for _, line in carried.index)
    return terms.rank(
        [*lost, *pieces],
        most=CANDIDATES + int(budget_tokens * CANDIDATES_PER_TOKEN) + known,
        senior=_senior(pieces, budget_tokens) if later else 0,
        focus=terms.words_of(focus or ""),
    )


def _senior(pieces: Sequence[Excerpt], budget_tokens: int) -> int:
    """Return the seq up to which messages were in view at the previous compaction."""
    left = budget_tokens * SENIOR_CHARS
    for piece in pieces:
        left -= len(piece.text)
        if left < 0:
            return piece.seq
    return pieces[-1].seq if pieces else 0


def _fitted(story: str, found: terms.Vocabulary, carried: _Carried, budget_tokens: int) -> str:
    """Return the text, its index as large as the budget allows."""
    redactor = Redactor()
    room, text = budget_tokens, ""
    # Masking and joining change the size, so the index may have to be cut again.
    for _ in range(3):
        fixed = _text(story, "", carried.earlier)
        index = _grown(carried.index, found, room - estimate_tokens(fixed))
        text = redactor.text(_text(story, terms.index_text(index), carried.earlier))
        over = estimate_tokens(text) - budget_tokens
        if over <= 0:
            return text
        room -= over + 1
    return _beginning(text, budget_tokens)


def _text(story: str, index: str, earlier: str) -> str:
    parts = [INTRODUCTION, story, f"{_TERMS}\n{index}", earlier and f"{_EARLIER}\n{earlier}"]
    return "\n".join(filter(None, parts))


def _grown(index: terms.Index, found: terms.Vocabulary, room_tokens: int) -> terms.Index:
    """Return the index with the best of the new terms, in about `room_tokens`."""
    room_tokens = max(0, room_tokens)
    taken = estimate_tokens(terms.index_text(index))
    # There is no room even for what is known: its best terms stay, none is added.
    if taken > room_tokens:
        return terms.shortened(index, room_tokens / taken)
    known = {term.lower() for _, line in index for term in line}
    new = [text for key, text in found.spellings.items() if key not in known]
    room = int((room_tokens - taken) * (LATER_SHARE if index else FIRST_SHARE))
    return [*index, *terms.lay_out(terms.fitting(new, room), found.places)]


def retained_share(facts: Sequence[str], text: str) -> float:
    """Return the share of facts that are found in the text; 1.0 without facts."""
    return 1 - len(_missing(facts, text)) / len(facts) if facts else 1.0


def missing_facts_line(facts: Sequence[str], text: str, budget_tokens: int) -> str:
    """Return the facts that the text lacks as one line, to be appended to it.

    The first ones if not all fit; "" where there are none or none fits.
    """
    room = budget_tokens - estimate_tokens(_ALSO) - 1
    missing = terms.fitting(_missing(facts, text), max(0, room))
    line = Redactor().text(" ".join([_ALSO, *missing])) if missing else ""
    return line if estimate_tokens(line) <= budget_tokens else ""


def _missing(facts: Sequence[str], text: str) -> list[str]:
    words = terms.words_of(text)
    return [fact for fact in facts if not _words_of_fact(fact) <= words]


@lru_cache(maxsize=2 * MOST_FACTS)
def _words_of_fact(fact: str) -> frozenset[str]:
    """Return the words of a fact; each is looked up up to three times for one summary."""
    return frozenset(terms.words_of(fact))


def narrate(pieces: Sequence[Excerpt], previous: str, budget_tokens: int) -> str:
    """Return the sections as text of at most about `budget_tokens`; empty ones are left out."""
    earlier, found = parse_sections(previous), _sections(pieces)
    blocks = []
    for title, share in SECTION_SHARES.items():
        lines = [*earlier.get(title, ()), *found[title]]
        kept = _newest(lines, int(budget_tokens * share), keep_first=title == "Asked")
        if kept:
            blocks.append("\n".join([f"## {title}", *kept]))
    return masked_assignments("\n".join(blocks))


def parse_sections(text: str) -> Sections:
    """Return the lines of each section of an extract."""
    sections: Sections = {}
    lines: list[str] = []
    for title, line in _LINE.findall(text):
        if title:
            lines = sections.setdefault(title, [])
        else:
            lines.append(f"- {line}")
    return sections


def _sections(pieces: Sequence[Excerpt]) -> Sections:
    """Return the lines of each section that these pieces give, oldest first."""
    asked = [piece for piece in pieces if piece.role == "user"]
    said = [piece for piece in pieces if piece.role in {"user", "assistant"}]
    results = [piece for piece in pieces if piece.role == "tool"]
    calls = [piece for piece in pieces if piece.role == "call"]
    last = [piece for piece in said[-2:] if piece.role == "assistant"]
    return {
        "Asked": [*map(_quoted, asked[:1]), *map(_quoted, asked[1:][-SECTION_LINES:])],
        "Decided": _with(said, _DECISIONS),
        "Files": _paths(calls),
        "Errors": _with(results, _ERRORS),
        "Last state": [_quoted(piece) for piece in last[-1:]],
    }


def _quoted(piece: Excerpt) -> str:
    return _line(piece.seq, piece.text)


def _line(seq: int, text: str) -> str:
    shown = " ".join(text[: LINE_CHARS + 60].split())
    return f"- #{seq} {shown if len(shown) <= LINE_CHARS else shown[:LINE_CHARS] + '…'}"


def _with(pieces: Sequence[Excerpt], signs: Sequence[str]) -> list[str]:
    """Return the sentences of the newest pieces in which a sign stands, one of each piece."""
    found: dict[str, int] = {}
    for piece in islice(reversed(pieces), SECTION_PIECES):
        place = next((at for sign in signs if (at := piece.text.find(sign)) >= 0), None)
        if place is not None:
            found.setdefault(_around(piece.text, place), piece.seq)
        if len(found) >= SECTION_LINES:
            break
    return [_line(seq, text) for text, seq in reversed(found.items())]


def _paths(pieces: Sequence[Excerpt]) -> list[str]:
    """Return the files that the newest calls name."""
    found: dict[str, int] = {}
    for piece in islice(reversed(pieces), SECTION_PIECES):
        if "/" in piece.text:
            for path in _PATH.findall(piece.text):
                found.setdefault(path, piece.seq)
    return [_line(seq, path) for path, seq in reversed([*found.items()][:SECTION_LINES])]


def _around(text: str, place: int) -> str:
    """Return the sentence, or the line, of a text in which a place lies."""
    low, high = max(0, place - LINE_CHARS // 2), place + LINE_CHARS // 2
    before, after = text[low:place], text[place:high]
    return (_BREAK.split(before)[-1] + _BREAK.split(after)[0]).strip()


def _newest(lines: Iterable[str], room_tokens: int, *, keep_first: bool) -> list[str]:
    """Return the newest lines that fit, in order; the first of all stays where asked for.

    Of lines with the same text the newest is meant.
    """
    ordered = sorted({_told(line): line for line in lines}.values(), key=_seq)
    kept: list[str] = []
    if keep_first and ordered and _tokens(ordered[0]) <= room_tokens // 2:
        kept.append(ordered.pop(0))
        room_tokens -= _tokens(kept[0])
    place = len(ordered)
    while place and (room_tokens := room_tokens - _tokens(ordered[place - 1])) >= 0:
        place -= 1
    return kept + ordered[place:]


def _seq(line: str) -> int:
    return int(line.split(" ", 2)[1][1:])


def _told(line: str) -> str:
    return line.split(" ", 2)[2]


def _tokens(line: str) -> int:
    return estimate_tokens(line) + 1
