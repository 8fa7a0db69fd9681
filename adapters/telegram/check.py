"""Asks Telegram about a token before anything is received for it: getMe, and nothing else.

Telegram hands the updates of a bot to one program at a time; getMe disturbs none that runs.
"""

from adapters.registry import AccountReport
from adapters.telegram.client import Client
from adapters.telegram.errors import mapped_receiving
from adapters.telegram.platform import TelegramSettings

_GROUPS = (
    "it cannot be added to groups: https://t.me/BotFather, /setjoingroups, the bot, Enable"
    " (not needed for direct chats)"
)


async def check(settings: TelegramSettings) -> AccountReport:
    """Return what getMe says.

    Raises:
        AdapterRefused: Telegram does not know the bot, or there is no token.
        AdapterDisconnected: It does not answer.
    """
    client = Client(settings)
    try:
        with mapped_receiving(client.token):
            me = await client.bot.get_me()
    finally:
        await client.close()
    name = f"@{me.username}"
    return AccountReport(
        "accepted",
        f"the token is that of {name}",
        bot=name,
        # Of a bot that has never been asked for this Telegram says nothing.
        lacks=(_GROUPS,) if me.can_join_groups is False else (),
        greeting=f"https://t.me/{me.username}?start=",
    )
