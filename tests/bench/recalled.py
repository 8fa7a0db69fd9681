"""What is known with recall: in the view, or among the first results of a search for the question.

Part of `python -m tests.bench statements`, on the conversations and probes of that section, for
each engine, in a 200K window; `lcm` also with a lower threshold, so that its view has 40K at most.
Searched is as `session_search` does: the question as it is, in the whole conversation, and what the
tool answers counts, as the model reads it. Beside that stands what the messages that are found hold
in full. Where a probe has no question, the first half of its answer is it, and the second half is
asked for.
`python -m tests.bench.recalled 0` prints every conversation of half 0.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.context_compressor import ContextCompressor
from agent.context_engine import CompressionRequest, ContextEngine, Limits
from agent.engines.lcm.engine import LcmEngine
from agent.messages import ChatMessage
from agent.ports import Findings, Hit
from agent.tokens import estimate_message
from agent.tools.builtin.history import answer_of
from agent.view.view import Entry, View, ViewPlan
from gateway.storage import migrations
from gateway.storage.conversation import transcript
from gateway.storage.search import index, query
from gateway.storage.search.query import Match
from tests.agent.tools.doubles import MemoryArchive
from tests.bench.conversations import Conversation, Probe, full_text, probed, words_in
from tests.bench.figures import Figure, percentile
from tests.bench.statements import FURTHER, Key, Shown, keys_of, rare_in
from tests.support.storage import Store, turn_of

WINDOW = 200_000
RESULTS = 10
NEIGHBOURS = 3
MOST_PROBES = 150
"""Of one conversation; a search takes milliseconds."""
AT_LEAST = 0.85
ENGINES: dict[str, tuple[Callable[[Limits], ContextEngine], float]] = {
    "compressor": (lambda limits: ContextCompressor(limits, {}), 0.5),
    "lcm": (lambda limits: LcmEngine(limits, {}), 0.5),
    "lcm at 40K": (lambda limits: LcmEngine(limits, {}), 1 / 3),
}
"""With their thresholds, as shares of the window; a compaction ends at 60 % of it at the latest."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one conversation by engine: view alone, with a search, and that at the end.

    Attributes:
        tokens: Of the first view that was compacted.
        whole: With the messages that a search finds in full, not as the tool tells of them.
    """

    name: str
    probes: int
    tokens: dict[str, int]
    view: dict[str, float]
    recalled: dict[str, float]
    whole: dict[str, float]
    later: dict[str, float]
    compact_ms: dict[str, list[float]]


def measure() -> Iterator[Figure]:
    """Yield the scores on the half of the data that nobody developed on."""
    found = [scored(conversation) for conversation in probed(1)]
    chats = [each for each in found if each.name.startswith("chat")]
    real = [each for each in found if not each.name.startswith("chat")]
    for engine in ENGINES:
        for name, chosen in (("chats", chats), ("real conversations", real)):
            if not chosen:
                continue
            bar = AT_LEAST if chosen is chats and engine == "compressor" else None
            title = f"200K window, {engine}, {name}"
            yield Figure(f"{title}: view alone", _mean([it.view[engine] for it in chosen]), "")
            recalled = _mean([it.recalled[engine] for it in chosen])
            yield Figure(f"{title}: with recall", recalled, "", at_least=bar)
            whole = _mean([it.whole[engine] for it in chosen])
            yield Figure(f"{title}: with recall, messages in full", whole, "")
            later = _mean([it.later[engine] for it in chosen])
            yield Figure(f"{title}: with recall, {FURTHER} further", later, "", at_least=bar)
        yield Figure(f"{engine}: view", _mean([it.tokens[engine] for it in found]), "tokens")
        times = [ms for each in found for ms in each.compact_ms[engine]]
        yield Figure(
            f"{engine}: processor time of a compaction, p95", percentile(times, 0.95), "ms"
        )


def scored(conversation: Conversation) -> Scores:
    """Return the scores after the first and the last compaction, for what was said first."""
    probes = list(_probes(conversation))
    answers = _searched(conversation.messages, [question for question, _ in probes])
    told, found = [each for each, _ in answers], [each for _, each in answers]
    tokens, view, recalled, whole, later, times = {}, {}, {}, {}, {}, {}
    for name, (make, threshold) in ENGINES.items():
        chat = Chat(conversation, make, Limits(WINDOW, threshold))
        chat.begin()
        shown = chat.text()
        tokens[name] = sum(map(estimate_message, chat.view().messages))
        view[name] = _mean([Shown(shown).score(keys) for _, keys in probes])
        recalled[name] = _with_recall(probes, told, shown)
        whole[name] = _with_recall(probes, found, shown)
        chat.go_on()
        later[name] = _with_recall(probes, told, chat.text())
        times[name] = chat.compact_ms
    return Scores(conversation.name, len(probes), tokens, view, recalled, whole, later, times)


def _with_recall(
    probes: Sequence[tuple[str, list[Key]]], found: Sequence[str], shown: str
) -> float:
    view = Shown(shown)
    scores = []
    for (_, keys), text in zip(probes, found, strict=True):
        results = Shown(text)
        held = sum(view.retains(key) or results.retains(key) for key in keys)
        scores.append(held / len(keys))
    return _mean(scores)


def _probes(conversation: Conversation) -> Iterator[tuple[str, list[Key]]]:
    """Yield questions about what was said before the first compaction, and what is asked for."""
    messages = conversation.messages[: conversation.first]
    words = [words_in(full_text(message)) for message in messages]
    rare, by_place = rare_in(words), dict(enumerate(words))
    early = [each for each in conversation.probes if max(each.evidence) < conversation.first]
    for probe in early[:: -(-len(early) // MOST_PROBES)]:
        question, answer = probe.question, probe.answer
        if not question:
            question, answer = (" ".join(half) for half in _halves(answer.split()))
        if keys := keys_of(Probe(question, answer, probe.evidence), by_place, rare):
            yield question, keys


def _halves(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def _searched(messages: Sequence[ChatMessage], questions: Sequence[str]) -> list[tuple[str, str]]:
    """Return what the tool answers to each question, and the messages that it has found."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "bench.db")
        store.without_sync()
        store.run(migrations.upgrade)
        turn = store.run(turn_of, "-")
        own = turn.lease.conversation
        before = store.conversation(own).message_head
        store.run(transcript.append, turn.place, list(messages[1:]))
        while waiting := store.run(index.waiting, own):
            store.run(index.feed, index.prepared(waiting))
        texts = {
            seq: full_text(message) for seq, message in enumerate(messages[1:], start=before + 1)
        }
        found = []
        for question in questions:
            matches = store.run(query.find, [own], question, limit=RESULTS) if question else []
            whole = "\n".join(texts.get(match.seq, "") for match in matches)
            found.append((_told(store, matches, question), whole))
        store.close()
    return found


def _told(store: Store, matches: Sequence[Match], question: str) -> str:
    """Return what the tool answers, but for the line that says where it looked."""
    texts = store.run(query.with_neighbours, matches, NEIGHBOURS)
    hits = tuple(
        Hit(match.conversation, "", True, match.seq, tuple(texts[n]), match.holds)
        for n, match in enumerate(matches)
        if n in texts
    )
    return answer_of(Findings(hits, ""), question) if hits else ""


@dataclass(slots=True)
class Chat:
    """A conversation that goes on, compacted by an engine at the threshold, without any model."""

    conversation: Conversation
    make: Callable[[Limits], ContextEngine]
    limits: Limits
    plan: ViewPlan = field(default_factory=ViewPlan)
    archive: MemoryArchive = field(default_factory=MemoryArchive)
    compact_ms: list[float] = field(default_factory=list)
    said: int = 0
    shown: list[Entry] = field(default_factory=list)

    def begin(self) -> None:
        """Say the first part, and compact it."""
        self.grow(self.conversation.first)
        self.compact()

    def go_on(self) -> None:
        """Say the rest, up to so many compactions."""
        for _ in range(FURTHER):
            self.grow(len(self.conversation.messages))
            self.compact()

    def grow(self, upto: int) -> None:
        """Show what is said next, until the threshold is reached."""
        first = upto == self.conversation.first
        room = self.limits.threshold_tokens - sum(map(estimate_message, self.view().messages))
        while self.said + 1 < upto and (first or room > 0):
            self.said += 1
            message = self.conversation.messages[self.said]
            room -= estimate_message(message)
            self.shown.append(Entry(self.said, message))

    def view(self) -> View:
        return View("You are a helpful assistant.", self.plan, list(self.shown))

    def compact(self) -> None:
        view, limits = self.view(), self.limits
        request = CompressionRequest(
            plan=self.plan,
            entries=tuple(view.entries),
            tokens=sum(map(estimate_message, view.messages)),
            fixed_tokens=estimate_message(view.messages[0]),
            limits=limits,
            estimate=estimate_message,
            trigger="threshold",
        )
        engine = self.make(limits)
        engine.attach(self.archive)
        began = time.process_time()
        found = engine.compress(request)
        if found is not None:
            self.compact_ms.append((time.process_time() - began) * 1000)
            self.plan = found.plan
            self.archive.stored += found.nodes
            self.shown = found.plan.select(self.shown)

    def text(self) -> str:
        return "\n".join(map(full_text, self.view().messages))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    for each in map(scored, probed(int(sys.argv[1]))):
        for engine in ENGINES:
            print(
                f"{each.name:28}{engine:12} {each.probes:4} probes  {each.tokens[engine]:6,} tokens"
                f"  view {each.view[engine]:.3f}  with recall {each.recalled[engine]:.3f}"
                f"  in full {each.whole[engine]:.3f}"
                f"  later {each.later[engine]:.3f}",
                flush=True,
            )
