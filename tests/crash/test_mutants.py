"""The oracle must find what the design forbids: gateways with a flaw built in."""

import os
import signal
import subprocess
import sys

import pytest

from tests.crash.mutants import MUTANTS
from tests.crash.test_disruptions import refuse_for_three_lives
from tests.crash.test_random_kills import CHATS, given_up
from tests.support import crash
from tests.support.crash import KILLED, Crashes, describe


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_replaces_what_is_there(mutant: str) -> None:
    """Each applies to a process of its own, so a name that has changed is found at the desk."""
    applied = f"from tests.crash.mutants import MUTANTS; MUTANTS[{mutant!r}](None)"
    command = [sys.executable, "-c", applied]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.thorough
async def test_acknowledging_before_the_commit_is_caught(crashes: Crashes) -> None:
    """A message that the platform forgot and the database never had is missed."""
    crashes.excuse(await crashes.write("a"))
    pid = crashes.start(mutant="acknowledge before commit", kill=["before commit of admit_all", 1])
    assert await crashes.ended(pid) == KILLED
    await crashes.write("a")
    await crashes.live_until_answered()
    assert crashes.violations() == ["chat a: acknowledged ['m1', 'm2'], stored ['m2']"]


@pytest.mark.thorough
async def test_sending_before_the_commit_is_caught(crashes: Crashes) -> None:
    """An answer that was shown before it was stored is shown a second time, unmarked."""
    await crashes.write("a")
    pid = crashes.start(mutant="send before commit", kill=["before commit of commit", 1])
    assert await crashes.ended(pid) == KILLED
    await crashes.write("a")
    await crashes.live_until_answered()
    assert [found.partition(" 'm1")[0] for found in crashes.violations()] == [
        "chat a: shown twice or out of order:"
    ]


async def test_a_zombie_writes_nothing(crashes: Crashes) -> None:
    """A process that was stopped while another took over finds its token stale."""
    await wake_a_zombie(crashes)
    assert not (found := crashes.violations()), describe(found, crashes)


async def test_a_missing_fence_is_caught(crashes: Crashes) -> None:
    """Without it the zombie repeats the side effect and writes into the transcript."""
    await wake_a_zombie(crashes, zombie="no fence")
    assert "m1-note: the side effect happened 2 times" in crashes.violations()


async def test_a_zombie_claim_is_caught(crashes: Crashes) -> None:
    """A successor that goes on with the zombie's tokens does not keep it out."""
    await wake_a_zombie(crashes, successor="zombie claim")
    assert "m1-note: the side effect happened 2 times" in crashes.violations()


@pytest.mark.thorough
async def test_a_charge_for_every_death_is_caught(crashes: Crashes) -> None:
    """Turns that were only there when the process was killed are given up.

    Each life ends when all turns run: lives by the clock are too short for that on a slow machine.
    """
    crashes.configure(mode="followup", think_s=20.0, mutant="every death counts")
    for chat in CHATS:
        await crashes.write(chat)
    for _ in range(3):
        pid = crashes.start(kill=["model: asked", len(CHATS)])
        assert await crashes.ended(pid) == KILLED
    pid = crashes.start()
    await crashes.platform.wait_for(lambda: crashes.platform.noted("turn_buried") == len(CHATS))
    assert await crashes.stop(pid) == 0, crashes.log()
    assert given_up(crashes)[1] == len(CHATS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        ("tells again", "told as ['begin', 'begin', 'begin'"),
        ("never over", "never over"),
        ("over in silence", "told as ['begin']"),
    ],
)
async def test_a_wrong_alert_is_caught(
    crashes: Crashes, monkeypatch: pytest.MonkeyPatch, mutant: str, told: str
) -> None:
    """One that owners are told of in each process, that stays open, or that ends in silence."""
    monkeypatch.setattr(crash, "SETTLED_IN_S", 10.0)
    await refuse_for_three_lives(crashes, mutant=mutant)
    found = crashes.violations()
    assert any(each.startswith(f"alert adapter-stopped: {told}") for each in found), found


async def wake_a_zombie(
    crashes: Crashes, *, zombie: str | None = None, successor: str | None = None
) -> None:
    """Stop a process in mid-turn, let another one past the file lock, wake the first beside it."""
    platform = crashes.platform
    await crashes.write("a", "gate note look")
    stopped = crashes.start(pause=["model: asked", 1], mutant=zombie)
    await platform.wait_for(lambda: platform.noted("paused"))
    taking_over = crashes.start(locked=False, mutant=successor)
    await platform.wait_for(lambda: platform.gate.reached >= 1)
    os.kill(stopped, signal.SIGCONT)
    await platform.wait_for(lambda: platform.gate.reached >= 2)
    await platform.open_gate(stopped)
    if zombie or successor:
        await platform.wait_for(lambda: platform.gate.reached >= 3)
        await platform.open_gate(taking_over)
        await platform.wait_for(lambda: platform.gate.reached >= 4)
    else:
        assert await crashes.stop(stopped) == 0
        assert "lease_lost" in crashes.log()
    await platform.open_gate()
    await platform.wait_for(crashes.all_answered)
    assert await crashes.stop(taking_over) == 0, crashes.log()
    if zombie or successor:
        assert await crashes.stop(stopped) == 0, crashes.log()
