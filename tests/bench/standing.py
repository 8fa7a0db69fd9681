"""Standing instructions: how well the rules find what a reader marks, and whether it is in view.

Sentences are marked one by one (probes/instructions.txt), and in whole messages of long chats
(probes/standing_chats.txt). The latter go through a gateway with a small window: ten compactions
and a `/new` later the share of the marked sentences is counted that the view holds.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean

from agent.context.instructions import instructions_in
from agent.models.base import ModelRequest
from tests.bench.figures import Figure
from tests.support.gateway import running
from tests.support.long_chats import LongChatModel, shown, until_compacted

PROBES = Path(__file__).parent / "probes"
SENTENCES, CHATS = PROBES / "instructions.txt", PROBES / "standing_chats.txt"
COMPACTIONS = 10
PEOPLE = 3
"""Who say these, each in a chat of their own: nobody asks for 67 things."""
LEAST = 0.9
ROUNDS = 20
_MARK = re.compile(r"\[\[(.*?)\]\]")


@dataclass(frozen=True, slots=True)
class MarkedSentence:
    """A sentence, and whether a reader takes it for a standing instruction."""

    text: str
    language: str
    stands: bool


@dataclass(frozen=True, slots=True)
class MarkedMessage:
    """A message, and what a reader takes for standing instructions in it."""

    text: str
    marks: Sequence[str]


@dataclass(frozen=True, slots=True)
class Score:
    """What the rules found of what was marked."""

    precision: float
    recall: float
    wrong: Sequence[str]
    missed: Sequence[str]


def marked(path: Path = SENTENCES) -> list[MarkedSentence]:
    """Return the marked sentences of a file: "+ en Call me Jo." or "- en Call me later."."""
    lines = (line for line in path.read_text("utf-8").splitlines() if line[:1] in {"+", "-"})
    parts = (line.split(" ", 2) for line in lines)
    return [MarkedSentence(text, language, mark == "+") for mark, language, text in parts]


def messages(path: Path = CHATS) -> list[MarkedMessage]:
    """Return the messages of a file, in which "[[" and "]]" mark."""
    lines = (line for line in path.read_text("utf-8").splitlines() if line[:1] != "#")
    return [MarkedMessage(_MARK.sub(r"\1", line), _MARK.findall(line)) for line in lines]


def scored(probes: Sequence[MarkedSentence]) -> Score:
    """Return precision and recall of the rules, and where they are wrong."""
    found = {each.text for each in probes if instructions_in(each.text)}
    stands = {each.text for each in probes if each.stands}
    return _score(found, stands, found & stands)


def scored_messages(chat: Sequence[MarkedMessage]) -> Score:
    """Return the same for whole messages: what is found is the sentence that holds the mark."""
    found, marks, both = set(), set(), set()
    for each in chat:
        marks.update(each.marks)
        for text in (one.text for one in instructions_in(each.text)):
            mark = next((mark for mark in each.marks if text in mark or mark in text), None)
            found.add(mark or text)
            both.update([mark] if mark else [])
    return _score(found, marks, both)


def _score(found: set[str], stands: set[str], both: set[str]) -> Score:
    return Score(
        precision=len(both) / max(1, len(found)),
        recall=len(both) / max(1, len(stands)),
        wrong=sorted(found - stands),
        missed=sorted(stands - found),
    )


async def in_view(chat: Sequence[MarkedMessage], home: Path) -> tuple[float, float]:
    """Return the shares of what is marked that are in view after compactions, and after `/new`."""
    model = LongChatModel()
    async with running(home, model) as gateway:
        for each in chat:
            await gateway.ask(each.text)
        before = len(gateway.events("context_compressed"))
        await until_compacted(gateway, count=before + COMPACTIONS)
        compacted = model.views[-1]
        await gateway.ask("/new")
        await gateway.ask("hello")
        return _share(chat, compacted), _share(chat, model.views[-1])


def _share(chat: Sequence[MarkedMessage], view: ModelRequest) -> float:
    text = shown(view)
    marks = [mark for each in chat for mark in each.marks]
    return sum(mark in text for mark in marks) / len(marks)


def measure() -> Iterator[Figure]:
    """Yield all figures."""
    probes, chat = marked(), messages()
    for name, score in (
        (f"{len(probes)} sentences in 7 languages", scored(probes)),
        (f"{len(chat)} messages of long chats", scored_messages(chat)),
    ):
        yield Figure(f"{name}: precision", score.precision, "", at_least=LEAST)
        yield Figure(f"{name}: recall", score.recall, "", at_least=LEAST)
    shares = []
    for part in (chat[n::PEOPLE] for n in range(PEOPLE)):
        with tempfile.TemporaryDirectory() as home:
            shares.append(asyncio.run(in_view(part, Path(home))))
    compacted, anew = (fmean(each) for each in zip(*shares, strict=True))
    yield Figure(f"in view after {COMPACTIONS} further compactions", compacted, "", at_least=LEAST)
    yield Figure("in view after `/new`", anew, "", at_least=LEAST)
    began = time.process_time()
    for _ in range(ROUNDS):
        for each in chat:
            instructions_in(each.text)
    spent = (time.process_time() - began) / (ROUNDS * len(chat))
    yield Figure("CPU of the rules, a message in which half have something", spent * 1e6, "us")
    yield from import_module("tests.bench.known").measure()
