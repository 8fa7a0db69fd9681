"""The port through which the web chat identifies users: `Door`, implemented by the gateway.

No user is anonymous. A browser has a session, which starts with a proof (a link, the token, an
identity provider); a program sends the token with each request; the Unix socket's user is the first
owner.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Literal, Protocol, TypeAlias

FIRST_OWNER = "web"
"""Sender id of the token's owner; chats of version 0.5 belong to it, too."""

End: TypeAlias = Callable[[], None]
"""Called when an event stream must end."""
Reach: TypeAlias = Callable[[int], None]
"""Called with the number of bytes so far; raises `LimitReached` if it exceeds the limit."""
_NET_V6 = 64
"""Leading bits of an IPv6 address that identify a customer; the rest is arbitrary (RFC 6177)."""
Proof = Literal["link", "token"]
"""A proof of identity to sign in: the secret of a single-use link, or the token."""


class SignInRefused(Exception):
    """The proof is wrong or was not checked.

    Attributes:
        retry_after_s: Seconds until the next proof is checked; None if this one was wrong.
    """

    def __init__(self, text: str, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class SignedInAlready(Exception):
    """The link is for another user (`link_for`) than the session (`name`); it stays unused."""

    def __init__(self, name: str, link_for: str) -> None:
        super().__init__(
            f"You are signed in as {name}; this link is for {link_for}. Its sender may be able to"
            f" read what you write as {link_for}."
        )
        self.name = name
        self.link_for = link_for


class LimitReached(Exception):
    """The request exceeds a limit; it had no effect.

    Attributes:
        busy: Whether the server has no capacity now; otherwise the user sent too many requests.
    """

    def __init__(self, text: str, retry_after_s: int, *, busy: bool = False) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.busy = busy


class ProviderUnreachable(Exception):
    """The identity provider is unreachable or returned an invalid answer."""


@dataclass(frozen=True, slots=True)
class Errand:
    """The identity provider's address to which a browser is redirected.

    The secret in its cookie ensures that the same browser returns.
    """

    url: str
    secret: str


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The identity provider's answer, in a browser's request; "" for missing parts.

    Attributes:
        state: The state sent by Parley.
        code: Can be exchanged once for the identity.
        issuer: The provider's identifier (RFC 9207).
    """

    secret: str
    state: str
    code: str
    issuer: str


@dataclass(frozen=True, slots=True)
class Requester:
    """The client that sent a request.

    Attributes:
        address: "" over the Unix socket; behind a trusted proxy, the address it reports.
        secure: Whether the client's connection is encrypted, at least up to a trusted proxy.
        session: The secret of the browser's session; "" if there is none.
    """

    address: str
    secure: bool = False
    host: str = ""
    proxied: bool = False
    browser: str = ""
    session: str = field(default="", repr=False)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return an IPv4 address unchanged, or the network of an IPv6 address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.version == 4 or found.is_loopback:
        return str(found)
    return str(ip_network((found, _NET_V6), strict=False).network_address)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user of the web chat.

    Attributes:
        sender: The sender id in turns: `FIRST_OWNER` or a user's name.
        role: owner, member, guest, or stranger for a user who may no longer write.
    """

    sender: str
    name: str
    role: str
    has_session: bool = False


OWNER = Visitor(FIRST_OWNER, "owner", "owner")
"""The user of the token or the Unix socket."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new session; `secret` goes into the browser's cookie and is not stored anywhere else."""

    visitor: Visitor
    secret: str


class VisitLimits(Protocol):
    """Limits on users' requests, event streams and bytes; no method blocks.

    Raises:
        LimitReached: The limit would be exceeded; raised by all methods.
    """

    def ask(self, visitor: Visitor, caller: Requester, *, reads: bool) -> None:
        """Count a user's request, which either reads or changes data."""

    def stream(self, visitor: Visitor, caller: Requester, end: End) -> AbstractContextManager[None]:
        """Count an event stream of a user and an address while the block runs.

        If a user has too many streams, the oldest is ended by calling its `end`.
        """

    def room(self, visitor: Visitor) -> AbstractContextManager[Reach]:
        """Yield a function that counts the bytes held for a user while the block runs."""


class Door(Protocol):
    """Identifies users; every method may read the database."""

    @property
    def limits(self) -> VisitLimits:
        """Limits of signed-in users."""

    @property
    def provider(self) -> str | None:
        """Host of the identity provider, or None."""

    async def session(self, secret: str) -> Visitor | None:
        """Return the user of a session cookie, or None if the session is invalid."""

    async def token(self, offered: str, caller: Requester) -> Visitor:
        """Return the token's user, or raise SignInRefused."""

    async def sign_in(
        self, proof: Proof, secret: str, caller: Requester, instead_of: str = ""
    ) -> SignedIn:
        """Start a session with a new secret; the caller's previous session ends.

        Args:
            instead_of: The user of the caller's session, if its end was confirmed.

        Raises:
            SignInRefused: The proof is wrong, or too many wrong ones were sent.
            SignedInAlready: The browser's session belongs to a different user than the link.
        """

    async def lead_out(self) -> Errand:
        """Return the provider's address for a sign-in, or raise ProviderUnreachable."""

    async def come_back(self, answer: ProviderAnswer, caller: Requester) -> SignedIn:
        """Start a session for the user named by the identity provider; end the caller's session.

        Raises:
            ProviderUnreachable: The provider is not responding.
            SignInRefused: The answer is wrong, the user has no access, or there were too many
                attempts.
        """

    async def sign_out(self, caller: Requester) -> None:
        """End the caller's session."""
