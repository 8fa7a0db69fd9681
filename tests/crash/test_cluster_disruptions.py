"""Each kind of disruption by itself: what it must not cost, and that the cluster goes on."""

import asyncio
import os
from pathlib import Path

import pytest

from gateway.storage.queue.leases import LEASE_S
from tests.crash.conftest import in_cluster, migrated
from tests.crash.points import COMMON, OUTSIDE, around
from tests.support.confined import TAKES_ROOT
from tests.support.crash import Nursery, describe, until
from tests.support.crash_cluster import Cluster
from tests.support.postgres import HONEST, SMALL_DISK, End, postgres_server
from tests.support.thorough import deep, thorough

pytestmark = pytest.mark.timeout(300)

CHATS = "abcdef"
EVERYTHING = "note put look parts"
OF_A_TURN = (
    "admit_all",
    "record_message",
    "start_tool",
    "record_result",
    "commit",
    "mark_sending",
    "mark_sent",
)
"""What writes more than once, or may, until a message is answered; `begin` is the other."""
OF_A_LIFE = ("attend", "prune_raw", "claim", "begin", "store_output", *OF_A_TURN)
SHORT_LEASE_S = 5.0
"""A busy machine keeps a process waiting for two seconds and more."""
DISK_MB = 90
MINUTE_S = 6.0
"""Of the alerts."""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["immediate", *deep("fast")])
async def test_a_restart_of_the_database_costs_no_attempt(cluster: Cluster, how: End) -> None:
    """No process has died: nobody is suspected, and the turns that were cut off go on."""
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    for _ in range(3):
        await cluster.restart_database(how, away_s=0.5)
    await cluster.platform.open_gate()
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)
    assert {deaths for (deaths,) in cluster.rows("SELECT deaths FROM turn")} == {0}


@pytest.mark.thorough
async def test_a_database_that_is_away_for_longer_than_a_lease(cluster: Cluster) -> None:
    """All replicas lose what they were; each goes on as another one, and no turn is blamed.

    All of them have seen it, and owners are told once.
    """
    cluster.configure(lease_s=SHORT_LEASE_S, minute_s=MINUTE_S)
    cluster.expect("database-down")
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    await cluster.restart_database("immediate", away_s=2.5 * SHORT_LEASE_S)
    await cluster.platform.open_gate()
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await cluster.settle(len(cluster.replicas))
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)
    assert {deaths for (deaths,) in cluster.rows("SELECT deaths FROM turn")} == {0}


@pytest.mark.thorough
async def test_a_refused_token_is_told_of_once(cluster: Cluster) -> None:
    """One replica after another is refused, and killed; then those that come after them work."""
    cluster.configure(minute_s=MINUTE_S)
    cluster.expect("adapter-stopped")
    await cluster.platform.refuse()
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat)
    await until(cluster.raised)
    for each in cluster.replicas:
        await cluster.looked(len(cluster.replicas))
        await cluster.kill_off(each)
        cluster.run(each)
    await cluster.platform.refuse(refuses=False)
    for each in cluster.replicas:
        await cluster.kill_off(each)
    await cluster.live_on()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
async def test_replicas_end_when_asked_while_there_is_no_database(cluster: Cluster) -> None:
    """What they cannot give back is taken from them later."""
    cluster.configure(grace_s=2.0)
    await cluster.run_all()
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    await asyncio.to_thread(cluster.server.stop, "fast")
    await cluster.stop_all()
    await cluster.platform.open_gate()
    await cluster.live_on()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
async def test_a_replica_that_freezes_while_it_reaps_holds_up_no_chat(cluster: Cluster) -> None:
    """It has locked all that the dead one had, and its own lease is not over yet."""
    cluster.configure(think_s=0.3)
    dead, reaper, other = cluster.replicas
    cluster.run(dead)
    await cluster.platform.wait_for(lambda: cluster.platform.noted("ready") >= 1, 90.0)
    for chat in CHATS:
        await cluster.write(chat, "gate note")
    await cluster.platform.wait_for(lambda: cluster.platform.gate.reached >= len(CHATS), 90.0)
    cluster.run(reaper, pause=["before commit of reap", 1])
    await cluster.platform.wait_for(lambda: cluster.platform.noted("ready") >= 2, 90.0)
    await cluster.kill_off(dead)
    await cluster.platform.wait_for(lambda: cluster.platform.noted("paused"), 90.0)
    cluster.disturb_now(reaper)
    await cluster.platform.open_gate()
    cluster.run(other)
    await cluster.platform.wait_for(lambda: cluster.platform.noted("ready") >= 3, 90.0)
    await cluster.platform.wait_for(cluster.all_answered, LEASE_S)
    cluster.disturb_now(reaper)
    await cluster.live_on()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.parametrize(
    "point",
    [thorough("after commit of mark_sending"), *deep(*around(*OF_A_LIFE), *OUTSIDE)],
)
async def test_a_kill_at_any_point_loses_and_repeats_nothing(cluster: Cluster, point: str) -> None:
    """Whatever one was about to do, others end it."""
    cluster.configure(mode="followup", lease_s=SHORT_LEASE_S)
    for chat in "ab":
        for verbs in ("", "note look put long", "parts"):
            await cluster.write(chat, verbs)
    one = cluster.replicas[0]
    cluster.run(one, kill=[point, 1])
    assert await cluster.buried(one)
    await cluster.live_on()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["answer", *deep("request")])
async def test_a_lost_commit_loses_and_repeats_nothing(cluster: Cluster, loss: str) -> None:
    """Of each transaction function the first COMMIT, the third and the sixth are lost."""
    losses = [
        [f"before commit of {function}", times, loss] for function in COMMON for times in (1, 3, 6)
    ]
    cluster.configure(mode="followup", batch=1)
    one = cluster.replicas[0]
    cluster.run(one, losses=losses)
    for _ in range(4):
        for chat in CHATS:
            await cluster.write(chat, EVERYTHING)
    await cluster.platform.wait_for(cluster.all_answered, 90.0)
    await cluster.stop_all()
    print(f"{one.proxy.lost} COMMITs lost")
    assert one.proxy.lost > len(COMMON)
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
@pytest.mark.parametrize("function", ["begin", *deep(*OF_A_TURN)])
async def test_commits_lost_in_a_row_give_up_nothing(cluster: Cluster, function: str) -> None:
    """More of them than attempts at a turn may fail: the database is to blame each time."""
    lost = [[f"before commit of {function}", times, "answer"] for times in range(1, 5)]
    one = cluster.replicas[0]
    cluster.run(one, losses=lost)
    await cluster.write("a", EVERYTHING)
    await cluster.platform.wait_for(cluster.all_answered, 90.0)
    await cluster.stop_all()
    print(f"{one.proxy.lost} COMMITs lost")
    assert one.proxy.lost
    assert not (found := cluster.violations()), describe(found, cluster)
    assert cluster.rows("SELECT attempt, outcome FROM turn") == [(1, "final_text")]


async def test_replicas_whose_connections_are_cut_go_on(cluster: Cluster) -> None:
    """All connections of all of them, several times while turns are under way."""
    cluster.configure(think_s=0.2)
    await cluster.run_all()
    for _ in range(5):
        for chat in CHATS:
            await cluster.write(chat, "note look")
        await asyncio.sleep(0.15)
        cluster.disturb_now(*cluster.replicas)
        for each in cluster.replicas:
            each.proxy.cut()
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
async def test_a_silent_way_to_the_database_is_given_up(cluster: Cluster) -> None:
    """The other end of its connections says nothing any more, and is not gone for the kernel.

    The chats go to the others, and the replica makes new connections in the end.
    """
    cluster.configure(think_s=0.2, lease_s=SHORT_LEASE_S)
    await cluster.run_all()
    silent = cluster.replicas[0]
    for chat in CHATS:
        await cluster.write(chat, "note look")
    await asyncio.sleep(0.1)
    before = silent.proxy.opened
    cluster.disturb_now(silent)
    silent.proxy.silence()
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await until(lambda: silent.proxy.opened > before, 90.0)
    for other in cluster.replicas[1:]:
        await cluster.kill_off(other)
    for chat in CHATS:
        await cluster.write(chat)
    await cluster.platform.wait_for(cluster.all_answered, 120.0)
    await cluster.stop_all()
    assert not (found := cluster.violations()), describe(found, cluster)


@pytest.mark.thorough
@TAKES_ROOT
@pytest.mark.parametrize("ended", ["while full", *deep("not at all")])
async def test_a_full_disk_of_the_database_loses_nothing(
    nursery: Nursery, tmp_path: Path, ended: str
) -> None:
    """What is acknowledged is there; what cannot be stored comes again when there is room.

    PostgreSQL refuses a statement that needs room, and ends where its log needs some: whoever looks
    after it starts it again.
    """
    with postgres_server(HONEST | SMALL_DISK, DISK_MB) as server:
        async with in_cluster(nursery, tmp_path, server, migrated(server)) as cluster:
            cluster.configure(batch=1)
            await cluster.run_all()
            ballast = server.data / "ballast"
            fill(ballast, leaving=0)
            cluster.disturb_now(*cluster.replicas)
            for n in range(60):
                await cluster.write(CHATS[n % len(CHATS)], os.urandom(4000).hex())
            await until(lambda: "No space left on device" in server.log())
            if ended == "while full" and server.runs:
                await asyncio.to_thread(server.stop, "immediate")
            ballast.unlink()
            await cluster.live_on(90.0)
            assert not (found := cluster.violations()), describe(found, cluster)
    assert cluster.all_answered()


def fill(ballast: Path, *, leaving: int) -> None:
    """Take all room of a disk but so many bytes."""
    disk = os.statvfs(ballast.parent)
    with ballast.open("ab") as file:
        os.posix_fallocate(file.fileno(), file.tell(), disk.f_bavail * disk.f_frsize - leaving)


@pytest.mark.thorough
async def test_two_processes_that_ask_for_updates_do_no_harm(cluster: Cluster) -> None:
    """They are forced to: the platform ends one's request after the other, as Telegram does."""
    cluster.configure(mutant="two pollers", batch=2)
    await cluster.run_all()
    for n in range(30):
        await cluster.write(CHATS[n % len(CHATS)], "note")
        await asyncio.sleep(0.02)
    await cluster.platform.wait_for(cluster.all_answered, 90.0)
    await cluster.stop_all()
    assert cluster.platform.conflicts
    found = [each for each in cluster.violations() if "asked for updates" not in each]
    assert not found, describe(found, cluster)
