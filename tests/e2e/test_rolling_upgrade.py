"""A rolling upgrade: the version before this schema runs on it, beside this version.

That version is taken from git, as it was before the newest migration came.
"""

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.schema import FLOOR, REVISION
from tests.e2e.web_chat import WebChat
from tests.support.postgres import postgres_server
from tests.support.process import ParleyProcess

# It has a server of its own, whatever the other tests run on.
pytestmark = pytest.mark.usefixtures("sqlite_alone")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "agent", "adapters", "migrations", "pyproject.toml")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


def commit_before(revision: str) -> str:
    """Return the newest commit without this revision, whatever the working tree has."""
    files = f"migrations/versions/{revision}_*.py"
    added = git("log", "--diff-filter=A", "--format=%H", "--", files)
    commits = added.decode().split()
    return f"{commits[-1]}^" if commits else "HEAD"


class Older(ParleyProcess):
    """The version before, in a Python of its own."""

    def __init__(self, tree: Path, *arguments: Any) -> None:
        super().__init__(*arguments, fresh=True)
        self.tree = tree
        metadata = tomllib.loads((tree / "pyproject.toml").read_text())
        module, function = metadata["project"]["scripts"]["parley"].split(":")
        self.program = ("-c", f"from {module} import {function}; {function}()")


@pytest.fixture(scope="module")
def older_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the version before."""
    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("the version before is not in a shallow clone")
    folder = tmp_path_factory.mktemp("older")
    commit = commit_before(REVISION)
    there = git("ls-tree", "--name-only", commit, *PACKAGES).decode().split()
    packed = git("archive", commit, *there)
    # Python 3.11.2 and 3.11.3 have no filters of archives yet.
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
    return folder


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with postgres_server() as server:
        yield server.url(server.create())


def test_the_older_one_knows_less(older_tree: Path) -> None:
    """Else the test below would prove nothing."""
    assert revision_of(older_tree) < REVISION


def revision_of(tree: Path) -> str:
    return max(file.name[:4] for file in tree.glob("migrations/versions/[0-9]*.py"))


@pytest.mark.thorough
async def test_the_version_before_runs_on_this_schema(
    tmp_path: Path, older_tree: Path, server_url: str
) -> None:
    """It starts on it, answers, and goes on beside this version; below the floor it is refused."""
    settings = {"storage": {"url": server_url}}
    newer = ParleyProcess(tmp_path / "newer", settings)
    older = Older(older_tree, tmp_path / "older", settings)
    newer.home.mkdir()
    older.home.mkdir()
    for each in (newer, older):
        (each.home / "parley.yaml").write_text(f"storage: {{url: '{server_url}'}}\n")
    assert (await newer.run("db", "migrate")).stdout == f"schema revision {REVISION}\n"
    if revision_of(older_tree) < FLOOR:
        # That version may not know PostgreSQL at all; whatever it says, it changes nothing.
        refused = await older.run("run", "--port", "0")
        assert (refused.code, len(refused.stderr.splitlines())) == (1, 1)
        assert (await newer.run("db", "check")).code == 0
        return
    async with older:
        assert older.named("database_ahead", revision=REVISION)
        chat = WebChat(older)
        # The words of the model without a provider may differ from version to version.
        assert "> one" in await chat.ask("one")
        async with newer:
            beside = WebChat(newer, "c2")
            assert "> two" in await beside.ask("two")
            assert "> three" in await chat.ask("three")
            assert "> four" in await beside.ask("four")
        assert "> five" in await chat.ask("five")
