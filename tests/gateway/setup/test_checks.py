"""What is told of a key or a token before it is written."""

from collections.abc import AsyncIterator

import pytest

from adapters.registry import account_types
from agent.settings import ModelSettings
from gateway.setup.checks import check_account, check_model, mixed_up
from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import TOKEN, BotApi
from tests.support.model_server import Fault, Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import free_port

KEY = "sk-ant-right"


@pytest.fixture
async def server() -> AsyncIterator[AnthropicServer]:
    """Anthropic, which takes one key."""
    async with AnthropicServer(KEY, default=Reply(text="ready")) as anthropic:
        yield anthropic


def block(base_url: str, key: str = KEY, **more: str) -> ModelSettings:
    """Return the settings of a model there."""
    given = {"provider": "anthropic", "api_key": key, "base_url": base_url, **more}
    return ModelSettings.model_validate(given)


async def test_a_good_key_gets_a_real_answer_with_its_price(server: AnthropicServer) -> None:
    """One question, which the provider bills."""
    checked = await check_model(block(server.url))
    assert checked.outcome == "accepted"
    assert "answers “ready”" in checked.text
    assert "cost $0.0" in checked.text
    assert checked.cost_usd is not None
    assert checked.cost_usd > 0
    assert len(server.requests) == 1


async def test_a_wrong_key_is_told_with_where_keys_are_made(server: AnthropicServer) -> None:
    """The key itself is not repeated."""
    checked = await check_model(block(server.url, "sk-ant-wrong"))
    assert (checked.outcome, checked.is_wrong) == ("refused", True)
    assert "https://console.anthropic.com/settings/keys" in checked.text
    assert "wrong" not in checked.text


async def test_a_key_without_credit_is_told_with_where_some_is_bought(
    server: AnthropicServer,
) -> None:
    """It is another trouble than a wrong key."""
    server.script(
        Fault(status=400, error="invalid_request_error", message="Your credit balance is too low")
    )
    checked = await check_model(block(server.url))
    assert (checked.outcome, checked.is_wrong) == ("no_credit", True)
    assert "https://console.anthropic.com/settings/billing" in checked.text


async def test_an_unknown_model_is_named(server: AnthropicServer) -> None:
    """Not the key is to blame."""
    server.models = {"claude-sonnet-5-5"}
    checked = await check_model(block(server.url, name="claude-sonet-5-5"))
    assert checked.outcome == "refused"
    assert "knows no model claude-sonet-5-5" in checked.text


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(status=429, error="rate_limit_error"), "asks to wait"),
        (Fault(status=500, error="api_error"), "does not answer now"),
    ],
)
async def test_a_provider_in_trouble_says_nothing_of_the_key(
    server: AnthropicServer, fault: Fault, told: str
) -> None:
    """It may be kept."""
    server.script(fault)
    checked = await check_model(block(server.url))
    assert (checked.outcome, checked.is_wrong) == ("unreachable", False)
    assert told in checked.text


async def test_without_a_network_the_model_is_unreachable() -> None:
    """And nothing is raised."""
    checked = await check_model(block(f"http://127.0.0.1:{free_port()}"))
    assert checked.outcome == "unreachable"


async def test_a_missing_key_is_told() -> None:
    """Before anybody is asked."""
    checked = await check_model(ModelSettings(provider="anthropic"))
    assert checked.outcome == "refused"
    assert "ANTHROPIC_API_KEY" in checked.text


async def test_a_server_of_ones_own_may_have_no_price() -> None:
    """It is said that none is known, not that it costs nothing."""
    async with OpenAIServer(default=Reply(text="ready")) as own:
        checked = await check_model(block(own.url, provider="openai", name="double"))
    assert (checked.outcome, checked.cost_usd) == ("accepted", None)
    assert "cost unknown price" in checked.text


@pytest.mark.thorough
async def test_the_demo_model_costs_nothing() -> None:
    """Nobody is asked."""
    checked = await check_model(ModelSettings(provider="offline"))
    assert (checked.outcome, checked.cost_usd) == ("accepted", None)
    assert "costs nothing" in checked.text


@pytest.mark.parametrize(
    ("token", "found"),
    [
        (TOKEN, ("accepted", "the token is that of @parley_bot")),
        (
            "xoxb-1-2-3",
            (
                "refused",
                "this is Slack's Bot User OAuth Token; what is asked for is the bot token",
            ),
        ),
    ],
)
async def test_a_token_of_another_platform_is_not_sent_to_this_one(
    token: str, found: tuple[str, str]
) -> None:
    """The right one is asked about with two calls."""
    async with BotApi() as api:
        given = {"token": token, "base_url": api.root}
        settings = account_types()["telegram"].model_validate(given)
        checked = await check_account("telegram", settings)
        assert len(api.calls) == 2 * (token == TOKEN)
    assert (checked.outcome, checked.text) == found


def test_keys_and_tokens_are_told_apart_by_their_looks() -> None:
    """Where the other kind is asked for."""
    assert mixed_up("sk-ant-123", "telegram", "token") == "Anthropic's key"
    assert mixed_up("sk-123", "telegram", "token") == "OpenAI's key"
    assert mixed_up(TOKEN, "telegram", "token") == ""
    assert mixed_up(TOKEN) == "Telegram's bot token"
    assert mixed_up("sk-ant-123") == ""
