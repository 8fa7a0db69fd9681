"""What OpenAI-like servers report of a call: tokens by kind, and money."""

from typing import Any

import pytest

from agent.usage import Usage
from tests.agent.models.clients import ask
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer

SIZES = {"prompt_tokens": 100, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({}, Usage(100, 7)),
        ({"prompt_tokens_details": None}, Usage(100, 7)),
        ({"prompt_tokens_details": {"cached_tokens": 64}}, Usage(36, 7, 64)),
        (
            {"prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}},
            Usage(6, 7, 64, 30),
        ),
        ({"prompt_tokens_details": {"cached_tokens": None}}, Usage(100, 7)),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, Usage(36, 7, 64)),
        ({"cached_tokens": 64}, Usage(36, 7, 64)),
        ({"prompt_tokens_details": {"cached_tokens": 300}}, Usage(0, 7, 300)),
        ({"prompt_tokens_details": {"cached_tokens": -300}}, Usage(100, 7)),
        ({"prompt_tokens_details": 64}, Usage(100, 7)),
        ({"completion_tokens": -7}, Usage(100, 0)),
        ({"completion_tokens": 10**30}, Usage(100, 0)),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"prompt_tokens": "many"}, None),
    ],
)
async def test_tokens(reported: dict[str, Any], usage: Usage | None) -> None:
    """Read from and written into the cache are counted apart, wherever the server reports them.

    What is no number of tokens counts as none; without a prompt it is no report.
    """
    async with OpenAIServer() as server:
        server.script(Reply(text="x", usage=SIZES | reported))
        assert (await ask(server)).usage == usage


@pytest.mark.parametrize(
    ("reported", "cost_usd"),
    [
        ({}, None),
        ({"cost": 0.012}, 0.012),
        ({"cost": 0}, 0.0),
        ({"cost": "free"}, None),
        ({"cost": True}, None),
        ({"cost": -1000}, None),
        ({"cost": float("nan")}, None),
        ({"cost": float("inf")}, None),
        ({"cost": 10**400}, None),
        ({"cost": 1, "is_byok": True, "cost_details": {"upstream_inference_cost": -9}}, 1.0),
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}}, 0.95),
        (
            {"cost": 0.95, "is_byok": True, "cost_details": {"upstream_inference_cost": 19}},
            19.95,
        ),
        ({"cost": 0.95, "is_byok": True, "cost_details": None}, 0.95),
    ],
)
async def test_money(reported: dict[str, Any], cost_usd: float | None) -> None:
    """OpenRouter says what it charges, and with the operator's own key what the upstream does."""
    async with OpenAIServer() as server:
        server.script(Reply(text="x", usage=SIZES | reported))
        assert (await ask(server)).cost_usd == cost_usd
