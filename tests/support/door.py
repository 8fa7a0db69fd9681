"""The web chat's door in tests: how a client gets in, and a door without a database.

Programs show the token (`bearer`), a browser opens a sign-in link (`sign_in_link`).
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.door import (
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
)
from adapters.registry import Host
from adapters.web.platform import OWN_NAME
from gateway.access.rate_limits import VisitorLimits
from tests.support.history import MemoryHistory

TOKEN = "t0ken-of-the-tests-0123456789"
"""For gateways whose settings the test writes itself."""
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
COMMANDS = (("stop", "stop the answer"), ("model", "show the models"), ("status", "tell all"))
MAX_FILE_BYTES = 20_000_000


def bearer(home: Path) -> dict[str, str]:
    """Return the headers of a program that uses the token which a gateway made in `home`."""
    return {"Authorization": f"Bearer {(home / 'web.token').read_text().strip()}"}


def sign_in_link(stderr: Sequence[str]) -> str:
    """Return the newest link that `parley run` or `parley open` printed.

    With an address that Python resolves, too: only browsers resolve `parley.localhost`.
    """
    words = [word for line in stderr for word in line.split() if "#sign-in=" in word]
    return words[-1].replace(f"//{OWN_NAME}:", "//127.0.0.1:")


class MemoryDoor:
    """Lets in whoever has the token, and those whom a test has given a link.

    Attributes:
        links: Who is signed in by a link, by its secret; taken once.
        sessions: Who is there, by the secret of the cookie.
        callers: Where sign-ins came from.
        provider: The host of the identity provider.
        errand: What sends browsers there; who comes back with it is ann.
        answers: What came back.
        limits: What those who are in may ask for.
    """

    def __init__(self, token: str = TOKEN) -> None:
        self.links: dict[str, Visitor] = {}
        self.sessions: dict[str, Visitor] = {}
        self.callers: list[Requester] = []
        self.refuses: SignInRefused | None = None
        self.provider: str | None = None
        self.errand: Errand | ProviderUnreachable = ProviderUnreachable("It is down.")
        self.answers: list[ProviderAnswer] = []
        self.limits = VisitorLimits()
        self._token = token

    def begin(self, visitor: Visitor = OWNER) -> str:
        """Begin a session; returns its secret."""
        secret = secrets.token_hex(8)
        who = Visitor(visitor.sender, visitor.name, visitor.role, has_session=True)
        self.sessions[secret] = who
        return secret

    async def session(self, secret: str) -> Visitor | None:
        return self.sessions.get(secret)

    async def token(self, offered: str, caller: Requester) -> Visitor:
        if self.refuses:
            raise self.refuses
        if offered != self._token:
            raise SignInRefused("That token is not right.")
        return OWNER

    async def sign_in(
        self, proof: Proof, secret: str, caller: Requester, instead_of: str = ""
    ) -> SignedIn:
        self.callers.append(caller)
        there, link_for = self.sessions.get(caller.session), self.links.get(secret)
        if there and link_for and there.name not in {link_for.name, instead_of}:
            raise SignedInAlready(there.name, link_for.name)
        if proof == "token":
            visitor = await self.token(secret, caller)
        elif secret in self.links:
            visitor = self.links.pop(secret)
        else:
            raise SignInRefused("This sign-in link has been used or has expired.")
        self.sessions.pop(caller.session, None)
        fresh = self.begin(visitor)
        return SignedIn(self.sessions[fresh], fresh)

    async def lead_out(self) -> Errand:
        if isinstance(self.errand, ProviderUnreachable):
            raise self.errand
        return self.errand

    async def come_back(self, answer: ProviderAnswer, caller: Requester) -> SignedIn:
        errand = await self.lead_out()
        self.answers.append(answer)
        if answer.secret != errand.secret:
            raise SignInRefused("What came back does not say who you are.")
        self.sessions.pop(caller.session, None)
        fresh = self.begin(Visitor("ann", "ann", "member"))
        return SignedIn(self.sessions[fresh], fresh)

    async def sign_out(self, caller: Requester) -> None:
        self.sessions.pop(caller.session, None)


def web_host(history: MemoryHistory, door: MemoryDoor | None = None, **changes: Any) -> Host:
    """Return what a web chat is built with, where the history also takes the messages."""
    fields: dict[str, Any] = {
        "intake": history,
        "history": history,
        "commands": COMMANDS,
        "max_file_bytes": MAX_FILE_BYTES,
        "door": door or MemoryDoor(),
    }
    return Host(**fields | changes)
