"""Asks Telegram about a token before anything is received for it: getMe and getWebhookInfo.

Telegram hands the updates of a bot to one program at a time; neither question disturbs one that
runs.
"""

from urllib.parse import urlsplit

from telegram import User, WebhookInfo

from adapters.registry import AccountReport
from adapters.telegram.client import Client
from adapters.telegram.errors import mapped_receiving
from adapters.telegram.platform import TelegramSettings

_NO_GROUPS = (
    "it cannot be added to groups, which direct chats do not need: /setjoingroups, the bot, Enable"
    " (https://t.me/BotFather)"
)


async def check(settings: TelegramSettings) -> AccountReport:
    """Return what Telegram says of the bot.

    Raises:
        AdapterRefused: Telegram does not know the bot, or there is no token.
        AdapterDisconnected: It does not answer.
    """
    client = Client(settings)
    try:
        with mapped_receiving(client.token):
            me = await client.bot.get_me()
            webhook = await client.bot.get_webhook_info()
    finally:
        await client.close(within_s=0)
    name = f"@{me.username}"
    return AccountReport(
        "accepted",
        f"the token is that of {name}",
        bot=name,
        lacks=tuple(_lacks(settings, me, webhook)),
        greeting=f"https://t.me/{me.username}?start=",
    )


def _lacks(settings: TelegramSettings, me: User, webhook: WebhookInfo) -> list[str]:
    """Return what keeps the bot from being used as people may expect.

    A webhook that the settings name is Parley's own, set by an earlier start.
    """
    found = []
    # Of a bot that has never been asked for this Telegram says nothing.
    if me.can_join_groups is False:
        found.append(_NO_GROUPS)
    if webhook.url and webhook.url != settings.webhook_url:
        # Its path may hold a secret of that program.
        host = urlsplit(webhook.url).hostname
        found.append(
            f"another program receives for it at {host}: Parley takes its place when it starts;"
            " make a bot of its own with /newbot (https://t.me/BotFather)"
        )
    return found
