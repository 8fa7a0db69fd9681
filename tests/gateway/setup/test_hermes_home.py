"""Files of a home of Hermes: read as data, whatever stands there."""

from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.setup.hermes_home import HermesHome
from tests.support.hermes import HermesRecords


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with nothing but a database."""
    HermesRecords(tmp_path)
    return tmp_path


def skill(home: Path, folder: str, text: str) -> Path:
    """Write a skill; returns its folder."""
    path = home / "skills" / folder
    path.mkdir(parents=True)
    (path / "SKILL.md").write_text(text)
    return path


def test_notes_are_entries(home: Path) -> None:
    """Between marks; a file that is not there has none."""
    (home / "memories").mkdir()
    (home / "memories" / "MEMORY.md").write_text("one\n\u00a7\n two \n\u00a7\n\n")
    told = HermesHome(home)
    assert (told.notes("MEMORY.md"), told.notes("USER.md")) == (["one", "two"], [])


def test_skills_are_those_that_somebody_wrote(home: Path) -> None:
    """By the name that they give themselves; those that Hermes brings are counted."""
    written = "---\nname: weekly-report\ndescription: How.\n---\nWrite.\n"
    own = skill(home, "work/report", written)
    (own / "scripts").mkdir()
    (own / "scripts" / "run.py").write_text("print(1)")
    (own / "link.md").symlink_to("/etc/passwd")
    skill(home, "Bad Name", "no front matter")
    skill(home, "arxiv", "---\nname: arxiv\ndescription: x\n---\nx\n")
    skill(home, ".hub/hidden", written)
    (home / "skills" / ".bundled_manifest").write_text("arxiv:abc\n")
    found = {line.what: (line.outcome, [*files]) for line, files in HermesHome(home).skills()}
    assert found == {
        "weekly-report": ("taken", ["scripts/run.py", "SKILL.md"]),
        "Bad Name": ("left out", []),
        "1 that Hermes brings": ("left out", []),
    }


def test_large_files_and_bytes_are_refused(home: Path) -> None:
    """In one line that names the file."""
    (home / "SOUL.md").write_text("x" * 1_000_001)
    with pytest.raises(GatewayError, match=r"SOUL\.md is no file, or has more than"):
        HermesHome(home).text("SOUL.md")
    (home / ".env").write_bytes(b"\xff")
    with pytest.raises(GatewayError, match=r"\.env cannot be read"):
        HermesHome(home).variables()


@pytest.mark.parametrize("name", ["SOUL.md", "memories", "skills", "state.db"])
def test_no_link_leads_out_of_a_home(
    home: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """Of a folder as little as of a file: the home is refused."""
    other = tmp_path_factory.mktemp("other")
    HermesRecords(other).session("s")
    skill(other, "own", "---\nname: own\ndescription: x\n---\nx\n")
    (other / "memories").mkdir()
    (other / "memories" / "MEMORY.md").write_text("of somebody else")
    (other / "SOUL.md").write_text("somebody else")
    (home / "config.yaml").touch()
    (home / "state.db").unlink()
    (home / name).symlink_to(other / name)
    told = HermesHome(home)
    with pytest.raises(GatewayError, match="is behind a link"), told.database():
        _ = told.text("SOUL.md"), told.notes("MEMORY.md"), list(told.skills())


def test_a_folder_that_is_no_home_is_told(tmp_path: Path) -> None:
    """With what was looked for."""
    with pytest.raises(GatewayError, match=r"neither state\.db nor config\.yaml nor SOUL\.md"):
        HermesHome(tmp_path)


def test_a_home_without_a_database_has_no_sessions(tmp_path: Path) -> None:
    """Its files are taken all the same."""
    (tmp_path / "SOUL.md").write_text("I am.")
    with HermesHome(tmp_path).database() as conn:
        assert conn is None
