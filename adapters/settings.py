"""The platforms' part of the settings tree (CONFIG.md); `gateway/settings.py` reads it once."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class PlatformSection(BaseModel):
    """Base of every platform block: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TelegramSettings(PlatformSection):
    """One bot. `base_url` is the server's root; `/bot<token>` is added to it."""

    name: str = "default"
    token: SecretStr | None = None
    base_url: str | None = None
    base_file_url: str | None = None
    mode: Literal["polling", "webhook"] = "polling"
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = None
    preview: Literal["edit", "draft"] = "edit"


class DiscordSettings(PlatformSection):
    """One bot. `api_url` holds for the whole process: the SDK's base is class-wide."""

    name: str = "default"
    token: SecretStr | None = None
    api_url: str | None = None
    gateway_url: str | None = None


class SlackSettings(PlatformSection):
    """One app. `base_url` ends in `/api/`."""

    name: str = "default"
    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    base_url: str | None = None
    mode: Literal["socket", "http"] = "socket"


class WebSettings(PlatformSection):
    """The built-in web chat. A token is required on any host but loopback."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token: SecretStr | None = None
