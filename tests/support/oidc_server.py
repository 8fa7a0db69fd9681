"""A strict OpenID Connect provider on a loopback port, which signs in whoever is there.

`violations` has what a correct client never does; what a client must not take it is given by
`claims`, `sign`, `rotate` and `is_down`. Source: OpenID Connect Core 1.0, RFC 7636, RFC 9207.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.process import free_port

CLIENT, SECRET = "parley", "c1ient-secret-0123456789"
PERSON = {
    "sub": "248289761001",
    "email": "Ann@example.org",
    "email_verified": True,
    "preferred_username": "Ann",
}


@dataclass
class Grant:
    """What a code was given for."""

    redirect: str
    challenge: str
    nonce: str
    used: bool = False


class OidcServer:
    """The provider.

    Attributes:
        name: What it is called: for a browser `localhost` is another site than 127.0.0.1.
        person: Who sits at the browser: claims of the ID token.
        told_if_asked: Claims that only `userinfo` has.
        claims: What stands in the ID token in place of what belongs there; None takes one out.
        sign: RS256; `none` and HS256 as an attacker would, or `another` key under our id.
        denies: The person does not want to sign in.
        is_down: Answers 503 to everything.
        secret: What the client has to show.
        violations: What a correct client never does.
        asked: How often each path was asked for.
    """

    def __init__(self, name: str = "127.0.0.1") -> None:
        self.name = name
        self.person: dict[str, Any] = dict(PERSON)
        self.told_if_asked: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.sign = "RS256"
        self.denies = self.is_down = False
        self.secret = SECRET
        self.violations: list[str] = []
        self.asked: dict[str, int] = {}
        self.metadata: dict[str, Any] = {}
        self.redirects: set[str] = set()
        self._grants: dict[str, Grant] = {}
        self._tokens: set[str] = set()
        self._server: TestServer | None = None
        self._number = 0
        self.rotate()

    def rotate(self) -> None:
        """Sign with a new key from now on, and forget the old one."""
        self._number += 1
        self._key = _key(self._number)

    @property
    def issuer(self) -> str:
        return f"http://{self.name}:{self.port}"

    @property
    def port(self) -> int:
        assert self._server is not None
        assert self._server.port is not None
        return self._server.port

    def gateway(self) -> dict[str, Any]:
        """Return what a `ParleyProcess` is run with that has its users signed in here."""
        port = free_port()
        self.redirects.add(f"http://127.0.0.1:{port}/sign-in/oidc/callback")
        named = {"issuer": self.issuer, "client_id": CLIENT, "client_secret": SECRET}
        oidc = {**named, "allowed": {"email:ann@example.org": "guest"}}
        web = {"public_url": f"http://127.0.0.1:{port}", "auth": "oidc", "oidc": oidc}
        return {"settings": {"web": web}, "port": port}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["OidcServer"]:
        app = web.Application(middlewares=[self._noted])
        app.add_routes([
            web.get("/.well-known/openid-configuration", self._discovery),
            web.get("/jwks", self._jwks),
            web.get("/authorize", self._authorize),
            web.post("/token", self._token),
            web.get("/userinfo", self._userinfo),
        ])
        self._server = TestServer(app)
        await self._server.start_server()
        try:
            yield self
        finally:
            await self._server.close()

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if self.is_down:
            return web.Response(status=503, text="<h1>down for maintenance</h1>")
        response: web.StreamResponse = await handler(request)
        return response

    async def _discovery(self, _: web.Request) -> web.Response:
        places = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
        metadata = {f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in places.items()}
        return web.json_response(
            {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks", **metadata} | self.metadata
        )

    async def _jwks(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [self._key.as_dict(private=False)]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        if asked.get("client_id") != CLIENT or asked.get("redirect_uri") not in self.redirects:
            self.violations.append(f"authorize: client or redirect {dict(asked)}")
            return web.Response(status=400, text="unknown client or redirect_uri")
        needed = {"response_type": "code", "code_challenge_method": "S256"}
        wrong = [name for name, value in needed.items() if asked.get(name) != value]
        wrong += [name for name in ("state", "nonce") if len(asked.get(name, "")) < 32]
        wrong += [] if len(asked.get("code_challenge", "")) == 43 else ["code_challenge"]
        wrong += [] if "openid" in asked.get("scope", "").split() else ["scope"]
        if wrong:
            self.violations.append(f"authorize: {wrong}")
        if self.denies:
            return self._back(asked, {"error": "access_denied"})
        code = secrets.token_urlsafe(16)
        grant = Grant(asked["redirect_uri"], asked["code_challenge"], asked["nonce"])
        self._grants[code] = grant
        return self._back(asked, {"code": code})

    def _back(self, asked: Mapping[str, str], told: dict[str, str]) -> web.Response:
        told |= {"state": asked["state"], "iss": self.issuer}
        return web.Response(
            status=302, headers={"Location": f"{asked['redirect_uri']}?{urlencode(told)}"}
        )

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        shown = request.headers.get("Authorization", "")
        if shown != f"Basic {base64.b64encode(f'{CLIENT}:{self.secret}'.encode()).decode()}":
            self.violations.append("token: client authentication")
            return web.json_response({"error": "invalid_client"}, status=401)
        grant = self._grants.get(str(form.get("code")))
        digest = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_right = (
            grant is not None
            and not grant.used
            and form.get("grant_type") == "authorization_code"
            and form.get("redirect_uri") == grant.redirect
            and challenge == grant.challenge
        )
        if grant is None or not is_right:
            return web.json_response({"error": "invalid_grant"}, status=400)
        grant.used = True
        access = secrets.token_urlsafe(16)
        self._tokens.add(access)
        told = {"access_token": access, "token_type": "Bearer", "expires_in": 60}
        return web.json_response(told | {"id_token": self._signed(grant, access)})

    def _signed(self, grant: Grant, access: str) -> str:
        half = hashlib.sha256(access.encode()).digest()[:16]
        now = int(time.time())
        claims = {
            **self.person,
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": grant.nonce,
            "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"kid": self._key.kid}
        if self.sign == "none":
            parts = [{"alg": "none", **header}, claims]
            return ".".join([*(_encoded(orjson.dumps(part)) for part in parts), ""])
        if self.sign == "HS256":
            # What everybody knows, the public key, as if it were a shared secret.
            parts = [{"alg": "HS256", **header}, claims]
            body = ".".join(_encoded(orjson.dumps(part)) for part in parts)
            public = self._key.as_pem(private=False)
            return f"{body}.{_encoded(hmac.digest(public, body.encode(), 'sha256'))}"
        key = _key(0) if self.sign == "another" else self._key
        return jwt.encode({"alg": "RS256", **header}, claims, key)

    async def _userinfo(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self._tokens:
            self.violations.append("userinfo: token")
            return web.json_response({"error": "invalid_token"}, status=401)
        return web.json_response({"sub": self.person["sub"]} | self.told_if_asked)


@cache
def _key(number: int) -> RSAKey:
    """Make a key once: that takes long."""
    return RSAKey.generate_key(2048, {"kid": f"key-{number}"}, private=True)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
