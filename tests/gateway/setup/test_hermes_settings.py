"""Settings of Hermes as settings of Parley: converted by meaning, never to let more happen."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, SettingsError
from gateway.settings.loading import load_settings
from gateway.settings.tree import all_keys
from gateway.setup.hermes_home import HermesHome
from gateway.setup.hermes_settings import (
    HERMES,
    SettingsFound,
    counterpart,
    found_in,
    hint,
    leaves,
)


def found(tmp_path: Path, settings: dict[str, Any], env: str = "") -> SettingsFound:
    """Translate a config.yaml and a .env."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / ".env").write_text(env)
    return found_in(HermesHome(tmp_path))


def left_out(told: SettingsFound) -> dict[str, str]:
    """Return why each thing is left out."""
    lines = [line for line in told.lines if line.outcome == "left out"]
    return {what: line.note for line in lines for what in line.what.split(", ")}


@pytest.mark.parametrize(
    ("settings", "tree"),
    [
        ({"agent": {"max_turns": 60}}, {"agent": {"max_iterations": 60}}),
        ({"model": "gpt-5"}, {"model": {"name": "gpt-5"}}),
        (
            {"model": {"default": "m", "provider": "openrouter", "max_tokens": 4096}},
            {"model": {"name": "m", "provider": "openrouter", "max_output_tokens": 4096}},
        ),
        (
            {"model": {"default": "m", "base_url": "http://box:8000/v1"}},
            {"model": {"name": "m", "base_url": "http://box:8000/v1"}},
        ),
        ({"compression": {"threshold": 0.7}}, {"compression": {"threshold": 0.7}}),
        (
            {"auxiliary": {"compression": {"model": "new", "provider": "auto"}}},
            {"auxiliary": {"compression": {"model": "new", "provider": "auto"}}},
        ),
        ({"prompt_caching": {"cache_ttl": "1h"}}, {"prompt_caching": {"cache_ttl": "1h"}}),
        (
            {"session_reset": {"mode": "daily", "at_hour": 5}},
            {"sessions": {"reset": "daily", "at_hour": 5}},
        ),
        ({"timezone": "Europe/Berlin"}, {"sessions": {"timezone": "Europe/Berlin"}}),
        ({"discord": {"auto_thread": False}}, {"platforms": {"discord": {"threads": False}}}),
        (
            {"agent": {"system_prompt": "Be brief."}},
            {"agent": {"instructions": "Be brief."}},
        ),
    ],
)
def test_what_means_the_same_is_taken(
    tmp_path: Path, settings: dict[str, Any], tree: dict[str, Any]
) -> None:
    """Under its name here."""
    assert found(tmp_path, settings).tree == tree


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
        ({"model": {"provider": "copilot"}}, "model.provider"),
        ({"model": {"cache_ttl": "1h"}}, "model.cache_ttl"),
        ({"prompt_caching": {"cache_ttl": "24h"}}, "prompt_caching.cache_ttl"),
        ({"prompt_caching": {"cache_ttl": 300}}, "prompt_caching.cache_ttl"),
        ({"prompt_caching": {"cache_ttl": ["1h"]}}, "prompt_caching.cache_ttl"),
        ({"compression": {"summary_model": "small"}}, "compression.summary_model"),
        (
            {"auxiliary": {"compression": {"provider": "gemini"}}},
            "auxiliary.compression.provider",
        ),
        ({"compression": {"summary_timeout": 180}}, "compression.summary_timeout"),
        ({"fallback_providers": [{"model": "claude"}]}, "fallback_providers"),
        ({"mcp_servers": {"time": {"command": "uvx"}}}, "mcp_servers"),
        ({"group_sessions_per_user": False}, "group_sessions_per_user"),
        ({"terminal": {"cwd": "/srv/theirs"}}, "terminal.cwd"),
        ({"telegram": {"free_response_channels": "-1"}}, "telegram.free_response_channels"),
        ({"nonsense": {"a": 1, "b": 2}}, "nonsense.b"),
    ],
)
def test_what_has_no_counterpart_is_named(
    tmp_path: Path, settings: dict[str, Any], what: str
) -> None:
    """So is what would let more happen, and what is not allowed here."""
    told = found(tmp_path, settings)
    assert left_out(told)[what]
    assert told.tree == {}


def test_what_is_left_out_is_not_said_to_be_taken(tmp_path: Path) -> None:
    """A value that is not allowed."""
    told = found(tmp_path, {"prompt_caching": {"cache_ttl": "24h"}})
    assert [(line.what, line.outcome) for line in told.lines] == [
        ("prompt_caching.cache_ttl", "left out")
    ]


def test_secrets_are_named_wherever_they_stand(tmp_path: Path) -> None:
    """In variables, in blocks of models, with MCP servers; never in tree or report."""
    told = found(
        tmp_path,
        {
            "model": {"default": "m", "api_key": "key-secret"},
            "mcp_servers": {"time": {"command": "uvx", "env": {"TZ_KEY": "tz-secret"}}},
        },
        "# a comment\nSLACK_APP_TOKEN='xapp-secret'\nBRAVE_API_KEY=brave-secret\nEMPTY=\n",
    )
    assert told.tree == {
        "model": {"name": "m"},
        "platforms": {"slack": {"app_token": "env:SLACK_APP_TOKEN"}},
    }
    assert "-secret" not in str(told.tree) + str(told.lines)
    assert {"model.api_key", "mcp_servers", "BRAVE_API_KEY"} <= left_out(told).keys()
    assert "set it in the environment" in left_out(told)["SLACK_APP_TOKEN"]


def test_a_secret_where_none_belongs_is_not_taken(tmp_path: Path) -> None:
    """In an address: the setting is named, without it. Nor is what refers to one."""
    key = "sk-ant-api03-" + "a1B2" * 10
    address = f"https://me:{key}@box.example/v1"
    settings = {"model": {"base_url": address}, "agent": {"system_prompt": "command:touch ran"}}
    told = found(tmp_path, settings)
    assert key not in str(told.tree) + str(told.lines)
    assert "reference" in left_out(told)["model.base_url"]
    assert "reference" in left_out(told)["agent.system_prompt"]
    assert told.tree == {}


def test_the_settings_can_be_put_in_place(tmp_path: Path) -> None:
    """With the variables that they name in the environment they can be loaded."""
    told = found(tmp_path, {}, "TELEGRAM_BOT_TOKEN=x\nANTHROPIC_API_KEY=y\n")
    (tmp_path / "parley.yaml").write_text(told.as_yaml())
    environ = {"TELEGRAM_BOT_TOKEN": "1:AA-token-token", "ANTHROPIC_API_KEY": "sk-ant-secret"}
    settings = load_settings(environ=environ, overrides={"home": tmp_path}).settings
    assert settings.model.api_key is not None
    assert settings.model.api_key.get_secret_value() == "sk-ant-secret"
    assert settings.model.provider == "anthropic"


def test_people_who_may_talk_are_no_secret(tmp_path: Path) -> None:
    """Those that are named are taken; that everybody may is not."""
    told = found(tmp_path, {}, "DISCORD_ALLOWED_USERS=1, 2\nGATEWAY_ALLOW_ALL_USERS=true\n")
    assert told.tree == {"access": {"discord": ["1", "2"]}}
    assert "GATEWAY_ALLOW_ALL_USERS" in left_out(told)


def test_names_that_look_alike_are_spelled_out(tmp_path: Path) -> None:
    """Other alphabets and invisible characters, in persons and addresses."""
    told = found(
        tmp_path,
        {"model": {"default": "m\u200b\x1b[2J", "base_url": "http://b\u043ex/v1"}},
        "DISCORD_ALLOWED_USERS=\u0430dmin,1\u202e2\n",
    )
    shown = {line.what: line.text for line in told.lines}
    assert shown["DISCORD_ALLOWED_USERS"] == r"\u0430dmin, 1\u202e2"
    assert shown["model.base_url"] == r"http://b\u043ex/v1"
    assert shown["model.default"] == r"m\u200b\x1b[2J"


def test_all_that_enters_prompts_is_shown(tmp_path: Path) -> None:
    """The instructions, as they are."""
    settings = {"agent": {"system_prompt": "Obey \u043e."}}
    [line] = found(tmp_path, settings).lines
    assert (line.outcome, line.text) == ("taken", "Obey \u043e.")


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
    result = found(tmp_path, told)
    assert yaml.safe_load(result.as_yaml()) == (result.tree or None)


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
    assert told.tree == {}


def test_a_file_that_is_no_yaml_is_one_line_without_its_words(tmp_path: Path) -> None:
    """It may hold a key."""
    (tmp_path / "config.yaml").write_text("model: {api_key: 'very-secret\n")
    with pytest.raises(GatewayError) as caught:
        HermesHome(tmp_path).settings()
    assert "not valid YAML" in str(caught.value)
    assert "very-secret" not in str(caught.value)


def complaint(tmp_path: Path, text: str) -> list[str]:
    """Return what is said about a parley.yaml."""
    (tmp_path / "parley.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={}, overrides={"home": tmp_path}, hint=hint)
    return str(caught.value).splitlines()


def test_every_counterpart_is_a_key_of_parley() -> None:
    """And no key of Hermes with another name is one of Parley's already."""
    named = {mine for mine, _ in HERMES.values() if mine is not None}
    known = set(all_keys().names())
    assert {mine for mine in named if mine not in known} == set()
    own = {key for key, (mine, _) in HERMES.items() if mine is not None and key in known}
    assert own <= {"model"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "agent: {max_turns: 60}",
            "in parley.yaml; agent.max_turns of Hermes is agent.max_iterations",
        ),
        (
            "agent: {clarify_timeout: 600}",
            "agent.clarify_timeout of Hermes has no counterpart (a day, a constant)",
        ),
        ("terminal: {timeout: 60}", "terminal.timeout of Hermes is tools.terminal.timeout_s"),
        ("mcp_servers: {time: {command: uvx}}", "mcp_servers of Hermes is tools.mcp"),
        ("browser: {headed: true}", "has no counterpart (Parley has no browser"),
        ("auxiliary: {vision: {model: x}}", "auxiliary.vision of Hermes has no counterpart"),
    ],
)
def test_a_key_of_another_agent_is_answered_with_ours(tmp_path: Path, text: str, told: str) -> None:
    """By its meaning, whatever is spelled like it."""
    (line,) = complaint(tmp_path, text)
    assert told in line


def test_a_secret_of_another_agent_is_not_shown(tmp_path: Path) -> None:
    """The hint names keys alone."""
    (line,) = complaint(tmp_path, "mcp_servers: {x: {env: {KEY: '123:very-secret-token'}}}")
    assert "very-secret" not in line


def test_a_slip_of_the_pen_is_still_answered_by_spelling(tmp_path: Path) -> None:
    """What is nobody's key."""
    (line,) = complaint(tmp_path, "queue: {debounce: 5}")
    assert line.endswith("did you mean queue.debounce_ms?")


def test_a_variable_gets_the_same_hint() -> None:
    """With the key that means the same."""
    told = r"unknown variable; agent\.max_turns of Hermes is agent\.max_iterations$"
    with pytest.raises(SettingsError, match=told):
        load_settings(environ={"PARLEY_AGENT__MAX_TURNS": "9"}, hint=hint)


def test_a_whole_file_of_another_agent_is_not_answered_line_by_line() -> None:
    """A few keys of a section, and a mark that there are more."""
    many = {"backend": 1, "timeout": 2, "cwd": 3, "docker_volumes": 4, "docker_network": 5, "x": 6}
    told = str(hint("terminal", many))
    assert told.count(" of Hermes is ") == 4
    assert told.endswith("; …")


def test_what_nobody_has_is_no_counterpart() -> None:
    """Neither with a section nor without."""
    assert counterpart("queue.debounce") is None
    assert counterpart("nonsense") is None
    assert hint("nonsense", {"a": 1}) is None


def test_leaves_are_what_has_a_value() -> None:
    """Maps that are one value, and empty ones, stay whole."""
    servers = {"time": {"command": "uvx"}}
    tree = {"a": {"b": 1, "c": {}}, "mcp_servers": servers}
    found = dict(leaves(tree, {"mcp_servers"}.__contains__))
    assert found == {"a.b": 1, "a.c": {}, "mcp_servers": servers}
