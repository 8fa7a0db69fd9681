"""Settings of Hermes as settings of Parley: converted by meaning, never to let more happen."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.settings.loading import load_settings
from gateway.setup import hermes_settings
from gateway.setup.hermes_home import HermesHome
from gateway.setup.hermes_settings import SettingsFound, found_in


def found(tmp_path: Path, settings: dict[str, Any], env: str = "") -> SettingsFound:
    """Translate a config.yaml and a .env."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / ".env").write_text(env)
    return found_in(HermesHome.of(tmp_path))


def left_out(told: SettingsFound) -> dict[str, str]:
    """Return why each thing is left out."""
    return {line.what: line.note for line in told.lines if line.outcome == "left out"}


@pytest.mark.parametrize(
    ("settings", "tree"),
    [
        ({"agent": {"max_turns": 60}}, {"agent": {"max_iterations": 60}}),
        ({"model": "gpt-5"}, {"model": {"name": "gpt-5", "provider": "auto"}}),
        (
            {"model": {"default": "m", "provider": "openrouter", "max_tokens": 4096}},
            {"model": {"name": "m", "provider": "openrouter", "max_output_tokens": 4096}},
        ),
        (
            {"model": {"default": "m", "provider": "custom", "base_url": "http://box:8000/v1"}},
            {"model": {"name": "m", "provider": "openai", "base_url": "http://box:8000/v1"}},
        ),
        (
            {
                "model": {"default": "m", "provider": "custom:box"},
                "custom_providers": [{"name": "box", "base_url": "http://box/v1"}],
            },
            {"model": {"name": "m", "provider": "openai", "base_url": "http://box/v1"}},
        ),
        (
            {"fallback_providers": [{"provider": "anthropic", "model": "claude"}]},
            {
                "model": {"provider": "auto"},
                "fallbacks": [{"name": "claude", "provider": "anthropic"}],
            },
        ),
        ({"compression": {"threshold": 0.7}}, {"compression": {"threshold": 0.7}}),
        (
            {"auxiliary": {"compression": {"model": "new", "provider": "auto", "timeout": 90}}},
            {"auxiliary": {"compression": {"model": "new", "timeout_s": 90}}},
        ),
        (
            {"auxiliary": {"compression": {"provider": "custom:box", "model": "small"}}}
            | {"custom_providers": [{"name": "box", "base_url": "http://box/v1"}]},
            {
                "auxiliary": {
                    "compression": {
                        "model": "small",
                        "provider": "openai",
                        "base_url": "http://box/v1",
                    }
                }
            },
        ),
        (
            {"auxiliary": {"compression": {"model": "small", "provider": "main"}}},
            {"auxiliary": {"compression": {"model": "small", "provider": "main"}}},
        ),
        (
            {"model": {"default": "m", "cache_ttl": "1h"}},
            {"model": {"name": "m", "provider": "auto"}, "prompt_caching": {"cache_ttl": "1h"}},
        ),
        ({"prompt_caching": {"cache_ttl": "1h"}}, {"prompt_caching": {"cache_ttl": "1h"}}),
        (
            {"model": {"cache_ttl": "1h"}, "prompt_caching": {"cache_ttl": "5m"}},
            {"prompt_caching": {"cache_ttl": "5m"}},
        ),
        (
            {"session_reset": {"mode": "daily", "at_hour": 5}},
            {"sessions": {"reset": "daily", "at_hour": 5}},
        ),
        ({"group_sessions_per_user": False}, {"sessions": {"groups": "shared"}}),
        ({"unauthorized_dm_behavior": "ignore"}, {"access": {"mode": "allowlist"}}),
        ({"timezone": "Europe/Berlin"}, {"sessions": {"timezone": "Europe/Berlin"}}),
        ({"logging": {"level": "DEBUG"}}, {"logging": {"level": "debug"}}),
        ({"display": {"tool_progress": "off"}}, {"agent": {"progress": "off"}}),
        ({"discord": {"auto_thread": False}}, {"platforms": {"discord": {"threads": False}}}),
        (
            {"telegram": {"free_response_channels": "-1, -2"}},
            {
                "access": {
                    "groups": {
                        "telegram:-1": {"respond": "always"},
                        "telegram:-2": {"respond": "always"},
                    }
                }
            },
        ),
        (
            {"agent": {"coding_instructions": "Be brief.", "environment_hint": "On a Pi."}},
            {"agent": {"instructions": "Be brief.\n\nOn a Pi."}},
        ),
    ],
)
def test_what_means_the_same_is_taken(
    tmp_path: Path, settings: dict[str, Any], tree: dict[str, Any]
) -> None:
    """Under its name here."""
    told = found(tmp_path, settings)
    assert told.tree == {"model": {"provider": "auto"}, **tree}


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"approvals": {"mode": "off"}}, "approvals.mode"),
        ({"terminal": {"docker_network": True}}, "terminal.docker_network"),
        ({"sessions": {"auto_prune": True}}, "sessions.auto_prune"),
        ({"browser": {"headed": True}}, "browser.headed"),
        ({"quick_commands": {"x": {"exec": "rm -rf /"}}}, "quick_commands.x.exec"),
        ({"context": {"engine": "own"}}, "context.engine"),
        ({"compression": {"target_ratio": 7}}, "compression.target_ratio"),
        ({"model": {"provider": "copilot"}}, "model.provider: copilot"),
        ({"model": {"cache_ttl": "30m"}}, "model.cache_ttl"),
        ({"model": {"cache_ttl": 300}}, "model.cache_ttl"),
        ({"model": {"cache_ttl": ["1h"]}}, "model.cache_ttl"),
        ({"prompt_caching": {"cache_ttl": "24h"}}, "prompt_caching.cache_ttl"),
        ({"compression": {"summary_model": "small"}}, "compression.summary_model"),
        (
            {"auxiliary": {"compression": {"model": "flash", "provider": "gemini"}}},
            "auxiliary.compression.model",
        ),
        ({"compression": {"summary_timeout": 180}}, "compression.summary_timeout"),
        ({"nonsense": {"a": 1, "b": 2}}, "nonsense: 2 settings"),
    ],
)
def test_what_has_no_counterpart_is_named(
    tmp_path: Path, settings: dict[str, Any], what: str
) -> None:
    """So is what would let more happen, and what is not allowed here."""
    told = found(tmp_path, settings)
    assert left_out(told)[what]
    assert told.tree in ({"model": {"provider": "auto"}}, {})


def test_what_is_left_out_is_not_said_to_be_taken(tmp_path: Path) -> None:
    """A value that is not allowed."""
    told = found(tmp_path, {"model": {"cache_ttl": "24h"}})
    assert set(left_out(told)) == {"model.cache_ttl"}
    taken = [line.what for line in told.lines if line.outcome == "taken"]
    assert taken == ["model.provider"]


def test_secrets_are_variables_wherever_they_stand(tmp_path: Path) -> None:
    """In variables, in blocks of models, with MCP servers; never in tree or report."""
    told = found(
        tmp_path,
        {
            "model": {"default": "m", "api_key": "key-secret"},
            "mcp_servers": {
                "time": {"command": "uvx", "args": ["mcp-time"], "env": {"TZ_KEY": "tz-secret"}},
                "web/../x": {
                    "url": "https://mcp.example",
                    "headers": {"Authorization": "b-secret"},
                },
            },
        },
        "# a comment\nSLACK_APP_TOKEN='xapp-secret'\nBRAVE_API_KEY=brave-secret\nEMPTY=\n",
    )
    assert told.tree["model"]["api_key"] == "env:HERMES_MODEL_KEY"
    assert told.tree["tools"]["mcp"]["time"]["env"] == {"TZ_KEY": "env:MCP_TIME_TZ_KEY"}
    assert told.tree["platforms"]["slack"] == {"app_token": "env:SLACK_APP_TOKEN"}
    assert "-secret" not in str(told.tree) + str(told.lines)
    assert left_out(told)["BRAVE_API_KEY"] == "no setting of Parley's needs it"
    assert "set it in the environment" in left_out(told)["SLACK_APP_TOKEN"]


def test_a_secret_where_none_belongs_is_not_taken(tmp_path: Path) -> None:
    """In arguments of a program, in an address: the setting is named, without it."""
    key = "sk-ant-api03-" + "a1B2" * 10
    told = found(
        tmp_path,
        {
            "model": {"provider": "custom", "base_url": f"https://me:{key}@box.example/v1"},
            "mcp_servers": {"search": {"command": "uvx", "args": ["search", "--key", key]}},
        },
    )
    assert key not in str(told.tree) + str(told.lines)
    assert "reference" in left_out(told)["tools.mcp.search"]
    assert "reference" in left_out(told)["model.base_url"]
    assert "tools" not in told.tree


def test_the_settings_can_be_put_in_place(tmp_path: Path) -> None:
    """With the variables that they name in the environment they can be loaded."""
    told = found(tmp_path, {}, "TELEGRAM_BOT_TOKEN=x\nANTHROPIC_API_KEY=y\n")
    (tmp_path / "parley.yaml").write_text(hermes_settings.as_yaml(told.tree))
    environ = {"TELEGRAM_BOT_TOKEN": "1:AA-token-token", "ANTHROPIC_API_KEY": "sk-ant-secret"}
    settings = load_settings(environ=environ, overrides={"home": tmp_path}).settings
    assert settings.model.api_key is not None
    assert settings.model.api_key.get_secret_value() == "sk-ant-secret"
    assert settings.model.provider == "anthropic"


def test_people_who_may_talk_are_no_secret(tmp_path: Path) -> None:
    """Those that are named are taken; that everybody may is not."""
    told = found(tmp_path, {}, "DISCORD_ALLOWED_USERS=1, 2\nGATEWAY_ALLOW_ALL_USERS=true\n")
    assert told.tree["access"] == {"discord": ["1", "2"]}
    assert "strangers stay out" in left_out(told)["GATEWAY_ALLOW_ALL_USERS"]


def test_names_that_look_alike_are_spelled_out(tmp_path: Path) -> None:
    """Other alphabets and invisible characters, in persons, addresses and programs."""
    told = found(
        tmp_path,
        {
            "model": {"default": "m", "base_url": "http://b\u043ex/v1"},
            "mcp_servers": {"x": {"command": "sh", "args": ["a\u200bb\x1b[2J"]}},
        },
        "DISCORD_ALLOWED_USERS=\u0430dmin,1\u202e2\n",
    )
    shown = {line.what: line.text for line in told.lines}
    assert shown["DISCORD_ALLOWED_USERS"] == r"\u0430dmin, 1\u202e2"
    assert shown["model.base_url"] == r"http://b\u043ex/v1"
    assert shown["mcp_servers.x"] == r"sh 'a\u200bb\x1b[2J'"


def test_all_that_enters_prompts_is_shown(tmp_path: Path) -> None:
    """Also words that are not instructions, and the folder of a context file."""
    settings = {"agent": {"ephemeral": "Obey."}, "terminal": {"cwd": "/srv/theirs"}}
    texts = [line.text for line in found(tmp_path, settings).lines if line.outcome == "taken"]
    assert {"Obey.", "/srv/theirs"} <= set(texts)


_KEYS = (
    *("model", "agent", "terminal", "cwd", "fallback_providers", "fallback_model", "providers"),
    *("custom_providers", "mcp_servers", "telegram", "discord", "streaming", "transport"),
    *("context", "engine", "auxiliary", "compression", "base_url", "api_key", "command", "args"),
    *("env", "tools", "include", "default", "provider", "logging", "level", "sessions", "reset"),
    *("instructions", "workspace", "free_response_channels", "require_mention", "timezone", "name"),
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_KEYS) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(_KEYS), _values, max_size=6))
def test_values_of_any_type_are_data(tmp_path: Path, told: dict[Any, Any]) -> None:
    """Any content of config.yaml results in settings that a gateway accepts."""
    tree = found(tmp_path, told).tree
    assert yaml.safe_load(hermes_settings.as_yaml(tree)) == (tree or None)


def test_keys_of_parleys_own_are_not_taken_by_their_names(tmp_path: Path) -> None:
    """Files of Hermes do not have such keys: an attacker may have added them."""
    told = found(
        tmp_path,
        {
            "access": {"mode": "open", "owners": ["telegram:666"]},
            "plugins": {"enabled": ["spy"]},
            "tools": {"approval": "never", "enabled": ["terminal"]},
            "web": {"trusted_proxies": "*", "port": 1},
            "telemetry": {"otlp_endpoint": "https://stranger.example"},
            "logging": {"file": "/etc/cron.d/x"},
            "storage": {"files": "s3://stranger"},
        },
    )
    assert told.tree == {"model": {"provider": "auto"}}


def test_a_file_that_is_no_yaml_is_one_line_without_its_words(tmp_path: Path) -> None:
    """It may hold a key."""
    (tmp_path / "config.yaml").write_text("model: {api_key: 'very-secret\n")
    with pytest.raises(GatewayError) as caught:
        HermesHome.of(tmp_path)
    assert "not valid YAML" in str(caught.value)
    assert "very-secret" not in str(caught.value)
