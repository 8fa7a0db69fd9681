"""Slack in the registry of platforms: its settings, ids, and hint for the model."""

from typing import Annotated, ClassVar, Literal

from pydantic import SecretStr

from adapters.registry import AccountSettings, Credential, Platform


class SlackSettings(AccountSettings):
    """One app. `base_url` ends in `/api/`; `command` is its slash command."""

    switch: ClassVar[str] = "bot_token"

    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    base_url: str | None = None
    mode: Annotated[Literal["socket", "http"], "restart"] = "socket"
    command: str = "/parley"


PLATFORM = Platform(
    name="slack",
    title="Slack",
    account=SlackSettings,
    id_pattern=r"[A-Za-z0-9_]+",
    id_name="member id (U…)",
    chat_pattern=r"[A-Za-z0-9_]+",
    prompt_hint="Slack: tables come out as code blocks",
    sdk=("slack_bolt", "slack_sdk"),
    credentials=(
        Credential(
            "bot_token",
            "Bot User OAuth Token",
            r"xoxb-\S+",
            "https://api.slack.com/apps",
            "the app (docs/platforms/slack.md has the manifest of a new one), OAuth & Permissions",
        ),
        Credential(
            "app_token",
            "App-Level Token",
            r"xapp-\S+",
            "https://api.slack.com/apps",
            "the app, Basic Information, App-Level Tokens, one with connections:write",
        ),
    ),
    position=3,
)
