"""Where the files of conversations lie."""

from pathlib import Path
from typing import Any

import pytest

from agent.settings import WorkspaceSettings
from gateway.errors import SettingsError, StorageUnavailable
from gateway.settings import load_settings
from gateway.workspaces import Workspaces


def test_each_conversation_has_a_directory_of_its_own(tmp_path: Path) -> None:
    """In PARLEY_HOME, or where the operator says; none is made before it is used."""
    spaces = Workspaces(WorkspaceSettings(), tmp_path)
    assert spaces.of(7) == tmp_path / "workspaces" / "7"
    assert Workspaces(WorkspaceSettings(root=Path("/srv/ws")), tmp_path).of(8) == Path("/srv/ws/8")
    assert not (tmp_path / "workspaces").exists()


def test_a_forgotten_conversation_leaves_no_files(tmp_path: Path) -> None:
    """Those of others stay."""
    spaces = Workspaces(WorkspaceSettings(), tmp_path)
    for conversation in (1, 2):
        spaces.of(conversation).mkdir(parents=True)
        (spaces.of(conversation) / "file").write_text("x")
    spaces.forget(1)
    spaces.forget(1)
    assert [path.name for path in spaces.root.iterdir()] == ["2"]


def test_files_that_cannot_be_deleted_are_told(tmp_path: Path) -> None:
    """The operator must not believe that they are gone."""
    spaces = Workspaces(WorkspaceSettings(), tmp_path)
    spaces.root.mkdir()
    spaces.of(1).write_text("no directory")
    with pytest.raises(StorageUnavailable, match="are not all deleted"):
        spaces.forget(1)


@pytest.mark.parametrize(
    ("terminal", "refused"),
    [
        ({"readable": ["{home}/.."]}, True),
        ({"readable": ["{home}/workspaces"]}, True),
        ({"readable": ["{home}/.."], "confine": False}, False),
        ({"readable": ["/opt"]}, False),
    ],
)
def test_confined_commands_may_not_be_given_parleys_own_files(
    tmp_path: Path, terminal: dict[str, Any], *, refused: bool
) -> None:
    """Neither a directory that holds PARLEY_HOME nor one inside it can be made readable."""
    home = tmp_path / "home"
    if "readable" in terminal:
        terminal = {
            **terminal,
            "readable": [each.format(home=home) for each in terminal["readable"]],
        }
    options = {
        "home": home,
        "tools.enabled": ["terminal"],
        **{f"tools.terminal.{key}": value for key, value in terminal.items()},
    }
    if refused:
        with pytest.raises(SettingsError, match=r"tools.terminal.readable: commands may read"):
            load_settings(environ={}, overrides=options)
    else:
        load_settings(environ={}, overrides=options)
