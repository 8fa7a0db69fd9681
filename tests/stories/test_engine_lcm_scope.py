"""What the tools of `lcm` reach is what the views of their conversation are made of."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.engines.lcm import tools
from agent.messages import ChatMessage, assistant_message, user_message
from agent.view.view import ViewPlan
from gateway.agent_ports.journal import ConversationArchive
from gateway.storage import schema
from gateway.storage.conversation import delegates, sessions, transcript, turn_journal, turns
from gateway.storage.conversation.transcript import END, MessagePlace
from gateway.storage.conversation.turns import Turn
from tests.support.scripted_model import tool_call
from tests.support.storage import BASE, Store, begin_anew, copy_database, turn_of

_copies = count()
ODD = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
"""All planes, controls, combining marks, line separators."""


def group(text: str) -> list[ChatMessage]:
    """Return a picture with a question, calls, their results, and an answer."""
    url = "data:image/png;base64,iVBORw0KGgo="
    asked = user_message("x")
    asked["content"] = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    calls = [tool_call("look", {"at": text}, f"c{n}") for n in range(2)]
    called = assistant_message("")
    called["tool_calls"] = calls
    results = [ChatMessage(role="tool", tool_call_id=f"c{n}", content=text * 9) for n in range(2)]
    return [asked, called, *results, assistant_message(text * 30)]


class Rows:
    """Reads a store as `Database` does."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def read(self, fn: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return self.store.run(fn, *args, **more)

    write = search = read


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["say", "say", "new", "retry", "child"]), ODD),
    min_size=1,
    max_size=8,
)


@given(STEPS, st.integers(100, 500))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_search_and_views_have_the_same_rows(
    database_template: Path, tmp_path: Path, steps: list[tuple[str, str, str]], max_tokens: int
) -> None:
    """Of any conversation, after `/new` and `/retry`, of delegated children; byte for byte."""
    store = Store(copy_database(database_template, tmp_path / f"{next(_copies)}.db"))
    store.without_sync()
    books = {chat: store.run(turn_of, "go", chat=chat) for chat in "ab"}
    for n, (chat, step, text) in enumerate(steps):
        books[chat] = after(store, books[chat], step, f"word{n} {text}")
    asyncio.run(check(store, max_tokens))
    store.close()


def after(store: Store, turn: Turn, step: str, text: str) -> Turn:
    """Return a conversation's turn after one more step."""
    own = turn.lease.conversation
    if step == "new":
        session = store.run(begin_anew, own)
        return replace(turn, session=session)
    if step == "retry":
        store.run(turns.hide, own, turn.id)
        return replace(turn, session=store.run(sessions.active, own))
    if step == "child":
        call = tool_call("delegate_task", {"task": text}, f"d{text[:5]}")
        store.run(turn_journal.start_tool, turn, call, "idempotent")
        child = store.run(delegates.open_child, turn, call["id"], text, BASE)
        assert isinstance(child, Turn)
        store.run(transcript.append, child.place, group(text))
        return turn
    place = MessagePlace(own, turn.session.id, turn.id)
    store.run(transcript.append, place, group(text))
    return turn


async def check(store: Store, max_tokens: int) -> None:
    """Hold the records of every conversation against its views and against all others."""
    loop = asyncio.get_running_loop()
    rows = store.rows(schema.message)
    for talk in store.rows(schema.conversation):
        records = ConversationArchive(cast("Any", Rows(store)), talk.id, loop)
        own = [(row.seq, row.body) for row in rows if row.conversation == talk.id]
        segments = store.rows(schema.session, conversation=talk.id)
        plans = [store.run(sessions.get, row.id).plan for row in segments]
        views = [store.run(transcript.load_rows, talk.id, plan) for plan in (ViewPlan(), *plans)]
        assert set().union(*views) == set(own)
        assert await asyncio.to_thread(records.bodies, 1, 10**9, 10**6) == own
        found = await asyncio.to_thread(records.find, "word0 word1 go look", 1_000, END)
        assert set(found) <= {seq for seq, _ in own}
        said = {row.conversation for row in rows if "word0 " in row.body}
        assert (talk.id in said) == bool(await asyncio.to_thread(records.find, "word0", 9, END))
        opened = await asyncio.to_thread(expanded, records, own, max_tokens)
        assert opened.encode() == "".join(f"{body}\n" for _, body in own).encode()


def expanded(records: ConversationArchive, own: list[tuple[int, str]], max_tokens: int) -> str:
    """Return what `lcm_expand` gives of all messages, its pages put together as it says."""
    last, place, text = own[-1][0], (1, 0), ""
    while True:
        seq, char = place
        arguments = {"from_seq": seq, "to_seq": last, "from_char": char, "max_tokens": max_tokens}
        told = tools.answer("lcm_expand", arguments, records)
        head, _, page = told.partition("\n")
        text += page
        if head.endswith("that is all of it]"):
            return text
        [(seq_text, char_text)] = re.findall(r"from_seq=(\d+), from_char=(\d+)", head)
        place = (int(seq_text), int(char_text))
