"""The identity provider of the web chat (OpenID Connect).

The authorization code flow with PKCE, by authlib, an optional dependency that is imported if a
provider is configured. The browser keeps one secret in a cookie; `state`, `nonce` and PKCE's
verifier are derived from it, so the server stores nothing and accepts only the same browser back.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import structlog

from adapters.base import Clock
from adapters.door import Errand, ProviderAnswer, ProviderUnreachable
from adapters.web.platform import OidcSettings, WebSettings, is_private_way
from agent.messages import storable
from agent.network import UnusableEnvironment, proxy_for, tls_for
from gateway.errors import SettingsError

log = structlog.get_logger()

SECRET_BYTES = 32
TIMEOUT_S = 10.0
"""Time limit for one response of the provider; a whole sign-in has twice as long."""
REST_S = 5.0
"""Pause after the provider's metadata could not be fetched, in seconds."""
_MALFORMED = (TimeoutError, ValueError, KeyError, TypeError)
"""Exceptions of a late or malformed response."""
LEEWAY_S = 60
"""Accepted clock skew."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Asymmetric only: a public key must not serve as a shared secret, nor "none" as a signature."""
WANTED = {"email": ("email", "email_verified"), "group": ("groups",)}
"""Claims needed for each kind of entry in the settings."""


class WrongAnswer(Exception):
    """The response does not prove an identity; `reason` is for the logs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """A user as named by the provider; `email` is "" unless verified."""

    issuer: str
    subject: str
    email: str = ""
    groups: tuple[str, ...] = ()
    called: str = ""

    @property
    def key(self) -> str:
        """The permanent key of the user: "issuer subject"; an issuer is a URL without spaces."""
        return storable(f"{self.issuer} {self.subject}")


def entry_for(identity: Identity, allowed: Mapping[str, Any]) -> str | None:
    """Return the first entry of the settings that admits a user, if any."""
    fits = {f"subject:{identity.subject}", *(f"group:{group}" for group in identity.groups)}
    if identity.email:
        fits.add(f"email:{identity.email.casefold()}")
    named = ((each, each.casefold() if each.startswith("email:") else each) for each in allowed)
    return next((entry for entry, normal in named if normal in fits), None)


def identity_provider(settings: WebSettings) -> "Provider | None":
    """Build the configured identity provider, if any."""
    return Provider(settings.oidc, settings.callback_url) if settings.auth == "oidc" else None


class Provider:
    """Identifies a browser's user through an identity provider, whose metadata is fetched once."""

    def __init__(
        self, settings: OidcSettings, callback_url: str, clock: Clock = time.monotonic
    ) -> None:
        self._settings = settings
        self._callback_url = callback_url
        self._clock = clock
        self._issuer = settings.issuer or ""
        self._library = _Library()
        self._learning = asyncio.Lock()
        self._rests_until = 0.0
        self._metadata: dict[str, Any] | None = None
        self._keys: Any = None

    @property
    def host(self) -> str:
        """The provider's host name, shown to people."""
        return urlsplit(self._issuer).netloc

    async def lead_out(self) -> Errand:
        """Return the redirect to the provider.

        Raises:
            ProviderUnreachable: Its metadata cannot be fetched.
        """
        secret = secrets.token_urlsafe(SECRET_BYTES)
        async with self._client() as client:
            metadata = await self._learned(client)
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=_made_of(secret, "state"),
                nonce=_made_of(secret, "nonce"),
                code_verifier=_made_of(secret, "verifier"),
            )
        return Errand(url, secret)

    async def identify(self, answer: ProviderAnswer) -> Identity:
        """Return the user of a browser that comes back from the provider.

        Raises:
            ProviderUnreachable: The provider's response is missing or malformed.
            WrongAnswer: The browser was not sent there, or the provider does not confirm the user.
        """
        state = _made_of(answer.secret, "state")
        if not answer.secret or not hmac.compare_digest(state.encode(), answer.state.encode()):
            raise WrongAnswer("oidc_state")
        if answer.issuer not in {"", self._issuer}:
            raise WrongAnswer("oidc_issuer")
        if not answer.code:
            raise WrongAnswer("oidc_denied")
        async with self._client() as client:
            metadata = await self._learned(client)
            token = await client.fetch_token(
                metadata["token_endpoint"],
                grant_type="authorization_code",
                code=answer.code,
                code_verifier=_made_of(answer.secret, "verifier"),
                auth=client.client_auth(_client_auth(metadata, self._settings)),
            )
            claims = await self._checked(client, token, _made_of(answer.secret, "nonce"))
            claims = await self._completed(client, token, claims)
        return self._identity(claims)

    async def _checked(
        self, client: Any, token: Mapping[str, Any], nonce: str
    ) -> Mapping[str, Any]:
        """Return the claims of an ID token after checking signature, audience, time and nonce."""
        signed = token.get("id_token")
        if not isinstance(signed, str):
            raise WrongAnswer("oidc_token")
        try:
            decoded = self._library.decode(signed, self._keys)
        except self._library.UnknownKey:
            # Providers rotate keys; a forged key id costs the attacker an authorization code.
            await self._learn_keys(client)
            decoded = self._library.decode(signed, self._keys)
        must_be = {"iss": self._issuer, "aud": self._settings.client_id}
        claims = self._library.IdToken(
            decoded.claims,
            decoded.header,
            {name: {"essential": True, "value": value} for name, value in must_be.items()},
            {
                "nonce": nonce,
                "client_id": self._settings.client_id,
                "access_token": token.get("access_token"),
            },
        )
        claims.validate(leeway=LEEWAY_S)
        checked: Mapping[str, Any] = claims
        return checked

    async def _completed(
        self, client: Any, token: Mapping[str, Any], claims: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Add the claims that the settings need; many providers return them only on request."""
        kinds = {entry.partition(":")[0] for entry in self._settings.allowed}
        wanted = {name for kind in kinds for name in WANTED.get(kind, ())} - claims.keys()
        address = (self._metadata or {}).get("userinfo_endpoint")
        if not wanted or address is None or "access_token" not in token:
            return claims
        bearer = {"Authorization": f"Bearer {token['access_token']}"}
        told = await _json(client, address, headers=bearer)
        if told.get("sub") != claims["sub"]:
            raise WrongAnswer("oidc_userinfo")
        # The verification applies to this address, not to another one in the token.
        vouched = "email_verified" in claims
        kept = {name: each for name, each in claims.items() if vouched or name != "email"}
        return {**told, **kept}

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        subject, email, groups = (claims.get(name) for name in ("sub", "email", "groups"))
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise WrongAnswer("oidc_token")
        named = claims.get("preferred_username")
        is_verified = isinstance(email, str) and claims.get("email_verified") is True
        own = str(email) if is_verified else ""
        return Identity(
            self._issuer,
            subject,
            own,
            tuple(str(group) for group in groups) if isinstance(groups, list) else (),
            named if isinstance(named, str) else own,
        )

    async def _learned(self, client: Any) -> dict[str, Any]:
        """Fetch the provider's metadata once."""
        async with self._learning:
            if self._metadata is None:
                if self._clock() < self._rests_until:
                    raise ProviderUnreachable(self._unreachable)
                # Only a complete response ends the pause: many may ask while the provider is down.
                self._rests_until = self._clock() + REST_S
                metadata = await self._discovered(client)
                await self._learn_keys(client, metadata)
                self._metadata = metadata
            return self._metadata

    async def _discovered(self, client: Any) -> dict[str, Any]:
        well_known = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        metadata = await _json(client, well_known)
        if metadata.get("issuer") != self._issuer:
            raise ValueError(f"it calls itself {metadata.get('issuer')!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            is_optional = name == "userinfo_endpoint" and name not in metadata
            if not is_optional and not is_private_way(str(metadata.get(name))):
                raise ValueError(f"its {name} is no https address")
        return metadata

    async def _learn_keys(self, client: Any, metadata: dict[str, Any] | None = None) -> None:
        told = await _json(client, (metadata or self._metadata or {})["jwks_uri"])
        self._keys = self._library.key_set(told)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Yield a client of the provider that maps all errors to our two."""
        secret = self._settings.client_secret
        try:
            client = self._library.Client(
                self._settings.client_id,
                None if secret is None else secret.get_secret_value(),
                scope=" ".join(self._settings.scopes),
                redirect_uri=self._callback_url,
                code_challenge_method="S256",
                timeout=TIMEOUT_S,
                verify=tls_for(self._issuer),
                proxy=proxy_for(self._issuer),
                trust_env=False,
            )
            async with client, asyncio.timeout(2 * TIMEOUT_S):
                yield client
        except self._library.Refused as exc:
            log.info("oidc_answer_refused", error=exc.error)
            raise WrongAnswer("oidc_code") from exc
        except self._library.BadToken as exc:
            log.warning("oidc_token_refused", error=type(exc).__name__, reason=exc.error)
            raise WrongAnswer("oidc_token") from exc
        except (UnusableEnvironment, self._library.HttpError, *_MALFORMED) as exc:
            log.warning("oidc_provider_failed", error=type(exc).__name__, reason=str(exc)[:200])
            raise ProviderUnreachable(self._unreachable) from exc

    @property
    def _unreachable(self) -> str:
        return (
            f"{self.host} does not answer as it should, so it cannot say who you are. Please try"
            " again in a minute. A sign-in link works as well: the command parley open prints one."
        )


def _client_auth(metadata: Mapping[str, Any], settings: OidcSettings) -> str:
    """Return the client authentication method; without a secret only PKCE protects."""
    if settings.client_secret is None:
        return "none"
    # The default of a provider: OpenID Connect Discovery 1.0, section 3.
    known = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return "client_secret_basic" if "client_secret_basic" in known else "client_secret_post"


async def _json(client: Any, url: str, **request: Any) -> dict[str, Any]:
    response = await client.request("GET", url, withhold_token=True, **request)
    response.raise_for_status()
    found = response.json()
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def _made_of(secret: str, purpose: str) -> str:
    """Derive a value that only the holder of the secret can compute and that does not reveal it."""
    digest = hashlib.sha256(f"{purpose}:{secret}".encode(errors="surrogateescape")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class _Library:
    """The parts of authlib and joserfc used here."""

    def __init__(self) -> None:
        try:
            jwt, jwk, jws, errors = (
                import_module(f"joserfc.{name}") for name in ("jwt", "jwk", "jws", "errors")
            )
            client = import_module("authlib.integrations.httpx_client")
            self.IdToken = import_module("authlib.oidc.core").CodeIDToken
        except ImportError as exc:
            raise SettingsError(
                "web.auth: oidc needs the package authlib: pip install 'parley[oidc]'"
            ) from exc
        self.Client = client.AsyncOAuth2Client
        self.Refused = client.OAuthError
        self.HttpError = import_module("httpx2").HTTPError
        self.BadToken = errors.JoseError
        self.UnknownKey = errors.InvalidKeyIdError
        self.key_set = jwk.KeySet.import_key_set
        self._decode = jwt.decode
        # Providers add their own header parameters; critical ones are refused.
        self._registry = jws.JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)

    def decode(self, signed: str, keys: Any) -> Any:
        """Decode a token and verify its signature."""
        return self._decode(signed, keys, registry=self._registry)
