"""Any life of conversations keeps the books in order (invariants 1, 3, 6, 9 and the lineage)."""

import hashlib
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import update
from typing_extensions import override

from agent.messages import (
    ChatMessage,
    Usage,
    assistant_message,
    decode,
    open_calls,
    tool_message,
    user_message,
)
from agent.view.view import Entry as Message
from agent.view.view import Summary, ViewPlan
from gateway.errors import LeaseLost
from gateway.storage.conversation import sessions, transcript, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.queue import dead_letters, inbox, leases, overheard, sending
from gateway.storage.queue.leases import Lease
from gateway.storage.schema import conversation, message, metadata, session, turn
from gateway.storage.schema import inbox as inbox_table
from gateway.storage.schema import outbox as outbox_table
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    BASE,
    RECEIPT,
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    copy_database,
    find_running,
    inbound,
    model_call,
    parts,
    seqs,
)
from tests.support.thorough import run_machine

USAGE = Usage(10, 5)
FINAL = {"done", "cancelled", "refused", "dead"}


class LifeMachine(RuleBasedStateMachine):
    """One conversation at work, another beside it, and a process that may crash at any time."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(copy_database(self.template, Path(self.folder.name) / "parley.db"))
        self.store.without_sync()
        self.chat, _ = self.store.run(admit, inbound("first"))
        self.store.run(admit, inbound("beside", chat="other"))
        self.lease: Lease | None = None
        self.turn: Turn | None = None
        self.kept: dict[tuple[int, int], str] = {}

    @override
    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def held(self) -> Lease:
        if self.lease is None:
            replica = self.store.run(leases.register, "next")
            self.store.run(leases.reap_others, replica)
            self.store.run(admit, inbound("wake up"))
            self.lease = self.store.run(claim_one, self.chat, replica)
        return self.lease

    def current(self) -> Turn:
        """Return the running turn, resumed or begun where there is none in hand."""
        if self.turn is None:
            lease = self.held()
            self.turn = self.store.run(find_running, lease, BASE)
        if self.turn is None:
            self.store.run(admit, inbound("go on"))
            self.turn = self.store.run(begin_turn, self.held())
        return self.turn

    def group(self) -> list[ChatMessage]:
        return self.store.run(transcript.of_turn, self.chat, self.current().id)

    def close(self) -> None:
        self.turn = None

    @rule(text=st.sampled_from(["hello", "what?"]), edit=st.booleans())
    def receive(self, text: str, edit: bool) -> None:
        ref = f"ref-{text}"
        if edit:
            change = inbound(f"{text}!", message_ref=ref, kind="edit")
            self.store.run(inbox.append, self.chat, change, kind="edit", state="done")
            self.store.run(overheard.revise, self.chat, change)
        else:
            self.store.run(admit, inbound(text, message_ref=ref))

    @rule()
    def crash(self) -> None:
        self.lease = None
        self.turn = None

    @rule(calls=st.integers(1, 3))
    def step(self, calls: int) -> None:
        if open_calls(self.group()):
            return
        made = [tool_call("look", {}, f"c{n}") for n in range(calls)]
        asked = ChatMessage(role="assistant", content=None, tool_calls=made)
        self.store.run(turn_journal.record_message, self.current(), asked, model_call(USAGE))

    @rule(newest=st.booleans())
    def run_tool(self, newest: bool) -> None:
        waiting = open_calls(self.group())
        if waiting:
            call = waiting[-1 if newest else 0]
            result = tool_message(call["id"], "look", "seen")
            self.store.run(turn_journal.start_tool, self.current(), call, "side_effect")
            self.store.run(turn_journal.record_result, self.current(), result, "ok")

    @rule(twice=st.booleans())
    def answer(self, twice: bool) -> None:
        if open_calls(self.group()):
            return
        current, end = self.current(), TurnEnd("final_text", model_call(USAGE))
        final = [assistant_message("answer")]
        for _ in range(1 + twice):
            self.store.run(turn_journal.commit, current, final, parts(current), end)
        self.close()

    @rule(late=st.booleans())
    def compact(self, late: bool) -> None:
        """Summarise what stands before the turn; a second attempt is one too late."""
        current = self.current()
        asked, plan = current.entries[0].seq, current.session.plan
        earlier = (Summary("earlier", 1, asked - 1),) if asked > 1 else ()
        self.turn = self.try_to_compact(replace(plan, summaries=earlier, tail_from=asked))
        if late and self.turn is not None:
            self.turn = current
            assert self.try_to_compact(plan) is None
            self.turn = None

    def try_to_compact(self, plan: ViewPlan) -> Turn | None:
        """Return the turn as it goes on; None where its session is not the active one."""
        current, before = self.current(), self.books()
        active = self.store.run(sessions.active, self.chat)
        try:
            return self.store.run(compact, current, plan)
        except LeaseLost:
            assert active.id != current.session.id
            assert self.books() == before
            return None

    def books(self) -> list[object]:
        return [self.store.rows(table) for table in metadata.sorted_tables]

    @rule(partial=st.sampled_from(["", "half an ans"]))
    def cancel(self, partial: str) -> None:
        current = self.current()
        shown = parts(current, "stopped", "stopped") if partial else []
        self.store.run(turn_journal.notify, current, parts(current, "wait", "trouble"))
        self.store.run(turn_journal.cancel, current, partial, shown, TurnEnd("interrupted"))
        self.close()

    @rule()
    def bury(self) -> None:
        current = self.current()
        gone = parts(current, "gave up", "buried")
        self.store.run(turn_journal.bury, current, gone, TurnEnd("gave_up", error="crashed"))
        self.close()

    @precondition(lambda self: self.turn is None)
    @rule()
    def hide(self) -> None:
        self.held()
        if self.store.run(find_running, self.held(), BASE) is None:
            self.store.run(turns.hide_newest, self.chat)

    @precondition(lambda self: self.turn is None)
    @rule()
    def new(self) -> None:
        if self.store.rows(turn, state="running"):
            return
        self.store.run(begin_anew, self.chat)

    @rule(retry=st.booleans())
    def tend_dead_letter(self, retry: bool) -> None:
        letters = self.store.run(dead_letters.find_all)
        if letters:
            act = dead_letters.retry if retry else dead_letters.drop
            self.store.run(act, letters[0].id)

    @rule(dead=st.booleans())
    def deliver(self, dead: bool) -> None:
        due = self.store.run(sending.next_due, self.chat)
        if due is not None and dead:
            self.store.run(sending.mark_dead, due, "blocked")
        elif due is not None:
            self.store.run(sending.mark_sent, due.message, RECEIPT)

    @precondition(lambda self: self.turn is None and self.lease is not None)
    @rule()
    def release(self) -> None:
        self.store.run(leases.release, self.held())
        self.lease = None

    @rule()
    def prune(self) -> None:
        self.store.run(lambda conn: conn.execute(update(inbox_table).values(at=0)))
        self.store.run(inbox.prune_raw, 1)

    @invariant()
    def messages_are_never_changed(self) -> None:
        """Every row that was ever there is there, byte for byte."""
        rows = self.store.rows(message)
        now = {
            (row.conversation, row.seq): hashlib.sha256(repr(row).encode()).hexdigest()
            for row in rows
        }
        assert now.items() >= self.kept.items()
        self.kept = now

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        """In inbox, outbox and transcript of every conversation."""
        for row in self.store.rows(conversation):
            for table, head in (
                (inbox_table, row.inbox_head),
                (outbox_table, row.outbox_head),
                (message, row.message_head),
            ):
                found = seqs(self.store.rows(table, conversation=row.id))
                assert found == list(range(1, head + 1)), table.name

    @invariant()
    def the_lineage_has_one_tip(self) -> None:
        """One segment without an end, the active one; no parent has two children."""
        for row in self.store.rows(conversation):
            segments = self.store.rows(session, conversation=row.id)
            live = [segment.id for segment in segments if segment.ended_at is None]
            assert live == [row.active_session_id]
            parents = Counter(s.parent_session_id for s in segments if s.parent_session_id)
            assert all(count == 1 for count in parents.values())
            numbers = {segment.id: segment.number for segment in segments}
            for segment in segments:
                assert segment.number == numbers.get(segment.parent_session_id, 0) + 1

    @invariant()
    def turns_and_entries_agree(self) -> None:
        """At most one turn runs; exactly its entries are taken; nothing is in no state."""
        running = self.store.rows(turn, conversation=self.chat, state="running")
        assert len(running) <= 1
        for entry in self.store.rows(inbox_table, conversation=self.chat):
            if entry.state == "taken":
                assert entry.turn_id == running[0].id
            else:
                assert entry.state in FINAL | {"queued"}

    @invariant()
    def no_finished_turn_has_half_a_group(self) -> None:
        """Calls of a turn that ended all have a result, each one."""
        for row in self.store.rows(turn):
            if row.state != "running":
                own = self.store.run(transcript.of_turn, row.conversation, row.id)
                made = [call["id"] for asked in own for call in asked.get("tool_calls", [])]
                results = [it["tool_call_id"] for it in own if it["role"] == "tool"]
                assert Counter(made) == Counter(results)

    @invariant()
    def the_view_holds_whole_turns(self) -> None:
        """Every turn is in view as a whole or not at all."""
        plan = self.store.run(sessions.active, self.chat).plan
        shown: dict[int, set[bool]] = {}
        for row in self.store.rows(message, conversation=self.chat):
            shown.setdefault(row.turn_id, set()).add(plan.shows(row.seq))
        assert all(len(answers) == 1 for answers in shown.values())
        entries = transcript.decoded(self.store.run(transcript.load_rows, self.chat, plan))
        rows = self.store.rows(message, conversation=self.chat)
        stored = [Message(row.seq, decode(row.body)) for row in rows]
        assert entries == [entry for entry in stored if plan.shows(entry.seq)]

    @invariant()
    def nothing_accepted_is_lost(self) -> None:
        """Each entry that a turn took stands in that turn's user message."""
        for row in self.store.rows(turn, conversation=self.chat):
            if row.state == "dropped":
                continue
            own = self.store.run(transcript.of_turn, self.chat, row.id)
            entries = self.store.run(inbox.of_turn, self.chat, row.id)
            assert own[0] == user_message("\n".join(entry.text for entry in entries))


@pytest.mark.untraced
def test_any_life_keeps_the_books_in_order(database_template: Path) -> None:
    """Messages, edits, steps, crashes, ends of every kind, retries, `/new`, in any order."""
    LifeMachine.template = database_template
    run_machine(LifeMachine, examples=15)
