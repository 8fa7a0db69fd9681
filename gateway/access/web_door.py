"""Sign-in to the web chat: sessions, sign-in links, the token, an identity provider.

Generated secrets cannot be guessed, so attempts at them are not limited. Limits apply to attempts
at a token chosen by a person, and to provider responses, which each cost a request.

`WebDoor` implements the port of adapters/door.py. Links, invitations and revocations are
transaction functions that the command line uses too.
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
"""Validity of a sign-in link, in seconds."""
INVITATION_S = 86_400.0
"""Validity of an invitation link, in seconds."""
REMEMBERED_ADDRESSES = 1000

TRIES_PER_MIN = 10
"""Wrong attempts per minute from all addresses: guessing even the weakest accepted token takes
ages. Also the number of refusals per minute in the audit log."""
STRANGERS_TRIES_PER_MIN = 7
"""Share of these for addresses that never signed in; the rest stays for users."""
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

# A letter is required, since a number names a session (`revoke`).
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9][a-z0-9_-]{0,31}")
# The form of `secrets.token_urlsafe(32)`.
_MADE = re.compile(r"[A-Za-z0-9_-]{43}")
_MADE_KINDS = 20
"""Least distinct characters of a random token; most phrases have fewer."""
_STEM = 24
"""Longest part taken from a provider's user name; a number may follow."""
_RESERVED = frozenset({OWNER.name, FIRST_OWNER})


class Tries:
    """Counts wrong sign-in attempts; beyond the limits, even right ones are refused."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._all = SlidingWindow(TRIES_PER_MIN, MINUTE_S, clock)
        self._strangers = SlidingWindow(STRANGERS_TRIES_PER_MIN, MINUTE_S, clock)
        self._of_address = SlidingWindow(ADDRESS_TRIES_PER_MIN, MINUTE_S, clock)
        self._known: Recent[str, bool] = Recent(REMEMBERED_ADDRESSES)

    def begin(self, address: str) -> Hashable:
        """Count an attempt as wrong before it is checked, since others may come meanwhile.

        Raises:
            SignInRefused: There were too many attempts.
        """
        place, item = network_of(address), secrets.token_hex(8)
        windows = self._windows(place)
        if not all(window.has_room(whose, item) for window, whose in windows):
            raise SignInRefused(TOO_MANY, int(MINUTE_S))
        for window, whose in windows:
            window.count(whose, item)
        return item

    def was_right(self, address: str, item: Hashable) -> None:
        """Remove a right attempt from the count."""
        self.take_back(address, item)
        self._known[network_of(address)] = True

    def take_back(self, address: str, item: Hashable) -> None:
        """Remove an unchecked attempt from the count."""
        for window, whose in self._windows(network_of(address)):
            window.take_back(whose, item)

    def _windows(self, place: str) -> list[tuple[SlidingWindow, Hashable]]:
        strangers = [] if place in self._known else [(self._strangers, None)]
        return [(self._all, None), (self._of_address, place), *strangers]


def is_made(secret: str) -> bool:
    """Whether a secret looks generated, hence impossible to guess."""
    return _MADE.fullmatch(secret) is not None and len(set(secret)) >= _MADE_KINDS


@dataclass(frozen=True, slots=True)
class NewLink:
    """A sign-in link; its secret is stored nowhere else.

    `again`: whether the user was removed before and regains the old chats.
    """

    name: str
    secret: str
    life_s: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class SignedOut:
    """A signed-out user, and the number of ended sessions."""

    name: str
    sessions: int
    removed: bool = False


class WebDoor:
    """Signs users in to the web chat; `token` signs in the first owner, None if disabled."""

    def __init__(
        self,
        database: Database,
        access: Access,
        token: SecretStr | None,
        clock: Clock = time.monotonic,
        provider: Provider | None = None,
    ) -> None:
        web = access.web
        # At most half of the connections may be event streams.
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
        """The host of the identity provider, if any."""
        return None if self._provider is None else self._provider.host

    async def session(self, secret: str) -> Visitor | None:
        """Return the user of a session cookie, if valid."""
        found = await self._database.read(self._visitor, hash_of(secret))
        if found is None:
            return None
        visitor, session = found
        if session.stale:
            try:
                await self._database.write(web_users.note_use, session.id)
            except StorageError as exc:
                # Owners can sign in even on a full disk.
                log.warning("session_use_not_noted", error=str(exc))
        return visitor

    async def token(self, offered: str, caller: Requester) -> Visitor:
        """Return the owner if the token is right."""
        await self._check_token(offered, caller)
        return OWNER

    async def sign_in(
        self, proof: Proof, secret: str, caller: Requester, instead_of: str = ""
    ) -> SignedIn:
        """Start a session with a new secret and end the caller's.

        Raises:
            SignInRefused: The secret is wrong, or there were too many wrong attempts.
            SignedInAlready: The browser is signed in as another user than the link's.
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
        """Return the redirect to the identity provider."""
        return await self._there.lead_out()

    async def come_back(self, answer: ProviderAnswer, caller: Requester) -> SignedIn:
        """Start a session for the provider's user and end the caller's.

        Raises:
            ProviderUnreachable: The provider does not answer; not counted as an attempt.
            SignInRefused: The response is wrong, the user is not admitted, or there were too many
                attempts.
        """
        host = self._there.host
        if not answer.secret:
            # Any site can make a browser send this, so it must not use up attempts of its address.
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
        # Read first: a wrong guess costs no write.
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
        # Attempts must not fill the disk.
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
            # An owner removed this user, which overrides the provider.
            return None
        name = _enter(conn, identity, entry) if user is None else user.name
        web_users.identify(conn, name, identity.key, entry)
        return self._begin(conn, name, "oidc", caller, fresh)

    def _begin(
        self, conn: Connection, sender: str, proof: str, caller: Requester, fresh: str
    ) -> Visitor:
        """Start a session with the secret `fresh` in place of the caller's."""
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
    """Store a provider's user; return their unique, never reused name."""
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
    """Return the stored hash of a secret; headers may contain surrogates."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def name_of(sender: str) -> str:
    """Return the name of a user."""
    return OWNER.name if sender == FIRST_OWNER else sender


def called(who: str) -> str:
    """Format a "platform:id" for display; the first owner's id is not a name."""
    return f"{BUILT_IN}:{OWNER.name}" if who == f"{BUILT_IN}:{FIRST_OWNER}" else who


def sender_of(conn: Connection, name: str) -> str:
    """Return the sender id of a user.

    Raises:
        NotFound: The user does not exist or was removed.
    """
    if name == OWNER.name:
        return FIRST_OWNER
    found = web_users.user(conn, name)
    if found is None or found.role == "removed":
        raise NotFound(f"there is no web user {name!r}; the console lists them (Web users)")
    return name


def sign_in_address(page: str, secret: str) -> str:
    """Return a sign-in link; servers, logs and Referer never get the part after the #."""
    return f"{page}#sign-in={secret}"


def new_link(
    conn: Connection, name: str = OWNER.name, life_s: float = LINK_S, by: str = "", secret: str = ""
) -> NewLink:
    """Create a sign-in link and record it in the audit log.

    Args:
        by: Who made it; "" for Parley itself, which is not recorded.
        secret: The link's secret; "" for a new one.
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
    """Add a user and create their first sign-in link.

    Args:
        role: The role; ignored with `same_as`.
        same_as: Their "platform:sender id" on another platform, or None.
        secret: The link's secret; "" for a new one.

    Raises:
        GatewayError: The name is taken or invalid, or `same_as` is not an identity.
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
    """Remove a user and end their sessions; their chats stay.

    Raises:
        GatewayError: The user is the first owner.
        NotFound: The user does not exist.
    """
    if name == OWNER.name:
        raise GatewayError("the owner cannot be removed; `parley web revoke owner` signs them out")
    count = web_users.end_all(conn, sender_of(conn, name))
    web_users.remove(conn, name)
    _put_on_record(conn, "web_user_removed", name, {"sessions": count}, by)
    return SignedOut(name, count, removed=True)


def revoke(conn: Connection, which: str, by: str = COMMAND_LINE) -> SignedOut:
    """End one session (by number) or all sessions of a user (by name)."""
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
    """Log a change of users without secrets."""
    if isinstance(happened, NewLink) and invited:
        log.info("web_user_invited", user=happened.name)
    elif isinstance(happened, NewLink):
        log.info("web_link_made", user=happened.name)
    elif happened.removed:
        log.info("web_user_removed", user=happened.name, sessions=happened.sessions)
    else:
        log.info("web_sessions_revoked", user=happened.name, sessions=happened.sessions)
