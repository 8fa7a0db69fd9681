"""Telegram in the registry of platforms: its settings, ids, and hint for the model."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import SecretStr
from typing_extensions import override

from adapters.registry import AccountSettings, Credential, Platform


class TelegramSettings(AccountSettings):
    """One bot. `base_url` is the server's root, to which `/bot<token>` is added."""

    token: SecretStr | None = None
    base_url: str | None = None
    base_file_url: str | None = None
    # Restart, because the HTTP server fixes its routes when it starts to listen.
    mode: Annotated[Literal["polling", "webhook"], "restart"] = "polling"
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = None
    preview: Literal["edit", "draft"] = "edit"

    @override
    def missing(self) -> Iterator[tuple[str, str]]:
        if self.mode == "webhook":
            needed = {"webhook_url": self.webhook_url, "webhook_secret": self.webhook_secret}
            yield from ((key, "mode: webhook") for key, value in needed.items() if not value)


PLATFORM = Platform(
    name="telegram",
    title="Telegram",
    account=TelegramSettings,
    id_pattern=r"-?[0-9]+",
    id_name="numeric id",
    chat_pattern=r"-?[0-9]+",
    prompt_hint="a Telegram chat, mostly read on a phone: short paragraphs and lists; wide tables"
    " are hard to read",
    sdk=("telegram",),
    credentials=(
        Credential(
            "token",
            "bot token",
            r"[0-9]{4,}:[A-Za-z0-9_-]{8,}",
            "https://t.me/BotFather",
            "/newbot, or /token for a bot that is there",
        ),
    ),
    position=1,
)
