"""How much of what was said the search finds again, and how fast.

`python -m tests.bench.recall [SET] [--messages N]`. SET is LoCoMo's locomo10.json, or
the folder of REALTALK's chats: dialogues of two speakers over many sessions, and questions with the
turns that answer them. Without one our own conversations stand in (tests/bench/probes.py), and the
airline dialogues of the shared data, one behind another: a question is every second word of what
somebody said there, which is easier. Beside each stands what FTS5 by itself finds: Porter's stems
and bm25(), the question without its stop words.

Speed: one conversation of N messages (1,000,000 takes minutes to seed) in a database as the product
opens it, and searches for everybody's messages. Words are as frequent as in English; questions have
four, of which each may be common. With `--many` the messages are those of conversations of 100.

All of it on SQLite, then on PostgreSQL, whose share of questions that find evidence may differ from
SQLite's by `APART` at most.
"""

import itertools
import random
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection

from agent.messages import ChatMessage, encode, text_of, user_message
from gateway.storage import migrations, postgres
from gateway.storage.conversation import conversations
from gateway.storage.migrations import prepare_schema
from gateway.storage.schema import conversation, message
from gateway.storage.search import index, query
from gateway.storage.search.index import asked_words, folded, stop_words_of
from gateway.storage.sqlite_file import connect
from tests.bench.figures import Figure, percentile
from tests.bench.probes import Dialogue, chats, forms
from tests.support.postgres import PostgresServer, postgres_server, server_at
from tests.support.shared import SHARED

VOCABULARY = 50_000
WORDS = 20
"""Of a seeded message: about 33 tokens, so that 30,000 of them are 1M."""
TOKENS_1M = 30_000
QUESTIONS = 200
APART = 0.02
HARDER = 6
"""Every sixth word of a message, as a second set of questions."""
OF_MANY = 100
"""Messages of each of many conversations."""
SEED = 6
Found = list[tuple[bool, float, tuple[int, ...]]]
"""By question: whether any evidence is in the first 10, the share of it that 20 with their
neighbours show, and the first 10."""


@dataclass(frozen=True, slots=True)
class Place:
    """An open database.

    Attributes:
        begin: A transaction.
        index_bytes: Asks for the size of the search index.
    """

    name: str
    conn: Connection
    begin: Callable[[], AbstractContextManager[Any]]
    index_bytes: str


@contextmanager
def _places(folder: Path, file: str, server: PostgresServer) -> Iterator[list[Place]]:
    """Open a new database of each engine."""
    with (
        closing(connect(folder / file)) as conn,
        closing(postgres.connect(server_at(server.url(server.create())))) as other,
    ):
        prepare_schema(conn)
        with other.begin():
            migrations.upgrade(other)
        places = [
            Place("SQLite", conn, conn.begin, "SELECT sum(length(block)) FROM search_index_data"),
            Place(
                "PostgreSQL",
                other,
                other.begin,
                "SELECT pg_total_relation_size('search_index')",
            ),
        ]
        for place in places:
            with place.begin():
                index.clear(place.conn)
        yield places


def measure(
    chosen: Path | None = None,
    messages: int = TOKENS_1M,
    *,
    many: bool = False,
) -> Iterator[Figure]:
    """Yield recall on a set, then the time of a search among so many messages."""
    sets = [stored(chosen)] if chosen else [airline(), airline(HARDER), chats(), [forms()]]
    with tempfile.TemporaryDirectory() as name, postgres_server() as server:
        folder = Path(name)
        strict = chosen is not None and chosen.is_file()
        for number, dialogues in enumerate(filter(None, sets)):
            with _places(folder, f"recall{number}.db", server) as places:
                yield Figure(f"set {number + 1}: FTS5 by itself", _plain(dialogues), "")
                yield from _recalls(places, dialogues, strict=strict)
        with _places(folder, "speed.db", server) as places:
            of_one = OF_MANY if many else messages
            speeds = (_speed(place, messages, of_one) for place in places)
            yield from itertools.chain.from_iterable(speeds)


def _recalls(
    places: Sequence[Place], dialogues: Sequence[Dialogue], *, strict: bool
) -> Iterator[Figure]:
    all_found = []
    for place in places:
        for number, dialogue in enumerate(dialogues, 1):
            with place.begin():
                _enter(place.conn, number, dialogue.turns)
        _feed(place)
        with place.begin():
            found = _found(place.conn, dialogues)
        all_found.append(found)
        yield from _recall(place, found, strict=strict)
    on_sqlite, on_postgres = all_found
    apart = abs(_means(on_sqlite)[0] - _means(on_postgres)[0])
    yield Figure("any evidence in the first 10: apart", apart, "", at_most=APART)
    pairs = [
        (one[2], other[2])
        for of_one, of_other in zip(on_sqlite, on_postgres, strict=True)
        for one, other in zip(of_one, of_other, strict=True)
    ]
    same = sum(one == other for one, other in pairs) / len(pairs)
    yield Figure("questions with the same first 10 in the same order", same, "")


def _plain(dialogues: Sequence[Dialogue]) -> float:
    """Return the share of questions of which FTS5 alone has any evidence in the first 10."""
    found = []
    for dialogue in dialogues:
        with closing(sqlite3.connect(":memory:")) as conn:
            conn.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61')")
            texts = ((text_of(turn),) for turn in dialogue.turns)
            conn.executemany("INSERT INTO said (text) VALUES (?)", texts)
            found += [
                not evidence.isdisjoint(_ranked(conn, q)) for q, evidence in dialogue.questions
            ]
    return sum(found) / len(found)


def _ranked(conn: sqlite3.Connection, question: str) -> list[int]:
    words = re.findall(r"\w+", folded(question))
    left = [word for word in words if word not in stop_words_of(words)] or words
    looked_for = " OR ".join(f'"{word}"' for word in left)
    ranked = "SELECT rowid FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT 10"
    return [row[0] for row in conn.execute(ranked, (looked_for,))]


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


def airline(step: int = 2) -> list[Dialogue]:
    """Return the shared airline dialogues, 20 to a conversation; none where they are not there.

    Args:
        step: Each so manieth word of what somebody said is the question.
    """
    if SHARED is None:
        return []
    calls = orjson.loads((SHARED / "tau-bench" / "gpt-4o-airline.json").read_bytes())
    return [
        _known_items([each for call in batch for each in call["traj"][1:]], step)
        for batch in _batched(calls, 20)
    ]


def _batched(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[n : n + size] for n in range(0, len(items), size))


def _known_items(turns: Sequence[ChatMessage], step: int) -> Dialogue:
    questions = []
    for place, turn in enumerate(turns, 1):
        words = asked_words(text_of(turn)) if turn["role"] == "user" else {}
        if len(words) > WORDS // 2:
            questions.append((" ".join(text_of(turn).split()[::step]), frozenset({place})))
    return Dialogue(turns, questions)


def _found(conn: Connection, dialogues: Sequence[Dialogue]) -> list[Found]:
    """Return what a search finds for the questions of each dialogue."""
    return [
        [_share(conn, number, *asked) for asked in dialogue.questions]
        for number, dialogue in enumerate(dialogues, 1)
    ]


def _share(
    conn: Connection, number: int, question: str, evidence: frozenset[int]
) -> tuple[bool, float, tuple[int, ...]]:
    seqs = [each.seq for each in query.find(conn, [number], question, limit=20)]
    shown = {seq + step for seq in seqs for step in (-1, 0, 1)}
    share = len(evidence & shown) / len(evidence)
    return not evidence.isdisjoint(seqs[:10]), share, tuple(seqs[:10])


def _means(found: Sequence[Found]) -> tuple[float, float]:
    first, covered, _ = zip(*itertools.chain.from_iterable(found), strict=True)
    return sum(first) / len(first), sum(covered) / len(covered)


def _recall(place: Place, found: Sequence[Found], *, strict: bool) -> Iterator[Figure]:
    any_of_ten, at_twenty = _means(found)
    name = place.name
    yield Figure(f"{name}: questions", sum(map(len, found)), "")
    limits = (0.75, 0.85) if strict else (None, None)
    yield Figure(f"{name}: any evidence in the first 10", any_of_ten, "", None, limits[0])
    yield Figure(f"{name}: recall at 20 with neighbours", at_twenty, "", None, limits[1])


def _speed(place: Place, messages: int, of_one: int) -> Iterator[Figure]:
    chance = random.Random(SEED)  # noqa: S311 - the same words in every run
    words = _words(VOCABULARY)
    ranks = list(itertools.accumulate(1 / (n + 1) for n in range(VOCABULARY)))
    begun = time.perf_counter()
    step = min(10_000, of_one)
    for start in range(0, messages, step):
        count = min(step, messages - start)
        texts = chance.choices(words, cum_weights=ranks, k=count * WORDS)
        turns = [" ".join(texts[n * WORDS : (n + 1) * WORDS]) for n in range(count)]
        said = [ChatMessage(role="user", content=turn) for turn in turns]
        with place.begin():
            _enter(place.conn, start // of_one + 1, said, start % of_one)
        _feed(place)
    fed_s = time.perf_counter() - begun
    if place.name == "PostgreSQL":
        with place.begin():
            place.conn.exec_driver_sql("ANALYZE")
    questions = [" ".join(chance.choices(words, cum_weights=ranks, k=4)) for _ in range(QUESTIONS)]
    last = max(messages // of_one, 1)
    title = f"{place.name}, {messages:,} messages"
    if last > 1:
        title += f" of {last:,} conversations"
    yield Figure(f"{title}: seeded and fed, each", fed_s / messages * 1e6, "us")
    with place.begin():
        size = place.conn.exec_driver_sql(place.index_bytes).scalar_one()
    yield Figure(f"{title}: full-text index", size / 1e6, "MB")
    limit_ms = 60 if messages <= TOKENS_1M else 200
    where = {"one": [chance.randrange(last) + 1], "15": list(range(1, 16)), "all": None}
    for name, chosen in where.items():
        if last == 1 and name == "15":
            continue
        spent = [_spent_ms(place, chosen, question) for question in questions]
        yield Figure(f"{title}: a search in {name}, p50", percentile(spent, 0.5), "ms")
        yield Figure(f"{title}: a search in {name}, p99", percentile(spent, 0.99), "ms", limit_ms)


def _words(count: int) -> list[str]:
    """Return words of one to three syllables, short ones first, which share beginnings and ends."""
    chance = random.Random(SEED)  # noqa: S311 - the same words in every run
    syllables = ["".join(each) for each in itertools.product("bdfgklmnprst", "aeiou", "nrst")]
    chance.shuffle(syllables)
    found: dict[str, None] = {}
    for length, upto in ((1, 200), (2, 4_000), (3, count)):
        while len(found) < min(upto, count):
            found["".join(chance.choices(syllables, k=length))] = None
    return list(found)


def _spent_ms(place: Place, where: Sequence[int] | None, question: str) -> float:
    begun = time.perf_counter()
    with place.begin():
        query.find(place.conn, where, question, limit=10)
    return (time.perf_counter() - begun) * 1000


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


def _feed(place: Place) -> None:
    with place.begin():
        while found := conversations.unsearched(place.conn, 1):
            waiting = index.waiting(place.conn, found[0])
            assert waiting is not None
            index.feed(place.conn, index.prepared(waiting))


def main(arguments: list[str]) -> int:
    """Print the figures; returns 1 where a target is missed."""
    messages, flags = TOKENS_1M, {"--many"} & {*arguments}
    arguments = [each for each in arguments if each not in flags]
    if "--messages" in arguments:
        at = arguments.index("--messages")
        messages = int(arguments[at + 1])
        del arguments[at : at + 2]
    chosen = Path(arguments[0]) if arguments else None
    figures = []
    for figure in measure(chosen, messages, many=bool(flags)):
        print(figure, flush=True)
        figures.append(figure)
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
