"""A broken network between each platform and its real client: nothing is lost, or shown twice.

`make test` tries one cell for each fault, `make test-all` a sixth of the matrix, `make test-deep`
all of it.
"""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from adapters.telegram import send
from gateway.pipeline.delivery import Delivery
from gateway.storage import schema
from gateway.storage.migrations import open_database
from gateway.storage.queue.sending import Due
from tests.support.fault_matrix import (
    DURATIONS_S,
    FAULTS,
    KINDS,
    PLATFORMS,
    Cell,
    cells,
    few_cells,
    some_cells,
    try_cell,
)
from tests.support.fault_proxy import FaultKind
from tests.support.storage import copy_database
from tests.support.thorough import ALL, DEEP, products
from tests.support.virtual_time import follow, run_virtually, virtual_loop

ALERTS = {"adapter-silent", "outbox-old"}
SILENT_S = 600.0
"""A fault that lasts so long is told in each cell."""
LONGEST_LATE_S = 450.0
"""The longest time limit of a request that goes nowhere (an upload's), and the longest back-off."""

pytestmark = pytest.mark.untraced


@pytest.mark.parametrize(("platform", "fault"), products([*PLATFORMS], FAULTS))
def test_a_fault_loses_nothing_and_shows_nothing_twice(
    tmp_path: Path, database_template: Path, platform: str, fault: FaultKind
) -> None:
    """Whatever is sent, and however long the fault lasts; the order is kept."""
    every = cells(platform) if DEEP else some_cells(platform) if ALL else few_cells(platform)
    tried = [cell for cell in every if cell.fault == fault]
    for n, cell in enumerate(tried):
        outcome = try_cell(cell, copy_database(database_template, tmp_path / f"{n}.db"))
        assert outcome.is_clean, (cell, outcome)
        assert outcome.tries > 0, f"{cell} met no fault"
        assert outcome.late_s <= LONGEST_LATE_S, (cell, outcome)
        # Told once each, and that it is over: nothing is taken, or waits for minutes.
        told = outcome.begun
        assert sorted(told) == sorted(outcome.ended), (cell, outcome)
        assert sorted(told) == sorted(ALERTS & {*told}), (cell, outcome)
        assert bool(told) or cell.for_s < SILENT_S, (cell, outcome)


def test_the_few_cells_have_each_fault_and_all_durations() -> None:
    """One cell for each fault and platform; of these the desk tries each fault once."""
    chosen = [cell for platform in PLATFORMS for cell in few_cells(platform)]
    assert set(chosen) < {cell for platform in PLATFORMS for cell in some_cells(platform)}
    assert {(cell.platform, cell.fault) for cell in chosen} == set(product(PLATFORMS, FAULTS))
    assert len(chosen) == len(PLATFORMS) * len(FAULTS)
    assert {cell.for_s for cell in chosen} == set(DURATIONS_S)


def test_the_short_matrix_has_each_fault_with_each_duration_and_most_kinds() -> None:
    """A sixth of the cells, spread over all of them."""
    chosen = some_cells("telegram")
    assert len(chosen) * 6 == len(cells("telegram"))
    assert {(cell.fault, cell.for_s) for cell in chosen} == {
        (fault, for_s) for fault in FAULTS for for_s in DURATIONS_S
    }
    assert {cell.kind for cell in chosen} == set(KINDS)


def test_the_matrix_sees_what_is_lost(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of version 0.5, that a second doubt buries, loses an answer within 3 s of resets."""
    try_later = Delivery._try_later

    async def give_up_soon(self: Delivery, due: Due, reason: str, *args: Any, **how: Any) -> None:
        if how.get("is_unknown") and due.message.outcome_unknown:
            await self._bury(due, reason, "failed")
        else:
            await try_later(self, due, reason, *args, **how)

    monkeypatch.setattr(Delivery, "_try_later", give_up_soon)
    cell = Cell("telegram", "reset after", 3.0, "short")
    outcome = try_cell(cell, copy_database(database_template, tmp_path / "parley.db"))
    assert outcome.lost == ("An answer that falls into the fault.",)


def test_the_matrix_sees_what_is_shown_twice(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its mark a message that is sent again stands there twice."""
    monkeypatch.setattr(send, "RESENT_MARK", "")
    cell = Cell("telegram", "lost reply", 3.0, "short")
    outcome = try_cell(cell, copy_database(database_template, tmp_path / "parley.db"))
    assert outcome.doubled == ("An answer that falls into the fault.",)


def test_a_message_that_is_sent_again_and_again_has_one_mark(
    tmp_path: Path, database_template: Path
) -> None:
    """However often its reply is lost: each copy but the first is marked, once."""
    cell = Cell("telegram", "lost reply", 10.0, "short")
    outcome = try_cell(cell, copy_database(database_template, tmp_path / "parley.db"))
    assert outcome.is_clean
    assert outcome.resent >= 3


def test_virtual_time_waits_for_nothing(database_file: Path) -> None:
    """A day passes at once, and the database's clock with it; work of threads takes no time."""

    async def a_day() -> tuple[float, float]:
        async with open_database(database_file) as database:
            with pytest.MonkeyPatch.context() as patch:
                follow(database, patch)
                query = select(schema.now_s())
                before = await database.write(lambda conn: conn.scalar(query))
                loop_before = virtual_loop().time()
                await asyncio.sleep(86_400)
                await asyncio.to_thread(sum, range(100_000))
                after = await database.write(lambda conn: conn.scalar(query))
                return (after or 0.0) - (before or 0.0), virtual_loop().time() - loop_before

    passed_s, on_the_loop_s = run_virtually(a_day())
    assert (round(passed_s, 2), on_the_loop_s) == (86_400, 86_400)
