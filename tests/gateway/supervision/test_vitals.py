"""What a running gateway knows of itself."""

from pathlib import Path

import pytest

from gateway.errors import StorageUnavailable
from gateway.supervision import vitals
from tests.support.gateway import running


async def test_how_long_a_state_lasts_is_counted_from_its_first_look(tmp_path: Path) -> None:
    """By the looks of this process; a connection that is back begins again at none."""
    async with running(tmp_path) as chat:
        here, now = chat.gateway.platforms.examination.vitals, [5.0]
        here.clock = lambda: now[0]
        chat.adapter.connected = False
        assert (await here.live()).lasting_s["telegram:default"] == 0.0
        now[0] = 65.0
        live = await here.live()
        assert (live.adapters, live.lasting_s["telegram:default"]) == (
            {"telegram:default": "connecting"},
            60.0,
        )
        chat.adapter.connected = True
        assert (await here.live()).lasting_s["telegram:default"] == 0.0


async def test_of_a_database_that_is_away_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither how accounts stand, nor whose the backups are."""
    async with running(tmp_path) as chat:
        here = chat.gateway.platforms.examination.vitals
        assert (await here.live()).makes_backups

        async def unreadable(_: vitals.Watch) -> None:
            raise StorageUnavailable("gone")

        monkeypatch.setattr(vitals.Watch, "look", unreadable)
        live = await here.live()
        assert (live.database, live.accounts) == ("not readable: gone", {})
        assert not live.makes_backups
