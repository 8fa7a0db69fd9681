"""Asks Discord about a token before anything is received for it: the bot, its app, its gateway.

These are requests without a connection to the gateway, where each one would count against the
day's limit of sessions.
"""

from typing import Any

from adapters.discord.client import LIMITS, Api, token_of, use_servers
from adapters.discord.errors import mapped_receiving
from adapters.discord.platform import DiscordSettings
from adapters.pacing import Pacer
from adapters.registry import AccountReport

PORTAL = "https://discord.com/developers/applications"
PERMISSIONS = 309237746752
"""Source: docs/platforms/discord.md has them one by one."""
# Source: https://discord.com/developers/docs/resources/application#application-object
_MAY_READ = 1 << 18 | 1 << 19


async def check(settings: DiscordSettings) -> AccountReport:
    """Return what Discord says of the bot, and which switches of its app are off.

    Raises:
        AdapterRefused: Discord does not know the bot, or there is no token.
        AdapterDisconnected: It does not answer.
    """
    use_servers(settings)
    api = Api(settings.name, token_of(settings), Pacer(LIMITS))
    try:
        with mapped_receiving():
            name = str((await api.get("/users/@me"))["username"])
            app, gateway = await api.get("/applications/@me"), await api.get("/gateway/bot")
            lacks = tuple(_lacks(settings, app, gateway))
    finally:
        await api.close()
    return AccountReport("accepted", f"the token is that of {name}", bot=name, lacks=lacks)


def _lacks(settings: DiscordSettings, app: Any, gateway: Any) -> list[str]:
    number = app["id"]
    found = []
    if settings.message_content and not app.get("flags", 0) & _MAY_READ:
        found.append(
            "the Message Content intent is off: switch it on and save"
            f" ({PORTAL}/{number}/bot), or set platforms.discord.message_content: false"
        )
    if app.get("interactions_endpoint_url"):
        found.append(
            "commands and buttons go to another address: empty the field Interactions Endpoint URL"
            f" ({PORTAL}/{number}/information)"
        )
    # Older answers do not have the number.
    if app.get("approximate_guild_count") == 0:
        query = f"client_id={number}&scope=bot+applications.commands&permissions={PERMISSIONS}"
        found.append(
            f"it is in no server yet: invite it (https://discord.com/oauth2/authorize?{query})"
        )
    if (wanted := gateway["shards"]) > settings.shards:
        found.append(f"it is in so many servers that it needs platforms.discord.shards: {wanted}")
    return found
