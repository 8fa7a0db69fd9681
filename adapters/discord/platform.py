"""Discord in the registry of platforms: its settings, ids, and hint for the model."""

from typing import Annotated

from pydantic import Field, SecretStr

from adapters.registry import AccountSettings, Credential, Platform


class DiscordSettings(AccountSettings):
    """One bot. `api_url` and `gateway_url` apply process-wide, as in the SDK.

    Without the privileged intent `message_content`, only direct chats, mentions and commands are
    readable. `threads`: whether a mention in a channel opens one. `shards`: one per 2,500 servers.
    """

    token: SecretStr | None = None
    api_url: Annotated[str | None, "restart"] = None
    gateway_url: Annotated[str | None, "restart"] = None
    message_content: bool = True
    threads: bool = True
    # For more than 160,000 servers Discord has special terms.
    shards: Annotated[int, "restart"] = Field(default=1, ge=1, le=64)


PLATFORM = Platform(
    name="discord",
    title="Discord",
    account=DiscordSettings,
    id_pattern=r"[0-9]+",
    id_name="numeric id",
    chat_pattern=r"[0-9]+",
    prompt_hint="Discord: answers over 2,000 characters are shown as several messages; tables come"
    " out as code blocks",
    sdk=("discord",),
    answers_strangers=True,
    credentials=(
        Credential(
            "token",
            "bot token",
            r"[\w-]{4,}\.[\w-]{4,}\.[\w-]{8,}",
            "https://discord.com/developers/applications",
            "New Application, then Bot, Reset Token",
        ),
    ),
    position=2,
)
