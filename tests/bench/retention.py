"""What a view still knows after compactions without any model: shares of the answers' rare words.

A probe is a question, its answer and the messages that the answer rests on. Those words of the
answer count that stand in these messages, are rare in the conversation (document frequency at most
3 or 2 %) and do not stand in the question; the score is the share of them that stands in the view.

The conversations are of different kinds, so that nothing is tuned to one: support with tool
results, the same with replies left out that are asked for later, its plain text, coding sessions,
documentation in long answers, and two synthetic kinds with a vocabulary that is larger than in
any real chat of that length. What follows the first part never repeats it. Each kind has two halves
of different data: 0 to develop on, 1 to report.
`python -m tests.bench.retention 0` prints every conversation of half 0.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pydoc_data.topics import topics
from typing import Any, cast

from agent.library import compact_messages
from agent.messages import ChatMessage, assistant_message, text_of, user_message
from agent.tokens.estimate import estimate_message, estimate_messages
from tests.bench.figures import Figure
from tests.support.shared import SHARED

WINDOWS = {200_000: 0.90, 100_000: 0.80}
FURTHER = 10
LOST = 0.01
HEAD: list[ChatMessage] = [
    ChatMessage(role="system", content="You are a helpful assistant."),
    user_message("Hi"),
    assistant_message("Hello! How can I help?"),
]
_WORD = re.compile(r"\w+")
_ONSETS = ("b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br")
_RHYMES = ("a", "e", "i", "o", "u", "ai", "e", "a", "i", "o", "er")
_ENDINGS = ("", "", "", "", "s", "ed", "n", "r", "t", "l")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "October")


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about a conversation; `evidence` are positions of messages."""

    question: str
    answer: str
    evidence: Sequence[int]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said until the first compaction and afterwards, and what is asked about both."""

    name: str
    messages: Sequence[ChatMessage]
    first: int
    probes: Sequence[Probe]


def measure() -> Iterator[Figure]:
    """Yield the scores on the half of the data that nobody developed on."""
    if SHARED is None:
        return
    scores = [list(scored(conversation)) for conversation in conversations(1)]
    real = [rows for rows in scores if not rows[0].synthetic]
    for position, (window, bar) in enumerate(WINDOWS.items()):
        for name, chosen in (("real", real), ("all", scores)):
            rows = [each[position] for each in chosen]
            title = f"retention, {name} conversations, {window // 1000}K window"
            first = _mean([row.first for row in rows])
            at_least = bar if name == "real" else None
            yield Figure(title, first, "", at_least=at_least)
            lost = first - _mean([row.last for row in rows])
            yield Figure(f"{title}: lost over {FURTHER} further", lost, "", at_most=LOST)
            later = [row.later for row in rows if row.later is not None]
            yield Figure(f"{title}: later parts", _mean(later), "")
    yield from import_module("tests.bench.recalled").measure()


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one conversation in one window: after the first, second and last compaction.

    Attributes:
        later: What the last view knows of what was said after the first compaction; None where
            nothing is asked about it.
    """

    name: str
    probes: int
    first: float
    second: float
    last: float
    later: float | None

    @property
    def synthetic(self) -> bool:
        return self.name.startswith("synthetic")


def scored(conversation: Conversation) -> Iterator[Scores]:
    """Yield the scores of a conversation for each window."""
    early, later = keys(conversation)
    for window in WINDOWS:
        view = View(conversation, window)
        view.compact()
        known = [score(early, view.words())]
        for _ in range(FURTHER):
            view.grow()
            view.compact()
            known.append(score(early, view.words()))
        seen = [key for key, place in later if place < view.said]
        after = score(seen, view.words()) if seen else None
        yield Scores(conversation.name, len(early), known[0], known[1], known[-1], after)


class View:
    """What is shown of a conversation that goes on, compacted as a library."""

    def __init__(self, conversation: Conversation, context_length: int) -> None:
        self.messages = conversation.messages
        self.context_length = context_length
        self.said = conversation.first
        self.shown: list[dict[str, Any]] = [
            cast("dict[str, Any]", message) for message in self.messages[: self.said]
        ]

    def grow(self) -> None:
        """Show what is said until the threshold is reached."""
        room = self.context_length // 2 - estimate_messages(cast("list[ChatMessage]", self.shown))
        while room > 0 and self.said < len(self.messages):
            message = self.messages[self.said]
            room -= estimate_message(message)
            self.shown.append(cast("dict[str, Any]", message))
            self.said += 1

    def compact(self) -> None:
        """Compact without any model."""
        self.shown = compact_messages(self.shown, context_length=self.context_length).messages

    def words(self) -> set[str]:
        """Return the words that are shown."""
        return words("\n".join(full_text(cast("ChatMessage", message)) for message in self.shown))


def keys(conversation: Conversation) -> tuple[list[set[str]], list[tuple[set[str], int]]]:
    """Return what the probes ask for, of the first part and of later parts with their place.

    What is rare is judged on the first part for its probes, else on the whole.
    """
    bags = [words(full_text(message)) for message in conversation.messages]
    first = conversation.first
    rarely = [rare(bags[:first]), rare(bags)]
    early, later = [], []
    for probe in conversation.probes:
        place = max(probe.evidence)
        said = set().union(*(bags[n] for n in probe.evidence))
        asked = (words(probe.answer) & said) - words(probe.question)
        if place < first and (key := asked & rarely[0]):
            early.append(key)
        elif place >= first and min(probe.evidence) >= first and (key := asked & rarely[1]):
            later.append((key, place))
    return early, later


def rare(bags: Sequence[set[str]]) -> set[str]:
    frequency = Counter(word for bag in bags for word in bag)
    limit = max(3, 0.02 * len(bags))
    return {word for word, count in frequency.items() if count <= limit}


def score(wanted: Sequence[set[str]], view: set[str]) -> float:
    return _mean([len(key & view) / len(key) for key in wanted])


def words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def full_text(message: ChatMessage) -> str:
    """Return the text of a message and of its calls."""
    calls = message.get("tool_calls", ())
    return " ".join([text_of(message), *(call["function"]["arguments"] for call in calls)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def conversations(half: int) -> Iterator[Conversation]:
    """Yield one conversation of each kind, from one half of the data."""
    ours, others = tau(half), tau(1 - half)
    yield joined("support", ours, others, 150_000)
    yield joined("support, replies left out", unsaid(ours), unsaid(others), 150_000)
    yield joined("support, text only", plain(ours), plain(others), 100_000)
    yield coding(half)
    yield trajectory(half)
    yield documentation(half)
    yield friends(half)
    yield assistant(half)


Dialogue = tuple[list[ChatMessage], list[Probe]]


def joined(
    name: str, ours: Sequence[Dialogue], others: Sequence[Dialogue], tokens: int
) -> Conversation:
    """Return dialogues as one conversation, then coding; the dialogues are asked about."""
    messages, probes = list(HEAD), []
    for dialogue, asked in (*ours, *others):
        shift = len(messages)
        probes += [
            Probe(each.question, each.answer, [n + shift for n in each.evidence]) for each in asked
        ]
        messages += dialogue
    messages += [*pi("before-compaction"), *pi("large-session")]
    return Conversation(name, messages, _first(messages, tokens), probes)


def support(half: int) -> list[ChatMessage]:
    """Return the messages of all dialogues of a half."""
    return [message for dialogue, _ in tau(half) for message in dialogue]


def _first(messages: Iterable[ChatMessage], tokens: int) -> int:
    sizes = accumulate(map(estimate_message, messages))
    return sum(1 for size in sizes if size < tokens)


def tau(half: int) -> list[Dialogue]:
    """Return support dialogues: asked is for the reply to each message of the user."""
    found = []
    for item in json.loads(stored("tau-bench/gpt-4o-airline.json"))[half::2]:
        messages = [
            cast("ChatMessage", {key: value for key, value in message.items() if value is not None})
            for message in item["traj"]
            if message["role"] != "system"
        ]
        found.append((messages, replies(messages)))
    return found


def stored(name: str) -> str:
    """Return a file of the shared data."""
    if SHARED is None:
        raise FileNotFoundError(f"the shared data is not here: {name}")
    return (SHARED / name).read_text(encoding="utf-8")


def replies(messages: Sequence[ChatMessage], reach: int = 10_000) -> list[Probe]:
    """Return a probe for the last reply to each user message; evidence is what stands before."""
    probes: list[Probe] = []
    asked = None
    for place, message in enumerate(messages):
        if message["role"] == "user":
            asked = place
        elif message["role"] == "assistant" and text_of(message) and asked:
            evidence = range(max(0, place - reach), place)
            probe = Probe(text_of(messages[asked]), text_of(message), evidence)
            if probes and probes[-1].question == probe.question:
                probes.pop()
            probes.append(probe)
    return probes


def unsaid(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """Return dialogues in which every second reply was never given."""
    found = []
    for messages, probes in dialogues:
        asked = probes[1::2]
        gone = {probe.evidence[-1] + 1 for probe in asked}
        kept = [
            assistant_message("One moment.") if place in gone else message
            for place, message in enumerate(messages)
        ]
        found.append((kept, asked))
    return found


def plain(dialogues: Iterable[Dialogue]) -> list[Dialogue]:
    """Return dialogues without calls and results."""
    found = []
    for messages, _ in dialogues:
        kept = [
            ChatMessage(role=message["role"], content=text_of(message))
            for message in messages
            if message["role"] in {"user", "assistant"} and text_of(message)
        ]
        found.append((kept, replies(kept)))
    return found


def coding(half: int) -> Conversation:
    """Return a long coding session; asked is for what was answered and for half-sentences."""
    name, other = ("before-compaction", "large-session")[:: -1 if half else 1]
    session = pi(name)
    messages = [*HEAD, *session]
    probes = [*replies(messages, 60), *half_sentences(messages, 300)]
    messages += [*pi(other), *support(half), *support(1 - half)]
    return Conversation("coding", messages, min(len(session), _first(messages, 200_000)), probes)


def pi(name: str) -> list[ChatMessage]:
    """Return a session of pi as chat messages."""
    lines = map(json.loads, stored(f"pi/{name}.jsonl").splitlines())
    found = [line["message"] for line in lines if line["type"] == "message"]
    return [_from_pi(message) for message in found if "content" in message]


def _from_pi(entry: dict[str, Any]) -> ChatMessage:
    content = entry["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if entry["role"] == "toolResult":
        return ChatMessage(role="tool", tool_call_id=entry["toolCallId"], content=text)
    message = ChatMessage(role=entry["role"], content=text)
    if calls := [part for part in parts if part["type"] == "toolCall"]:
        message["tool_calls"] = [_call(c["id"], c["name"], c["arguments"]) for c in calls]
    return message


def _call(call_id: str, name: str, arguments: Any) -> Any:
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": shown}}


def trajectory(half: int) -> Conversation:
    """Return a run of SWE-agent, then coding; asked is for each answer of its model."""
    name = ("ctf-web-demo", "marshmallow-1867-function-calling")[half]
    history = json.loads(stored(f"swe-agent/{name}.traj"))["history"]
    run = [_from_swe(message) for message in history if message["role"] != "system"]
    messages = [*HEAD, *run, *pi("large-session")]
    end = len(HEAD) + len(run)
    probes = [
        Probe("", text_of(messages[place]), range(len(HEAD), place))
        for place in range(len(HEAD) + 1, end)
        if messages[place]["role"] == "assistant" and text_of(messages[place])
    ]
    messages += [*pi("before-compaction"), *support(half), *support(1 - half)]
    return Conversation("agent run", messages, _first(messages, 180_000), probes)


def _from_swe(entry: dict[str, Any]) -> ChatMessage:
    content = entry.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content)
    message = ChatMessage(role=entry["role"], content=content)
    if calls := entry.get("tool_calls"):
        functions = [(call["id"], call["function"]) for call in calls]
        message["tool_calls"] = [_call(n, f["name"], f["arguments"]) for n, f in functions]
    return message


def half_sentences(messages: Sequence[ChatMessage], count: int, seed: int = 1) -> list[Probe]:
    """Return sentences of which one half is the question and the other the answer."""
    rng = random.Random(seed)  # noqa: S311 - the same on every run
    places = [n for n, m in enumerate(messages) if n >= len(HEAD) and m["role"] != "tool"]
    probes = []
    for place in rng.sample(places, min(count, len(places))):
        sentences = re.split(r"(?<=[.!?])\s+|\n", text_of(messages[place]))
        long = [sentence.split() for sentence in sentences if len(sentence.split()) > 5]
        if long:
            said = rng.choice(long)
            middle = len(said) // 2
            halves = [" ".join(said[:middle]), " ".join(said[middle:])]
            rng.shuffle(halves)
            probes.append(Probe(halves[0], halves[1], [place]))
    return probes


def documentation(half: int) -> Conversation:
    """Return Python's documentation in long answers; asked is for half-sentences."""
    rng = random.Random(half)  # noqa: S311 - the same on every run
    texts = [text for name in sorted(topics) for text in topics[name].split("\n\n")]
    texts = [text for text in texts if len(text) > 60][half::2]
    messages = list(HEAD)
    for at in range(0, len(texts) - 2, 3):
        paragraphs = texts[at : at + 3]
        words_of_it = paragraphs[0].split()
        asked = " ".join(rng.sample(words_of_it, min(6, len(words_of_it))))
        messages += [
            user_message(f"What about {asked}?"),
            assistant_message("\n\n".join(paragraphs)),
        ]
    probes = half_sentences(messages, 1500, half)
    messages += [*support(half), *support(1 - half)]
    return Conversation("documentation", messages, _first(messages, 150_000), probes)


class Lexicon:
    """Pseudo-words with the frequencies of English: Zipf's law, steeper from rank 3,000 on."""

    def __init__(self, rng: random.Random, size: int = 16_000) -> None:
        self.rng = rng
        found: dict[str, None] = {}
        while len(found) < size:
            rank = len(found)
            count = 1 if rank < 60 else 2 if rank < 3000 else rng.choice((2, 2, 3, 3, 4))
            syllables = [rng.choice(_ONSETS) + rng.choice(_RHYMES) for _ in range(count)]
            found["".join([*syllables, rng.choice(_ENDINGS)])] = None
        self.known = list(found)
        odds = (1 / (rank + 2.7) * min(1.0, 3000 / (rank + 1)) ** 0.8 for rank in range(size))
        self.odds = list(accumulate(odds))

    def sentence(self, count: int, *inserted: str) -> str:
        said = self.rng.choices(self.known, cum_weights=self.odds, k=count)
        for text in inserted:
            said.insert(self.rng.randrange(1, len(said)), text)
        return " ".join([said[0].capitalize(), *said[1:]]) + "."

    def content(self, count: int) -> list[str]:
        """Return words that are not among the commonest, two thirds of them as in speech."""
        found: list[str] = []
        while len(found) < count:
            spoken = self.rng.choices(self.known, cum_weights=self.odds, k=2)
            rank = self.rng.randrange(200, 7000)
            word = self.rng.choice([*spoken, self.known[rank]])
            if word not in self.known[:200]:
                found.append(word)
        return found

    def fact(self) -> str:
        """Return a date, name, number of things, list, or pair of things."""
        rng = self.rng
        match rng.randrange(5):
            case 0:
                return f"{rng.randrange(1, 29)} {rng.choice(_MONTHS)} {rng.randrange(1990, 2027)}"
            case 1:
                return " ".join(word.capitalize() for word in self.content(rng.choice((1, 2))))
            case 2:
                return f"{rng.randrange(2, 900)} {self.content(1)[0]}"
            case 3:
                return " ".join(self.content(3))
            case _:
                return " and ".join(self.content(2))


def friends(half: int) -> Conversation:
    """Return a chat of two people with facts in three of ten messages."""
    rng = random.Random(half + 10)  # noqa: S311 - the same on every run
    lexicon = Lexicon(rng)
    messages, probes = list(HEAD), []
    while len(messages) < 13_500:
        said = [lexicon.sentence(rng.randrange(5, 18)) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.3:
            probes.append(_told(lexicon, said, len(messages)))
        message = user_message if len(messages) % 2 else assistant_message
        messages.append(message(" ".join(said)))
    return Conversation("synthetic friends", messages, _first(messages, 120_000), probes)


def assistant(half: int) -> Conversation:
    """Return questions and long answers; most facts stand in the questions."""
    rng = random.Random(half + 20)  # noqa: S311 - the same on every run
    lexicon = Lexicon(rng)
    messages, probes = list(HEAD), []
    while len(messages) < 3_200:
        asked = [lexicon.sentence(rng.randrange(5, 18)) for _ in range(rng.randrange(1, 5))]
        given = [lexicon.sentence(rng.randrange(8, 22)) for _ in range(rng.randrange(6, 25))]
        if rng.random() < 0.4:
            probes.append(_told(lexicon, asked, len(messages)))
        elif rng.random() < 0.15:
            probes.append(_told(lexicon, given, len(messages) + 1))
        messages += [user_message(" ".join(asked)), assistant_message(" ".join(given))]
    return Conversation("synthetic assistant", messages, _first(messages, 180_000), probes)


def _told(lexicon: Lexicon, sentences: list[str], place: int) -> Probe:
    """Insert a sentence with a fact; returns the probe for it."""
    rng, fact = lexicon.rng, lexicon.fact()
    topic = lexicon.content(1)[0]
    told = lexicon.sentence(rng.randrange(5, 12), fact, topic)
    sentences.insert(rng.randrange(len(sentences) + 1), told)
    return Probe(topic, fact, [place])


def main(half: int) -> None:
    """Print the scores of every conversation of a half."""
    for conversation in conversations(half):
        for window, row in zip(WINDOWS, scored(conversation), strict=True):
            later = "-" if row.later is None else f"{row.later:.3f}"
            print(
                f"{row.name:28}{window // 1000:4}K {row.probes:5} probes  first {row.first:.3f}"
                f"  second {row.second:.3f}  last {row.last:.3f}  later parts {later}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
