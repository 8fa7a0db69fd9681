"""Web chat users, their sessions, and sign-in links.

The tables `web_user`, `web_session` and `web_link`. Secrets are stored as hashes; a stored chat
message does not contain a link's secret either (`ChatLinks`). Lifetimes are in seconds.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pydantic import SecretStr
from sqlalchemy import Connection, and_, bindparam, delete, or_, select, update

from gateway.storage.schema import batches, now_s, web_link, web_session, web_user

WebRole = Literal["owner", "member", "guest", "removed", "stranger"]
""""stranger" (no longer admitted by the settings) is never stored."""
SESSION_S = 30 * 86_400.0
"""Validity of a session after its last use, in seconds."""
NOTED_EVERY_S = 3600.0
"""Least seconds between two recorded uses of a session."""
STORED_LINK, SHOWN_LINK = "#invited=", "#sign-in="
_LINK_CHARS = 43
"""Length of a link's hexadecimal number, which no renderer escapes."""
_NUMBER = re.compile(f"{STORED_LINK}([0-9a-f]{{{_LINK_CHARS}}})")
_OF_THIS_PROCESS = secrets.token_bytes(32)
"""The key of link secrets without a configured token."""


@dataclass(frozen=True, slots=True)
class WebUser:
    """An invited user; `at` is in seconds since the epoch.

    Attributes:
        same_as: "platform:sender id" of the same person on another platform, whose role applies;
            None if `role` applies.
        identity: "issuer subject" at an identity provider, if any.
        let_in_by: The entry of `web.oidc.allowed` that last admitted them and gives their role;
            None for invited users.
    """

    name: str
    role: WebRole
    same_as: str | None
    invited_by: str
    at: float
    identity: str | None = None
    let_in_by: str | None = None


@dataclass(frozen=True, slots=True)
class WebSession:
    """A signed-in browser; times are in seconds since the epoch.

    `stale`: its use was not recorded for `NOTED_EVERY_S`.
    """

    id: int
    sender: str
    signed_in_by: str
    address: str
    browser: str
    at: float
    used_at: float
    stale: bool


_OF_SESSION = [
    *(web_session.c[field.name] for field in fields(WebSession) if field.name != "stale"),
    web_session.c.used_at <= now_s() - NOTED_EVERY_S,
]


def user(conn: Connection, name: str) -> WebUser | None:
    """Return a user, even if removed."""
    return named(conn, [name]).get(name)


def named(conn: Connection, names: Sequence[str]) -> dict[str, WebUser]:
    """Return the existing users with these names."""
    by_name = (select(web_user).where(web_user.c.name.in_(some)) for some in batches(names))
    return {row.name: WebUser(*row) for query in by_name for row in conn.execute(query)}


def everybody(conn: Connection) -> list[WebUser]:
    """Return all users except removed ones, by name."""
    query = select(web_user).where(web_user.c.role != "removed").order_by(web_user.c.name)
    return [WebUser(*row) for row in conn.execute(query)]


def enter(conn: Connection, name: str, role: WebRole, same_as: str | None, by: str) -> None:
    """Insert or replace a user; the identity at a provider stays."""
    values = {"role": role, "same_as": same_as, "invited_by": by, "let_in_by": None, "at": now_s()}
    known = conn.execute(update(web_user).where(web_user.c.name == name).values(values))
    if known.rowcount == 0:
        conn.execute(web_user.insert().values(name=name, **values))


def identified(conn: Connection, identity: str) -> WebUser | None:
    """Return the user with this provider identity, even if removed."""
    row = conn.execute(select(web_user).where(web_user.c.identity == identity)).one_or_none()
    return None if row is None else WebUser(*row)


def identify(conn: Connection, name: str, identity: str, let_in_by: str) -> None:
    """Store a user's provider identity and the admitting entry of the settings."""
    known = update(web_user).where(web_user.c.name == name)
    conn.execute(known.values(identity=identity, let_in_by=let_in_by))


def remove(conn: Connection, name: str) -> bool:
    """Remove a user and end their sessions; return whether they existed. Chats stay."""
    is_there = (web_user.c.name == name, web_user.c.role != "removed")
    gone = conn.execute(update(web_user).where(*is_there).values(role="removed")).rowcount
    conn.execute(delete(web_link).where(web_link.c.sender == name))
    end_all(conn, name)
    return gone == 1


def enter_link(conn: Connection, hash_: str, sender: str, life_s: float) -> None:
    """Store a sign-in link, deleting expired ones."""
    conn.execute(delete(web_link).where(web_link.c.expires_at <= now_s()))
    values = {"hash": hash_, "sender": sender}
    conn.execute(web_link.insert().values(expires_at=now_s() + life_s, **values))


def link_for(conn: Connection, hash_: str) -> str | None:
    """Return a valid link's user without using it; None if used or expired."""
    return conn.scalar(select(web_link.c.sender).where(*_works(hash_)))


def _works(hash_: str) -> tuple[Any, Any]:
    return web_link.c.hash == hash_, web_link.c.expires_at > now_s()


def take_link(conn: Connection, hash_: str) -> str | None:
    """Use up a link; return its user, or None if invalid."""
    taken = conn.execute(delete(web_link).where(*_works(hash_)).returning(web_link.c.sender))
    return taken.scalar_one_or_none()


def begin(
    conn: Connection, hash_: str, sender: str, signed_in_by: str, address: str, browser: str
) -> int:
    """Insert a session with a secret hash; return its id. Deletes expired ones."""
    conn.execute(delete(web_session).where(web_session.c.expires_at <= now_s()))
    values = {
        "hash": hash_,
        "sender": sender,
        "signed_in_by": signed_in_by,
        "address": address,
        "browser": browser,
        "at": now_s(),
        "used_at": now_s(),
        "expires_at": now_s() + SESSION_S,
    }
    entered = conn.execute(web_session.insert().values(**values).returning(web_session.c.id))
    return int(entered.scalar_one())


def find(conn: Connection, hash_: str, oidc_s: float) -> WebSession | None:
    """Return the valid session with a secret hash; see `sessions`."""
    row = conn.execute(_SESSION, {"hash_": hash_, "oidc_s": oidc_s}).one_or_none()
    return None if row is None else WebSession(*row)


def _holds(oidc_s: Any) -> Any:
    c = web_session.c
    return and_(c.expires_at > now_s(), or_(c.signed_in_by != "oidc", c.at > now_s() - oidc_s))


_SESSION = select(*_OF_SESSION).where(
    web_session.c.hash == bindparam("hash_"), _holds(bindparam("oidc_s"))
)


def note_use(conn: Connection, session_id: int) -> None:
    """Record a session's use, which extends it to `SESSION_S` from now."""
    used = update(web_session).where(web_session.c.id == session_id)
    conn.execute(used.values(used_at=now_s(), expires_at=now_s() + SESSION_S))


def sessions(conn: Connection, oidc_s: float) -> list[WebSession]:
    """Return all valid sessions, most recently used first.

    `oidc_s` limits sessions from an identity provider regardless of use.
    """
    last = (web_session.c.used_at.desc(), web_session.c.id.desc())
    rows = conn.execute(select(*_OF_SESSION).where(_holds(oidc_s)).order_by(*last))
    return [WebSession(*row) for row in rows]


def end(conn: Connection, hash_: str) -> None:
    """End the session with a secret hash, if any."""
    conn.execute(delete(web_session).where(web_session.c.hash == hash_))


def end_one(conn: Connection, session_id: int) -> str | None:
    """End a session; return its user, or None if it does not exist."""
    gone = delete(web_session).where(web_session.c.id == session_id)
    return conn.scalar(gone.returning(web_session.c.sender))


def end_all(conn: Connection, sender: str) -> int:
    """End all sessions of a user; return their number."""
    return conn.execute(delete(web_session).where(web_session.c.sender == sender)).rowcount


@dataclass(frozen=True, slots=True)
class ChatLinks:
    """Creates and renders sign-in links in chats.

    The stored text, and so every backup, contains a number instead of the link's secret. When the
    message is shown, the secret is derived from the number, the conversation and the web chat's
    `token`, which is not in the database. Both have the same length, so text offsets stay valid.
    """

    token: SecretStr | None

    def new(self, page: str, conversation: int) -> tuple[str, str]:
        """Return a new link in stored form, and its secret."""
        number = secrets.token_hex(_LINK_CHARS)[:_LINK_CHARS]
        return f"{page}{STORED_LINK}{number}", self._secret(number, conversation)

    def shown(self, text: str, conversation: int) -> str:
        """Replace the stored links in a conversation's text by working ones."""
        # A link copied into another conversation, for example by a model, is invalid.
        return _NUMBER.sub(lambda found: SHOWN_LINK + self._secret(found[1], conversation), text)

    def _secret(self, number: str, conversation: int) -> str:
        key = _OF_THIS_PROCESS if self.token is None else self.token.get_secret_value().encode()
        made_of = f"link of a chat:{conversation}:{number}".encode()
        return hmac.new(key, made_of, hashlib.sha256).hexdigest()[:_LINK_CHARS]
