"""Stops, full disks, poison, a second process: no crash, or the same crash again and again."""

import asyncio
import os
import resource
import signal
import sqlite3
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.pipeline import notices
from gateway.pipeline.worker import POLL_S
from tests.crash.test_cluster_disruptions import fill
from tests.support.confined import TAKES_ROOT
from tests.support.crash import KILLED, TRIED_SOON, Crashes, Nursery, describe, until
from tests.support.crash_platform import LoopbackPlatform
from tests.support.postgres import small_disk

MINUTE_S = 4.0
"""Of the alerts. Two calm ones are more than a busy machine takes for a start."""
DISK_MB, LEAST_MB = 80, 20


async def test_a_process_that_is_stopped_for_a_while_goes_on(crashes: Crashes) -> None:
    """SIGSTOP in mid-turn, people write, SIGCONT: everything is answered in order."""
    await crashes.write("a", "gate note")
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    os.kill(pid, signal.SIGSTOP)
    await crashes.write("a")
    await crashes.write("b")
    await crashes.platform.open_gate()
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGCONT)
    await crashes.platform.wait_for(crashes.all_answered)
    assert await crashes.stop(pid) == 0
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_graceful_stop_is_not_an_attempt(crashes: Crashes) -> None:
    """A turn that is cut off by four restarts is answered by the fifth process."""
    await crashes.write("a", "gate")
    for times in range(1, 5):
        pid = crashes.start(grace_s=0)
        await crashes.platform.wait_for(partial(gate_is_reached, crashes, times))
        assert await crashes.stop(pid) == 0
    await crashes.platform.open_gate()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


async def test_a_graceful_stop_lets_a_turn_finish(crashes: Crashes) -> None:
    """Within `queue.grace_s` the answer is committed and sent before the process ends."""
    await crashes.write("a", "gate")
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    os.kill(pid, signal.SIGTERM)
    await crashes.platform.open_gate()
    assert await crashes.ended(pid) == 0
    assert crashes.all_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "code"), [("die", KILLED), ("exit", 7)])
async def test_a_poison_turn_becomes_a_dead_letter_and_the_others_are_answered(
    crashes: Crashes, how: str, code: int
) -> None:
    """Four deaths: its chat gets a notice; turns that merely ran beside it are not to blame."""
    crashes.configure(**TRIED_SOON)
    crashes.excuse(await crashes.write("poison", how))
    for chat in "abcd":
        await crashes.write(chat, "gate")
    for life in (1, 2):
        crashes.platform.fuse = 4 * life
        assert await crashes.ended(crashes.start()) == code
    await crashes.platform.open_gate()
    for _ in range(2):
        assert await crashes.ended(crashes.start()) == code
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: bool(crashes.platform.finals("poison")))
    await crashes.settle()
    assert await crashes.stop(pid) == 0
    assert crashes.all_answered()
    assert crashes.platform.finals("poison") == [notices.GAVE_UP]
    assert all(notices.GAVE_UP not in crashes.platform.finals(chat) for chat in "abcd")
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "code"), [("crash", -signal.SIGSEGV), ("leave", 1)])
async def test_a_turn_that_is_caught_in_the_act_is_given_up_after_two_deaths(
    crashes: Crashes, how: str, code: int
) -> None:
    """A fatal signal or an exit in its own task: no other turn is suspected."""
    crashes.excuse(await crashes.write("poison", how))
    for chat in "abcd":
        await crashes.write(chat, "gate")
    crashes.platform.fuse = 4
    for _ in range(2):
        assert await crashes.ended(crashes.start()) == code, crashes.log()
        await crashes.platform.open_gate()
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: bool(crashes.platform.finals("poison")))
    await crashes.platform.wait_for(crashes.all_answered)
    await crashes.settle()
    assert await crashes.stop(pid) == 0
    assert crashes.platform.finals("poison") == [notices.GAVE_UP]
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_process_that_dies_at_once_makes_nobody_a_suspect(crashes: Crashes) -> None:
    """A restart loop: the turns that an earlier process had begun do not run in it."""
    for chat in "abcd":
        await crashes.write(chat, "gate")
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached >= 4)
    await crashes.kill(pid)
    for _ in range(6):
        loop = crashes.start(kill=["before commit of claim", 1])
        assert await crashes.ended(loop) == KILLED
    assert deaths(crashes) == [1, 1, 1, 1]
    await crashes.platform.open_gate()
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_loop_that_dies_with_all_its_turns_gives_nobody_up(crashes: Crashes) -> None:
    """They are suspects until the process dies without them: then it was none of them."""
    crashes.configure(quiet_s=5.0)
    for chat in "abcd":
        await crashes.write(chat, "gate")
    counts = []
    for life, reached in enumerate((4, 8, 8, 12), start=1):
        pid = crashes.start()
        await crashes.platform.wait_for(lambda life=life: crashes.platform.noted("ready") >= life)
        await crashes.platform.wait_for(partial(gate_is_reached, crashes, reached))
        await crashes.kill(pid)
        counts.append(deaths(crashes))
    assert counts == [[each] * 4 for each in (0, 1, 2, 0)]
    await crashes.platform.open_gate()
    await crashes.live_until_answered()
    assert "turn_buried" not in crashes.log()
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_tool_that_kills_the_process_becomes_a_dead_letter(crashes: Crashes) -> None:
    """Its deaths count from its last journaled step; the group it leaves is closed."""
    crashes.configure(**TRIED_SOON)
    crashes.excuse(await crashes.write("a", "boom"))
    for _ in range(4):
        assert await crashes.ended(crashes.start()) == KILLED
    await crashes.write("a")
    await crashes.live_until_answered()
    assert crashes.platform.finals("a")[0] == notices.GAVE_UP
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_full_disk_refuses_and_forgets_nothing(crashes: Crashes) -> None:
    """What was acknowledged before is there; what was refused comes again when there is room."""
    platform = crashes.platform
    for _ in range(30):
        await crashes.write("a", "x" * 2000)
    pid = crashes.start(pages=20, batch=1)
    await platform.wait_for(lambda: platform.noted("refused"))
    assert 1 < platform.acknowledged < len(platform.pushed)
    assert "database or disk is full" in dict(platform.notes)["refused"]
    await crashes.kill(pid)
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_disk_that_is_full_for_a_while_buries_nothing(crashes: Crashes) -> None:
    """A turn that cannot be stored is not to blame: it is tried until there is room again."""
    platform = crashes.platform
    await crashes.write("a", "gate huge")
    pid = crashes.start()
    await platform.wait_for(lambda: platform.gate.reached)
    os.kill(pid, signal.SIGUSR1)
    await platform.wait_for(lambda: platform.noted("disk full"))
    await platform.open_gate()
    await platform.wait_for(
        lambda: platform.noted("turn_failed") > 5 or platform.noted("turn_buried")
    )
    os.kill(pid, signal.SIGUSR2)
    await platform.wait_for(crashes.all_answered)
    assert await crashes.stop(pid) == 0
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_failing_disk_is_not_hammered(crashes: Crashes) -> None:
    """While nothing can be written at all, each pause before the next attempt is longer.

    Owners are told once there is room to say so.
    """
    platform = crashes.platform
    first_s = 1.5 * POLL_S  # what is shorter is not seen: the worker looks that often
    crashes.configure(minute_s=MINUTE_S)
    crashes.expect("database-down")
    await crashes.write("a", "gate")
    pid = crashes.start(retry_after_s=first_s)
    await platform.wait_for(lambda: platform.gate.reached)
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (written(crashes), unlimited[1]))
    await platform.open_gate()
    await platform.wait_for(lambda: platform.noted("turn_failed") >= 3)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    await platform.wait_for(crashes.all_answered)
    await crashes.settle()
    assert await crashes.stop(pid) == 0
    pauses = [after - at for at, after in pairwise(crashes.logged_at("turn_failed")[:3])]
    least = [0.9 * first_s * 2**failures for failures in range(2)]
    assert all(pause >= lasts for pause, lasts in zip(pauses, least, strict=True)), pauses
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_refused_token_is_told_of_once(crashes: Crashes) -> None:
    """It is refused in three lives that end hard; the fourth one may work."""
    await refuse_for_three_lives(crashes)
    assert not (found := crashes.violations()), describe(found, crashes)


async def refuse_for_three_lives(crashes: Crashes, **changes: str) -> None:
    """Have the platform refuse the token, whoever begins with it."""
    crashes.configure(minute_s=MINUTE_S, **changes)
    crashes.expect("adapter-stopped")
    await crashes.write("a")
    await crashes.platform.refuse()
    for _ in range(3):
        asked = crashes.platform.polls
        pid = crashes.start()
        await until(crashes.raised)
        # What is looked at before it was refused is well.
        await crashes.platform.wait_for(lambda asked=asked: crashes.platform.polls > asked)
        await crashes.looked()
        await crashes.kill(pid)
    await crashes.platform.refuse(refuses=False)
    await crashes.live_until_answered()


@pytest.mark.thorough
@TAKES_ROOT
async def test_a_disk_that_fills_up_is_told_of_once(
    nursery: Nursery, platform: LoopbackPlatform, template: Path, tmp_path: Path
) -> None:
    """While there is room to say so, and through a kill; until there is room again."""
    with (
        small_disk(tmp_path / "disk", DISK_MB),
        closing(Crashes(nursery, platform, tmp_path / "disk")) as crashes,
    ):
        crashes.migrate(template)
        crashes.configure(minute_s=MINUTE_S, disk_free_bytes=LEAST_MB * 1_000_000)
        crashes.expect("disk-full")
        await crashes.write("a")
        pid, ballast = crashes.start(), tmp_path / "disk/ballast"
        await platform.wait_for(crashes.all_answered)
        fill(ballast, leaving=LEAST_MB * 900_000)
        await until(crashes.raised)
        await crashes.kill(pid)
        await crashes.write("a")
        pid = crashes.start()
        await crashes.looked()
        ballast.unlink()
        await platform.wait_for(crashes.all_answered)
        await crashes.settle()
        assert await crashes.stop(pid) == 0
        assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.thorough
async def test_a_slow_answer_is_not_overtaken_by_the_next_preview(crashes: Crashes) -> None:
    """While a platform delays the end of an answer, the next one is thought out unseen."""
    crashes.configure(style="edit", mode="followup")
    crashes.platform.faults["m1"].extend(["delay"] * 20)
    await crashes.write("a", "parts")
    await crashes.write("a")
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


async def test_a_second_process_is_refused_and_harms_nothing(crashes: Crashes) -> None:
    """It ends with DatabaseLocked while the first one goes on."""
    await crashes.write("a", "gate note")
    first = crashes.start()
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    assert await crashes.ended(crashes.start()) == 3
    assert "DatabaseLocked" in crashes.log()
    await crashes.platform.open_gate()
    await crashes.platform.wait_for(crashes.all_answered)
    assert await crashes.stop(first) == 0
    assert not (found := crashes.violations()), describe(found, crashes)


def gate_is_reached(crashes: Crashes, times: int) -> bool:
    """Whether models have come to the gate so often."""
    return crashes.platform.gate.reached >= times


def deaths(crashes: Crashes) -> list[int]:
    """Return at how many deaths each turn ran."""
    with closing(sqlite3.connect(crashes.database)) as books:
        return [count for (count,) in books.execute("SELECT deaths FROM turn ORDER BY id")]


def written(crashes: Crashes) -> int:
    """Return how long the write-ahead log is, in bytes."""
    return crashes.database.with_name("parley.db-wal").stat().st_size
