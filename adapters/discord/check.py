"""Asks Discord about a token before anything is received for it: the bot, its app, its gateway.

These are requests without a connection to the gateway, where each one would count against the
day's limit of sessions.
"""

from http import HTTPStatus
from typing import Any

import aiohttp
from discord.http import Route

from adapters.discord.client import USER_AGENT, token_of, use_servers
from adapters.discord.errors import UNKNOWN_BOT, mapped_receiving
from adapters.discord.platform import DiscordSettings
from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.registry import AccountReport
from agent.network import proxy_for, tls_for

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
    token = token_of(settings)
    use_servers(settings)
    headers = {"Authorization": f"Bot {token}", "User-Agent": USER_AGENT}
    with mapped_receiving():
        async with aiohttp.ClientSession(headers=headers) as session:
            me = await _read(session, "/users/@me")
            app = await _read(session, "/applications/@me")
            gateway = await _read(session, "/gateway/bot")
        name = str(me["username"])
        lacks = tuple(_lacks(settings, app, gateway))
    return AccountReport("accepted", f"the token is that of {name}", bot=name, lacks=lacks)


async def _read(session: aiohttp.ClientSession, path: str) -> Any:
    url = Route.BASE + path
    async with session.get(url, proxy=proxy_for(url), ssl=tls_for(url)) as answer:
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise AdapterRefused(UNKNOWN_BOT)
        if answer.status != HTTPStatus.OK:
            raise AdapterDisconnected(f"HTTP status {answer.status}")
        return await answer.json()


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
