"""Conversations of our own with questions about them, asked in other words than the answers.

`tests/bench/chats/*.txt`: a line is `name: text`, `@7` stands before the sentence that answers
question 7, `? 7,8 | text` asks for it (any of these sentences is evidence), `== day` begins a day.
Two pairs of friends over months, and one person with an assistant. They were written for this
bench: no public set was looked at, and none of these is part of one.

`forms.txt`: `language | question | what was said`, `~` in place of a question for what nobody asks
for. All languages stand in one conversation, in an order that puts no two of one side by side.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.messages import ChatMessage, user_message

CHATS = Path(__file__).parent / "chats"
STRIDE = 37
"""Shuffles the sentences of forms.txt; prime to their number."""
_MARK = re.compile(r"@(\d+) ")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What was said, and (question, places of the turns that answer it)."""

    turns: Sequence[ChatMessage]
    questions: Sequence[tuple[str, frozenset[int]]]


def chat(name: str) -> Dialogue:
    """Return one of the conversations."""
    turns: list[ChatMessage] = []
    places: dict[str, int] = {}
    asked: list[tuple[str, frozenset[int]]] = []
    for line in _lines(name):
        if line.startswith("? "):
            marks, question = line[2:].split(" | ")
            asked.append((question, frozenset(places[mark] for mark in marks.split(","))))
            continue
        speaker, text = line.split(": ", 1)
        places.update(dict.fromkeys(_MARK.findall(text), len(turns) + 1))
        turns.append(_said(speaker, _MARK.sub("", text)))
    return Dialogue(turns, asked)


def _lines(name: str) -> Iterator[str]:
    for line in (CHATS / name).read_text("utf-8").splitlines():
        if line and not line.startswith(("#", "==")):
            yield line


def _said(speaker: str, text: str) -> ChatMessage:
    if speaker == "assistant":
        return ChatMessage(role="assistant", content=text)
    return user_message(text if speaker == "user" else f"{speaker}: {text}")


def chats() -> list[Dialogue]:
    """Return all conversations: of friends, then of somebody with an assistant."""
    return [
        chat(each)
        for each in ("friends_anna_ben.txt", "friends_priya_tom.txt", "assistant_lena.txt")
    ]


def forms() -> Dialogue:
    """Return the sentences of all languages, and what is asked in other forms of their words."""
    rows = [line.split(" | ") for line in _lines("forms.txt")]
    shuffled = [rows[n * STRIDE % len(rows)] for n in range(len(rows))]
    asked = (
        (question, frozenset({place}))
        for place, (_, question, _) in enumerate(shuffled, 1)
        if question != "~"
    )
    return Dialogue([user_message(said) for _, _, said in shuffled], list(asked))
