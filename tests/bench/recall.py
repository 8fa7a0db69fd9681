"""How much of what was said the search finds again, and how fast.

`python -m tests.bench.recall [SET] [--held-out] [--messages N]`. SET is LoCoMo's locomo10.json, or
the folder of REALTALK's chats: dialogues of two speakers over many sessions, and questions with the
turns that answer them. Without one the airline dialogues of the shared data stand in, one behind
another: a question is every second word of what somebody said there, which is easier. Nothing is
tuned to it.

`--held-out` measures each dialogue with those constants of a grid that are best for the others,
instead of the product's own; it takes minutes.

Speed: one conversation of N messages (1,000,000 takes minutes to seed) in a file as the product
opens it. Words are as frequent as in English; questions have four, of which each may be common.
"""

import itertools
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection

from agent.messages import ChatMessage, encode, text_of, user_message
from gateway.storage.conversation import conversations
from gateway.storage.engine import connect
from gateway.storage.migrations import prepare_schema
from gateway.storage.schema import conversation, message
from gateway.storage.search import index, query
from gateway.storage.search.terms import asked_terms
from tests.bench.figures import Figure, percentile
from tests.support.shared import SHARED

VOCABULARY = 50_000
WORDS = 20
"""Of a seeded message: about 33 tokens, so that 30,000 of them are 1M."""
TOKENS_1M = 30_000
QUESTIONS = 200
SEED = 6
GRID = tuple(itertools.product((2, 3, 4), (0.4, 0.5, 0.6), (0.08, 0.15, 0.3)))
"""Reach, decay, weight of a message's length."""

Found = list[tuple[bool, float]]
"""By question: whether any evidence is in the first 10, and the share of it that 20 with their
neighbours show."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What was said, and (question, places of the turns that answer it)."""

    turns: Sequence[ChatMessage]
    questions: Sequence[tuple[str, frozenset[int]]]


def measure(
    chosen: Path | None = None, messages: int = TOKENS_1M, *, held_out: bool = False
) -> Iterator[Figure]:
    """Yield recall on a set, then the time of a search among so many messages."""
    dialogues = stored(chosen) if chosen else airline()
    with tempfile.TemporaryDirectory() as folder:
        if dialogues:
            strict = chosen is not None and chosen.is_file()
            conn = _entered(Path(folder) / "recall.db", dialogues)
            found = _held_out(conn, dialogues) if held_out else _found(conn, dialogues)
            conn.close()
            yield from _recall(found, strict=strict)
        if not held_out:
            yield from _speed(Path(folder) / "speed.db", messages)


def stored(path: Path) -> list[Dialogue]:
    """Read a set as LoCoMo or REALTALK write it: each turn becomes `name: text`."""
    if path.is_file():
        samples = orjson.loads(path.read_bytes())
        return [_dialogue(sample["conversation"], sample["qa"]) for sample in samples]
    chats = [orjson.loads(each.read_bytes()) for each in sorted(path.glob("Chat_*.json"))]
    return [_dialogue(chat, chat["qa"]) for chat in chats]


def _dialogue(said: dict[str, Any], asks: Sequence[dict[str, Any]]) -> Dialogue:
    places: dict[str, int] = {}
    turns: list[ChatMessage] = []
    sessions = sorted(
        (key for key in said if re.fullmatch(r"session_\d+", key)), key=lambda key: int(key[8:])
    )
    for turn in itertools.chain.from_iterable(said[key] for key in sessions):
        places[turn["dia_id"]] = len(turns) + 1
        text = turn["text"] if "text" in turn else turn["clean_text"]
        turns.append(user_message(f"{turn['speaker']}: {text}"))
    asked = (
        (each["question"], frozenset(places[at] for at in _turn_ids(each) if at in places))
        for each in asks
    )
    return Dialogue(turns, [(question, evidence) for question, evidence in asked if evidence])


def _turn_ids(question: dict[str, Any]) -> list[str]:
    return re.findall(r"D\d+:\d+", " ".join(question["evidence"]))


def airline() -> list[Dialogue]:
    """Return the shared airline dialogues, 20 to a conversation; none where they are not there."""
    if SHARED is None:
        return []
    calls = orjson.loads((SHARED / "tau-bench" / "gpt-4o-airline.json").read_bytes())
    return [
        _known_items([each for call in batch for each in call["traj"][1:]])
        for batch in _batched(calls, 20)
    ]


def _batched(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[n : n + size] for n in range(0, len(items), size))


def _known_items(turns: Sequence[ChatMessage]) -> Dialogue:
    questions = []
    for place, turn in enumerate(turns, 1):
        words = asked_terms(text_of(turn)) if turn["role"] == "user" else []
        if len(words) > WORDS // 2:
            questions.append((" ".join(text_of(turn).split()[::2]), frozenset({place})))
    return Dialogue(turns, questions)


def _entered(path: Path, dialogues: Sequence[Dialogue]) -> Connection:
    """Return a database in which each dialogue is a conversation, numbered from 1 on."""
    conn = _opened(path)
    for number, dialogue in enumerate(dialogues, 1):
        with conn.begin():
            _enter(conn, number, dialogue.turns)
    _feed(conn)
    return conn


def _found(conn: Connection, dialogues: Sequence[Dialogue]) -> list[Found]:
    """Return what a search finds for the questions of each dialogue."""
    return [
        [_share(conn, number, *asked) for asked in dialogue.questions]
        for number, dialogue in enumerate(dialogues, 1)
    ]


def _share(
    conn: Connection, number: int, question: str, evidence: frozenset[int]
) -> tuple[bool, float]:
    seqs = [each.seq for each in query.find(conn, [number], question, limit=20)]
    shown = {seq + step for seq in seqs for step in (-1, 0, 1)}
    return not evidence.isdisjoint(seqs[:10]), len(evidence & shown) / len(evidence)


def _held_out(conn: Connection, dialogues: Sequence[Dialogue]) -> list[Found]:
    """Return the same, each dialogue with the constants that are best for the others."""
    tried = []
    for constants in GRID:
        _choose(*constants)
        tried.append(_found(conn, dialogues))
    places = range(len(dialogues))
    return [
        max(tried, key=lambda found: sum(_means([*found[:n], *found[n + 1 :]])))[n] for n in places
    ]


def _choose(reach: int, decay: float, length_weight: float) -> None:
    query.REACH, query.DECAY, query.LENGTH_WEIGHT = reach, decay, length_weight
    steps = range(-reach, reach + 1)
    query._WEIGHTS = tuple((step, decay ** abs(step)) for step in steps)


def _means(found: Sequence[Found]) -> tuple[float, float]:
    first, covered = zip(*itertools.chain.from_iterable(found), strict=True)
    return sum(first) / len(first), sum(covered) / len(covered)


def _recall(found: Sequence[Found], *, strict: bool) -> Iterator[Figure]:
    any_of_ten, at_twenty = _means(found)
    yield Figure("questions", sum(map(len, found)), "")
    yield Figure("any evidence in the first 10", any_of_ten, "", None, 0.75 if strict else None)
    yield Figure("recall at 20 with neighbours", at_twenty, "", None, 0.85 if strict else None)


def _speed(path: Path, messages: int) -> Iterator[Figure]:
    chance = random.Random(SEED)  # noqa: S311 - the same words in every run
    words = [f"w{n}" for n in range(VOCABULARY)]
    ranks = list(itertools.accumulate(1 / (n + 1) for n in range(VOCABULARY)))
    conn = _opened(path)
    begun = time.perf_counter()
    for start in range(0, messages, 10_000):
        count = min(10_000, messages - start)
        texts = chance.choices(words, cum_weights=ranks, k=count * WORDS)
        turns = [" ".join(texts[n * WORDS : (n + 1) * WORDS]) for n in range(count)]
        with conn.begin():
            _enter(conn, 1, [ChatMessage(role="user", content=turn) for turn in turns], start)
        _feed(conn)
    fed_s = time.perf_counter() - begun
    spent = []
    for _ in range(QUESTIONS):
        question = " ".join(chance.choices(words, cum_weights=ranks, k=4))
        begun = time.perf_counter()
        query.find(conn, [1], question, limit=10)
        spent.append((time.perf_counter() - begun) * 1000)
    (pages,) = conn.exec_driver_sql("SELECT sum(length(block)) FROM search_index_data").one()
    conn.close()
    limit_ms = 20 if messages <= TOKENS_1M else 100
    yield Figure(f"{messages:,} messages: seeded and fed, each", fed_s / messages * 1e6, "us")
    yield Figure(f"{messages:,} messages: full-text index", pages / 1e6, "MB")
    yield Figure(f"{messages:,} messages: a search, p50", percentile(spent, 0.5), "ms")
    yield Figure(f"{messages:,} messages: a search, p99", percentile(spent, 0.99), "ms", limit_ms)


def _opened(path: Path) -> Connection:
    conn = connect(path)
    prepare_schema(conn)
    with conn.begin():
        index.clear(conn)
    return conn


def _enter(conn: Connection, number: int, turns: Sequence[ChatMessage], after: int = 0) -> None:
    if not after:
        place = {"platform": "bench", "account": "bench", "chat": str(number)}
        conn.execute(conversation.insert().values(id=number, created_at=0, **place))
    rows = [
        {
            "conversation": number,
            "seq": seq,
            "session_id": 1,
            "role": turn["role"],
            "body": encode(turn),
            "tokens": 0,
            "at": float(seq),
        }
        for seq, turn in enumerate(turns, after + 1)
    ]
    conn.execute(message.insert(), rows)
    head = conversation.update().where(conversation.c.id == number)
    conn.execute(head.values(message_head=after + len(rows)))


def _feed(conn: Connection) -> None:
    with conn.begin():
        while found := conversations.unsearched(conn, 1):
            waiting = index.waiting(conn, found[0])
            assert waiting is not None
            index.feed(conn, index.prepared(waiting))


def main(arguments: list[str]) -> int:
    """Print the figures; returns 1 where a target is missed."""
    messages, held_out = TOKENS_1M, "--held-out" in arguments
    if held_out:
        arguments.remove("--held-out")
    if "--messages" in arguments:
        at = arguments.index("--messages")
        messages = int(arguments[at + 1])
        del arguments[at : at + 2]
    chosen = Path(arguments[0]) if arguments else None
    figures = []
    for figure in measure(chosen, messages, held_out=held_out):
        print(figure, flush=True)
        figures.append(figure)
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
