"""What is asked about a token before anything is received for it."""

from pydantic import SecretStr

from adapters.discord.platform import DiscordSettings
from adapters.registry import AccountReport, check
from tests.support.discord.server import TOKEN, DiscordServer
from tests.support.process import free_port


async def asked(api_url: str, token: str = TOKEN, *, message_content: bool = True) -> AccountReport:
    """Return what Discord says of a bot."""
    settings = DiscordSettings(
        token=SecretStr(token), api_url=api_url, message_content=message_content
    )
    return await check("discord", settings)


async def test_a_good_token_with_its_intent_lacks_nothing() -> None:
    """Nothing is opened at the gateway, where each session counts."""
    async with DiscordServer() as server:
        server.bot.privileged = True
        assert await asked(server.api_url) == AccountReport(
            "accepted", "the token is that of parley", bot="parley"
        )
        assert server.gateway.sessions == {}


async def test_a_missing_intent_is_named_with_its_switch() -> None:
    """With the page of this very bot; not where the settings do without it."""
    async with DiscordServer() as server:
        server.bot.privileged = False
        report = await asked(server.api_url)
        assert await asked(server.api_url, message_content=False) == AccountReport(
            "accepted", report.text, bot=report.bot
        )
    assert report.outcome == "accepted"
    assert len(report.lacks) == 1
    assert "Message Content intent is off" in report.lacks[0]
    assert f"applications/{server.bot.id}/bot" in report.lacks[0]


async def test_a_wrong_token_is_refused() -> None:
    """And not repeated."""
    async with DiscordServer() as server:
        report = await asked(server.api_url, "AAAA.BBBB.CCCCCCCCCC")
    assert report == AccountReport(
        "refused", "Discord does not know this bot; correct platforms.discord.token"
    )


async def test_without_a_network_nothing_is_said_of_the_token() -> None:
    """Discord is said to be away."""
    report = await asked(f"http://127.0.0.1:{free_port()}/api/v10")
    assert report.outcome == "unreachable"
