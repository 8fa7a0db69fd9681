"""The platforms' part of the settings tree; `gateway/settings.py` reads it once."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class PlatformSection(BaseModel):
    """Base of every platform block: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BotSection(PlatformSection):
    """Base of the blocks of bots, each of which is on once it has its token.

    `reactions`: whether a message is marked as received, answered or failed. `allow_bots`: ids of
    other bots that are listened to like people.
    """

    name: str = "default"
    reactions: bool = True
    allow_bots: tuple[str, ...] = ()


class TelegramSettings(BotSection):
    """One bot. `base_url` is the server's root; `/bot<token>` is added to it."""

    token: SecretStr | None = None
    base_url: str | None = None
    base_file_url: str | None = None
    mode: Literal["polling", "webhook"] = "polling"
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = None
    preview: Literal["edit", "draft"] = "edit"

    @property
    def is_on(self) -> bool:
        """Whether the bot is to be run."""
        return self.token is not None


class DiscordSettings(BotSection):
    """One bot. `api_url` and `gateway_url` hold for the whole process: the SDK's are class-wide.

    `message_content`: whether the bot has that privileged intent; without it only direct chats,
    mentions and commands can be read. `threads`: whether a mention in a channel opens a thread.
    """

    token: SecretStr | None = None
    api_url: str | None = None
    gateway_url: str | None = None
    message_content: bool = True
    threads: bool = True

    @property
    def is_on(self) -> bool:
        """Whether the bot is to be run."""
        return self.token is not None


class SlackSettings(BotSection):
    """One app. `base_url` ends in `/api/`; `command` is its slash command."""

    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    base_url: str | None = None
    mode: Literal["socket", "http"] = "socket"
    command: str = "/parley"

    @property
    def is_on(self) -> bool:
        """Whether the app is to be run."""
        return self.bot_token is not None


class WebSettings(PlatformSection):
    """The built-in web chat. A token is required on any host but loopback."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    token: SecretStr | None = None
