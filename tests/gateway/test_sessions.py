"""Session keys: the same conversation has one key, two conversations have two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.messages import Address, ChatKind, InboundMessage
from gateway.sessions import GroupSessions, address_key, session_key, sole_sender
from tests.support.storage import inbound

ids = st.sampled_from(["a", "b", ":", "a:b", "%3A"])
addresses = st.builds(Address, ids, ids, ids, st.none() | ids)


def message(address: Address, kind: ChatKind = "dm", sender: str = "7") -> InboundMessage:
    return inbound(address=address, chat_kind=kind, sender=sender)


@st.composite
def updates(draw: st.DrawFn) -> InboundMessage:
    """Draw messages as platforms send them: a thread has an id of its own."""
    address = Address("telegram", "default", draw(ids), draw(st.none() | ids))
    kind: ChatKind = "thread" if address.thread else draw(st.sampled_from(["dm", "group"]))
    return message(address, kind, draw(ids))


GROUP = Address("telegram", "default", "-100")


@pytest.mark.parametrize(
    ("update", "groups", "key", "user"),
    [
        (message(Address("web", "default", "c1")), "per_user", "web:default:c1", "7"),
        (message(GROUP, "group"), "shared", "telegram:default:-100", None),
        (message(Address("t", "d", "c", "5"), "thread"), "per_user", "t:d:c:5", None),
        (message(Address("t", "d", "c", "5"), "thread"), "shared", "t:d:c:5", None),
        (message(Address("matrix", "d", "!a:b.c")), "shared", "matrix:d:!a%3Ab.c", "7"),
    ],
)
def test_keys_by_example(
    update: InboundMessage, groups: GroupSessions, key: str, user: str | None
) -> None:
    """Direct chats belong to their sender, threads and shared groups to all."""
    assert session_key(update, groups) == key
    assert sole_sender(update, groups) == user


def test_a_group_is_one_conversation_per_sender() -> None:
    """Unless `sessions.groups` says that it is shared."""
    one, other = message(GROUP, "group", "1"), message(GROUP, "group", "2")
    assert session_key(one, "per_user") != session_key(other, "per_user")
    assert session_key(one, "shared") == session_key(other, "shared")
    assert sole_sender(one, "per_user") == "1"


def test_a_sender_is_not_taken_for_a_thread() -> None:
    """A member's own conversation in a group is not the thread whose id equals theirs."""
    member = message(GROUP, "group", "12345")
    thread = message(Address("telegram", "default", "-100", "12345"), "thread", "99")
    assert session_key(member, "per_user") != session_key(thread, "per_user")


@given(updates(), updates(), st.sampled_from(["per_user", "shared"]))
def test_keys_are_equal_exactly_for_the_same_conversation(
    one: InboundMessage, other: InboundMessage, groups: GroupSessions
) -> None:
    """Whatever characters the platform's ids are made of."""

    def identity(update: InboundMessage) -> tuple[Address, str | None]:
        grouped = update.chat_kind == "group" and groups == "per_user"
        return update.address, update.sender if grouped else None

    same = session_key(one, groups) == session_key(other, groups)
    assert same == (identity(one) == identity(other))


@given(addresses, addresses)
def test_an_address_has_a_key_of_its_own(one: Address, other: Address) -> None:
    """Parts cannot run into each other."""
    assert (address_key(one) == address_key(other)) == (one == other)


@given(addresses)
def test_the_key_of_a_direct_chat_is_that_of_its_address(address: Address) -> None:
    """The web chat finds its conversations by address alone."""
    assert session_key(message(address), "per_user") == address_key(address)
