"""Vectors: made, entered and erased with what the index holds; compared by direction."""

from array import array

import pytest

from gateway.storage.conversation.transcript import END
from gateway.storage.schema import vector
from gateway.storage.search import index, query
from gateway.storage.search.query import EVERYTHING, TEXTS, SearchLimits
from gateway.storage.search.terms import terms_of
from tests.support.searching import chat, feed, said, talk, tell
from tests.support.storage import Store, forget

SPACE = "server model 3"


def body(*numbers: int) -> bytes:
    """Return a vector."""
    return array("b", numbers).tobytes()


def make(store: Store, space: str = SPACE) -> list[tuple[int, dict[int, str]]]:
    """Make what is missing; returns what was embedded together."""
    batches, before = [], (END, END)
    while batch := store.run(query.lacking, space, before, TEXTS):
        conversation, texts = batch
        batches.append((conversation, texts))
        made = {seq: body(1, 2, 3) if text else b"" for seq, text in texts.items()}
        store.run(query.enter_vectors, conversation, space, made)
        before = (conversation, min(texts))
    return batches


def kept(store: Store, conversation_id: int, space: str = SPACE) -> list[int]:
    """Return the seqs of what has a vector."""
    here = (conversation_id, space)
    found = [row for row in store.rows(vector) if (row.conversation, row.space) == here]
    return sorted(row.seq for row in found if row.body)


def test_what_is_indexed_is_embedded_once(store: Store) -> None:
    """The newest first, a bounded number at a time; what nobody can find has none."""
    here = chat(store)
    store.run(tell, here, [said(f"a zebra {n}") for n in range(TEXTS)])
    store.run(tell, here, [said("go on", synthetic=True), said("a horse")])
    assert make(store) == []
    feed(store)
    other = talk(store, "a giraffe", user="8")
    first, second, third = make(store)
    assert first == (other, {1: "a giraffe"})
    assert (second[0], [*second[1]]) == (here, [TEXTS + 2, *range(TEXTS, 1, -1)])
    assert third == (here, {1: "a zebra 0"})
    assert kept(store, here) == [*range(1, TEXTS + 1), TEXTS + 2]
    assert make(store) == []


def test_of_two_that_make_the_same_one_stays(store: Store) -> None:
    """Two replicas may have read it at once."""
    here = talk(store, "a zebra", "a horse")
    for numbers in ((1, 1, 1), (2, 2, 2)):
        made = dict.fromkeys([1, 2], body(*numbers))
        store.run(query.enter_vectors, here, SPACE, made)
    assert [row.body for row in store.rows(vector)] == [body(2, 2, 2)] * 2


def test_what_was_erased_meanwhile_gets_no_vector(store: Store) -> None:
    """The provider was asked before; its answer comes behind."""
    here = talk(store, "a zebra", "a horse")
    store.run(index.take_out, here, {1: terms_of(said("a zebra"))})
    store.run(query.enter_vectors, here, SPACE, {1: body(1, 2, 3), 2: body(1, 2, 3)})
    assert kept(store, here) == [2]


def test_vectors_go_with_their_messages(store: Store) -> None:
    """Some of them, or all of a conversation; others stay."""
    gone, other = talk(store, "a zebra", "a horse"), talk(store, "a zebra", user="8")
    make(store)
    store.run(index.forget, gone, 1)
    assert kept(store, gone) == [2]
    store.run(forget, gone)
    assert {row.conversation for row in store.rows(vector)} == {other}


def test_another_model_begins_anew(store: Store) -> None:
    """Its vectors cannot be compared with those of the one before, and take their place."""
    here = talk(store, "a zebra")
    make(store)
    assert kept(store, here, "another") == []
    assert make(store, "another") == [(here, {1: "a zebra"})]
    assert (kept(store, here), kept(store, here, "another")) == ([], [1])


def nearness(
    store: Store, bodies: dict[int, list[bytes]], only: SearchLimits = EVERYTHING
) -> dict[tuple[int, int], float]:
    """Return how near messages with these vectors are to (127, 127, 0), by conversation."""
    for conversation_id, each in bodies.items():
        here = talk(store, *["a zebra"] * len(each), user=f"{conversation_id}")
        assert here == conversation_id
        store.run(query.enter_vectors, here, SPACE, dict(enumerate(each, 1)))
    return store.run(query.nearness, list(bodies), body(127, 127, 0), only, SPACE)


AWAY, NEAR = body(0, 0, 127), body(60, 60, 0)


def test_what_points_the_same_way_is_near(store: Store) -> None:
    """Whatever its length; the messages beside it are nearer than those far off."""
    found = nearness(store, {1: [AWAY, AWAY, AWAY, NEAR, AWAY, AWAY, AWAY]})
    by_nearness = sorted(found, key=found.__getitem__, reverse=True)
    assert by_nearness[0] == (1, 4)
    assert set(by_nearness[1:3]) == {(1, 3), (1, 5)}
    assert sum(found.values()) == pytest.approx(0, abs=1e-4)


def test_only_what_may_be_found_is_near(store: Store) -> None:
    """What stands at the end of the search is not read; what it leaves out is only compared."""
    only = SearchLimits(before=(1, 7))
    found = nearness(store, {1: [AWAY, AWAY, AWAY, NEAR, AWAY, AWAY, NEAR]}, only)
    assert sorted(found) == [(1, seq) for seq in range(1, 7)]
    answers = SearchLimits(role="assistant")
    found = store.run(query.nearness, [1], body(127, 127, 0), answers, SPACE)
    assert sorted(found) == [(1, 2), (1, 4), (1, 6)]


def test_conversations_do_not_smooth_each_other(store: Store) -> None:
    """The last message of one is no neighbour of the first of another."""
    found = nearness(store, {1: [AWAY, AWAY, AWAY, NEAR], 2: [AWAY, AWAY, AWAY]})
    assert found[2, 1] == pytest.approx(found[2, 3])
    assert found[1, 3] > found[2, 1]


@pytest.mark.parametrize("found", [{}, {1: [AWAY]}])
def test_of_too_few_nothing_is_said(store: Store, found: dict[int, list[bytes]]) -> None:
    """There is no mean to be above."""
    assert nearness(store, found) == {}
