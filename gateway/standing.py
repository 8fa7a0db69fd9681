"""What a turn may do, by whose words it reads (step 6 of the path).

Not its own question alone: an order that a guest wrote an hour ago is still in view when a member
says "go on".
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from gateway.access import Access
from gateway.storage import notebook, senders
from gateway.storage.turns import Turn


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one turn.

    Attributes:
        scope: Whose notes it uses (`notebook.scope_of`).
        may_act: Whether all whose words are in view may act.
        by_owners: Whether all of them are owners.
    """

    scope: str
    may_act: bool
    by_owners: bool


def standing_of(conn: Connection, access: Access, turn: Turn) -> Standing:
    """Return what a turn may do, as things are now.

    In a direct chat there is nobody else; elsewhere all count whose words the conversation holds
    since it began anew last.
    """
    scope = notebook.scope_of(conn, turn.lease.conversation)
    everybody = set(turn.senders)
    if everybody and notebook.is_shared(scope):
        everybody |= senders.since_root(conn, turn.lease.conversation, turn.session.id)
    weakest = access.weakest(conn, everybody)
    return Standing(scope, weakest != "stranger", weakest == "owner")
