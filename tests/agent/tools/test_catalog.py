"""The built-in tools by name."""

from dataclasses import replace

import pytest

from agent.settings import ToolSettings
from agent.tools.builtin.basics import calculate
from agent.tools.catalog import builtin_tools


def test_the_default_settings_name_tools_that_exist() -> None:
    """They come in the order of the settings."""
    enabled = ToolSettings().enabled
    assert tuple(schema.name for schema in builtin_tools(ToolSettings()).schemas) == enabled


def test_an_unknown_name_is_answered_with_what_exists() -> None:
    """The operator reads the names to choose from."""
    with pytest.raises(ValueError, match=r"unknown tools: x; there are .*current_time"):
        builtin_tools(ToolSettings(enabled=("calculate", "x")))


@pytest.mark.parametrize("name", ["mcp_files_read", "mcp_x", "other"])
def test_a_tool_of_others_that_is_named_stops_nothing(name: str) -> None:
    """Whether its server is there or away, it stands where it stood: behind the built-in ones."""
    others = [replace(calculate, name="other")]
    registry = builtin_tools(ToolSettings(enabled=(name, "current_time")), others)
    assert [schema.name for schema in registry.schemas] == ["current_time", "other"]


def test_no_built_in_tool_has_side_effects() -> None:
    """They may run again after a crash."""
    registry = builtin_tools(ToolSettings())
    assert {registry.effect(schema.name) for schema in registry.schemas} == {"read", "idempotent"}


def test_tools_of_others_stand_behind_the_built_in_ones() -> None:
    """Of MCP servers and plugins; `tools.enabled` is not about them."""
    other = replace(calculate, name="other")
    registry = builtin_tools(ToolSettings(enabled=("current_time",)), [other])
    assert [schema.name for schema in registry.schemas] == ["current_time", "other"]
