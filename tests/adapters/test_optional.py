"""Libraries without the packages that they can do without."""

import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
try:
    import {optional}
except ImportError:
    {optional} = None
"""


def _import(tmp_path: Path, code: str) -> str:
    """Return what a new Python prints that finds `library`, `another` and `costly` in a folder."""
    (tmp_path / "costly.py").write_text("")
    for name in ("library", "another"):
        (tmp_path / f"{name}.py").write_text(LIBRARY.format(optional="costly"))
    begin = f"import sys; sys.path.append({str(tmp_path)!r})\n"
    begin += "from adapters.optional import leave_out\nleave_out('library', 'costly')\n"
    ran = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_a_library_is_imported_without_what_is_left_out(tmp_path: Path) -> None:
    """It finds that the package is not installed."""
    assert _import(tmp_path, "import library; print(library.costly)") == "None"


@pytest.mark.parametrize("first", ["costly", "library"])
def test_others_get_what_is_left_out(tmp_path: Path, first: str) -> None:
    """Before or after, by itself or through a library that is not named."""
    code = f"import {first}, another; print(another.costly.__name__)"
    assert _import(tmp_path, code) == "costly"


def test_another_thread_gets_what_is_left_out_meanwhile(tmp_path: Path) -> None:
    """What is hidden is hidden from the thread that imports the library."""
    (tmp_path / "deep.py").write_text(
        "import threading\n"
        "other = threading.Thread(target=lambda: __import__('another'))\n"
        "other.start(); other.join()\n"
        "import library\n"
    )
    code = "leave_out('deep', 'costly'); import deep\n"
    code += "print(sys.modules['another'].costly.__name__)"
    assert _import(tmp_path, code) == "costly"


def test_a_library_that_cannot_do_without_says_so(tmp_path: Path) -> None:
    """The error names the package; a later import without that library works."""
    (tmp_path / "needy.py").write_text("import costly\n")
    code = "leave_out('needy', 'costly')\ntry:\n    import needy\n"
    code += "except ModuleNotFoundError as exc:\n    print(exc.name, exc)\nimport costly"
    assert _import(tmp_path, code) == "costly costly is left out here"


def test_a_library_keeps_its_loader(tmp_path: Path) -> None:
    """Its source is found for tracebacks, its data by `importlib.resources`."""
    code = "import library, inspect; print(len(inspect.getsource(library).splitlines()))"
    assert _import(tmp_path, code) == "5"
