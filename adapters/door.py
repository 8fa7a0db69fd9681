"""The port through which the web chat identifies users: `Door`, which the gateway implements.

No user is anonymous. A browser has a session, which begins with a proof (a link, the token, an
identity provider); a program sends the token with each request; the user of the Unix socket is the
first owner.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Literal, Protocol, TypeAlias

FIRST_OWNER = "web"
"""The sender id of the owner of the token, who also owns the chats of version 0.5."""

End: TypeAlias = Callable[[], None]
"""Called when an event stream must end."""
Reach: TypeAlias = Callable[[int], None]
"""Called with the number of bytes so far; raises `LimitReached` if they are too many."""
_NET_V6 = 64
"""Bits of an IPv6 address that identify a customer, who chooses the others (RFC 6177)."""
Proof = Literal["link", "token"]
"""A proof to sign in: the secret of a link that works once, or the token."""


class SignInRefused(Exception):
    """The proof is wrong, or is not checked.

    Attributes:
        retry_after_s: Seconds until a proof is checked again; None if this one was wrong.
    """

    def __init__(self, text: str, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class SignedInAlready(Exception):
    """The link is for another user (`link_for`) than the session (`name`); it is not used up."""

    def __init__(self, name: str, link_for: str) -> None:
        super().__init__(
            f"You are signed in as {name}; this link is for {link_for}. Its sender may be able to"
            f" read what you write as {link_for}."
        )
        self.name = name
        self.link_for = link_for


class LimitReached(Exception):
    """The request exceeds a limit; nothing was done.

    Attributes:
        retry_after_s: Seconds to wait before another try.
        busy: Without room at the moment; otherwise the user asked too often.
    """

    def __init__(self, text: str, retry_after_s: int, *, busy: bool = False) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.busy = busy


class ProviderUnreachable(Exception):
    """The identity provider does not answer as it should."""


@dataclass(frozen=True, slots=True)
class Errand:
    """The address that a browser is sent to at the identity provider.

    With the secret in its cookie only the same browser may return.
    """

    url: str
    secret: str


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The identity provider's answer in a browser's request; "" for missing parts.

    Attributes:
        state: The state that Parley has sent.
        code: Can be exchanged for the identity, once.
        issuer: The provider's name for itself (RFC 9207).
    """

    secret: str
    state: str
    code: str
    issuer: str


@dataclass(frozen=True, slots=True)
class Requester:
    """The client of a request.

    Attributes:
        address: "" over the Unix socket; behind a trusted proxy the one it names.
        secure: The client's connection is encrypted, up to a trusted proxy at least.
        host: The name and port that the client requested.
        proxied: The request came through a trusted proxy.
        session: The secret of the browser's session; "" for none.
    """

    address: str
    secure: bool = False
    host: str = ""
    proxied: bool = False
    browser: str = ""
    session: str = field(default="", repr=False)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return an IPv4 address itself, or the network of an IPv6 address."""
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
        sender: The sender id in turns: `FIRST_OWNER` or the name of a user.
        role: owner, member, guest, or stranger if the user may not write any more.
    """

    sender: str
    name: str
    role: str
    has_session: bool = False


OWNER = Visitor(FIRST_OWNER, "owner", "owner")
"""The user of the token, or of the Unix socket."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session that has begun; `secret` is for the browser's cookie and stored nowhere else."""

    visitor: Visitor
    secret: str


class VisitLimits(Protocol):
    """Limits of users' requests, event streams and bytes; no call blocks.

    Raises:
        LimitReached: The limit would be exceeded; all functions raise it.
    """

    def ask(self, visitor: Visitor, caller: Requester, *, reads: bool) -> None:
        """Count a request of a user: one that reads, or one that changes something."""

    def stream(self, visitor: Visitor, caller: Requester, end: End) -> AbstractContextManager[None]:
        """Count an event stream of a user and an address while the block runs.

        With too many streams of a user the oldest one ends: its `end` is called.
        """

    def room(self, visitor: Visitor) -> AbstractContextManager[Reach]:
        """Return a function that counts the bytes a user holds while the block runs."""


class Door(Protocol):
    """Identifies users; every call may read the database."""

    @property
    def limits(self) -> VisitLimits:
        """Limits of signed-in users."""

    @property
    def provider(self) -> str | None:
        """The host of the identity provider, or None."""

    async def session(self, secret: str) -> Visitor | None:
        """Return the user of a cookie's value, or None if the session is not valid."""

    async def token(self, offered: str, caller: Requester) -> Visitor:
        """Return the user of a token, or raise SignInRefused."""

    async def sign_in(
        self, proof: Proof, secret: str, caller: Requester, instead_of: str = ""
    ) -> SignedIn:
        """Begin a session with a new secret; the caller's session ends.

        Args:
            instead_of: The user of the caller's session, if its end was confirmed.

        Raises:
            SignInRefused: The proof is wrong, or there were too many wrong ones.
            SignedInAlready: The browser's session belongs to another user than the link.
        """

    async def lead_out(self) -> Errand:
        """Return the provider's address for a sign-in, or raise ProviderUnreachable."""

    async def come_back(self, answer: ProviderAnswer, caller: Requester) -> SignedIn:
        """Begin a session for the user that the identity provider names; the caller's session ends.

        Raises:
            ProviderUnreachable: The provider does not answer now.
            SignInRefused: The answer is wrong, the user may not come in, or too many tries.
        """

    async def sign_out(self, caller: Requester) -> None:
        """End the caller's session."""
