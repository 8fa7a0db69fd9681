"""What is asked about a token before anything is received for it."""

from pydantic import SecretStr

from adapters.registry import check
from adapters.telegram.platform import TelegramSettings
from tests.support.bot_api import TOKEN, BotApi
from tests.support.process import free_port


def bot(base_url: str, token: str = TOKEN) -> TelegramSettings:
    """Return the block of a bot."""
    return TelegramSettings(token=SecretStr(token), base_url=base_url)


async def test_a_good_token_tells_whose_it_is_and_where_to_greet_it() -> None:
    """Two questions: no update is taken from a program that runs for the bot."""
    async with BotApi() as api:
        report = await check("telegram", bot(api.root))
        assert (report.outcome, report.bot) == ("accepted", "@parley_bot")
        assert report.greeting == "https://t.me/parley_bot?start="
        assert report.lacks == ()
        assert [call.method for call in api.calls] == ["getMe", "getWebhookInfo"]


async def test_another_program_that_receives_is_told() -> None:
    """By its host alone: the path may be a secret of it."""
    async with BotApi() as api:
        api.webhook = {"url": "https://other.example/secret-path"}
        report = await check("telegram", bot(api.root))
    assert report.outcome == "accepted"
    assert "another program receives for it at other.example" in report.lacks[0]
    assert "secret-path" not in report.lacks[0]


async def test_a_wrong_token_is_refused_and_not_repeated() -> None:
    """What is said names the setting, and holds no token."""
    async with BotApi() as api:
        report = await check("telegram", bot(api.root, "999:wrong-token"))
    assert report.outcome == "refused"
    assert "platforms.telegram.token" in report.text
    assert "999" not in report.text


async def test_without_a_network_nothing_is_said_of_the_token() -> None:
    """The platform is said to be away, and the token may be good."""
    report = await check("telegram", bot(f"http://127.0.0.1:{free_port()}"))
    assert report.outcome == "unreachable"
    assert "Telegram does not answer now" in report.text
