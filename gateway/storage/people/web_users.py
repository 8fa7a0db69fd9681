"""Users of the web chat, their sessions, and links that sign in.

The tables `web_user`, `web_session` and `web_link`. Secrets are stored as hashes; a chat does not
have the secret of a link in it either (`ChatLinks`). Lives are in seconds.
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
"""A stranger, whom the settings do not let in any more, is never stored."""
SESSION_S = 30 * 86_400.0
"""How long a session is valid after its last use."""
NOTED_EVERY_S = 3600.0
"""The shortest time between two notes that a session was used."""
STORED_LINK, SHOWN_LINK = "#invited=", "#sign-in="
_LINK_CHARS = 43
"""Hexadecimal digits: no renderer of any platform escapes them."""
_NUMBER = re.compile(f"{STORED_LINK}([0-9a-f]{{{_LINK_CHARS}}})")
_OF_THIS_PROCESS = secrets.token_bytes(32)
"""The key of secrets if no token is set."""


@dataclass(frozen=True, slots=True)
class WebUser:
    """An invited user; `at` is in seconds since the epoch.

    Attributes:
        same_as: "platform:sender id" of the same person on another platform, who gives the role;
            None if `role` is their own.
        identity: "issuer subject" at an identity provider, if it names them.
        let_in_by: The entry of `web.oidc.allowed` that let them in last, and whose role they have;
            None for those who were invited.
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

    `stale`: its use was not noted for `NOTED_EVERY_S`.
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
    """Return a user, even a removed one."""
    return named(conn, [name]).get(name)


def named(conn: Connection, names: Sequence[str]) -> dict[str, WebUser]:
    """Return the existing users of these names."""
    by_name = (select(web_user).where(web_user.c.name.in_(some)) for some in batches(names))
    return {row.name: WebUser(*row) for query in by_name for row in conn.execute(query)}


def everybody(conn: Connection) -> list[WebUser]:
    """Return all users by name, except removed ones."""
    query = select(web_user).where(web_user.c.role != "removed").order_by(web_user.c.name)
    return [WebUser(*row) for row in conn.execute(query)]


def enter(conn: Connection, name: str, role: WebRole, same_as: str | None, by: str) -> None:
    """Enter a user, in place of one of the same name; its identity at a provider stays."""
    values = {"role": role, "same_as": same_as, "invited_by": by, "let_in_by": None, "at": now_s()}
    known = conn.execute(update(web_user).where(web_user.c.name == name).values(values))
    if known.rowcount == 0:
        conn.execute(web_user.insert().values(name=name, **values))


def identified(conn: Connection, identity: str) -> WebUser | None:
    """Return the user with this identity at a provider, even a removed one."""
    row = conn.execute(select(web_user).where(web_user.c.identity == identity)).one_or_none()
    return None if row is None else WebUser(*row)


def identify(conn: Connection, name: str, identity: str, let_in_by: str) -> None:
    """Note a user's identity at a provider, and the entry of the settings that let them in."""
    known = update(web_user).where(web_user.c.name == name)
    conn.execute(known.values(identity=identity, let_in_by=let_in_by))


def remove(conn: Connection, name: str) -> bool:
    """Sign a user out for good; returns whether there was one. Their chats stay."""
    is_there = (web_user.c.name == name, web_user.c.role != "removed")
    gone = conn.execute(update(web_user).where(*is_there).values(role="removed")).rowcount
    conn.execute(delete(web_link).where(web_link.c.sender == name))
    end_all(conn, name)
    return gone == 1


def enter_link(conn: Connection, hash_: str, sender: str, life_s: float) -> None:
    """Store a link that signs a user in; expired ones are deleted."""
    conn.execute(delete(web_link).where(web_link.c.expires_at <= now_s()))
    values = {"hash": hash_, "sender": sender}
    conn.execute(web_link.insert().values(expires_at=now_s() + life_s, **values))


def link_for(conn: Connection, hash_: str) -> str | None:
    """Return the user that a link signs in, None if it is used or has expired; keeps the link."""
    return conn.scalar(select(web_link.c.sender).where(*_works(hash_)))


def _works(hash_: str) -> tuple[Any, Any]:
    return web_link.c.hash == hash_, web_link.c.expires_at > now_s()


def take_link(conn: Connection, hash_: str) -> str | None:
    """Use a link up; returns its user, or None if it is invalid."""
    taken = conn.execute(delete(web_link).where(*_works(hash_)).returning(web_link.c.sender))
    return taken.scalar_one_or_none()


def begin(
    conn: Connection, hash_: str, sender: str, signed_in_by: str, address: str, browser: str
) -> int:
    """Enter a session with a secret of this hash; returns its id. Deletes expired ones."""
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
    """Return the valid session with a secret of this hash; see `sessions`."""
    row = conn.execute(_SESSION, {"hash_": hash_, "oidc_s": oidc_s}).one_or_none()
    return None if row is None else WebSession(*row)


def _holds(oidc_s: Any) -> Any:
    c = web_session.c
    return and_(c.expires_at > now_s(), or_(c.signed_in_by != "oidc", c.at > now_s() - oidc_s))


_SESSION = select(*_OF_SESSION).where(
    web_session.c.hash == bindparam("hash_"), _holds(bindparam("oidc_s"))
)


def note_use(conn: Connection, session_id: int) -> None:
    """Note that a session was used: it is valid for `SESSION_S` from now on."""
    used = update(web_session).where(web_session.c.id == session_id)
    conn.execute(used.values(used_at=now_s(), expires_at=now_s() + SESSION_S))


def sessions(conn: Connection, oidc_s: float) -> list[WebSession]:
    """Return all valid sessions, the one that was used last first.

    `oidc_s`: how long one of an identity provider is valid, however much it is used.
    """
    last = (web_session.c.used_at.desc(), web_session.c.id.desc())
    rows = conn.execute(select(*_OF_SESSION).where(_holds(oidc_s)).order_by(*last))
    return [WebSession(*row) for row in rows]


def end(conn: Connection, hash_: str) -> None:
    """End the session with a secret of this hash, if there is one."""
    conn.execute(delete(web_session).where(web_session.c.hash == hash_))


def end_one(conn: Connection, session_id: int) -> str | None:
    """End a session; returns its user, or None if it does not exist."""
    gone = delete(web_session).where(web_session.c.id == session_id)
    return conn.scalar(gone.returning(web_session.c.sender))


def end_all(conn: Connection, sender: str) -> int:
    """End all sessions of a user; returns how many there were."""
    return conn.execute(delete(web_session).where(web_session.c.sender == sender)).rowcount


@dataclass(frozen=True, slots=True)
class ChatLinks:
    """Makes and shows links in a chat that sign in.

    The stored text, and so every backup, has a number in place of the link's secret. Each time that
    the message is shown, the secret is made of that number, the conversation and the web chat's
    `token`, which is not in the database. It is as long as the number: offsets in the text stay.
    """

    token: SecretStr | None

    def new(self, page: str, conversation: int) -> tuple[str, str]:
        """Return a link to this page as it is stored in a conversation, and its secret."""
        number = secrets.token_hex(_LINK_CHARS)[:_LINK_CHARS]
        return f"{page}{STORED_LINK}{number}", self._secret(number, conversation)

    def shown(self, text: str, conversation: int) -> str:
        """Return a stored text of a conversation with working links."""
        # Copied into another conversation, as by a model, it leads to nothing.
        return _NUMBER.sub(lambda found: SHOWN_LINK + self._secret(found[1], conversation), text)

    def _secret(self, number: str, conversation: int) -> str:
        key = _OF_THIS_PROCESS if self.token is None else self.token.get_secret_value().encode()
        made_of = f"link of a chat:{conversation}:{number}".encode()
        return hmac.new(key, made_of, hashlib.sha256).hexdigest()[:_LINK_CHARS]
