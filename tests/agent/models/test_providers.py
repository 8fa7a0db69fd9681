"""Facts of providers: whose a key is by its looks."""

import pytest

from agent.models.providers import provider_of


@pytest.mark.parametrize(
    ("key", "provider"),
    [
        ("sk-ant-1", "anthropic"),
        ("sk-or-1", "openrouter"),
        ("sk-proj-1", "openai"),
        ("12345:abc", None),
        ("", None),
    ],
)
def test_a_key_tells_its_provider(key: str, provider: str | None) -> None:
    """OpenAI's shape begins the others', too."""
    assert provider_of(key) == provider
