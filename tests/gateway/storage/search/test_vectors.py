"""Vectors: claimed, entered and erased with what the index holds; compared by direction."""

from array import array
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, update

from gateway.storage import maintenance
from gateway.storage.conversation.transcript import END
from gateway.storage.schema import vector, vector_progress
from gateway.storage.search import index, vectors
from gateway.storage.search.terms import terms_of
from gateway.storage.search.vectors import TEXTS, Direction, Unembedded
from tests.support.searching import chat, feed, said, talk, tell
from tests.support.storage import Store

SPACE = "server model 3"


class Killed(Exception):
    """The process ends here."""


def body(*numbers: int) -> bytes:
    """Return a vector."""
    return array("b", numbers).tobytes()


def make(store: Store, space: str = SPACE) -> list[Unembedded]:
    """Make what is missing; returns the claims."""
    claims = []
    while claimed := store.run(vectors.claim, space):
        claims.append(claimed)
        made = {seq: body(1, 2, 3) for seq, text in claimed.texts.items() if text}
        assert store.run(vectors.enter, claimed, made)
    return claims


def kept(store: Store, conversation_id: int) -> list[int]:
    """Return the seqs of what has a vector."""
    found = store.run(vectors.directions, conversation_id, END, 3)
    return [each.seq for each in found]


def test_what_is_indexed_is_claimed_once(store: Store) -> None:
    """In order, a bounded number at a time; what nobody can find has none."""
    here = chat(store)
    store.run(tell, here, [said(f"a zebra {n}") for n in range(TEXTS)])
    store.run(tell, here, [said("go on", synthetic=True), said("a horse")])
    assert store.run(vectors.claim, SPACE) is None
    feed(store)
    first, second = make(store)
    assert (first.after_seq, first.upto_seq, len(first.texts)) == (0, TEXTS, TEXTS)
    assert (second.after_seq, second.upto_seq) == (TEXTS, TEXTS + 2)
    assert second.texts == {TEXTS + 2: "a horse"}
    assert kept(store, here) == [*range(1, TEXTS + 1), TEXTS + 2]


def test_a_claim_holds_others_off_and_ends_by_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was killed with it is not waited for long; who comes late with it is not heard."""
    talk(store, "a zebra")
    claimed = store.run(vectors.claim, SPACE)
    assert claimed is not None
    assert store.run(vectors.claim, SPACE) is None
    store.run(lambda conn: conn.execute(update(vector_progress).values(claimed_until=0.0)))
    again = store.run(vectors.claim, SPACE)
    assert again == claimed
    assert store.run(vectors.enter, claimed, {1: body(1, 1, 1)})
    assert not store.run(vectors.enter, claimed, {1: body(2, 2, 2)})
    store.run(vectors.give_back, claimed)
    assert store.run(vectors.claim, SPACE) is None


def test_a_kill_in_the_middle_leaves_vectors_and_progress_one(store: Store) -> None:
    """Both or neither."""
    here = talk(store, "a zebra")
    claimed = store.run(vectors.claim, SPACE)
    assert claimed is not None

    def killed(conn: Connection) -> None:
        vectors.enter(conn, claimed, {1: body(1, 2, 3)})
        raise Killed

    with pytest.raises(Killed):
        store.run(killed)
    assert kept(store, here) == []
    store.run(vectors.give_back, claimed)
    make(store)
    assert kept(store, here) == [1]


def test_what_was_erased_meanwhile_gets_no_vector(store: Store) -> None:
    """The provider was asked before; its answer comes behind."""
    here = talk(store, "a zebra", "a horse")
    claimed = store.run(vectors.claim, SPACE)
    assert claimed is not None
    store.run(index.take_out, here, {1: terms_of(said("a zebra"))})
    store.run(vectors.enter, claimed, {1: body(1, 2, 3), 2: body(1, 2, 3)})
    assert kept(store, here) == [2]


def test_vectors_go_with_their_messages(store: Store) -> None:
    """Some of them, or all of a conversation with what is known of it; others stay."""
    gone, other = talk(store, "a zebra", "a horse"), talk(store, "a zebra", user="8")
    make(store)
    store.run(index.forget, gone, 1)
    assert kept(store, gone) == [2]
    store.run(maintenance.forget, gone)
    assert {row.conversation for row in store.rows(vector)} == {other}
    assert {row.conversation for row in store.rows(vector_progress)} == {other}


def test_another_model_begins_anew(store: Store) -> None:
    """Its vectors cannot be compared with those of the one before."""
    here = talk(store, "a zebra")
    make(store)
    (claimed,) = make(store, "another")
    assert claimed.after_seq == 0
    assert kept(store, here) == [1]
    assert [row.space for row in store.rows(vector_progress)] == ["another"]


def rows(*bodies: bytes) -> Sequence[Direction]:
    """Return messages with these vectors."""
    return [Direction(n, each, "user", 0.0) for n, each in enumerate(bodies, 1)]


def test_what_points_the_same_way_is_near() -> None:
    """Whatever its length; the messages beside it are nearer than those far off."""
    away, near = body(0, 0, 127), body(60, 60, 0)
    found = vectors.nearness({1: rows(away, away, away, near, away, away, away)}, body(127, 127, 0))
    by_nearness = sorted(found, key=found.__getitem__, reverse=True)
    assert by_nearness[0] == (1, 4)
    assert set(by_nearness[1:3]) == {(1, 3), (1, 5)}
    assert sum(found.values()) == pytest.approx(0, abs=1e-4)


def test_conversations_do_not_smooth_each_other() -> None:
    """The last message of one is no neighbour of the first of another."""
    away, near = body(0, 0, 127), body(60, 60, 0)
    found = vectors.nearness(
        {1: rows(away, away, away, near), 2: rows(away, away, away)}, body(127, 127, 0)
    )
    assert found[2, 1] == pytest.approx(found[2, 3])
    assert found[1, 3] > found[2, 1]


@pytest.mark.parametrize("found", [{}, {1: []}, {1: rows(body(1, 2, 3))}])
def test_of_too_few_nothing_is_said(found: dict[int, Sequence[Direction]]) -> None:
    """There is no mean to be above."""
    assert vectors.nearness(found, body(1, 2, 3)) == {}
