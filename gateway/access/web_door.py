"""The web chat's door: sessions, sign-in links, the token, an identity provider.

Secrets that Parley made cannot be guessed, so tries are not limited. Limits apply to tries at a
token that a person chose, and to answers of the provider, each of which costs a request to it.

`WebDoor` implements the port of adapters/door.py. The rules of links, invitations and revocations
are transaction functions, for the command line as well.
"""

import hashlib
import hmac
import itertools
import re
import secrets
import time
from collections.abc import Hashable
from dataclasses import dataclass

import structlog
from pydantic import SecretStr
from sqlalchemy import Connection

from adapters.base import Clock, Recent
from adapters.door import (
    FIRST_OWNER,
    OWNER,
    Errand,
    Proof,
    ProviderAnswer,
    ProviderUnreachable,
    Requester,
    SignedIn,
    SignedInAlready,
    SignInRefused,
    Visitor,
    network_of,
)
from adapters.registry import BUILT_IN, account_types, by_name
from adapters.web.platform import UserRole
from agent.messages import storable
from gateway.access.oidc import SECRET_BYTES, Identity, Provider, WrongAnswer, entry_for
from gateway.access.pairing import COMMAND_LINE
from gateway.access.policy import Access
from gateway.access.rate_limits import MINUTE_S, SlidingWindow, VisitorLimits
from gateway.errors import GatewayError, NotFound, StorageError
from gateway.storage import audit_log
from gateway.storage.audit_log import AuditEntry, AuditKind
from gateway.storage.database import Database
from gateway.storage.people import web_users

log = structlog.get_logger()

LINK_S = 600.0
"""How long a sign-in link is valid."""
INVITATION_S = 86_400.0
"""How long the link of an invitation is valid."""
REMEMBERED_ADDRESSES = 1000

TRIES_PER_MIN = 10
"""Wrong tries from all addresses together: even the weakest accepted token lasts for ages. Also the
number of refusals a minute that the audit log records."""
STRANGERS_TRIES_PER_MIN = 7
"""Of these for addresses without a sign-in, which cannot use up the rest."""
ADDRESS_TRIES_PER_MIN = 5

WRONG_LINK = "This sign-in link has been used or has expired; you need another one."
WRONG_TOKEN = "That token is not right."  # noqa: S105 - what is said of a wrong one
WRONG_ANSWER = (
    "What came back from {host} does not say who you are. Please sign in again, in one go and in"
    " one tab of this browser."
)
NOT_LET_IN = (
    "{host} says that you are {who}. Nobody of that name is let in here. The owner of this Parley"
    " can do that: web.oidc.allowed in parley.yaml."
)
TOO_MANY = "There were too many wrong tries. Please wait for a minute, then try again."

# With a letter: a number names a session (`revoke`).
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9][a-z0-9_-]{0,31}")
# What `secrets.token_urlsafe(32)` returns.
_MADE = re.compile(r"[A-Za-z0-9_-]{43}")
_MADE_KINDS = 20
"""Distinct characters: of a million random tokens none has fewer; most phrases do."""
_STEM = 24
"""Of a provider's name for a user: a number may follow it."""
_RESERVED = frozenset({OWNER.name, FIRST_OWNER})


class Tries:
    """Counts wrong tries to sign in; beyond the limits not even right ones are checked."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._all = SlidingWindow(TRIES_PER_MIN, MINUTE_S, clock)
        self._strangers = SlidingWindow(STRANGERS_TRIES_PER_MIN, MINUTE_S, clock)
        self._of_address = SlidingWindow(ADDRESS_TRIES_PER_MIN, MINUTE_S, clock)
        self._known: Recent[str, bool] = Recent(REMEMBERED_ADDRESSES)

    def begin(self, address: str) -> Hashable:
        """Count a try as a wrong one before it is checked: others may come meanwhile.

        Raises:
            SignInRefused: There were too many.
        """
        place, item = network_of(address), secrets.token_hex(8)
        windows = self._windows(place)
        if not all(window.has_room(whose, item) for window, whose in windows):
            raise SignInRefused(TOO_MANY, int(MINUTE_S))
        for window, whose in windows:
            window.count(whose, item)
        return item

    def was_right(self, address: str, item: Hashable) -> None:
        """Uncount a right try."""
        self.take_back(address, item)
        self._known[network_of(address)] = True

    def take_back(self, address: str, item: Hashable) -> None:
        """Uncount a try that was not checked."""
        for window, whose in self._windows(network_of(address)):
            window.take_back(whose, item)

    def _windows(self, place: str) -> list[tuple[SlidingWindow, Hashable]]:
        strangers = [] if place in self._known else [(self._strangers, None)]
        return [(self._all, None), (self._of_address, place), *strangers]


def is_made(secret: str) -> bool:
    """Whether a secret looks like one that Parley makes, which cannot be guessed."""
    return _MADE.fullmatch(secret) is not None and len(set(secret)) >= _MADE_KINDS


@dataclass(frozen=True, slots=True)
class NewLink:
    """A link that signs in; the secret is stored nowhere else.

    `again`: the user was removed before, and has the chats of that time.
    """

    name: str
    secret: str
    life_s: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class SignedOut:
    """A user who was signed out, and the number of sessions."""

    name: str
    sessions: int
    removed: bool = False


class WebDoor:
    """Signs users in to the web chat; `token` signs in the first owner, None if tokens are off."""

    def __init__(
        self,
        database: Database,
        access: Access,
        token: SecretStr | None,
        clock: Clock = time.monotonic,
        provider: Provider | None = None,
    ) -> None:
        web = access.web
        # Half of the connections may be event streams.
        most = web.max_connections // 2, web.connections_per_address // 2
        self.limits = VisitorLimits(*most, clock)
        self._provider = provider
        self._database = database
        self._access = access
        self._token = None if token is None else hash_of(token.get_secret_value())
        self._is_chosen = token is not None and not is_made(token.get_secret_value())
        self._tries = Tries(clock)
        self._on_record = SlidingWindow(TRIES_PER_MIN, MINUTE_S, clock)

    @property
    def provider(self) -> str | None:
        """The host of the identity provider, if there is one."""
        return None if self._provider is None else self._provider.host

    async def session(self, secret: str) -> Visitor | None:
        """Return the user of a cookie's session, if it is valid."""
        found = await self._database.read(self._visitor, hash_of(secret))
        if found is None:
            return None
        visitor, session = found
        if session.stale:
            try:
                await self._database.write(web_users.note_use, session.id)
            except StorageError as exc:
                # On a full disk an owner can still sign in.
                log.warning("session_use_not_noted", error=str(exc))
        return visitor

    async def token(self, offered: str, caller: Requester) -> Visitor:
        """Return the owner for the right token."""
        await self._check_token(offered, caller)
        return OWNER

    async def sign_in(
        self, proof: Proof, secret: str, caller: Requester, instead_of: str = ""
    ) -> SignedIn:
        """Begin a session with a new secret; the caller's session ends.

        Raises:
            SignInRefused: It is wrong, or there were too many wrong tries.
            SignedInAlready: The browser's session belongs to another user than the link.
        """
        fresh = secrets.token_urlsafe(SECRET_BYTES)
        if proof == "token":
            await self._check_token(secret, caller)
            visitor = await self._database.write(self._begin, FIRST_OWNER, proof, caller, fresh)
        else:
            visitor = await self._use_link(secret, caller, fresh, instead_of)
        log.info("web_signed_in", user=visitor.name, by=proof, address=caller.address)
        return SignedIn(visitor, fresh)

    async def lead_out(self) -> Errand:
        """Return the redirect of a browser to the identity provider."""
        return await self._there.lead_out()

    async def come_back(self, answer: ProviderAnswer, caller: Requester) -> SignedIn:
        """Begin a session for the user that the provider names; the caller's session ends.

        Raises:
            ProviderUnreachable: The provider does not answer; that does not count as a try.
            SignInRefused: The answer is wrong, they are not let in, or there were too many tries.
        """
        host = self._there.host
        if not answer.secret:
            # Any site can make a browser send this, which would use up the tries of its address.
            raise SignInRefused(WRONG_ANSWER.format(host=host))
        item = await self._begin_try(caller)
        try:
            identity = await self._there.identify(answer)
        except WrongAnswer as exc:
            await self._refused(caller, exc.reason)
            raise SignInRefused(WRONG_ANSWER.format(host=host)) from exc
        except ProviderUnreachable:
            self._tries.take_back(caller.address, item)
            raise
        fresh = secrets.token_urlsafe(SECRET_BYTES)
        visitor = await self._database.write(self._begin_as, identity, caller, fresh)
        if visitor is None:
            await self._refused(caller, "oidc_not_let_in", identity.key)
            who = identity.email or identity.called or identity.subject
            raise SignInRefused(NOT_LET_IN.format(host=host, who=who))
        self._tries.was_right(caller.address, item)
        log.info("web_signed_in", user=visitor.name, by="oidc", address=caller.address)
        return SignedIn(visitor, fresh)

    @property
    def _there(self) -> Provider:
        if self._provider is None:
            raise ProviderUnreachable("There is no identity provider.")
        return self._provider

    async def sign_out(self, caller: Requester) -> None:
        """End the caller's session."""
        visitor = await self.session(caller.session)
        await self._database.write(_end, hash_of(caller.session), visitor, caller.address)
        if visitor is not None:
            log.info("web_signed_out", user=visitor.name, address=caller.address)

    async def _check_token(self, offered: str, caller: Requester) -> None:
        item = await self._begin_try(caller) if self._is_chosen else None
        if self._token is None or not hmac.compare_digest(hash_of(offered), self._token):
            await self._refused(caller, "wrong_token")
            raise SignInRefused(WRONG_TOKEN)
        if item is not None:
            self._tries.was_right(caller.address, item)

    async def _use_link(
        self, secret: str, caller: Requester, fresh: str, instead_of: str
    ) -> Visitor:
        hash_ = hash_of(secret)
        # A wrong guess costs no write.
        sender = await self._database.read(web_users.link_for, hash_)
        there = await self.session(caller.session) if sender and caller.session else None
        if sender and there and sender != there.sender and instead_of != there.name:
            raise SignedInAlready(there.name, name_of(sender))
        visitor = None
        if sender:
            visitor = await self._database.write(self._take_link, hash_, caller, fresh)
        if visitor is None:
            await self._refused(caller, "wrong_link")
            raise SignInRefused(WRONG_LINK)
        return visitor

    async def _begin_try(self, caller: Requester) -> Hashable:
        try:
            return self._tries.begin(caller.address)
        except SignInRefused:
            await self._refused(caller, "too_many")
            raise

    async def _refused(self, caller: Requester, reason: str, identity: str = "") -> None:
        address = caller.address
        log.warning("web_sign_in_refused", address=address, reason=reason)
        # Tries must not fill the disk.
        if not self._on_record.count(None, secrets.token_hex(8)):
            return
        whom = {"identity": identity} if identity else {}
        entry = AuditEntry("web_sign_in_refused", address=address, subject=reason, detail=whom)
        await self._database.write(audit_log.append, entry)

    def _take_link(
        self, conn: Connection, hash_: str, caller: Requester, fresh: str
    ) -> Visitor | None:
        sender = web_users.take_link(conn, hash_)
        return None if sender is None else self._begin(conn, sender, "link", caller, fresh)

    def _begin_as(
        self, conn: Connection, identity: Identity, caller: Requester, fresh: str
    ) -> Visitor | None:
        entry = entry_for(identity, self._access.web.let_in)
        if entry is None:
            return None
        user = web_users.identified(conn, identity.key)
        if user is not None and user.role == "removed":
            # An owner removed them, and has the last word.
            return None
        name = _enter(conn, identity, entry) if user is None else user.name
        web_users.identify(conn, name, identity.key, entry)
        return self._begin(conn, name, "oidc", caller, fresh)

    def _begin(
        self, conn: Connection, sender: str, proof: str, caller: Requester, fresh: str
    ) -> Visitor:
        """Begin a session with the secret `fresh`, in place of the caller's."""
        if caller.session:
            web_users.end(conn, hash_of(caller.session))
        browser = storable(caller.browser[:200])
        web_users.begin(conn, hash_of(fresh), sender, proof, caller.address, browser)
        by = f"{BUILT_IN}:{sender}"
        audit_log.append(conn, AuditEntry("web_signed_in", by, caller.address, proof))
        return self._named(conn, sender)

    def _visitor(self, conn: Connection, hash_: str) -> tuple[Visitor, web_users.WebSession] | None:
        session = web_users.find(conn, hash_, self._access.web.oidc.session_s)
        return None if session is None else (self._named(conn, session.sender), session)

    def _named(self, conn: Connection, sender: str) -> Visitor:
        role = self._access.web_role(conn, sender)
        return Visitor(sender, name_of(sender), role, has_session=True)


def _enter(conn: Connection, identity: Identity, entry: str) -> str:
    """Enter a user of a provider; returns their name, which no other user ever has."""
    called = identity.called.partition("@")[0].lower()
    stem = re.sub("[^a-z0-9_-]+", "-", called).strip("-_")[:_STEM]
    stem = stem if _NAME.fullmatch(stem) else "user"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    name = next(each for each in names if each not in _RESERVED and not web_users.user(conn, each))
    web_users.enter(conn, name, "guest", None, "oidc")
    detail: dict[str, str | int | None] = {"identity": identity.key, "let_in_by": entry}
    audit_log.append(conn, AuditEntry("web_user_invited", "oidc", subject=name, detail=detail))
    return name


def _end(conn: Connection, hash_: str, visitor: Visitor | None, address: str) -> None:
    web_users.end(conn, hash_)
    if visitor is not None:
        by = f"{BUILT_IN}:{visitor.sender}"
        audit_log.append(conn, AuditEntry("web_signed_out", by=by, address=address))


def hash_of(secret: str) -> str:
    """Return the stored form of a secret; headers may have surrogates for bytes."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def name_of(sender: str) -> str:
    """Return the name of a user."""
    return OWNER.name if sender == FIRST_OWNER else sender


def called(who: str) -> str:
    """Return the shown form of a "platform:id": the first owner's id is not a name."""
    return f"{BUILT_IN}:{OWNER.name}" if who == f"{BUILT_IN}:{FIRST_OWNER}" else who


def sender_of(conn: Connection, name: str) -> str:
    """Return the sender id of a user.

    Raises:
        NotFound: There is no such user, or not any more.
    """
    if name == OWNER.name:
        return FIRST_OWNER
    found = web_users.user(conn, name)
    if found is None or found.role == "removed":
        raise NotFound(f"there is no web user {name!r}; the console lists them (Web users)")
    return name


def sign_in_address(page: str, secret: str) -> str:
    """Return a link that signs in; no server, log or Referer gets the part after the #."""
    return f"{page}#sign-in={secret}"


def new_link(
    conn: Connection, name: str = OWNER.name, life_s: float = LINK_S, by: str = "", secret: str = ""
) -> NewLink:
    """Make a link that signs a user in, and put it on record.

    Args:
        by: The author; "" for Parley itself, which is not recorded.
        secret: Of the link; "" for a new one.
    """
    secret = secret or secrets.token_urlsafe(SECRET_BYTES)
    web_users.enter_link(conn, hash_of(secret), sender_of(conn, name), life_s)
    if by:
        _put_on_record(conn, "web_link_made", name, {"life_s": int(life_s)}, by)
    return NewLink(name, secret, life_s)


def invite(
    conn: Connection,
    name: str,
    role: UserRole,
    same_as: str | None = None,
    by: str = COMMAND_LINE,
    secret: str = "",
) -> NewLink:
    """Enter a user, and make the link that signs them in for the first time.

    Args:
        role: Applies without `same_as`.
        same_as: Their "platform:sender id" on another platform, or None.
        secret: Of the link; "" for a new one.

    Raises:
        GatewayError: The name is taken or not valid, or `same_as` is not an identity.
    """
    if not _NAME.fullmatch(name) or name in _RESERVED:
        rule = "1 to 32 small letters, digits, - and _, not digits alone, nor `owner` or `web`"
        raise GatewayError(f"{name!r} is no name for a web user: {rule}")
    if same_as is not None:
        platform, _, sender = same_as.partition(":")
        pattern = by_name()[platform].id_pattern if platform in account_types() else None
        if pattern is None or re.fullmatch(pattern, sender) is None:
            raise GatewayError(f"{same_as!r} must be PLATFORM:ID, such as telegram:123456")
    before = web_users.user(conn, name)
    if before is not None and before.role != "removed":
        raise GatewayError(f"{name} is a web user already; `parley open {name}` makes a link")
    web_users.enter(conn, name, role, same_as, by)
    _put_on_record(conn, "web_user_invited", name, {"role": role, "same_as": same_as}, by)
    link = new_link(conn, name, INVITATION_S, secret=secret)
    return NewLink(name, link.secret, link.life_s, again=before is not None)


def remove(conn: Connection, name: str, by: str = COMMAND_LINE) -> SignedOut:
    """Remove a user: they are signed out for good, their chats stay.

    Raises:
        GatewayError: It is the first owner.
        NotFound: There is no such user.
    """
    if name == OWNER.name:
        raise GatewayError("the owner cannot be removed; `parley web revoke owner` signs them out")
    count = web_users.end_all(conn, sender_of(conn, name))
    web_users.remove(conn, name)
    _put_on_record(conn, "web_user_removed", name, {"sessions": count}, by)
    return SignedOut(name, count, removed=True)


def revoke(conn: Connection, which: str, by: str = COMMAND_LINE) -> SignedOut:
    """End a session (its number), or all of a user (their name)."""
    if which.isascii() and which.isdecimal():
        sender = web_users.end_one(conn, int(which[:18]))
        if sender is None:
            raise NotFound(f"there is no session {which}; the console lists them (Web users)")
        ended = SignedOut(name_of(sender), 1)
    else:
        ended = SignedOut(which, web_users.end_all(conn, sender_of(conn, which)))
    _put_on_record(conn, "web_sessions_revoked", ended.name, {"sessions": ended.sessions}, by)
    return ended


def _put_on_record(
    conn: Connection, kind: AuditKind, name: str, detail: dict[str, str | int | None], by: str
) -> None:
    audit_log.append(conn, AuditEntry(kind, by=by, subject=name, detail=detail))


def report(happened: NewLink | SignedOut, *, invited: bool = False) -> None:
    """Log what was done about users; never a secret."""
    if isinstance(happened, NewLink) and invited:
        log.info("web_user_invited", user=happened.name)
    elif isinstance(happened, NewLink):
        log.info("web_link_made", user=happened.name)
    elif happened.removed:
        log.info("web_user_removed", user=happened.name, sessions=happened.sessions)
    else:
        log.info("web_sessions_revoked", user=happened.name, sessions=happened.sessions)
