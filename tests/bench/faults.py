"""The network-fault matrix, whole: platforms, faults, durations, kinds of messages."""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from tests.bench.figures import Figure
from tests.support.fault_matrix import PLATFORMS, Cell, Outcome, cells, table, try_cell
from tests.support.storage import copy_database, migrated_file


def measure() -> Iterator[Figure]:
    """Try the whole matrix, print its table, and yield what it comes to."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("discord").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        tried = list(_tried(Path(folder)))
    for line in table(tried):
        print(line)
    outcomes = [outcome for _, outcome in tried]
    yield Figure("cells tried", len(tried), "")
    yield Figure("messages lost", sum(len(one.lost) for one in outcomes), "", at_most=0)
    yield Figure("shown twice, unmarked", sum(len(one.doubled) for one in outcomes), "", at_most=0)
    yield Figure("shown again, marked", sum(one.resent for one in outcomes), "")
    yield Figure("cells out of order", sum(one.disordered for one in outcomes), "", at_most=0)
    violations = sum(len(one.violations) for one in outcomes)
    yield Figure("what the doubles hold against the clients", violations, "", at_most=0)


def _tried(folder: Path) -> Iterator[tuple[Cell, Outcome]]:
    empty = migrated_file(folder / "empty.db")
    for platform in PLATFORMS:
        for cell in cells(platform):
            database = copy_database(empty, folder / "cell.db")
            yield cell, try_cell(cell, database)
            for file in folder.glob("cell.db*"):
                file.unlink()
