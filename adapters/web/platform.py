"""The built-in web chat as the register sees it."""

from pydantic import Field, SecretStr

from adapters.registry import BUILT_IN, Platform, PlatformSection


class WebSettings(PlatformSection):
    """The built-in web chat. A token is required on any host but loopback.

    `max_connections`: to the port, webhooks and health pages included; of one address (one /64 of
    IPv6) `max_connections_per_address`.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token: SecretStr | None = None
    max_connections: int = Field(default=1000, ge=10, le=50_000)
    max_connections_per_address: int = Field(default=100, ge=10, le=50_000)


PLATFORM = Platform(
    name=BUILT_IN,
    title="Web",
    prompt_hint="a web page that shows Markdown, tables and code",
    position=0,
)
