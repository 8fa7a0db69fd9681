"""Conversations of the benches with what is asked about them: recorded ones, and written ones.

Recorded are support dialogues, coding sessions and runs of an agent (../shared/data); chats with an
assistant are tests/bench/affairs.py's.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pydoc_data.topics import topics
from typing import Any, cast

from agent.messages import ChatMessage, assistant_message, text_of, user_message
from agent.tokens import estimate_message
from tests.bench import affairs
from tests.support.shared import SHARED

HEAD: list[ChatMessage] = [
    ChatMessage(role="system", content="You are a helpful assistant."),
    user_message("Hi"),
    assistant_message("Hello! How can I help?"),
]
_WORD = re.compile(r"\w+")


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

    @property
    def is_chat(self) -> bool:
        """Whether rules have written it."""
        return self.name.startswith("chat")


def probed(half: int) -> Iterator[Conversation]:
    """Yield conversations of each kind, from one half of the data."""
    yield from (chat(half, number) for number in range(3))
    if SHARED is None:
        return
    ours, others = tau(half), tau(1 - half)
    yield joined("support", ours, others, 150_000)
    yield joined("support, replies left out", unsaid(ours), unsaid(others), 150_000)
    yield joined("support, text only", plain(ours), plain(others), 100_000)
    yield coding(half)
    yield trajectory(half)
    yield documentation(half)


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


def chat(half: int, number: int) -> Conversation:
    """Return a chat of 100K tokens that others follow, so that it is compacted ten times more."""
    seed = 100 * half + number
    first = affairs.written(100_000, seed)
    messages = [*first.messages]
    for n in range(9):
        messages += affairs.written(100_000, 1000 + 100 * seed + n).messages[1:]
    probes = [Probe(*asked) for asked in first.probes]
    return Conversation(f"chat {seed}", messages, len(first.messages), probes)


def lived(half: int) -> Conversation:
    """Return a chat of 1M tokens, all of which is asked about."""
    whole = affairs.written(1_000_000, 7 + half)
    probes = [Probe(*asked) for asked in whole.probes]
    return Conversation("chat of 1M tokens", whole.messages, 0, probes)


def words_in(text: str) -> list[str]:
    """Return the words of a text in order, in small letters."""
    return _WORD.findall(text.lower())


def full_text(message: ChatMessage) -> str:
    """Return the text of a message and of its calls."""
    calls = message.get("tool_calls", ())
    return " ".join([text_of(message), *(call["function"]["arguments"] for call in calls)])
