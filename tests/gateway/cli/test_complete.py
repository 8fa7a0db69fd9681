"""What a shell is told at a Tab, and the scripts by which it asks."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from typer import _completion_shared

from gateway.cli.config import settings_keys
from gateway.cli.main import COMMANDS
from tests.gateway.cli.test_main import fill
from tests.support.command_line import Run as Parley
from tests.support.process import ParleyProcess

ROOT = Path(__file__).parents[3]
PARLEY = Path(sys.executable).with_name("parley")


async def told(shell: str, line: str, home: Path) -> str:
    """Return what a process answers that is asked as the script of a shell asks."""
    words = line.split(" ")
    asked = {
        "_PARLEY_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = await ParleyProcess(home, environ=asked).run()
    assert (done.code, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.thorough
async def test_a_command_is_completed(tmp_path: Path) -> None:
    """By its name, and in zsh and fish with what it does."""
    assert (await told("bash", "parley lo", tmp_path)).split() == ["logs"]
    assert await told("fish", "parley lo", tmp_path) == f"logs\t{COMMANDS['logs']}\n"
    assert '"logs":"Print the log in readable form."' in await told("zsh", "parley lo", tmp_path)


async def test_commands_of_a_group_and_options_are_completed(tmp_path: Path) -> None:
    """The group is imported for that, and no other."""
    assert "lineage" in (await told("bash", "parley sessions ", tmp_path)).split()
    assert (await told("bash", "parley logs --si", tmp_path)).split() == ["--since"]


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_conversation_is_completed(parley: Parley, tmp_path: Path) -> None:
    """By its id; where the database cannot be read there is nothing, and no error."""
    assert await told("bash", "parley sessions export ", tmp_path) == "\n"
    await asyncio.to_thread(fill, tmp_path, "a question", "another one")
    assert (await told("bash", "parley sessions export ", tmp_path)).split() == ["2", "1"]
    assert "1\ttelegram a question" in await told("fish", "parley sessions export ", tmp_path)
    assert (await asyncio.to_thread(parley, "sessions", "list")).code == 0


def test_keys_of_the_settings_are_completed(home: Path) -> None:
    """All that begin so."""
    assert settings_keys("queue.deb") == ["queue.debounce_ms"]
    (home / "parley.yaml").write_text("queue: {")
    assert settings_keys("queue.deb") == []


async def script_of(shell: str, home: Path) -> str:
    """Return the script by which a shell asks."""
    done = await ParleyProcess(home, environ={"_PARLEY_COMPLETE": f"source_{shell}"}).run()
    assert done.code == 0
    return done.stdout


async def test_the_script_works_in_bash(tmp_path: Path) -> None:
    """As bash would call it."""
    script = tmp_path / "completion.sh"
    script.write_text(await script_of("bash", tmp_path))
    calls = f"""
        source {script}
        COMP_WORDS=(parley doc) COMP_CWORD=1
        _parley_completion {PARLEY}
        echo "${{COMPREPLY[@]}}"
    """
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", calls], capture_output=True, text=True, check=True
    )
    assert done.stdout == "doctor\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_each_shell_has_a_script(tmp_path: Path, shell: str) -> None:
    """It asks by the variable that Parley answers to."""
    assert f"_PARLEY_COMPLETE=complete_{shell}" in await script_of(shell, tmp_path)


def test_a_script_is_installed(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the shell finds it; twice is once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_completion_shared, "_get_shell_name", lambda: "bash")
    for _ in range(2):
        assert parley("--install-completion").code == 0
    assert (tmp_path / ".bashrc").read_text().count("parley.sh") == 1
