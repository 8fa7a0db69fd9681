"""The wheel, as `pipx run` and `uvx` use it: all that Parley needs is inside."""

import asyncio
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from zipfile import ZipFile

import aiohttp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "agent", "adapters", "migrations")
OF_DEVELOPERS = {f"{PACKAGES[-1]}/script.py.mako"}
"""What the next migration is made from."""
BESIDE = ("pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, built beside it: a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in BESIDE:
        shutil.copy(ROOT / name, folder / "source" / name)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    command = [sys.executable, "-m", "pip", "wheel", *options, str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def parley(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`parley` of an environment that has the wheel; what it depends on is that of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    # A folder that stands in such a file is not looked through for more of them: the editable
    # Parley of the tests is not there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    into = ("--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps")
    subprocess.run(
        [sys.executable, "-m", "pip", *into, "--ignore-installed", str(wheel)],
        check=True,
        capture_output=True,
    )
    return folder / "bin/parley"


@pytest.mark.thorough
def test_every_file_of_the_packages_is_in_it(wheel: Path) -> None:
    """Pages, templates, migrations and tables too, of whatever kind they are."""
    with ZipFile(wheel) as found:
        inside = set(found.namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert wanted - inside == OF_DEVELOPERS
    assert not [name for name in inside if name.startswith("tests/")]


@asynccontextmanager
async def running(parley: Path, home: Path) -> AsyncIterator[str]:
    """Run the gateway from the wheel; the address of its page."""
    process = await asyncio.create_subprocess_exec(
        parley,
        "run",
        "--port",
        "0",
        cwd=home.parent,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home.parent), "PARLEY_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        events = [json.loads(line) async for line in _until_ready(process.stdout)]
        yield f"http://127.0.0.1:{events[-1]['port']}"
    finally:
        process.terminate()
        await process.communicate()


async def _until_ready(lines: asyncio.StreamReader) -> AsyncIterator[bytes]:
    async for line in lines:
        yield line
        if b'"gateway_ready"' in line:
            return


@pytest.mark.thorough
async def test_it_runs_without_the_source(parley: Path, tmp_path: Path) -> None:
    """Migrations make a database, the page and its scripts are served."""
    async with running(parley, tmp_path / "home") as address, aiohttp.ClientSession() as http:
        assert (tmp_path / "home/parley.db").exists()
        for path in ("/", "/static/app.js", "/static/style.css"):
            async with http.get(address + path) as answer:
                assert (path, answer.status) == (path, 200)


def test_its_code_is_that_of_the_wheel(parley: Path, tmp_path: Path) -> None:
    """Nothing else is imported: neither the tree that it was built from nor the editable one."""
    code = "import agent, gateway, migrations; print(agent.__file__, gateway.__file__)"
    command = [parley.with_name("python"), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert all(Path(file).is_relative_to(parley.parents[1]) for file in done.stdout.split())
