"""The built-in web chat in the registry of platforms: its settings."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from adapters.registry import BUILT_IN, Platform, PlatformSection

UserRole: TypeAlias = Literal["owner", "member", "guest"]
Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]


def networks(named: Sequence[str]) -> Networks:
    """Parse the addresses and networks of a setting; raise ValueError."""
    return tuple(ip_network(each.strip(), strict=False) for each in named)


OWN_NAME = "parley.localhost"
"""Host name of the chat on this machine. Browsers send a cookie to every port of a host; under this
name no other server on 127.0.0.1 or localhost gets Parley's."""
_CALLED_SO = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})  # noqa: S104
CALLBACK = "/sign-in/oidc/callback"
"""The path to which the identity provider sends browsers back."""


def is_private_way(url: str) -> bool:
    """Whether requests to a URL stay private: TLS, or this machine."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" or parts.hostname in {"localhost", OWN_NAME}:
            return bool(parts.hostname)
        return parts.scheme == "http" and ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


class OidcSettings(PlatformSection):
    """The identity provider of `auth: oidc` (OpenID Connect)."""

    issuer: str | None = None
    client_id: str | None = None
    client_secret: SecretStr | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    allowed: Mapping[str, UserRole] = Field(default={})
    session_hours: int = Field(default=24, ge=1, le=720)

    @property
    def session_s(self) -> float:
        """The session lifetime in seconds."""
        return self.session_hours * 3600.0


class WebSettings(PlatformSection):
    """The built-in web chat."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token: SecretStr | None = None
    max_connections: int = Field(default=1000, ge=10, le=50_000)
    webhook_host: str | None = None
    webhook_port: int | None = Field(default=None, ge=0, le=65535)
    trusted_proxies: tuple[str, ...] = ()
    public_url: str | None = None
    auth: Literal["sign_in", "oidc"] = "sign_in"
    oidc: OidcSettings = OidcSettings()

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        try:
            networks(named)
        except ValueError as exc:
            raise ValueError("must be addresses or networks, such as 10.0.0.0/8") from exc
        return named

    @property
    def connections_per_address(self) -> int:
        """Most connections per address (IPv6: per /64): a tenth of all."""
        return max(10, self.max_connections // 10)

    @property
    def trusted(self) -> Networks:
        """The trusted proxies as networks."""
        return networks(self.trusted_proxies)

    def page(self, port: int) -> str:
        """Return the page's address on this port, with a trailing slash.

        Browsers resolve `OWN_NAME` themselves; other programs may not.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/") + "/"
        host = OWN_NAME if self.host in _CALLED_SO else self.host
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    @property
    def public_port(self) -> int | None:
        """The port of `public_url` if it is on this machine (a balancer), else None."""
        parts = urlsplit(self.public_url or "")
        is_here = parts.scheme == "http" and is_private_way(self.public_url or "")
        return (parts.port or 80) if is_here else None

    @property
    def callback_url(self) -> str:
        """The address to which the identity provider sends browsers back."""
        return self.page(self.port).rstrip("/") + CALLBACK

    @property
    def let_in(self) -> Mapping[str, UserRole]:
        """The identity provider's admitted users with their roles."""
        return self.oidc.allowed if self.auth == "oidc" else {}


PLATFORM = Platform(
    name=BUILT_IN,
    title="Web",
    prompt_hint="a web page that shows Markdown, tables and code",
    position=0,
)
