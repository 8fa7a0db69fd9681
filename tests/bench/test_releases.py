"""What the comparison with a commit before says, and what it says where it cannot be made."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.figures import Figure
from tests.bench.releases import (
    BEFORE,
    CannotCompare,
    Checkout,
    checked_out,
    compared,
    measure,
    read,
)

CPU = "one conversation, CPU per message"


def git(tree: Path, *command: str) -> str:
    """Run git in a repository that depends on nobody's settings."""
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    ran = subprocess.run(("git", *who, *command), cwd=tree, capture_output=True, check=True)
    return ran.stdout.decode().strip()


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository of three commits."""
    tree = tmp_path / "history"
    tree.mkdir()
    git(tree, "init", "--quiet")
    for n in range(3):
        (tree / "CHANGELOG.md").write_text(f"{n}")
        (tree / "requirements-dev.lock").write_text("parley-that-nobody-has==1\n")
        git(tree, "add", ".")
        git(tree, "commit", "--quiet", "--message", f"{n}")
    return tree


def test_what_a_run_prints_is_read() -> None:
    """With the units, and past lines that are no figures."""
    many = "500 conversations at once, 4 turns each"
    figures = Figure(CPU, 4.97, "ms", at_most=5), Figure(many, 1234.5, "turns/s")
    printed = "\n".join(map(str, ("overhead: python", *figures)))
    assert read(printed) == {CPU: (4.97, "ms"), many: (1234.0, "turns/s")}


@pytest.mark.parametrize(("now", "reached"), [(8.4, True), (8.6, False)])
def test_medians_are_compared_beside_their_bar(now: float, reached: bool) -> None:
    """A slow round of a busy machine decides nothing; what one side alone has is left out."""
    none = Path()
    other = Checkout(BEFORE, none, none, {CPU: [5, 5, 50], "gone": [1]}, {CPU: "ms", "gone": "s"})
    here = Checkout("here", none, none, {CPU: [now, now, 90], "new": [1]}, {CPU: "ms"})
    [figure] = compared(other, here)
    verdict = "reached" if reached else "**over**"
    assert figure.cells == ("5 ms", f"{now} ms", f"{now / 5:.2f}", "≤ 1.7", verdict)
    assert figure.reached is reached


def test_a_clone_without_the_history_says_so(history: Path, tmp_path: Path) -> None:
    """And how to get it."""
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", history.as_uri(), str(shallow))
    with pytest.raises(CannotCompare, match="git fetch --unshallow"):
        checked_out(git(history, "rev-parse", "HEAD^"), tmp_path, shallow)


@pytest.mark.thorough
def test_an_index_that_cannot_be_reached_is_named(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line of what the installer has said."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CannotCompare, match="cannot be installed: ") as refused:
        checked_out(git(history, "rev-parse", "HEAD"), tmp_path, history)
    assert "\n" not in str(refused.value)


def test_a_comparison_that_is_left_out_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says so, and nothing is measured."""
    monkeypatch.setattr("tests.bench.releases.checked_out", _nowhere)
    [line] = measure(tmp_path)
    assert str(line) == f"  beside {BEFORE}: left out, nowhere"
    assert not line.reached


def _nowhere(_commit: str, _folder: Path) -> Checkout:
    raise CannotCompare("nowhere")


def test_a_folder_that_is_there_is_used_again(tmp_path: Path) -> None:
    """Without git and without installing anything."""
    python = tmp_path / "abc" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert checked_out("abc", tmp_path, tmp_path) == Checkout("abc", tmp_path / "abc", python)
