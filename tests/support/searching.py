"""Conversations with something to be found in them."""

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import Connection

from adapters.messages import Address
from agent.messages import ChatMessage
from gateway.storage.conversation import conversations, sessions, transcript
from gateway.storage.conversation.transcript import MessagePlace
from gateway.storage.search import index, query
from tests.support.storage import Store, admit, inbound


def chat(store: Store, user: str = "7", *, account: str = "default", **changes: Any) -> int:
    """Create a conversation of a sender, a direct chat unless said otherwise; returns its id."""
    address = Address("telegram", account, changes.pop("chat", user), changes.pop("thread", None))
    message = inbound(f"title of {user}", sender=user, address=address, **changes)
    return store.run(admit, message)[0]


def said(text: str, role: Any = "user", **more: Any) -> ChatMessage:
    """Return a message."""
    return cast("ChatMessage", {"role": role, "content": text, **more})


def tell(conn: Connection, conversation_id: int, messages: Sequence[ChatMessage]) -> int:
    """Append to a transcript, which is not fed; returns the newest seq."""
    session = sessions.active(conn, conversation_id)
    return transcript.append(conn, MessagePlace(conversation_id, session.id, None), messages)


def feed(store: Store) -> None:
    """Bring the index up, as the gateway does in the background."""
    if not store.run(index.is_current):
        store.run(index.clear)
    while found := store.run(conversations.unsearched, 100):
        for conversation_id in found:
            waiting = store.run(index.waiting, conversation_id)
            assert waiting is not None
            assert store.run(index.feed, index.prepared(waiting))


def talk(store: Store, *texts: str, **changes: Any) -> int:
    """Create a conversation in which people and the agent said these in turn, and feed it."""
    conversation_id = chat(store, **changes)
    roles = ("user", "assistant")
    store.run(tell, conversation_id, [said(text, roles[n % 2]) for n, text in enumerate(texts)])
    feed(store)
    return conversation_id


def found(store: Store, where: Sequence[int] | None, question: str, **more: Any) -> list[int]:
    """Return the seqs that a search finds, best first."""
    return [match.seq for match in store.run(query.find, where, question, **more)]
