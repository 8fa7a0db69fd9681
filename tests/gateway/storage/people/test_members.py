"""Members and requests: one row for each who was let in, codes that expire."""

from typing import Any

import pytest
from sqlalchemy import Connection, Row, event, update
from sqlalchemy.exc import IntegrityError

from adapters.messages import Address
from gateway.storage.people import members, web_users
from gateway.storage.people.members import CODE_S, DECIDED_S
from gateway.storage.schema import inbox, member, pairing
from tests.support.storage import Store, admit, inbound

ACCOUNTS = [("telegram", "default"), ("slack", "work")]


def ask(store: Store, code: str = "CODE0001", sender: str = "7", account: str = "default") -> int:
    """Enter a request; returns its id."""
    address = Address("telegram", account, sender)
    message = inbound(sender=sender, address=address)
    conversation_id, _ = store.run(admit, message)
    return store.run(members.enter_request, message, "Ann", code, conversation_id)


def age(store: Store, seconds: float, table: Any = pairing) -> None:
    """Let time pass for all rows of a table."""
    values = {"at": table.c.at - seconds}
    if table is pairing:
        values["expires_at"] = pairing.c.expires_at - seconds
    store.run(lambda conn: conn.execute(update(table).values(values)))


def codes(requests: list[members.PairingRequest]) -> list[str]:
    return [request.code for request in requests]


def test_who_was_let_in_has_a_role(store: Store) -> None:
    """By platform and id."""
    store.run(members.let_in, ("telegram", "7"), "Ann", "member", "telegram:1")
    assert store.run(members.role, "telegram", "7") == "member"
    assert store.run(members.role, "slack", "7") is None
    whom = [("telegram", "7"), ("slack", "7"), ("telegram", "8")]
    assert store.run(members.roles, whom) == {("telegram", "7"): "member"}
    assert store.run(members.roles, []) == {}
    assert store.run(members.owners) == []


def test_people_are_known_by_what_they_wrote_last(store: Store) -> None:
    """On their platform; who has not written, by the request; nobody in the web chat."""
    for sender, name in (("7", "Ann"), ("7", "<b>Anna</b>"), ("8", "")):
        store.run(admit, inbound(sender=sender, sender_name=name))
    store.run(members.let_in, ("telegram", "9"), "Bob", "member", "telegram:7")
    asked = ["telegram:7", "telegram:8", "telegram:9", "slack:7", "web:web", "command line"]
    found = store.run(members.names, asked)
    assert found == {"telegram:7": "<b>Anna</b>", "telegram:9": "Bob"}
    assert store.run(members.names, []) == {}


def test_any_number_of_people_is_looked_up(store: Store) -> None:
    """In batches: of 10,000 the expression is nested too deeply for PostgreSQL."""
    store.run(members.let_in, ("telegram", "7"), "Ann", "member", "telegram:1")
    store.run(web_users.enter, "ann", "member", None, "telegram:1")
    people = [str(n) for n in range(20_001)]
    pairs = [("telegram", each) for each in people]
    values: list[int] = []

    def looked_up(conn: Connection) -> list[Any]:
        event.listen(conn, "before_cursor_execute", lambda *args: values.append(len(args[3])))
        return [
            members.roles(conn, pairs),
            members.names(conn, [f"telegram:{each}" for each in people]),
            list(web_users.named(conn, [*people, "ann"])),
        ]

    assert store.run(looked_up) == [
        {("telegram", "7"): "member"},
        {"telegram:7": "Ann"},
        ["ann"],
    ]
    assert len(values) == 3 * 21
    assert max(values) < 2_100


def test_a_member_can_become_an_owner_and_stays_one(store: Store) -> None:
    """Letting an owner in as a member changes nothing."""
    whom = ("telegram", "7")
    roles: list[members.Role] = ["member", "owner", "member", "owner"]
    for n, role in enumerate(roles):
        store.run(members.let_in, whom, "Ann", role, f"by {n}")
    row = store.one(member)
    assert (row.role, row.granted_by) == ("owner", "by 1")
    assert store.run(members.owners) == [whom]


def test_owners_are_listed_first(store: Store) -> None:
    """Then by time."""
    for n, role in enumerate(["member", "owner", "member"]):
        store.run(members.let_in, ("telegram", str(n)), f"name {n}", role, "code")
    assert [each.sender for each in store.run(members.everybody)] == ["1", "0", "2"]


def test_revoking_tells_whether_there_was_somebody(store: Store) -> None:
    """And takes that one alone."""
    for sender in ("7", "8"):
        store.run(members.let_in, ("telegram", sender), "", "member", "code")
    assert store.run(members.revoke, "telegram", "7")
    assert not store.run(members.revoke, "telegram", "7")
    assert store.one(member).sender == "8"


def test_there_is_one_owner_code(store: Store) -> None:
    """A new one replaces the old, and requests are none."""
    ask(store)
    assert store.run(members.owner_code) is None
    for code in ("AAAA", "BBBB"):
        store.run(members.set_owner_code, code)
    age(store, 10 * DECIDED_S)
    assert store.run(members.owner_code) == "BBBB"
    store.run(members.set_owner_code, None)
    assert store.run(members.owner_code) is None
    assert store.one(pairing).code == "CODE0001"


def test_a_request_waits_for_an_hour(store: Store) -> None:
    """Then its code means nothing any more."""
    ask(store)
    [request] = store.run(members.pending)
    assert (request.code, request.platform, request.account, request.sender, request.state) == (
        "CODE0001",
        "telegram",
        "default",
        "7",
        "pending",
    )
    assert CODE_S - 5 < request.left_s <= CODE_S
    age(store, CODE_S + 1)
    assert store.run(members.pending) == []
    assert store.run(members.decidable) == []


def test_nobody_asks_twice_within_the_hour(store: Store) -> None:
    """Also where the first request was pushed out by others."""
    assert store.run(members.may_ask, "telegram", "7")
    ask(store)
    store.run(members.expire_all_but_newest, "telegram", "default", kept=0)
    assert store.run(members.pending) == []
    assert not store.run(members.may_ask, "telegram", "7")
    assert store.run(members.may_ask, "telegram", "8")
    age(store, CODE_S + 1)
    assert store.run(members.may_ask, "telegram", "7")


def test_who_was_denied_waits_a_day(store: Store) -> None:
    """For an hour of it an owner may change their mind."""
    store.run(members.decide, ask(store), "denied")
    assert codes(store.run(members.decidable)) == ["CODE0001"]
    age(store, CODE_S + 1)
    assert store.run(members.decidable) == []
    assert not store.run(members.may_ask, "telegram", "7")
    age(store, DECIDED_S - CODE_S)
    assert store.run(members.may_ask, "telegram", "7")


def test_an_approved_request_is_known_for_a_day(store: Store) -> None:
    """A second press of the button gets an answer."""
    store.run(members.decide, ask(store), "approved")
    age(store, CODE_S + 1)
    assert codes(store.run(members.decidable)) == ["CODE0001"]
    assert codes(store.run(members.approved)) == ["CODE0001"]
    age(store, DECIDED_S)
    assert store.run(members.decidable) == []


def test_the_oldest_requests_of_an_account_expire(store: Store) -> None:
    """Where there are too many; other accounts do not count."""
    for n in range(4):
        ask(store, f"CODE000{n}", sender=str(n))
    ask(store, "OTHER", sender="9", account="work")
    store.run(members.expire_all_but_newest, "telegram", "default", kept=2)
    assert codes(store.run(members.pending)) == ["CODE0002", "CODE0003", "OTHER"]


def test_a_new_request_takes_what_is_over_away(store: Store) -> None:
    """The table does not grow with time; the owner's code is not taken."""
    store.run(members.set_owner_code, "OWNER")
    ask(store, "CODE0001", sender="1")
    store.run(members.decide, ask(store, "CODE0002", sender="2"), "denied")
    age(store, CODE_S + 1)
    ask(store, "CODE0003", sender="3")
    assert {row.code for row in store.rows(pairing)} == {"OWNER", "CODE0002", "CODE0003"}
    age(store, DECIDED_S)
    ask(store, "CODE0004", sender="4")
    assert {row.code for row in store.rows(pairing)} == {"OWNER", "CODE0004"}


def test_requests_of_the_last_hour_are_counted(store: Store) -> None:
    """In all, and by account; the owner's code is none."""
    store.run(members.set_owner_code, "OWNER")
    ask(store, "CODE0001", sender="1")
    age(store, CODE_S + 1)
    for n in (2, 3):
        ask(store, f"CODE000{n}", sender=str(n))
    ask(store, "CODE0004", sender="4", account="work")
    assert store.run(members.asked_lately) == 3
    assert store.run(members.asked_lately, ("telegram", "default")) == 2
    assert store.run(members.asked_lately, ("slack", "default")) == 0


def test_a_code_is_given_once(store: Store) -> None:
    """The index sees to it."""
    ask(store)
    with pytest.raises(IntegrityError):
        ask(store, sender="8")


def test_dropped_requests_let_their_sender_ask_again(store: Store) -> None:
    """Nobody else's are dropped."""
    ask(store)
    ask(store, "CODE0002", sender="8")
    store.run(members.drop_requests, "telegram", "7")
    assert store.run(members.may_ask, "telegram", "7")
    assert codes(store.run(members.pending)) == ["CODE0002"]


def newest(store: Store, platform: str = "telegram", sender: str = "7") -> Row[Any] | None:
    return store.run(members.newest_direct_chat, platform, sender, ACCOUNTS)


def wrote(
    store: Store, chat: str, kind: Any = "dm", place: tuple[str, str] = ("telegram", "default")
) -> int:
    """Have sender 7 write somewhere, a minute after what was before; returns the conversation."""
    age(store, 60, inbox)
    address = Address(*place, chat)
    return store.run(admit, inbound(sender="7", address=address, chat_kind=kind))[0]


def test_the_direct_chat_where_somebody_wrote_last(store: Store) -> None:
    """Groups and threads are none, also where a sender has a conversation alone there."""
    assert newest(store) is None
    first = wrote(store, "a")
    wrote(store, "b")
    wrote(store, "a")
    wrote(store, "g", kind="group")
    wrote(store, "t", kind="thread")
    found = newest(store)
    assert found is not None
    assert found.id == first
    assert newest(store, sender="8") is None


def test_an_account_that_is_off_has_no_chat(store: Store) -> None:
    """Nothing could be said there."""
    wrote(store, "a", place=("telegram", "old"))
    assert newest(store) is None
    here = wrote(store, "b", place=("slack", "work"))
    found = newest(store, "slack")
    assert found is not None
    assert found.id == here
