"""What a view still says after compactions without any model: statements, not words.

A probe is a question, its answer and the messages that the answer rests on. Those words of the
answer count that stand in these messages, are rare in the conversation (document frequency at most
3 or 2 %), are no function words, and do not stand in the question. Such a word is retained where,
within 12 words of it in the view, at least half of the content words stand that surround it within
6 words in its message. The score is the mean share over probes; the messages themselves score 1.
What has left the view is also scored by who said it: words that only people, only the assistant or
only tools said, and words that several of them said.

Real conversations are support with tool results, coding sessions and runs of an agent; chats with
an assistant are written by rules (tests/bench/affairs.py), whose phrases the product does not know.
What follows a first part never repeats it. Each kind has two halves of different data: 0 to develop
on, 1 to report. `python -m tests.bench.statements 0` prints every conversation of half 0,
`… extracts` three extracts to read, `… read` three with questions for a reader.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from agent.context.extract import extract
from agent.library import compact_messages
from agent.messages import ChatMessage
from agent.tokens import estimate_message, estimate_messages
from agent.view.view import Entry
from tests.bench.conversations import HEAD, Conversation, Probe, full_text, lived, probed, words_in
from tests.bench.figures import Figure

WINDOW = 200_000
FURTHER = 10
NEAR_EVIDENCE = 6
NEAR_VIEW = 12
LEAST_SHARE = 0.5
_FUNCTION_WORDS = frozenset(
    words_in((Path(__file__).parent / "function_words.txt").read_text("utf-8"))
)
SPEAKERS = {"user": "person's", "assistant": "assistant's", "tool": "tools'"}


@dataclass(frozen=True, slots=True)
class Key:
    """A word of an answer, with the content words around each of its places in the evidence."""

    word: str
    surroundings: tuple[frozenset[str], ...]


class Shown:
    """The words of a view, by place."""

    def __init__(self, text: str) -> None:
        self.words = words_in(text)
        self.places: defaultdict[str, list[int]] = defaultdict(list)
        for place, word in enumerate(self.words):
            self.places[word].append(place)

    def retains(self, key: Key) -> bool:
        """Whether the word stands in the view, and enough of what stood around it."""
        for place in self.places.get(key.word, ()):
            near = set(self.words[max(0, place - NEAR_VIEW) : place + NEAR_VIEW + 1])
            if any(len(each & near) >= LEAST_SHARE * len(each) for each in key.surroundings):
                return True
        return False

    def score(self, keys: Sequence[Key]) -> float:
        """Return the share of the words that are retained."""
        return sum(map(self.retains, keys)) / len(keys)


def keys_of(probe: Probe, words: Mapping[int, Sequence[str]], rare: set[str]) -> list[Key]:
    """Return the words that a probe asks for; none where the evidence does not hold any.

    Args:
        words: Of the messages by position, those of the evidence at least.
        rare: The words that are rare in the conversation.
    """
    asked = set(words_in(probe.answer)) & rare - set(words_in(probe.question)) - _FUNCTION_WORDS
    found: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
    for position in probe.evidence:
        said = words[position]
        for place, word in enumerate(said):
            if word in asked:
                around = said[max(0, place - NEAR_EVIDENCE) : place + NEAR_EVIDENCE + 1]
                found[word].add(frozenset(around) - _FUNCTION_WORDS - {word})
    return [Key(word, tuple(found[word])) for word in sorted(found)]


def rare_in(bags: Sequence[Sequence[str]]) -> set[str]:
    """Return the words that stand in at most 3, or 2 % of the messages."""
    frequency = Counter(word for bag in bags for word in set(bag))
    limit = max(3, 0.02 * len(bags))
    return {word for word, count in frequency.items() if count <= limit}


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one conversation: after the first compaction, and after further ones.

    Attributes:
        tokens: Of the views.
        spoken: After the first, by who said it: of words whose messages have left the view, whether
            they are retained.
    """

    name: str
    probes: int
    first: float
    last: float
    tokens: tuple[int, int]
    spoken: dict[str, list[bool]]


def measure() -> Iterator[Figure]:
    """Yield the scores on the half of the data that nobody developed on."""
    found = [scored(each) for each in probed(1)]
    spoken: defaultdict[str, list[bool]] = defaultdict(list)
    for each in found:
        for who, retained in each.spoken.items():
            spoken[who] += retained
    bars = {"person's": 0.85, "several": 0.40}
    for who, retained in sorted(spoken.items()):
        name = f"of {len(retained):,} words outside of the tail, {who}"
        yield Figure(name, _mean(retained), "", at_least=bars.get(who))
    for each in found:
        yield Figure(f"{each.name}: view of {each.tokens[0]:,} tokens", each.first, "")
        yield Figure(f"  after {FURTHER} further compactions", each.last, "")
    score, tokens = scored_as_lived(lived(1))
    yield Figure(f"a chat of 1M tokens as lived: view of {tokens:,} tokens", score, "")
    yield from import_module("tests.bench.recalled").measure()


EXTRACTS = (("support", 1, 0, 24), ("coding", 1, 450, 40), ("agent run", 1, 2, 24))
"""Of which recorded conversations, of which half, from which message on, and of how many."""
EXTRACT_SHARE = 0.24
"""Of what was said: as much as an extract may take of the threshold."""
READERS = Path(__file__).parent / "probes" / "readers.txt"


def shown_extracts() -> None:
    """Print extracts of real conversations, as docs/context.md shows them."""
    for name, half, start, count in EXTRACTS:
        messages = _stretch(name, half, start, count)
        print(f"--- {name}, {count} messages, {estimate_messages(messages):,} tokens")
        print(_extract(messages, int(EXTRACT_SHARE * estimate_messages(messages))))


def read_by_somebody() -> None:
    """Print three other extracts, and behind each ten questions to a reader with their answers."""
    for line in READERS.read_text("utf-8").splitlines():
        if line.startswith("== "):
            name, half, start, count = line[3:].split(" | ")
            messages = _stretch(name, int(half), int(start), int(count))
            room = int(EXTRACT_SHARE * estimate_messages(messages))
            print(f"\n--- {name}, {len(messages)} messages\n{_extract(messages, room)}\n")
        elif not line.startswith("#"):
            print(line)


def _stretch(name: str, half: int, start: int, count: int) -> Sequence[ChatMessage]:
    [found] = [each for each in probed(half) if each.name == name]
    return found.messages[len(HEAD) + start :][:count]


def _extract(messages: Sequence[ChatMessage], room_tokens: int) -> str:
    entries = [Entry(seq, message) for seq, message in enumerate(messages, 1)]
    return extract(entries, "", room_tokens).text


def scored(conversation: Conversation) -> Scores:
    """Return the scores of what is asked about the first part."""
    asked = early_keys(conversation)
    view = View(conversation.messages, conversation.first)
    view.compact()
    first, tokens, spoken = view.score(asked), view.tokens(), by_speaker(conversation, view)
    for _ in range(FURTHER):
        view.grow()
        view.compact()
    last = view.score(asked)
    return Scores(conversation.name, len(asked), first, last, (tokens, view.tokens()), spoken)


def by_speaker(conversation: Conversation, view: "View") -> dict[str, list[bool]]:
    """Return by who said it whether what is asked about the first part is retained.

    What still stands in the view as it was said is left out.
    """
    messages = conversation.messages[: conversation.first]
    words = [words_in(full_text(message)) for message in messages]
    rare, by_place = rare_in(words), dict(enumerate(words))
    kept = {full_text(cast("ChatMessage", message)) for message in view.shown}
    shown = Shown(view.text())
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for probe in conversation.probes:
        if max(probe.evidence) >= conversation.first:
            continue
        for key in keys_of(probe, by_place, rare):
            places = [n for n in probe.evidence if key.word in by_place[n]]
            if any(full_text(messages[n]) in kept for n in places):
                continue
            roles = {messages[n]["role"] for n in places}
            who = SPEAKERS[roles.pop()] if len(roles) == 1 else "several"
            found[who].append(shown.retains(key))
    return found


def scored_as_lived(conversation: Conversation) -> tuple[float, int]:
    """Return the score of a conversation that was compacted as it went, and the view's size.

    It ends with a compaction: what comes behind the last one, which is all in view, is left out.
    """
    words = [words_in(full_text(message)) for message in conversation.messages]
    rare, by_place = rare_in(words), dict(enumerate(words))
    view = View(conversation.messages, 0)
    while True:
        shown, said = [*view.shown], view.said
        view.grow()
        if view.tokens() < view.window // 2:
            view.shown, view.said = shown, said
            break
        view.compact()
    told = [probe for probe in conversation.probes if max(probe.evidence) < view.said]
    asked = [keys for probe in told if (keys := keys_of(probe, by_place, rare))]
    return view.score(asked), view.tokens()


def early_keys(conversation: Conversation) -> list[list[Key]]:
    """Return what the probes of the first part ask for; what is rare is judged on that part."""
    first = conversation.first
    words = [words_in(full_text(message)) for message in conversation.messages[:first]]
    rare, by_place = rare_in(words), dict(enumerate(words))
    early = [probe for probe in conversation.probes if max(probe.evidence) < first]
    return [keys for probe in early if (keys := keys_of(probe, by_place, rare))]


class View:
    """What is shown of a conversation that goes on, compacted as a library."""

    def __init__(self, messages: Sequence[ChatMessage], said: int, window: int = WINDOW) -> None:
        self.messages = messages
        self.window = window
        self.said = said
        self.shown = [cast("dict[str, Any]", message) for message in messages[:said]]

    def grow(self) -> None:
        """Show what is said until the threshold is reached."""
        room = self.window // 2 - self.tokens()
        while room > 0 and self.said < len(self.messages):
            message = self.messages[self.said]
            room -= estimate_message(message)
            self.shown.append(cast("dict[str, Any]", message))
            self.said += 1

    def compact(self) -> None:
        """Compact without any model."""
        self.shown = compact_messages(self.shown, context_length=self.window).messages

    def tokens(self) -> int:
        """Return about how many tokens are shown."""
        return estimate_messages(cast("list[ChatMessage]", self.shown))

    def text(self) -> str:
        """Return what is shown."""
        return "\n".join(full_text(cast("ChatMessage", message)) for message in self.shown)

    def score(self, asked: Sequence[Sequence[Key]]) -> float:
        """Return the mean score of probes."""
        shown = Shown(self.text())
        return _mean([shown.score(keys) for keys in asked])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main(half: int) -> None:
    """Print the scores of every conversation of a half."""
    for conversation in probed(half):
        row = scored(conversation)
        print(
            f"{row.name:28} {row.probes:5} probes  first {row.first:.3f} in {row.tokens[0]:6,}"
            f"  last {row.last:.3f} in {row.tokens[1]:6,} tokens  "
            + ", ".join(f"{who} {_mean(kept):.2f}" for who, kept in sorted(row.spoken.items())),
            flush=True,
        )
    score, tokens = scored_as_lived(lived(half))
    print(f"{'1M tokens as lived':28} {score:.3f} in {tokens:,} tokens")


if __name__ == "__main__":
    commands = {"extracts": shown_extracts, "read": read_by_somebody}
    commands.get(sys.argv[1], lambda: main(int(sys.argv[1])))()
