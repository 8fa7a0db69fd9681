"""Settings and files alone show what a home would run; attacks: tests/security."""

from pathlib import Path

import pytest
import yaml

from gateway.backup.inventory import MOST_NAMED, would_run

REST = {
    "access.mode": "lets anybody in (access.mode: open)",
    "access.telegram": "lets in on telegram: 7",
    "context.engine": "runs a context engine in its own process: other",
    "tools.mcp": "contacts an MCP server: https://mcp.example/x (tools.mcp.far)",
}
SETTINGS = {
    "access": {"mode": "open", "telegram": ["7"]},
    "context": {"engine": "other"},
    "tools": {
        "mcp": {
            "far": {"url": "https://mcp.example/x"},
            "off": {"command": "never", "enabled": False},
        }
    },
    "web": {"public_url": "https://chat.example"},
}


def told(home: Path) -> list[str]:
    """Return the lines about a home."""
    return list(would_run(home, home))


@pytest.mark.parametrize("key", REST)
def test_each_thing_has_its_line(tmp_path: Path, key: str) -> None:
    """Disabled parts, and Parley's own address, have no line."""
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump(SETTINGS))
    assert REST[key] in told(tmp_path)
    assert len(told(tmp_path)) == len(REST)


def test_settings_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    """The files are still listed."""
    (tmp_path / "parley.yaml").write_text("web: {port: none}\n")
    (tmp_path / "plugins" / "p").mkdir(parents=True)
    problem, plugin = told(tmp_path)
    assert problem.startswith("settings: web.port: 'none'")
    assert plugin == "holds a plugin for each of: p"


def test_settings_elsewhere_are_said(tmp_path: Path) -> None:
    """Also with a link in their place: it may lead to a file of this machine."""
    (tmp_path / "parley.yaml").symlink_to("/etc/hostname")
    assert told(tmp_path) == [
        "settings: no parley.yaml is in it; those in use there decide the rest"
    ]


def test_long_lists_are_counted(tmp_path: Path) -> None:
    """One line has room for some names."""
    (tmp_path / "parley.yaml").write_text("{}")
    for number in range(MOST_NAMED + 2):
        (tmp_path / "plugins" / f"p{number:02}").mkdir(parents=True)
    [line] = told(tmp_path)
    assert line.endswith(f"p{MOST_NAMED - 1:02} and 2 more")
