"""The audit log: what is on record, and what is erased of it."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from agent.messages import tool_message
from agent.ports import DecidedVerdict, Decision, Inquiry
from gateway.access import pairing
from gateway.errors import LeaseLost
from gateway.storage import audit_log, retention
from gateway.storage.audit_log import AuditEntry
from gateway.storage.conversation import questions, turn_journal
from gateway.storage.people import members
from gateway.storage.retention import SWEEPS
from gateway.storage.schema import audit_rows, inquiry
from tests.support.scripted_model import tool_call
from tests.support.storage import Store, admit, forget, inbound, raw_bytes, turn_of

OWNER = "telegram:7"


def on_record(store: Store) -> list[AuditEntry]:
    """Return the rows of the log."""
    return store.run(lambda conn: list(audit_log.records(conn)))


def told(store: Store) -> list[tuple[str, str, str]]:
    """Return kind, author and subject of each row."""
    return [
        (row.kind, "-" if row.erased else row.by, "-" if row.erased else row.subject)
        for row in on_record(store)
    ]


def test_what_is_rolled_back_is_not_on_record(store: Store) -> None:
    """The row belongs to its caller's transaction."""
    store.undone(audit_log.append, AuditEntry("expired"))
    assert on_record(store) == []


def test_all_rows_are_read_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are read at once."""
    for n in range(5):
        store.run(audit_log.append, AuditEntry("expired", subject=f"{n}"))
    monkeypatch.setattr(audit_log, "_READ_ROWS", 2)
    assert [subject for _, _, subject in told(store)] == ["0", "1", "2", "3", "4"]


def test_a_row_costs_one_statement(store: Store) -> None:
    """It is entered; nothing else is read or written."""
    statements = store.statements(audit_log.append, AuditEntry("expired"))
    assert [each.split()[0] for each in statements] == ["INSERT"]


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
    detail = on_record(store)[0].detail
    assert (detail["call"], detail["scope"], detail["standing"]) == ("c0", "once", False)
    assert "rm it" not in repr(on_record(store))


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
    assert on_record(store)[0].detail["standing"] is True


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
    assert row.detail == {
        "turn": current.id,
        "call": "c1",
        "verdict": verdict,
        "rule": "default.talk",
        "arguments_sha256": "digest",
        "roles": ["guest", "owner"],
        "tainted": True,
    }


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
    detail = on_record(store)[0].detail
    assert (detail["verdict"], detail["rule"], detail["roles"]) == (
        "ask_owner",
        "default.skills",
        ["owner"],
    )
    assert [row.detail["standing"] for row in on_record(store)] == [False, False]


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
    """Of the conversation alone; down to the byte."""
    current = store.run(turn_of, "act")
    here = current.lease.conversation
    store.run(audit_log.append, AuditEntry("denied", "telegram:whoever", conversation=here))
    store.run(audit_log.append, AuditEntry("denied", OWNER, conversation=here + 1))
    assert b"telegram:whoever" in raw_bytes(store.path)
    store.run(forget, here)
    assert told(store) == [
        ("denied", "-", "-"),
        ("denied", OWNER, ""),
        ("forgotten", "command line", f"conversation {here}"),
    ]


def test_old_rows_are_deleted_but_for_the_newest_settings(store: Store) -> None:
    """In steps; their numbers are never given again."""
    for kind in ("settings_changed", "denied", "denied", "settings_changed", "denied"):
        store.run(audit_log.append, AuditEntry(kind, OWNER))
    of_log = next(each for each in SWEEPS["audit"] if each.table is audit_rows)
    assert store.run(retention.count, of_log, -1.0).rows == 4
    old = store.run(retention.find, of_log, -1.0)
    steps = (old[:3], old[3:], [(4,)])
    assert [store.run(retention.erase, of_log, -1.0, some).rows for some in steps] == [3, 1, 0]
    store.run(audit_log.append, AuditEntry("expired"))
    assert [(row.seq, row.kind) for row in on_record(store)] == [
        (4, "settings_changed"),
        (6, "expired"),
    ]


def test_the_log_is_listed_newest_first(store: Store) -> None:
    """In pages, by kind."""
    for kind in ("denied", "approved", "denied"):
        store.run(audit_log.append, AuditEntry(kind))
    assert [row.seq for row in store.run(audit_log.listed, 2)] == [3, 2]
    assert [row.seq for row in store.run(audit_log.listed, 2, after=2)] == [1]
    assert [row.seq for row in store.run(audit_log.listed, 9, kind="approved")] == [2]
