"""Kill the gateway at every named point between two commits, restart it, ask the oracle."""

import ast
import os
import re
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.pipeline import notices
from gateway.pipeline.worker import TURNS_PER_LEASE
from tests.crash.points import COMMON, OUTSIDE, SHOWN, around
from tests.support.crash import KILLED, TRIED_SOON, Crashes, describe
from tests.support.crash_oracle import is_answer
from tests.support.crash_script import LONG, RESENT, SMALL_WINDOW
from tests.support.thorough import products, sampled, thorough

POINTS = [*around(*COMMON), *OUTSIDE]
Provoke = Callable[[Crashes, str], Awaitable[None]]
ROOT = Path(__file__).parents[2]

NOT_A_STEP = {
    "heartbeat",
    "ready_stuck",
    # A claim alone, where the one together with `begin` was rolled back.
    "take",
    "next_due",
    "action",
    "ACTIONS[action]",
    "decide",
    "age",
    "agree_on_code",
    "tell_approved",
    "owed",
    "at_start",
    "forget",
    "erase_some",
    "merge_some",
    "fn",
    "erase",
    "begin_anew",
    "take_out",
    "remove_file",
    "erase_part",
    "note_settings",
    "prune",
    # Who uses the page signs in, is seen, and signs out; the audit log is told.
    "append",
    "new_link",
    "take_link",
    "begin_as",
    "note_use",
    "end",
    "end_previews",
    # What replicas tell each other, and which pages are open where.
    "announce",
    "show",
    "watch",
    "unwatch",
    # Uploads that nobody goes on with.
    "abandon",
    # Vectors, and what is taken over of another agent; killed by tests of their own
    # (tests/gateway/agent_ports/test_search.py, tests/gateway/setup/test_hermes.py).
    "enter",
    "enter_vectors",
    "give_back",
    "take_note",
    # Parts of a summary, which spare money: tests/stories/test_small_summary_models.py.
    "put_part",
    "forget_parts",
    # What owners are told of, off the path: tests/gateway/findings, tests/stories/test_alerts.py;
    # `apply` also here.
    "apply",
    "test",
    "claim_post",
    "mark_posted",
    "put_off",
}
"""Commits outside of the path of a message: leases are renewed, stuck work is looked for, rows
are only read, an operator acts, a replay lets time pass, a code is made, somebody is told, words
are erased (`fn` is any step of gateway/backup/pruning.py), the audit log notes the settings."""
OF_BURIALS = {"bury_behind"}
"""Points of test_burials.py: what `bury_message` does, behind a notice that stays."""
OF_DELEGATES = {"open_child", "end_child", "cut_short", "pause_child"}
"""Points of tests/crash/test_delegates.py."""
OF_FILES = {"attempt", "store_part", "finish", "fail", "offer", "move"}
"""Points of tests/crash/test_files.py."""
OF_INQUIRIES = {"ask", "suspend", "expire", "drop"}
"""Points of tests/crash/test_waiting.py."""
OF_THE_NOTEBOOK = {"set_todo", "change"}
"""Points of tests/crash/test_notebook.py."""
OF_PREVIEWS = {"announce_preview", "set_preview"}
"""Points of platforms with previews."""
OF_THE_SEARCH = {"clear", "feed"}
"""Points of tests/crash/test_searchindex.py."""


async def converse(crashes: Crashes) -> None:
    """Let two people write what makes every kind of step happen."""
    for chat in ("a", "b"):
        await crashes.write(chat)
        await crashes.write(chat, "note look put long")
        await crashes.write(chat, "parts")


async def die_at(crashes: Crashes, point: str, **changes: object) -> None:
    """Live until the point; it must be reached."""
    assert await crashes.ended(crashes.start(kill=[point, 1], **changes)) == KILLED, crashes.log()


async def recover(crashes: Crashes) -> None:
    """Live on without disruption, then ask the oracle."""
    await crashes.live_until_answered()
    assert not (found := crashes.violations()), describe(found, crashes)


@pytest.mark.parametrize(("point", "mode"), products(POINTS, ["collect", "followup"]))
async def test_a_kill_at_any_point_loses_and_repeats_nothing(
    crashes: Crashes, point: str, mode: str
) -> None:
    """Whatever the gateway was about to do, the next process ends it."""
    crashes.configure(mode=mode)
    await converse(crashes)
    await die_at(crashes, point)
    await recover(crashes)


@pytest.mark.thorough
@pytest.mark.parametrize("point", sampled(POINTS, 5))
async def test_a_kill_during_recovery_loses_and_repeats_nothing(
    crashes: Crashes, point: str
) -> None:
    """The same for a process that is at work on what an earlier one left in mid-turn."""
    crashes.configure(mode="followup")
    await converse(crashes)
    await die_at(crashes, "before commit of record_result")
    await converse(crashes)
    await die_at(crashes, point)
    await recover(crashes)


@pytest.mark.parametrize(
    "point",
    [
        *around("announce_preview", "set_preview"),
        SHOWN,
        *OUTSIDE[-2:],
    ],
)
async def test_a_preview_becomes_the_answer_once(crashes: Crashes, point: str) -> None:
    """On a platform with edits an answer takes the place of its preview, and is never repeated."""
    crashes.configure(style="edit", mode="followup")
    await converse(crashes)
    await die_at(crashes, point)
    await recover(crashes)


@pytest.mark.thorough
@pytest.mark.parametrize("point", OUTSIDE[-2:])
async def test_a_platform_that_knows_nonces_shows_an_answer_once(
    crashes: Crashes, point: str
) -> None:
    """There the row is sent again as it is, and nothing has to be marked."""
    crashes.platform.show_once = True
    crashes.configure(style="once", mode="followup")
    await converse(crashes)
    await die_at(crashes, point)
    await recover(crashes)


async def a_delay(crashes: Crashes, point: str) -> None:
    """The platform asks to come again."""
    crashes.platform.faults["m1"].append("delay")
    await crashes.write("a")
    await crashes.write("a")
    await die_at(crashes, point)


async def a_doubt(crashes: Crashes, point: str) -> None:
    """The platform shows an answer and hangs up."""
    crashes.platform.faults["m1"].append("doubt")
    await crashes.write("a")
    await crashes.write("a")
    await die_at(crashes, point)


async def a_rejection(crashes: Crashes, point: str) -> None:
    """The platform will never take an answer."""
    crashes.platform.faults["m1"].append("reject")
    crashes.excuse(await crashes.write("a"))
    await crashes.write("a")
    await die_at(crashes, point)


async def a_trouble(crashes: Crashes, point: str) -> None:
    """The model cannot be reached for a while, and its user is told."""
    await crashes.write("a", "trouble")
    await die_at(crashes, point)


async def a_stop(crashes: Crashes, point: str) -> None:
    """A person stops a turn while the model thinks."""
    crashes.excuse(await crashes.write("a", "gate note"))
    pid = crashes.start(kill=[point, 1])
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    await crashes.platform.push("a", "/stop")
    assert await crashes.ended(pid) == KILLED, crashes.log()
    await crashes.write("a")


async def a_burial(crashes: Crashes, point: str) -> None:
    """A turn crashes its process whenever it is tried."""
    crashes.configure(**TRIED_SOON)
    crashes.excuse(await crashes.write("a", "die"))
    for _ in range(4):
        assert await crashes.ended(crashes.start()) == KILLED
    await die_at(crashes, point)
    await crashes.write("a")


async def a_false_start(crashes: Crashes, point: str) -> None:
    """A turn cannot even begin."""
    crashes.excuse(await crashes.write("a", "stuck"))
    await die_at(crashes, point)
    await crashes.write("a")


async def a_graceful_stop(crashes: Crashes, point: str) -> None:
    """The process is asked to end and does not wait for the model."""
    await crashes.write("a", "gate")
    pid = crashes.start(kill=[point, 1], grace_s=0)
    await crashes.platform.wait_for(lambda: crashes.platform.gate.reached)
    os.kill(pid, signal.SIGTERM)
    assert await crashes.ended(pid) == KILLED, crashes.log()
    await crashes.platform.open_gate()


async def a_long_queue(crashes: Crashes, point: str) -> None:
    """One chat has more turns than a worker takes before it lets others go first."""
    for _ in range(TURNS_PER_LEASE + 2):
        await crashes.write("a")
    await die_at(crashes, point)


async def outgrow(crashes: Crashes, turns: int) -> None:
    """Let a person write so much that the view of every fourth turn or so is compacted."""
    crashes.configure(mode="followup", window=SMALL_WINDOW)
    for _ in range(turns):
        await crashes.write("a", LONG)


async def a_compaction(crashes: Crashes, point: str) -> None:
    """A conversation outgrows half of the window; a summary is prepared before that."""
    await outgrow(crashes, 4)
    await die_at(crashes, point)
    await crashes.write("a")


async def a_compress(crashes: Crashes, point: str) -> None:
    """A person asks for a compaction: its summary is written while they wait."""
    await outgrow(crashes, 3)
    await crashes.live_until_answered()
    await crashes.platform.push("a", "/compress the chain")
    await die_at(crashes, point)
    await crashes.write("a")


RARE: dict[str, Provoke] = {
    "postpone": a_delay,
    "bury_message": a_rejection,
    "notify": a_trouble,
    "release": a_long_queue,
    "cancel": a_stop,
    "bury": a_burial,
    "give_up": a_false_start,
    "forgive_attempt": a_graceful_stop,
    "compact": a_compaction,
    "put_candidate": a_compaction,
    "book": a_compress,
}
SLOW = ("bury", "give_up", "book")
"""Of these: what takes five seconds and more."""
QUICK = tuple(name for name in RARE if name not in SLOW)


@pytest.mark.parametrize("point", [*around(*QUICK), *map(thorough, around(*SLOW))])
async def test_a_kill_in_rare_cases_loses_and_repeats_nothing(crashes: Crashes, point: str) -> None:
    """The same at the commits that only trouble brings about."""
    crashes.configure(mode="followup")
    await RARE[point.split()[-1]](crashes, point)
    await recover(crashes)


@pytest.mark.parametrize("point", around("postpone"))
async def test_a_kill_at_a_doubt_loses_and_repeats_nothing(crashes: Crashes, point: str) -> None:
    """Nobody knows whether a message was shown."""
    crashes.configure(mode="followup")
    await a_doubt(crashes, point)
    await recover(crashes)


@pytest.mark.parametrize(
    ("point", "time"), products([*around("compact"), "summary: asked"], [1, 2])
)
async def test_a_kill_at_a_compaction_loses_and_repeats_nothing(
    crashes: Crashes, point: str, time: int
) -> None:
    """The turn goes on with it or makes up for it; no turn is compacted twice."""
    await outgrow(crashes, 12)
    pid = crashes.start(kill=[point, time])
    assert await crashes.ended(pid) == KILLED, crashes.log()
    before = compactions(crashes)
    await recover(crashes)
    after = compactions(crashes)
    assert after[: len(before)] == before
    assert len({turn for turn, _ in after}) == len(after) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("point", [*around("compact"), "summary: asked"])
async def test_a_kill_during_compress_answers_it_once(crashes: Crashes, point: str) -> None:
    """`/compress` is resumed: one compaction, one answer, the next turn sees it."""
    await a_compress(crashes, point)
    await recover(crashes)
    assert [trigger for _, trigger in compactions(crashes)] == ["manual"]
    told = [text for text in crashes.platform.finals("a") if not is_answer(text)]
    assert len(told) == 1
    assert told[0].startswith("Condensed: ")


def compactions(crashes: Crashes) -> list[tuple[int, str]]:
    """Return turn and trigger of each compaction, oldest first."""
    query = (
        "SELECT (SELECT max(turn_id) FROM message WHERE session_id <= parent_session_id), trigger"
        " FROM compaction ORDER BY id"
    )
    with closing(sqlite3.connect(crashes.database)) as books:
        return [(turn, trigger) for turn, trigger in books.execute(query)]


@pytest.mark.thorough
@pytest.mark.parametrize("point", [*around("apply"), *OUTSIDE[-2:]])
async def test_a_kill_while_owners_are_told_tells_once(crashes: Crashes, point: str) -> None:
    """Of a full disk, and that there is room again; in mid-send it is marked as an answer is."""
    crashes.configure(disk_free_bytes=10**15)
    crashes.expect("disk-full")
    await die_at(crashes, point)
    await die_at(crashes, "after commit of mark_sent")
    crashes.configure(disk_free_bytes=0)
    with closing(sqlite3.connect(crashes.database)) as books, books:
        # Nobody has seen it for long: the first look ends it.
        books.execute("UPDATE alert SET seen_at = 1")
    await die_at(crashes, point)
    await crashes.write("a")
    await recover(crashes)


@pytest.mark.thorough
async def test_a_lost_receipt_is_marked(crashes: Crashes) -> None:
    """What the platform accepted without our knowing is shown again with a mark, only that."""
    await crashes.write("a", "parts")
    await die_at(crashes, "send: accepted, no receipt yet")
    await recover(crashes)
    marks = [text.startswith(RESENT) for text in crashes.platform.finals("a")]
    assert marks == [False, True, False]


@pytest.mark.thorough
async def test_a_side_effect_of_unknown_outcome_is_told_to_the_model(crashes: Crashes) -> None:
    """It happened once, and the answer shows that the model was told."""
    await crashes.write("a", "note")
    await die_at(crashes, "note: after its effect")
    await recover(crashes)
    assert crashes.platform.finals("a")[0].endswith("unknown:m1-note")
    assert len(crashes.events("effect ends")) == 1


@pytest.mark.thorough
async def test_a_committed_answer_needs_no_model_any_more(crashes: Crashes) -> None:
    """A process that dies right behind the commit has its answer delivered by the next one."""
    await crashes.write("a")
    await die_at(crashes, "after commit of commit")
    await recover(crashes)
    assert len(crashes.events("model")) == 1


@pytest.mark.thorough
async def test_a_stopped_turn_is_not_run_again(crashes: Crashes) -> None:
    """The person said /stop; the process dies before the turn has ended; nobody asks the model."""
    await a_stop(crashes, "before commit of cancel")
    await crashes.live_until_answered()
    assert [event["text"] for event in crashes.events("model")] == ["m1 gate note", "m2"]


@pytest.mark.thorough
async def test_a_dead_letter_tells_its_chat(crashes: Crashes) -> None:
    """The notice is shown once, also when the process dies right behind the burial."""
    await a_burial(crashes, "after commit of bury")
    await crashes.live_until_answered()
    assert crashes.platform.finals("a").count(notices.GAVE_UP) == 1


@pytest.mark.thorough
def test_every_transaction_function_is_a_named_point() -> None:
    """A commit that is added to the gateway must be added here."""
    written = {
        ast.unparse(call.args[0]).rpartition(".")[2].lstrip("_")
        for path in (ROOT / "gateway").rglob("*.py")
        for awaited in ast.walk(ast.parse(path.read_text()))
        if isinstance(awaited, ast.Await) and isinstance(call := awaited.value, ast.Call)
        if re.search(r"(^|database\.|opened\.)write$|self\._step$", ast.unparse(call.func))
    }
    elsewhere = {*OF_FILES, *OF_INQUIRIES, *OF_THE_NOTEBOOK, *OF_DELEGATES, *OF_THE_SEARCH}
    assert written - NOT_A_STEP == {*COMMON, *RARE, *elsewhere, *OF_PREVIEWS, *OF_BURIALS}
