"""Members and access requests: the tables `member` and `pairing`.

A row of `pairing` is a request: pending → approved or denied, until it expires. The row without a
sender is the owner code.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    column,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
    values,
)

from adapters.messages import InboundMessage
from adapters.registry import BUILT_IN
from gateway.session_keys import FOR_ONE_QUESTION, is_direct
from gateway.storage.conversation import conversations
from gateway.storage.conversation.conversations import Conversation
from gateway.storage.schema import (
    batches,
    conversation,
    inbox,
    is_said,
    iso_time,
    known_place,
    member,
    now_s,
    pairing,
)

Role = Literal["owner", "member"]
RequestState = Literal["pending", "approved", "denied"]

CODE_S = 3600.0
"""Validity of a request's code, in seconds; its sender gets no other one meanwhile."""
DECIDED_S = 86_400.0
"""Seconds to keep a decided request; a denied sender cannot ask again meanwhile."""
# The owner code is valid until it is used.
_UNTIL_USED_S = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Member:
    """An admitted person; `at` is in seconds since the epoch."""

    platform: str
    sender: str
    sender_name: str
    role: Role
    granted_by: str
    at: str

    @property
    def name(self) -> str:
        """Name in commands: "platform:sender"."""
        return f"{self.platform}:{self.sender}"


@dataclass(frozen=True, slots=True)
class PairingRequest:
    """An access request; `at` is in seconds since the epoch.

    Attributes:
        conversation: The person's direct chat, with which the request is erased.
        left_s: Seconds until the code expires; negative afterwards.
    """

    id: int
    code: str
    platform: str
    account: str
    sender: str
    sender_name: str
    conversation: int
    state: RequestState
    at: str
    left_s: float

    @property
    def name(self) -> str:
        """Name in commands: the code."""
        return self.code


def role(conn: Connection, platform: str, sender: str) -> Role | None:
    """Return the role of a member, or None."""
    return conn.scalar(_ROLE, {"platform": platform, "sender": sender})


_ROLE = select(member.c.role).where(
    member.c.platform == bindparam("platform"), member.c.sender == bindparam("sender")
)


def roles(conn: Connection, whom: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Role]:
    """Return the role of each member among (platform, sender) pairs."""
    person = tuple_(member.c.platform, member.c.sender)
    found = (conn.execute(select(member).where(person.in_(some))) for some in batches(whom))
    return {(row.platform, row.sender): row.role for rows in found for row in rows}


def names(conn: Connection, whom: Collection[str]) -> dict[str, str]:
    """Return the known names of "platform:sender id".

    From their newest message or their request. In the web chat the id is the name.
    """
    asked = [who.partition(":")[::2] for who in sorted(set(whom)) if ":" in who]
    asked = [each for each in asked if each[0] != BUILT_IN]
    found = (conn.execute(_names(some)) for some in batches(asked))
    return {f"{row.platform}:{row.sender}": row.name for rows in found for row in rows if row.name}


def _names(whom: Sequence[tuple[str, str]]) -> Select[Any]:
    people = values(column("platform", Text), column("sender", Text)).data(whom)
    person = people.cte("person")
    written = (
        select(inbox.c.sender_name)
        .join(conversation, conversation.c.id == inbox.c.conversation)
        .where(inbox.c.sender == person.c.sender, is_said)
        .where(conversation.c.platform == person.c.platform)
        .order_by(inbox.c.at.desc())
        .limit(1)
        .scalar_subquery()
    )
    known = (member.c.platform == person.c.platform, member.c.sender == person.c.sender)
    let_in_as = select(member.c.sender_name).where(*known).scalar_subquery()
    return select(person, func.coalesce(written, let_in_as).label("name"))


def everybody(conn: Connection) -> list[Member]:
    """Return all members, owners first, then by time."""
    # Descending, since "owner" sorts after "member".
    return _members(conn, member.c.role.desc(), member.c.at)


def _members(conn: Connection, *order: Any) -> list[Member]:
    names = ("platform", "sender", "sender_name", "role", "granted_by", "at")
    query = select(*(member.c[name] for name in names)).order_by(*order)
    return [Member(**row._asdict() | {"at": iso_time(row.at)}) for row in conn.execute(query)]


def listed(conn: Connection, limit: int, after: str | None = None) -> list[PairingRequest | Member]:
    """List pending requests, then members, each newest first.

    Start after the name `after`; raise `NotFound` if it does not exist.
    """
    newest = (member.c.at.desc(), member.c.platform.desc(), member.c.sender.desc())
    found: list[PairingRequest | Member] = [*reversed(pending(conn)), *_members(conn, *newest)]
    if after is not None:
        behind = (n for n, each in enumerate(found, 1) if each.name == after)
        found = found[known_place(next(behind, None), after) :]
    return found[:limit]


def let_in(
    conn: Connection, whom: tuple[str, str], sender_name: str, role_: Role, granted_by: str
) -> None:
    """Admit a person (platform, sender); owners stay owners."""
    platform, sender = whom
    if role(conn, platform, sender) in {"owner", role_}:
        return
    # A new owner gets a new row, which records by whom and when.
    revoke(conn, platform, sender)
    conn.execute(
        member.insert().values(
            platform=platform,
            sender=sender,
            sender_name=sender_name,
            role=role_,
            granted_by=granted_by,
            at=now_s(),
        )
    )


def revoke(conn: Connection, platform: str, sender: str) -> bool:
    """Remove a member; return whether it existed."""
    known = (member.c.platform == platform, member.c.sender == sender)
    return conn.execute(delete(member).where(*known)).rowcount == 1


def set_role(conn: Connection, platform: str, sender: str, role_: Role, granted_by: str) -> None:
    """Change a member's role and record by whom."""
    known = (member.c.platform == platform, member.c.sender == sender)
    conn.execute(update(member).where(*known).values(role=role_, granted_by=granted_by, at=now_s()))


def owners(conn: Connection) -> list[tuple[str, str]]:
    """Return (platform, sender) of all owners in the database."""
    rows = conn.execute(select(member.c.platform, member.c.sender).where(member.c.role == "owner"))
    return [(row.platform, row.sender) for row in rows]


def set_owner_code(conn: Connection, code: str | None) -> None:
    """Replace the owner code; None removes it."""
    # The row without a sender, at most one, is the code's.
    conn.execute(delete(pairing).where(pairing.c.sender.is_(None)))
    if code is not None:
        values = {"code": code, "state": "pending", "at": now_s()}
        conn.execute(pairing.insert().values(expires_at=now_s() + _UNTIL_USED_S, **values))


def take_owner_code(conn: Connection, code: str) -> bool:
    """Use up the owner code; return False if it is wrong or already used."""
    is_it = (pairing.c.sender.is_(None), pairing.c.code == code)
    # The delete decides which of two senders becomes the owner.
    return conn.execute(delete(pairing).where(*is_it)).rowcount == 1


def owner_code(conn: Connection) -> str | None:
    """Return the owner code, or None."""
    return conn.scalar(select(pairing.c.code).where(pairing.c.sender.is_(None)))


def may_ask(conn: Connection, platform: str, sender: str) -> bool:
    """Whether a person may get a code: none within `CODE_S`, and no recent denial."""
    query = select(pairing.c.id).where(
        pairing.c.platform == platform,
        pairing.c.sender == sender,
        or_(pairing.c.at > now_s() - CODE_S, pairing.c.expires_at > now_s()),
    )
    return conn.execute(query.limit(1)).first() is None


def enter_request(
    conn: Connection, message: InboundMessage, sender_name: str, code: str, conversation_id: int
) -> int:
    """Insert an access request of a message's sender; return its id. Deletes expired ones."""
    # Deleted here, since only requests make the table grow.
    conn.execute(delete(pairing).where(pairing.c.sender.is_not(None), _is_over))
    inserted = conn.execute(
        pairing
        .insert()
        .values(
            code=code,
            platform=message.address.platform,
            account=message.address.account,
            sender=message.sender,
            sender_name=sender_name,
            conversation=conversation_id,
            state="pending",
            expires_at=now_s() + CODE_S,
            at=now_s(),
        )
        .returning(pairing.c.id)
    )
    return int(inserted.scalar_one())


_is_over = and_(pairing.c.expires_at <= now_s(), pairing.c.at <= now_s() - CODE_S)


def expire_all_but_newest(conn: Connection, platform: str, account: str, kept: int) -> None:
    """Expire an account's oldest pending requests beyond `kept`."""
    pending = (
        pairing.c.platform == platform,
        pairing.c.account == account,
        pairing.c.state == "pending",
        pairing.c.expires_at > now_s(),
    )
    newest = select(pairing.c.id).where(*pending).order_by(pairing.c.id.desc()).limit(kept)
    conn.execute(
        update(pairing).where(*pending, pairing.c.id.not_in(newest)).values(expires_at=now_s())
    )


def asked_lately(conn: Connection, account: tuple[str, str] | None = None) -> int:
    """Count the requests within the last `CODE_S`, in total or through one account."""
    query = select(func.count()).where(
        pairing.c.sender.is_not(None), pairing.c.at > now_s() - CODE_S
    )
    if account is not None:
        query = query.where(pairing.c.platform == account[0], pairing.c.account == account[1])
    return conn.scalar(query) or 0


def pending(conn: Connection) -> list[PairingRequest]:
    """Return the pending requests, oldest first."""
    return _requests(conn, pairing.c.state == "pending", pairing.c.expires_at > now_s())


def decidable(conn: Connection) -> list[PairingRequest]:
    """Return the decidable requests: pending ones and recently decided ones.

    A denied one can still be approved while its code is valid.
    """
    holds = pairing.c.at > now_s() - CODE_S
    denied = and_(pairing.c.state == "denied", holds)
    return _requests(conn, pairing.c.expires_at > now_s(), or_(pairing.c.state != "denied", denied))


def approved(conn: Connection) -> list[PairingRequest]:
    """Return the recently approved requests."""
    return _requests(conn, pairing.c.state == "approved")


def _requests(conn: Connection, *conditions: Any) -> list[PairingRequest]:
    left_s = (pairing.c.at + CODE_S - now_s()).label("left_s")
    columns = (pairing.c[each.name] for each in fields(PairingRequest) if each.name in pairing.c)
    query = select(*columns, left_s).where(pairing.c.sender.is_not(None), *conditions)
    return [
        PairingRequest(**row._asdict() | {"at": iso_time(row.at)})
        for row in conn.execute(query.order_by(pairing.c.id))
    ]


def decide(conn: Connection, request_id: int, state: RequestState) -> None:
    """Approve or deny a request."""
    conn.execute(
        update(pairing)
        .where(pairing.c.id == request_id)
        .values(state=state, expires_at=now_s() + DECIDED_S)
    )


def drop_requests(conn: Connection, platform: str, sender: str) -> None:
    """Delete a person's requests, so that they may ask again at once."""
    conn.execute(delete(pairing).where(pairing.c.platform == platform, pairing.c.sender == sender))


def newest_direct_chat(
    conn: Connection, platform: str, sender: str, accounts: Collection[tuple[str, str]]
) -> Conversation | None:
    """Return a person's most recent direct conversation among these (platform, account)."""
    theirs = conversations.all_of_user(conn, platform, sender)
    # Only given accounts, since chats of an inactive account are unreachable.
    for here in theirs:
        own = here.chat.rpartition("/")[2]
        is_for_once = here.platform == BUILT_IN and own.startswith(FOR_ONE_QUESTION)
        if here.account_key in accounts and not is_for_once and is_direct(here):
            return here
    return None
