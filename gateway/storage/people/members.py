"""Members, and strangers who ask to be one: the tables `member` and `pairing`.

A row of `pairing` is a request: pending → approved or denied, until it expires. The one without a
sender is the code that makes the first owner.
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
"""How long the code of a request is valid; meanwhile its sender gets no other one."""
DECIDED_S = 86_400.0
"""How long a decided request is kept; meanwhile a denied sender cannot ask again."""
# The code of the first owner is valid until it is used.
_UNTIL_USED_S = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Member:
    """A person who was let in; `at` is in seconds since the epoch."""

    platform: str
    sender: str
    sender_name: str
    role: Role
    granted_by: str
    at: str

    @property
    def name(self) -> str:
        """Its name in commands: "platform:sender"."""
        return f"{self.platform}:{self.sender}"


@dataclass(frozen=True, slots=True)
class PairingRequest:
    """A person who asks, or asked, to be let in; `at` is in seconds since the epoch.

    Attributes:
        conversation: Their direct chat; their request is erased with it.
        left_s: Seconds until the code expires; negative when it has.
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
        """Its name in commands: its code."""
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

    From their newest message, else from their request. In the web chat the id is the name.
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
    # By the alphabet "owner" is behind "member".
    return _members(conn, member.c.role.desc(), member.c.at)


def _members(conn: Connection, *order: Any) -> list[Member]:
    names = ("platform", "sender", "sender_name", "role", "granted_by", "at")
    query = select(*(member.c[name] for name in names)).order_by(*order)
    return [Member(**row._asdict() | {"at": iso_time(row.at)}) for row in conn.execute(query)]


def listed(conn: Connection, limit: int, after: str | None = None) -> list[PairingRequest | Member]:
    """Return pending requests, then members; each newest first.

    `after`: only those after this name; raises `NotFound` if it does not exist (any more).
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
    """Let a person (platform, sender) in; an owner stays one."""
    platform, sender = whom
    if role(conn, platform, sender) in {"owner", role_}:
        return
    # A member becomes an owner as a new row, which says by whom and when.
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
    """Remove a member; returns whether there was one."""
    known = (member.c.platform == platform, member.c.sender == sender)
    return conn.execute(delete(member).where(*known)).rowcount == 1


def set_role(conn: Connection, platform: str, sender: str, role_: Role, granted_by: str) -> None:
    """Give a member another role, and note by whom."""
    known = (member.c.platform == platform, member.c.sender == sender)
    conn.execute(update(member).where(*known).values(role=role_, granted_by=granted_by, at=now_s()))


def owners(conn: Connection) -> list[tuple[str, str]]:
    """(platform, sender) of all owners that were made by a code."""
    rows = conn.execute(select(member.c.platform, member.c.sender).where(member.c.role == "owner"))
    return [(row.platform, row.sender) for row in rows]


def set_owner_code(conn: Connection, code: str | None) -> None:
    """Replace the code that makes the first owner; None for no code."""
    # The row without a sender is the code's: there is one at most.
    conn.execute(delete(pairing).where(pairing.c.sender.is_(None)))
    if code is not None:
        values = {"code": code, "state": "pending", "at": now_s()}
        conn.execute(pairing.insert().values(expires_at=now_s() + _UNTIL_USED_S, **values))


def take_owner_code(conn: Connection, code: str) -> bool:
    """Use up the code that makes the first owner; False if it is another one, or was used."""
    is_it = (pairing.c.sender.is_(None), pairing.c.code == code)
    # The delete decides: of two senders one becomes the owner.
    return conn.execute(delete(pairing).where(*is_it)).rowcount == 1


def owner_code(conn: Connection) -> str | None:
    """Return the code that makes the first owner, or None."""
    return conn.scalar(select(pairing.c.code).where(pairing.c.sender.is_(None)))


def may_ask(conn: Connection, platform: str, sender: str) -> bool:
    """Whether a person gets a code: not within `CODE_S` of the last, nor soon after a denial."""
    query = select(pairing.c.id).where(
        pairing.c.platform == platform,
        pairing.c.sender == sender,
        or_(pairing.c.at > now_s() - CODE_S, pairing.c.expires_at > now_s()),
    )
    return conn.execute(query.limit(1)).first() is None


def enter_request(
    conn: Connection, message: InboundMessage, sender_name: str, code: str, conversation_id: int
) -> int:
    """Enter a request of a message's sender; returns its id. Useless old ones are deleted."""
    # Only requests make the table grow, so no sweep is needed.
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
    """Let the oldest pending requests of an account expire beyond `kept`."""
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
    """Return how many requests came within the last `CODE_S`, in all or through one account."""
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
    """Return the requests that can be decided: pending ones, and for a while decided ones.

    A denied one can still be approved while its code is valid.
    """
    holds = pairing.c.at > now_s() - CODE_S
    denied = and_(pairing.c.state == "denied", holds)
    return _requests(conn, pairing.c.expires_at > now_s(), or_(pairing.c.state != "denied", denied))


def approved(conn: Connection) -> list[PairingRequest]:
    """Return the requests that were approved lately."""
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
    """Forget a person's requests: they may ask again at once."""
    conn.execute(delete(pairing).where(pairing.c.platform == platform, pairing.c.sender == sender))


def newest_direct_chat(
    conn: Connection, platform: str, sender: str, accounts: Collection[tuple[str, str]]
) -> Conversation | None:
    """Return the direct conversation in which a person wrote last, of these (platform, account)."""
    theirs = conversations.all_of_user(conn, platform, sender)
    # Only given accounts: the chats of one that is switched off reach no person.
    for here in theirs:
        own = here.chat.rpartition("/")[2]
        is_for_once = here.platform == BUILT_IN and own.startswith(FOR_ONE_QUESTION)
        if here.account_key in accounts and not is_for_once and is_direct(here):
            return here
    return None
