"""The built-in web chat as the register sees it."""

from ipaddress import ip_network

from pydantic import Field, SecretStr, field_validator

from adapters.registry import BUILT_IN, Platform, PlatformSection


class WebSettings(PlatformSection):
    """The built-in web chat.

    `token`: for programs, and to sign in; null: one that is made at the first start.
    `max_connections`: to the port, webhooks and health pages included; of one address (one /64 of
    IPv6) `max_connections_per_address`.
    `webhook_host`, `webhook_port`: webhooks and health pages alone; null: on the port of the page.
    `trusted_proxies`: addresses and networks whose forwarding headers are believed. `public_url`:
    what links to the chat begin with; null: host and port.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token: SecretStr | None = None
    max_connections: int = Field(default=1000, ge=10, le=50_000)
    max_connections_per_address: int = Field(default=100, ge=10, le=50_000)
    webhook_host: str | None = None
    webhook_port: int | None = Field(default=None, ge=0, le=65535)
    trusted_proxies: tuple[str, ...] = ()
    public_url: str | None = None

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, named: tuple[str, ...]) -> tuple[str, ...]:
        for each in named:
            try:
                ip_network(each.strip(), strict=False)
            except ValueError as exc:
                raise ValueError("must be addresses or networks, such as 10.0.0.0/8") from exc
        return named


PLATFORM = Platform(
    name=BUILT_IN,
    title="Web",
    prompt_hint="a web page that shows Markdown, tables and code",
    position=0,
)
