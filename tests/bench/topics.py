"""Measures the timeline of topics by the tool's own answers.

Labels are a reader's (tests/bench/probes/topics.txt). It counts whether a line begins where a topic
begins, and whether an answer to "in which order did I bring up …" holds each that was asked for,
oldest first. `python -m tests.bench.topics` prints what is missed and what is wrong.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, update

from agent.messages import ChatMessage, assistant_message, text_of, user_message
from agent.tools.builtin.history import topics_told
from agent.tools.context import SearchQuery
from gateway.agent_ports.search import ConversationSearcher, Indexer
from gateway.storage import migrations
from gateway.storage.migrations import open_database
from gateway.storage.schema import message
from tests.bench.conversations import pi
from tests.bench.figures import Figure
from tests.support.searching import chat, feed, tell
from tests.support.shared import SHARED
from tests.support.storage import Store

PROBES = Path(__file__).parent / "probes"
TOPICS = PROBES / "topics.txt"
LEAST = 0.8
MOST_SHOWN = 30
RECORDED = " in two recorded sessions"
RECORDED_ON = "2026-01-10"
_SPAN = re.compile(r" #(\d+)-#(\d+), ")


@dataclass(frozen=True, slots=True)
class Score:
    """Lines found correctly, missed, and found wrongly."""

    right: Sequence[str]
    missed: Sequence[str]
    wrong: Sequence[str]

    @property
    def precision(self) -> float:
        """Return the share of correct lines among those found."""
        return len(self.right) / max(1, len(self.right) + len(self.wrong))

    @property
    def recall(self) -> float:
        """Return the share of expected lines that are found."""
        return len(self.right) / max(1, len(self.right) + len(self.missed))


Said = tuple[str, str]
"""A day, and a message of it."""


def _parts(path: Path) -> Iterator[list[Said]]:
    """Yield the lines of each chat of a file, with their days."""
    for part in re.split(r"^-- .*\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        days = re.split(r"^== (.*)\n", part, flags=re.MULTILINE)[1:]
        yield [
            (day, line)
            for day, lines in zip(days[::2], days[1::2], strict=True)
            for line in lines.splitlines()
        ]


@dataclass(frozen=True, slots=True)
class TopicChat:
    """A chat with the numbers of the messages that begin a topic, and what is asked about it.

    Attributes:
        asked: The words of a question, and where each topic that it is about was first brought up.
    """

    said: Sequence[tuple[str, ChatMessage]]
    begins: Sequence[int]
    asked: Sequence[tuple[str, Sequence[int]]]


def topic_chats() -> Iterator[TopicChat]:
    """Yield the chats of topics.txt that are written there."""
    for part in _parts(TOPICS):
        lines = [(day, line) for day, line in part if line[0] not in "?@"]
        labels = [line[1:].split(" ")[0] if line[0] == "*" else "" for _, line in lines]
        questions = [line[2:].split(" | ") for _, line in part if line[0] == "?"]
        yield TopicChat(
            said=[(day, _said(line)) for day, line in lines],
            begins=[n for n, label in enumerate(labels, 1) if label],
            asked=[
                (words, [labels.index(each) + 1 for each in about.split()])
                for about, words in questions
            ],
        )


def recorded_chats() -> Iterator[TopicChat]:
    """Yield the recorded sessions of topics.txt: what people and the assistant said."""
    for line in TOPICS.read_text("utf-8").splitlines() if SHARED else ():
        if line.startswith("@ "):
            name, first, last, labels = line[2:].split(" | ")
            numbered = list(enumerate(pi(name), 1))[int(first) - 1 : int(last)]
            said = [(n, each["role"], text_of(each)) for n, each in numbered]
            told = [(n, role, text) for n, role, text in said if role != "tool" and text]
            wanted = set(map(int, labels.split()))
            yield TopicChat(
                [(RECORDED_ON, ChatMessage(role=role, content=text)) for _, role, text in told],
                [place for place, (n, _, _) in enumerate(told, 1) if n in wanted],
                (),
            )


def _said(line: str) -> ChatMessage:
    text = line.split(" ", 1)[1]
    return assistant_message(text) if line[0] == "<" else user_message(text)


async def scored_topics(chats: Iterable[TopicChat]) -> tuple[Score, Score]:
    """Score the tool's beginnings of topics, and the asked topics that it finds."""
    begun, asked = [], []
    for each in chats:
        answers = await _topics_told(each)
        spans = [span for line in answers[0] for span in _SPAN.findall(line)]
        begun.append(_compared([first for first, _ in spans], [str(n) for n in each.begins]))
        for (words, wanted), told in zip(each.asked, answers[1:], strict=True):
            spans = [span for line in told for span in _SPAN.findall(line)]
            hold = [n for n in wanted if any(int(a) <= n <= int(b) for a, b in spans)]
            in_order = [int(a) for a, _ in spans] == sorted(int(a) for a, _ in spans)
            right = hold if in_order else []
            asked.append(
                _compared([f"{words}: #{n}" for n in right], [f"{words}: #{n}" for n in wanted])
            )
    return _together(begun), _together(asked)


def _compared(told: Sequence[str], wanted: Sequence[str]) -> Score:
    return Score(
        [each for each in wanted if each in told],
        [each for each in wanted if each not in told],
        [each for each in told if each not in wanted],
    )


def _together(scores: Sequence[Score]) -> Score:
    return Score(
        [each for score in scores for each in score.right],
        [each for score in scores for each in score.missed],
        [each for score in scores for each in score.wrong],
    )


async def _topics_told(chat_of: TopicChat) -> list[list[str]]:
    """Return the tool's answer without a query, and its answer to each question."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "bench.db")
        store.run(migrations.upgrade)
        here = chat(store)
        for day, said in chat_of.said:
            store.run(_tell_on, here, day, said)
        feed(store)
        store.close()
        async with open_database(store.path) as database:
            searcher = ConversationSearcher(database, Indexer(database), here)
            queries = ["", *(words for words, _ in chat_of.asked)]
            return [
                await topics_told(searcher, SearchQuery(text, limit=MOST_SHOWN)) for text in queries
            ]


def _tell_on(conn: Connection, here: int, day: str, said: ChatMessage) -> None:
    seq = tell(conn, here, [said])
    at = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp() + 60 * seq
    conn.execute(update(message).where(message.c.seq == seq).values(at=at))


def measure() -> Iterator[Figure]:
    """Yield all figures."""
    begun, asked = asyncio.run(scored_topics(topic_chats()))
    for score, where in ((begun, ""), (asyncio.run(scored_topics(recorded_chats()))[0], RECORDED)):
        if count := len(score.right) + len(score.missed):
            name = f"{count} beginnings of topics{where}"
            yield Figure(f"{name}: precision", score.precision, "", at_least=LEAST)
            yield Figure(f"{name}: recall", score.recall, "", at_least=LEAST)
    count = len(asked.right) + len(asked.missed)
    yield Figure(f"{count} topics asked for in order: told", asked.recall, "", at_least=LEAST)


def main() -> None:
    """Print missed and wrong lines."""
    begun, asked = asyncio.run(scored_topics(topic_chats()))
    recorded, _ = asyncio.run(scored_topics(recorded_chats()))
    named = (("topics", begun), ("recorded", recorded), ("order", asked))
    for name, score in named:
        print(f"{name}: precision {score.precision:.2f}, recall {score.recall:.2f}")
        sys.stdout.writelines(f"  missed {line}\n" for line in score.missed)
        sys.stdout.writelines(f"  wrong  {line}\n" for line in score.wrong)


if __name__ == "__main__":
    main()
