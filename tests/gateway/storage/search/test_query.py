"""The search: what it finds, in which order, and never anybody else's."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from gateway.storage.conversation.transcript import END
from gateway.storage.schema import message, vector
from gateway.storage.search import index, query
from gateway.storage.search.index import terms_of
from gateway.storage.search.query import EVERYTHING, MAX_CONVERSATIONS, TEXTS, Match, SearchLimits
from tests.support.searching import chat, feed, found, said, talk, tell
from tests.support.storage import Store, forget

NOISE = tuple(f"this is message {word}" for word in ["alpha", "beta", "gamma", "delta"])


def test_rare_words_count_more(store: Store) -> None:
    """The message with the rare one is first, though others have as many of the question."""
    texts = ["the tea is hot", "the saxophone", *NOISE * 3, "more tea", *NOISE, "tea again"]
    here = talk(store, *texts)
    assert found(store, [here], "tea or the saxophone?")[0] == 2


def test_words_of_a_question_add_up(store: Store) -> None:
    """Also where they are spread over question and answer."""
    here = talk(
        store, "I paint", *NOISE, "Where?", "I paint at the lake", *NOISE, "the lake is cold"
    )
    assert found(store, [here], "Where did she paint the lake?")[0] == 7


def test_an_answer_without_the_words_is_found_beside_its_question(store: Store) -> None:
    """The one next to it comes before one farther off."""
    here = talk(store, "What is your favourite quagga?", "Ada.", "I see", "so", "well", "yes")
    assert found(store, [here], "favourite quagga") == [1, 2, 3]


def test_a_long_message_says_less_with_a_word(store: Store) -> None:
    """It holds many."""
    long = " ".join(f"word{n}" for n in range(100))
    here = talk(store, f"saxophone {long}", *NOISE, "a saxophone")
    assert found(store, [here], "saxophone")[0] == 6


def test_of_equal_ones_the_newest_is_first(store: Store) -> None:
    """It is more likely to still hold."""
    here = talk(store, "a zebra", *NOISE, *NOISE, "a zebra")
    assert found(store, [here], "zebra")[0] == 10


@pytest.mark.parametrize("question", ["東京", "京", "都", "お寿司", "寿"])
def test_words_without_spaces_are_found(store: Store, question: str) -> None:
    """Of one character or more, wherever they stand."""
    here = talk(store, *NOISE, "昨日東京都でお寿司を食べた", *NOISE)
    assert found(store, [here], question)[0] == 5


@pytest.mark.parametrize(
    ("only", "seqs"),
    [
        (SearchLimits(role="assistant"), [2, 4]),
        (SearchLimits(since_s=30), [3, 4]),
        (SearchLimits(until_s=30), [1, 2]),
        (SearchLimits(since_s=20, until_s=30), [2]),
        (SearchLimits(since_s=99), []),
        (SearchLimits(until_s=1), []),
    ],
)
def test_a_search_is_limited(store: Store, only: SearchLimits, seqs: list[int]) -> None:
    """By who said it, by when, by where in the transcript."""
    here = chat(store)
    roles = ("user", "assistant")
    store.run(tell, here, [said("a zebra", roles[n % 2]) for n in range(4)])
    store.run(lambda conn: conn.execute(update(message).values(at=message.c.seq * 10)))
    feed(store)
    assert sorted(found(store, [here], "zebra", only=only)) == seqs


@pytest.mark.parametrize("question", ["", "?!", "quagga", '"', "NEAR(a b)", "a* OR -b:c", "\ud800"])
def test_nothing_is_found_for_what_nobody_said(store: Store, question: str) -> None:
    """Whatever it looks like, it is words."""
    here = talk(store, "zebra")
    assert found(store, [here], question) == []
    assert found(store, [], question) == []


@settings(max_examples=60)
@given(question=st.text(max_size=40) | st.text('"*^:(){}+-ANDORTNEzebra ', max_size=30))
def test_any_question_is_safe(shared_store: Store, question: str) -> None:
    """No text is a syntax error."""
    assert set(found(shared_store, None, question)) <= set(found(shared_store, None, "zebra"))


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory, database_template: Any) -> Any:
    """A database that examples share: two direct chats, some words in each."""
    path = tmp_path_factory.mktemp("search") / "parley.db"
    path.write_bytes(database_template.read_bytes())
    opened = Store(path)
    talk(opened, "a zebra and 東京")
    talk(opened, "a zebra or a horse", user="8")
    yield opened
    opened.close()


def test_only_the_given_conversations_are_searched(store: Store) -> None:
    """Their order does not matter; without any it is all of them."""
    one, two = talk(store, "a zebra"), talk(store, "a horse and a zebra", user="8")
    talk(store, "a zebra", user="9")
    assert {each.conversation for each in store.run(query.find, [two, one], "zebra")} == {one, two}
    assert len(store.run(query.find, None, "zebra")) == 3


RARE = (
    "automobile purchase physician children medication salary apartment holiday argument"
    " presentation employer kitchen computer telephone grandmother restaurant"
)
"""Words with others of the same beginning looked for beside them."""


@pytest.mark.parametrize("words", [" ".join(f"word{n:02}" for n in range(30)), RARE])
def test_the_longest_search_is_no_error(store: Store, words: str) -> None:
    """Whether of as many terms and conversations as there may be all are common or rare."""
    chats = [talk(store, words, user=str(n)) for n in range(MAX_CONVERSATIONS + 2)]
    assert len(store.run(query.find, chats, words, limit=50)) == MAX_CONVERSATIONS


def test_a_form_of_a_word_is_found_behind_the_word(store: Store) -> None:
    """For less."""
    here = talk(store, *NOISE, "painters paint", *NOISE, *NOISE, "we were painting", *NOISE)
    assert found(store, [here], "painting")[0] == 14
    assert 5 in found(store, [here], "painting", limit=20)


def test_of_common_words_the_newest_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They tell which of the rare ones' messages is best."""
    monkeypatch.setattr(query, "NEWEST", 4)
    here = talk(store, *["tea"] * 5, *NOISE, "a saxophone", *NOISE, "tea with a saxophone", *NOISE)
    assert found(store, [here], "tea saxophone")[0] == 15
    assert set(found(store, [here], "tea", limit=3)) <= {3, 4, 5, 15}


@pytest.mark.usefixtures("sqlite_alone")
def test_a_role_is_found_behind_many_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages of other roles say more."""
    monkeypatch.setattr(query, "CANDIDATES", 2)
    here = talk(store, *["a zebra", "so"] * 10, "a zebra", "zebra and a long answer about it")
    assert found(store, [here], "zebra", only=SearchLimits(role="assistant"))[0] == 22


def test_a_match_says_where_it_is(store: Store) -> None:
    """Conversation, seq, and whether it has the word itself."""
    here = talk(store, "a zebra")
    (match,) = store.run(query.find, [here], "zebra")
    assert match == Match(here, 1, holds=True)


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
