"""`parley policy`: what tools may do."""

import json
from pathlib import Path

import pytest

from agent.settings import TerminalSettings, ToolSettings
from agent.tools.catalog import builtin_tools
from agent.tools.policy import SIDE_EFFECT, WORLD
from gateway.cli.policy import _classes
from tests.support.command_line import Run, one_line

POLICY = """
tools:
  approval_by: owners
  policy:
    rules:
      - {tool: terminal, role: member, then: deny}
      - {tool: "!calculate", role: guest, then: deny}
      - {tool: "!todo", group: "telegram:-1", then: deny}
    without: [tainted-files]
"""


@pytest.fixture
def run(home: Path, parley: Run) -> Run:
    """The command line, with settings of its own."""
    (home / "parley.yaml").write_text(POLICY)
    return parley


def test_each_row_says_where_it_comes_from(run: Run) -> None:
    """Defaults, `tools.approval` and rules of one's own."""
    rows = {row["name"]: row for row in json.loads(run("policy", "show", "--json").out)}
    for name in ("tools.policy.rules[0]", "tools.policy.rules[1]"):
        assert rows[name]["origin"] == "parley.yaml"
    assert rows["tools.policy.rules[2]"]["group"] == "telegram:-1"
    approval = rows["tools.approval"]
    assert (approval["then"], approval["origin"]) == ("ask_owner", "default")
    assert rows["default.talk"]["origin"] == "default"
    assert "tainted-files" not in rows
    table = run("policy", "show").out
    assert all(name in table for name in rows)


@pytest.mark.parametrize(
    ("options", "verdict", "rule"),
    [
        (["--tool", "terminal"], "deny", "tools.policy.rules[0]"),
        (["--tool", "terminal", "--role", "owner"], "ask_owner", "tools.approval"),
        (["--tool", "memory"], "allow", "default.talk"),
        (["--tool", "memory", "--tainted"], "ask_owner", "tainted-notes"),
        (["--tool", "todo", "--role", "guest"], "deny", "tools.policy.rules[1]"),
        (["--tool", "memory", "--group", "telegram:-1"], "deny", "tools.policy.rules[2]"),
        (["--tool", "mcp_a_b"], "ask_owner", "tools.approval"),
    ],
)
def test_a_ruling_is_explained(run: Run, options: list[str], verdict: str, rule: str) -> None:
    """By the row that decides, as data and in words."""
    found = json.loads(run("policy", "explain", *options, "--json").out)
    assert found == {"verdict": verdict, "rule": rule}
    ended = run("policy", "explain", *options)
    told = ended.out
    assert ended.err == ""
    assert told.startswith(f"{verdict}: ")
    assert rule in told


def test_the_command_tool_is_what_it_says() -> None:
    """Its classes are told without making it, which not every machine can."""
    terminal = TerminalSettings(confine=False, allow_root=True)
    settings = ToolSettings(enabled=("terminal",), terminal=terminal)
    made = builtin_tools(settings)
    assert made.effect("terminal") == "side_effect"
    assert made.restricted("terminal")
    assert _classes("terminal", ToolSettings()) == {SIDE_EFFECT, WORLD}


def test_a_role_that_there_is_not(run: Run) -> None:
    """One line, with those that there are."""
    told = one_line(run("policy", "explain", "--tool", "todo", "--role", "king"))
    assert "guest, member, owner" in told
