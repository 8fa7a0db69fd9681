"""Asks Slack about an app's tokens before anything is received for them: auth.test, and its scopes.

The App-Level Token is asked for the address of a socket, to which nobody connects.
"""

from typing import Any

from adapters.registry import AccountReport, credential
from adapters.slack.client import Client, signing_secret
from adapters.slack.errors import CallFailed, mapped, receiving_error
from adapters.slack.platform import SlackSettings

APPS = "https://api.slack.com/apps"
SCOPES = (
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "chat:write",
    "commands",
    "files:read",
    "files:write",
    "groups:history",
    "im:history",
    "mpim:history",
    "reactions:write",
    "users:read",
)
"""Source: the manifest in docs/platforms/slack.md; a test compares them."""


async def check(settings: SlackSettings) -> AccountReport:
    """Return what Slack says of the app, and which scopes it lacks.

    Raises:
        AdapterRefused: A token is refused, or is not there.
        AdapterDisconnected: Slack does not answer.
    """
    client = Client(settings)
    try:
        answer = await _asked(client, "bot_token")
        if settings.mode == "socket":
            token = credential(settings.app_token, "platforms.slack.app_token")
            await _asked(client, "app_token", token)
        elif not signing_secret(settings):
            credential(settings.signing_secret, "platforms.slack.signing_secret")
    finally:
        await client.close()
    name, team = str(answer.get("user") or ""), str(answer.get("team") or "")
    text = f"the token is that of {name} in the workspace {team}"
    return AccountReport("accepted", text, bot=name, lacks=_lacks(answer.headers))


async def _asked(client: Client, setting: str, app_token: str | None = None) -> Any:
    try:
        with mapped():
            if app_token is None:
                return await client.web.auth_test()
            return await client.web.apps_connections_open(app_token=app_token)
    except CallFailed as exc:
        raise receiving_error(exc, setting) from exc


def _lacks(headers: Any) -> tuple[str, ...]:
    """Return which scopes are missing; nothing where Slack does not say which there are."""
    named = {str(name).lower(): str(value) for name, value in headers.items()}
    granted = {each.strip() for each in named.get("x-oauth-scopes", "").split(",")} - {""}
    missing = [scope for scope in SCOPES if scope not in granted]
    if not granted or not missing:
        return ()
    what = "a scope is missing" if len(missing) == 1 else "scopes are missing"
    where = f"under OAuth & Permissions, then Reinstall to Workspace ({APPS})"
    return (f"{what}: add {', '.join(missing)} {where}",)
