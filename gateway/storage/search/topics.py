"""The timeline of topics: what a conversation was about, one row for each stretch of messages.

It is derived from the transcript like the search index, and fed with it: outside of the path of a
message, in the transaction that moves `conversation.searched_seq`. A topic begins where a person
says so ("by the way", "another question"), after a long pause, with a message of some length that
shares no word with what was said last, or with a long one that brings much that is new: who works
on one project shares its words all day. Answers belong to it: what they bring up may be asked about
next.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, delete, select, update

from agent.context.sentences import sentences
from agent.context.statements import content_words
from agent.messages import ChatMessage, text_of
from gateway.storage.schema import topic
from gateway.storage.statements import built_once

PAUSE_S = 8 * 3600.0
"""Behind such a pause another topic begins."""
LEAST_WORDS = 4
"""A message with fewer words of its own goes on with the topic, whatever they are."""
MANY_WORDS = 15
"""A message that brings so many new ones begins another topic, whatever it shares."""
PAIR_CHARS = 2
"""In a script without spaces a pair of signs is a word: one sentence has `MANY_WORDS` of them."""
STEM_CHARS = 6
KEPT_STEMS = 160
"""Of a topic, the newest: what it was about at first it may have left."""
STEMS_OF_ONE = 40
MARK_CHARS = 4
"""A topic's row fits into a page of SQLite's with marks; with its stems each took a page more."""
TELLING_WORDS = 3
"""A sentence with so many tells what a message is about: "Thanks!" does not."""
LABEL_CHARS = 120
READ_CHARS = 4_000
_OPENS = re.compile(
    r"^\W*(?:by the way|btw|another (?:question|thing|topic)|new topic|different (?:question|topic)"
    r"|on (?:another|a different) (?:note|topic)|changing (?:the )?(?:topic|subject)|something else"
    r"|unrelated|off[- ]topic|switching (?:gears|topics?)|übrigens|andere frage|anderes thema"
    r"|themenwechsel|neues thema|was anderes|au fait|autre (?:question|sujet)|por cierto|otra"
    r" (?:pregunta|cosa)|cambiando de tema|кстати|другой вопрос|другая тема|顺便|另外|换个话题"
    r"|もう一つ|ところで|話は変わ)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SaidMessage:
    """What a message brings to the timeline.

    Attributes:
        label: Its first telling sentence, where it is a person's; else empty.
        opens: Whether its person says that something else begins.
        stems: Of its words that are no function words.
        at: Seconds since the epoch.
    """

    seq: int
    at: float
    label: str
    opens: bool
    stems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A stretch of a conversation about one thing; times are seconds since the epoch.

    Attributes:
        text: How it began, in its person's words.
        marks: Of the stems of what it is about, the newest last.
        messages: Of its people.
    """

    conversation: int
    first_seq: int
    last_seq: int
    text: str
    marks: tuple[str, ...]
    messages: int
    at: float
    last_at: float


def said_in(seq: int, at: float, message: ChatMessage) -> SaidMessage | None:
    """Return what a message brings to the timeline; None for what nobody has said to anybody."""
    if message["role"] not in {"user", "assistant"} or message.get("synthetic"):
        return None
    text = text_of(message)[:READ_CHARS]
    stems = tuple(dict.fromkeys(word[:STEM_CHARS] for word in content_words(text)))[:STEMS_OF_ONE]
    if message["role"] == "assistant":
        return SaidMessage(seq, at, "", opens=False, stems=stems) if stems else None
    telling = (each for each in sentences(text) if len(content_words(each)) >= TELLING_WORDS)
    label = " ".join(next(telling, text).split())
    return SaidMessage(seq, at, _cut(label), _OPENS.match(text) is not None, stems)


def _cut(label: str) -> str:
    return label if len(label) <= LABEL_CHARS else f"{label[: LABEL_CHARS - 1]}…"


def note(conn: Connection, conversation_id: int, said: Iterable[SaidMessage]) -> None:
    """Go on with a conversation's timeline; the messages follow those that it has."""
    newest = _newest(conn, conversation_id)
    changed: dict[int, Topic] = {}
    known = newest.first_seq if newest else 0
    for message in said:
        newest = _with(newest, message, conversation_id)
        if newest is not None:
            changed[newest.first_seq] = newest
    for first_seq, each in changed.items():
        values = _values(each)
        if first_seq == known:
            here = (topic.c.conversation == conversation_id, topic.c.first_seq == first_seq)
            conn.execute(update(topic).where(*here).values(values))
        else:
            conn.execute(topic.insert().values(values))


def _with(current: Topic | None, said: SaidMessage, conversation_id: int) -> Topic | None:
    """Return the topic to which a message belongs, with it; None for none."""
    if current is not None and not _begins(current, said):
        newest_first = tuple(dict.fromkeys(reversed((*current.marks, *map(_mark, said.stems)))))
        marks = newest_first[:KEPT_STEMS][::-1]
        messages = current.messages + bool(said.label)
        first, text = current.first_seq, current.text
        return Topic(conversation_id, first, said.seq, text, marks, messages, current.at, said.at)
    if not said.label:
        return None
    marks = tuple(map(_mark, said.stems))
    return Topic(conversation_id, said.seq, said.seq, said.label, marks, 1, said.at, said.at)


def _mark(stem: str) -> str:
    """Return what stands for a stem; one of some hundreds has the mark of another one."""
    return f"{zlib.crc32(stem.encode()) & 0xFFFF:0{MARK_CHARS}x}"


def _begins(current: Topic, said: SaidMessage) -> bool:
    """Whether a message begins another topic: only what a person says does."""
    if not said.label:
        return False
    if said.opens or said.at - current.last_at > PAUSE_S:
        return True
    new = {each for each in said.stems if _mark(each) not in current.marks}
    if len(new) == len(said.stems):
        return len(new) >= LEAST_WORDS
    return sum(len(each) > PAIR_CHARS for each in new) >= MANY_WORDS


def _newest(conn: Connection, conversation_id: int) -> Topic | None:
    row = conn.execute(*_newest_of(conversation_id)).one_or_none()
    return None if row is None else _topic(row)


@built_once
def _newest_of(conversation_id: int) -> Any:
    here = topic.c.conversation == conversation_id
    return select(topic).where(here).order_by(topic.c.first_seq.desc()).limit(1)


def of_conversations(conn: Connection, conversation_ids: Sequence[int]) -> list[Topic]:
    """Return the topics of conversations, oldest first."""
    found = [
        _topic(row)
        for each in conversation_ids
        for row in conn.execute(*_of_conversation(each)).all()
    ]
    return sorted(found, key=lambda each: (each.at, each.conversation, each.first_seq))


@built_once
def _of_conversation(conversation_id: int) -> Any:
    return select(topic).where(topic.c.conversation == conversation_id).order_by(topic.c.first_seq)


def holding(found: Sequence[Topic], messages: Iterable[tuple[int, int]]) -> list[Topic]:
    """Return those of the topics that hold any of these messages (conversation, seq), in order."""
    wanted = list(messages)
    return [
        each
        for each in found
        if any(
            conversation == each.conversation and each.first_seq <= seq <= each.last_seq
            for conversation, seq in wanted
        )
    ]


def longest(found: Sequence[Topic], limit: int) -> list[Topic]:
    """Return those topics of which people have said most, in order."""
    by_length = sorted(range(len(found)), key=lambda n: (-found[n].messages, -n))
    return [found[n] for n in sorted(by_length[:limit])]


def _topic(row: Any) -> Topic:
    conversation, first, last, text, terms, messages, at, last_at = row
    marks = tuple(mark for told in orjson.loads(terms) for mark in _marks_in(told))
    return Topic(conversation, first, last, text, marks, messages, at, last_at)


def _marks_in(told: str) -> list[str]:
    """Return what an item of a row holds: marks, or a stem, as the version before writes them."""
    return re.findall("." * MARK_CHARS, told) if _MARKS.fullmatch(told) else [_mark(told)]


_MARKS = re.compile(f"([0-9a-f]{{{MARK_CHARS}}})*")


def _values(each: Topic) -> dict[str, Any]:
    columns = asdict(each)
    # A list, as the version before reads it: it keeps a stem in each item.
    columns["terms"] = orjson.dumps(["".join(columns.pop("marks"))]).decode()
    return columns


def clear(conn: Connection) -> None:
    """Erase all timelines: they are to be fed anew."""
    conn.execute(delete(topic))


def forget(conn: Connection, conversation_id: int, upto_seq: int) -> None:
    """Erase the topics of a conversation that begin at a message up to this one."""
    here = (topic.c.conversation == conversation_id, topic.c.first_seq <= upto_seq)
    conn.execute(delete(topic).where(*here))
