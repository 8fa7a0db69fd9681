"""A shaken run delays steps of tasks and results of threads, and loses none of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RACE = """
import asyncio

async def put(order, number, begun):
    await begun
    order.append(number)

async def test_order():
    order, begun = [], asyncio.get_running_loop().create_future()
    tasks = [asyncio.create_task(put(order, number, begun)) for number in range(200)]
    await asyncio.sleep(0)
    begun.set_result(None)
    await asyncio.gather(*tasks)
    print(f"order: {order == sorted(order)} {len(order)}")
    assert len(order) == 200
"""


def _printed(tmp_path: Path, seed: str) -> str:
    """Run a test that depends on the order of its tasks, and return what it prints."""
    (tmp_path / "conftest.py").write_text(
        "from tests import shake\n\n\ndef pytest_configure(config):\n    shake.watch(config)\n"
    )
    (tmp_path / "test_race.py").write_text(RACE)
    command = [sys.executable, "-m", "pytest", "-sq", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-o", "asyncio_mode=auto", str(tmp_path)],
        env={**os.environ, "PARLEY_TEST_SHAKE": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(("seed", "is_ordered"), [("", True), ("1", False)])
def test_a_shaken_run_changes_the_order_of_tasks(
    tmp_path: Path, seed: str, is_ordered: bool
) -> None:
    """All of them run."""
    assert f"order: {is_ordered} 200" in _printed(tmp_path, seed)
