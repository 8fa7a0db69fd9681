"""The audit log: a chain in which every change shows, and whose texts can be erased."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Update, delete, insert, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from agent.messages import tool_message
from agent.ports import DecidedVerdict, Decision
from agent.tools.context import Inquiry
from gateway.access import pairing
from gateway.errors import LeaseLost
from gateway.storage import audit_log, maintenance
from gateway.storage.audit_log import (
    BEGINNING,
    AuditEntry,
    AuditFault,
    AuditHead,
    AuditRecord,
    digest_of,
    fault,
    hash_of,
)
from gateway.storage.conversation import questions, turn_journal
from gateway.storage.people import members
from gateway.storage.schema import audit_head, inquiry
from gateway.storage.schema import audit_log as audit_table
from tests.support.scripted_model import tool_call
from tests.support.storage import Store, admit, inbound, raw_bytes, turn_of

OWNER = "telegram:7"


def chain(count: int) -> list[AuditRecord]:
    """Return a sound chain."""
    rows, prev = [], BEGINNING
    for seq in range(1, count + 1):
        said = f'["{OWNER}","","row {seq}",{{}}]'
        digest = digest_of(f"salt {seq}", said)
        row = AuditRecord(
            seq, seq / 3, "denied", seq % 3, "", said, f"salt {seq}", digest, prev, ""
        )
        rows.append(replace(row, hash=hash_of(row)))
        prev = rows[-1].hash
    return rows


def head_of(rows: Sequence[AuditRecord]) -> AuditHead:
    """Return the head of a chain."""
    return AuditHead(rows[-1].seq, rows[-1].hash)


def wrong(store: Store) -> AuditFault | None:
    """Return what is wrong with the log of a database."""
    return store.run(lambda conn: fault(audit_log.records(conn), audit_log.head(conn)))


def on_record(store: Store) -> list[AuditRecord]:
    """Return the rows of the log."""
    return store.run(lambda conn: list(audit_log.records(conn)))


def told(store: Store) -> list[tuple[str, str, str]]:
    """Return kind, author and subject of each row."""
    return [
        (row.kind, row.text().get("by", "-"), row.text().get("subject", "-"))
        for row in on_record(store)
    ]


@given(st.integers(1, 12))
def test_a_chain_that_nobody_touched_holds(count: int) -> None:
    """Whatever its length; the empty one ends where chains begin."""
    rows = chain(count)
    assert fault(rows, head_of(rows)) is None
    assert fault([], AuditHead(0, BEGINNING)) is None


@given(st.data())
def test_a_changed_row_is_named(data: st.DataObject) -> None:
    """Whichever of its fields: by its seq, or where a moved seq leaves a gap or does not belong."""
    rows = chain(data.draw(st.integers(1, 9)))
    at = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(["at", "kind", "conversation", "emptied", "said", "salt"]))
    forged = {"at": 0.5, "conversation": 9, "emptied": "[[1,1]]"}.get(name, "forged")
    end = head_of(rows)
    rows[at] = replace(rows[at], **{name: forged})
    found = fault(rows, end)
    assert found is not None
    assert found.seq == at + 1


@given(st.data())
def test_a_changed_row_with_a_new_hash_is_named(data: st.DataObject) -> None:
    """By the row behind it, which does not follow any more; the last one by the head."""
    rows = chain(data.draw(st.integers(1, 9)))
    at = data.draw(st.integers(0, len(rows) - 1))
    end = head_of(rows)
    row = replace(rows[at], kind="approved")
    rows[at] = replace(row, hash=hash_of(row))
    found = fault(rows, end)
    assert found is not None
    assert found.seq == min(at + 2, len(rows))


@given(st.data())
def test_a_removed_row_is_named(data: st.DataObject) -> None:
    """And how far the gap reaches, also at the end."""
    rows = chain(data.draw(st.integers(1, 9)))
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    end = head_of(rows)
    del rows[first : last + 1]
    found = fault(rows, end)
    upto = "" if first == last else f", and so are all up to {last + 1}"
    assert found == AuditFault(first + 1, f"is missing{upto}")


@given(st.data())
def test_swapped_rows_are_named(data: st.DataObject) -> None:
    """The first of the two."""
    rows = chain(data.draw(st.integers(2, 9)))
    one = data.draw(st.integers(0, len(rows) - 2))
    other = data.draw(st.integers(one + 1, len(rows) - 1))
    end, first = head_of(rows), rows[one]
    rows[one] = replace(rows[other], seq=first.seq)
    rows[other] = replace(first, seq=other + 1)
    found = fault(rows, end)
    assert found is not None
    assert found.seq == one + 1


@given(st.data())
def test_an_inserted_row_is_named(data: st.DataObject) -> None:
    """One whose own hash is right, the rows behind it moved; or the one that does not follow it."""
    rows = chain(data.draw(st.integers(1, 9)))
    at = data.draw(st.integers(0, len(rows)))
    end = head_of(rows)
    prev = rows[at - 1].hash if at else BEGINNING
    forged = replace(rows[0], seq=at + 1, prev=prev, kind="approved")
    forged = replace(forged, hash=hash_of(forged))
    behind = [replace(row, seq=row.seq + 1) for row in rows[at:]]
    found = fault([*rows[:at], forged, *behind], end)
    assert found is not None
    assert found.seq in {at + 1, at + 2, len(rows)}


@given(st.data())
def test_an_emptied_row_is_named_unless_a_later_one_says_so(data: st.DataObject) -> None:
    """Its digest alone does not tell whether somebody may have emptied it."""
    rows = chain(data.draw(st.integers(1, 9)))
    at = data.draw(st.integers(0, len(rows) - 1))
    rows[at] = replace(rows[at], said=None, salt=None)
    assert fault(rows, head_of(rows)) == AuditFault(at + 1, "was emptied, and no later row says so")
    note = replace(chain(10)[9], seq=len(rows) + 1, prev=rows[-1].hash, emptied=f"[[1,{at + 1}]]")
    rows.append(replace(note, hash=hash_of(note)))
    assert fault(rows, head_of(rows)) is None


def test_a_chain_that_was_made_anew_lacks_a_head_that_was_noted() -> None:
    """Who can write the whole file can forge a whole chain, but no head that others keep."""
    rows, known = chain(6), head_of(chain(4))
    assert fault(rows, head_of(rows), known) is None
    forged = [replace(row, kind="approved") for row in chain(6)]
    prev = BEGINNING
    for n, row in enumerate(forged):
        forged[n] = replace(row, prev=prev)
        forged[n] = replace(forged[n], hash=hash_of(forged[n]))
        prev = forged[n].hash
    assert fault(forged, head_of(forged)) is None
    found = fault(forged, head_of(forged), known)
    assert found == AuditFault(4, "is not the one that was noted before")
    short = forged[:3]
    assert fault(short, head_of(short), known) == AuditFault(4, "is missing")


def test_a_head_that_is_gone_is_no_sound_chain() -> None:
    """Nothing would show what was cut off."""
    found = fault(chain(2), None)
    assert found is not None
    assert "no head" in found.wrong


def test_rows_of_the_database_are_a_chain(store: Store) -> None:
    """Through the real table, with all fields."""
    detail = {"b": [1, "ä"], "a": None}
    first = store.run(audit_log.append, AuditEntry("denied", OWNER, "::1", "act", detail, 3))
    store.run(audit_log.append, AuditEntry("expired"))
    assert wrong(store) is None
    row, other = on_record(store)
    assert row.text() == {"by": OWNER, "address": "::1", "subject": "act", "detail": detail}
    assert (row.seq, row.hash, row.conversation) == (1, first.hash, 3)
    assert other.prev == first.hash
    for values in ({"kind": "approved"}, {"said": "[]"}, {"prev": BEGINNING + "0"}):
        changed = update(audit_table).where(audit_table.c.seq == 1).values(values)
        found = store.undone(_fault_after, changed)
        assert found is not None
        assert found.seq == 1


def _fault_after(conn: Connection, change: Update) -> AuditFault | None:
    conn.execute(change)
    return fault(audit_log.records(conn), audit_log.head(conn))


def test_rows_that_are_cut_off_show(store: Store) -> None:
    """The head stays; so does that of a row behind the end."""
    for _ in range(3):
        store.run(audit_log.append, AuditEntry("expired"))
    store.run(lambda conn: conn.execute(delete(audit_table).where(audit_table.c.seq > 1)))
    assert wrong(store) == AuditFault(2, "is missing, and so are all up to 3")
    store.run(lambda conn: conn.execute(delete(audit_head)))
    assert wrong(store) == AuditFault(1, "is where the chain ends, but no head says so")


def test_the_chain_has_no_forks(store: Store) -> None:
    """Two rows that follow the same one are refused; writers of another database wait in line."""
    store.run(audit_log.append, AuditEntry("expired"))
    (row,) = store.rows(audit_table)
    fork = insert(audit_table).values(row._asdict() | {"seq": 2})
    with pytest.raises(IntegrityError):
        store.run(lambda conn: conn.execute(fork))
    sql = str(audit_log.head_of_writer().compile(dialect=postgresql.dialect()))
    assert sql.endswith("FOR UPDATE")


def test_what_is_rolled_back_is_not_on_record(store: Store) -> None:
    """The row belongs to its caller's transaction."""
    store.undone(audit_log.append, AuditEntry("expired"))
    assert on_record(store) == []
    assert wrong(store) is None


def test_a_row_costs_three_statements(store: Store) -> None:
    """The head is read and held, the row is written, the head is moved."""
    statements = store.statements(audit_log.append, AuditEntry("expired"))
    assert [each.split()[0] for each in statements] == ["SELECT", "INSERT", "UPDATE"]


def test_a_decision_is_on_record_with_what_it_was_about(store: Store) -> None:
    """Once, by whoever gave it; a second answer decides nothing. No word of the question is."""
    current = store.run(turn_of, "act")
    at = (current.lease.conversation, current.id)
    asked = [
        store.run(questions.enter, *at, f"c{n}", Inquiry("approval", f"c{n}", "act", "rm it?"), 60)
        for n in range(3)
    ]
    for found, answer in zip(asked, ("once", "deny", ""), strict=True):
        if answer:
            assert store.run(questions.answer, found.id, answer, OWNER)
            assert not store.run(questions.answer, found.id, "once", "telegram:8")
    store.run(lambda conn: conn.execute(update(inquiry).values(expires_at=0.0)))
    due = store.run(questions.find, asked[2].id)
    assert due is not None
    assert store.run(questions.expire, due)
    assert told(store) == [
        ("approved", OWNER, "act"),
        ("denied", OWNER, "act"),
        ("expired", "", "act"),
    ]
    detail = on_record(store)[0].text()["detail"]
    assert (detail["call"], detail["scope"], detail["standing"]) == ("c0", "once", False)
    assert b"rm it" not in b"".join((row.said or "").encode() for row in on_record(store))


def test_what_stays_approved_is_on_record_at_each_use(store: Store) -> None:
    """With who approved it; an answer to a question of the agent decides nothing."""
    current = store.run(turn_of, "act")
    at = (current.lease.conversation, current.id)
    asked = Inquiry("clarify", "c1", "clarify", "which?")
    question = store.run(questions.enter, *at, "c1", asked, 60)
    assert store.run(questions.answer, question.id, "blue", OWNER)
    approval = Inquiry("approval", "c2", "act", "may I?")
    store.run(questions.enter_approved, *at, "c2", approval, OWNER)
    assert told(store) == [("approved", OWNER, "act")]
    assert on_record(store)[0].text()["detail"]["standing"] is True


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [("allow", "tool_allowed"), ("deny", "tool_refused"), ("veto", "tool_vetoed")],
)
def test_what_was_decided_about_a_call_is_on_record(
    store: Store, verdict: DecidedVerdict, kind: str
) -> None:
    """With whose turn it was and on what grounds, in the transaction that notes the intent."""
    current = store.run(turn_of, "act")
    decided = Decision(verdict, "default.talk", "digest", ("guest", "owner"), tainted=True)
    call = tool_call("act", {"secret": "word"}, "c1")
    store.run(turn_journal.start_tool, current, call, "side_effect", decided)
    store.run(turn_journal.record_result, current, tool_message("c1", "act", "no"), "ok")
    assert told(store) == [(kind, current.sender, "act")]
    [row] = on_record(store)
    assert row.text()["detail"] == {
        "turn": current.id,
        "call": "c1",
        "verdict": verdict,
        "rule": "default.talk",
        "arguments_sha256": "digest",
        "roles": ["guest", "owner"],
        "tainted": True,
    }
    assert wrong(store) is None


def test_an_intent_that_is_not_noted_puts_nothing_on_record(store: Store) -> None:
    """Of a worker that has lost the conversation."""
    current = store.run(turn_of, "act")
    stale = replace(current, lease=replace(current.lease, epoch=current.lease.epoch - 1))
    decided = Decision("allow", "default.talk", "digest", ("owner",), tainted=False)
    with pytest.raises(LeaseLost):
        store.run(turn_journal.start_tool, stale, tool_call("act", {}, "c1"), "read", decided)
    assert on_record(store) == []


def test_that_somebody_was_asked_is_on_record(store: Store) -> None:
    """When the question is asked, with its grounds; the answer is a row of its own."""
    current = store.run(turn_of, "act")
    decided = Decision("ask_owner", "default.skills", "digest", ("owner",), tainted=False)
    asked = Inquiry("approval", "c1", "act", "may I?", decision=decided)
    at = (current.lease.conversation, current.id)
    question = store.run(questions.enter, *at, "c1", asked, 60)
    assert store.run(questions.answer, question.id, "once", OWNER)
    assert told(store) == [("tool_asked", "", "act"), ("approved", OWNER, "act")]
    detail = on_record(store)[0].text()["detail"]
    assert (detail["verdict"], detail["rule"], detail["roles"]) == (
        "ask_owner",
        "default.skills",
        ["owner"],
    )
    assert [row.text()["detail"]["standing"] for row in on_record(store)] == [False, False]


def test_pairing_is_on_record(store: Store) -> None:
    """Approved, denied, revoked, each once; by whom and whom."""
    codes = {}
    for sender in ("42", "43"):
        message = inbound("let me in", chat=sender)
        conversation, _ = store.run(admit, message)
        code = pairing.new_code()
        store.run(members.enter_request, message, "Ada", code, conversation)
        codes[sender] = code
    for _ in range(2):
        store.run(pairing.approve, codes["42"], OWNER)
        store.run(pairing.deny, codes["43"], "command line")
    store.run(pairing.revoke, "telegram:42", OWNER)
    assert told(store) == [
        ("pairing_approved", OWNER, "telegram:42"),
        ("pairing_denied", "command line", "telegram:43"),
        ("member_revoked", OWNER, "telegram:42"),
    ]


@pytest.mark.usefixtures("sqlite_alone")
def test_forgetting_empties_rows_and_says_so(store: Store) -> None:
    """Of the conversation alone; down to the byte, and the chain holds."""
    current = store.run(turn_of, "act")
    here = current.lease.conversation
    store.run(audit_log.append, AuditEntry("denied", "telegram:whoever", conversation=here))
    store.run(audit_log.append, AuditEntry("denied", OWNER, conversation=here + 1))
    assert b"telegram:whoever" in raw_bytes(store.path)
    store.run(maintenance.forget, here)
    assert told(store) == [
        ("denied", "-", "-"),
        ("denied", OWNER, ""),
        ("forgotten", "command line", f"conversation {here}"),
    ]
    assert on_record(store)[2].emptied == "[[1,1]]"
    assert wrong(store) is None


def test_old_rows_are_emptied_but_for_the_newest_settings(store: Store) -> None:
    """In steps, each of which says so; once done, it says no more."""
    for kind in ("settings_changed", "denied", "denied", "settings_changed", "denied"):
        store.run(audit_log.append, AuditEntry(kind, OWNER))
    assert store.run(audit_log.count_old, -1.0)[0] == 4
    assert [store.run(audit_log.prune, -1.0, 3) for _ in range(3)] == [3, 1, 0]
    found = [(row.kind, row.emptied) for row in on_record(store) if row.said is not None]
    assert found == [
        ("settings_changed", ""),
        ("pruned", "[[1,3]]"),
        ("pruned", "[[5,5]]"),
    ]
    assert wrong(store) is None


def test_the_log_is_listed_newest_first(store: Store) -> None:
    """In pages, by kind and time."""
    for kind in ("denied", "approved", "denied"):
        store.run(audit_log.append, AuditEntry(kind))
    assert [row.seq for row in store.run(audit_log.listed, 2)] == [3, 2]
    assert [row.seq for row in store.run(audit_log.listed, 2, after=2)] == [1]
    assert [row.seq for row in store.run(audit_log.listed, 9, kind="approved")] == [2]
    assert store.run(audit_log.listed, 9, since=1e12) == []
