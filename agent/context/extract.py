"""The extractor: a summary of what leaves the view, made without any model.

It stands in for the summary model where that fails, and what a model's summary lacks is taken from
it. It holds whole sentences (agent/context/notes.py): the best one of each message of a person
first, then the second best, and so on; then what the assistant said that nobody else did, errors,
commands and paths; values that changed; further words by which the rest can be found. Each
compaction adds a part to the notes and thins the older parts, the less the older they are: what is
known of the beginning must not fade with each further compaction.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter

from agent.context.notes import (
    ChangedValue,
    Notes,
    Stretch,
    Told,
    change_line,
    changes_in,
    line_of,
    parsed,
    text_of_notes,
)
from agent.context.reading import ASSISTANT, PASTED, Statement, read
from agent.context.sentences import sentences
from agent.context.statements import (
    content_words,
    has_digit,
    has_error,
    is_courtesy,
    is_noise,
    is_question,
    is_row_of_numbers,
    looks_like_code,
    quick_words,
    speaks_of_self,
    weight_of,
    without_function_words,
    words_of,
)
from agent.context_engine import Days
from agent.safety.redaction import Redactor
from agent.tokens.estimate import estimate_tokens
from agent.view.view import Entry

EARLIER_SHARE = 0.5
"""Most of the budget that a model's earlier summary takes."""
CHANGES_SHARE = 0.08
WORDS_SHARE = 0.05
"""Most of the budget that changed values and further words take."""
PART_TOKENS = 24
WORD_TOKENS = 3.5
MOST_SEARCHED = 250
MAX_WORD_CHARS = 40
_AROUND = ".,;:!?()[]{}<>\"'*_`#\u201c\u201d\u2018\u2019\u00ab\u00bb\u2026"
_MAY_BE_NAME = re.compile(r"(\S)\s+(?=([^\Wa-z_]\S*))")
_HEADING_ENDS = (":", ":**", ":*", ":__")
AGE_POWER = 0.5
"""How much more room the beginning of a conversation has than what came later: 0 for the same, 1
for all of it. Source: tests/bench/statements.py."""

NEWEST_SHARE = 0.04
"""The newest part gets so much of the room at least."""

WORTH = {"person": 1.0, "outcome": 1.0, "assistant": 0.22, "pasted": 0.4, "tool": 0.2}
"""What a statement is worth by whose it is."""
OWN = 1.25
"""The same of what people tell of themselves, beside what they ask or paste."""
LIKE_CODE = 0.3
"""The same of code, markup and logs that they paste."""
SHORT = 4
"""What came of a request is worth more the fewer words it takes: one twice as much with so many."""
ERROR = 2.0
"""What an error is worth beside another line of a result."""
AGAIN = 0.65
"""What each further statement of a message is worth beside the one before it."""
NEW_SHARES = (0.6, 0.2)
"""What an assistant says is chosen if so much of it was not said by what is chosen already; where
room is left, then what is less new."""
OUTCOME_NEW_SHARE = 0.4
"""Of what came of a request less need be new: it is told in the words of the request."""
COST_POWER = 0.75
"""How much a statement is worth less for being longer; 1: as it is longer."""
LINE_TOKENS = 4
LEAST_WORDS = 2
"""What has fewer content words says nothing by itself ("Talk soon.")."""
SHORT_WORDS = 4
"""An answer with fewer content words is not understood without its question; politeness with fewer
is left out."""
FOCUS = 4.0

ALSO = "Also said, word for word:"
MOST_PARTS = 24
"""More compactions than that share parts."""
KEY_STATEMENTS = 60
KEY_SHARE = 0.25
"""How many statements a model's summary must hold, and how much is read to find them."""
COVERED = 0.5
"""A summary holds a statement if it has so many of its content words."""
MISSING_SHARE = 0.10
"""What is appended to a model's summary, as a share of it."""


@dataclass(frozen=True, slots=True)
class Extract:
    """A summary made without a model.

    Attributes:
        retained_share: How many it holds of the statements that matter most in what leaves.
    """

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
    """Return a summary of what leaves the view and of what had left it before.

    The same arguments give the same text, in any process.

    Args:
        entries: The originals that leave the view now, in order of seq.
        previous: The summary of what had left before, an extract or a model's; "" for none.
        budget_tokens: Most tokens of the text, by `estimate_tokens` without a model.
        focus: What the summary is to dwell on.
        days: When the messages were written, where that is known.
    """
    before = parsed(Redactor().text(previous))
    entries = _numbered_on(entries, before.parts)
    said = read(entries)
    days = _days_of(entries, days) if said else ()
    fresh = [Stretch(entries[0].seq, entries[-1].seq, said, (), days)] if said else []
    return _fitted(before, fresh, budget_tokens, focus)


def merged(texts: Sequence[str], budget_tokens: int, *, are_one: bool = False) -> str:
    """Return one text for summaries of consecutive stretches, extracts or a model's, oldest first.

    Args:
        texts: As `extract` or a model wrote them.
        budget_tokens: Most tokens of the text.
        are_one: The best of all of them is chosen together, as of one stretch: else the first would
            keep what matters least while the others give up what matters more.
    """
    every = [parsed(Redactor().text(text)) for text in texts]
    parts = [part for notes in every for part in notes.parts]
    whole = Notes(
        [_one_of(parts)] if are_one and parts else parts,
        [change for notes in every for change in notes.changes],
        "\n\n".join(notes.earlier for notes in every if notes.earlier),
    )
    return _fitted(whole, (), budget_tokens, None).text


def key_statements(
    entries: Sequence[Entry], previous: str = "", *, focus: str | None = None
) -> tuple[Statement, ...]:
    """Return the statements that matter most in what leaves the view, best first.

    A model's summary is checked against them. Less is read than for an extract.

    Args:
        entries: The originals that leave the view now, in order of seq.
        previous: The summary of what had left before, whose statements count, too.
        focus: What the summary is to dwell on.
    """
    before = parsed(Redactor().text(previous))
    lines = [line for line in before.earlier.splitlines() if not line.startswith("#")]
    earlier = [Statement(0, "", n, text) for n, text in enumerate(sentences("\n".join(lines)))]
    known = [each for part in before.parts for each in part.said]
    return tuple(_best(_field([*earlier, *known, *read(entries, share=KEY_SHARE)], focus)))


def retained_share(facts: Sequence[Statement], text: str) -> float:
    """Return the share of statements that a text holds; 1.0 without any."""
    return 1 - len(_missing(facts, text)) / len(facts) if facts else 1.0


def with_missing(text: str, facts: Sequence[Statement], budget_tokens: int) -> tuple[str, float]:
    """Return a text with the statements behind it that it lacks, and the share that it holds then.

    Args:
        text: As a model wrote it.
        facts: What it must hold, the most important first.
        budget_tokens: Of what is put behind it, at most.
    """
    missing = _missing(facts, text)
    if lines := _as_lines(missing, budget_tokens):
        text = f"{text}\n\n{lines}"
        missing = _missing(missing, lines)
    return text, 1 - len(missing) / len(facts) if facts else 1.0


def without_missing(text: str) -> str:
    """Return a text without what `with_missing` has put behind it."""
    return text.partition(f"\n\n{ALSO}\n")[0]


def _as_lines(facts: Sequence[Statement], budget_tokens: int) -> str:
    """Return statements as lines, the first ones if not all fit; "" where none does."""
    room = budget_tokens - estimate_tokens(ALSO) - 1
    kept = []
    for each in facts:
        room -= estimate_tokens(line_of(each.seq, each.who, [each])) + 1
        if room < 0:
            break
        kept.append(each)
    lines = [line_of(each.seq, each.who, [each]) for each in sorted(kept)]
    return "\n".join([ALSO, *lines]) if lines else ""


def _missing(facts: Sequence[Statement], text: str) -> list[Statement]:
    known = set(words_of(text))
    return [each for each in facts if not _holds(known, {*content_words(each.text)})]


def _holds(known: Set[str], words: Set[str]) -> bool:
    """Whether words hold what a statement says: its numbers, and most of its words."""
    held = sum(word in known for word in words)
    numbers = all(word in known for word in words if word[0].isdigit())
    return numbers and held >= COVERED * len(words)


def _numbered_on(entries: Sequence[Entry], parts: Sequence[Stretch]) -> Sequence[Entry]:
    """Return messages with numbers behind those of earlier notes.

    A list of messages that was compacted before has its numbers from its places: they begin anew.
    """
    gap = parts[-1].last_seq + 1 - entries[0].seq if entries and parts else 0
    return [Entry(seq + gap, message) for seq, message in entries] if gap > 0 else entries


def _days_of(entries: Sequence[Entry], days: Days) -> Days:
    """Return the days of these messages: the one that the first belongs to, and those behind."""
    first, last = entries[0].seq, entries[-1].seq
    before = sum(seq <= first for seq, _ in days)
    return [(max(seq, first), day) for seq, day in days[max(0, before - 1) :] if seq <= last]


@dataclass(slots=True)
class _Candidate:
    """A statement that competes for a place.

    Attributes:
        key: Whose it is: its message, and who speaks there.
        whose: A name in `WORTH`.
        words: Its content words, each once.
        cost: About how many tokens it takes in a line of its own.
        worth: Of a word in it, by who said it, of what kind it is, and what it costs.
        question: What it answers, where it is not understood without that.
    """

    said: Statement
    key: tuple[int, str]
    whose: str
    words: Set[bytes]
    cost: float
    worth: float
    question: Statement | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    """Candidates in order, the best first, and what the words in them weigh.

    Attributes:
        weights: Most where they are rare in the conversation.
        ranked: Each further statement of a message is worth less than the one before it, so that
            the best one of every message comes first.
    """

    candidates: Sequence[_Candidate]
    weights: dict[bytes, int]
    ranked: Sequence[_Candidate]


def _field(said: Iterable[Statement], focus: str | None = None) -> _Field:
    """Return the statements that say something as candidates."""
    found: list[_Candidate] = []
    counts, messages = Counter[bytes](), 0
    wanted = without_function_words(quick_words(focus or ""))
    for _, message in groupby(said, key=attrgetter("seq")):
        own, seen = [], set[bytes]()
        for each in message:
            text = each.text
            words = quick_words(text)
            seen |= words
            content = without_function_words(words)
            if _is_dull(text) or (each.who == ASSISTANT and text.endswith(_HEADING_ENDS)):
                continue
            cost = _tokens(text) + LINE_TOKENS
            whose = _whose(each)
            worth = WORTH[whose] * weight_of(text, words) / cost**COST_POWER
            worth *= _share_of_worth(each, whose, words)
            if wanted and not wanted.isdisjoint(words):
                worth *= FOCUS
            if len(content) < SHORT_WORDS and is_courtesy(text, words):
                continue
            own.append(_Candidate(each, (each.seq, each.who), whose, content, cost, worth))
        _pair(found, own)
        found += [one for one in own if len(one.words) >= LEAST_WORDS or one.question]
        counts.update(seen)
        messages += 1
    # Whole numbers: sums of floats differ with the order of a set, from process to process.
    most = math.log2(messages + 1)
    logs = {count: round(100 * (most - math.log2(count))) for count in set(counts.values())}
    weights = {word: logs[count] for word, count in counts.items()}
    return _Field(found, weights, _ranked(found, weights))


def _pair(before: Sequence[_Candidate], own: Sequence[_Candidate]) -> None:
    """Give a short answer the question that the assistant ended with."""
    if not (before and own) or not own[0].said.is_persons:
        return
    asked = before[-1].said
    if asked.who != ASSISTANT or asked.seq != own[0].said.seq - 1 or not is_question(asked.text):
        return
    if sum(len(one.words) for one in own) < SHORT_WORDS:
        own[0].question = asked
        own[0].words |= before[-1].words
        own[0].worth *= (own[0].cost / (own[0].cost + before[-1].cost)) ** COST_POWER
        own[0].cost += before[-1].cost


def _share_of_worth(said: Statement, whose: str, words: Set[bytes]) -> float:
    """Return what a statement is worth beside others of its speaker."""
    if whose == "person":
        if looks_like_code(said.text):
            return LIKE_CODE
        return OWN if speaks_of_self(said.text, words) else 1.0
    if whose == "outcome":
        return 1 + SHORT / max(1, len(words))
    return ERROR if said.is_tools and said.who[0] != "c" and has_error(said.text) else 1.0


def _is_dull(text: str) -> bool:
    # Data has hardly any spaces, or many; looking at every character of prose takes too long.
    spaces = text.count(" ")
    if spaces * 6 > len(text):
        return is_row_of_numbers(text)
    return spaces * 12 < len(text) and is_noise(text)


def _whose(said: Statement) -> str:
    if said.is_tools:
        return PASTED if said.who == PASTED else "tool"
    if said.is_outcome:
        return "outcome"
    return ASSISTANT if said.who == ASSISTANT else "person"


def _tokens(text: str) -> float:
    """Return about how many tokens a statement takes, without looking at its bytes."""
    size, spaces = len(text), text.count(" ")
    if text.isascii():
        return 0.37 * size + 0.26 * spaces + 1
    return 0.5 * size + 0.3 * spaces if spaces * 15 > size else 1.1 * size


def _ranked(found: Sequence[_Candidate], weights: dict[bytes, int]) -> Sequence[_Candidate]:
    weight = weights.__getitem__
    scored = sorted((-one.worth * sum(map(weight, one.words)), n) for n, one in enumerate(found))
    taken = Counter[tuple[int, str]]()
    ranked = []
    for score, n in scored:
        key = found[n].key
        ranked.append((score * AGAIN ** taken[key], n))
        taken[key] += 1
    return [found[n] for _, n in sorted(ranked)]


def _fill(field: _Field, room_tokens: float, *, is_known: bool = False) -> list[_Candidate]:
    """Return what fits, those that were chosen first in front.

    What people say is left out only if it was said in the same words; of others what is new, and
    of the rest what there is room for.

    Args:
        is_known: All of it was chosen before, and stays if there is room.
    """
    filling = _Filling(field.weights, room_tokens, is_known=is_known)
    left = [(1.0, one) for one in field.ranked]
    for least_new in (*NEW_SHARES, -1.0) if is_known else NEW_SHARES:
        left = filling.take(left, least_new)
    return filling.chosen


class _Filling:
    """What was chosen so far, and the room that is left."""

    def __init__(self, weights: dict[bytes, int], room_tokens: float, *, is_known: bool) -> None:
        self.weights = weights
        self.is_known = is_known
        self.room_tokens = room_tokens
        self.chosen: list[_Candidate] = []
        self.known = set[bytes]()
        self.texts = set[str]()
        self.lines = set[tuple[int, str]]()

    def take(
        self, tried: Iterable[tuple[float, _Candidate]], least_new: float
    ) -> list[tuple[float, _Candidate]]:
        """Choose what fits, and return what is not new enough.

        Args:
            tried: With how much of each was new when it was last asked: it gets less and less.
        """
        left = []
        for was_new, one in tried:
            if self.room_tokens < LINE_TOKENS:
                break
            # The further ones of a message share its line.
            cost = one.cost - LINE_TOKENS + 1 if one.key in self.lines else one.cost
            if cost > self.room_tokens or one.said.text in self.texts:
                continue
            new = was_new
            least = min(least_new, OUTCOME_NEW_SHARE) if one.whose == "outcome" else least_new
            if one.whose != "person" and new > least:
                new = _new_share(one, self.known, self.weights)
            if new <= least:
                left.append((new, one))
                continue
            self.room_tokens -= cost
            self.lines.add(one.key)
            if not self.is_known:
                self.texts.add(one.said.text)
            self.known |= one.words
            self.chosen.append(one)
        return left


def _new_share(one: _Candidate, known: Set[bytes], weights: dict[bytes, int]) -> float:
    """Return how much of what a statement says was not said by what is known.

    A result that differs from another one in its numbers alone says nothing new.
    """
    words = one.words
    if one.whose == "tool":
        words = {word for word in words if not word[:1].isdigit()}
    weight = weights.__getitem__
    return sum(map(weight, words - known)) / max(1, sum(map(weight, words)))


def _best(field: _Field) -> Sequence[Statement]:
    """Return what was said that matters most, best first, each thing once.

    Nothing of tools, and no questions but those in which a person tells a number.
    """
    known, best = set[bytes](), list[Statement]()
    for one in field.ranked:
        if one.said.is_tools or one.words <= known:
            continue
        text = one.said.text
        if is_question(text) and not (one.said.is_persons and has_digit(text)):
            continue
        known |= one.words
        best.append(one.said)
        if len(best) == KEY_STATEMENTS:
            break
    return best


def _fitted(
    before: Notes, fresh: Sequence[Stretch], budget_tokens: int, focus: str | None
) -> Extract:
    """Return earlier notes and new ones as a text that fits."""
    known = _joined(before.parts)
    parts = [*known, *fresh]
    fields = [_field(part.said, focus) for part in parts]
    notes = Notes(
        parts,
        _changes(before.changes, fresh, fields, int(budget_tokens * CHANGES_SHARE)),
        _shortened(before.earlier, int(budget_tokens * EARLIER_SHARE)),
    )
    chosen = _chosen(notes, fields, budget_tokens, len(known))
    told = _laid_out(notes, fields, chosen)
    # What a statement takes is guessed; the last ones go if it was too little.
    while (over := estimate_tokens(text := text_of_notes(told)) - budget_tokens) > 0:
        if not any(chosen):
            text = _beginning(text, budget_tokens)
            break
        chosen = _fewer(notes.parts, chosen, over)
        told = _laid_out(notes, fields, chosen)
    held = {said for part in told.parts for said in part.said}
    facts = [said for field in fields[len(known) :] for said in _best(field)]
    share = sum(fact in held for fact in facts) / len(facts) if facts else 1.0
    return Extract(text, share)


def _joined(parts: Sequence[Stretch]) -> Sequence[Stretch]:
    """Return parts with small neighbours as one, so that the best of them is chosen together."""
    if not parts:
        return parts
    least = (parts[-1].last_seq - parts[0].first_seq) // MOST_PARTS
    found = [parts[0]]
    for part in parts[1:]:
        last = found[-1]
        if part.last_seq - last.first_seq < least:
            found[-1] = _one_of([last, part])
        else:
            found.append(part)
    return found


def _one_of(parts: Sequence[Stretch]) -> Stretch:
    """Return neighbouring parts as one."""
    return Stretch(
        parts[0].first_seq,
        parts[-1].last_seq,
        [said for part in parts for said in part.said],
        [word for part in parts for word in part.words],
        list(dict.fromkeys(day for part in parts for day in part.days)),
    )


def _changes(
    before: Sequence[ChangedValue],
    fresh: Sequence[Stretch],
    fields: Sequence[_Field],
    room_tokens: int,
) -> Sequence[ChangedValue]:
    """Return changed values, those of earlier notes in front; the newest that fit."""
    found = [*before]
    for part in fresh:
        told: list[Told] = [
            (one.said, one.words)
            for field in fields
            for one in field.candidates
            if one.said.is_persons and has_digit(one.said.text)
        ]
        found += changes_in(told, part.first_seq, part.days)
    kept: list[ChangedValue] = []
    for change in reversed(found):
        room_tokens -= estimate_tokens(change_line(change)) + 1
        if room_tokens < 0:
            break
        kept.append(change)
    return kept[::-1]


def _chosen(
    notes: Notes, fields: Sequence[_Field], budget_tokens: int, known: int
) -> list[list[_Candidate]]:
    """Return of each part what there is room for, those that were chosen first in front."""
    fixed = estimate_tokens(text_of_notes(replace(notes, parts=()))) + PART_TOKENS * len(fields)
    needs = [_need(field.candidates) for field in fields]
    room = (budget_tokens - fixed) * (1 - WORDS_SHARE)
    shares = _shares(notes.parts, needs, room)
    return [
        _fill(field, share, is_known=n < known)
        for n, (field, share) in enumerate(zip(fields, shares, strict=True))
    ]


def _fewer(
    parts: Sequence[Stretch], chosen: Sequence[list[_Candidate]], over_tokens: int
) -> list[list[_Candidate]]:
    """Return of each part less, by what was chosen last: together at least `over_tokens` less.

    A part that has no more than its share keeps all: else the beginning of a conversation would
    fade with every compaction.
    """
    needs = [_need(part) for part in chosen]
    shares = _shares(parts, needs, sum(needs) - over_tokens - 1)
    return [_first(part, share) for part, share in zip(chosen, shares, strict=True)]


def _first(chosen: list[_Candidate], room_tokens: float) -> list[_Candidate]:
    """Return the first ones, as many as fit."""
    lines = set[tuple[int, str]]()
    for n, one in enumerate(chosen):
        room_tokens -= one.cost - LINE_TOKENS + 1 if one.key in lines else one.cost
        if room_tokens < 0:
            return chosen[:n]
        lines.add(one.key)
    return chosen


def _laid_out(
    notes: Notes, fields: Sequence[_Field], chosen: Sequence[Sequence[_Candidate]]
) -> Notes:
    """Return notes that hold what was chosen, and further words of what was not."""
    parts = []
    for part, field, own in zip(notes.parts, fields, chosen, strict=True):
        said = {one.said for one in own} | {one.question for one in own if one.question}
        count = int(WORDS_SHARE * sum(one.cost for one in own) / WORD_TOKENS)
        words = part.words[:count] or _further(field, own, count)
        parts.append(replace(part, said=sorted(said), words=words))
    return replace(notes, parts=parts)


def _further(field: _Field, chosen: Sequence[_Candidate], count: int) -> Sequence[tuple[int, str]]:
    """Return names and numbers of what was not chosen, those of the best statements first."""
    known = {word for one in chosen for word in one.words}
    held = {id(one) for one in chosen}
    found: list[tuple[int, str]] = []
    rest = (one for one in field.ranked if not (id(one) in held or one.said.is_tools))
    for one in islice(rest, MOST_SEARCHED):
        if len(found) >= count:
            break
        # The first word of a sentence is no name for being written large.
        for before, word in _MAY_BE_NAME.findall(one.said.text):
            is_name = word[0].isupper() and before not in _AROUND
            if not (is_name or word[0].isdigit()):
                continue
            name = word.rstrip(_AROUND)
            words = without_function_words(quick_words(name))
            if 1 < len(name) <= MAX_WORD_CHARS and not words <= known:
                known |= words
                found.append((one.said.seq, name))
    return sorted(found[:count])


def _need(candidates: Sequence[_Candidate]) -> float:
    """Return how much room all of them take."""
    lines = len({(one.said.seq, one.said.who) for one in candidates})
    # A little more: the sum of floats depends on their order.
    return 1 + sum(one.cost for one in candidates) - (LINE_TOKENS - 1) * (len(candidates) - lines)


def age_weight(first_seq: int, last_seq: int, start: int) -> float:
    """Return what messages weigh where room is shared: the less the older a conversation is.

    Args:
        start: The seq before its first message.
    """
    before, end = max(0, first_seq - 1 - start), max(1, last_seq - start)
    return float(end ** (1 - AGE_POWER) - before ** (1 - AGE_POWER))


def _shares(parts: Sequence[Stretch], needs: Sequence[float], room_tokens: float) -> list[float]:
    """Return how much room each part gets: the older ones more, none more than it needs."""
    if not parts:
        return []
    start = parts[0].first_seq - 1
    weights = [age_weight(part.first_seq, part.last_seq, start) for part in parts]
    # However few messages have left now, some of what they say is new.
    weights[-1] = max(weights[-1], NEWEST_SHARE * sum(weights))
    shares = [0.0] * len(parts)
    open_parts = set(range(len(parts)))
    while open_parts and room_tokens > 1:
        unit = room_tokens / sum(max(weights[n], 1e-9) for n in open_parts)
        full = {n for n in open_parts if needs[n] <= unit * weights[n]}
        for n in full or open_parts:
            shares[n] = needs[n] if full else unit * weights[n]
            room_tokens -= shares[n]
        if not full:
            break
        open_parts -= full
    return shares


def _shortened(text: str, room_tokens: int) -> str:
    """Return the headings and the best lines of what a model wrote, if it has no room."""
    if estimate_tokens(text) <= room_tokens:
        return text
    lines = text.splitlines()
    headings = {n for n, line in enumerate(lines) if line.startswith("#")}
    room = room_tokens - sum(estimate_tokens(lines[n]) + 1 for n in headings)
    told = (Statement(n, "", 0, line) for n, line in enumerate(lines) if n not in headings)
    kept = headings | {one.said.seq for one in _fill(_field(told), room)}
    return _beginning("\n".join(lines[n] for n in sorted(kept)), room_tokens)


def _beginning(text: str, room_tokens: int) -> str:
    """Return the longest beginning of whole lines that fits."""
    while (taken := estimate_tokens(text)) > room_tokens:
        kept = text[: min(len(text) - 1, len(text) * room_tokens // taken)]
        text = kept[: max(kept.rfind("\n"), 0)]
    return text
